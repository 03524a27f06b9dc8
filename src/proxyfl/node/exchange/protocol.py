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

import threading
from collections.abc import Callable
from dataclasses import replace

from proxyfl.errors import ProxyFLError, TransportError
from proxyfl.node.exchange.books import Books
from proxyfl.node.exchange.messages import (
    MOST_LISTED,
    Header,
    Hello,
    Restored,
    Share,
    Stamp,
    Verdict,
)
from proxyfl.node.members.manifest import MOST_ROUNDS

MOST_UNAPPLIED = 4
"""Shares of one peer that wait in the inbox; more are put off until some have been added."""

Check = Callable[[Share, bytes | memoryview], None]
"""Raises TransportError if a share's frame must not be stored."""


class RestoredError(ProxyFLError):
    """A peer has seen more of this site than the site itself knows: it runs from an old backup."""


class Exchange:
    """One site's side of the exchange, over its books."""

    def __init__(self, books: Books, check: Check) -> None:
        self.books = books
        self.manifest = ""
        self.accepted = ""
        self.has_ended = False
        self.decided: Callable[[Verdict], None] = lambda verdict: None
        """Is told each verdict that decides something, this site's and its peers'; no other."""
        self._check = check
        self._admitted: set[str] = set()
        self._hellos: dict[str, Hello] = {}
        self._told: dict[str, Hello] = {}
        self._stored: dict[str, int] = {}
        self._changed = threading.Condition()
        self._changes = 0
        self._seen = 0

    def wait(self, seconds: float = 0.5) -> None:
        """Return when something has changed since this last returned, or after ``seconds``.

        One thread waits: the one that runs the rounds."""
        with self._changed:
            self._changed.wait_for(lambda: self._changes != self._seen, seconds)
            self._seen = self._changes

    def notify(self) -> None:
        """Wake whoever waits."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def admitted(self, name: str) -> bool:
        """True if ``name`` has answered a hello of this start of the program."""
        return name in self._admitted

    def owes_nothing(self, peer: str, round: int) -> bool:
        """True if ``peer`` has released ``round`` and has no share for this site on its way."""
        last = self._hellos.get(peer)
        if last is None or not (last.ended or last.round > round):
            return False
        return not any(other <= round for other in last.owed)

    def ended(self, peer: str) -> bool:
        """True if ``peer`` has said that it releases nothing more."""
        last = self._hellos.get(peer)
        return last is not None and last.ended

    def was_told(self, hello: Hello) -> None:
        """Remember that ``hello`` has reached its receiver."""
        self._told[hello.receiver] = hello

    def was_not_told(self, peer: str) -> None:
        """The last hello for ``peer`` did not reach it."""
        self._told.pop(peer, None)

    def knows_the_end(self, peer: str) -> bool:
        """True if ``peer`` was told that this site releases nothing more, or that it has left.

        A peer that has stored the last round's share knows it, too."""
        state = self.books.position().state
        last = self.books.rounds
        if state == "active" and self._stored.get(peer, -1) + 1 >= last:
            return True
        told = self._told.get(peer)
        if told is None or told.state != state:
            return False
        return told.ended or told.round >= last

    def hello(self, peer: str, *, time: int, answer: bool = False) -> Hello:
        """This site's present state, for ``peer``."""
        with self.books.store.reading() as run:
            stamp = self.books.stamp()
            here = self.books.position()
            owed = run.execute(
                "select round from outbox where receiver = ? order by round limit ?",
                (peer, MOST_LISTED),
            ).fetchall()
            stored = run.execute(
                "select round from verdicts where sender = ? and outcome = 'stored'"
                " order by round desc limit ?",
                (peer, MOST_LISTED),
            ).fetchall()
            return Hello(
                *self._start(peer, stamp),
                manifest=self.manifest,
                accepted=self.accepted,
                round=here.released,
                since=here.since,
                state=here.state,
                owed=tuple(round for (round,) in owed),
                stored=tuple(round for (round,) in stored),
                ended=self.has_ended,
                time=time,
                answer=answer,
            )

    def _start(
        self, peer: str, stamp: Stamp
    ) -> tuple[str, int, str, str, int, int, str, int]:
        return (
            self.books.federation,
            self.books.version,
            self.books.me,
            peer,
            *stamp.numbers,
        )

    def handle(
        self, header: Header, body: bytes | memoryview, *, time: int
    ) -> Header | None:
        """Take one message that is authentic and for this site; return the answer, if any."""
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
        with self.books.store.transaction():
            known = self.books.peers.known(hello.sender)
            same_epoch = hello.epoch == known.stamp.epoch
            fewer_rounds = same_epoch and hello.round < known.round
            if fewer_rounds or hello.stamp.behind(known.stamp):
                return self._restored(hello, known.stamp, known.round)
            before = known.before
            if hello.epoch > known.stamp.epoch:
                before = max(before, known.round)
            if hello.since < before:
                earlier = Stamp(max(0, hello.epoch - 1), 0, "", 0)
                return self._restored(hello, earlier, before)
            news = replace(
                known,
                stamp=hello.stamp,
                round=max(known.round, hello.round),
                state=hello.state if known.state != "left" else "left",
                accepted=hello.accepted,
                version=hello.version,
                before=before,
            )
            # Most hellos say nothing new, and a write waits for the disk.
            if news != known:
                self.books.peers.remember(news)
            if hello.state == "left":
                self._take_back(hello)
            self._hellos[hello.sender] = hello
        if hello.answer:
            self._admitted.add(hello.sender)
        self.notify()
        if hello.answer:
            return None
        answer = self.hello(hello.sender, time=time, answer=True)
        self.was_told(answer)
        return answer

    def _restored(self, hello: Hello, seen: Stamp, round: int) -> Restored:
        start = self._start(hello.sender, self.books.stamp())
        return Restored(*start, *seen.numbers, seen_round=round)

    def _take_back(self, hello: Hello) -> None:
        """A peer that has left stores nothing more: what it does not list as stored is ours."""
        for share, _ in self.books.unsettled(hello.sender):
            stored = share.round in hello.stored
            self.books.settle(
                hello.sender, share.round, share.sha256, stored=stored
            )

    def _take_share(self, share: Share, frame: bytes | memoryview) -> Verdict:
        if share.round >= MOST_ROUNDS:
            raise TransportError(
                f"A share of round {share.round}: no manifest has it."
            )
        with self.books.store.transaction() as run:
            self.books.peers.saw_release(share, self.books.rounds)
            earlier = run.execute(
                "select sha256, outcome, reason from verdicts where version = ? and round = ?"
                " and sender = ?",
                (share.version, share.round, share.sender),
            ).fetchone()
            if earlier is not None:
                sha256, outcome, reason = earlier
                if sha256 != share.sha256:
                    outcome, reason = (
                        "refused",
                        "another share has this round and sender",
                    )
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
                    (
                        share.sender,
                        share.round,
                        share.version,
                        share.weight,
                        self.books.store.frames.put(frame),
                    ),
                )
            run.execute(
                "insert into verdicts values (?,?,?,?,?,?)",
                (
                    share.version,
                    share.round,
                    share.sender,
                    share.sha256,
                    outcome,
                    reason,
                ),
            )
            run.execute("update site set clock = clock + 1")
        self.notify()
        verdict = self._verdict(share, outcome, reason)
        self.decided(verdict)
        return verdict

    def _reason_to_wait(self, share: Share) -> str:
        known = self.books.peers.known(share.sender).stamp
        if (share.epoch, share.boot) > (known.epoch, known.boot):
            return "say hello first"
        if share.version > self.books.version:
            return (
                f"version {share.version} of the manifest is not accepted here yet"
            )
        with self.books.store.reading() as run:
            waiting = run.execute(
                "select count(*) from inbox where sender = ? and returned_by = ''",
                (share.sender,),
            ).fetchone()[0]
        return (
            "too many shares wait to be added" if waiting >= MOST_UNAPPLIED else ""
        )

    def _reason_to_refuse(self, share: Share, frame: bytes | memoryview) -> str:
        if self.books.position().state != "active":
            return "the receiver has left the federation"
        if share.round >= self.books.rounds:
            return (
                f"round {share.round} is beyond the last, {self.books.rounds - 1}"
            )
        try:
            self._check(share, frame)
        except TransportError as error:
            return " ".join(str(error).split())[:400]
        return ""

    def _verdict(self, share: Share, outcome: str, reason: str) -> Verdict:
        start = self._start(share.sender, self.books.stamp())
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
        key = (verdict.sender, verdict.round, verdict.sha256)
        if self.books.settle(*key, stored=stored):
            if stored:
                self._stored[verdict.sender] = verdict.round
            self.decided(verdict)
            self.notify()

    def _take_restored(self, answer: Restored) -> None:
        stamp = self.books.stamp()
        here = self.books.position()
        if answer.seen.epoch < stamp.epoch:
            # This epoch has paid for the rounds before it; this peer has seen more of them.
            forgot = answer.seen_round > here.since
        else:
            forgot = answer.seen_round > here.released
        if forgot or stamp.behind(answer.seen):
            raise RestoredError(
                f"{answer.sender!r} has seen this site further (round {answer.seen_round}) than "
                "its store knows: the store is an old backup, or another copy of this site runs. "
                "To continue would send the same mass twice. Bring the newer store back, or run "
                f"`proxyfl node rejoin --round {answer.seen_round}`: the site then continues "
                "without mass, and charges the rounds it does not remember to its ledger."
            )
