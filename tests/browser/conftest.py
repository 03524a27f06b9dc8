"""A real browser for the page, and pages to look at."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import proxyfl
from proxyfl.records import frames
from proxyfl.report import page as report
from proxyfl.simulation.config import from_tree

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHECKS = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8")
METHODS = ["alone", "fedavg", "proxyfl"]
ANSWERED = """
new MutationObserver(() => {
  if (document.querySelector("#answer .cards li")) window.answered ??= typeof Plotly;
}).observe(document, { childList: true, subtree: true });
"""
"""Notes whether the charts' library had run when the answer came onto the page."""
DESKTOP, PHONE = (1280, 900), (390, 844)


def missing(what: str) -> None:
    """Skip for want of a browser on somebody's own machine; fail where the tests decide what is
    merged."""
    told = f"{what} is missing: `make browser` installs what the browser tests need."
    if os.environ.get("CI") == "true":
        pytest.fail(told)
    pytest.skip(told)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("Playwright")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        missing("Chromium")
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield launched
        launched.close()


@dataclass
class Tab:
    """A page, and what it complained about or asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, url: str) -> Any:
        """Go to ``url`` and wait for the first chart."""
        self.page.goto(url)
        self.page.evaluate(CHECKS)
        self.page.wait_for_selector("#gains .js-plotly-plot, #gains .empty", state="attached")
        return self.page

    def chart(self, figure: str) -> Any:
        """The traces of a figure's first chart, once it is drawn."""
        self.page.locator(f"#{figure}").scroll_into_view_if_needed()
        self.page.wait_for_function(
            "id => document.querySelector(`#${id} .chart`)?.data !== undefined", arg=figure
        )
        return self.page.evaluate(
            "id => document.querySelector(`#${id} .chart`).data.map(t => ({name: t.name, type: "
            "t.type, "
            "n: (t.z ?? t.x ?? []).length}))",
            figure,
        )


@contextmanager
def new_tab(browser: Any, width: int, height: int) -> Iterator[Tab]:
    """A tab with nothing in it, that shares nothing with others."""
    context = browser.new_context(viewport={"width": width, "height": height})
    opened = Tab(context.new_page())
    opened.page.add_init_script(ANSWERED)
    opened.page.on(
        "console", lambda message: opened.complaints.append(f"{message.type}: {message.text}")
    )
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("request", lambda asked: opened.requests.append(asked.url))
    yield opened
    context.close()


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
