"""What a site's store knows of its peers: how far each was seen, and what it has announced."""

from dataclasses import dataclass, replace

from proxyfl.node.exchange.history import Sighting, Sightings, explains, parse, spell
from proxyfl.node.exchange.messages import MOST_LISTED, Stamp, State, spell_end
from proxyfl.node.exchange.store import Store


@dataclass(frozen=True)
class Peer:
    """A peer as this site knows it: the last place that was seen of the history that it shows,
    ``seen``, and what it has said. ``release`` and ``protocol`` are what it runs."""

    name: str
    seen: Sighting
    state: State = "active"
    accepted: str = ""
    version: int = 0
    release: str = ""
    protocol: str = ""

    @property
    def stamp(self) -> Stamp:
        """The last place that was seen."""
        return self.seen.stamp

    @property
    def round(self) -> int:
        """The first round that the peer has not been seen to release."""
        return self.seen.round


_COLUMNS = (
    "epoch, boot, tag, clock, round, past, paid, debt, proof, state, accepted, version, release,"
    " protocol"
)


class Peers:
    """A site's peers, over its store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sightings = Sightings(store, "sightings")

    def known(self, name: str) -> Peer:
        """The peer ``name``, as this site knows it."""
        with self.store.reading() as run:
            row = run.execute(f"select {_COLUMNS} from peers where name = ?", (name,)).fetchone()
        if row is None:
            return Peer(name, Sighting(Stamp(0, 0, "", 0), 0))
        place, said = row[:9], row[9:]
        return Peer(name, parse(place), *said)

    def remember(self, peer: Peer) -> None:
        """Write down what is known of a peer."""
        place = spell(peer.seen)
        said = (peer.state, peer.accepted, peer.version, peer.release, peer.protocol)
        with self.store.transaction() as run:
            run.execute(
                f"insert or replace into peers (name, {_COLUMNS})"
                f" values ({', '.join('?' * (1 + len(place) + len(said)))})",
                (peer.name, *place, *said),
            )

    def follow(self, name: str, seen: Sighting) -> bool:
        """Take note of a place that a share or a verdict of ``name`` shows, whatever becomes of it.

        False if that place is not known to belong to the history that the peer has shown so far:
        then it is a sighting, which the peer's next hello has to explain."""
        known = self.known(name)
        before = known.seen
        if explains(before.ends, seen.stamp):
            now = before
        elif seen.stamp.tag == before.stamp.tag or self._leads_on(name, seen):
            now = replace(merged(before, seen), paid=before.paid, debt=before.debt)
            self.sightings.forget([name])
        else:
            self.sightings.add(name, seen)
            return False
        round = before.round
        if seen.stamp.epoch == now.stamp.epoch:
            round = max(round, seen.round)
        news = replace(known, seen=replace(now, round=round))
        if news != known:
            self.remember(news)
        return True

    def _leads_on(self, name: str, seen: Sighting) -> bool:
        """True if the past of ``seen`` has all that was seen of the peer before."""
        places = [self.known(name).seen, *self.sightings.of(name)]
        return all(explains(seen.ends, place.stamp) for place in places)

    def released_all(self, rounds: int) -> set[str]:
        """The peers that were seen to release the last of ``rounds``."""
        with self.store.reading() as run:
            rows = run.execute("select name from peers where round >= ?", (rounds,))
            return {name for (name,) in rows}

    def gone(self) -> set[str]:
        """The peers that have announced that they leave."""
        with self.store.reading() as run:
            rows = run.execute("select name from peers where state != 'active'")
            return {name for (name,) in rows}


def merged(before: Sighting, now: Sighting) -> Sighting:
    """The place ``now``, which follows ``before``, with the past that is known of both."""
    ends = now.ends | {tag: clock for tag, clock in before.ends.items() if tag not in now.ends}
    del ends[now.stamp.tag]
    past = [spell_end(tag, clock) for tag, clock in ends.items()]
    # One proof of a place is enough: another one would be written at each hello.
    proof = before.proof if before.proof and before.stamp == now.stamp else now.proof
    return replace(now, past=tuple(past[:MOST_LISTED]), proof=proof)
