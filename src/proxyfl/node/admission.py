"""The shares that a site takes from its peers: those that the round's graph sends.

A graph depends on who has left, and two sites may hear of that at different times. So a share is
taken if the graph sends it in the eyes of somebody who knows of the departures that this site knows
of, of some of them only, or of those of members that are silent here as well.

Guarantees:
    * a share that no such graph sends is refused, and returns to its sender with its exact weight.
      As long as its round is not over here it is put off instead: the news of a departure may be
      under way;
    * a share with more weight than ``mixing.Edge`` allows on its edge is refused in the same way;
    * a member that leaves may hand its mass to anybody, in up to ``MOST_HANDOVERS`` shares to one
      site, once it has said that it leaves.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations, islice

from proxyfl.errors import TransportError
from proxyfl.node.exchange.books import HANDED_OVER, Books
from proxyfl.node.exchange.messages import Share
from proxyfl.node.exchange.protocol import NotYet
from proxyfl.node.mixing import Edge, Mixer

MOST_HANDOVERS = 4

MOST_VIEWS = 256
"""Graphs that are looked at for one share, the most likely ones first."""


class Admission:
    """One site's decision on shares. ``is_silent`` says which members are not heard from now."""

    def __init__(
        self, mixer: Mixer, books: Books, is_silent: Callable[[str], bool] = lambda name: False
    ) -> None:
        self.mixer = mixer
        self.books = books
        self.is_silent = is_silent

    def check(self, share: Share, frame: bytes | memoryview) -> str:
        """Raise TransportError unless the share may be stored, NotYet if it may be later.

        Returns the note to put on record with the verdict."""
        self.mixer.check(share, frame)
        edges = self._edges(share)
        heaviest = max((edge.heaviest for edge in edges), default=Fraction(0))
        if share.exact_weight <= heaviest:
            return ""
        fault = f"the graph of round {share.round} sends nothing from {share.sender!r} to here"
        if edges:
            fault = (
                f"a weight of {float(share.exact_weight):g} from {share.sender!r} in round "
                f"{share.round}; that edge carries at most {float(heaviest):g}"
            )
        if self.books.peers.known(share.sender).state != "active":
            return self._check_handover(share)
        here = self.books.position().round
        if here <= share.round + 1 and here < self.books.rounds:
            raise NotYet(f"{fault}, as far as is known here")
        raise TransportError(fault)

    def _check_handover(self, share: Share) -> str:
        taken = self.books.handovers(share.sender)
        heaviest = self._handover_edge(share).heaviest_handover
        if taken >= MOST_HANDOVERS:
            raise TransportError(f"{share.sender!r} leaves, and has handed over {taken} times here")
        if share.exact_weight > heaviest:
            raise TransportError(
                f"{share.sender!r} leaves, and hands over a weight of "
                f"{float(share.exact_weight):g}; at most {float(heaviest):g} go to one site at once"
            )
        return HANDED_OVER

    def _edges(self, share: Share) -> list[Edge]:
        """The edges of all graphs that may be the sender's; the first that carries it is enough."""
        edges = []
        for left in islice(self._views(share), MOST_VIEWS):
            edge = self.mixer.edge(
                share.sender, self.mixer.me, share.round, version=share.version, left=left
            )
            if edge is not None:
                edges.append(edge)
                if share.exact_weight <= edge.heaviest:
                    break
        return edges

    def _handover_edge(self, share: Share) -> Edge:
        """A graph in which the fewest members share the weight."""
        members = self.mixer.members(share.version, share.round)
        absent = (self._gone(share) | self._silent(members)) - {share.sender, self.mixer.me}
        return Edge(1.0, len(members) / max(1, len(members - absent)))

    def _views(self, share: Share) -> Iterator[set[str]]:
        """Who has left, by what the sender may know: first what this site knows, then what differs
        from that in one member, in two, and so on."""
        gone = self._gone(share)
        members = self.mixer.members(share.version, share.round)
        uncertain = sorted((gone | self._silent(members)) - {share.sender, self.mixer.me})
        for count in range(len(uncertain) + 1):
            for changed in combinations(uncertain, count):
                yield gone ^ set(changed)

    def _silent(self, members: set[str]) -> set[str]:
        return {name for name in members if self.is_silent(name)}

    def _gone(self, share: Share) -> set[str]:
        return self.books.peers.gone() - {share.sender, self.mixer.me}
