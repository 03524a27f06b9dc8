"""How news spreads over a topology: who has heard from whom after how many rounds, and how close to
consensus."""

import math
from collections.abc import Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from proxyfl.gossip.routes import routes
from proxyfl.gossip.topology import Columns, Topology, check_columns

Counts = NDArray[np.int64]
Heard = NDArray[np.uint8]
"""Row k, bit j: whether something of client j is in what k holds."""


def reach(topology: Topology, n: int, rounds: int) -> Counts:
    """Entry [t, j]: how many clients, j among them if it does, hold some of j's starting mass after
    t + 1 rounds."""
    counts = np.empty((rounds, n), dtype=np.int64)
    for t, heard in enumerate(_spread(topology, n, rounds)):
        counts[t] = _unpack(heard, n).sum(axis=0, dtype=np.int64)
    return counts


def rounds_to_all_heard(topology: Topology, n: int, limit: int) -> int | None:
    """After how many rounds every client holds some of every client's mass; None if not within
    ``limit`` rounds."""
    if n == 1:
        return 0
    everyone = np.packbits(np.ones(n, dtype=np.uint8))
    for t, heard in enumerate(_spread(topology, n, limit), 1):
        if (heard == everyone).all():
            return t
    return None


def visits(topology: Topology, n: int, rounds: int) -> list[int]:
    """Per round: how many clients have trained the proxy that a client now holds, or a part of it;
    the fewest of all.

    A permutation never mixes, so nobody ever holds a second client's mass; but each client trains
    what it received. This counts them, the present holder included: 1 + t after t rounds, until a
    proxy meets a client again."""
    fewest: list[int] = []
    for heard in _spread(topology, n, rounds, trains=True):
        counts = _unpack(heard, n).sum(axis=1, dtype=np.int64)
        fewest.append(int(counts.min()))
        if fewest[-1] == n:
            break
    return fewest + [n] * (rounds - len(fewest))


def consensus_error(topology: Topology, n: int, rounds: int) -> list[float]:
    """Per round: how far the de-biased values still are from the mean, 1 at the start and 0 at
    consensus.

    The root mean square over clients and over random starting values, as a fraction of the start:
    with Phi = P(t) ... P(0) and w = Phi 1 it is ||diag(w)^-1 Phi - 11'/n||_F / sqrt(n - 1). Dense:
    n^2 numbers."""
    Phi = np.eye(n)
    errors = []
    for round in range(rounds):
        Phi = routes(topology, round, range(n)).matrix() @ Phi
        unbiased = Phi / Phi.sum(axis=1, keepdims=True)
        distance = float(np.linalg.norm(unbiased - 1.0 / n))
        at_the_start = math.sqrt(n - 1)
        errors.append(distance / at_the_start if n > 1 else 0.0)
    return errors


def _spread(topology: Topology, n: int, rounds: int, *, trains: bool = False) -> Iterator[Heard]:
    """The spread after each round: one boolean product with P(t) per round."""
    own = np.packbits(np.eye(n, dtype=np.uint8), axis=1)
    heard = own
    for round in range(rounds):
        columns = topology(round, n)
        check_columns(columns, n)
        following = own.copy() if trains else np.zeros_like(own)
        for receivers, senders in _layers(columns):
            following[receivers] |= heard[senders]
        heard = following
        yield heard


def _layers(columns: Columns) -> Iterator[tuple[Counts, Counts]]:
    """The edges as (receivers, senders), cut so that no receiver stands twice in one part: indexed
    OR needs that."""
    counts = list(map(len, columns))
    edges = sum(counts)
    receivers = np.fromiter(chain.from_iterable(columns), np.int64, edges)
    senders = np.repeat(np.arange(len(columns)), counts)
    values = chain.from_iterable(column.values() for column in columns)
    shares = np.fromiter(values, np.float64, edges)
    order = np.argsort(receivers, kind="stable")
    order = order[shares[order] > 0]
    receivers = receivers[order]
    senders = senders[order]
    first = np.searchsorted(receivers, receivers)
    layer = np.arange(len(receivers)) - first  # i for a receiver's i-th sender
    order = np.argsort(layer, kind="stable")
    cuts = np.cumsum(np.bincount(layer))[:-1]
    yield from zip(np.split(receivers[order], cuts), np.split(senders[order], cuts), strict=True)


def _unpack(heard: Heard, n: int) -> Heard:
    return np.unpackbits(heard, axis=1, count=n)
