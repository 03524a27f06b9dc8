"""The benchmarks run. What they measure depends on the machine, and is not tested."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench, figures, slices


@pytest.mark.slow
def test_the_bench_writes_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every table is printed, every time is in the file, and every ratio is held to its goal."""
    out = tmp_path / "bench.json"
    words = ["bench", "--seconds", "0.01", "--out", str(out), "--only", "steps", "private"]
    monkeypatch.setattr(sys, "argv", words)
    bench.main()
    found = json.loads(out.read_text())
    assert set(found["milliseconds"]) == set(bench.WITH_DP)
    for model in ("cnn2", "vgg", "resnet18"):
        ways = set(found["private_milliseconds"][model])
        assert ways == {"default", "channels last", "bfloat16"}
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == [goal.name for goal in bench.GOALS]
    times = found["milliseconds"]["MLP"]
    row = rows["DP / plain, MLP"]
    assert row["value"] == times["ours"] / times["plain"]
    assert row["met"] == (row["value"] <= 1.25)
    assert rows["demo"]["value"] is None
    assert rows["demo"]["met"] is None
    assert "A step without DP" in capsys.readouterr().out


def test_a_goal_says_whether_it_is_met() -> None:
    """A ratio may be at most its goal; an advantage must be at least it."""
    least = bench.Goal("other / ours", 2.0, at_least=True)
    most = bench.Goal("ours / plain", 1.25)
    assert [least.row(value)["met"] for value in (1.9, 2.0, None)] == [False, True, None]
    assert [most.row(value)["met"] for value in (1.25, 1.3, None)] == [True, False, None]


def test_a_part_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could be measured is in the file, and the end names what could not."""

    def broken(_seconds: float) -> dict[str, float]:
        raise RuntimeError("no such command")

    monkeypatch.setitem(bench.PARTS, "commands", broken)
    monkeypatch.setitem(bench.PARTS, "demo", lambda _seconds: {"demo": 7.0})
    out = tmp_path / "bench.json"
    words = ["bench", "--only", "commands", "demo", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="commands: no such command"):
        bench.main()
    rows = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["demo"]["met"] is True
    assert rows["proxyfl worth"]["value"] is None


def made_up_bench() -> dict[str, Any]:
    """What a run of the bench writes, with made-up figures."""
    names = [goal.name for goal in bench.GOALS]
    values = {name: 1.0 + number for number, name in enumerate(names)}
    times = {"plain": 10.0, "improved": 8.0, "ours": 12.0, "Opacus": 60.0}
    return {
        "rows": [goal.row(values[goal.name]) for goal in bench.GOALS],
        "milliseconds": {"MLP": times},
        "private_milliseconds": {"cnn2": {"default": 600.0, "channels last": 450.0}},
        "batch": {"MLP": 250},
        "torch": "2",
        "opacus": "1",
        "processor": "A",
    }


def test_figures_come_from_the_bench() -> None:
    """Blocks and numbers in sentences are rewritten, what is around them stays, and a second time
    changes nothing."""
    text = (
        "before <!-- bench: demo -->?<!-- end --> after\n"
        "<!-- bench: steps -->\nold\n<!-- end -->\nlast\n"
    )
    made_up = made_up_bench()
    value = next(row["value"] for row in made_up["rows"] if row["name"] == "demo")
    new = figures.with_figures(text, made_up)
    assert f"before <!-- bench: demo -->{value:.3g}<!-- end --> after" in new
    assert "| MLP | 250 | 10.0 | 12.0 | 1.20 | 1.50 | 5.0 |  |" in new
    assert "old" not in new
    assert new.endswith("<!-- end -->\nlast\n")
    assert figures.with_figures(new, made_up) == new


def test_a_marker_of_nothing_is_refused() -> None:
    """A marker that names no row says which there are."""
    with pytest.raises(ValueError, match=r"Unknown marker .*nonsense.*Known: goals"):
        figures.with_figures("<!-- bench: nonsense --><!-- end -->", made_up_bench())


def test_pages_have_the_recorded_figures() -> None:
    """README and docs say what the recorded run of the bench measured, and name every goal."""
    recorded = json.loads(figures.RECORD.read_text())
    assert [row["name"] for row in recorded["rows"]] == [goal.name for goal in bench.GOALS]
    marked = 0
    for page in figures.pages():
        text = page.read_text()
        marked += len(figures.MARKED.findall(text))
        assert figures.with_figures(text, recorded) == text, (
            f"{page.name}: run python -m benchmarks.figures"
        )
    assert marked


@pytest.mark.slow
def test_slices_take_less_memory() -> None:
    """A step of sixteen records peaks below 0.6 of it when they come four at a time, and below 0.4
    one at a time."""
    found = {}
    for at_once in (16, 4, 1):
        found[at_once], _ = slices.measured(at_once, batch=16, pixels=160, repeats=1)
    print(f"MB at the peak: {found}")
    assert found[4] < 0.6 * found[16]
    assert found[1] < 0.4 * found[16]
