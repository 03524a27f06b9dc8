"""What a masked sum costs: ``python -m benchmarks.masking``.

    step       8 clients, a proxy of 650 parameters: a step of proxysum beside a round of gossip
    many       32 clients, 40 steps of 650 parameters
    million    8 clients, a step of a proxy of a million parameters

Each is a simulation in one process, with all masks, noise on the integer grid and sums of 64-bit
words as at sites, one step a round. Machines are shared, so what counts is the CPU time of the
process: all clients' work, one after the other. Sites on machines of their own share none of it; on
one machine of two cores it takes half as long at best. ``--sites N`` also runs N real sites for a
few rounds, each a process on loopback, first by gossip and then by masked sums, and compares the
seconds between two rounds in their audit logs: sockets, signatures, waiting and the disk included.

Prints the figures beside their goals, and writes ``--out``."""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from proxyfl.data import Dataset
from proxyfl.machine import keep_freed_memory
from proxyfl.node import trial
from proxyfl.node.exchange import auditlog
from proxyfl.node.members.manifest import Graph, Masked
from proxyfl.simulation import config
from proxyfl.simulation import run as runner

SMALL, MILLION = 64, 100_000
"""Inputs of a linear proxy of ten classes: 650 and about a million parameters."""
CLASSES = 10
RATIO, MANY_SECONDS, MILLION_SECONDS = 1.5, 180.0, 3.0
"""The goals."""
CORES = 2


def differences(times: list[float]) -> list[float]:
    """The seconds between each two."""
    return [later - before for before, later in itertools.pairwise(times)]


class Clock(runner.Callback):
    """The process's CPU time at the end of each round."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def round_ended(self, name: str, round: int, rows: Any) -> None:
        """Note the time."""
        self.times.append(time.process_time())

    def rounds(self) -> list[float]:
        """The seconds of each round but the first, which warms up."""
        return differences(self.times)


def simulate(method: str, *, clients: int, inputs: int, rounds: int, examples: int) -> list[float]:
    """CPU seconds of each round of a method, over all clients."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * examples, inputs, generator=generator)
    y = torch.arange(len(x)) % CLASSES
    names = tuple(str(i) for i in range(CLASSES))
    made_up = Dataset("made-up", x, y, x[:CLASSES], y[:CLASSES], CLASSES, names)
    settings = config.from_tree(
        {
            "methods": [method],
            "rounds": rounds + 1,
            "evaluate_every": rounds + 1,
            "checkpoint_every": rounds + 1,
            "partition": {"kind": "iid", "clients": clients, "examples": examples},
            "models": {"private": "linear", "proxy": "linear", "residual": False},
            "learning": {"batch_size": examples, "steps_per_round": 1, "alpha": 0.0},
            "privacy": {"sampling_rate": 1.0, "delta": 1e-5, "noise_multiplier": 8.0},
        }
    )
    clock = Clock()
    runner.run(settings, dataset=made_up, callbacks=[clock])
    return clock.rounds()


def run_sites(count: int, rounds: int, *, masked: bool) -> list[float]:
    """Seconds between the rounds of the first of ``count`` real sites."""
    with tempfile.TemporaryDirectory() as below:
        layout = trial.lay_out(Path(below), sites=count, rounds=rounds + 1)
        event = "released"
        if masked:
            terms = Masked(count // 2, count, noise_multiplier=8.0)
            manifest = replace(layout.manifest, graph=Graph(masked=terms))
            layout = trial.accept_everywhere(layout, manifest)
            event = "sent a vector"
        codes = trial.run(layout)
        if any(codes):
            raise RuntimeError(f"A site ended with codes {codes}.")
        entries = auditlog.read(layout.sites[0] / auditlog.FILE)
    return differences([entry["time"] for entry in entries if entry["event"] == event])


def figure(name: str, value: float, goal: float) -> dict[str, Any]:
    """A figure beside its goal, printed."""
    met = value <= goal
    print(f"{name}: {value:.3g} (goal {goal:g}: {'met' if met else 'MISSED'})", flush=True)
    return {"name": name, "value": value, "goal": goal, "met": met}


def main() -> None:
    """Measure, print, and write ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, help="run this number of real sites, too")
    parser.add_argument("--rounds", type=int, default=20, help="of the real sites (default: 20)")
    parser.add_argument("--out", type=Path, default=Path("build/masking.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    eight: dict[str, Any] = {"clients": 8, "inputs": SMALL, "rounds": 40, "examples": 100}
    step = statistics.median(simulate("proxysum", **eight))
    gossip = statistics.median(simulate("proxyfl", **eight))
    rows = [figure("8 clients, 650 parameters: a step / a round of gossip", step / gossip, RATIO)]
    print(f"  {1000 * step:.1f} ms and {1000 * gossip:.1f} ms of CPU time for all 8")
    many = sum(simulate("proxysum", clients=32, inputs=SMALL, rounds=40, examples=100))
    rows.append(
        figure("32 clients, 40 steps, 650 parameters: seconds, one core", many, MANY_SECONDS)
    )
    large = simulate("proxysum", clients=8, inputs=MILLION, rounds=3, examples=10)
    seconds = statistics.median(large) / CORES
    rows.append(
        figure("8 clients, a million parameters: seconds a step, 2 cores", seconds, MILLION_SECONDS)
    )
    if args.sites:
        by_gossip = statistics.median(run_sites(args.sites, args.rounds, masked=False))
        by_sums = statistics.median(run_sites(args.sites, args.rounds, masked=True))
        name = f"{args.sites} real sites, 650 parameters: a step / a round of gossip"
        rows.append(figure(name, by_sums / by_gossip, RATIO))
        print(f"  {1000 * by_sums:.0f} ms and {1000 * by_gossip:.0f} ms between two rounds")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(
        json.dumps({"command": "python -m benchmarks.masking", "rows": rows}) + "\n"
    )
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
