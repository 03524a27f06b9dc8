"""``proxyfl worth``: a verdict from public facts, and a rehearsal that measures."""

import json
import tomllib
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.simulation.config import load

SCHEMA = """\
name = "stroke"
person = "patient"

[label]
column = "died"
classes = ["alive", "dead"]
prevalence = [0.7, 0.3]

[columns.age]
type = "number"
range = [18, 100]

[columns.side]
type = "category"
values = ["left", "right"]

[columns.smoker]
type = "yes/no"

[columns.seen]
type = "date"
until = "2020-12-31"
range = [0, 10]
"""
COUNTS = "hospital,patients\nnorth,200\nsouth,100\neast,300\n"
OTHERS = {
    "regression": 'task = "regression"\ncolumn = "hba1c"\nrange = [4, 14]',
    "multilabel": 'task = "multilabel"\nfindings = ["edema", "mass"]',
    "time-to-event": 'task = "time-to-event"\ncolumn = "days"\nevent = "died"\n'
    "intervals = [30, 90, 365]",
}
FACTS = ["--clients", "4", "--examples", "184", "--parameters", "50"]
RARE = ["--clients", "29", "--examples", "300", "--parameters", "26", "--prevalence", "0.05"]


def test_the_verdict_and_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """The first three lines say whether to join, the gain with its spread, and the price; with
    --explain come the settings."""
    assert main(["worth", *FACTS, "--epsilon", "3", "--alone", "0.7", "--explain"]) == 0
    said = capsys.readouterr().out
    verdict, gain, price = said.splitlines()[:3]
    assert verdict == "Join."
    assert "one run in six ends below" in gain
    assert price.startswith("Cost: epsilon 3 (delta 0.00054) against all other members, once; ")
    assert max(map(len, (verdict, gain, price))) < 90
    for setting in ("privacy.sampling_rate=1.0", "exchange.settle=auto"):
        assert setting in said


def test_a_masked_sum_has_two_epsilons(capsys: pytest.CaptureFixture[str]) -> None:
    """With --colluders the price names the coalition and what is left if all others collude."""
    line = ["worth", *RARE, "--epsilon", "1", "--score", "0.75", "--colluders", "14"]
    assert main([*line, "--explain"]) == 0
    said = capsys.readouterr().out
    assert "against up to 14 colluding members, " in said
    assert "against all others" in said
    assert "exchange.colluders=14" in said
    assert "exchange.settle=1\n" in said


def test_two_sites_cannot_do_this(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the noise takes nearly all, the command says so, and what would be enough."""
    line = ["worth", "--clients", "2", "--examples", "230", "--parameters", "62"]
    assert main([*line, "--epsilon", "1", "--score", "0.85", "--prevalence", "0.35"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("Do not join: 2 sites of this size cannot do this at epsilon 1.")
    assert "It would take" in said


def test_ones_own_score_decides(capsys: pytest.CaptureFixture[str]) -> None:
    """A site whose own model is as good as the literature's is told to stay."""
    assert main(["worth", *FACTS, "--epsilon", "1", "--alone", "0.8"]) == 1
    assert "your own model is as good" in capsys.readouterr().out


def test_a_site_that_is_too_small_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The least size is said, and what a smaller site counts best for under gossip; in a masked sum
    the least size is smaller by the honest members, and nobody counts for less."""
    line = ["worth", *RARE, "--epsilon", "1", "--smallest", "50", "--json"]
    main(line)
    gossip = json.loads(capsys.readouterr().out)
    assert 50 < gossip["least_size"] < 300
    least = gossip["least_size"]
    assert gossip["weight_of_smallest"] == pytest.approx(50 / (50 + least), abs=0.01)
    main([*line, "--colluders", "14"])
    masked = json.loads(capsys.readouterr().out)
    assert masked["least_size"] == pytest.approx(least / 15, abs=1)
    assert masked["weight_of_smallest"] is None
    main([*line[:-1], "--explain"])
    assert "learning.weight = " in capsys.readouterr().out


def test_the_smallest_and_the_largest_site(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its line, and delta follows from the largest."""
    sizes = ["--smallest", "50", "--largest", "2000"]
    main(["worth", *RARE, "--epsilon", "1", *sizes, "--explain"])
    said = capsys.readouterr().out
    assert "The smallest site (50 examples)" in said
    assert "The largest site (2,000 examples)" in said
    assert "(delta 5e-05)" in said
    assert main(["worth", *RARE, "--epsilon", "1", "--smallest", "301"]) == 2
    assert "--smallest" in capsys.readouterr().err


def test_the_settings_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--out writes a study that runs as soon as it names its data, and never overwrites one."""
    out = tmp_path / "study.toml"
    line = ["worth", *RARE, "--epsilon", "3", "--score", "0.8", "--colluders", "14"]
    main([*line, "--out", str(out)])
    assert f"proxyfl run {out}" in capsys.readouterr().out
    config = load(out)
    assert config.methods == ("alone", "proxysum", "pooled")
    assert config.exchange.colluders == 14
    assert config.privacy.sampling_rate == 1.0
    assert tomllib.loads(out.read_text())["rounds"] == 101
    assert main([*line, "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err


def test_not_worth_it(capsys: pytest.CaptureFixture[str]) -> None:
    """At a budget that drowns the proxy the exit code is 1."""
    assert main(["worth", *FACTS, "--epsilon", "0.05", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["expected"]["join"] is False
    assert document["expected"]["share"] < 0.1
    assert document["rehearsal"] is None


def test_a_rehearsal_measures(capsys: pytest.CaptureFixture[str]) -> None:
    """On a public dataset the gain is measured, within the budget."""
    facts = ["--clients", "2", "--examples", "60", "--parameters", "650"]
    line = [*facts, "--classes", "10", "--epsilon", "8"]
    main(["worth", *line, "--rehearsal", "digits", "--json"])
    found = json.loads(capsys.readouterr().out)["rehearsal"]
    assert 0 < found["epsilon"] <= 8
    assert 0.3 < found["alone"] < 1
    assert found["measure"] == "accuracy"


def test_a_rehearsal_with_other_classes(capsys: pytest.CaptureFixture[str]) -> None:
    """A rehearsal with another number of classes is refused by name."""
    line = ["worth", *FACTS, "--epsilon", "1", "--rehearsal", "digits"]
    assert main(line) == 2
    assert "--classes" in capsys.readouterr().err


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a schema and a file of counts, as the current one."""
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    (tmp_path / "counts.csv").write_text(COUNTS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILES = ["worth", "schema.toml", "counts.csv"]


def test_a_schema_and_counts_say_all(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parameters, classes and the published share come from the schema; sites and sizes from the
    counts, of which four fifths train."""
    main([*FILES, "--epsilon", "2", "--json"])
    document = json.loads(capsys.readouterr().out)
    facts = document["facts"]
    assert document["sizes"] == [160, 80, 240]
    assert (facts["clients"], facts["examples"], facts["classes"]) == (3, 160, 2)
    # age, smoker and seen with their indicators, side with two values and one: 9 features
    assert facts["parameters"] == (9 + 1) * 2
    assert facts["prevalence"] == 0.3
    assert facts["delta"] == 1 / 2400
    assert document["smallest"] is not None
    assert main([*FILES, "--clients", "3", "--epsilon", "2"]) == 2
    assert "counts.csv states --clients already" in capsys.readouterr().err


def test_the_settings_name_the_schema(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--out writes a study of the schema, per patient where it names one, beside which only the
    files are missing."""
    main([*FILES, "--epsilon", "2", "--out", "study.toml"])
    capsys.readouterr()
    config = load(study / "study.toml")
    assert config.data.schema == str(study / "schema.toml") or config.data.schema == "schema.toml"
    assert config.privacy.unit == "group"
    assert config.partition.kind == "site"
    text = (study / "study.toml").read_text(encoding="utf-8")
    assert text.splitlines()[1].startswith(("# Join", "# Do not join"))
    assert "# source = [" in text


def test_counted_cases_are_no_published_share(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The schema's share goes before that of a file of counts; a counted one is taken with a
    warning that no epsilon covers it."""
    (study / "counts.csv").write_text("site,patients,cases\na,100,10\nb,300,30\n")
    main([*FILES, "--epsilon", "1", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["facts"]["prevalence"] == 0.3
    assert not document["notes"]
    bare = SCHEMA.replace("prevalence = [0.7, 0.3]\n", "")
    (study / "schema.toml").write_text(bare, encoding="utf-8")
    main([*FILES, "--epsilon", "1"])
    assert "No epsilon covers a count" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("site,beds\na,3\nb,4\n", "expected a column patients"),
        ("site,patients\na,3\nb,many\n", "row 3: expected a number of 1 or more, got 'many'"),
        ("site,patients\na,3\na,4\n", "Give each a name of its own"),
        ("site,patients\na,3\n", "two or more sites"),
        ("site,patients,cases\na,30,0\nb,40,0\n", "more patients than cases"),
    ],
)
def test_counts_that_say_nothing_are_refused(
    study: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    """Each refusal names the file, what was expected, and what it has."""
    (study / "counts.csv").write_text(text)
    assert main([*FILES, "--epsilon", "1"]) == 2
    assert told in capsys.readouterr().err


def test_all_that_is_missing_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody can answer, one sentence names every missing fact; in a terminal each is asked
    for, and Enter takes what is proposed."""
    assert main(["worth", "--clients", "4"]) == 2
    assert "Expected --examples, --parameters, --epsilon." in capsys.readouterr().err
    asked = []
    answers = {"patients": iter(["many", "184"]), "parameters": iter(["50"])}

    def answer(question: str) -> str:
        asked.append(question)
        for word, texts in answers.items():
            if word in question:
                return next(texts)
        return ""

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    main(["worth", "--clients", "4"])
    said = capsys.readouterr().out
    assert "Expected a number, got 'many'." in said
    assert "Cost: epsilon 1 " in said
    assert len(asked) == 7
    assert not any("How many sites" in question for question in asked)


def test_records_are_drawn_from_the_schema(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--rehearsal without a name measures on made-up tables of the schema's form and the sites'
    sizes, within the budget; at a large one the sites gain."""
    assert main([*FILES, "--epsilon", "30", "--rehearsal", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["rehearsal"]
    assert document["runs"] == 3
    assert document["measure"] == "auroc"
    assert 0 < document["epsilon"] <= 30
    assert 0.6 < document["alone"] < document["joined"] < 0.85
    assert document["low"] <= document["gain"] <= document["high"]
    assert main(["worth", *FACTS, "--epsilon", "1", "--rehearsal"]) == 2
    assert "the schema and the counts" in capsys.readouterr().err


@pytest.mark.parametrize("task", OTHERS)
def test_other_tasks_are_not_judged_but_measured(
    study: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    """The rule says in words that it knows classes only, with a command that measures; a rehearsal
    gives the gain in the task's own measure."""
    head, _, columns = SCHEMA.partition("[columns.age]")
    text = head.partition("[label]")[0] + f"[label]\n{OTHERS[task]}\n\n[columns.age]" + columns
    (study / "schema.toml").write_text(text, encoding="utf-8")
    assert main([*FILES, "--epsilon", "8"]) == 2
    said = capsys.readouterr().err
    assert "judges classes" in said
    assert "proxyfl worth schema.toml counts.csv --epsilon 8 --rehearsal" in said
    code = main([*FILES, "--epsilon", "8", "--rehearsal", "--out", "study.toml", "--json"])
    document = json.loads(capsys.readouterr().out)
    measured = document["rehearsal"]
    assert document["expected"] is None
    assert code == (0 if measured["gain"] >= 1 else 1)
    assert measured["measure"] == {"regression": "r2", "time-to-event": "c_index"}.get(
        task, "auroc"
    )
    assert measured["alone"] > (0.3 if task == "regression" else 0.6)
    assert load(study / "study.toml").models.proxy == (
        "hazards" if task == "time-to-event" else "linear"
    )
