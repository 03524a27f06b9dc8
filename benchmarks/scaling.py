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
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from proxyfl.data import Dataset
from proxyfl.machine import keep_freed_memory, physical_cores
from proxyfl.simulation import config
from proxyfl.simulation import run as runner


@dataclass(frozen=True)
class Size:
    """One run: its models, clients, workers and rounds, and the images of each client."""

    private: str
    clients: int
    workers: int
    rounds: int
    proxy: str = "mlp"
    examples: int = 1000
    side: int = 28
    batch_size: int = 250


def made_up() -> Dataset:
    """As many random images as the run asks for (PROXYFL_IMAGES, PROXYFL_SIDE)."""
    count = int(os.environ["PROXYFL_IMAGES"])
    side = int(os.environ["PROXYFL_SIDE"])
    x = torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(0))
    y = torch.arange(count) % 10
    return Dataset("made-up", x, y, x[:100], y[:100], 10, tuple("0123456789"))


def one_run(size: Size) -> None:
    """Run in this process and its workers; print seconds per round, by the clock and of this
    process's CPU time, and the memory of all of them."""
    keep_freed_memory()
    rounds = size.rounds
    settings = config.from_tree(
        {
            "methods": ["proxyfl"],
            "rounds": rounds,
            "evaluate_every": rounds,
            "checkpoint_every": rounds,
            "data": {"source": "benchmarks.scaling:made_up"},
            "partition": {"kind": "iid", "clients": size.clients, "examples": size.examples},
            "models": {"private": size.private, "proxy": size.proxy, "residual": False},
            "learning": {
                "alpha": 0.5,
                "beta": 0.5,
                "teacher": "current",
                "batch_size": size.batch_size,
            },
            "privacy": {"noise_multiplier": 1.0},
            "exchange": {"self_weight": 0.0},
        }
    )

    class Clock(runner.Callback):
        """Notes when each round's records arrive, and how much memory is in use by then."""

        def __init__(self) -> None:
            self.times: list[float] = []
            self.cpu: list[float] = []
            self.memory = 0

        def round_ended(self, name: str, round: int, rows: object) -> None:
            self.times.append(time.perf_counter())
            self.cpu.append(time.process_time())
            self.memory = max(self.memory, _memory_of_family())

    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        runner.run(settings, out=Path(scratch) / "run", callbacks=[clock], workers=size.workers)
    found = {
        "seconds_per_round": _median_gap(clock.times),
        "cpu_per_round": _median_gap(clock.cpu),
        "memory": clock.memory,
    }
    print(json.dumps(found))


def _median_gap(times: list[float]) -> float:
    """The median of the time between rounds; the last one evaluates."""
    gaps = [after - before for before, after in pairwise(times[:-1])]
    return statistics.median(gaps)


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


def measure(size: Size) -> dict[str, float]:
    """One run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--one", json.dumps(asdict(size))]
    environment = {
        **os.environ,
        "PROXYFL_IMAGES": str(size.examples * size.clients + 10),
        "PROXYFL_SIDE": str(size.side),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def memory_per_client(workers: int) -> float:
    """Megabytes that each further client takes: MLP/MLP, 1000 images each."""
    few, many = 8, 24
    memory = {}
    for clients in (few, many):
        memory[clients] = measure(Size("mlp", clients, workers, rounds=4))["memory"]
    return (memory[many] - memory[few]) / (many - few) / 1e6


def many_small_clients(clients: int = 1000) -> dict[int, float]:
    """CPU milliseconds per client and round with linear models on 100 images of 8 x 8 each, for 8
    clients and for many. Workers cross rounds by themselves, so there is one process."""
    found = {}
    for count in (8, clients):
        rounds = 40 if count == 8 else 4
        size = Size("linear", count, 1, rounds, "linear", examples=100, side=8, batch_size=25)
        found[count] = measure(size)["cpu_per_round"] / count * 1e3
    return found


def main() -> None:
    """Measure, print a table, write build/scaling.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one_run(Size(**json.loads(args.one)))
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
        found = measure(Size(private, clients, workers, rounds))
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
