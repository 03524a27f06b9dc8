"""What a round costs as workers and clients are added: ``python benchmarks/scaling.py``.

Times whole runs in processes of their own: the paper's MNIST setting (LeNet5/MLP, 8 clients x 1000
images) on one and two workers, and MLP/MLP with 8, 50 and 200 clients on all cores (50 also on one
worker, to compare the memory). The images are made up: time does not depend on what they show.
Prints a table and writes build/scaling.json."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from proxyfl.data import Dataset
from proxyfl.machine import keep_freed_memory, physical_cores
from proxyfl.simulation import config
from proxyfl.simulation import run as runner


def made_up() -> Dataset:
    """As many random images as the largest run asks for (PROXYFL_IMAGES), of MNIST's shape."""
    count = int(os.environ["PROXYFL_IMAGES"])
    x = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    y = torch.arange(count) % 10
    return Dataset("made-up", x, y, x[:100], y[:100], 10, tuple("0123456789"))


def one_run(private: str, clients: int, workers: int, rounds: int) -> None:
    """Run in this process and its workers; print seconds per round and the memory of all of
    them."""
    keep_freed_memory()
    settings = config.from_tree(
        {
            "methods": ["proxyfl"],
            "rounds": rounds,
            "evaluate_every": rounds,
            "checkpoint_every": rounds,
            "data": {"source": "benchmarks.scaling:made_up"},
            "partition": {"kind": "iid", "clients": clients, "examples": 1000},
            "models": {"private": private, "proxy": "mlp", "residual": False},
            "learning": {"alpha": 0.5, "beta": 0.5, "teacher": "current", "batch_size": 250},
            "privacy": {"noise_multiplier": 1.0},
            "exchange": {"self_weight": 0.0},
        }
    )

    class Clock(runner.Callback):
        """Notes when each round's records arrive, and how much memory is in use by then."""

        def __init__(self) -> None:
            self.times: list[float] = []
            self.memory = 0

        def round_ended(self, name: str, round: int, rows: object) -> None:
            self.times.append(time.perf_counter())
            self.memory = max(self.memory, _memory_of_family())

    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        runner.run(settings, out=Path(scratch) / "run", callbacks=[clock], workers=workers)
    # the last one evaluates
    gaps = [b - a for a, b in zip(clock.times[:-2], clock.times[1:-1], strict=True)]
    print(json.dumps({"seconds_per_round": statistics.median(gaps), "memory": clock.memory}))


def _memory_of_family() -> int:
    """Proportional set size (shared pages counted once) of this process and all below it, in
    bytes."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    total, family = 0, [os.getpid()]
    while family:
        process = family.pop()
        family += children.get(process, [])
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def measure(private: str, clients: int, workers: int, rounds: int) -> dict[str, float]:
    """One run in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.scaling",
        "--one",
        private,
        str(clients),
        str(workers),
        str(rounds),
    ]
    environment = {**os.environ, "PROXYFL_IMAGES": str(1000 * clients + 10), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, float] = json.loads(found.stdout)
    return result


def main() -> None:
    """Measure, print a table, write build/scaling.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one_run(args.one[0], *map(int, args.one[1:]))
        return
    cores = physical_cores()
    rows = [("lenet5", 8, 1, 12), ("lenet5", 8, 2, 12)]
    rows += [("mlp", 8, cores, 30), ("mlp", 50, 1, 10), ("mlp", 50, cores, 10)]
    rows.append(("mlp", 200, cores, 6))
    table = Table(
        "private",
        "clients",
        "workers",
        "s / round",
        "ms / client and round",
        "MB in all",
        title="Scaling",
    )
    results = []
    for private, clients, workers, rounds in rows:
        found = measure(private, clients, workers, rounds)
        results.append({"private": private, "clients": clients, "workers": workers, **found})
        seconds = found["seconds_per_round"]
        cells = (f"{seconds:.2f}", f"{seconds / clients * 1e3:.1f}", f"{found['memory'] / 1e6:.0f}")
        table.add_row(private, str(clients), str(workers), *cells)
    Console().print(table)
    path = Path("build/scaling.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
