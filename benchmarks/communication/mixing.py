r"""How fast gossip averages, without training: one vector per client, thousands of clients, lost
messages, absences.

PushSum as in gossip/pushsum.py, m <- P m and w <- P w, for all clients at once. Two distances are
followed, both 1 at the start (root mean square over clients and coordinates):

    error    of the de-biased values m / w from the mean of the starting values, everyone's aim
    spread   of the same values from what they are converging to, sum(m) / sum(w)

A message that is lost takes mass and weight with it. The clients still agree in the end (spread
goes to 0), on a mean in which those whose mass was lost count less (error does not). If the sender
hears of the failure and keeps the share, nothing is lost but time."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.checks import choice, whole, within
from proxyfl.errors import TopologyError

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
        within("self_weight", self.self_weight, 0, 1, closed="low", error=TopologyError)
        within("loss", self.loss, 0, 1, closed="low high", error=TopologyError)
        within("absence", self.absence, 0, 1, closed="low", error=TopologyError)
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
    messages = 0.0
    for round in itertools.count():
        here = np.arange(n)
        if setting.absence:
            here = np.flatnonzero(generator.random(n) >= setting.absence)
        if len(here) > 1:
            mass[here], sent = _mixed(setting, mass[here], round, generator)
            messages += sent / n
        yield _reading(mass, scale, messages)


def _reading(mass: Values, scale: float, messages: float) -> Reading:
    n = len(mass)
    holding = mass[:, -1] > 0
    if not holding.any():
        return Reading(math.inf, math.inf, 0.0, n, messages)
    values = mass[holding, :-1] / mass[holding, -1:]
    common = mass[:, :-1].sum(axis=0) / mass[:, -1].sum()
    return Reading(
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
        ahead = generator.integers(1, n, size=n)
    elif setting.graph == "exponential":
        ahead = np.full(n, 2 ** (round % max(n - 1, 1).bit_length()))
    else:
        ahead = np.ones(n, dtype=np.int64)
    to = (np.arange(n) + ahead) % n
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
    if setting.keep:
        mixed += mass * (lost.sum(axis=0) / n)[:, None]
    return mixed


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
    readings = itertools.islice(simulate(setting, generator), limit)
    for round, reading in enumerate(readings, 1):
        distance = reading.spread if spread else reading.error
        if distance <= target and not reading.bare:
            return round, reading
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
        angle = 2 * np.pi * ((k * hop) % clients) / clients
        squared: Values = s**2 + (1 - s) ** 2 + 2 * s * (1 - s) * np.cos(angle)
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
    within("target", target, 0, 1)
    if self_weight == 0:
        return None
    high = 1
    while exact_error(graph, clients, high, self_weight) > target:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if exact_error(graph, clients, middle, self_weight) <= target:
            high = middle
        else:
            low = middle
    return high


def weight_left(rounds: int, loss: float, self_weight: float) -> float:
    """The share of all weight that lost messages leave, in expectation: (1 - loss (1 -
    self_weight))^rounds."""
    return math.pow(1 - loss * (1 - self_weight), rounds)
