"""One round's mixing matrix between client ids: who is there, who sends to whom, and who takes over
from whom leaves.

Guarantee: ``routes`` hands over everything that a leaving client holds, and sends it nothing.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxyfl.errors import TopologyError
from proxyfl.gossip.topology import Topology, check_columns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Routes:
    """One round's shares between client ids. ``present`` is sorted, and so are senders and
    receivers."""

    round: int
    present: tuple[int, ...]
    columns: Mapping[int, Mapping[int, float]]
    incoming: Mapping[int, tuple[int, ...]]

    def shares(self, client: int) -> dict[int, float]:
        """Receiver -> share of the client's mass; what it keeps stands under its own id."""
        return dict(self.columns[self._present(client)])

    def senders(self, client: int) -> tuple[int, ...]:
        """The other clients that send to this one: the messages to wait for."""
        return self.incoming[self._present(client)]

    def matrix(self) -> "NDArray[np.float64]":
        """P as a dense matrix over ``present``; rows are receivers."""
        import numpy as np

        n = len(self.present)
        position = dict(zip(self.present, range(n), strict=True))
        P = np.zeros((n, n))
        for sender, column in self.columns.items():
            j = position[sender]
            for receiver, share in column.items():
                P[position[receiver], j] = share
        return P

    def _present(self, client: int) -> int:
        if client not in self.columns:
            raise TopologyError(
                f"Client {client} is not present in round {self.round}. Present: {self.present}."
            )
        return client


def by_kind(present: Sequence[int], kinds: Sequence[str]) -> list[tuple[int, ...]]:
    """The clients present, kind by kind; all of them together without ``kinds``, which has the kind
    of each client."""
    if not kinds:
        return [tuple(sorted(present))]
    groups: dict[str, list[int]] = {}
    for client in sorted(present):
        groups.setdefault(kinds[client], []).append(client)
    return [tuple(groups[kind]) for kind in sorted(groups)]


def routes(
    topology: Topology, round: int, present: Sequence[int], *, leaving: Set[int] = frozenset()
) -> Routes:
    """This round's P over the client ids ``present``, whose order does not matter.

    A client in ``leaving`` is present for this one hand-over: it keeps nothing (its column without
    itself and without others that leave, scaled to 1; if nothing is left of it, all goes to the
    next client that stays), and what others would have sent it they keep. From the next round on it
    is absent."""
    clients = tuple(sorted(present))
    if not clients or len(set(clients)) != len(clients):
        raise TopologyError(
            f"Expected one or more distinct clients in round {round}, got present={list(present)}."
        )
    if unknown := set(leaving) - set(clients):
        raise TopologyError(
            f"Clients {sorted(unknown)} cannot leave round {round}: not present. Present: "
            f"{clients}."
        )
    if len(leaving) == len(clients):
        raise TopologyError(
            f"All clients {clients} leave in round {round}; at least one must stay to take the "
            f"mass."
        )
    positions = topology(round, len(clients))
    check_columns(positions, len(clients))
    columns: dict[int, dict[int, float]] = {}
    for j, column in zip(clients, positions, strict=True):
        shares = {clients[k]: share for k, share in column.items() if share > 0}
        if leaving:
            shares = _hand_over(j, shares, clients, leaving)
        columns[j] = shares
    incoming: dict[int, list[int]] = {client: [] for client in clients}
    for sender, shares in columns.items():
        for receiver in shares:
            incoming[receiver].append(sender)
    bare = [k for k in clients if not incoming[k] and k not in leaving]
    if bare:
        raise TopologyError(
            f"In round {round} nobody sends to clients {bare} and they keep nothing, which leaves "
            f"them without a "
            "model. Give them a self share above 0, or somebody who sends to them."
        )
    from_others = {}
    for receiver, senders in incoming.items():
        from_others[receiver] = tuple(j for j in senders if j != receiver)
    return Routes(round, clients, columns, from_others)


def _hand_over(
    j: int, shares: dict[int, float], clients: Sequence[int], leaving: Set[int]
) -> dict[int, float]:
    staying = {}
    back = []
    for k, share in shares.items():
        if k in leaving:
            back.append(share)
        else:
            staying[k] = share
    if j not in leaving:
        returned = math.fsum(back)
        if returned:
            staying[j] = staying.get(j, 0.0) + returned
        return staying
    if not staying:
        at = clients.index(j)
        following = (*clients[at:], *clients[:at])
        heir = next(k for k in following if k not in leaving)
        return {heir: 1.0}
    whole = math.fsum(staying.values())
    return {k: share / whole for k, share in staying.items()}
