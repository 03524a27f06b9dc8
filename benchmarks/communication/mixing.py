r"""How fast gossip averages, without training: one vector per client, thousands of clients, lost
messages, absences.

PushSum as in gossip/pushsum.py, m <- P m and w <- P w, for all clients at once. Two distances are
followed, both 1 at the start (root mean square over clients and coordinates):

    error    of the de-biased values m / w from the mean of the starting values, everyone's aim
    spread   of the same values from what they are converging to, sum(m) / sum(w)

A message that is lost takes mass and weight with it. The clients still agree in the end (spread
goes to 0), on a mean in which those whose mass was lost count less (error does not). If the sender
hears of the failure and keeps the share, nothing is lost but time."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxyfl._validate import choice, number, whole
from proxyfl.errors import TopologyError
from proxyfl.seeds import numpy_stream

GRAPHS = ("exponential", "ring", "random", "complete")
"""What can be simulated; ``proxyfl topology`` says what they are."""

_COORDINATES = 32
_DENSE_LIMIT = 3000

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """A graph and what goes wrong: ``loss`` of a message and ``absence`` of a client are
    probabilities per round.

    ``keep``: whether the sender of a lost message keeps its share. ``self_weight`` means nothing
    for the complete graph, where all shares are equal."""

    graph: str
    clients: int
    self_weight: float = 0.5
    loss: float = 0.0
    keep: bool = False
    absence: float = 0.0

    def __post_init__(self) -> None:
        choice("graph", self.graph, GRAPHS, error=TopologyError)
        whole("clients", self.clients, at_least=2, error=TopologyError)
        number("self_weight", self.self_weight, at_least=0, below=1, error=TopologyError)
        number("loss", self.loss, at_least=0, at_most=1, error=TopologyError)
        number("absence", self.absence, at_least=0, below=1, error=TopologyError)
        if self.graph == "complete" and self.loss and self.clients > _DENSE_LIMIT:
            raise TopologyError(
                f"Lost messages on a complete graph of {self.clients} clients: "
                f"{self.clients**2:,} to draw in each "
                f"round. Give at most {_DENSE_LIMIT} clients."
            )


@dataclass(frozen=True)
class Reading:
    """After one round: the two distances, the weight left of 1 per client, and clients that hold
    nothing at all.

    ``messages`` is what a client has sent by then, on average.
    """

    error: float
    spread: float
    weight: float
    bare: int
    messages: float


def simulate(setting: Setting, generator: np.random.Generator) -> Iterator[Reading]:
    """Readings round after round, without end. Clients that hold nothing are left out of the
    distances, which are infinite once nobody holds anything."""
    n = setting.clients
    start = generator.standard_normal((n, _COORDINATES))
    start -= start.mean(axis=0)  # so that the wanted mean is 0
    scale = float(np.sqrt((start**2).mean()))
    # Weight is one more column of the mass: what happens to the one happens to the other.
    mass = np.hstack([start, np.ones((n, 1))])
    messages, round = 0.0, 0
    while True:
        here = (
            np.flatnonzero(generator.random(n) >= setting.absence)
            if setting.absence
            else np.arange(n)
        )
        if len(here) > 1:
            moved, sent = _mixed(setting, mass[here], round, generator)
            mass[here] = moved
            messages += sent / n
        round += 1
        holding = mass[:, -1] > 0
        if not holding.any():
            yield Reading(math.inf, math.inf, 0.0, n, messages)
            continue
        values = mass[holding, :-1] / mass[holding, -1:]
        common = mass[:, :-1].sum(axis=0) / mass[:, -1].sum()
        yield Reading(
            error=float(np.sqrt((values**2).mean())) / scale,
            spread=float(np.sqrt(((values - common) ** 2).mean())) / scale,
            weight=float(mass[:, -1].mean()),
            bare=int(n - holding.sum()),
            messages=messages,
        )


def _mixed(
    setting: Setting, mass: Values, round: int, generator: np.random.Generator
) -> tuple[Values, float]:
    """One round between the clients present, and how many messages were sent."""
    n = len(mass)
    if setting.graph == "complete":
        return _complete(setting, mass, generator), float(n * (n - 1))
    if setting.graph == "random":
        to = (np.arange(n) + generator.integers(1, n, size=n)) % n
    else:
        period = max(n - 1, 1).bit_length()
        to = (np.arange(n) + (2 ** (round % period) if setting.graph == "exponential" else 1)) % n
    sent = (1 - setting.self_weight) * mass
    kept = mass - sent
    if setting.loss:
        lost = generator.random(n) < setting.loss
        if setting.keep:
            kept[lost] += sent[lost]
        sent[lost] = 0.0
    if setting.graph == "random":
        np.add.at(kept, to, sent)  # several may send to one
    else:
        kept[to] += sent
    return kept, float(n)


def _complete(setting: Setting, mass: Values, generator: np.random.Generator) -> Values:
    n = len(mass)
    if not setting.loss:
        return np.broadcast_to(mass.mean(axis=0), mass.shape).copy()
    lost = generator.random((n, n)) < setting.loss
    np.fill_diagonal(lost, False)
    mixed: Values = (~lost).astype(np.float64) @ mass / n
    return mixed + mass * (lost.sum(axis=0) / n)[:, None] if setting.keep else mixed


def rounds_to(
    setting: Setting,
    target: float,
    *,
    limit: int,
    generator: np.random.Generator,
    spread: bool = False,
) -> tuple[int, Reading] | None:
    """How many rounds until the error (or the spread) is at most ``target``, with the reading; None
    past ``limit``."""
    for round, reading in enumerate(simulate(setting, generator), 1):
        if (reading.spread if spread else reading.error) <= target and not reading.bare:
            return round, reading
        if round >= limit:
            return None
    return None


def exact_error(graph: str, clients: int, rounds: int, self_weight: float = 0.5) -> float:
    r"""The expected error after ``rounds`` rounds of the exponential graph or the ring, without
    simulation.

    Both are circulant, so the Fourier basis diagonalises every P(t) and the error is
    sqrt(sum_{k=1}^{n-1} prod_t |lambda_k(t)|^2 / (n-1)),
    |lambda_k|^2 = s^2 + (1-s)^2 + 2 s (1-s) cos(2 pi k hop / n).
    """
    choice("graph", graph, ("exponential", "ring"), error=TopologyError)
    s, k = self_weight, np.arange(1, clients)

    def shrinks(hop: int) -> Values:
        squared: Values = (
            s**2
            + (1 - s) ** 2
            + 2 * s * (1 - s) * np.cos(2 * np.pi * ((k * hop) % clients) / clients)
        )
        return squared

    if graph == "ring":
        return float(np.sqrt((shrinks(1) ** rounds).mean()))
    period = max(clients - 1, 1).bit_length()
    product = np.ones(clients - 1)
    for round in range(rounds):
        product *= shrinks(2 ** (round % period))
    return float(np.sqrt(product.mean()))


def exact_rounds(graph: str, clients: int, target: float, self_weight: float = 0.5) -> int | None:
    """How many rounds until ``exact_error`` is at most ``target``; None if never, as when all is
    passed on whole."""
    number("target", target, above=0, below=1)
    if self_weight == 0:
        return None
    high = 1
    while exact_error(graph, clients, high, self_weight) > target:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if exact_error(graph, clients, middle, self_weight) <= target
            else (middle, high)
        )
    return high


def weight_left(rounds: int, loss: float, self_weight: float) -> float:
    """The share of all weight that lost messages leave, in expectation: (1 - loss (1 -
    self_weight))^rounds."""
    return math.pow(1 - loss * (1 - self_weight), rounds)


def consensus_table(
    clients: Sequence[int], target: float, size: float, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Rounds until the error is at most ``target``, and megabytes that a client of messages of
    ``size`` bytes has sent.

    The exponential graph and the ring are computed, the random graph is simulated (the median of
    five), the complete graph needs one round. Passed on whole (self weight 0), proxies are never
    averaged: rounds is None."""
    rows = []
    for n in clients:
        random = [
            rounds_to(
                Setting("random", n),
                target,
                limit=10_000,
                generator=numpy_stream(seed, "mixing", n, trial),
            )
            for trial in range(5)
        ]
        found = {
            ("exponential", 0.5): exact_rounds("exponential", n, target),
            ("exponential", 0.0): exact_rounds("exponential", n, target, 0.0),
            ("random", 0.5): sorted(math.inf if one is None else one[0] for one in random)[2],
            ("ring", 0.5): exact_rounds("ring", n, target),
            ("complete", 1 / n): 1,
        }
        for (graph, self_weight), rounds in found.items():
            done = None if rounds is None or rounds == math.inf else int(rounds)
            messages = None if done is None else done * (n - 1 if graph == "complete" else 1)
            rows.append(
                {
                    "graph": graph,
                    "self_weight": self_weight,
                    "clients": n,
                    "rounds": done,
                    "messages": messages,
                    "megabytes": None if messages is None else messages * size / 1e6,
                }
            )
    return rows


def loss_table(
    clients: int, losses: Sequence[float], target: float, rounds: int, *, seed: int = 0
) -> list[dict[str, Any]]:
    """What lost messages do to the exponential graph within ``rounds`` rounds: as they are, kept by
    the sender, or with proxies that are passed on whole (self weight 0), where every loss leaves a
    client with nothing."""
    rows = []
    for loss in losses:
        for self_weight, keep in ((0.5, False), (0.5, True), (0.0, False)):
            setting = Setting("exponential", clients, self_weight, loss, keep)
            readings = list(
                islice(simulate(setting, numpy_stream(seed, "mixing", clients)), rounds)
            )
            agreed = [
                t
                for t, reading in enumerate(readings, 1)
                if reading.spread <= target and not reading.bare
            ]
            reached = [
                t
                for t, reading in enumerate(readings, 1)
                if reading.error <= target and not reading.bare
            ]
            last = readings[-1]
            rows.append(
                {
                    "loss": loss,
                    "self_weight": self_weight,
                    "kept_by_sender": keep,
                    "rounds_to_agreement": agreed[0] if agreed else None,
                    "rounds_to_mean": reached[0] if reached else None,
                    "error": last.error if math.isfinite(last.error) else None,
                    "weight": last.weight,
                    "bare": last.bare,
                }
            )
    return rows


def absence_table(
    clients: int, absences: Sequence[float], target: float, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Rounds until all clients, present or not, are within ``target`` of the mean."""
    rows = []
    for graph in ("exponential", "random", "complete"):
        for absence in absences:
            setting = replace(Setting(graph, clients), absence=absence)
            found = rounds_to(
                setting, target, limit=5000, generator=numpy_stream(seed, "mixing", clients)
            )
            rows.append(
                {"graph": graph, "absence": absence, "rounds": None if found is None else found[0]}
            )
    return rows


def error_curve(setting: Setting, rounds: int, *, seed: int = 0) -> list[float]:
    """The error after each of the first ``rounds`` rounds."""
    readings = simulate(setting, numpy_stream(seed, "mixing", setting.clients))
    return [reading.error for reading in islice(readings, rounds)]
