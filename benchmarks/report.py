"""How large a report is, how long it takes to make and to open, and what the live page adds to a
run.

    python benchmarks/report.py          made-up records: 5 seeds, 7 methods, 300 rounds, 8 clients
    python benchmarks/report.py --live   a real run, by turns with and without a page following it

The browser part needs Chromium and Playwright; it is left out, and said to be, where they are
missing."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from proxyfl import Run
from proxyfl.federation.methods import METHODS, Method
from proxyfl.records import folder
from proxyfl.report.callback import LivePage
from proxyfl.seeds import numpy_stream
from proxyfl.simulation import run as runner
from proxyfl.simulation.config import Config, from_tree, to_toml

SEVEN = ("alone", "regular", "fedavg", "cwt", "avgpush", "fml", "proxyfl")
CHROMIUM = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def made_up(
    out: Path, seed: int, *, rounds: int, clients: int, methods: tuple[str, ...] = SEVEN
) -> Path:
    """A run's folder with plausible numbers that no training stands behind."""
    config = from_tree(
        {
            "seed": seed,
            "rounds": rounds,
            "evaluate_every": 1,
            "methods": list(methods),
            "partition": {"clients": clients},
        }
    )
    path = folder.create(out, to_toml(config), identity="made up", data=0)
    generator = numpy_stream(seed, "made-up")
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(methods):
        level = 0.5 + 0.05 * number + generator.normal(0, 0.01, clients)
        for round in range(rounds):
            rows += [
                _row(name, METHODS[name], round, c, clients, level[c], generator)
                for c in range(clients)
            ]
    folder.append_metrics(path, rows)
    (path / "summary.json").write_text(json.dumps(_summary(config, rows, clients, generator)))
    return path


def _row(
    name: str, method: Method, round: int, client: int, clients: int, level: float, generator: Any
) -> Any:
    roles = (
        ["private"]
        if name == "alone"
        else ["private", "proxy"]
        if method.learner == "mutual"
        else ["proxy"]
    )
    roles += ["received"] if method.exchange != "none" else []
    scores: dict[str, float] = {}
    for i, role in enumerate(roles):
        value = float(
            np.clip(
                level * (1 - np.exp(-(round + 5) / 60)) - 0.05 * i + generator.normal(0, 0.01), 0, 1
            )
        )
        scores |= {f"{role}_accuracy": value, f"{role}_macro_accuracy": 0.97 * value}
    epsilon = 0.25 * (round + 1) ** 0.5 if method.dp else None
    sent = 2700 if method.exchange != "none" else 0
    return {
        "method": name,
        "round": round,
        "client": client,
        "name": f"client-{client}",
        "present": clients,
        "expected": clients,
        "steps": 2,
        "private_loss": 1.0,
        "proxy_loss": 1.0,
        **scores,
        "epsilon_rdp": epsilon and 1.1 * epsilon,
        "epsilon_pld": epsilon,
        "delta": 1e-3,
        "epsilon_kind": "end-to-end" if method.dp else "none",
        "weight": 1.0,
        "bytes_sent": sent,
        "bytes_received": sent,
        "messages_sent": bool(sent),
        "messages_received": bool(sent),
        "seconds_training": float(generator.exponential(0.01)),
        "seconds_evaluation": 0.001,
        "seconds_exchange": 0.0005,
        "left": None,
    }


def _summary(config: Config, rows: list[Any], clients: int, generator: Any) -> dict[str, Any]:
    def confusion() -> list[list[int]]:
        return [
            [int(n) for n in row]
            for row in generator.integers(0, 5, (10, 10)) + 25 * np.eye(10, dtype=int)
        ]

    last = [row for row in rows if row["round"] == config.rounds - 1]
    return {
        "finished": True,
        "classes": [str(k) for k in range(10)],
        "clients": [
            {
                "name": f"client-{c}",
                "examples": 175,
                "class_counts": [int(n) for n in generator.integers(0, 40, 10)],
            }
            for c in range(clients)
        ],
        "methods": {
            name: {
                "keeps": METHODS[name].keeps,
                "clients": [
                    row
                    | {
                        "confusion": {
                            key[:-9]: confusion()
                            for key in row
                            if key.endswith("_accuracy") and "macro" not in key
                        }
                    }
                    for row in last
                    if row["method"] == name
                ],
            }
            for name in config.methods
        },
    }


def first_chart(page: Path) -> float | None:
    """Seconds until the first chart is on the screen; None without a browser."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        return None
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(
                executable_path="/usr/bin/chromium", args=list(CHROMIUM)
            )
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            started = time.perf_counter()
            tab.goto(page.resolve().as_uri(), wait_until="commit")
            tab.wait_for_selector("figure .chart svg path", state="attached")
            seconds = time.perf_counter() - started
            browser.close()
            return seconds
    except Error as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return None


def measure_report(scratch: Path, rounds: int) -> dict[str, Any]:
    """Size and times of the large comparison."""
    paths = [made_up(scratch / f"seed-{seed}", seed, rounds=rounds, clients=8) for seed in range(5)]
    page = scratch / "report.html"
    code = (
        "import sys; from pathlib import Path;"
        "from proxyfl.records import frames; from proxyfl.report import page;"
        "page.write(frames.load(*sys.argv[2:]).runs, Path(sys.argv[1]))"
    )
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, str(page), *map(str, paths)], check=True)
    seconds = time.perf_counter() - started
    opened = [first_chart(page) for _ in range(3)]
    found = [one for one in opened if one is not None]
    return {
        "rows": 5 * len(SEVEN) * rounds * 8,
        "megabytes": page.stat().st_size / 1e6,
        "seconds_to_make": seconds,
        "seconds_to_first_chart": statistics.median(found) if found else None,
    }


def measure_live(scratch: Path, repeats: int = 3) -> dict[str, Any]:
    """CPU and wall seconds of the same run, alone and with a reader that polls as the page does."""
    prepared = runner.prepare(
        from_tree({"rounds": 400, "methods": ["alone", "regular", "proxyfl"]})
    )
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "live": []}
    for repeat in range(repeats):
        for kind in ("plain", "live"):
            page = _Polled() if kind == "live" else None
            wall, processor = time.perf_counter(), time.process_time()
            runner.execute(
                prepared, out=scratch / f"{kind}-{repeat}", callbacks=[page] if page else []
            )
            times[kind].append((time.perf_counter() - wall, time.process_time() - processor))
    best = {
        kind: [statistics.median(column) for column in zip(*found, strict=True)]
        for kind, found in times.items()
    }
    return {
        "wall_seconds": {kind: found[0] for kind, found in best.items()},
        "processor_seconds": {kind: found[1] for kind, found in best.items()},
        "added_wall": best["live"][0] / best["plain"][0] - 1,
        "added_processor": best["live"][1] / best["plain"][1] - 1,
    }


class _Polled(LivePage):
    """A live page with a reader in another process, as a browser is."""

    def announce(self, url: str) -> None:
        code = (
            "import json, sys, urllib.request\nsince = ''\nwhile True:\n"
            "    got = json.load(urllib.request.urlopen(sys.argv[1] + 'data.json?wait=1&since=' + "
            "since))\n"
            "    since = got['cursor']\n    if got['done']: break\n"
        )
        self.reader = subprocess.Popen(
            [sys.executable, "-S", "-c", code, url], stderr=subprocess.DEVNULL
        )

    def finished(self, result: Run) -> None:
        super().finished(result)
        self.reader.wait()


def main() -> None:
    """Measure, and print as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--live", action="store_true", help="measure what the live page adds to a run"
    )
    parser.add_argument(
        "--rounds", type=int, default=300, help="rounds of the made-up runs (default 300)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        print(
            json.dumps(
                measure_live(scratch)
                if arguments.live
                else measure_report(scratch, arguments.rounds),
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
