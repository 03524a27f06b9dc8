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
    * nothing is taken from a copy of a site that does not remember what was seen of another copy
      (``history``); it is told so, and sends nothing more.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from proxyfl._command import command
from proxyfl.errors import ProxyFLError, TransportError
from proxyfl.node.exchange.history import RECENT, Peer, Sighting, explains, merge_sightings
from proxyfl.node.exchange.messages import (
    MOST_LISTED,
    Header,
    Hello,
    Parcel,
    Restored,
    Share,
    Stamp,
    State,
    Summand,
    Verdict,
)
from proxyfl.node.exchange.store import Arrived, Books
from proxyfl.node.members.manifest import MOST_ROUNDS

MOST_UNAPPLIED = 4
"""Shares of one peer that wait in the inbox; more are deferred until some have been added."""

LONG_PROOF = 4000
"""Next to a proof of so many characters, a message has room for fewer chapters."""

Start = tuple[str, int, str, str, int, int, str, int]
"""The fields with which every header begins."""

Check = Callable[[Share, bytes | memoryview], str]
"""Raises TransportError if a share must not be stored, NotYet if it may be later. Returns the note
to put on record with the verdict."""


class NotYet(TransportError):
    """A share that cannot be decided on now; its sender is asked to try again."""


class RestoredError(ProxyFLError):
    """A peer has seen of this site what the site itself does not remember: it runs from an old
    backup, or another copy of it runs."""


class Sums(Protocol):
    """The part of masked sums in the messages of a site (``proxyfl.node.summing.Desk``). Each
    method is called under the store's lock."""

    def spell(self) -> str:
        """Spells what a hello says about this site."""
        ...

    def hear(self, hello: Hello) -> None:
        """Take note of what a hello says."""
        ...

    def take(self, header: Summand | Parcel, body: bytes | memoryview) -> None:
        """Keep what a member has sent; TransportError if it is of no use."""
        ...

    def owed_to(self) -> set[str]:
        """The peers that lack something which this site has for them."""
        ...

    def outgoing(self, peer: str, start: Start) -> list[tuple[Header, bytes]]:
        """The messages for ``peer``, whose headers begin with ``start``."""
        ...

    def is_behind(self, peer: str) -> bool:
        """True if ``peer`` may still need this site's proxy."""
        ...


class Exchange:
    """One site's side of the exchange, over its books."""

    def __init__(self, books: Books, check: Check) -> None:
        self.books = books
        self.store = books.store
        self.peers = books.peers
        self.history = books.history
        self.manifest = ""
        self.accepted = ""
        self.has_ended = False
        self.decided: Callable[[Verdict], None] = lambda verdict: None
        """Is told each verdict that decides something, this site's and its peers'; no other."""
        self.check_claim: Callable[[str, Sighting, str], Sighting] = lambda peer, seen, proof: seen
        """Returns what is proven of a place that a peer claims to have seen of this site and that
        the site does not remember; raises TransportError if nothing is."""
        self.sums: Sums | None = None
        """Takes the place of shares in a federation whose proxy is trained by masked sums."""
        self._check = check
        self._admitted: set[str] = set()
        self._hellos: dict[str, Hello] = {}
        self._told: dict[str, Hello] = {}
        self._stored: dict[str, int] = {}
        self._asked: dict[str, set[str]] = {}
        """The chapters that a peer wants to be shown, by their tags."""
        self.is_rejoining = False
        """True while this site asks what its peers have seen of it: it then takes no share, and
        collects evidence instead of stopping."""
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
        """Wakes all threads that wait."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def is_admitted(self, name: str) -> bool:
        """True if ``name`` has answered a hello of this start of the program."""
        return name in self._admitted

    def last_hello(self, peer: str) -> Hello | None:
        """The last hello of ``peer`` that was taken in since this start of the program."""
        return self._hellos.get(peer)

    def owes_nothing(self, peer: str, round: int) -> bool:
        """True if ``peer`` has released ``round`` and has no share for this site on its way."""
        last = self._hellos.get(peer)
        if last is None or not (last.ended or last.round > round):
            return False
        return not any(other <= round for other in last.owed)

    def has_peer_ended(self, peer: str) -> bool:
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

        A peer that has released its last round needs to know no more than that this site has, too:
        by the share, or by a hello from before the end. One that is behind must be told of the end
        itself, or it waits for this site (``Reachability.possible``)."""
        state = self.books.position().state
        last = self.books.rounds
        told = self._told.get(peer)
        if told is not None and told.state != state:
            told = None
        if told is not None and told.ended:
            return True
        if self.peers.known(peer).round < last:
            return False
        if state == "active" and self._stored.get(peer, -1) + 1 >= last:
            return True
        return told is not None and told.round >= last

    def hello(self, peer: str, *, time: int, answer: bool = False) -> Hello:
        """This site's present state, for ``peer``."""
        with self.store.reading():
            stamp = self.books.stamp()
            here = self.books.position()
            paid, debt = self.books.settlement()
            return Hello(
                *self._start(peer, stamp),
                manifest=self.manifest,
                accepted=self.accepted,
                round=here.released,
                past=self.history.ends(also=self._asked.get(peer, ())),
                paid=paid,
                debt=debt,
                state=here.state,
                owed=self.books.owed_rounds(peer, most=MOST_LISTED),
                stored=self.books.rounds_stored(peer, most=MOST_LISTED),
                ended=self.has_ended,
                time=time,
                answer=answer,
                masked="" if self.sums is None else self.sums.spell(),
            )

    def owed_to(self) -> set[str]:
        """The peers for which something is to be sent."""
        if self.sums is None:
            return self.books.owed_to()
        with self.store.reading():
            return self.sums.owed_to()

    def outgoing(self, peer: str) -> list[tuple[Header, bytes | memoryview]]:
        """The messages, besides hellos, that ``peer`` lacks."""
        if self.sums is None:
            return list(self.books.outbox(peer))
        with self.store.reading():
            return list(self.sums.outgoing(peer, self._start(peer, self.books.stamp())))

    def _start(self, peer: str, stamp: Stamp) -> Start:
        return (self.books.federation, self.books.version, self.books.me, peer, *stamp.numbers)

    @property
    def federation(self) -> str:
        """The federation's name."""
        return self.books.federation

    def receiving(
        self, pieces: Iterable[bytes | memoryview], size: int
    ) -> AbstractContextManager[Arrived]:
        """The body of a message as it arrives; see ``Frames.receiving``."""
        return self.books.receiving(pieces, size)

    def handle(
        self, header: Header, body: bytes | memoryview, *, time: int, proof: str = ""
    ) -> Header | None:
        """Take one message that is authentic and for this site; return the answer, if any.

        ``proof`` is its signed header (``messages.proof_of``)."""
        if isinstance(header, Hello):
            return self._take_hello(header, time, proof)
        if isinstance(header, Summand | Parcel):
            return self._take_sum(header, body, time)
        if isinstance(header, Share):
            if self.sums is not None:
                raise TransportError(
                    f"{header.sender!r} sent a share, and this federation uses masked sums. "
                    "Compare its manifest with this site's."
                )
            return self._take_share(header, body, proof)
        if isinstance(header, Verdict):
            self._take_verdict(header, proof)
        if isinstance(header, Restored):
            self._take_restored(header)
        return None

    def _take_sum(
        self, header: Summand | Parcel, body: bytes | memoryview, time: int
    ) -> Header | None:
        """Hand a message of a masked sum on; the answer says what has arrived.

        Nothing is taken from a copy of a member that its hello has not explained."""
        if self.sums is None:
            raise TransportError(
                f"{header.sender!r} sent a message of a masked sum, and this federation gossips. "
                "Compare its manifest with this site's."
            )
        with self.store.transaction():
            seen = Sighting(header.stamp, 0, ())
            if not self.peers.follow(header.sender, seen):
                raise TransportError("say hello first")
            self.sums.take(header, body)
        self.notify()
        answer = self.hello(header.sender, time=time, answer=True)
        self.was_told(answer)
        return answer

    def _take_hello(self, hello: Hello, time: int, proof: str) -> Header | None:
        with self.store.transaction():
            known = self.peers.known(hello.sender)
            seen = Sighting(hello.stamp, hello.round, hello.past, hello.paid, hello.debt, proof)
            forgotten = self._not_shown(known, seen)
            if forgotten is not None:
                is_related = explains(seen.ends, known.stamp)
                if not is_related and not explains(known.seen.ends, hello.stamp):
                    self.peers.sightings.add(hello.sender, seen)
                return self._report_seen(hello.sender, forgotten)
            news = replace(
                known,
                seen=merge_sightings(known.seen, seen),
                state=_next_state(known, hello),
                accepted=hello.accepted,
                version=hello.version,
                release=hello.release,
                protocol=hello.protocol,
            )
            self.peers.sightings.forget([hello.sender])
            if not self._is_overtaken(hello):
                # Most hellos say nothing new, and a write waits for the disk.
                if news != known:
                    self.peers.remember(news)
                if hello.state == "left":
                    self._take_back(hello)
                self._hellos[hello.sender] = hello
                if self.sums is not None:
                    self.sums.hear(hello)
        if hello.answer:
            self._admitted.add(hello.sender)
        self.notify()
        if hello.answer:
            return None
        answer = self.hello(hello.sender, time=time, answer=True)
        self.was_told(answer)
        return answer

    def _not_shown(self, known: Peer, seen: Sighting) -> Sighting | None:
        """The furthest place that was seen of the peer and that it does not show, if any."""
        places = self.peers.sightings.of(known.name)
        if known.stamp.tag:
            places.append(known.seen)
        ends = seen.ends
        forgotten = [place for place in places if not explains(ends, place.stamp)]
        return max(forgotten, key=lambda place: place.round, default=None)

    def _is_overtaken(self, hello: Hello) -> bool:
        """True if the sender said later, at the same place of its history, that it had accepted
        another version of the manifest or had ended: neither changes its store's clock."""
        last = self._hellos.get(hello.sender)
        if last is None or last.stamp != hello.stamp:
            return False
        return (hello.version, hello.ended) < (last.version, last.ended)

    def is_late(self, hello: Hello) -> bool:
        """True if ``hello`` is of an earlier place in the history that its sender shows.

        Most often a newer message has overtaken it. A machine that was set back with its memory
        says the same; it stops when it reads the answer, or is found out by its next release."""
        was_seen = explains(self.peers.known(hello.sender).seen.ends, hello.stamp)
        return was_seen and not self.peers.sightings.of(hello.sender)

    def _report_seen(self, peer: str, seen: Sighting) -> Restored:
        return Restored(
            *self._start(peer, self.books.stamp()),
            *seen.stamp.numbers,
            seen_round=seen.round,
            seen_past=seen.past[: MOST_LISTED if len(seen.proof) < LONG_PROOF else RECENT // 2],
            seen_paid=seen.paid,
            seen_debt=seen.debt,
            proof=seen.proof,
        )

    def _take_back(self, hello: Hello) -> None:
        """A peer that has left stores nothing more: what it does not list as stored is ours."""
        for share, _ in self.books.outbox(hello.sender):
            stored = share.round in hello.stored
            self.books.settle(hello.sender, share.round, share.sha256, stored=stored)

    def _take_share(self, share: Share, frame: bytes | memoryview, proof: str) -> Verdict:
        if share.round >= MOST_ROUNDS:
            raise TransportError(
                f"Rejected a share of round {share.round}: no version of the manifest has that "
                "round."
            )
        with self.store.transaction():
            released = min(share.round + 1, self.books.rounds)
            seen = Sighting(share.stamp, released, share.past, proof=proof)
            follows = self.peers.follow(share.sender, seen)
            earlier = self.books.verdict_on(share.sender, share.round)
            if earlier is not None:
                sha256, outcome, reason = earlier
                if sha256 != share.sha256:
                    outcome, reason = ("refused", "another share has this round and sender")
                return self._verdict(share, outcome, reason)
            put_off = self._reason_to_wait(share, follows=follows)
            if put_off:
                return self._verdict(share, "again", put_off)
            try:
                outcome, reason = "stored", self._note_for(share, frame)
            except NotYet as error:
                return self._verdict(share, "again", _brief(error))
            except TransportError as error:
                outcome, reason = "refused", _brief(error)
            if outcome == "stored":
                self.books.store_share(share, frame)
            self.books.store_verdict(share, outcome, reason)
        self.notify()
        verdict = self._verdict(share, outcome, reason)
        self.decided(verdict)
        return verdict

    def _reason_to_wait(self, share: Share, *, follows: bool) -> str:
        if share.epoch < self.peers.known(share.sender).stamp.epoch:
            return ""
        if not follows or self.peers.sightings.of(share.sender):
            return "say hello first"
        if not self.is_admitted(share.sender) and not self.history.knows(share.meant_for):
            return "it is meant for another copy of the receiver; say hello first"
        if self.is_rejoining:
            return "the receiver is about to rejoin"
        if share.version > self.books.version:
            return f"version {share.version} of the manifest is not accepted here yet"
        return "" if self.has_room(share.sender) else "too many shares wait to be added"

    def has_room(self, sender: str) -> bool:
        """True if another share of ``sender`` can be stored before some have been added."""
        return self.books.count_waiting(sender) < MOST_UNAPPLIED

    def _note_for(self, share: Share, frame: bytes | memoryview) -> str:
        """Raise TransportError unless the share may be stored; return the note on the verdict."""
        if self.books.position().state != "active":
            raise TransportError("the receiver has left the federation")
        if share.epoch < self.peers.known(share.sender).stamp.epoch:
            raise TransportError("the sender has begun again since")
        if share.round >= self.books.rounds:
            raise TransportError(f"round {share.round} is beyond the last, {self.books.rounds - 1}")
        return self._check(share, frame)

    def _verdict(self, share: Share, outcome: str, reason: str) -> Verdict:
        with self.store.reading():
            return Verdict(
                *self._start(share.sender, self.books.stamp()),
                round=share.round,
                sha256=share.sha256,
                outcome=outcome,  # type: ignore[arg-type]  # read back as it was written
                reason=reason,
                released=self.books.position().released,
                past=self.history.ends(),
            )

    def _take_verdict(self, verdict: Verdict, proof: str) -> None:
        with self.store.transaction():
            seen = Sighting(verdict.stamp, verdict.released, verdict.past, proof=proof)
            self.peers.follow(verdict.sender, seen)
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
        if max(answer.seen_round, answer.seen_paid) > MOST_ROUNDS:
            raise TransportError(
                f"{answer.sender!r} says that it has seen round {answer.seen_round} of this site: "
                "no version of the manifest has that round."
            )
        seen = Sighting(
            answer.seen, answer.seen_round, answer.seen_past, answer.seen_paid, answer.seen_debt
        )
        if not self.history.remembers(seen):
            seen = self.check_claim(answer.sender, seen, answer.proof)
        if self._answers_for(seen):
            shown = self._asked.setdefault(answer.sender, set())
            if len(shown) >= MOST_LISTED - RECENT:
                shown.clear()
            shown.add(answer.seen_tag)
            return
        self.books.evidence.add(answer.sender, seen)
        self.notify()
        if not self.is_rejoining:
            raise self._forgotten(answer)

    def _answers_for(self, seen: Sighting) -> bool:
        """True if this site remembers what was seen, or can answer for it at no cost: another copy
        that has released nothing has spent nothing and given nothing away. In masked sums nothing
        is at no cost: a copy may have sent vectors within the round that this site is in."""
        history = self.history
        with self.store.transaction():
            if history.remembers(seen):
                return True
            if self.sums is not None or history.loss(seen):
                return False
            history.answer_for(seen)
            return True

    def _forgotten(self, answer: Restored) -> RestoredError:
        path = self.store.path
        site = "SITE" if path is None else path.parent
        if self.sums is not None:
            return RestoredError(
                f"{answer.sender!r} has seen what this site's store does not remember: the store "
                "is an old backup, or another copy of this site runs. A vector that it has "
                "forgotten is on no ledger here, so it sends no further one. End the other copy, "
                "and bring the newest store and ledger back. If they are lost, this site cannot "
                "go on in this federation."
            )
        return RestoredError(
            f"{answer.sender!r} has seen what this site's store does not remember (the rounds "
            f"before {answer.seen_round}): the store is an old backup, or another copy of this "
            "site runs. To continue would send the same mass twice. Bring the newer store back, or "
            f"run `{command('node', 'rejoin', site)}`: the site then continues without mass, and "
            "charges the rounds that it does not remember to its ledger."
        )


def _next_state(known: Peer, hello: Hello) -> State:
    """A peer's state after ``hello``. One that has left is gone for good; one that leaves does not
    come back within its epoch."""
    if known.state == "left":
        return "left"
    begins_again = hello.epoch > known.stamp.epoch
    if known.state == "leaving" and hello.state == "active" and not begins_again:
        return "leaving"
    return hello.state


def _brief(error: TransportError) -> str:
    return " ".join(str(error).split())[:400]
