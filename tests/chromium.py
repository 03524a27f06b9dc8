"""A real browser for tests that look at a page."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE

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
CHECKS = (Path(__file__).parent / "browser" / "checks.js").read_text(encoding="utf-8")
DESKTOP = (1280, 900)
ANSWERED = """
new MutationObserver(() => {
  const drawn = document.querySelectorAll(".chart svg").length;
  if (document.querySelector("#headline")) window.answered ??= drawn;
}).observe(document, { childList: true, subtree: true });
"""
"""Notes how many charts had been drawn when the answer came onto the page."""


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
        launched = driver.chromium.launch(
            executable_path=found, args=FLAGS, timeout=1000 * PATIENCE
        )
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
        self.page.wait_for_selector("#gains .chart svg, #gains .empty", state="attached")
        return self.page

    def chart(self, figure: str) -> Any:
        """The traces of a figure's first chart, once it is drawn.

        The page knows by then that the figure is in view, so from here on a change of a control
        changes the chart before the control's event is over."""
        self.page.locator(f"#{figure}").scroll_into_view_if_needed()
        self.page.evaluate("id => checks.inView(id)", figure)
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
    context.set_default_timeout(1000 * PATIENCE)
    opened = Tab(context.new_page())
    opened.page.add_init_script(ANSWERED)
    opened.page.on(
        "console", lambda message: opened.complaints.append(f"{message.type}: {message.text}")
    )
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("request", lambda asked: opened.requests.append(asked.url))
    yield opened
    context.close()
