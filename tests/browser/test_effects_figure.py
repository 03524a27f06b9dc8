"""Odds ratios on the page, from the file that ``proxyfl effects --report`` keeps."""

import json
import math
import shutil
from pathlib import Path

import pytest

from proxyfl._files import write_json
from proxyfl.records.effects import FILE, Effect, Effects
from tests.browser.conftest import written
from tests.chromium import Tab

SEX = Effect("sex", "yes against no", 1.0, 0.25, 0.5, 1.5, math.exp(2.0))
AGE = Effect("age", "10 years more", -0.2, 0.1, -0.4, 0.0, math.exp(-0.5))
WARD = Effect("<b>ward", "b against a", None, None, None, None, 1.0, "too much noise")
TABLE = Effects("client 0", "proxyfl", "dead", "alive", [SEX, AGE, WARD], ["What it rests on."])

DRAWN = """() => JSON.stringify(document.querySelector('#odds-ratios .chart').data.map(t => (
    {x: t.x, y: t.y, more: t.error_x.array, less: t.error_x.arrayminus})))"""


def test_intervals_are_drawn_as_they_were_computed(
    tab: Tab, runs: list[Path], tmp_path: Path
) -> None:
    """Ratios and both ends of their intervals lie on a log axis, top down; an effect without one is
    in the table alone, with its reason. A run without the file has no such section."""
    folder = Path(shutil.copytree(runs[0], tmp_path / "with"))
    write_json(folder / FILE, TABLE.document())
    page = tab.open(written([folder], tmp_path / "page.html").as_uri())
    tab.chart("odds-ratios")
    (trace,) = json.loads(tab.page.evaluate(DRAWN))
    assert trace["y"] == ["age: 10 years more", "sex: yes against no"]
    for number, effect in enumerate((AGE, SEX)):
        ratio = trace["x"][number]
        assert ratio == pytest.approx(effect.odds_ratio)
        assert ratio + trace["more"][number] == pytest.approx(effect.high)
        assert ratio - trace["less"][number] == pytest.approx(effect.low)
    axis = "() => document.querySelector('#odds-ratios .chart').layout.xaxis.type"
    assert tab.page.evaluate(axis) == "log"
    shown = page.locator("#odds-ratios").text_content()
    assert "What it rests on." in shown
    assert "1 of 3 effects" in shown
    assert page.locator("#odds-ratios b").count() == 0  # text is text, whatever it says
    assert tab.complaints == []
    without = tab.open(written(runs[:1], tmp_path / "without.html").as_uri())
    assert without.locator("#odds-ratios").count() == 0
