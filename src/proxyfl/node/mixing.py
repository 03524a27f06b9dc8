"""Between the exchange, which moves bytes and exact weights, and the round loop, which has tensors.

Guarantees, for what a peer sends:
    * a frame is refused unless it is the member's whose share announces it, of that round, of the
      manifest's proxy, with finite values of a sane size and the weight that the share states;
    * a weight above the number of members is refused: no honest site can hold as much.

What a graph sends on an edge, and how much of it at most, is in ``Edge``; ``admission`` holds peers
to it, and a site holds itself to it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from proxyfl.errors import TransportError
from proxyfl.gossip.pushsum import Mass
from proxyfl.gossip.routes import Routes, routes
from proxyfl.node.exchange.books import Part
from proxyfl.node.exchange.messages import Share
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.roster import Roster
from proxyfl.transport import wire

LARGEST_VALUE = 1e4
"""No parameter of a proxy that learns comes near it."""


MOST_MEANS = 2.0
"""No share carries more than a member with so many times the mean weight sends on that edge. A site
with more weight keeps the rest and sends it later, so honest weight is only delayed. All members
agree on the number: it belongs to the protocol."""


@dataclass(frozen=True)
class Edge:
    """An edge of one round's graph, as somebody sees it who knows which members have left.

    ``share`` is the part of the sender's mass that goes there, ``mean`` the mean weight of the
    members present, if those who left have handed theirs on."""

    share: float
    mean: float

    @property
    def heaviest(self) -> Fraction:
        """The largest weight of a share on this edge."""
        return Fraction(MOST_MEANS * self.share * self.mean)

    @property
    def heaviest_handover(self) -> Fraction:
        """The largest weight that a leaving member hands to one other in one share."""
        return Fraction(MOST_MEANS * self.mean)


@dataclass(frozen=True)
class Entry:
    """A mass that is about to be added: whose it is, that member's position, and the round."""

    sender: str
    place: int
    round: int
    mass: Mass


@dataclass(frozen=True)
class Proxy:
    """The proxy that every frame must fit: its fingerprint and number of parameters."""

    model: str
    size: int


class Mixer:
    """Turns masses into frames and back, for one site."""

    def __init__(self, roster: Roster, me: str, proxy: Proxy) -> None:
        self.roster = roster
        self.me = me
        self.proxy = proxy

    def check(self, share: Share, frame: bytes | memoryview) -> None:
        """Raise TransportError unless ``frame`` may be added."""
        manifest = self._manifest(share.version)
        if share.sender not in manifest.names():
            raise TransportError(
                f"{share.sender!r} is no member in version {share.version} of the manifest."
            )
        weight = share.exact_weight
        if not 0 < weight <= len(manifest.members):
            raise TransportError(
                f"{share.sender!r}, round {share.round}: a weight of {float(weight):g}; expected "
                f"more than 0 and at most the {len(manifest.members)} members' total."
            )
        found = self._examined(frame, manifest, share.sender, share.round)
        if found.weight != float(weight):
            raise TransportError(
                f"{share.sender!r}, round {share.round}: the frame says weight {found.weight:g}, "
                f"its share {float(weight):g}."
            )
        if found.largest > LARGEST_VALUE:
            raise TransportError(
                f"{share.sender!r}, round {share.round}: a parameter of {found.largest:g}; at most "
                f"{LARGEST_VALUE:g} is sane. Did that site's training diverge?"
            )

    def frame(self, theta: Tensor, weight: Fraction, round: int) -> bytes:
        """The frame of a part of this site's mass."""
        sender = self.roster.current.position(self.me)
        return self._encoded(round, sender, weight, theta)

    def mass(self, part: Part) -> Mass:
        """The mass in a stored frame."""
        manifest = self._manifest(part.version)
        found = self._examined(part.frame, manifest, part.sender, part.round)
        return Mass(found.to_tensor(), float(part.weight))

    def to_keep(self, theta: Tensor, weight: Fraction) -> bytes:
        """This site's own mass as the store holds it, whatever the round and the version."""
        return self._encoded(0, 0, weight, theta)

    def kept(self, content: bytes | memoryview) -> Tensor:
        """The parameters that ``to_keep`` put away."""
        message = wire.decode(
            content,
            expect_sender=0,
            expect_round=0,
            expect_model=self.proxy.model,
            expect_size=self.proxy.size,
        )
        return message.values

    def routes(
        self,
        round: int,
        *,
        left: Collection[str] = (),
        leaving: bool = False,
        version: int | None = None,
        as_seen_by: str = "",
    ) -> tuple[Routes, Sequence[str]]:
        """The round's graph over those who take part, and the names of its positions.

        Without ``version``, that of the manifest in force; without ``as_seen_by``, this site's."""
        viewer = as_seen_by or self.me
        manifest = self.roster.current if version is None else self._manifest(version)
        names = manifest.names()
        absent = set(left) - {viewer}
        present = []
        for position, card in enumerate(manifest.members):
            if card.joins <= round and card.name not in absent:
                present.append(position)
        going: set[int] = set()
        if leaving and len(present) > 1:
            going.add(manifest.position(viewer))
        plan = routes(manifest.mixing(), round, present, leaving=frozenset(going))
        return plan, names

    def members(self, version: int, round: int) -> set[str]:
        """The members that have joined by ``round`` in a version of the manifest."""
        manifest = self._manifest(version)
        return {card.name for card in manifest.members if card.joins <= round}

    def edge(
        self, sender: str, receiver: str, round: int, *, version: int, left: Collection[str]
    ) -> Edge | None:
        """The edge from ``sender`` to ``receiver`` if ``left`` have left; None if there is none."""
        joined = self.members(version, round)
        present = joined - (set(left) - {sender})
        if not {sender, receiver} <= present:
            return None
        plan, names = self.routes(round, left=left, version=version, as_seen_by=sender)
        shares = plan.shares(names.index(sender))
        share = shares.get(names.index(receiver), 0.0)
        return Edge(share, len(joined) / len(present)) if share else None

    def most_weights(
        self, round: int, shares: Mapping[str, float], *, left: Collection[str], leaving: bool
    ) -> dict[str, Fraction]:
        """Receiver -> the largest weight that this site sends it."""
        joined = self.members(self.roster.current.version, round)
        present = joined - (set(left) - {self.me})
        most = {}
        for name, share in shares.items():
            edge = Edge(share, len(joined) / max(1, len(present)))
            most[name] = edge.heaviest_handover if leaving else edge.heaviest
        return most

    def shares(
        self, round: int, *, blocked: Collection[str], left: Collection[str], leaving: bool
    ) -> dict[str, float]:
        """Receiver -> share of this site's mass. What a blocked peer should get, the site keeps.

        A site that leaves gives everything to those who can take it."""
        plan, names = self.routes(round, left=left, leaving=leaving)
        own = self.roster.current.position(self.me)
        shares: dict[str, float] = {}
        for position, share in plan.shares(own).items():
            name = names[position]
            if name in blocked:
                name = self.me
            shares[name] = shares.get(name, 0.0) + share
        if leaving and self.me in shares:
            shares = self._handed_over(shares, round, blocked, left)
        return shares

    def _handed_over(
        self, shares: dict[str, float], round: int, blocked: Collection[str], left: Collection[str]
    ) -> dict[str, float]:
        rest = shares.pop(self.me)
        if shares:
            first = next(iter(shares))
            shares[first] += rest
            return shares
        unable = {self.me, *blocked, *left}
        for card in self.roster.current.members:
            if card.name not in unable and card.joins <= round:
                return {card.name: 1.0}
        return {self.me: 1.0}

    def senders(self, round: int, *, left: Collection[str]) -> set[str]:
        """The members whose shares this site may expect in ``round``."""
        plan, names = self.routes(round, left=left)
        own = self.roster.current.position(self.me)
        return {names[position] for position in plan.senders(own)}

    def heaviest(self, round: int, *, left: Collection[str]) -> Fraction:
        """The largest weight of a share that an edge of the round's graph carries to this site.

        All edges of a round carry the same part of their senders' mass."""
        version = self.roster.current.version
        for sender in self.senders(round, left=left):
            edge = self.edge(sender, self.me, round, version=version, left=left)
            if edge is not None:
                return edge.heaviest
        return Fraction(0)

    def entries(self, kept: Mass, parts: Sequence[Part]) -> list[Entry]:
        """What was kept and what has arrived, in the order of the members, as the simulation adds
        it."""
        names = self.roster.current.names()
        entries = [Entry(self.me, names.index(self.me), -1, kept)]
        for part in parts:
            place = len(names)
            if part.sender in names:
                place = names.index(part.sender)
            entries.append(Entry(part.sender, place, part.round, self.mass(part)))
        return sorted(entries, key=lambda entry: (entry.place, entry.round))

    def _encoded(self, round: int, sender: int, weight: Fraction, theta: Tensor) -> bytes:
        model = self.proxy.model
        message = wire.Message(round, sender, float(weight), theta.cpu(), model)
        return wire.encode(message)

    def _manifest(self, version: int) -> Manifest:
        if version not in self.roster.versions:
            raise TransportError(f"Version {version} of the manifest is not known here.")
        return self.roster.versions[version]

    def _examined(
        self, frame: bytes | memoryview, manifest: Manifest, sender: str, round: int
    ) -> wire.Examined:
        return wire.examine(
            frame,
            expect_sender=manifest.position(sender),
            expect_round=round,
            expect_model=self.proxy.model,
            expect_size=self.proxy.size,
        )
