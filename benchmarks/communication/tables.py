"""The tables of ``mix``: what the graphs take to average, when all goes well and when not."""

import math
import statistics
from collections.abc import Sequence
from itertools import islice
from typing import Any

from benchmarks.communication.mixing import Reading, Setting, exact_rounds, rounds_to, simulate
from proxyfl.seeds import numpy_stream

Row = dict[str, Any]

_TRIALS = 5


def consensus(clients: Sequence[int], target: float, size: float, *, seed: int = 0) -> list[Row]:
    """Rounds until the error is at most ``target``, and megabytes that a client of messages of
    ``size`` bytes has sent.

    The exponential graph and the ring are computed, the random graph is simulated (the median of
    five), the complete graph needs one round. Passed on whole (self weight 0), proxies are never
    averaged: rounds is None."""
    rows = []
    for n in clients:
        found = {
            ("exponential", 0.5): exact_rounds("exponential", n, target),
            ("exponential", 0.0): exact_rounds("exponential", n, target, 0.0),
            ("random", 0.5): _random_rounds(n, target, seed),
            ("ring", 0.5): exact_rounds("ring", n, target),
            ("complete", 1 / n): 1,
        }
        for (graph, self_weight), rounds in found.items():
            row: Row = {"graph": graph, "self_weight": self_weight, "clients": n, "rounds": rounds}
            row |= {"messages": None, "megabytes": None}
            if rounds is not None:
                row["messages"] = rounds * (n - 1) if graph == "complete" else rounds
                row["megabytes"] = row["messages"] * size / 1e6
            rows.append(row)
    return rows


def losses(
    clients: int, probabilities: Sequence[float], target: float, rounds: int, *, seed: int = 0
) -> list[Row]:
    """What lost messages do to the exponential graph within ``rounds`` rounds: as they are, kept by
    the sender, or with proxies that are passed on whole (self weight 0), where every loss leaves a
    client with nothing."""
    rows = []
    for loss in probabilities:
        for self_weight, keep in ((0.5, False), (0.5, True), (0.0, False)):
            setting = Setting("exponential", clients, self_weight, loss, keep)
            readings = _readings(setting, rounds, seed)
            last = readings[-1]
            rows.append(
                {
                    "loss": loss,
                    "self_weight": self_weight,
                    "kept_by_sender": keep,
                    "rounds_to_agreement": _first(readings, "spread", target),
                    "rounds_to_mean": _first(readings, "error", target),
                    "error": last.error if math.isfinite(last.error) else None,
                    "weight": last.weight,
                    "bare": last.bare,
                }
            )
    return rows


def absences(
    clients: int, probabilities: Sequence[float], target: float, *, seed: int = 0
) -> list[Row]:
    """Rounds until all clients, present or not, are within ``target`` of the mean."""
    rows = []
    for graph in ("exponential", "random", "complete"):
        for absence in probabilities:
            setting = Setting(graph, clients, absence=absence)
            generator = numpy_stream(seed, "mixing", clients)
            found = rounds_to(setting, target, limit=5000, generator=generator)
            rounds = None if found is None else found[0]
            rows.append({"graph": graph, "absence": absence, "rounds": rounds})
    return rows


def error_curve(setting: Setting, rounds: int, *, seed: int = 0) -> list[float]:
    """The error after each of the first ``rounds`` rounds."""
    return [reading.error for reading in _readings(setting, rounds, seed)]


def _random_rounds(clients: int, target: float, seed: int) -> int | None:
    """The median over trials; None if most trials did not get there."""
    trials: list[float] = []
    for trial in range(_TRIALS):
        generator = numpy_stream(seed, "mixing", clients, trial)
        found = rounds_to(Setting("random", clients), target, limit=10_000, generator=generator)
        trials.append(math.inf if found is None else found[0])
    middle = statistics.median(trials)
    return int(middle) if math.isfinite(middle) else None


def _readings(setting: Setting, rounds: int, seed: int) -> list[Reading]:
    generator = numpy_stream(seed, "mixing", setting.clients)
    return list(islice(simulate(setting, generator), rounds))


def _first(readings: Sequence[Reading], distance: str, target: float) -> int | None:
    """The first round after which everyone holds something and is within ``target``."""
    for round, reading in enumerate(readings, 1):
        if getattr(reading, distance) <= target and not reading.bare:
            return round
    return None
