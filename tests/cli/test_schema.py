"""The command `proxyfl schema`: draft, check and ranges."""

import json
import random
import re
import tomllib

import pytest

from proxyfl.cli.main import main
from proxyfl.data.tables import schema
from proxyfl.errors import ConfigError
from proxyfl.privacy.guarantee import Unit
from proxyfl.privacy.ledger import Ledger
from tests.data.tables import making


@pytest.fixture
def site(tmp_path):
    """A site's file without faults."""
    return making.write(tmp_path / "north.csv", making.rows(60))


@pytest.fixture
def agreed(tmp_path):
    """The schema that all sites agreed on."""
    path = tmp_path / "schema.toml"
    path.write_text(schema.to_toml(making.SCHEMA))
    return path


def test_draft_asks_for_ranges(site, capsys):
    """A draft has types from the file and no range, list or value from its records."""
    assert main(["schema", "draft", str(site), "--label", "died", "--person", "patient"]) == 0
    text = capsys.readouterr().out
    tree = tomllib.loads(text)
    assert tree["columns"]["age"] == {"type": "number", "unit": "", "range": []}
    assert tree["columns"]["stage"] == {"type": "category", "values": []}
    assert tree["columns"]["smoker"] == {"type": "yes/no"}
    assert tree["columns"]["born"]["formats"] == ["%Y-%m-%d"]
    assert tree["person"] == "patient"
    assert "II" not in text
    assert tree["label"]["prevalence"] == []
    assert "as published, never counted here" in text
    with pytest.raises(ConfigError, match="plausible range"):
        schema.parse(tree)


def test_draft_from_data_says_that_it_looked(site, capsys):
    """With --from-data the draft is a schema, and both the draft and stderr say what that means."""
    arguments = ["schema", "draft", str(site), "--label", "died", "--person", "patient"]
    assert main([*arguments, "--from-data"]) == 0
    out, err = capsys.readouterr()
    assert "no epsilon covers" in out
    assert "no epsilon covers" in err
    found = schema.parse(tomllib.loads(out))
    assert found.columns["stage"].values == ("I", "II", "III")
    low, high = found.columns["age"].range
    assert 18 <= low < high <= 100


def test_draft_takes_the_published_shares(site, capsys):
    """With --prevalence for every class, classes and shares stand in that order."""
    shares = ["--prevalence", "no=0.93", "--prevalence", "yes=0.07"]
    assert main(["schema", "draft", str(site), "--label", "died", *shares]) == 0
    label = tomllib.loads(capsys.readouterr().out)["label"]
    assert label["classes"] == ["no", "yes"]
    assert label["prevalence"] == [0.93, 0.07]
    assert main(["schema", "draft", str(site), "--label", "died", "--prevalence", "no=0.9"]) == 2
    assert "add up to 1" in capsys.readouterr().err


def test_draft_names_what_is_not_there(site, capsys):
    """A label that is no column is refused with the columns that are."""
    assert main(["schema", "draft", str(site), "--label", "dead"]) == 2
    told = capsys.readouterr().err
    assert "no column 'dead' for the label. Did you mean 'died'? Known: patient, age" in told


def test_check_is_silent_about_good_files(site, agreed, capsys):
    """A file without faults gives exit code 0 and the schema's fingerprint."""
    assert main(["schema", "check", str(site), "--schema", str(agreed)]) == 0
    out = capsys.readouterr().out
    assert "60 rows, 0 faults" in out
    assert making.SCHEMA.fingerprint in out


def test_check_names_every_violation(tmp_path, agreed, capsys):
    """With --rows each fault of each file is a line with file, kind, row and column; the exit code
    is 1."""
    table = making.rows(30)
    table[0][2] = "1.7"
    table[4][3] = "IV"
    table[29][6] = "2"
    north = making.write(tmp_path / "north.csv", table)
    south = making.write(tmp_path / "south.csv", making.rows(5, first=28))
    words = ["schema", "check", str(north), str(south), "--schema", str(agreed)]
    assert main([*words, "--rows"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"north.csv: unit: row 2, column 'height'", out)
    assert re.search(r"north.csv: category: row 6, column 'stage': expected one of I, II, III", out)
    assert re.search(r"north.csv: label: row 31, column 'died'", out)
    assert re.search(r"south.csv: two sites: row 2, column 'patient'", out)
    assert "30 rows, 3 faults" in out


SPOILT = {
    "number": ("age", "old"),
    "unit": ("height", "1.75"),
    "category": ("stage", "IV"),
    "yes/no": ("smoker", "perhaps"),
    "date": ("born", "15/15/1950"),
    "future": ("born", "2190-01-01"),
    "label": ("died", "7"),
    "no label": ("died", ""),
    "no person": ("patient", " "),
    "two sites": ("patient", "p1"),
    "fields": ("", "one field too many"),
}
"""Kind of fault -> the column that has it, and what is written there."""


def spoil(table, generator, count):
    """Put ``count`` faults into a table, several into some rows; (row, column, kind) of each."""
    planted = set()
    while len(planted) < count:
        i = generator.randrange(10, len(table))
        kind = generator.choice(list(SPOILT))
        column, text = SPOILT[kind]
        alone = {other for row, other, _ in planted if row == i + 2}
        if column in alone or "" in alone or (alone and column == ""):
            continue
        if column:
            table[i][making.HEADER.index(column)] = text
        else:
            table[i].append(text)
        planted.add((i + 2, column, kind))
    return planted


def test_a_thousand_seeded_faults_are_all_found(tmp_path, agreed, capsys):
    """`schema check` on two files with 1,000 faults names each with file, row, column and kind, and
    nothing else; with --rows one line each, and otherwise few lines."""
    generator = random.Random(4)
    clean = making.write(tmp_path / "first.csv", making.rows(20))
    planted = {}
    for number, separator in enumerate((",", ";")):
        table = making.rows(1500, seed=number, first=10_000 * (number + 1))
        faults = spoil(table, generator, 500)
        path = tmp_path / f"site-{number}.csv"
        planted[str(path)] = faults
        making.write(path, table, separator=separator)
    words = ["schema", "check", str(clean), *planted, "--schema", str(agreed)]
    assert main([*words, "--json"]) == 1
    first, *others = json.loads(capsys.readouterr().out)["files"]
    assert first["faults"] == []
    for file in others:
        found = [(f["row"], f["column"], f["kind"]) for f in file["faults"]]
        assert len(found) == 500
        assert set(found) == planted[file["file"]]
    assert main([*words, "--rows"]) == 1
    lines = capsys.readouterr().out.splitlines()
    for path, faults in planted.items():
        for row, column, kind in faults:
            start = f"{path}: {kind}: row {row}, column {column!r}: "
            assert sum(line.startswith(start) for line in lines) == 1
    assert main(words) == 1
    assert len(capsys.readouterr().out.splitlines()) < 200


def test_faults_of_one_column_are_one_entry(tmp_path, agreed, capsys):
    """Without --rows a column's faults are shown by value, with how often and where, and with the
    lines of the schema that mend them."""
    table = making.rows(30)
    for row in range(2, 22):
        table[row][4] = "ja" if row % 2 else "maybe"
    path = making.write(tmp_path / "north.csv", table)
    assert main(["schema", "check", str(path), "--schema", str(agreed)]) == 1
    out = capsys.readouterr().out
    assert "30 rows, 20 faults in 1 column" in out
    assert "smoker: yes/no: 'maybe' 10 times, 'ja' 10 times (rows 4, 5, 6 and 17 more)" in out
    assert '[columns."smoker"]' in out
    assert len(out.splitlines()) < 20


def test_check_as_json(tmp_path, agreed, capsys):
    """With --json the faults are objects, and clipped and missing values are counted."""
    table = making.rows(10)
    table[3][1] = "110"
    table[4][1] = ""
    table[5][4] = "maybe"
    path = making.write(tmp_path / "north.csv", table)
    assert main(["schema", "check", str(path), "--schema", str(agreed), "--json"]) == 1
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["clipped"] == {"age": 1}
    assert file["missing"]["age"] == 1
    assert [(f["row"], f["column"], f["kind"]) for f in file["faults"]] == [(7, "smoker", "yes/no")]


def test_ranges_are_estimated_and_charged(tmp_path, capsys):
    """The estimates lie in the bounds, and the ledger has the charge with its epsilon: per person
    where persons are named, and then it takes no questions per record."""
    path = making.write(tmp_path / "north.csv", making.rows(3000))
    ledger = tmp_path / "north.jsonl"
    arguments = ["schema", "ranges", str(path), "--within", "age=0:128", "--person", "patient"]
    arguments += ["--epsilon", "1", "--ledger", str(ledger)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    low, high = tomllib.loads(out)["columns"]["age"]["range"]
    assert 10 < low < 30
    assert 90 < high < 110
    account = Ledger.read(ledger)
    assert not account.simulated
    assert 0.9 < account.epsilon().pld <= 1
    assert main(arguments) == 0
    assert len(Ledger.read(ledger).charges) == 2
    assert account.unit is Unit.GROUP
    per_record = [each for each in arguments if each not in ("--person", "patient")]
    assert main(per_record) == 2
    assert "is per group" in capsys.readouterr().err
    assert len(Ledger.read(ledger).charges) == 2


@pytest.mark.parametrize("within", ["age", "age=0", "age=a:b", "age=5:5"])
def test_ranges_need_bounds(tmp_path, site, within, capsys):
    """Bounds that are none are refused before anything is charged."""
    ledger = tmp_path / "x.jsonl"
    arguments = ["schema", "ranges", str(site), "--within", within]
    assert main([*arguments, "--epsilon", "1", "--ledger", str(ledger)]) == 2
    assert "Expected" in capsys.readouterr().err
    assert not ledger.exists() or not Ledger.read(ledger).charges
