"""``proxyfl data``."""

import json

import pytest

from proxyfl.cli.main import parser
from proxyfl.data.sources import SOURCES
from proxyfl.data.tables.schema import to_toml
from proxyfl.errors import DataError
from tests.data.tables import making


def run(*arguments):
    parsed = parser("data").parse_args(["data", *arguments])
    return parsed.run(parsed)


def test_list(tmp_path, capsys):
    """Without a source: every named one, with where it was found or that it was not."""
    assert run("--json", "--data-dir", str(tmp_path)) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row["found"] for row in found["sources"]}
    assert list(rows) == list(SOURCES)
    assert rows["digits"] == "part of scikit-learn"
    assert rows["mnist"] is None
    assert found["folder"] == str(tmp_path)


def test_list_for_people(tmp_path, capsys, monkeypatch):
    """The list for people names the folder that was looked in, and how to give one's own data."""
    monkeypatch.setenv("COLUMNS", "160")
    assert run("--data-dir", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert str(tmp_path) in out.replace("\n", "")
    assert "package.module:factory" in out


def test_contents(capsys):
    """With a source: shape, counts that add up, and the range of values."""
    assert run("digits", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shape"] == [1, 8, 8]
    assert found["range"] == [0.0, 1.0]
    assert sum(row["train"] for row in found["classes"]) == found["train"] == 1438
    assert sum(row["test"] for row in found["classes"]) == found["test"] == 359
    assert found["sites"] == []


def test_a_table_with_sites(tmp_path, capsys):
    """Label and site columns are chosen on the command line, and sites are counted."""
    rows = [
        f"{i},{'ill' if i % 2 else 'well'},{'[north]' if i < 6 else 'south'}" for i in range(10)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["age,diagnosis,ward", *rows]))
    arguments = [str(tmp_path / "t.csv"), "--label", "diagnosis", "--site", "ward"]
    assert run(*arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["classes"]] == ["ill", "well"]
    assert [row["name"] for row in found["sites"]] == ["[north]", "south"]
    assert sum(row["train"] for row in found["sites"]) == 6
    assert run(*arguments) == 0
    assert "[north]" in capsys.readouterr().out


def test_offline(tmp_path):
    """Offline, what is missing is listed instead of fetched."""
    with pytest.raises(DataError, match=r"downloading is off(.|\n)*train-images-idx3-ubyte.gz"):
        run("mnist", "--offline", "--data-dir", str(tmp_path))


def test_help_teaches(capsys):
    """The help has example command lines."""
    with pytest.raises(SystemExit) as ended:
        run("--help")
    assert ended.value.code == 0
    assert "proxyfl data patients.csv --label diagnosis --site hospital" in capsys.readouterr().out


def test_a_table_says_what_was_left_out(tmp_path, capsys):
    """With a schema, what was clipped or left out is counted, for people and as JSON."""
    table = making.rows(60)
    table[3][1] = "104"
    table[5][3] = "IV"
    making.write(tmp_path / "north.csv", table)
    (tmp_path / "schema.toml").write_text(to_toml(making.SCHEMA))
    words = [str(tmp_path / "*.csv"), "--schema", str(tmp_path / "schema.toml")]
    with pytest.raises(DataError, match="1 x category"):
        run(*words)
    assert run(*words, "--faults", "skip") == 0
    text = capsys.readouterr().out
    assert "note: north.csv: age: 1 of 60 values clipped to its range" in text
    assert run(*words, "--faults", "skip", "--json") == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes[1] == ("north.csv: 1 of 60 rows left out; faults: 1 x category in 'stage'")


def test_a_table_of_another_task(tmp_path, capsys, monkeypatch):
    """What is predicted is said in the place of classes, of which there are none."""
    monkeypatch.setenv("COLUMNS", "160")
    lines = [f"{i},{i / 10:.1f}" for i in range(10)]
    (tmp_path / "t.csv").write_text("\n".join(["age,value", *lines]))
    (tmp_path / "t.toml").write_text(
        'name = "t"\n[label]\ntask = "regression"\ncolumn = "value"\nrange = [0, 1]\n'
        '[columns.age]\ntype = "number"\nrange = [0, 100]\n'
    )
    arguments = [str(tmp_path / "t.csv"), "--schema", str(tmp_path / "t.toml")]
    assert run(*arguments) == 0
    shown = capsys.readouterr().out
    assert "a number from 0 to 1 (squared loss)" in shown
    assert "class" not in shown
    assert run(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["classes"] == []
