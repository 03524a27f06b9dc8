"""A site's books: what its store says, and each change of it as one transaction.

Guarantees:
    * a crash falls between two changes and never within one;
    * weights are exact numbers, and no change creates or loses any: a release whose parts do not
      add up is refused, an entry is settled once.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction

from proxyfl.errors import ConfigError, TransportError
from proxyfl.node.exchange.frames import Arrived
from proxyfl.node.exchange.history import History, Loss, Sighting, Sightings, new_tag
from proxyfl.node.exchange.messages import (
    NONE_SEEN,
    Share,
    Stamp,
    State,
    parse_weight,
    spelled_weight,
)
from proxyfl.node.exchange.peers import Peers
from proxyfl.node.exchange.store import Store
from proxyfl.node.members.versions import RELEASE

HANDED_OVER = "handed over"
"""The note on the verdict on a share that a leaving member sent past the graph."""


@dataclass(frozen=True)
class Part:
    """A piece of mass that is about to be added. ``returned_by`` names who refused it, if so."""

    sender: str
    round: int
    version: int
    returned_by: str
    weight: Fraction
    frame: bytes | memoryview


@dataclass(frozen=True)
class Position:
    """A site's progress. In phase "ready" it holds all of its mass, in "released" what it kept."""

    round: int
    phase: str
    state: State
    weight: Fraction
    learner: str

    @property
    def released(self) -> int:
        """The first round that this site has not released."""
        return self.round if self.phase == "ready" else self.round + 1


class Books:
    """One site's standing, over its store. ``version`` is that of the manifest in force."""

    def __init__(
        self, store: Store, *, federation: str, me: str, version: int, rounds: int
    ) -> None:
        self.store = store
        self.federation = federation
        self.me = me
        self.version = version
        self.rounds = rounds
        self.peers = Peers(store)
        self.history = History(store)
        self.evidence = Sightings(store, "evidence")
        """Places in this site's history that peers have seen and this store does not know."""

    def start(self, *, round: int = 0, weight: Fraction = Fraction(1)) -> None:
        """Begin or continue: each start of the program has a number and a chapter of its own."""
        with self.store.transaction() as run:
            if run.execute("select 1 from site").fetchone() is None:
                run.execute(
                    "insert into site (one, federation, name, epoch, boot, tag, clock, round,"
                    " phase, state, weight, mass, learner, budget) values"
                    " (1, ?, ?, 0, 0, '', 0, ?, 'ready', 'active', ?, x'', '', '')",
                    (self.federation, self.me, round, spelled_weight(weight)),
                )
            found = run.execute("select federation, name from site").fetchone()
            if found != (self.federation, self.me):
                raise TransportError(
                    f"The store belongs to {found[1]!r} of {found[0]!r}, not to {self.me!r} of "
                    f"{self.federation!r}. Use another folder."
                )
            self.history.adopt()
            run.execute("update site set boot = boot + 1, release = ?", (RELEASE,))
            self.history.turn()
            self.store.forget()

    def stamp(self) -> Stamp:
        """This site's stamp."""
        return self.history.stamp()

    def position(self) -> Position:
        """This site's progress."""
        with self.store.reading() as run:
            row = run.execute("select round, phase, state, weight, learner from site").fetchone()
        round, phase, state, weight, learner = row
        return Position(round, phase, state, parse_weight(weight), learner)

    def debt(self) -> Fraction:
        """The weight that this site owes for a lost copy of itself; see ``history``."""
        with self.store.reading() as run:
            (debt,) = run.execute("select debt from site").fetchone()
        return parse_weight(debt)

    def owe(self, weight: Fraction) -> None:
        """Add to what this site owes."""
        with self.store.transaction() as run:
            run.execute("update site set debt = ?", (spelled_weight(self.debt() + weight),))

    def mass(self) -> bytes | memoryview:
        """The mass that this site holds; empty before its first round."""
        with self.store.reading() as run:
            (held,) = run.execute("select mass from site").fetchone()
            return self.store.frames.read(held)

    def blocked(self) -> set[str]:
        """Peers that have an unsettled share or have left: they get nothing for now."""
        with self.store.reading() as run:
            waiting = run.execute("select distinct receiver from outbox").fetchall()
            names = {name for (name,) in waiting}
        return names | self.peers.gone()

    def release(
        self,
        *,
        kept: bytes,
        frames: Mapping[str, bytes],
        weights: Mapping[str, Fraction],
        learner: str = "",
        charges: Sequence[str] = (),
        defence: str = "",
    ) -> None:
        """Put the frames of the present round into the outbox, and hold on to ``kept``.

        ``defence`` is what the site's defence remembers (``defence.Guard.state``).
        ``weights`` says how the site's weight is divided, what it keeps under its own name; the
        parts must add up to the whole, to the last bit."""
        with self.store.transaction() as run:
            here = self.position()
            if here.phase != "ready":
                raise TransportError(f"Round {here.round} was released already.")
            if sum(weights.values(), Fraction(0)) != here.weight:
                raise TransportError(
                    f"Round {here.round}: the parts {dict(weights)} do not add up to {here.weight}."
                )
            stamp = self.stamp()
            tag = new_tag()
            for receiver, frame in frames.items():
                sha256 = hashlib.sha256(frame).hexdigest()
                weight = spelled_weight(weights[receiver])
                held = self.store.frames.put(frame)
                about = (receiver, here.round, self.version, weight, sha256, held)
                made = (stamp.epoch, stamp.boot, tag, stamp.clock + 1)
                meant_for = self.peers.known(receiver).stamp.tag or NONE_SEEN
                row = (*about, *made, meant_for)
                run.execute("insert into outbox values (?,?,?,?,?,?,?,?,?,?,?)", row)
            remaining = spelled_weight(weights.get(self.me, Fraction(0)))
            run.execute(
                "update site set phase = 'released', weight = ?, mass = ?, learner = ?,"
                " defence = ?",
                (remaining, self.store.frames.put(kept), learner, defence),
            )
            self.history.turn(tag)
            self.store.forget()
            self._keep_charges(charges)

    def defence(self) -> str:
        """What the site's defence remembers; empty before the first release."""
        with self.store.reading() as run:
            row = run.execute("select defence from site").fetchone()
        return "" if row is None else str(row[0])

    def sums(self) -> tuple[str, bytes | memoryview] | None:
        """The record of masked sums and the proxy, as ``save_sums`` wrote them."""
        with self.store.reading() as run:
            row = run.execute("select record, proxy from sums").fetchone()
            return None if row is None else (row[0], self.store.frames.read(row[1]))

    def save_sums(
        self, record: str, *, proxy: bytes | None = None, charges: Sequence[str] | None = None
    ) -> None:
        """Write the record of masked sums; with ``proxy``, after a step; with ``charges``, before a
        vector leaves, so that no copy of this site can forget it unseen."""
        with self.store.transaction() as run:
            if proxy is not None:
                held = self.store.frames.put(proxy)
                run.execute("insert or replace into sums values (1, ?, ?)", (record, held))
                self.store.forget()
            else:
                run.execute("update sums set record = ?", (record,))
            if charges is not None:
                run.execute("update site set phase = 'released'")
                self.history.tick()
                self._keep_charges(charges)

    def advance(self, round: int, learner: str, charges: Sequence[str]) -> None:
        """Begin ``round`` after a round of masked sums."""
        with self.store.transaction() as run:
            run.execute("update site set phase = 'ready', round = ?, learner = ?", (round, learner))
            self.history.tick()
            self._keep_charges(charges)

    def lower_budget(self, budget: float | None) -> None:
        """Record the site's budget. ConfigError if it is above one that it had before."""
        with self.store.transaction() as run:
            (known,) = run.execute("select budget from site").fetchone()
            if known and (budget is None or budget > float(known)):
                raise ConfigError(
                    f"privacy.budget is {budget}, and this site began with {known}. A budget can "
                    "be lowered, never raised: set it back."
                )
            text = "" if budget is None else repr(budget)
            run.execute("update site set budget = ?", (text,))

    def charges(self) -> list[str]:
        """The ledger's charges as the store knows them, one line each."""
        with self.store.reading() as run:
            rows = run.execute("select entry from charges order by number").fetchall()
        return [entry for (entry,) in rows]

    def _keep_charges(self, charges: Sequence[str]) -> None:
        with self.store.transaction() as run:
            known = run.execute("select count(*) from charges").fetchone()[0]
            for entry in charges[known:]:
                run.execute("insert into charges (entry) values (?)", (entry,))

    def heard(self, round: int) -> set[str]:
        """The peers whose share for ``round`` has arrived."""
        with self.store.reading() as run:
            rows = run.execute("select sender from verdicts where round = ?", (round,)).fetchall()
        return {name for (name,) in rows}

    def handovers(self, sender: str) -> int:
        """The number of shares that ``sender`` has handed over here because it leaves."""
        with self.store.reading() as run:
            (count,) = run.execute(
                "select count(*) from verdicts where sender = ? and outcome = 'stored'"
                " and reason = ?",
                (sender, HANDED_OVER),
            ).fetchone()
        return int(count)

    def parts(self, *, every: bool = False) -> list[Part]:
        """The parts that have arrived for rounds up to the present; with ``every``, all."""
        last = self.rounds if every else self.position().round
        with self.store.reading() as run:
            rows = run.execute(
                "select sender, round, version, returned_by, weight, frame from inbox"
                " where round <= ? order by sender, round, returned_by",
                (last,),
            ).fetchall()
        found = []
        for sender, round, version, returned_by, weight, frame in rows:
            content = self.store.frames.read(frame)
            part = Part(sender, round, version, returned_by, parse_weight(weight), content)
            found.append(part)
        return found

    def conclude(
        self,
        parts: Sequence[Part],
        mass: bytes,
        *,
        next_round: int | None = None,
        defence: str | None = None,
    ) -> None:
        """Add ``parts``, whose sum with what was kept is ``mass``, and begin the next round.

        What this site owes is paid from their weight. ``defence`` as in ``release``; None leaves
        what is on record."""
        with self.store.transaction() as run:
            here = self.position()
            received = Fraction(0)
            for part in parts:
                key = (part.sender, part.round, part.returned_by)
                gone = run.execute(
                    "delete from inbox where sender = ? and round = ? and returned_by = ?", key
                )
                if gone.rowcount != 1:
                    raise TransportError(f"The share {key} was added already.")
                received += part.weight
            owed = self.debt()
            paid = min(owed, received)
            following = here.round + 1 if next_round is None else next_round
            run.execute(
                "update site set phase = 'ready', weight = ?, debt = ?, mass = ?, round = ?",
                (
                    spelled_weight(here.weight + received - paid),
                    spelled_weight(owed - paid),
                    self.store.frames.put(mass),
                    following,
                ),
            )
            if defence is not None:
                run.execute("update site set defence = ?", (defence,))
            self.history.tick()
            self.store.forget()

    def skip_to(self, round: int) -> None:
        """Continue at ``round`` without the rounds before it."""
        with self.store.transaction() as run:
            run.execute(
                "update site set round = ? where round < ? and phase = 'ready'", (round, round)
            )
            self.history.tick()

    def set_state(self, state: State) -> None:
        """From "leaving" on, the site refuses whatever arrives; "left" is for good."""
        with self.store.transaction() as run:
            run.execute("update site set state = ?", (state,))
            self.history.tick()

    def unanswered(self, *, round: int | None = None) -> list[Sighting]:
        """What a new beginning has to answer for: the evidence, and that some copy has released all
        rounds before ``round``.

        Where the latter is all that is known, that copy may have parted at the very beginning."""
        sightings = [seen for _, seen in self.evidence.every()]
        furthest = max((seen.round for seen in sightings), default=0)
        if round is not None and round > furthest:
            witnessed = Sighting(Stamp(0, 0, new_tag(), 0), round)
            if sightings:
                last = max(sightings, key=lambda seen: seen.round)
                witnessed = replace(last, round=round)
            sightings.append(witnessed)
        return sightings

    def begin_again(self, sightings: Sequence[Sighting]) -> list[Loss]:
        """After a restore from a backup: continue without mass, in a new epoch, and answer for the
        copies of this site of which there are ``sightings``. Returns what each of them costs: put
        it on the ledger within the same transaction."""
        with self.store.transaction() as run:
            here = self.position()
            (epoch,) = run.execute("select epoch from site").fetchone()
            owed = self.debt() - here.weight
            for (weight,) in run.execute("select weight from inbox").fetchall():
                owed -= parse_weight(weight)
            losses = []
            paid = 0
            # A round that this copy has released is not released once more: a count of rounds that
            # goes back would hide the second release.
            round = here.released
            for seen in sightings:
                loss = self.history.answer_for(seen)
                losses.append(loss)
                owed += loss.weight
                paid += len(loss.rounds) + loss.paid
                epoch = max(epoch, seen.stamp.epoch)
                round = max(round, seen.round)
            run.execute("delete from outbox")
            run.execute("delete from inbox")
            self.evidence.forget()
            run.execute(
                "update site set epoch = ?, weight = '0/1', debt = ?, paid = paid + ?, mass = x'',"
                " phase = 'ready', state = 'active', round = ?",
                (epoch + 1, spelled_weight(max(owed, Fraction(0))), paid, round),
            )
            self.history.turn()
            self.store.forget()
            return losses

    def write_off(self, names: Collection[str]) -> None:
        """Give up, on record, the shares for members that a new manifest has removed."""
        with self.store.transaction() as run:
            for name in names:
                run.execute(
                    "insert into written_off select receiver, round, weight from outbox"
                    " where receiver = ?",
                    (name,),
                )
                run.execute("delete from outbox where receiver = ?", (name,))
            self.store.forget()

    def unsettled(self, peer: str) -> list[tuple[Share, bytes | memoryview]]:
        """The shares that ``peer`` has given no verdict on, oldest first."""
        with self.store.reading() as run:
            rows = run.execute(
                "select version, epoch, boot, tag, clock, round, weight, sha256, frame, meant_for"
                " from outbox where receiver = ? order by round",
                (peer,),
            ).fetchall()
        found = []
        for version, epoch, boot, tag, clock, round, weight, sha256, held, meant_for in rows:
            frame = self.store.frames.read(held)
            stamp = Stamp(epoch, boot, tag, clock)
            start = (self.federation, version, self.me, peer, *stamp.numbers)
            share = Share(
                *start,
                round=round,
                weight=weight,
                size=len(frame),
                sha256=sha256,
                past=self.history.ends(before=tag),
                meant_for=meant_for,
            )
            found.append((share, frame))
        return found

    def owed_rounds(self, peer: str, *, most: int) -> tuple[int, ...]:
        """The first rounds whose shares ``peer`` has given no verdict on."""
        with self.store.reading() as run:
            rows = run.execute(
                "select round from outbox where receiver = ? order by round limit ?", (peer, most)
            ).fetchall()
        return tuple(round for (round,) in rows)

    def stored_rounds(self, sender: str, *, most: int) -> tuple[int, ...]:
        """The last rounds whose shares of ``sender`` were stored here, the latest first."""
        with self.store.reading() as run:
            rows = run.execute(
                "select round from verdicts where sender = ? and outcome = 'stored'"
                " order by round desc limit ?",
                (sender, most),
            ).fetchall()
        return tuple(round for (round,) in rows)

    def settlement(self) -> tuple[int, str]:
        """The claims that this site has paid for, and the weight that it owes, as it is sent."""
        with self.store.reading() as run:
            paid, debt = run.execute("select paid, debt from site").fetchone()
        return paid, debt

    def verdict_on(self, sender: str, round: int) -> tuple[str, str, str] | None:
        """The hash, outcome and reason of the share that came first; None if none has."""
        with self.store.reading() as run:
            row = run.execute(
                "select sha256, outcome, reason from verdicts where round = ? and sender = ?",
                (round, sender),
            ).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    def unapplied(self, sender: str) -> int:
        """The number of shares of ``sender`` that wait to be added."""
        with self.store.reading() as run:
            (count,) = run.execute(
                "select count(*) from inbox where sender = ? and returned_by = ''", (sender,)
            ).fetchone()
        return int(count)

    def receiving(
        self, pieces: Iterable[bytes | memoryview], size: int
    ) -> AbstractContextManager[Arrived]:
        """The body of a message as it arrives; see ``Frames.receiving``."""
        return self.store.frames.receiving(pieces, size)

    def store_share(self, share: Share, frame: bytes | memoryview) -> None:
        """Put an arriving share into the inbox."""
        with self.store.transaction() as run:
            held = self.store.frames.put(frame)
            run.execute(
                "insert into inbox values (?, ?, ?, '', ?, ?)",
                (share.sender, share.round, share.version, share.weight, held),
            )
            if self.history.may_be_elsewhere(share.meant_for):
                self.owe(share.exact_weight)

    def store_verdict(self, share: Share, outcome: str, reason: str) -> None:
        """Put on record what became of an arriving share; it holds for good."""
        with self.store.transaction() as run:
            run.execute(
                "insert into verdicts values (?,?,?,?,?,?,?,?,?)",
                (
                    share.version,
                    share.round,
                    share.sender,
                    share.sha256,
                    outcome,
                    reason,
                    share.weight,
                    share.meant_for,
                    self.history.number(),
                ),
            )
            self.history.tick()

    def owed_to(self) -> set[str]:
        """Peers with unsettled shares."""
        with self.store.reading() as run:
            rows = run.execute("select distinct receiver from outbox").fetchall()
        return {name for (name,) in rows}

    def settle(self, receiver: str, round: int, sha256: str, *, stored: bool) -> bool:
        """Close an entry of the outbox: the receiver stored it, or it is this site's again.

        False, and nothing changes, if there is no such entry."""
        with self.store.transaction() as run:
            key = (receiver, round, sha256)
            if not stored:
                run.execute(
                    "insert into inbox select ?, round, version, receiver, weight, frame"
                    " from outbox where receiver = ? and round = ? and sha256 = ?",
                    (self.me, *key),
                )
            gone = run.execute(
                "delete from outbox where receiver = ? and round = ? and sha256 = ?", key
            )
            if not gone.rowcount:
                return False
            self.history.tick()
            self.store.forget()
            return True


def divided(weight: Fraction, shares: Mapping[str, float], last: str) -> dict[str, Fraction]:
    """``weight`` divided by ``shares``: each part rounded to a float, ``last`` gets the exact rest.

    The parts add up to ``weight`` without rounding, and each is at least 0."""
    parts: dict[str, Fraction] = {}
    rest = weight
    for name, share in shares.items():
        if name == last:
            continue
        part = min(Fraction(float(weight) * share), rest)
        parts[name] = part
        rest -= part
    parts[last] = rest
    return parts
