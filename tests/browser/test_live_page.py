"""The live page in a real browser, beside a real run."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
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
    process, out = started(60, "live")
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
    assert page.locator("#status").inner_text() == "Finished: proxyfl, round 60 of 60."
    assert page.evaluate(rounds) == 60
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


def test_a_page_that_lost_its_server_goes_on_by_itself(tab: Any, started: Any) -> None:
    """While the server is away the page says so; when it is back the page catches up, with no round lost or twice."""
    process, out = started(6, "plain")
    while not (out / "metrics.jsonl").is_file():
        assert process.poll() is None
        time.sleep(0.05)
    first = LiveServer(out)
    port = int(first.server_address[1])
    page = tab.open(first.url)
    page.wait_for_function("() => document.body.dataset.live === 'on'")
    first.close()
    assert process.wait(timeout=60) == 0
    if page.evaluate("() => document.body.dataset.live") == "on":
        page.wait_for_function("() => document.getElementById('status').textContent.startsWith('Not reachable')")
    with LiveServer(out, port=port):
        page.wait_for_function("() => document.body.dataset.live === 'over'", timeout=40000)
    tab.chart("curves")
    rounds = page.evaluate(
        "() => [...document.querySelector('#curves .chart').data.find(t => t.name === 'proxyfl, private').x]"
    )
    assert rounds == [1, 2, 3, 4, 5, 6]


def test_a_paused_page_asks_for_nothing(tab: Any, started: Any) -> None:
    """Paused, the page stands still; told to go on, it shows the end."""
    process, out = started(2, "plain")
    assert process.wait(timeout=60) == 0
    (out / "summary.json").rename(out / "later")
    with LiveServer(out) as server:
        page = tab.open(server.url)
        page.get_by_role("button", name="Pause updates").click()
        page.wait_for_timeout(300)
        asked = len(tab.requests)
        page.wait_for_timeout(1200)
        assert len(tab.requests) == asked
        (out / "later").rename(out / "summary.json")
        os.utime(out / "summary.json")
        page.get_by_role("button", name="Go on").click()
        page.wait_for_function("() => document.body.dataset.live === 'over'")


def urlhost(url: str) -> str:
    """Scheme-less start of an address, to compare where requests went."""
    return url.split("/")[2] if "//" in url else url.split(":")[0]
