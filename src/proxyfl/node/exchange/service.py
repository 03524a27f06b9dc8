"""A site's answers to the bytes that reach it: who may speak, and for whom.

Guarantees:
    * a message is heard only if a member signed it, it is for this site and this federation, and,
      where it came over a connection, the connection's certificate holds the same member's key;
    * a member whose manifest of a known version differs from this site's, or that has not signed
      it, is refused;
    * whatever else arrives changes nothing: it is refused, counted and logged;
    * what is relayed is sealed: the relay learns who writes to whom, and how much.
"""

import itertools
import json
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from proxyfl.errors import ProxyFLError, RunError, TransportError
from proxyfl.node.exchange import messages
from proxyfl.node.exchange.messages import Header, Hello, Verdict
from proxyfl.node.exchange.protocol import Exchange, RestoredError
from proxyfl.node.members.card import fingerprint_of, from_hex
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.roster import Roster
from proxyfl.node.observe.auditlog import AuditLog

RELAY = b"PFLRELAY"
RELAYED = b"proxyfl relay"
ABOUT = b"PFLABOUT"
"""A member's question before it takes part: which manifest, and what time is it there?"""
MOST_QUEUED = 4
"""Messages that wait for a peer that dials in; a share that finds no room is sent again later."""
MOST_RELAYED = 2
"""Of these, messages that one other member asked to pass on: it cannot shut the others out."""


def about(manifest: Manifest) -> bytes:
    """The answer to ``ABOUT``."""
    found = {
        "version": manifest.version,
        "hash": manifest.digest,
        "time": time.time(),
    }
    return json.dumps(found).encode()


class Service:
    """One site's ears and mouth."""

    def __init__(
        self, identity: Identity, roster: Roster, exchange: Exchange, log: AuditLog
    ) -> None:
        self.identity = identity
        self.roster = roster
        self.exchange = exchange
        exchange.decided = self._log_decision
        self.log = log
        self.traffic: Counter[str] = Counter()
        self.contact: dict[str, float] = {}
        """When each peer was last heard from, on a clock that nobody sets (``time.monotonic``)."""
        self.skew: dict[str, float] = {}
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
            start = _gathered(pieces)
            if start.startswith(RELAY):
                return self._pass_on(peer, b"".join([start, *pieces]))
            if start == ABOUT:
                return about(self.roster.current)
            return self.take(start, pieces, via=peer)
        except ProxyFLError as error:
            raise TransportError(str(error)) from error

    def take(
        self, message: bytes, rest: Iterable[bytes] = (), *, via: str | None
    ) -> bytes:
        """Handle one message that came over ``via``'s connection, or sealed (None).

        Its body may go on in ``rest``: that is not read before the header is known to be signed
        by a member, for this site."""
        header, begun = messages.begin(message)
        self._check_addresses(header, via)
        messages.check_signature(message, self.roster.current.member(header.sender))
        if isinstance(header, Hello):
            self._check_manifest(header)
        size = messages.body_size(header)
        pieces: Iterable[bytes | memoryview] = itertools.chain([begun], rest)
        with self.exchange.books.store.frames.receiving(pieces, size) as arrived:
            messages.check_body(header, arrived.sha256)
            self._note(header, len(message) - len(begun) + size)
            answer = self._handled(header, arrived.frame)
        self.on_contact(header.sender)
        return answer

    def _handled(self, header: Header, body: bytes | memoryview) -> bytes:
        try:
            answer = self.exchange.handle(header, body, time=int(time.time()))
        except RestoredError as error:
            self.behind = error
            self.log.add("restored from an old backup", peer=header.sender)
            self.exchange.notify()
            raise
        return b"" if answer is None else messages.pack(answer, self.identity)

    def check_behind(self) -> None:
        """Raise RestoredError if a peer has seen this site further than it knows itself.

        Raise RunError if what goes out has failed for good: a full disk, a broken store."""
        if self.behind is not None:
            raise self.behind
        if self.failure is not None:
            raise RunError(
                f"This site can send no more: {self.failure}"
            ) from self.failure

    def opened(self, message: bytes) -> bytes:
        """The message within a sealed one for this site."""
        receiver, sealed = _unwrapped(message)
        if receiver != self.identity.name:
            raise TransportError(f"A relayed message is for {receiver!r:.60}.")
        return self.identity.open_sealed(sealed, RELAYED)

    def sealed(self, message: bytes, receiver: str) -> bytes:
        """``message`` so that a relay can pass it on and only ``receiver`` can read it."""
        name = receiver.encode()
        content = self.roster.current.member(receiver).seal(message, RELAYED)
        return RELAY + bytes([len(name)]) + name + content

    def follow(
        self, certificate: bytes, listens: Callable[[], bool]
    ) -> Iterator[bytes]:
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

    def dialled_in(self, peer: str) -> bool:
        """True if ``peer`` holds a stream to this site."""
        with self._lock:
            return peer in self._queues

    def hand(self, peer: str, message: bytes, *, on_behalf: str = "") -> None:
        """Give ``message`` to a peer that dialled in; ``on_behalf`` of another member, relay it."""
        with self._lock:
            waiting = self._queues.get(peer)
        if waiting is None:
            raise TransportError(
                f"{peer!r} is not connected to {self.identity.name!r}."
            )
        others = [sender for sender, _ in tuple(waiting.queue)]
        full = on_behalf and others.count(on_behalf) >= MOST_RELAYED
        try:
            if full:
                raise queue.Full
            waiting.put_nowait((on_behalf, message))
        except queue.Full:
            raise TransportError(
                f"Too many messages wait for {peer!r}. Try later."
            ) from None

    def refused(self, reason: str) -> None:
        """Put on record what the server turned away."""
        self.log.add("refused", reason=reason[:300])

    def member(self, certificate: bytes) -> str:
        """The member that shows ``certificate``; TransportError if there is none."""
        key = fingerprint_of(certificate)
        name = self.roster.named(key)
        if name is None or name == self.identity.name:
            raise TransportError(f"The key {key[:16]}... is not a member's.")
        return name

    def _check_addresses(self, header: Header, via: str | None) -> None:
        current = self.roster.current
        if header.federation != current.federation:
            raise TransportError(
                f"A message for {header.federation!r:.80}; this is {current.federation!r}."
            )
        if header.receiver != self.identity.name:
            raise TransportError(
                f"A message for {header.receiver!r:.60}, not for this site."
            )
        if (
            header.sender not in current.names()
            or header.sender == self.identity.name
        ):
            raise TransportError(
                f"A message from {header.sender!r:.60}, who is no other member."
            )
        if via is not None and header.sender != via:
            raise TransportError(
                f"{via!r} sent a message in the name of {header.sender!r}."
            )

    def _check_manifest(self, hello: Hello) -> None:
        """Refuse a member that has agreed to something else under the same number."""
        known = self.roster.versions.get(hello.version)
        if known is None:
            return
        if hello.manifest != known.digest:
            raise TransportError(
                f"{hello.sender!r} has another version {hello.version} of the manifest than "
                f"{self.identity.name!r}. Compare its hash by `proxyfl federation show`."
            )
        signature = from_hex("accepted", hello.accepted)
        self.roster.current.member(hello.sender).verify(
            signature, known.acceptance()
        )

    def _pass_on(self, peer: str, message: bytes) -> bytes:
        receiver, _ = _unwrapped(message)
        if receiver not in self.roster.current.names():
            raise TransportError(
                f"{peer!r} asks to relay to {receiver!r:.60}, who is no member."
            )
        self.hand(receiver, message, on_behalf=peer)
        self.traffic["messages_relayed"] += 1
        return b""

    def _note(self, header: Header, size: int) -> None:
        known = header.sender in self.contact
        self.contact[header.sender] = time.monotonic()
        self.traffic["bytes_received"] += size
        self.traffic["messages_received"] += 1
        if isinstance(header, Hello):
            self.skew[header.sender] = header.time - time.time()
            if not known:
                about: dict[str, Any] = {
                    "version": header.version,
                    "round": header.round,
                }
                self.log.add("connected", peer=header.sender, **about)

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


def _gathered(pieces: Iterator[bytes]) -> bytes:
    """The start of a message, with all of its head if it has one."""
    start = b""
    while len(start) < messages.HEAD_LIMIT:
        piece = next(pieces, b"")
        if not piece:
            break
        start += piece
    return start


def _unwrapped(message: bytes) -> tuple[str, bytes]:
    start = len(RELAY) + 1
    if len(message) <= start:
        raise TransportError("A relayed message without a receiver.")
    length = message[start - 1]
    name = message[start : start + length]
    try:
        return name.decode("ascii"), message[start + length :]
    except UnicodeDecodeError as error:
        raise TransportError(
            "A relayed message names its receiver in odd letters."
        ) from error
