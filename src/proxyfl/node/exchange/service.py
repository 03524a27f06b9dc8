"""A site's answers to the bytes that reach it: who may speak, and for whom.

Guarantees:
    * a message is heard only if a member signed it, it is for this site and this federation, and,
      where it came over a connection, the connection's certificate holds the same member's key;
    * a member whose manifest of a known version differs from this site's, or that has not signed
      it, is refused;
    * a member stops this site as an old backup only by a message that this site has signed;
    * whatever else arrives changes nothing: it is refused, counted and logged;
    * what is relayed is sealed: the relay learns who writes to whom, and how much.
"""

import itertools
import json
import math
import queue
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from proxyfl._command import command
from proxyfl.errors import ProxyFLError, RunError, TransportError
from proxyfl.node.exchange import messages
from proxyfl.node.exchange.auditlog import CLOCK_SECONDS, AuditLog
from proxyfl.node.exchange.history import Sighting
from proxyfl.node.exchange.messages import Header, Hello, Restored, Share, Verdict
from proxyfl.node.exchange.protocol import Exchange, RestoredError
from proxyfl.node.members.identity import Card, Identity, IdentityError, fingerprint_of, from_hex
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.roster import Roster
from proxyfl.node.members.versions import RELEASE, SPOKEN

RELAY = b"PFLRELAY"
RELAYED = b"proxyfl relay"
ABOUT = b"PFLABOUT"
"""A member's question before it takes part: which manifest, and what time is it there?"""
MOST_QUEUED = 4
"""Messages that wait for a peer that dials in; a share that finds no room is sent again later."""
MOST_RELAYED = 2
"""Of these, messages that one other member asked to pass on: it cannot shut the others out."""
MOST_STARTS = 16
"""Starts of a peer that are remembered."""


def about(manifest: Manifest) -> bytes:
    """The answer to ``ABOUT``."""
    content = {
        "version": manifest.version,
        "hash": manifest.digest,
        "time": time.time(),
        "release": RELEASE,
        "protocol": SPOKEN,
    }
    return json.dumps(content).encode()


class Service:
    """One site's ears and mouth."""

    def __init__(
        self, identity: Identity, roster: Roster, exchange: Exchange, log: AuditLog
    ) -> None:
        self.identity = identity
        self.roster = roster
        self.exchange = exchange
        exchange.decided = self._log_decision
        exchange.check_claim = self._check_claim
        self.log = log
        self.traffic: Counter[str] = Counter()
        self.contact: dict[str, float] = {}
        """When each peer was last heard from, on a clock that nobody sets (``time.monotonic``)."""
        self.started = time.time()
        self.compares_clocks = True
        """False where messages travel as files: their times say nothing of clocks."""
        self._skews: dict[str, deque[float]] = {}
        self._skew_logged: dict[str, float] = {}
        self.refusals: dict[str, tuple[str, str]] = {}
        """The peers whose last hello was not taken in: a code of ``reasons.CODES`` and why."""
        self.starts: dict[str, deque[float]] = {}
        """When each peer was heard to have started once more, by the clock of ``contact``."""
        self._boots: dict[str, int] = {}
        self._keys: dict[str, str] = {}
        """The public key under which each peer was last heard from."""
        self.on_verdict: Callable[[str, RestoredError], None] = lambda peer, verdict: None
        """Is told which peer has stopped this site, and why, before the site acts on it."""
        self.behind: RestoredError | None = None
        self.failure: Exception | None = None
        self.on_contact: Callable[[str], None] = lambda peer: None
        """Is told who was heard from, when what was said has been taken in."""
        self._queues: dict[str, queue.Queue[tuple[str, bytes]]] = {}
        self._lock = threading.Lock()

    def answer(self, certificate: bytes, pieces: Iterator[bytes]) -> bytes:
        """The answer to what the holder of ``certificate`` sends; TransportError refuses it."""
        try:
            peer = self.member(certificate)
            start = _gather_head(pieces)
            if start.startswith(RELAY):
                return self._pass_on(peer, b"".join([start, *pieces]))
            if start == ABOUT:
                return about(self.roster.current)
            return self.take(start, pieces, via=peer)
        except ProxyFLError as error:
            self.note_failure(error)
            raise TransportError(str(error)) from error

    def take(self, message: bytes, rest: Iterable[bytes] = (), *, via: str | None) -> bytes:
        """Handle one message that came over ``via``'s connection, or sealed (None).

        Its body may go on in ``rest``: that is not read before the header is known to be signed
        by a member, for this site."""
        header, begun = messages.begin(message)
        self._check_addresses(header, via)
        self._check_signature(message, header.sender)
        if isinstance(header, Hello):
            self._admit(header)
        size = messages.body_size(header)
        pieces: Iterable[bytes | memoryview] = itertools.chain([begun], rest)
        with self.exchange.receiving(pieces, size) as arrived:
            messages.check_body(header, arrived.sha256)
            self._note(header, len(message) - len(begun) + size)
            answer = self._handle(header, arrived.frame, messages.proof_of(message))
        self.on_contact(header.sender)
        return answer

    def _handle(self, header: Header, body: bytes | memoryview, proof: str) -> bytes:
        try:
            answer = self.exchange.handle(header, body, time=int(time.time()), proof=proof)
        except RestoredError as error:
            self.on_verdict(header.sender, error)
            self.behind = error
            self.log.add("restored from an old backup", peer=header.sender)
            self.exchange.notify()
            raise
        if isinstance(answer, Restored) and isinstance(header, Hello):
            if self.exchange.is_late(header):
                return messages.pack(answer, self.identity)
            if self.refusals.get(header.sender, ("", ""))[0] != "old-backup":
                self.log.add("second copy", peer=header.sender, round=answer.seen_round)
            self._refuse(
                header.sender,
                "old-backup",
                f"{header.sender} runs from an old backup, or as a second copy. Its own terminal "
                "says what its operator has to do.",
            )
        elif isinstance(header, Hello):
            self.refusals.pop(header.sender, None)
            self._count_starts(header)
        return b"" if answer is None else messages.pack(answer, self.identity)

    def _check_claim(self, peer: str, seen: Sighting, proof: str) -> Sighting:
        """What a peer has proven to have seen of this site, by a message that this site signed.

        Raises TransportError without one: no member can stop a site that has no second copy. Of
        what the message states, the peer's own words change nothing: it can neither lower the
        rounds that a lost copy has released nor hide where the copies parted."""
        me = self.identity.name
        cards = [self.roster.card(me), *self.roster.former_cards(me)]
        signed = messages.check_proof(proof, cards)
        federation = self.exchange.federation
        if (
            signed is None
            or (signed.federation, signed.sender, signed.receiver) != (federation, me, peer)
            or signed.tag != seen.stamp.tag
        ):
            self.log.add("claim without proof", peer=peer, round=seen.round)
            raise TransportError(
                f"{peer!r} claims to have seen rounds of this site before {seen.round} that its "
                "store does not remember, and shows no message of this site that proves it. This "
                f"site goes on. Ask the operator of {peer!r}."
            )
        past = signed.past if isinstance(signed, Hello | Share | Verdict) else ()
        ends = messages.parse_ends(past)
        # Further back than the message tells, the peer's word is all there is.
        for tag, clock in messages.parse_ends(seen.past).items():
            ends.setdefault(tag, clock)
        spelled = [messages.spell_end(tag, clock) for tag, clock in ends.items()]
        return Sighting(
            signed.stamp,
            _count_released(signed),
            tuple(spelled[: messages.MOST_LISTED]),
            signed.paid if isinstance(signed, Hello) else seen.paid,
            signed.debt if isinstance(signed, Hello) else seen.debt,
        )

    def _admit(self, hello: Hello) -> None:
        """Check a hello's manifest, and keep on record why it was refused."""
        try:
            self._check_manifest(hello)
        except ProxyFLError as error:
            self._refuse(hello.sender, "other-manifest", str(error))
            raise

    def _refuse(self, peer: str, code: str, text: str) -> None:
        self.refusals[peer] = (code, text)
        self.exchange.notify()

    def check_behind(self) -> None:
        """Raise RestoredError if a peer has seen this site further than it knows itself.

        Raise RunError if what comes or goes has failed for good (a full disk, a broken store), and
        TransportError if sending has ended for any other reason."""
        if self.behind is not None:
            raise self.behind
        if isinstance(self.failure, RunError):
            raise RunError(f"This site cannot go on: {self.failure}") from self.failure
        if self.failure is not None:
            kind = type(self.failure).__name__
            raise TransportError(
                f"This site can send no more ({kind}): {self.failure} Nothing is lost. Start it "
                "again, and report this if it comes back."
            ) from self.failure

    def note_failure(self, error: Exception) -> None:
        """Let ``check_behind`` raise if this site cannot write what arrives: its disk is full."""
        if isinstance(error, RunError):
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Let ``check_behind`` raise: sending has ended, or nothing can be written."""
        if self.failure is None:
            self.failure = error
            self.exchange.notify()

    def unseal(self, message: bytes) -> bytes:
        """The message within a sealed one for this site."""
        receiver, sealed = _unwrap(message)
        if receiver != self.identity.name:
            raise TransportError(f"A relayed message is for {receiver!r:.60}.")
        return self.identity.open_sealed(sealed, RELAYED)

    def seal(self, message: bytes, receiver: str) -> bytes:
        """``message`` so that a relay can pass it on and only ``receiver`` can read it."""
        name = receiver.encode()
        content = self.roster.card(receiver).seal(message, RELAYED)
        return RELAY + bytes([len(name)]) + name + content

    def follow(self, certificate: bytes, listens: Callable[[], bool]) -> Iterator[bytes]:
        """The messages for a member that dialled in, as they come."""
        peer = self.member(certificate)
        waiting: queue.Queue[tuple[str, bytes]] = queue.Queue(MOST_QUEUED)
        with self._lock:
            self._queues[peer] = waiting
        self.log.add("dialled in", peer=peer)
        try:
            while listens() and self.member(certificate) == peer:
                try:
                    _, message = waiting.get(timeout=0.5)
                    yield message
                except queue.Empty:
                    continue
        finally:
            with self._lock:
                if self._queues.get(peer) is waiting:
                    del self._queues[peer]

    def silence(self, peer: str) -> float:
        """The seconds since ``peer`` was heard from; infinite if it never was."""
        return time.monotonic() - self.contact.get(peer, -math.inf)

    def has_dialled_in(self, peer: str) -> bool:
        """True if ``peer`` holds a stream to this site."""
        with self._lock:
            return peer in self._queues

    def hand(self, peer: str, message: bytes, *, on_behalf: str = "") -> None:
        """Give ``message`` to a peer that dialled in; ``on_behalf`` of another member, relay it."""
        with self._lock:
            waiting = self._queues.get(peer)
        if waiting is None:
            raise TransportError(f"{peer!r} is not connected to {self.identity.name!r}.")
        others = [sender for sender, _ in tuple(waiting.queue)]
        full = on_behalf and others.count(on_behalf) >= MOST_RELAYED
        try:
            if full:
                raise queue.Full
            waiting.put_nowait((on_behalf, message))
        except queue.Full:
            raise TransportError(f"Too many messages wait for {peer!r}. Try later.") from None

    def note_refusal(self, reason: str) -> None:
        """Put on record what the server turned away."""
        self.log.add("refused", reason=reason[:300])

    def member(self, certificate: bytes) -> str:
        """The member that shows ``certificate``; TransportError if there is none."""
        key = fingerprint_of(certificate)
        name = self.roster.name_of(key)
        if name is None or name == self.identity.name:
            former = self.roster.formerly(key)
            if former is not None and former != self.identity.name:
                raise self._refuse_old_key(former)
            raise TransportError(f"The key {key[:16]}... is not a member's.")
        return name

    def _refuse_old_key(self, name: str) -> TransportError:
        """The refusal of a key that ``name`` had before.

        On record until the member shows its present key; a holder of the old one alone cannot make
        it look absent afterwards."""
        version = self.roster.newest.version
        text = (
            f"{name} uses a key that version {version} of the manifest has replaced. Its operator "
            f"runs: {command('node', 'accept', name, 'manifest.toml')}"
        )
        if self._keys.get(name) != self.roster.card(name).public_key:
            self._refuse(name, "manifest-behind", text)
        return TransportError(text)

    def _check_signature(self, message: bytes, sender: str) -> None:
        """Raise unless ``sender`` signed the message with its present key."""
        try:
            messages.check_signature(message, self.roster.card(sender))
        except IdentityError as error:
            if any(_is_signed_by(card, message) for card in self.roster.former_cards(sender)):
                raise self._refuse_old_key(sender) from error
            raise

    def _check_addresses(self, header: Header, via: str | None) -> None:
        current = self.roster.current
        if header.federation != current.federation:
            raise TransportError(
                f"Rejected a message for the federation {header.federation!r:.80}: this site is a "
                f"member of {current.federation!r}."
            )
        if header.receiver != self.identity.name:
            raise TransportError(
                f"Rejected a message for {header.receiver!r:.60}: not for this site."
            )
        if header.sender not in current.names() or header.sender == self.identity.name:
            raise TransportError(
                f"Rejected a message from {header.sender!r:.60}: not another member of this "
                "federation."
            )
        if via is not None and header.sender != via:
            raise TransportError(
                f"Rejected a message: {via!r} sent it in the name of {header.sender!r}."
            )

    def _check_manifest(self, hello: Hello) -> None:
        """Refuse a member that has agreed to something else under the same number."""
        known = self.roster.versions.get(hello.version)
        if known is None:
            return
        if hello.manifest != known.digest:
            raise TransportError(
                f"{hello.sender!r} has another version {hello.version} of the manifest than "
                f"{self.identity.name!r}. Compare the hashes that each site prints: "
                f"{command('preflight', 'SITE')}"
            )
        signature = from_hex("accepted", hello.accepted)
        # By the key that this version lists: the member may have another one since.
        known.member(hello.sender).verify(signature, known.acceptance())

    def _pass_on(self, peer: str, message: bytes) -> bytes:
        receiver, _ = _unwrap(message)
        if receiver not in self.roster.current.names():
            raise TransportError(
                f"Refused to relay for {peer!r} to {receiver!r:.60}, which is not a member."
            )
        self.hand(receiver, message, on_behalf=peer)
        self.traffic["messages_relayed"] += 1
        return b""

    def _note(self, header: Header, size: int) -> None:
        known = header.sender in self.contact
        self.contact[header.sender] = time.monotonic()
        self._keys[header.sender] = self.roster.card(header.sender).public_key
        self.traffic["bytes_received"] += size
        self.traffic["messages_received"] += 1
        if isinstance(header, Hello):
            self._compare_clocks(header)
            if not known:
                about: dict[str, Any] = {"version": header.version, "round": header.round}
                about |= {"release": header.release, "protocol": header.protocol}
                self.log.add("connected", peer=header.sender, **about)

    def _count_starts(self, hello: Hello) -> None:
        """Note when a peer has started again, as often as its hello tells: it may have died before
        a round looked at it."""
        before = self._boots.get(hello.sender, hello.boot)
        self._boots[hello.sender] = max(before, hello.boot)
        starts = self.starts.setdefault(hello.sender, deque(maxlen=MOST_STARTS))
        starts.extend([time.monotonic()] * min(hello.boot - before, MOST_STARTS))

    def _compare_clocks(self, hello: Hello) -> None:
        """Note how far the sender's clock is from this one; put what is far, and new, on record."""
        if not self.compares_clocks:
            return
        name = hello.sender
        self._skews.setdefault(name, deque(maxlen=3)).append(hello.time - time.time())
        skew = self.skew(name) or 0.0
        logged = self._skew_logged.get(name, 0.0)
        far = abs(skew - logged) > CLOCK_SECONDS
        if far and self.log.add("clock differs", peer=name, seconds=round(skew)):
            self._skew_logged[name] = skew

    def skew(self, peer: str) -> float | None:
        """The seconds by which a peer's clock is ahead of this site's; None if it is not known.

        A message that was under way for long makes a clock look late, so the largest of the last
        few values counts."""
        values = self._skews.get(peer)
        return max(values) if values else None

    def federation_time(self) -> float:
        """The time by which dates of the manifest count, in seconds since 1970: the middle of this
        site's clock and those of the peers that were heard from, the earlier of two.

        So one clock that is wrong, this one or another, ends nothing."""
        now = time.time()
        clocks = [now]
        for card in self.roster.others():
            skew = self.skew(card.name)
            if skew is not None:
                clocks.append(now + skew)
        return statistics.median_low(clocks)

    def _log_decision(self, verdict: Verdict) -> None:
        """Put on record what was decided on a share, by this site or by a peer."""
        about = {"round": verdict.round, "reason": verdict.reason}
        stored = verdict.outcome == "stored"
        if verdict.sender == self.identity.name:
            event = "stored" if stored else "refused"
            self.log.add(event, peer=verdict.receiver, **about)
        else:
            event = "delivered" if stored else "returned"
            self.log.add(event, peer=verdict.sender, **about)


def _gather_head(pieces: Iterator[bytes]) -> bytes:
    """The start of a message, with all of its head if it has one."""
    start = b""
    while len(start) < messages.HEAD_LIMIT:
        piece = next(pieces, b"")
        if not piece:
            break
        start += piece
    return start


def _count_released(header: Header) -> int:
    """The first round that the sender of a message had not released, as the message says."""
    if isinstance(header, Hello):
        return header.round
    if isinstance(header, Share):
        return header.round + 1
    return header.released if isinstance(header, Verdict) else 0


def _is_signed_by(card: Card, message: bytes) -> bool:
    try:
        messages.check_signature(message, card)
    except IdentityError:
        return False
    return True


def _unwrap(message: bytes) -> tuple[str, bytes]:
    start = len(RELAY) + 1
    if len(message) <= start:
        raise TransportError("Rejected a relayed message: it names no receiver.")
    length = message[start - 1]
    name = message[start : start + length]
    try:
        return name.decode("ascii"), message[start + length :]
    except UnicodeDecodeError as error:
        raise TransportError("A relayed message names its receiver in odd letters.") from error
