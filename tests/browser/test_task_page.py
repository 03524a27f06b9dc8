"""The report of tasks other than classification, in a real browser."""

from pathlib import Path
from typing import Any

import pytest

from proxyfl.simulation.run import run
from tests.simulation.test_tasks import LABELS, settings, write_sites

from .conftest import written

FIGURES = {"regression": "calibration", "multilabel": "calibration", "time-to-event": "survival"}


@pytest.mark.parametrize("kind", LABELS)
def test_what_was_predicted_is_drawn_against_what_came(tab: Any, kind: str, tmp_path: Path) -> None:
    """Each task has its own figure with data for every method, and none of those of classes."""
    write_sites(tmp_path)
    out = tmp_path / "run"
    found = run(settings(tmp_path, kind), out=out)
    page = tab.open(written([out], tmp_path / "page.html").as_uri())
    traces = tab.chart(FIGURES[kind])
    assert all(trace["n"] > 0 for trace in traces)
    assert page.locator("#classes, #roc").count() == 0
    if kind == "time-to-event":
        titles = page.locator("#survival .panel h4").all_inner_texts()
        assert titles == list(found.methods)
        assert page.locator("#calibration").count() == 0
    else:
        assert {trace["name"] for trace in traces} >= set(found.methods)
        assert page.locator("#survival").count() == 0
    assert tab.complaints == []
