"""A real browser for the page, and pages to look at."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import proxyfl
from proxyfl.records import frames
from proxyfl.report import page as report
from proxyfl.simulation.config import from_tree
from tests.chromium import DESKTOP, Tab, new_tab

METHODS = ["alone", "fedavg", "proxyfl"]
PHONE = (390, 844)


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """A fresh tab."""
    with new_tab(browser, *DESKTOP) as opened:
        yield opened


@pytest.fixture(scope="session")
def desktop_one(browser: Any, one: Path) -> Iterator[Tab]:
    """The report of one run. Opening it takes a second, so tests share it, through ``shown``."""
    with new_tab(browser, *DESKTOP) as opened:
        opened.open(one.as_uri())
        yield opened


@pytest.fixture(scope="session")
def desktop_several(browser: Any, several: Path) -> Iterator[Tab]:
    """The report of three runs, shared likewise, through ``compared``."""
    with new_tab(browser, *DESKTOP) as opened:
        opened.open(several.as_uri())
        yield opened


@pytest.fixture(scope="session")
def phone_several(browser: Any, several: Path) -> Iterator[Tab]:
    """The same on a phone."""
    with new_tab(browser, *PHONE) as opened:
        opened.open(several.as_uri())
        yield opened


@pytest.fixture
def shown(desktop_one: Tab) -> Tab:
    """The report of one run, as it was when it was opened."""
    desktop_one.page.evaluate("checks.reset()")
    return desktop_one


@pytest.fixture
def compared(desktop_several: Tab) -> Tab:
    """The report of three runs, as it was when it was opened."""
    desktop_several.page.evaluate("checks.reset()")
    return desktop_several


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three small real runs: two seeds of one setting, with somebody missing now and then, and
    another setting."""
    parent = tmp_path_factory.mktemp("runs")
    common = {"rounds": 4, "evaluate_every": 2, "methods": METHODS, "partition": {"clients": 4}}
    away = {"membership": {"schedule": [{"client": 1, "away": [1, 1]}]}, "privacy": {"budget": 3.0}}
    settings = {
        "seed-0": {"seed": 0, **away},
        "seed-1": {"seed": 1, **away},
        "other": {"learning": {"beta": 0.3}},
    }
    for name, changed in settings.items():
        proxyfl.run(from_tree(common | changed), out=parent / name)
    return [parent / name for name in settings]


@pytest.fixture(scope="session")
def one(runs: list[Path]) -> Path:
    """The report of one run."""
    return written(runs[:1], runs[0].parent / "one.html")


@pytest.fixture(scope="session")
def several(runs: list[Path]) -> Path:
    """The report of all three."""
    return written(runs, runs[0].parent / "several.html")


def written(paths: list[Path], out: Path) -> Path:
    """The report of the runs in ``paths``."""
    report.write(frames.load(*paths).runs, out)
    return out
