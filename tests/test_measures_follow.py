"""Adding a measure is one entry: rows, tables, data frames, the page and tracking follow."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import proxyfl
from proxyfl.cli.main import main
from proxyfl.cli.terminal.result import show_result
from proxyfl.measures import MEASURES, Measure, Predictions
from proxyfl.simulation.config import from_tree
from proxyfl.simulation.tracking import scalars
from tests.chromium import DESKTOP, new_tab


def error_rate(predictions: Predictions) -> float | None:
    """The share of examples that were taken for another class: lower is better."""
    return 1.0 - float(predictions.confusion.trace()) / int(predictions.confusion.sum())


class Tracked(proxyfl.Callback):
    """Notes what a tracker would be told."""

    def __init__(self) -> None:
        self.told: dict[str, float] = {}

    def round_ended(self, name: str, round: int, rows: Any) -> None:
        """Take the round's scalars."""
        self.told |= dict(scalars(name, rows))


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more measure in the list, and nothing else."""
    measure = Measure("error_rate", "error rate", error_rate, higher_is_better=False)
    monkeypatch.setitem(MEASURES, "error_rate", measure)
    undefined = Measure("undefined", "undefined", lambda predictions: None)
    monkeypatch.setitem(MEASURES, "undefined", undefined)


@pytest.mark.usefixtures("added")
def test_everything_follows_the_list(
    tmp_path: Path, browser: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new measure is in every row, it is the run's own if the config says so, and whoever shows
    a run shows it; a gain is positive where the lower value is better."""
    tree = {
        "rounds": 2,
        "measure": "error_rate",
        "methods": ["alone", "fedavg"],
        "partition": {"clients": 2, "examples": 60},
        "learning": {"batch_size": 20},
    }
    tracked = Tracked()
    run = proxyfl.run(from_tree(tree), out=tmp_path / "run", callbacks=[tracked])
    last = run.finals("fedavg")[0]
    assert last["received_error_rate"] == pytest.approx(1 - last["received_accuracy"])
    assert last["received_undefined"] is None
    assert "fedavg/received_error_rate" in tracked.told
    assert "fedavg/received_undefined" not in tracked.told

    gains = [run.gain("fedavg", client) for client in range(2)]
    by_accuracy = [run.gain("fedavg", client, measure="accuracy") for client in range(2)]
    assert gains == pytest.approx(by_accuracy)
    assert run.gain("fedavg", 0, measure="undefined") is None

    frame = proxyfl.load(tmp_path / "run").gains
    assert list(frame[frame["method"] == "fedavg"]["gain"]) == pytest.approx(gains)
    assert frame["error_rate"].notna().all()
    assert frame["undefined"].isna().all()

    assert main(["table", str(tmp_path / "run"), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["metric"] == "error_rate"
    mean = sum(gains) / 2
    assert table["rows"][1]["comparison"]["over_clients"]["difference"] == pytest.approx(mean)

    text = io.StringIO()
    show_result(run, Console(file=text, width=120))
    assert "Test error rate" in text.getvalue()

    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "run"), "--out", str(page)]) == 0
    with new_tab(browser, *DESKTOP) as tab:
        tab.open(page.as_uri())
        options = tab.page.get_by_label("Measure").locator("option").all_inner_texts()
        assert options[0] == "error rate"
        assert {"accuracy", "macro-accuracy", "undefined"} <= set(options)
        card = tab.page.locator("#answer li[data-method=fedavg]")
        assert float(card.get_attribute("data-gain")) == pytest.approx(mean)
        assert "points of error rate" in card.inner_text()
        tab.page.get_by_label("Measure").select_option("undefined")
        assert card.count() == 0
        assert tab.complaints == []


def test_measures_of_another_release(tmp_path: Path) -> None:
    """A folder that lacks a measure of this release, or has one that it does not know, is read all
    the same."""
    (tmp_path / "config.toml").write_text('rounds = 1\nmethods = ["alone", "fml"]\n')
    base = {"round": 0, "client": 0, "name": "a", "epsilon_kind": "none", "left": None}
    lines = [
        base | {"method": "alone", "private_accuracy": 0.5, "private_kappa": 0.1},
        base | {"method": "fml", "private_accuracy": 0.75, "private_kappa": 0.3},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run,) = proxyfl.load(tmp_path)
    assert run.gain("fml", 0) == 0.25
    assert run.gain("fml", 0, measure="macro_accuracy") is None
    assert run.gain("fml", 0, measure="kappa") == pytest.approx(0.2)
    assert main(["report", str(tmp_path)]) == 0
