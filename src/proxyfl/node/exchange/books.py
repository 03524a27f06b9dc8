"""A site's books: what its store says, and each change of it as one transaction.

Guarantees:
    * a crash falls between two changes and never within one;
    * weights are exact numbers, and no change creates or loses any: a release whose parts do not
      add up is refused, an entry is settled once.
"""

import hashlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from proxyfl.errors import TransportError
from proxyfl.node.exchange.messages import (
    Share,
    Stamp,
    State,
    parse_weight,
    spelled_weight,
)
from proxyfl.node.exchange.peers import Peers
from proxyfl.node.exchange.store import Store


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
    since: int
    """The round in which the present epoch began."""

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

    def start(self, *, round: int = 0, weight: Fraction = Fraction(1)) -> None:
        """Begin or continue: each start of the program has a number and a tag of its own."""
        tag = secrets.token_hex(8)
        with self.store.transaction() as run:
            if run.execute("select 1 from site").fetchone() is None:
                run.execute(
                    "insert into site values (1, ?, ?, 0, 0, '', 0, ?, 'ready', 'active', ?, x'',"
                    " '', '', ?)",
                    (
                        self.federation,
                        self.me,
                        round,
                        spelled_weight(weight),
                        round,
                    ),
                )
            found = run.execute("select federation, name from site").fetchone()
            if found != (self.federation, self.me):
                raise TransportError(
                    f"The store belongs to {found[1]!r} of {found[0]!r}, not to {self.me!r} of "
                    f"{self.federation!r}. Use another folder."
                )
            run.execute(
                "update site set boot = boot + 1, tag = ?, clock = clock + 1",
                (tag,),
            )
            self.store.forget()

    def stamp(self) -> Stamp:
        """This site's stamp."""
        with self.store.reading() as run:
            row = run.execute("select epoch, boot, tag, clock from site").fetchone()
        return Stamp(*row)

    def position(self) -> Position:
        """This site's progress."""
        with self.store.reading() as run:
            row = run.execute(
                "select round, phase, state, weight, learner, since from site"
            ).fetchone()
        round, phase, state, weight, *rest = row
        return Position(round, phase, state, parse_weight(weight), *rest)

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
    ) -> None:
        """Put the frames of the present round into the outbox, and hold on to ``kept``.

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
            for receiver, frame in frames.items():
                sha256 = hashlib.sha256(frame).hexdigest()
                weight = spelled_weight(weights[receiver])
                held = self.store.frames.put(frame)
                about = (receiver, here.round, self.version, weight, sha256, held)
                made = (stamp.epoch, stamp.boot, stamp.tag, stamp.clock + 1)
                run.execute(
                    "insert into outbox values (?,?,?,?,?,?,?,?,?,?)", about + made
                )
            remaining = spelled_weight(weights.get(self.me, Fraction(0)))
            run.execute(
                "update site set phase = 'released', clock = clock + 1, weight = ?, mass = ?,"
                " learner = ?",
                (remaining, self.store.frames.put(kept), learner),
            )
            self.store.forget()
            known = run.execute("select count(*) from charges").fetchone()[0]
            for entry in charges[known:]:
                run.execute("insert into charges (entry) values (?)", (entry,))

    def heard(self, round: int) -> set[str]:
        """The peers whose share for ``round`` has arrived."""
        with self.store.reading() as run:
            rows = run.execute(
                "select sender from verdicts where round = ?", (round,)
            ).fetchall()
        return {name for (name,) in rows}

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
            part = Part(
                sender, round, version, returned_by, parse_weight(weight), content
            )
            found.append(part)
        return found

    def conclude(
        self, parts: Sequence[Part], mass: bytes, *, next_round: int | None = None
    ) -> None:
        """Add ``parts``, whose sum with what was kept is ``mass``, and begin the next round."""
        with self.store.transaction() as run:
            here = self.position()
            total = here.weight
            for part in parts:
                key = (part.sender, part.round, part.returned_by)
                gone = run.execute(
                    "delete from inbox where sender = ? and round = ? and returned_by = ?",
                    key,
                )
                if gone.rowcount != 1:
                    raise TransportError(f"The share {key} was added already.")
                total += part.weight
            following = here.round + 1 if next_round is None else next_round
            run.execute(
                "update site set phase = 'ready', clock = clock + 1, weight = ?, mass = ?,"
                " round = ?",
                (spelled_weight(total), self.store.frames.put(mass), following),
            )
            self.store.forget()

    def skip_to(self, round: int) -> None:
        """Continue at ``round`` without the rounds before it."""
        with self.store.transaction() as run:
            run.execute(
                "update site set round = ?, clock = clock + 1 where round < ? and phase = 'ready'",
                (round, round),
            )

    def set_state(self, state: State) -> None:
        """From "leaving" on, the site refuses whatever arrives; "left" is for good."""
        with self.store.transaction() as run:
            run.execute("update site set state = ?, clock = clock + 1", (state,))

    def begin_again(self, *, round: int) -> None:
        """After a restore from a backup: continue without mass, in a new epoch, from ``round``."""
        with self.store.transaction() as run:
            run.execute(
                "update site set epoch = epoch + 1, clock = clock + 1, weight = '0/1', mass = x'',"
                " phase = 'ready', state = 'active', round = max(round, ?), since = ?",
                (round, round),
            )
            run.execute("delete from outbox")
            run.execute("delete from inbox")
            self.store.forget()

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
                "select version, epoch, boot, tag, clock, round, weight, sha256, frame from outbox"
                " where receiver = ? order by round",
                (peer,),
            ).fetchall()
        found = []
        for version, epoch, boot, tag, clock, round, weight, sha256, held in rows:
            frame = self.store.frames.read(held)
            stamp = Stamp(epoch, boot, tag, clock)
            start = (self.federation, version, self.me, peer, *stamp.numbers)
            share = Share(
                *start, round=round, weight=weight, size=len(frame), sha256=sha256
            )
            found.append((share, frame))
        return found

    def owed_to(self) -> set[str]:
        """Peers with unsettled shares."""
        with self.store.reading() as run:
            rows = run.execute("select distinct receiver from outbox").fetchall()
        return {name for (name,) in rows}

    def settle(
        self, receiver: str, round: int, sha256: str, *, stored: bool
    ) -> bool:
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
                "delete from outbox where receiver = ? and round = ? and sha256 = ?",
                key,
            )
            if not gone.rowcount:
                return False
            run.execute("update site set clock = clock + 1")
            self.store.forget()
            return True


def divided(
    weight: Fraction, shares: Mapping[str, float], last: str
) -> dict[str, Fraction]:
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
