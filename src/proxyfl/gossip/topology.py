"""The mixing matrix P(t): which share of its mass a client sends to whom, one column per sender.

A topology is a function (round, number of present clients) -> columns; column j maps receiver ->
P_kj, the share of client j's mass that goes to client k, with what j keeps under j itself. Clients
are positions 0 to n-1 here; ``routes`` (gossip/routes.py) puts client ids in their place. PushSum
asks that P(t) be column-stochastic and no more (paper, "Communication Efficiency & Robustness").

Guarantees:
    * every schedule is a function of its arguments alone, so sites that hold the same settings
      agree without talking;
    * no columns pass ``check_columns`` unless each of them hands on exactly its whole (to 1e-9).
"""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl import _validate, seeds
from proxyfl._entrypoint import resolve
from proxyfl.errors import TopologyError
from proxyfl.settings import Graph

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Columns = tuple[dict[int, float], ...]
Topology = Callable[[int, int], Columns]
"""(round, number of clients present) -> for each sender a dict: receiver -> share of its mass."""


def exponential(self_weight: float = 0.0) -> Topology:
    """Send to the client 1, 2, 4, ... 2^floor(log2(n-1)) steps ahead in turn, then begin again at
    1."""
    _kept(self_weight)

    def schedule(round: int, n: int) -> Columns:
        period = max(n - 1, 1).bit_length()
        return _shift(2 ** (round % period), n, self_weight)

    return schedule


def ring(self_weight: float = 0.0) -> Topology:
    """Send to the next client, in every round."""
    _kept(self_weight)
    return lambda _round, n: _shift(1, n, self_weight)


def cycle() -> Topology:
    """Hand everything to the next client, in every round (cyclical weight transfer)."""
    return ring(0.0)


def complete(self_weight: float | None = None) -> Topology:
    """Send equal shares to all others; without a self weight the own share is 1/n too, which is the
    mean."""
    if self_weight is not None:
        _kept(self_weight)

    def schedule(_round: int, n: int) -> Columns:
        if self_weight is None:
            # One column stands for all: n references instead of n * n entries. Columns are never
            # changed in place.
            return (dict.fromkeys(range(n), 1.0 / n),) * n
        return tuple(_column(j, range(n), self_weight) for j in range(n))

    return schedule


def random_out(degree: int = 1, seed: int = 0, self_weight: float | None = None) -> Topology:
    """Send to one or more (the degree) others at random, drawn again for each client and round.

    Fewer than ``degree`` others: to all of them.

    The draw depends on (seed, round, position) through SHA-256 and not on a library's generator,
    whose stream may differ between versions, so all sites draw the same. The self weight, 1/(degree
    + 1) unless given, must be above 0: a client to whom nobody happened to send would otherwise be
    left with nothing."""
    _validate.whole("degree", degree, error=TopologyError)
    if self_weight is not None:
        _validate.number("self_weight", self_weight, above=0, below=1, error=TopologyError)

    def schedule(round: int, n: int) -> Columns:
        count = min(degree, n - 1)
        kept = 1.0 / (count + 1) if self_weight is None else self_weight
        columns = []
        for j in range(n):
            ahead = _subset(count, n - 1, seed, round, j)
            receivers = sorted((j + 1 + hop) % n for hop in ahead)
            columns.append(_column(j, receivers, kept))
        return tuple(columns)

    return schedule


def from_matrices(matrices: "ArrayLike") -> Topology:
    """Repeat the given K x K matrix, or list of matrices, in order; P[k, j] is the share that j
    sends to k."""
    import numpy as np

    try:
        stack = np.asarray(matrices, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TopologyError(
            f"Expected a K x K matrix of numbers, or a list of them: {error}"
        ) from error
    stack = stack[None] if stack.ndim == 2 else stack
    if stack.ndim != 3 or stack.shape[1] != stack.shape[2] or 0 in stack.shape:
        raise TopologyError(
            f"Expected a K x K matrix or a list of them, all of one size; got shape {stack.shape}."
        )
    size = stack.shape[1]
    rounds = []
    for index, P in enumerate(stack):
        columns = []
        for column in P.T:
            receivers = np.flatnonzero(column)
            shares = column[receivers].tolist()
            columns.append(dict(zip(receivers.tolist(), shares, strict=True)))
        try:
            check_columns(columns, size)
        except TopologyError as error:
            raise TopologyError(f"Matrix {index} of {len(stack)}: {error}") from error
        rounds.append(tuple(columns))

    def schedule(round: int, n: int) -> Columns:
        if n != size:
            raise TopologyError(
                f"The given matrices are for {size} clients, but {n} are present in round "
                f"{round}. Give matrices for "
                f"{n}, or a topology that fits any number of clients ({', '.join(TOPOLOGIES)}, or "
                f"your own function)."
            )
        return rounds[round % len(rounds)]

    return schedule


TOPOLOGIES: dict[str, Callable[..., Topology]] = {
    "exponential": exponential,
    "ring": ring,
    "cycle": cycle,
    "complete": complete,
    "random": random_out,
}


def make(
    name: str, *, self_weight: float | None = None, degree: int | None = None, seed: int = 0
) -> Topology:
    """The topology called ``name``: one of TOPOLOGIES, a .json or .npy file, or the user's
    "package.module:function".

    None stands for the topology's own default. A setting that the topology does not take is
    refused, not ignored."""
    given: dict[str, float] = {}
    if self_weight is not None:
        given["self_weight"] = self_weight
    if degree is not None:
        given["degree"] = degree
    is_file = name.endswith((".json", ".npy"))
    if name not in TOPOLOGIES and not is_file and ":" not in name:
        meant = _validate.suggestion(name, TOPOLOGIES).removesuffix(".")
        raise TopologyError(
            f"Unknown topology {name!r}.{meant}; or a .json or .npy file with one or more "
            'K x K matrices, or your own function as "package.module:function".'
        )
    taken = takes(name)
    if refused := [key for key in given if key not in taken]:
        fits = [other for other in TOPOLOGIES if set(given) <= set(takes(other))]
        raise TopologyError(
            f"Topology {name!r} takes no {' and no '.join(refused)}. Leave it out, or use one "
            f"that does: "
            f"{', '.join(fits)}."
        )
    if name in TOPOLOGIES:
        seeded = {"seed": seed} if "seed" in taken else {}
        return TOPOLOGIES[name](**given, **seeded)
    return _from_file(Path(name)) if is_file else _from_function(name)


def from_graph(graph: Graph, *, seed: int) -> Topology:
    """The topology of ``graph``. The default self weight holds where the topology takes one."""
    weight = graph.self_weight
    if weight == Graph.self_weight and "self_weight" not in takes(graph.topology):
        weight = None
    return make(graph.topology, self_weight=weight, degree=graph.degree, seed=seed)


def takes(name: str) -> tuple[str, ...]:
    """The settings that the topology called ``name`` takes; a file or a function takes none."""
    factory = TOPOLOGIES.get(name)
    if factory is None:
        return ()
    return tuple(inspect.signature(factory).parameters)


def check_columns(columns: Sequence[Mapping[int, float]], n: int) -> None:
    """Raise TopologyError, which names the column, unless ``columns`` is a column-stochastic n x n
    matrix."""
    if len(columns) != n:
        raise TopologyError(
            f"Expected {n} columns, one for each present client, got {len(columns)}."
        )
    previous: Mapping[int, float] | None = None
    for j, column in enumerate(columns):
        if column is previous:
            continue
        previous = column
        for k, share in column.items():
            # Plain numbers first: asking an abstract class takes ten times as long.
            if not (isinstance(k, (int, Integral)) and 0 <= k < n):
                raise TopologyError(
                    f"Column {j} sends to {k!r}; expected a position from 0 to {n - 1}."
                )
            if not (isinstance(share, (float, Real)) and 0 <= share < math.inf):
                raise TopologyError(
                    f"Column {j} has the share {share!r} for {k}; expected a number from 0 to 1."
                )
        total = math.fsum(column.values())
        if abs(total - 1.0) > 1e-9:
            raise TopologyError(
                f"Column {j} of the mixing matrix sums to {total:.10g}; expected 1: what a client "
                f"sends and keeps "
                "must add up to its whole. Rows are receivers and columns are senders; divide the "
                "column by its sum."
            )


def _kept(self_weight: float) -> None:
    _validate.number("self_weight", self_weight, at_least=0, below=1, error=TopologyError)


def _column(j: int, others: Sequence[int], kept: float) -> dict[int, float]:
    """The part that ``j`` keeps and sends to the ``others``, itself left out; all of it if
    there are none."""
    receivers = [k for k in others if k != j]
    if not receivers:
        return {j: 1.0}
    own = {j: kept} if kept > 0 else {}
    share = (1.0 - kept) / len(receivers)
    return own | dict.fromkeys(receivers, share)


def _shift(hop: int, n: int, kept: float) -> Columns:
    columns = []
    for j in range(n):
        ahead = (j + hop) % n
        columns.append(_column(j, [ahead], kept))
    return tuple(columns)


def _subset(count: int, below: int, seed: int, round: int, j: int) -> set[int]:
    # Floyd's way to a uniform subset of range(below): `count` draws and no rejection.
    chosen: set[int] = set()
    for top in range(below - count, below):
        number = seeds.derive(seed, "topology", round, j, top)
        pick = number % (top + 1)
        chosen.add(top if pick in chosen else pick)
    return chosen


def _from_file(path: Path) -> Topology:
    import numpy as np

    try:
        if path.suffix == ".npy":
            matrices = np.load(path, allow_pickle=False)
        else:
            matrices = json.loads(path.read_text())
    except OSError as error:
        raise TopologyError(
            f"Cannot read the topology file {path}: {error.strerror or error}. Check the name."
        ) from error
    except (ValueError, EOFError, RecursionError) as error:
        raise TopologyError(
            f"The topology file {path} is not readable as {path.suffix[1:]}: {error}"
        ) from error
    try:
        return from_matrices(matrices)
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from error


def _from_function(name: str) -> Topology:
    function = resolve(name, error=TopologyError)

    def schedule(round: int, n: int) -> Columns:
        try:
            returned = function(round, n)
        except Exception as error:  # it is the user's, and may raise anything
            raise TopologyError(
                f"Topology {name!r} raised {type(error).__name__} for round {round} and {n} "
                f"clients: {error}. Expected a function (round, n) -> {n} dicts; try it by itself "
                "with these two numbers."
            ) from error
        try:
            columns = tuple(dict(column) for column in returned)
        except (TypeError, ValueError) as error:
            raise TopologyError(
                f"Topology {name!r} returned {returned!r:.80} for round {round} and {n} clients; "
                f"expected {n} dicts, "
                "the j-th mapping receiver -> share of client j's mass."
            ) from error
        check_columns(columns, n)
        return columns

    return schedule
