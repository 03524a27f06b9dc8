"""How long an experiment will take here, from how long it took there.

A record keeps seconds per round and what a fixed calculation, the yardstick, took on the machine
that made it. The same calculation here gives the ratio of the two machines. An estimate, good to a
factor of two or so."""

import time
from collections.abc import Iterable

import torch

from proxyfl import models
from proxyfl.losses import blended_targets, cross_entropy
from proxyfl.machine import keep_freed_memory
from proxyfl.records import folder
from proxyfl.sweeps import file as sweep
from proxyfl.sweeps.pool import is_done
from reproduction.records import Record

START_SECONDS = 6.0
"""What a run takes before its first round: imports, data, the accountants' tables."""


def yardstick(steps: int = 40) -> float:
    """Seconds for one step of LeNet5 on 250 images, on one core: the fastest of some."""
    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = models.build("lenet5", shape=(1, 28, 28), classes=10, seed=0)
    x, targets = (
        torch.rand(250, 1, 28, 28),
        blended_targets(torch.arange(250) % 10, 10, None, 0.0),
    )
    fastest = float("inf")
    for _ in range(steps):
        begin = time.perf_counter()
        model.zero_grad()
        cross_entropy(model(x), targets).mean().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        fastest = min(fastest, time.perf_counter() - begin)
    torch.set_num_threads(threads)
    return fastest


def seconds_left(
    runs: Iterable[sweep.Point],
    record: Record | None,
    *,
    parallel: int,
    here: float,
    until: int | None = None,
) -> float | None:
    """How long the runs will still take, so many at a time, to their end or to the round
    ``until``; None if nobody has recorded their methods."""
    todo = [run for run in runs if not is_done(run, until)]
    known = record.seconds_per_round if record is not None else {}
    if record is None or any(method not in known for run in todo for method in run.config.methods):
        return None
    ratio = here / record.yardstick
    work = sum(
        START_SECONDS + max(0, _goal(run, until) - done) * known[method]
        for run in todo
        for method, done in _rounds_done(run).items()
    )
    return ratio * work / min(parallel, max(1, len(todo)))


def _goal(run: sweep.Point, until: int | None) -> int:
    return min(run.config.rounds, until or run.config.rounds)


def _rounds_done(run: sweep.Point) -> dict[str, int]:
    done = dict.fromkeys(run.config.methods, 0)
    if (run.folder / "metrics.jsonl").is_file():
        for row in folder.read_metrics(run.folder):
            done[row["method"]] = max(done[row["method"]], row["round"] + 1)
    return done
