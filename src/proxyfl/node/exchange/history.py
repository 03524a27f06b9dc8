"""Histories of sites, by which a restored backup or a clone of a site is found out: this site's own
(``History``), and how far those of its peers were seen (``Peers``).

A history is a list of chapters. Each start of the program begins one, and so does each release. A
chapter has a tag of its own, drawn at random, and ends at a clock. Two copies of one site (a backup
that was restored, a clone that runs elsewhere, a machine that was set back with its memory) have
the chapters up to where they parted in common, and no later one.

A peer remembers the last place that it has seen of a site, and takes from the site only what shows
this place in its past: the chapter's tag, with an end that is not earlier (``explains``). So it
does not matter how far a restored copy has run on. A site that does not remember what a peer has
seen stops until its operator rejoins. It then answers for the lost copy:

    rounds   those that the lost copy has released since the two parted, as far as a peer has seen,
             are charged to the ledger in full, and so are those that the lost copy had paid for;
    mass     the lost copy may have given away all that it held when the two parted, and every share
             that both copies have stored. The site drops its own mass and owes the rest, its debt:
             what it receives pays the debt first.

A share says for which chapter it is meant. It can be stored by both copies only if that chapter is
older than the place where they parted, or if one of them does not know it. The first kind is owed
when the site answers for the other copy, the second at once.

From then on the lost copy's chapters count as the site's own past. A lost copy that has released
nothing since the two parted has cost nothing, and is answered for without a word.

Guarantees:
    * the last chapter that a copy has begun by a release is in no other copy's past, so a peer that
      has seen that release takes nothing of another copy that has not answered for it;
    * ``answer_for`` never counts too few rounds: where the two parted is not known, they parted at
      the beginning of this store;
    * the sum of all sites' weights less their debts is at most the number of members, once every
      site of which there was a second copy has answered for it, and if all run a release that
      states for which chapter a share is meant (protocol 2.1).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from proxyfl.node.exchange.messages import (
    MOST_LISTED,
    NONE_SEEN,
    Stamp,
    State,
    parse_ends,
    parse_weight,
    spell_end,
    spell_weight,
)
from proxyfl.seeds import fresh_bytes

if TYPE_CHECKING:  # the store keeps histories, and they are read from it
    from proxyfl.node.exchange.store import Store

RECENT = 32
"""The ends of chapters in every hello; MOST_LISTED - RECENT are for those that are asked for."""

MOST_SIGHTINGS = 16
"""Places on record for one peer, which no honest peer comes near."""


@dataclass(frozen=True)
class Sighting:
    """A place in a site's history that was seen: ``round`` is the first not released there.

    ``past``, ``paid`` and ``debt`` are what the site said of itself then (``messages.Hello``),
    ``proof`` is the signed header in which it said that it is there; empty if it was not kept."""

    stamp: Stamp
    round: int
    past: tuple[str, ...] = ()
    paid: int = 0
    debt: str = "0/1"
    proof: str = ""

    @property
    def ends(self) -> dict[str, int]:
        """Tag -> clock: the chapters that are known to lead there, newest first."""
        own = {self.stamp.tag: self.stamp.clock} if self.stamp.tag else {}
        return own | parse_ends(self.past)


@dataclass(frozen=True)
class Chapter:
    """A chapter of this site's past: its own, or that of a lost copy that it has answered for.

    ``held`` is the largest weight that the site held in it, with what lay in outbox and inbox.
    ``parted`` is the number of the site's own chapter in which the copies parted, for a chapter of
    the site its own number; 0 if the weight has been answered for. Of a lost copy's chapters,
    ``held`` is what the site held where they parted, and the last one that is known ``is_tip``."""

    tag: str
    epoch: int
    clock: int
    round: int
    paid: int
    held: Fraction
    is_lost: bool
    parted: int
    is_tip: bool


@dataclass(frozen=True)
class Loss:
    """A site's debt: the rounds that a lost copy has released, the number of rounds
    that it had paid for others, and the weight to make good."""

    rounds: range
    paid: int
    weight: Fraction

    def __bool__(self) -> bool:
        return bool(self.rounds or self.paid)


def explains(ends: Mapping[str, int], seen: Stamp) -> bool:
    """True if a past with these ``ends`` includes the place ``seen``."""
    return ends.get(seen.tag, -1) >= seen.clock


class History:
    """A site's own history, over its store. Call its changes within a transaction."""

    def __init__(self, store: "Store") -> None:
        self.store = store

    def stamp(self) -> Stamp:
        """The present place."""
        with self.store.reading() as run:
            row = run.execute("select epoch, boot, tag, clock from site").fetchone()
        return Stamp(*row)

    def tick(self) -> None:
        """Note a change of the store."""
        with self.store.transaction() as run:
            run.execute("update site set clock = clock + 1")
            now = self.stamp()
            held = max(self._held(), self._require(now.tag).held)
            run.execute(
                "update chapters set clock = max(clock, ?), held = ? where tag = ?",
                (now.clock, spell_weight(held), now.tag),
            )

    def turn(self, tag: str | None = None) -> None:
        """Note a change of the store that begins a chapter, with ``tag`` if one was drawn."""
        with self.store.transaction() as run:
            before = self.stamp()
            now = Stamp(before.epoch, before.boot, tag or new_tag(), before.clock + 1)
            run.execute("update site set tag = ?, clock = ?", (now.tag, now.clock))
            self._insert(now)

    def adopt(self) -> None:
        """Begin the record with the last chapter of a program that kept none, if it did."""
        now = self.stamp()
        if now.tag and self.chapter(now.tag) is None:
            self._insert(now)

    def chapter(self, tag: str) -> Chapter | None:
        """The chapter of this site's past with this tag."""
        with self.store.reading() as run:
            row = run.execute(f"{_SELECT} where tag = ?", (tag,)).fetchone()
        return None if row is None else _chapter(row)

    def ends(
        self, limit: int = RECENT, *, before: str | None = None, also: Iterable[str] = ()
    ) -> tuple[str, ...]:
        """The ends of the last ``limit`` chapters before the present one, or before the chapter
        with the tag ``before``; and of those with the tags ``also``."""
        tag = before or self.stamp().tag
        with self.store.reading() as run:
            rows = run.execute(
                "select tag, clock from chapters where not lost and number <"
                " (select number from chapters where tag = ?) order by number desc limit ?",
                (tag, limit),
            ).fetchall()
        ends = dict(rows)
        for each in also:
            asked = self.chapter(each)
            if asked is not None and len(ends) < MOST_LISTED:
                ends[each] = asked.clock
        return tuple(spell_end(tag, clock) for tag, clock in ends.items())

    def remembers(self, seen: Sighting) -> bool:
        """True if ``seen`` is in this site's past, or was answered for."""
        chapter = self.chapter(seen.stamp.tag)
        if chapter is None:
            return self._is_older_than_chapters(seen.stamp)
        is_paid = chapter.round >= seen.round and chapter.paid >= seen.paid
        return chapter.clock >= seen.stamp.clock and (is_paid or not chapter.is_lost)

    def loss(self, seen: Sighting) -> Loss:
        """Computes what this site would have to answer for, given that a peer has seen ``seen`` of
        it."""
        base, chapters = self._parting(seen)
        rounds = range(base.round, seen.round)
        paid = max(0, seen.paid - base.paid)
        weight = Fraction(0)
        if rounds or paid:
            weight = self._weight_stored_twice(base) + parse_weight(seen.debt)
            if not _is_paid(base, chapters):
                weight += base.held
        return Loss(rounds, paid, weight)

    def _weight_stored_twice(self, base: Chapter) -> Fraction:
        """The weight of the shares stored here that a copy which parted in ``base`` may have stored
        too: they are meant for a chapter of both, or for one of a lost copy."""
        with self.store.reading() as run:
            rows = run.execute(
                "select verdicts.weight from verdicts left join chapters on tag = meant_for"
                " where outcome = 'stored' and verdicts.chapter > ?1 and ?1 > 0"
                " and (lost or number <= ?1 or meant_for = ?2)",
                (base.parted, NONE_SEEN),
            ).fetchall()
        return sum((parse_weight(weight) for (weight,) in rows), Fraction(0))

    def knows(self, meant_for: str) -> bool:
        """True unless a share is meant for a chapter that this site does not know."""
        return meant_for in ("", NONE_SEEN) or self.chapter(meant_for) is not None

    def may_be_elsewhere(self, meant_for: str) -> bool:
        """True if another copy of this site may have stored a share, and given it away: the share
        is meant for a chapter before the last new beginning, or for one of another copy."""
        if not self.knows(meant_for):
            return True
        epoch = self.stamp().epoch
        if meant_for == NONE_SEEN:
            return epoch > 0
        chapter = self.chapter(meant_for)
        return chapter is not None and chapter.epoch < epoch

    def number(self) -> int:
        """The number of the present chapter."""
        with self.store.reading() as run:
            row = run.execute("select number from chapters, site where chapters.tag = site.tag")
            return int(row.fetchone()[0])

    def answer_for(self, seen: Sighting) -> Loss:
        """Take the chapters that lead to ``seen`` into this site's past; return what they cost."""
        with self.store.transaction() as run:
            loss = self.loss(seen)
            base, lost = self._parting(seen)
            # Its weight is answered for once.
            held = spell_weight(base.held)
            parted = base.parted or _PARTED_FROM_LOST
            if loss or _is_paid(base, lost):
                parted = 0
            if lost:
                run.execute("update chapters set tip = 0 where tag = ?", (base.tag,))
            for tag, clock in lost:
                is_tip = tag == seen.stamp.tag
                run.execute(
                    "insert into chapters (tag, epoch, boot, clock, round, held, paid, lost,"
                    " parted, tip) values (?, ?, 0, ?, ?, ?, ?, 1, ?, ?)",
                    (tag, seen.stamp.epoch, clock, base.round, held, base.paid, parted, is_tip),
                )
            # How far the last one went is known; of the others, only that they came before.
            tag, clock = seen.stamp.tag, seen.stamp.clock
            run.execute("update chapters set clock = max(clock, ?) where tag = ?", (clock, tag))
            run.execute(
                "update chapters set round = max(round, ?), paid = max(paid, ?), parted = ?"
                " where tag = ? and lost",
                (seen.round, seen.paid, parted, tag),
            )
        return loss

    def _parting(self, seen: Sighting) -> tuple[Chapter, list[tuple[str, int]]]:
        """The last chapter that leads to ``seen`` and is in this site's past, and the ends of those
        after it."""
        after: list[tuple[str, int]] = []
        for tag, clock in seen.ends.items():
            chapter = self.chapter(tag)
            if chapter is not None:
                return chapter, after
            after.append((tag, clock))
        return self._beginning(), after

    def _beginning(self) -> Chapter:
        """The chapter to count from where nothing better is known: the first that is on record,
        with the largest weight of all."""
        with self.store.reading() as run:
            rows = run.execute(f"{_SELECT} where not lost order by number").fetchall()
        chapters = [_chapter(row) for row in rows]
        held = max(chapter.held for chapter in chapters)
        parted = max(chapters, key=self._weight_stored_twice).parted
        return replace(chapters[0], held=held, parted=parted)

    def _is_older_than_chapters(self, seen: Stamp) -> bool:
        """True if ``seen`` is of a time when this site's program kept no chapters.

        Numbers are all that is known of it; those of a restored copy would be lower."""
        with self.store.reading() as run:
            epoch, boot, clock = run.execute(
                "select epoch, boot, clock from chapters where not lost order by number limit 1"
            ).fetchone()
        if seen.epoch != epoch or not 0 < seen.boot < boot or seen.clock >= clock:
            return False
        self.answer_for(Sighting(seen, 0))
        return True

    def _require(self, tag: str) -> Chapter:
        chapter = self.chapter(tag)
        assert chapter is not None, f"no chapter {tag!r}: turn() comes before tick()"
        return chapter

    def _insert(self, now: Stamp) -> None:
        with self.store.transaction() as run:
            released, paid = run.execute(
                "select round + (phase = 'released'), paid from site"
            ).fetchone()
            run.execute(
                "insert into chapters (tag, epoch, boot, clock, round, held, paid, lost)"
                " values (?, ?, ?, ?, ?, ?, ?, 0)",
                (
                    now.tag,
                    now.epoch,
                    now.boot,
                    now.clock,
                    released,
                    spell_weight(self._held()),
                    paid,
                ),
            )

    def _held(self) -> Fraction:
        """All of this site's weight: its own, and that of outbox and inbox."""
        with self.store.reading() as run:
            rows = run.execute(
                "select weight from site union all select weight from outbox"
                " union all select weight from inbox"
            ).fetchall()
        return sum((parse_weight(weight) for (weight,) in rows), Fraction(0))


_PARTED_FROM_LOST = -1
"""Stands for the number of a chapter where a lost copy has parted from another lost copy."""


def _is_paid(base: Chapter, chapters: Sequence[tuple[str, int]]) -> bool:
    """True if the weight of the copy to which ``chapters`` lead from ``base`` was answered for.

    What leads on from the last chapter of a lost copy is the same copy; what leads on from an
    earlier one is another copy of that copy."""
    return base.parted == 0 and (base.is_tip or not chapters)


_SELECT = (
    "select tag, epoch, clock, round, paid, held, lost, iif(lost, parted, number), tip"
    " from chapters"
)


def _chapter(row: tuple[str, int, int, int, int, str, int, int, int]) -> Chapter:
    tag, epoch, clock, round, paid, held, lost, parted, tip = row
    weight = parse_weight(held)
    return Chapter(tag, epoch, clock, round, paid, weight, bool(lost), parted, bool(tip))


def new_tag() -> str:
    """A tag that no other chapter has."""
    return fresh_bytes(8).hex()


def spell(seen: Sighting) -> tuple[int | str, ...]:
    """A sighting as a row of a table: epoch, boot, tag, clock, round, past, paid, debt, proof."""
    past = " ".join(seen.past)
    return (*seen.stamp.numbers, seen.round, past, seen.paid, seen.debt, seen.proof)


def parse(row: Sequence[Any]) -> Sighting:
    """The sighting that ``spell`` wrote."""
    *numbers, round, past, paid, debt, proof = row
    return Sighting(Stamp(*numbers), round, tuple(past.split()), paid, debt, proof)


class Sightings:
    """Places in histories, by the peer that they are of (table "sightings") or that has shown them
    (table "evidence"). Over a site's store."""

    def __init__(self, store: "Store", table: str) -> None:
        self.store = store
        self.table = table

    def add(self, peer: str, seen: Sighting) -> None:
        """Records a sighting, next to the others of that peer, of which a few are kept."""
        known = self.of(peer)
        is_further = True
        for other in known:
            if other.stamp.tag == seen.stamp.tag:
                is_further = seen.stamp.clock > other.stamp.clock or seen.round > other.round
        if not is_further or len(known) >= MOST_SIGHTINGS:
            return
        with self.store.transaction() as run:
            run.execute(
                f"insert or replace into {self.table} (peer, epoch, boot, tag, clock, round, past,"
                " paid, debt, proof) values (?,?,?,?,?,?,?,?,?,?)",
                (peer, *spell(seen)),
            )

    def of(self, peer: str) -> list[Sighting]:
        """The sightings on record for ``peer``."""
        return [seen for name, seen in self.every() if name == peer]

    def every(self) -> list[tuple[str, Sighting]]:
        """All that are on record, in the order of the places."""
        with self.store.reading() as run:
            rows = run.execute(
                "select peer, epoch, boot, tag, clock, round, past, paid, debt, proof"
                f" from {self.table} order by epoch, clock"
            ).fetchall()
        return [(peer, parse(place)) for peer, *place in rows]

    def forget(self, peers: Collection[str] | None = None) -> None:
        """Take off the record what concerns ``peers``; all of it by default."""
        with self.store.transaction() as run:
            names = {name for name, _ in self.every()}
            for name in names if peers is None else names & set(peers):
                run.execute(f"delete from {self.table} where peer = ?", (name,))


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

    def __init__(self, store: "Store") -> None:
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
            now = replace(merge_sightings(before, seen), paid=before.paid, debt=before.debt)
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

    def peers_done(self, rounds: int) -> set[str]:
        """The peers that were seen to release the last of ``rounds``."""
        with self.store.reading() as run:
            rows = run.execute("select name from peers where round >= ?", (rounds,))
            return {name for (name,) in rows}

    def gone(self) -> set[str]:
        """The peers that have announced that they leave."""
        with self.store.reading() as run:
            rows = run.execute("select name from peers where state != 'active'")
            return {name for (name,) in rows}


def merge_sightings(before: Sighting, now: Sighting) -> Sighting:
    """The place ``now``, which follows ``before``, with the past that is known of both."""
    ends = now.ends | {tag: clock for tag, clock in before.ends.items() if tag not in now.ends}
    del ends[now.stamp.tag]
    past = [spell_end(tag, clock) for tag, clock in ends.items()]
    # One proof of a place is enough: another one would be written at each hello.
    proof = before.proof if before.proof and before.stamp == now.stamp else now.proof
    return replace(now, past=tuple(past[:MOST_LISTED]), proof=proof)
