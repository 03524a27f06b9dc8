"""The contract of ``records.judged``: every measure, interval, confusion count and calibration
point of a kept model is the same in the raw records, in `table`, in `proxyfl.load`, in the
terminal, in `report --json` and on the page, on the common test set and on each site's own."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import proxyfl
from proxyfl.cli.main import main
from proxyfl.cli.terminal.result import show_result
from proxyfl.data.tables.schema import to_toml
from proxyfl.measures import MEASURES as EVERY
from proxyfl.simulation.config import from_tree
from tests.chromium import DESKTOP, new_tab
from tests.data.tables.making import SCHEMA, rows, write

Key = tuple[str, str, str]
"""(method, client, test set)."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two hospitals whose deaths follow age."""
    place = tmp_path_factory.mktemp("hospitals")
    for number, name in enumerate(("north", "south")):
        table = rows(90, seed=number, first=1000 * number)
        for line in table:
            line[-1] = str(int(int(line[1]) > 60 + 5 * number))
        table[0][1] = "103"  # clipped, and noted
        write(place / f"{name}.csv", table)
    (place / "schema.toml").write_text(to_toml(SCHEMA))
    tree = {
        "rounds": 2,
        "measure": "auroc",
        "methods": ["alone", "joint", "proxyfl"],
        "data": {
            "source": str(place / "*.csv"),
            "schema": str(place / "schema.toml"),
            "test_fraction": 0.4,
        },
        "partition": {"kind": "site"},
        "learning": {"batch_size": 20},
        "models": {"private": "linear", "proxy": "linear"},
    }
    proxyfl.run(from_tree(tree), out=place / "run")
    return place / "run"


MEASURES = {name: each for name, each in EVERY.items() if "classification" in each.tasks}


def recorded(folder: Path) -> dict[Key, dict[str, Any]]:
    """What metrics.jsonl and summary.json say, by hand."""
    keeps = {"alone": "private", "joint": "proxy", "proxyfl": "private"}
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    methods = json.loads((folder / "summary.json").read_text())["methods"]
    found: dict[Key, dict[str, Any]] = {}
    for row in map(json.loads, lines):
        role = keeps[row["method"]]
        for where, prefix in (("common", role), ("own", f"{role}_own")):
            if f"{prefix}_intervals" not in row:
                continue
            scores = {}
            for measure in MEASURES:
                ends = row[f"{prefix}_intervals"][measure] or [None, None]
                scores[measure] = [row[f"{prefix}_{measure}"], *ends]
            (counts,) = (
                one["confusion"][prefix]
                for one in methods[row["method"]]["clients"]
                if one["client"] == row["client"]
            )
            found[row["method"], row["name"], where] = {
                "scores": scores,
                "calibration": row[f"{prefix}_calibration"],
                "confusion": counts,
            }
    return found


def alike(said: list[dict[str, Any]], folder: Path) -> None:
    """Fails unless plain data say what the records say, to the fourth digit."""
    expected = recorded(folder)
    assert len(said) == len(expected) == 9  # joint knows no own test part
    for one in said:
        true = expected[one["method"], one["name"], one["on"]]
        assert one["confusion"] == true["confusion"]
        for measure, values in one["scores"].items():
            assert values == pytest.approx(true["scores"][measure], abs=1e-4)
        for point, other in zip(one["calibration"], true["calibration"], strict=True):
            assert point == pytest.approx(other, abs=1e-4)


NOTES = [
    "north.csv: age: 1 of 90 values clipped to its range",
    "south.csv: age: 1 of 90 values clipped to its range",
]


def test_notes_are_kept(folder: Path) -> None:
    """How the files were read stays in the run's folder."""
    kept = json.loads((folder / "environment.json").read_text())["notes"]
    assert kept == NOTES
    (run,) = proxyfl.load(folder)
    assert run.environment["notes"] == NOTES


def test_intervals_hold_their_values(folder: Path) -> None:
    """Every measure of the last rows has an interval around its value."""
    for found in recorded(folder).values():
        for value, low, high in found["scores"].values():
            assert low - 0.02 <= value <= high + 0.02


def test_table_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`table --show ... --json` has all of it."""
    assert main(["table", str(folder), "--show", "sites", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    alike(run["judged"], folder)


@pytest.mark.parametrize("what", ["measures", "sites", "confusion", "calibration"])
def test_table_as_text(folder: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`table --show` prints each part, to the digits that it shows."""
    assert main(["table", str(folder), "--show", what]) == 0
    text = capsys.readouterr().out
    for (method, client, where), found in recorded(folder).items():
        value, low, high = found["scores"]["auroc"]
        if what == "measures" and method == "joint":
            assert f"{value:.3f}" in text
        if what == "sites":
            assert f"{value:.3f} ({low:.3f} to {high:.3f})" in text
        if what == "confusion":
            first = found["confusion"][0]
            share = first[0] / sum(first)
            (line,) = (
                line
                for line in text.splitlines()
                if line.split()[:4] == [method, client, where, "no"]
            )
            assert f"{first[0]} ({share:.0%})" in line
        if what == "calibration":
            said, true, n = found["calibration"][0]
            assert [method, client, where, f"{said:.3f}", f"{true:.3f}", str(n)] in [
                line.split() for line in text.splitlines()
            ]


def test_table_compares_on_own_test_parts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`table --metric own_auroc` compares methods on each site's own patients, with an interval,
    and says that a model for everybody has none."""
    assert main(["table", str(folder), "--metric", "own_auroc", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = (row for row in found["rows"] if row["method"] == "proxyfl")
    own = {
        key[:2]: one["scores"]["auroc"][0]
        for key, one in recorded(folder).items()
        if key[2] == "own"
    }
    gains = [own["proxyfl", name] - own["alone", name] for name in ("north", "south")]
    assert row["comparison"]["over_clients"]["difference"] == pytest.approx(sum(gains) / 2)
    low, high = row["interval"]
    assert low <= high
    assert any("joint has no own_auroc" in remark for remark in found["remarks"])


def test_frames(folder: Path) -> None:
    """`proxyfl.load(...).gains` has every measure on both test sets."""
    frame = proxyfl.load(folder).gains
    for (method, client, where), found in recorded(folder).items():
        mark = "own_" if where == "own" else ""
        rows = frame[frame["method"] == method]
        if method != "joint":
            rows = rows[rows["name"] == client]
        for measure, (value, _, _) in found["scores"].items():
            if method != "joint":
                assert rows[f"{mark}{measure}"].item() == pytest.approx(value)


def test_the_terminal(folder: Path) -> None:
    """The end of a run shows every measure, and each site on its own test part."""
    out = io.StringIO()
    (run,) = proxyfl.load(folder)
    show_result(run, Console(file=out, width=200))
    for found in recorded(folder).values():
        value, low, high = found["scores"]["auroc"]
        assert f"{value:.3f} ({low:.3f} to {high:.3f})" in out.getvalue()
    for measure in MEASURES.values():
        assert measure.title in out.getvalue()


def test_report_json(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`report --json` has all of it."""
    page = tmp_path / "report.html"
    assert main(["report", str(folder), "--json", "--out", str(page)]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    alike(run["judged"], folder)
    assert run["notes"] == NOTES


def test_the_page(browser: Any, folder: Path, tmp_path: Path) -> None:
    """The page draws these numbers: its tables of measures and of calibration, its confusion
    matrix, and its answer on own test parts."""
    page = tmp_path / "report.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    expected = recorded(folder)
    titles = {measure.title: name for name, measure in MEASURES.items()}
    sets = {"the common test set": "common", "its own test part": "own"}
    with new_tab(browser, *DESKTOP) as tab:
        tab.open(page.as_uri())
        tab.chart("scores")
        lines = csv_of(tab, "scores")
        assert len(lines) == 9 * len(MEASURES)
        for line in lines:
            key = line["method"], line["client"], sets[line["test set"]]
            true = expected[key]["scores"][titles[line["measure"]]]
            shown = [float(line[column]) for column in ("value", "95 % from", "to")]
            assert shown == pytest.approx(true, abs=1e-4)
        tab.chart("calibration")
        points = csv_of(tab, "calibration")
        mine = [line for line in points if line["method"] == "proxyfl"]
        curve = expected["proxyfl", "north", "common"]["calibration"]
        shown = [
            [float(line[column]) for column in ("said", "came true", "examples")] for line in mine
        ]
        assert shown == [pytest.approx(point, abs=1e-4) for point in curve]
        tab.page.locator("#settings summary").first.click()  # folded
        for note in NOTES:
            assert note in tab.page.locator("#settings").inner_text()
        tab.chart("confusion")
        shares = [float(line["share of the true class"]) for line in csv_of(tab, "confusion")]
        counts = expected["proxyfl", "north", "common"]["confusion"]
        by_hand = [count / sum(row) for row in counts for count in row]
        assert shares == pytest.approx(by_hand)
        tab.page.get_by_label("Measure").select_option("own_auroc")
        card = tab.page.locator("#answer li[data-method=proxyfl]")
        gains = [
            expected["proxyfl", name, "own"]["scores"]["auroc"][0]
            - expected["alone", name, "own"]["scores"]["auroc"][0]
            for name in ("north", "south")
        ]
        assert float(card.get_attribute("data-gain")) == pytest.approx(sum(gains) / 2)
        assert tab.complaints == []


def csv_of(tab: Any, figure: str) -> list[dict[str, str]]:
    """The lines that a figure's CSV button saves."""
    with tab.page.expect_download() as found:
        tab.page.locator(f"#{figure} button:has-text('CSV')").click()
    text = Path(found.value.path()).read_text()
    return list(csv.DictReader(io.StringIO(text)))
