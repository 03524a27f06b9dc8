"""The live page in a real browser, beside a real run."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxyfl.records import reading as loading
from proxyfl.records.row import Row
from proxyfl.report import callback
from proxyfl.report.callback import LivePage
from proxyfl.report.live import LiveServer
from proxyfl.simulation.config import from_tree
from proxyfl.simulation.run import Callback
from proxyfl.simulation.run import run as run_config
from tests.waiting import PATIENCE

ROUNDS = (
    "(document.getElementById('curves').scrollIntoView({ behavior: 'instant' }), "
    "[...checks.chart('curves').data.find(t => t.name === 'proxyfl, private')?.x ?? []])"
)
"""The rounds of the curve on the page. It is drawn when it is in view, and the answer that comes
above it may push it out."""


class Announced(LivePage):
    """A live page whose address can be waited for."""

    def __init__(self) -> None:
        super().__init__(patience=2 * PATIENCE)
        self.urls: queue.Queue[str] = queue.Queue()

    def announce(self, url: str) -> None:
        """Say it, and hand it on."""
        super().announce(url)
        self.urls.put(url)


class Gate(Callback):
    """Holds a run half-way until it is opened: a page that is slow to open must not miss the
    run."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def round_ended(self, name: str, round: int, rows: Sequence[Row]) -> None:
        """Wait, once."""
        if (name, round) == ("proxyfl", 5):
            assert self.opened.wait(PATIENCE)


def test_the_page_follows_a_run_to_its_end(
    tab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened during the run, the page grows with it, shows its end, and has then what a report of
    it has."""
    tree = {
        "rounds": 12,
        "evaluate_every": 1,
        "methods": ["alone", "proxyfl"],
        "partition": {"clients": 3},
    }
    config = from_tree(tree)
    monkeypatch.setattr(callback, "HOLD_SECONDS", PATIENCE)
    out, live, gate = tmp_path / "run", Announced(), Gate()
    going = threading.Thread(
        target=lambda: run_config(config, out=out, callbacks=[live, gate]), daemon=True
    )
    going.start()
    url = live.urls.get(timeout=PATIENCE)
    assert f"Live page: {url}" in capsys.readouterr().err
    page = tab.open(url)
    tab.chart("curves")
    half = "document.getElementById('status').textContent === 'Live: proxyfl, round 6 of 12.'"
    # a function: the page forbids the evaluation of bare text
    page.wait_for_function(f"() => {half}")
    page.wait_for_function(f"() => {ROUNDS}.length === 6")
    assert page.locator("#done").evaluate("bar => bar.value") == pytest.approx(18 / 24)
    pace = page.locator("#pace").inner_text()
    assert pace.startswith("75 % \u00b7 method 2 of 2 \u00b7 about ")
    assert pace.endswith(" left")
    gate.opened.set()
    page.wait_for_function("() => document.body.dataset.live === 'over'")
    going.join(PATIENCE)
    assert not going.is_alive(), "the end was told, so the run need not wait"
    assert page.locator("#status").inner_text() == "Finished: proxyfl, round 12 of 12."
    assert page.evaluate(ROUNDS) == list(range(1, 13))
    run = loading.read(out)
    gains = [run.gain("proxyfl", client) for client in range(3)]
    shown = float(page.locator("#answer li[data-method=proxyfl]").get_attribute("data-gain"))
    assert shown == pytest.approx(sum(gains) / 3, abs=2e-4)
    assert tab.chart("confusion")
    assert {urlhost(asked) for asked in tab.requests} <= {urlhost(url), "data"}
    asked = len(tab.requests)
    time.sleep(0.6)
    assert len(tab.requests) == asked, "a page whose run is over asks no more"
    assert tab.complaints == []


@pytest.fixture
def going(runs: list[Path], tmp_path: Path) -> tuple[Path, Callable[[], None]]:
    """A run's folder as it is half-way, and what brings it to its end."""
    path = tmp_path / "going"
    path.mkdir()
    for name in ("config.toml", "environment.json"):
        (path / name).write_bytes((runs[2] / name).read_bytes())
    lines = (runs[2] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:-9]))

    def finish() -> None:
        with (path / "metrics.jsonl").open("a") as file:
            file.write("".join(lines[-9:]))
        (path / "summary.json").write_bytes((runs[2] / "summary.json").read_bytes())

    return path, finish


def test_a_page_that_lost_its_server_goes_on_by_itself(
    tab: Any, going: tuple[Path, Callable[[], None]]
) -> None:
    """While the server is away the page says so; when it is back the page catches up, with no round
    lost or twice."""
    path, finish = going
    first = LiveServer(path)
    port = int(first.server_address[1])
    page = tab.open(first.url)
    page.wait_for_function("() => document.body.dataset.live === 'on'")
    first.close()
    page.wait_for_function(
        "() => document.getElementById('status').textContent.startsWith('Not reachable')"
    )
    finish()
    with LiveServer(path, port=port):
        page.wait_for_function("() => document.body.dataset.live === 'over'")
    tab.chart("curves")
    assert page.evaluate(ROUNDS) == [2, 4]
    assert page.locator("#status").inner_text() == "Finished: proxyfl, round 4 of 4."


def test_a_paused_page_stands_still(tab: Any, going: tuple[Path, Callable[[], None]]) -> None:
    """Paused, the page asks for nothing and shows nothing new; resumed, it shows the end."""
    path, finish = going
    with LiveServer(path) as server:
        page = tab.open(server.url)
        page.get_by_role("button", name="Pause updates").click()
        page.wait_for_function(
            "() => document.getElementById('status').textContent.startsWith('Paused')"
        )
        asked = len(tab.requests)
        finish()
        page.wait_for_timeout(800)
        assert len(tab.requests) == asked
        assert page.locator("#status").inner_text().startswith("Paused")
        page.get_by_role("button", name="Resume updates").click()
        page.wait_for_function("() => document.body.dataset.live === 'over'")


def test_the_page_can_be_followed_from_elsewhere_with_its_token(
    tab: Any, going: tuple[Path, Callable[[], None]]
) -> None:
    """Served beyond loopback, the page keeps its token in every question that it asks."""
    path, finish = going
    with LiveServer(path, host="0.0.0.0") as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/?token={server.token}"
        page = tab.open(url)
        finish()
        page.wait_for_function("() => document.body.dataset.live === 'over'")
    assert tab.complaints == []


def urlhost(url: str) -> str:
    """Scheme-less start of an address, to compare where requests went."""
    return url.split("/")[2] if "//" in url else url.split(":")[0]
