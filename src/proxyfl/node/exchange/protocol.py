"""The exchange of mass between sites that may be late, crash, or be cut off: transactional outbox
and idempotent receiver.

    release    the site's mass is split: a part is kept, the others lie in the outbox
    share      is sent again and again until a verdict arrives
    verdict    "stored": the receiver has it durably; it leaves the outbox
               "refused": the receiver never will; it returns to the sender's own mass
    conclude   what is kept and what has arrived is added up; the next round begins

Each of these is one transaction of the store, so a crash falls between two of them and never
within one. The module knows neither network nor clock nor tensors: it takes headers and gives
headers, and whoever calls it decides when.

Guarantees, whatever is lost, repeated, delayed or reordered, and whoever crashes when:
    * a share is added once or not at all, and the sender learns which;
    * weights are exact numbers: the sum over all sites' own mass, inboxes and the outbox entries
      that their receiver has not stored is the same at every instant;
    * at most one share per peer is unsettled: what a silent peer should get, a site keeps;
    * a site that shows less history than its peers have seen is told so, and sends nothing more.
"""

import hashlib
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from proxyfl.errors import ProxyFLError, TransportError
from proxyfl.node.exchange.messages import (
    MOST_LISTED,
    Header,
    Hello,
    Restored,
    Share,
    Stamp,
    State,
    Verdict,
    parse_weight,
    spelled_weight,
)
from proxyfl.node.exchange.store import Store

MOST_UNAPPLIED = 4
"""Shares of one peer that wait in the inbox; more are put off until some have been added."""

Check = Callable[[Share, bytes], None]
"""Raises TransportError if a share's frame must not be stored."""


class RestoredError(ProxyFLError):
    """A peer has seen more of this site than the site itself knows: it runs from an old backup."""


@dataclass(frozen=True)
class Part:
    """A piece of mass that is about to be added. ``returned_by`` names who refused it, if so."""

    sender: str
    round: int
    version: int
    returned_by: str
    weight: Fraction
    frame: bytes


@dataclass(frozen=True)
class Peer:
    """What is known of a peer."""

    name: str
    stamp: Stamp
    round: int
    state: State
    accepted: str
    version: int


@dataclass(frozen=True)
class Position:
    """Where a site stands. In phase "ready" it holds its whole mass, in "released" what it kept."""

    round: int
    phase: str
    state: State
    weight: Fraction
    mass: bytes
    learner: str


class Exchange:
    """One site's side of the exchange, over its store."""

    def __init__(
        self, store: Store, *, federation: str, me: str, version: int, rounds: int, check: Check
    ) -> None:
        self.store = store
        self.federation = federation
        self.me = me
        self.version = version
        self.manifest = ""
        self.accepted = ""
        self.rounds = rounds
        self._check = check
        self._admitted: set[str] = set()
        self._changed = threading.Condition()

    def start(self, *, round: int = 0, weight: Fraction = Fraction(1)) -> None:
        """Begin or continue: each start of the program has a number and a tag of its own."""
        tag = secrets.token_hex(8)
        with self.store.transaction() as run:
            if run.execute("select 1 from site").fetchone() is None:
                run.execute(
                    "insert into site values (1, ?, ?, 0, 0, '', 0, ?, 'ready', 'active', ?, x'',"
                    " '', '')",
                    (self.federation, self.me, round, spelled_weight(weight)),
                )
            found = run.execute("select federation, name from site").fetchone()
            if found != (self.federation, self.me):
                raise TransportError(
                    f"The store belongs to {found[1]!r} of {found[0]!r}, not to {self.me!r} of "
                    f"{self.federation!r}. Use another folder."
                )
            run.execute("update site set boot = boot + 1, tag = ?, clock = clock + 1", (tag,))

    def stamp(self) -> Stamp:
        """This site's stamp."""
        with self.store.reading() as run:
            row = run.execute("select epoch, boot, tag, clock from site").fetchone()
        return Stamp(*row)

    def position(self) -> Position:
        """Where this site stands."""
        with self.store.reading() as run:
            row = run.execute(
                "select round, phase, state, weight, mass, learner from site"
            ).fetchone()
        round, phase, state, weight, mass, learner = row
        return Position(round, phase, state, parse_weight(weight), mass, learner)

    def peer(self, name: str) -> Peer:
        """What is known of ``name``."""
        with self.store.reading() as run:
            row = run.execute(
                "select epoch, boot, tag, clock, round, state, accepted, version from peers"
                " where name = ?",
                (name,),
            ).fetchone()
        if row is None:
            return Peer(name, Stamp(0, 0, "", 0), 0, "active", "", 0)
        return Peer(name, Stamp(*row[:4]), *row[4:])

    def admitted(self, name: str) -> bool:
        """Whether ``name`` has answered a hello of this start of the program."""
        return name in self._admitted

    def wait(self, seconds: float) -> None:
        """Return when something has arrived, or after ``seconds``."""
        with self._changed:
            self._changed.wait(seconds)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def blocked(self) -> set[str]:
        """Peers that have an unsettled share or have left: they get nothing for now."""
        with self.store.reading() as run:
            waiting = run.execute("select distinct receiver from outbox").fetchall()
            left = run.execute("select name from peers where state != 'active'").fetchall()
        return {name for (name,) in (*waiting, *left)}

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
                about = (receiver, here.round, self.version, weight, sha256, frame)
                made = (stamp.epoch, stamp.boot, stamp.tag, stamp.clock + 1)
                run.execute("insert into outbox values (?,?,?,?,?,?,?,?,?,?)", about + made)
            remaining = spelled_weight(weights.get(self.me, Fraction(0)))
            run.execute(
                "update site set phase = 'released', clock = clock + 1, weight = ?, mass = ?,"
                " learner = ?",
                (remaining, kept, learner),
            )
            known = run.execute("select count(*) from charges").fetchone()[0]
            for entry in charges[known:]:
                run.execute("insert into charges (entry) values (?)", (entry,))
        self._notify()

    def heard(self, round: int) -> set[str]:
        """Whose share for ``round`` has arrived."""
        with self.store.reading() as run:
            rows = run.execute("select sender from verdicts where round = ?", (round,)).fetchall()
        return {name for (name,) in rows}

    def parts(self, *, every: bool = False) -> list[Part]:
        """What has arrived for the present round and those before; with ``every``, all of it."""
        last = self.rounds if every else self.position().round
        with self.store.reading() as run:
            rows = run.execute(
                "select sender, round, version, returned_by, weight, frame from inbox"
                " where round <= ? order by sender, round, returned_by",
                (last,),
            ).fetchall()
        found = []
        for sender, round, version, returned_by, weight, frame in rows:
            part = Part(sender, round, version, returned_by, parse_weight(weight), frame)
            found.append(part)
        return found

    def conclude(
        self, parts: Sequence[Part], mass: bytes, *, next_round: int | None = None
    ) -> None:
        """Add ``parts``, whose sum with what was kept is ``mass``, and go on to the next round."""
        with self.store.transaction() as run:
            here = self.position()
            total = here.weight
            for part in parts:
                key = (part.sender, part.round, part.returned_by)
                gone = run.execute(
                    "delete from inbox where sender = ? and round = ? and returned_by = ?", key
                )
                if gone.rowcount != 1:
                    raise TransportError(f"The share {key} was added already.")
                total += part.weight
            following = here.round + 1 if next_round is None else next_round
            run.execute(
                "update site set phase = 'ready', clock = clock + 1, weight = ?, mass = ?,"
                " round = ?",
                (spelled_weight(total), mass, following),
            )
        self._notify()

    def skip_to(self, round: int) -> None:
        """Go on at ``round``, without having taken part in those before it."""
        with self.store.transaction() as run:
            run.execute(
                "update site set round = ?, clock = clock + 1 where round < ? and phase = 'ready'",
                (round, round),
            )

    def set_state(self, state: State) -> None:
        """From "leaving" on, the site refuses whatever arrives; "left" is for good."""
        with self.store.transaction() as run:
            run.execute("update site set state = ?, clock = clock + 1", (state,))
        self._notify()

    def begin_again(self, *, round: int) -> None:
        """After a restore from a backup: go on without mass, in a new epoch, from ``round``."""
        with self.store.transaction() as run:
            run.execute(
                "update site set epoch = epoch + 1, clock = clock + 1, weight = '0/1', mass = x'',"
                " phase = 'ready', state = 'active', round = ?",
                (round,),
            )
            run.execute("delete from outbox")
            run.execute("delete from inbox")

    def write_off(self, names: Collection[str]) -> None:
        """Give up the shares for members that a new manifest has removed, and put that on record."""
        with self.store.transaction() as run:
            for name in names:
                run.execute(
                    "insert into written_off select receiver, round, weight from outbox"
                    " where receiver = ?",
                    (name,),
                )
                run.execute("delete from outbox where receiver = ?", (name,))

    def hello(self, peer: str, *, time: int, answer: bool = False) -> Hello:
        """This site's present state, for ``peer``."""
        with self.store.reading() as run:
            stamp = self.stamp()
            here = self.position()
            owed = run.execute(
                "select round from outbox where receiver = ? order by round limit ?",
                (peer, MOST_LISTED),
            ).fetchall()
            stored = run.execute(
                "select round from verdicts where sender = ? and outcome = 'stored'"
                " order by round desc limit ?",
                (peer, MOST_LISTED),
            ).fetchall()
        released = here.round if here.phase == "ready" else here.round + 1
        return Hello(
            *self._start(peer, stamp),
            manifest=self.manifest,
            accepted=self.accepted,
            round=released,
            state=here.state,
            owed=tuple(round for (round,) in owed),
            stored=tuple(round for (round,) in stored),
            time=time,
            answer=answer,
        )

    def unsettled(self, peer: str) -> list[tuple[Share, bytes]]:
        """The shares that ``peer`` has given no verdict on, oldest first."""
        with self.store.reading() as run:
            rows = run.execute(
                "select version, epoch, boot, tag, clock, round, weight, sha256, frame from outbox"
                " where receiver = ? order by round",
                (peer,),
            ).fetchall()
        found = []
        for version, epoch, boot, tag, clock, round, weight, sha256, frame in rows:
            stamp = Stamp(epoch, boot, tag, clock)
            start = (self.federation, version, self.me, peer, *_numbers(stamp))
            share = Share(*start, round=round, weight=weight, size=len(frame), sha256=sha256)
            found.append((share, frame))
        return found

    def owed_to(self) -> set[str]:
        """Peers with unsettled shares."""
        with self.store.reading() as run:
            rows = run.execute("select distinct receiver from outbox").fetchall()
        return {name for (name,) in rows}

    def _start(self, peer: str, stamp: Stamp) -> tuple[str, int, str, str, int, int, str, int]:
        return (self.federation, self.version, self.me, peer, *_numbers(stamp))

    def handle(self, header: Header, body: bytes, *, time: int) -> Header | None:
        """Take one message that is authentic and for this site; return the answer, if one is due."""
        if isinstance(header, Hello):
            return self._take_hello(header, time)
        if isinstance(header, Share):
            return self._take_share(header, body)
        if isinstance(header, Verdict):
            self._take_verdict(header)
        if isinstance(header, Restored):
            self._take_restored(header)
        return None

    def _take_hello(self, hello: Hello, time: int) -> Header | None:
        with self.store.transaction() as run:
            known = self.peer(hello.sender)
            if hello.stamp.behind(known.stamp):
                return Restored(
                    *self._start(hello.sender, self.stamp()),
                    *_numbers(known.stamp),
                    seen_round=known.round,
                )
            run.execute(
                "insert or replace into peers values (?,?,?,?,?,?,?,?,?)",
                (
                    hello.sender,
                    *_numbers(hello.stamp),
                    max(known.round, hello.round),
                    hello.state if known.state != "left" else "left",
                    hello.accepted,
                    hello.version,
                ),
            )
            if hello.state == "left":
                self._take_back(hello)
        if hello.answer:
            self._admitted.add(hello.sender)
        self._notify()
        return None if hello.answer else self.hello(hello.sender, time=time, answer=True)

    def _take_back(self, hello: Hello) -> None:
        """A peer that has left stores nothing more: what it does not list as stored is ours."""
        for share, _ in self.unsettled(hello.sender):
            stored = share.round in hello.stored
            self._settle(hello.sender, share.round, share.sha256, stored=stored)

    def _take_share(self, share: Share, frame: bytes) -> Verdict:
        with self.store.transaction() as run:
            earlier = run.execute(
                "select sha256, outcome, reason from verdicts where version = ? and round = ?"
                " and sender = ?",
                (share.version, share.round, share.sender),
            ).fetchone()
            if earlier is not None:
                sha256, outcome, reason = earlier
                if sha256 != share.sha256:
                    outcome, reason = "refused", "another share has this round and sender"
                return self._verdict(share, outcome, reason)
            put_off = self._reason_to_wait(share)
            if put_off:
                return self._verdict(share, "again", put_off)
            outcome, reason = "stored", ""
            refusal = self._reason_to_refuse(share, frame)
            if refusal:
                outcome, reason = "refused", refusal
            else:
                run.execute(
                    "insert into inbox values (?, ?, ?, '', ?, ?)",
                    (share.sender, share.round, share.version, share.weight, frame),
                )
            run.execute(
                "insert into verdicts values (?,?,?,?,?,?)",
                (share.version, share.round, share.sender, share.sha256, outcome, reason),
            )
            run.execute("update site set clock = clock + 1")
        self._notify()
        return self._verdict(share, outcome, reason)

    def _reason_to_wait(self, share: Share) -> str:
        known = self.peer(share.sender).stamp
        if (share.epoch, share.boot) > (known.epoch, known.boot):
            return "say hello first"
        with self.store.reading() as run:
            waiting = run.execute(
                "select count(*) from inbox where sender = ? and returned_by = ''", (share.sender,)
            ).fetchone()[0]
        return "too many shares wait to be added" if waiting >= MOST_UNAPPLIED else ""

    def _reason_to_refuse(self, share: Share, frame: bytes) -> str:
        if self.position().state != "active":
            return "the receiver has left the federation"
        if share.round >= self.rounds:
            return f"round {share.round} is beyond the last, {self.rounds - 1}"
        try:
            self._check(share, frame)
        except TransportError as error:
            return str(error)[:400]
        return ""

    def _verdict(self, share: Share, outcome: str, reason: str) -> Verdict:
        start = self._start(share.sender, self.stamp())
        return Verdict(
            *start,
            round=share.round,
            sha256=share.sha256,
            outcome=outcome,  # type: ignore[arg-type]  # read back from the store as it was written
            reason=reason,
        )

    def _take_verdict(self, verdict: Verdict) -> None:
        if verdict.outcome == "again":
            return
        stored = verdict.outcome == "stored"
        with self.store.transaction():
            self._settle(verdict.sender, verdict.round, verdict.sha256, stored=stored)
        self._notify()

    def _settle(self, receiver: str, round: int, sha256: str, *, stored: bool) -> None:
        with self.store.transaction() as run:
            key = (receiver, round, sha256)
            if not stored:
                run.execute(
                    "insert into inbox select ?, round, version, receiver, weight, frame"
                    " from outbox where receiver = ? and round = ? and sha256 = ?",
                    (self.me, *key),
                )
            run.execute("delete from outbox where receiver = ? and round = ? and sha256 = ?", key)
            run.execute("update site set clock = clock + 1")

    def _take_restored(self, answer: Restored) -> None:
        if self.stamp().behind(answer.seen):
            raise RestoredError(
                f"{answer.sender!r} has seen this site further (round {answer.seen_round}) than "
                "its store knows: the store is an old backup, or another copy of this site runs. "
                "Going on would send the same mass twice. Bring the newer store back, or run "
                f"`proxyfl node rejoin --round {answer.seen_round}`: the site then goes on without "
                "mass, and charges the rounds it does not remember to its ledger."
            )


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


def _numbers(stamp: Stamp) -> tuple[int, int, str, int]:
    return stamp.epoch, stamp.boot, stamp.tag, stamp.clock
