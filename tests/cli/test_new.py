"""The command `proxyfl new`: from raw files of several sites to a study that runs."""

import random
import tomllib

import pytest

from proxyfl.cli.main import main
from proxyfl.data.tables import schema
from proxyfl.data.tables.survey import Column, Seen, propose_classes, survey
from proxyfl.privacy.guarantee import Unit
from proxyfl.privacy.ledger import Ledger
from proxyfl.records.folder import read_metrics


def _rows(count, first, rng):
    for number in range(count):
        person = first + number
        for _ in range(rng.choice([1, 1, 2])):
            age = rng.randint(30, 95)
            yield person, age, rng.gauss(5, 2), rng.random() < (age - 20) / 90


@pytest.fixture
def sites(tmp_path):
    """Three sites' files: other separators, decimal signs, encodings, spellings and orders."""
    rng = random.Random(1)
    north = ["record_id,patient,age,crp,sex,died"]
    south = ["patient;record_id;age;sex;crp;died"]
    east = ["record_id\tpatient\tage\tcrp\tsex\tdied"]
    for i, (who, age, crp, died) in enumerate(_rows(60, 100, rng)):
        north.append(f"{i},{who},{age},{crp:.1f},{'MF'[i % 2]},{int(died)}")
    for i, (who, age, crp, died) in enumerate(_rows(50, 500, rng)):
        value = "k.A." if i == 3 else f"{crp:.1f}".replace(".", ",")
        sex = ("männlich", "weiblich")[i % 2]
        south.append(f"{who};{i};{age};{sex};{value};{('nein', 'ja')[died]}")
    for i, (who, age, crp, died) in enumerate(_rows(40, 900, rng)):
        shown = -9 if i == 5 else age
        sex, answer = ("male", "female")[i % 2], ("no", "yes")[died]
        east.append(f"{i}\t{who}\t{shown}\t{crp:.1f}\t{sex}\t{answer}")
    files = []
    for name, lines in {"north": north, "south": south, "east": east}.items():
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(lines), encoding="latin-1" if name == "south" else "utf-8")
        files.append(str(path))
    return files


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_three_raw_files_become_a_complete_study(sites, here, capsys):
    """With --yes, files in three dialects become a schema without a blank and a study that loads;
    ids are marked, persons named, spellings brought together, codes for gaps named."""
    assert main(["new", "stroke", "--tables", *sites, "--yes"]) == 0
    assert "proxyfl run" in capsys.readouterr().out
    text = (here / "stroke/schema.toml").read_text(encoding="utf-8")
    assert "unique: an id?" in text
    agreed = schema.parse(tomllib.loads(text))
    assert agreed.person == "patient"
    assert agreed.label.classes == ("no", "yes")
    assert agreed.label.written == {"no": ("0", "nein"), "yes": ("1", "ja")}
    assert agreed.columns["record_id"].type == "ignored"
    assert agreed.columns["sex"].values == ("female", "male")
    assert agreed.columns["age"].range == (0, 110)
    assert agreed.columns["age"].missing == ("-9",)
    assert agreed.columns["crp"].missing == ("k.A.",)
    study = tomllib.loads((here / "stroke/study.toml").read_text(encoding="utf-8"))
    assert study["data"]["source"] == ["../north.csv", "../south.csv", "../east.csv"]
    assert main(["schema", "check", *sites, "--schema", "stroke/schema.toml"]) == 0


def test_run_and_report_need_no_options(sites, here, monkeypatch, capsys):
    """In the project's folder `proxyfl run` runs its study, and `proxyfl report` its newest run."""
    assert main(["new", "stroke", "--tables", *sites, "--yes"]) == 0
    monkeypatch.chdir(here / "stroke")
    short = ["--set", "rounds=4", "--set", "evaluate_every=4", "--workers", "1"]
    assert main(["run", *short, "--set", "models.private=logistic"]) == 0
    assert main(["report"]) == 0
    pages = list((here / "stroke").glob("runs/*/report.html"))
    assert len(pages) == 1
    assert "report.html" in capsys.readouterr().out


def test_spellings_that_words_do_not_tell_are_asked_for(sites, here, capsys):
    """Classes that sites write with words of their own are refused with --yes, and the message's
    option makes them one."""
    north = here / "north.csv"
    lines = north.read_text(encoding="utf-8").splitlines()
    lines = [lines[0], *(line[:-1] + {"0": "stable", "1": "worse"}[line[-1]] for line in lines[1:])]
    north.write_text("\n".join(lines), encoding="utf-8")
    assert main(["new", "stroke", "--tables", *sites, "--yes"]) == 2
    assert "--written 'died:NAME=" in capsys.readouterr().err
    assert not (here / "stroke").exists()
    told = ["--written", "died:no=stable,nein,no", "--written", "died:yes=worse,ja,yes"]
    assert main(["new", "stroke", "--tables", *sites, "--yes", *told]) == 0
    agreed = schema.read(here / "stroke/schema.toml")
    assert agreed.label.written["yes"] == ("worse", "ja")


def test_the_published_share_of_cases_is_taken(sites, here, capsys):
    """--prevalence goes into the schema, as published; the other class has the rest. The settings
    follow from it, and the README advises fewer columns where the noise would take too much."""
    line = ["new", "stroke", "--tables", *sites, "--yes"]
    assert main([*line, "--prevalence", "yes=0.05"]) == 0
    agreed = schema.read(here / "stroke/schema.toml")
    assert agreed.label.prevalence == (0.95, 0.05)
    assert "Fewer columns lose less" in (here / "stroke/README.md").read_text(encoding="utf-8")
    line[1] = "other"
    assert main(line) == 0
    text = (here / "other/schema.toml").read_text(encoding="utf-8")
    assert "prevalence = []    # the share of each class as published" in text
    rates = []
    for name in ("stroke", "other"):
        tree = tomllib.loads((here / name / "study.toml").read_text(encoding="utf-8"))
        rates.append(tree["proxy_optimizer"]["learning_rate"])
    assert rates[0] == pytest.approx(rates[1] / 2, rel=0.05)
    line[1] = "wrong"
    assert main([*line, "--prevalence", "maybe=0.05"]) == 2
    assert "a class of no, yes" in capsys.readouterr().err


def test_answers_in_the_terminal_are_taken(sites, here, monkeypatch, capsys):
    """In a terminal it asks for label, person, spellings and ranges; Enter takes what is proposed,
    and one range can be changed."""
    questions = []
    answers = {"Enter to accept": iter(["crp 0 50", ""]), "CLASS=SHARE": iter(["yes=2", "yes=0.4"])}

    def answer(question):
        questions.append(question)
        for start, texts in answers.items():
            if question.startswith(start):
                return next(texts)
        return ""

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    assert main(["new", "stroke", "--tables", *sites]) == 0
    agreed = schema.read(here / "stroke/schema.toml")
    assert agreed.columns["crp"].range == (0, 50)
    assert agreed.label.column == "died"
    assert agreed.label.prevalence == (0.6, 0.4)
    assert any("predicted?" in question for question in questions)
    assert any("Right?" in question for question in questions)


def test_no_terminal_and_no_yes_is_refused(sites, here, capsys):
    """Where nobody can answer, it says so and names --yes."""
    assert main(["new", "stroke", "--tables", *sites]) == 2
    assert "--yes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["new", "a", "--tables", "nowhere.csv", "--yes"], "no such file"),
        (["new", "a", "--example", "hospitls"], "Did you mean 'hospitals'"),
        (["new", "a", "--images", "nowhere"], "no such folder"),
        (["new", "a", "--python", "--label", "died"], "--label is about tables"),
        (["new", ".", "--python"], "new folder"),
    ],
)
def test_what_cannot_become_a_project_is_named(here, capsys, words, expected):
    """Each refusal says what to do, and leaves no folder."""
    assert main(words) == 2
    assert expected in capsys.readouterr().err
    assert not (here / "a").exists()


def test_python_project_runs(here, monkeypatch):
    """The project of --python has models of its own that a run takes."""
    assert main(["new", "mine", "--python"]) == 0
    monkeypatch.chdir(here / "mine")
    monkeypatch.syspath_prepend(str(here / "mine"))
    assert main(["run", "--set", "rounds=1", "--workers", "1", "--json"]) == 0
    compile((here / "mine/loop.py").read_text(encoding="utf-8"), "loop.py", "exec")


def test_columns_that_differ_in_letters_are_named(tmp_path):
    """A column that two sites write with other capitals is refused with both names."""
    for name, header in (("a", "Age,died"), ("b", "age,died")):
        (tmp_path / f"{name}.csv").write_text(f"{header}\n50,1\n60,0\n", encoding="utf-8")
    with pytest.raises(Exception, match="'Age' and b calls it 'age'"):
        survey([tmp_path / "a.csv", tmp_path / "b.csv"])


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ([["0", "1"], ["nein", "ja"]], {"no": ("0", "nein"), "yes": ("1", "ja")}),
        ([["0", "1"], ["alive", "dead"]], None),
        ([["a", "b"], ["B", "A"]], {"A": ("A", "a"), "B": ("B", "b")}),
        ([["low", "high"], ["stable", "worse"]], None),
        ([["1", "2", "3"], ["3", "1"]], {"1": ("1",), "2": ("2",), "3": ("3",)}),
    ],
)
def test_classes_are_brought_together_only_by_known_words(sites, expected):
    """Numbers and words are joined if a word says so; otherwise nothing is guessed."""
    column = Column("died")
    for number, texts in enumerate(sites):
        seen = Seen()
        seen.add(texts * 5, ".")
        column.by_file[f"site-{number}"] = seen
    assert propose_classes(column) == expected


def test_an_example_needs_no_name(tmp_path, monkeypatch, capsys):
    """`proxyfl new --example hospitals` makes ./hospitals; other projects are asked for a name."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "--example", "hospitals"]) == 0
    assert (tmp_path / "hospitals" / "study.toml").is_file()
    assert main(["new", "--python"]) == 2
    assert "needs a name: proxyfl new NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "label"),
    [
        ("alter,geschlecht,verstorben,raucher", "verstorben"),
        ("age,sexe,décès,fumeur", "décès"),
        ("edad,sexo,muerte,fumador", "muerte"),
        ("age,sex,bad_end,stay", "bad_end"),
    ],
)
def test_the_outcome_is_guessed_in_several_languages(here, header, label):
    """A column called like an outcome is the label; where none is, the last with two values."""
    for name in ("north", "south"):
        stay = [f"{i % 9}" if label == "bad_end" else f"{i // 2 % 2}" for i in range(80)]
        rows = [f"{30 + i % 50},{'mf'[i % 2]},{i % 3 % 2},{stay[i]}" for i in range(80)]
        (here / f"{name}.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    files = [here / "north.csv", here / "south.csv"]
    assert survey(files).guess_label() == label
    assert main(["new", "study", "--tables", *map(str, files), "--yes"]) == 0
    text = (here / "study/schema.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["label"]["column"] == label


def test_a_projects_run_is_called_like_the_project(sites, here, capsys, monkeypatch):
    """The run's folder has the name of the project, not of the last file. The schema names the
    person, so that the ledgers protect patients, and the terminal says so."""
    assert main(["new", "stroke", "--tables", *sites, "--yes"]) == 0
    assert 'person = "patient"' in (here / "stroke/schema.toml").read_text(encoding="utf-8")
    monkeypatch.chdir(here / "stroke")
    capsys.readouterr()
    sets = ["methods=alone,proxyfl", "rounds=1", "exchange.average=0", "exchange.settle=0"]
    arguments = [word for one in sets for word in ("--set", one)]
    assert main(["run", "--workers", "1", "--splits", "1", *arguments]) == 0
    assert "per patient, end-to-end" in capsys.readouterr().out
    (made,) = (here / "stroke/runs").iterdir()
    assert made.name.endswith("-stroke")
    rows = [row for row in read_metrics(made) if row["method"] == "proxyfl"]
    assert {row["epsilon_unit"] for row in rows} == {"group"}
    assert {Ledger.read(path).unit for path in made.glob("ledger/proxyfl/*")} == {Unit.GROUP}


@pytest.fixture
def followed(tmp_path):
    """Two sites' files with a time, an event, a value and two findings."""
    rng = random.Random(2)
    files = []
    for site, words in (("a", "01"), ("b", ("nein", "ja"))):
        lines = ["patient,age,days,died,hba1c,edema,effusion"]
        for number in range(80):
            died = words[rng.random() < 0.4]
            edema = ("no", "yes")[rng.random() < 0.3]
            lines.append(
                f"{site}{number},{rng.randint(30, 95)},{rng.randint(5, 1000)},{died},"
                f"{rng.gauss(7, 1):.1f},{edema},{int(rng.random() < 0.2)}"
            )
        path = tmp_path / f"{site}.csv"
        path.write_text("\n".join(lines), encoding="utf-8")
        files.append(str(path))
    return files


TASKS = {
    "time-to-event": ["--label", "days", "--event", "died"],
    "regression": ["--label", "hba1c", "--value"],
    "multilabel": ["--finding", "edema", "--finding", "effusion"],
}


@pytest.mark.parametrize("task", TASKS)
def test_other_tasks_become_a_complete_study(followed, here, capsys, task):
    """A value, several findings and a time to an event get a schema without a blank that reads the
    files, with usual intervals and the spellings of the event, and a proxy of the task."""
    assert main(["new", "study", "--tables", *followed, "--yes", *TASKS[task]]) == 0
    assert "judges classes only" in capsys.readouterr().out
    agreed = schema.read(here / "study/schema.toml")
    assert agreed.label.task == task
    assert not set(agreed.label.columns) & set(agreed.columns)
    if task == "time-to-event":
        assert agreed.label.intervals == (7, 30, 90, 180, 365, 730)
        assert agreed.label.unit == "days"
        assert agreed.label.yes[-1] == "ja"
    study = tomllib.loads((here / "study/study.toml").read_text(encoding="utf-8"))
    assert study["models"]["proxy"] == ("hazards" if task == "time-to-event" else "linear")
    assert main(["schema", "check", *followed, "--schema", "study/schema.toml"]) == 0


def test_a_study_of_a_time_runs(followed, here, monkeypatch):
    """What is made for a time to an event is a study that `proxyfl run` runs."""
    assert main(["new", "study", "--tables", *followed, "--yes", *TASKS["time-to-event"]]) == 0
    monkeypatch.chdir(here / "study")
    short = ["--set", "rounds=2", "--set", "evaluate_every=2", "--set", "models.private=logistic"]
    assert main(["run", *short, "--workers", "1", "--splits", "1"]) == 0


def test_a_time_is_asked_about(followed, here, monkeypatch, capsys):
    """In a terminal a column that is called like a follow-up is offered as the time of the label,
    and other intervals can be stated; with --yes it is warned of."""
    answers = {"Which column is": "died", "Is days": "y", "Intervals": "100 500"}

    def answer(question):
        return next((text for start, text in answers.items() if question.startswith(start)), "")

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    assert main(["new", "study", "--tables", *followed]) == 0
    agreed = schema.read(here / "study/schema.toml")
    assert (agreed.label.column, agreed.label.event) == ("days", "died")
    assert agreed.label.intervals == (100, 500)
    capsys.readouterr()
    assert main(["new", "other", "--tables", *followed, "--label", "died", "--yes"]) == 0
    assert "predicts the past" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--label", "hba1c"], "add --value"),
        (["--label", "died", "--value"], "must be a number"),
        (["--event", "died"], "Name its column with --label"),
        (["--label", "days", "--event", "days"], "both label and event"),
        (["--label", "days", "--event", "hba1c"], "must be a yes or a no"),
        (["--label", "died", "--finding", "edema"], "Leave out --label"),
        (["--finding", "edma"], "Did you mean 'edema'"),
        (["--label", "hba1c", "--value", "--prevalence", "x=0.1"], "--prevalence is about classes"),
    ],
)
def test_outcomes_that_do_not_fit_are_named(followed, here, capsys, words, told):
    """Each refusal of a task names the column and the option, and leaves no folder."""
    assert main(["new", "study", "--tables", *followed, "--yes", *words]) == 2
    assert told in capsys.readouterr().err
    assert not (here / "study").exists()


def test_a_draft_of_other_tasks_asks_for_ranges_and_intervals(followed, capsys):
    """`schema draft` takes neither a range nor an interval from the records unless it is told
    to."""
    assert main(["schema", "draft", followed[0], *TASKS["time-to-event"]]) == 0
    label = tomllib.loads(capsys.readouterr().out)["label"]
    assert label == {
        "task": "time-to-event",
        "column": "days",
        "event": "died",
        "intervals": [],
        "unit": "days",
    }
    assert main(["schema", "draft", followed[0], "--label", "age", "--value", "--from-data"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["label"]["range"] == [0, 110]


def test_events_in_words_of_two_kinds_are_not_guessed(followed, here, capsys):
    """Where one site writes 0 and 1 and another alive and dead, nobody knows which is which."""
    text = (here / "b.csv").read_text(encoding="utf-8")
    text = text.replace(",nein,", ",alive,").replace(",ja,", ",dead,")
    (here / "b.csv").write_text(text, encoding="utf-8")
    assert main(["new", "study", "--tables", *followed, "--yes", *TASKS["time-to-event"]]) == 2
    assert "a: 0, 1; b: alive, dead" in capsys.readouterr().err
