"""What a site costs that waits for a missing member: ``python -m benchmarks.waiting``.

Lays out a federation of 32 sites on loopback, runs all but one of them in threads of one process,
and, once they have done what they can without it, prints the share of a core that each takes. The
settings are those of a new site, so that the pauses are those of a hospital."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

SITES = 32
WINDOW = 40.0
"""Seconds: four heartbeats of a new site."""


def share_of_a_core(sites: int = SITES, window: float = WINDOW) -> float:
    """Percent of a core that a site takes while it waits, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.waiting", "--one", str(sites), str(window)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: float = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(sites: int, window: float) -> float:
    from proxyfl.node import trial
    from proxyfl.node.members import site
    from proxyfl.node.supervisor import Node

    with tempfile.TemporaryDirectory() as scratch:
        template = replace(
            trial.quick_site(),
            network=site.Network(patience=3600.0),
            learning=site.Learning(batch_size=20, steps_per_round=1),
        )
        layout = trial.lay_out(Path(scratch), sites=sites, rounds=3, template=template)
        nodes = [Node(*site.read(place), seed=0, say=_nothing) for place in layout.sites[1:]]
        threads = []
        for node in nodes:
            threads.append(threading.Thread(target=_run, args=(node,)))
            threads[-1].start()
        _let_settle()
        before = time.process_time()
        began = time.perf_counter()
        time.sleep(window)
        spent = time.process_time() - before
        passed = time.perf_counter() - began
        for node in nodes:
            node.stopping.set()
            node.participant.patience = 0.0
            node.exchange.notify()
        for thread in threads:
            thread.join(60)
    return 100 * spent / passed / len(nodes)


def _run(node: object) -> None:
    from proxyfl.node.supervisor import Node

    assert isinstance(node, Node)
    with node:
        node.run()


def _nothing(line: str) -> None:
    """What a site says on its terminal."""


def _let_settle() -> None:
    """Wait until a second takes no more CPU time than the one before it, or two minutes."""
    deadline = time.monotonic() + 120
    least = float("inf")
    calm = 0
    while time.monotonic() < deadline and calm < 10:
        before = time.process_time()
        time.sleep(1)
        spent = time.process_time() - before
        calm = calm + 1 if spent >= least * 0.9 and spent < 0.5 else 0
        least = min(least, max(spent, 1e-3))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=SITES)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(_measure(int(args.one[0]), float(args.one[1]))))
        sys.stdout.flush()
        os._exit(0)  # threads that still wait for their peers
    print(f"{share_of_a_core(args.sites):.2f} % of a core for each of {args.sites - 1} sites")


if __name__ == "__main__":
    main()
