r"""How long an exchange takes: a model of the wire, fitted to what was measured on a machine.

A message of S bytes costs a processor a + b S seconds (encode, copy, decode, add) and each of the
two links it crosses S / B seconds; L seconds pass on the way. A link carries one message at a time
in each direction.

    gossip   everyone sends one message and receives one:
                 T = max(L + S / B + c, c s),  c = a_g + b_g S
    hub      n - 1 messages in, then n - 1 out, one at a time:
                 T = (2 - 1/n) L + 3/2 (n - 1) max(S / B, a_h + b_h S)

T is the mean over the clients: the hub's n - 1 answers reach the first of them early and the last
one late. s = max(1, n / C) for n clients on C shared cores, as on a laptop, and 1 where everyone
has a machine; cores work while links are waited for. So gossip is flat in n, the hub linear. Bytes
need no model: gossip S each, the hub (n - 1) S each way."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.checks import whole
from benchmarks.communication.link import Link
from benchmarks.communication.measure import Point
from proxyfl.errors import ConfigError
from proxyfl.federation.methods import METHODS

Pattern = Literal["gossip", "hub"]


@dataclass(frozen=True)
class Processor:
    """Seconds per message, ``a``, and per byte, ``b``."""

    a: float
    b: float

    def seconds(self, size: float) -> float:
        """What a message of ``size`` bytes costs."""
        return self.a + self.b * size


@dataclass(frozen=True)
class Wire:
    """The model's constants. ``cores``: how many all clients share; None where each has its own
    machine."""

    gossip: Processor
    hub: Processor
    cores: int | None = None
    link: Link | None = None
    hub_link: Link | None = field(default=None)
    """The hub's own link, where it is better than the clients'; its answers still arrive over
    theirs."""


def pattern(method: str) -> Pattern:
    """How the models of ``method`` travel."""
    return "hub" if METHODS[method].exchange == "mean" else "gossip"


def seconds(wire: Wire, kind: Pattern, clients: int, size: float) -> float:
    """The mean over clients of the time that one exchange of messages of ``size`` bytes takes."""
    whole("clients", clients)
    latency, on_link = (wire.link.latency, size / wire.link.bandwidth) if wire.link else (0.0, 0.0)
    if clients == 1:
        return 0.0
    shared = 1.0 if wire.cores is None else max(1.0, clients / wire.cores)
    if kind == "gossip":
        own = wire.gossip.seconds(size)
        return max(latency + on_link + own, own * shared)
    at_hub = size / wire.hub_link.bandwidth if wire.hub_link else on_link
    served = max(at_hub, wire.hub.seconds(size))
    # A client's own link is the bottleneck only while a better hub has few to serve.
    return (2 - 1 / clients) * latency + max(
        1.5 * (clients - 1) * served, (2 - 1 / clients) * on_link
    )


def bytes_busiest(kind: Pattern, clients: int, size: float) -> float:
    """What the busiest client's link carries per round, in its busier direction."""
    return size * (clients - 1 if kind == "hub" else min(1, clients - 1))


def fit(points: Sequence[Point], *, cores: int) -> Wire:
    """The processor's constants from points measured without an emulated link, least squares of
    relative errors."""
    bare = [point for point in points if point.bandwidth is None]
    return Wire(_fitted(bare, "gossip", cores), _fitted(bare, "hub", cores), cores)


def _fitted(points: Sequence[Point], kind: Pattern, cores: int) -> Processor:
    chosen = [point for point in points if pattern(point.method) == kind]
    if len({point.parameters for point in chosen}) < 2:
        raise ConfigError(
            f"Expected measured points of two or more model sizes for {kind} methods, got "
            f"{len(chosen)} points: "
            "one size does not tell the cost of a message from that of a byte. Measure another "
            "model."
        )
    times = np.array([point.seconds for point in chosen])
    factors = np.array([_factor(kind, point.clients, cores) for point in chosen])
    sizes = np.array([size_of(point) for point in chosen])
    rows: NDArray[np.float64] = np.stack([factors / times, factors * sizes / times], axis=1)
    a, b = np.linalg.lstsq(rows, np.ones(len(chosen)), rcond=None)[0]
    if a < 0:  # no message is a gift: what is left then is the cost of a byte
        a, b = (0.0, float(np.linalg.lstsq(rows[:, 1:], np.ones(len(chosen)), rcond=None)[0][0]))
    return Processor(float(a), float(b))


def _factor(kind: Pattern, clients: int, cores: int) -> float:
    return max(1.0, clients / cores) if kind == "gossip" else 1.5 * (clients - 1)


def size_of(point: Point) -> float:
    """Bytes of one message, header included."""
    messages = 1.0 if pattern(point.method) == "gossip" else 2 * (point.clients - 1) / point.clients
    return point.bytes_sent / messages


def predicted(wire: Wire, point: Point) -> float:
    """What the model says for a measured point, with the link that was emulated for it."""
    link = None if point.bandwidth is None else Link(point.latency or 0.0, point.bandwidth)
    return seconds(replace(wire, link=link), pattern(point.method), point.clients, size_of(point))


def errors(wire: Wire, points: Sequence[Point]) -> list[float]:
    """By how much the model is off, relative to what was measured; negative where it is too
    quick."""
    return [predicted(wire, point) / point.seconds - 1 for point in points]
