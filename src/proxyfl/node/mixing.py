"""From frames to tensors: which shares a site takes, how they are added, and what no sender can do.

Bytes and exact weights are the exchange's, tensors the round loop's; this is between them.

*Which shares are taken* (``Mixer.admit``): those that the round's graph sends. A graph depends on
who has left, and two sites may hear of that at different times. So a share is taken if the graph
sends it in the eyes of somebody who knows of the departures that this site knows of, of some of
them only, or of those of members that are silent here as well. Guarantees, for what a peer sends:

    * a frame is refused unless it is the member's whose share announces it, of that round, of the
      manifest's proxy, with finite values of a sane size and the weight that the share states;
    * a weight above the number of members is refused: no honest site can hold as much;
    * a share that no such graph sends is refused, and returns to its sender with its exact weight.
      As long as its round is not over here it is deferred instead: the news of a departure may be
      under way;
    * a share with more weight than ``Edge`` allows is refused in the same way. A site holds itself
      to it, too;
    * a member that leaves may hand its mass to anybody, in up to ``MOST_HANDOVERS`` shares to one
      site, once it has said that it leaves.

*How they are added* (``Guard``): a site's defence against a member that sends poisoned proxies.
``clip`` pulls what each sender has sent towards the site's own proxy until it is within a limit:
the larger of

    radius x the way that the site's own training goes in a round, the median of the last rounds
    PEERS  x the distance at which the *other* senders were last, the lower median of them

Sites that take more steps are farther away, and the second term leaves them as they are. No sender
can stretch the limit for itself. Senders that lie together can stretch each other's without bound,
where more than half of the others that the site has heard are with them: two where it has heard
only those two. It needs no majority: with the exponential graph a site receives
one proxy a round, so there is nobody to take a median over.

``median`` clips in the same way, and then takes the middle value of each parameter over the site's
own proxy and those received. It needs a graph in which a site hears two others or more in a round
("complete", or "random" with a degree above 1); with fewer it is ``clip``.

Guarantees, for every rule but ``none``:
    * all that one sender has waiting is one voice, however many shares it comes in (``Guard.due``
      says how many shares that may be);
    * every way by which a peer's parameters reach the proxy goes through ``Guard.mix``, also at a
      site that has no weight of its own;
    * what is within its limit is added as it is, bit for bit as without a defence.

It bounds what one sender can do in one round; it does not detect who lies.
docs/research/exchange.md has what it buys and what it costs.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations, islice
from statistics import median, median_low

import torch
from torch import Tensor

from proxyfl.errors import TransportError
from proxyfl.gossip.pushsum import Mass, add
from proxyfl.gossip.routes import Routes, routes
from proxyfl.node.exchange.messages import Share
from proxyfl.node.exchange.protocol import NotYet
from proxyfl.node.exchange.store import HANDED_OVER, Books, Part
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.roster import Roster
from proxyfl.transport import wire

LARGEST_VALUE = 1e4
"""No parameter of a proxy that learns comes near it."""


MOST_MEANS = 2.0
"""No share carries more than a member with so many times the mean weight sends on that edge. A site
with more weight keeps the rest and sends it later, so honest weight is only delayed. All members
agree on the number: it belongs to the protocol."""


MOST_HANDOVERS = 4
"""Shares that one leaving member hands to one site, at most."""

MOST_VIEWS = 256
"""Graphs that are looked at for one share, the most likely ones first."""


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
    """Decides which shares one site takes, and turns masses into frames and back.

    ``is_silent`` says which members are not heard from now."""

    def __init__(self, roster: Roster, books: Books, proxy: Proxy) -> None:
        self.roster = roster
        self.books = books
        self.me = books.me
        self.proxy = proxy
        self.is_silent: Callable[[str], bool] = lambda name: False

    def admit(self, share: Share, frame: bytes | memoryview) -> str:
        """Raise TransportError unless the share may be stored, NotYet if it may be later.

        Returns the note to put on record with the verdict."""
        self.check_frame(share, frame)
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
            raise NotYet(f"{fault}, by what this site knows now")
        raise TransportError(fault)

    def _check_handover(self, share: Share) -> str:
        taken = self.books.handovers(share.sender)
        heaviest = self._handover_edge(share).heaviest_handover
        if taken >= MOST_HANDOVERS:
            raise TransportError(f"{share.sender!r} leaves, and has handed over {taken} times here")
        if share.exact_weight > heaviest:
            raise TransportError(
                f"{share.sender!r} leaves and hands over a weight of "
                f"{float(share.exact_weight):g}, more than the {float(heaviest):g} that may go to "
                "one site at once"
            )
        return HANDED_OVER

    def _edges(self, share: Share) -> list[Edge]:
        """The edges of all graphs that may be the sender's; the first that carries it is enough."""
        edges = []
        for left in islice(self._views(share), MOST_VIEWS):
            edge = self.edge(share.sender, self.me, share.round, version=share.version, left=left)
            if edge is not None:
                edges.append(edge)
                if share.exact_weight <= edge.heaviest:
                    break
        return edges

    def _handover_edge(self, share: Share) -> Edge:
        """A graph in which the fewest members share the weight."""
        members = self.members(share.version, share.round)
        absent = (self._gone(share) | self._silent(members)) - {share.sender, self.me}
        return Edge(1.0, len(members) / max(1, len(members - absent)))

    def _views(self, share: Share) -> Iterator[set[str]]:
        """Who has left, by what the sender may know: first what this site knows, then what differs
        from that in one member, in two, and so on."""
        gone = self._gone(share)
        members = self.members(share.version, share.round)
        uncertain = sorted((gone | self._silent(members)) - {share.sender, self.me})
        for count in range(len(uncertain) + 1):
            for changed in combinations(uncertain, count):
                yield gone ^ set(changed)

    def _silent(self, members: set[str]) -> set[str]:
        return {name for name in members if self.is_silent(name)}

    def _gone(self, share: Share) -> set[str]:
        return self.books.peers.gone() - {share.sender, self.me}

    def check_frame(self, share: Share, frame: bytes | memoryview) -> None:
        """Raise TransportError unless ``frame`` may be added."""
        manifest = self._manifest(share.version)
        if share.sender not in manifest.names():
            raise TransportError(
                f"{share.sender!r} is not a member in version {share.version} of the manifest."
            )
        weight = share.exact_weight
        if not 0 < weight <= len(manifest.members):
            raise TransportError(
                f"{share.sender!r}, round {share.round}: a weight of {float(weight):g}; expected "
                f"more than 0 and at most the {len(manifest.members)} members' total."
            )
        examined = self._examine(frame, manifest, share.sender, share.round)
        if examined.weight != float(weight):
            raise TransportError(
                f"{share.sender!r}, round {share.round}: the frame states the weight "
                f"{examined.weight:g}, but its header {float(weight):g}. It was rejected."
            )
        if examined.largest > LARGEST_VALUE:
            raise TransportError(
                f"{share.sender!r}, round {share.round}: a parameter of {examined.largest:g}; at "
                f"most {LARGEST_VALUE:g} is sane. Did that site's training diverge?"
            )

    def frame(self, theta: Tensor, weight: Fraction, round: int) -> bytes:
        """The frame of a part of this site's mass."""
        sender = self.roster.current.position(self.me)
        return self._encode(round, sender, weight, theta)

    def mass(self, part: Part) -> Mass:
        """The mass in a stored frame."""
        manifest = self._manifest(part.version)
        examined = self._examine(part.frame, manifest, part.sender, part.round)
        return Mass(examined.to_tensor(), float(part.weight))

    def encode_own(self, theta: Tensor, weight: Fraction) -> bytes:
        """This site's own mass as the store holds it, whatever the round and the version."""
        return self._encode(0, 0, weight, theta)

    def decode_own(self, content: bytes | memoryview) -> Tensor:
        """The parameters that ``encode_own`` put away."""
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
            shares = self._hand_over(shares, round, blocked, left)
        return shares

    def _hand_over(
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
        """The masses kept and those that have arrived, in the order of the members, as the
        simulation adds it."""
        names = self.roster.current.names()
        entries = [Entry(self.me, names.index(self.me), -1, kept)]
        for part in parts:
            place = len(names)
            if part.sender in names:
                place = names.index(part.sender)
            entries.append(Entry(part.sender, place, part.round, self.mass(part)))
        return sorted(entries, key=lambda entry: (entry.place, entry.round))

    def _encode(self, round: int, sender: int, weight: Fraction, theta: Tensor) -> bytes:
        model = self.proxy.model
        message = wire.Message(round, sender, float(weight), theta.cpu(), model)
        return wire.encode(message)

    def _manifest(self, version: int) -> Manifest:
        if version not in self.roster.versions:
            raise TransportError(f"This site does not know version {version} of the manifest.")
        return self.roster.versions[version]

    def _examine(
        self, frame: bytes | memoryview, manifest: Manifest, sender: str, round: int
    ) -> wire.Examined:
        return wire.examine(
            frame,
            expect_sender=manifest.position(sender),
            expect_round=round,
            expect_model=self.proxy.model,
            expect_size=self.proxy.size,
        )


RULES = ("none", "clip", "median")
RADIUS = 3.5
PEERS = 1.5
MEMORY = 32
"""Rounds whose ways are remembered."""


@dataclass
class Guard:
    """One site's defence; ``rule`` "none" adds up what arrives as it is."""

    rule: str = "clip"
    radius: float = RADIUS
    ways: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY))
    distances: dict[str, float] = field(default_factory=dict)
    """How far from the site's own proxy each sender was last."""
    clipped: list[str] = field(default_factory=list)
    """The senders whose voices were pulled in the last sum."""

    def note_move(self, way: float) -> None:
        """Take note of how far a round of the site's own training has moved its proxy."""
        self.ways.append(way)

    def limit(self, sender: str) -> float:
        """The largest distance of a sender's voice from the site's own proxy."""
        own = self.radius * median(self.ways) if self.ways else 0.0
        others = [distance for name, distance in self.distances.items() if name != sender]
        return max(own, PEERS * median_low(others)) if others else own

    def state(self) -> str:
        """Returns the state that the next round depends on, as text."""
        return json.dumps({"ways": list(self.ways), "distances": self.distances})

    def restore(self, state: str) -> None:
        """Continue from ``state``; from nothing if it is empty."""
        if state:
            content = json.loads(state)
            self.ways.extend(content["ways"])
            self.distances.update(content["distances"])

    def due(self, parts: Sequence[Part], me: str, heaviest: Fraction) -> list[Part]:
        """The parts to add in one round: of each sender the oldest, and further ones as long as all
        of them together are no heavier than one share may be. The others wait."""
        if self.rule == "none":
            return list(parts)
        chosen = []
        weights: dict[str, Fraction] = {}
        for part in sorted(parts, key=lambda part: part.round):
            if part.sender == me:
                chosen.append(part)
                continue
            before = weights.get(part.sender)
            weights[part.sender] = (before or Fraction(0)) + part.weight
            if before is None or weights[part.sender] <= heaviest:
                chosen.append(part)
        return chosen

    def mix(self, entries: Sequence[Entry], me: str) -> Mass | None:
        """The sum of ``entries``, in their order, by the rule; None if all of it weighs nothing.

        One or more of them are the site's own."""
        if self.rule != "none":
            anchor = _own_proxy(entries, me)
            voices = _voices(entries, me)
            for sender, voice in voices.items():
                self.distances[sender] = float((voice.theta - anchor).norm())
            pulled = {sender: self._pull(sender, voices[sender], anchor) for sender in voices}
            self.clipped = [name for name, mass in pulled.items() if mass is not voices[name]]
            if self.rule == "median" and len(voices) > 1:
                proxies = [anchor, *(mass.theta for mass in pulled.values())]
                weight = math.fsum(entry.mass.w for entry in entries)
                return Mass(torch.stack(proxies).quantile(0.5, dim=0), weight)
            entries = _replace_masses(entries, {sender: pulled[sender] for sender in self.clipped})
        masses = [entry.mass for entry in entries if entry.mass.w > 0]
        return add(masses) if masses else None

    def _pull(self, sender: str, voice: Mass, anchor: Tensor) -> Mass:
        """A sender's ``voice``, pulled towards ``anchor`` as far as its limit asks."""
        distance = self.distances[sender]
        limit = self.limit(sender)
        if distance <= limit:
            return voice
        return Mass(anchor + (voice.theta - anchor) * (limit / distance), voice.w)


def _own_proxy(entries: Sequence[Entry], me: str) -> Tensor:
    own = [entry.mass for entry in entries if entry.sender == me]
    weighty = [mass for mass in own if mass.w > 0]
    return add(weighty).theta if weighty else own[0].theta


def _voices(entries: Sequence[Entry], me: str) -> dict[str, Mass]:
    """All that each sender has sent."""
    shares: dict[str, list[Mass]] = {}
    for entry in entries:
        if entry.sender != me and entry.mass.w > 0:
            shares.setdefault(entry.sender, []).append(entry.mass)
    return {sender: add(masses) for sender, masses in shares.items()}


def _replace_masses(entries: Sequence[Entry], changed: Mapping[str, Mass]) -> list[Entry]:
    """``entries``, with a sender's ``changed`` mass in the place of its first share."""
    waiting = dict(changed)
    result = []
    for entry in entries:
        if entry.sender not in changed:
            result.append(entry)
        elif entry.sender in waiting:
            result.append(replace(entry, mass=waiting.pop(entry.sender)))
    return result
