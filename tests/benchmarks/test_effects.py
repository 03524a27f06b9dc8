"""The study of intervals, and the page that quotes it."""

import json
from pathlib import Path

import pytest

from benchmarks import effects

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "effects.md"


def test_the_page_has_the_recorded_table() -> None:
    """docs/concepts/effects.md has the table of experiments/results/effects.json, line by line."""
    lines = effects.table(json.loads(effects.RESULTS.read_text()))
    assert len(lines) > 10
    assert "\n".join(lines) in PAGE.read_text()


def test_settings_that_were_not_tuned_are_covered() -> None:
    """Over all settings drawn at random, 93 to 97 % of the recorded intervals cover the truth."""
    counts = json.loads(effects.RESULTS.read_text())
    drawn = [each for each in counts if each["setting"].startswith("drawn")]
    covered = sum(each["covered"] for each in drawn)
    intervals = sum(each["intervals"] for each in drawn)
    assert intervals > 500
    assert 0.93 <= covered / intervals <= 0.97


def test_a_repetition_is_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has each repetition once, a second start adds none, and the record counts them."""
    monkeypatch.setattr(effects, "DRAWS", 200)
    monkeypatch.setattr(effects, "RESULTS", tmp_path / "effects.json")
    out = tmp_path / "rows.jsonl"
    for _ in range(2):
        monkeypatch.setattr("sys.argv", ["effects", "--repeat", "2", "--out", str(out), "drawn-4"])
        effects.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["repetition"] for row in rows] == [0, 1]
    again = effects.repetition(effects.SETTINGS["drawn-4"], 1)
    assert rows[1] == {"setting": "drawn-4"} | again
    monkeypatch.setattr("sys.argv", ["effects", "--record", str(out)])
    effects.main()
    (count,) = json.loads((tmp_path / "effects.json").read_text())
    assert count["repetitions"] == 2
    assert count["asked"] == 4
    assert "| drawn-4 |" in capsys.readouterr().out
