"""The live page in a real browser, beside a real run."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxyfl.experiment import loading
from proxyfl.experiment.live import LiveServer

CODE = """
import sys
from proxyfl.experiment import runner
from proxyfl.experiment.config import from_tree
from proxyfl.experiment.live import LivePage
config = from_tree({"rounds": int(sys.argv[2]), "evaluate_every": 1, "methods": ["alone", "proxyfl"],
                    "partition": {"clients": 3}})
runner.run(config, out=sys.argv[1], callbacks=[LivePage(patience=10)] if sys.argv[3] == "live" else [])
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts small runs in processes of their own, and ends those that are left."""
    processes = []

    def start(rounds: int, kind: str) -> tuple[subprocess.Popen[str], Path]:
        out = tmp_path / "run"
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(out), str(rounds), kind], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        processes.append(process)
        return process, out

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_the_page_follows_a_run_to_its_end(tab: Any, started: Any) -> None:
    """Opened at the start, the page grows with the run, shows its end, and has then what a report of it has."""
    process, out = started(30, "live")
    for line in process.stderr:
        if line.startswith("Live page: "):
            break
    url = line.removeprefix("Live page: ").strip()
    page = tab.open(url)
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('Live: ')")
    rounds = (
        "() => document.querySelector('#curves .chart')?.data?.find(t => t.name === 'alone, private')?.x.length ?? 0"
    )
    page.locator("#curves").scroll_into_view_if_needed()
    page.wait_for_function("() => document.body.dataset.live === 'over'", timeout=60000)
    assert process.wait(timeout=20) == 0
    assert page.locator("#status").inner_text() == "Finished: proxyfl, round 30 of 30."
    assert page.evaluate(rounds) == 30
    run = loading.read(out)
    gains = [run.gain("proxyfl", client) for client in range(3)]
    shown = float(page.locator("#answer li[data-method=proxyfl]").get_attribute("data-gain"))
    assert shown == pytest.approx(sum(gains) / 3, abs=2e-4)
    assert tab.chart("confusion")
    assert {urlhost(asked) for asked in tab.requests} <= {urlhost(url), "data"}
    asked = len(tab.requests)
    time.sleep(1.5)
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


ROUNDS = "[...checks.chart('curves').data.find(t => t.name === 'proxyfl, private').x]"


def test_a_page_that_lost_its_server_goes_on_by_itself(tab: Any, going: tuple[Path, Callable[[], None]]) -> None:
    """While the server is away the page says so; when it is back the page catches up, with no round lost or twice."""
    path, finish = going
    first = LiveServer(path)
    port = int(first.server_address[1])
    page = tab.open(first.url)
    page.wait_for_function("() => document.body.dataset.live === 'on'")
    first.close()
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('Not reachable')")
    finish()
    with LiveServer(path, port=port):
        page.wait_for_function("() => document.body.dataset.live === 'over'", timeout=20000)
    tab.chart("curves")
    assert page.evaluate(ROUNDS) == [2, 4]
    assert page.locator("#status").inner_text() == "Finished: proxyfl, round 4 of 4."


def test_a_paused_page_stands_still(tab: Any, going: tuple[Path, Callable[[], None]]) -> None:
    """Paused, the page asks for nothing and shows nothing new; told to go on, it shows the end."""
    path, finish = going
    with LiveServer(path) as server:
        page = tab.open(server.url)
        page.get_by_role("button", name="Pause updates").click()
        page.wait_for_timeout(300)
        asked = len(tab.requests)
        finish()
        page.wait_for_timeout(1500)
        assert len(tab.requests) == asked
        assert page.locator("#status").inner_text().startswith("Paused")
        page.get_by_role("button", name="Go on").click()
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
