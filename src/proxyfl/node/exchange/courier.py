"""Background sender: schedules hellos and shares for each peer, and takes them there.

A share is sent until its verdict arrives; a hello goes out now and then, and at once when a round
waits for a peer. What a peer does not answer, or puts off, is sent again after a pause that grows
up to ``SLOWEST`` seconds, and so is whatever cannot reach it. Between turns the courier sleeps:
many sites can share a machine. A message takes the first of these ways that there is:

    a folder is set                  seal it, and leave it there
    the peer has an address          call it
    the peer holds a stream to us    hand it over there
    neither                          seal it, and ask any member that both can reach to pass it on

Only a call brings the answer back at once; by the other ways it comes as a message of its own.

Guarantees:
    * what is asked for while a visit is under way still goes out: a time is set before the
      message is made, and never set back afterwards;
    * silent peers do not hold up the others, however many they are: a visit that takes longer
      than ``HUNG`` seconds no longer counts towards the few that run at once;
    * sending does not end in silence: whatever ends the courier's thread is the service's
      ``failure``, with which the site stops. A visit that fails for whatever reason is on record,
      and the peer is visited again.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from proxyfl.errors import PeerRefused, ProxyFLError, TransportError
from proxyfl.node.exchange import messages
from proxyfl.node.exchange.messages import Header, Hello, Share, Summand, Verdict
from proxyfl.node.exchange.service import RELAY, Service
from proxyfl.node.members.identity import Card, Identity, tls_name
from proxyfl.transport.files import Folder


class Client(Protocol):
    """The asking end of a connection (``proxyfl.transport.grpc.client``, imported when used)."""

    def send(self, *parts: bytes | memoryview, timeout: float) -> bytes:
        """The peer's answer to the message that ``parts`` make up."""
        ...

    def follow(self) -> Iterator[bytes]:
        """The peer's messages for this site."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


def dial(card: Card, identity: Identity, *, largest: int) -> Client:
    """A connection to a member with an address, made when first used."""
    from proxyfl.transport.grpc import Credentials
    from proxyfl.transport.grpc.client import Client as Channel

    return Channel(
        card.address,
        tls_name(card.fingerprint),
        credentials=lambda: Credentials(identity.key_pem(), identity.tls_certificate(), card.pem),
        largest=largest,
    )


class Ways:
    """One site's ways to its peers. Use it from any thread."""

    def __init__(
        self, service: Service, *, largest: int, timeout: float, folder: Folder | None
    ) -> None:
        self.service = service
        self.largest = largest
        self.timeout = timeout
        self.folder = folder
        self._lock = threading.Lock()
        self._clients: dict[str, tuple[Card, Client]] = {}
        self._closed = False

    def carry(self, card: Card, head: bytes, body: bytes | memoryview = b"") -> bytes:
        """Take a message to a peer by whichever way there is; the answer, if it came at once."""
        self.service.traffic["bytes_sent"] += len(head) + len(body)
        self.service.traffic["messages_sent"] += 1
        if card.address and self.folder is None:
            return self.client(card).send(head, body, timeout=self.timeout)
        message = b"".join([head, body])
        if self.folder is not None:
            self._leave(self.folder, card, message)
        elif self.service.has_dialled_in(card.name):
            self.service.hand(card.name, message)
        else:
            self._relay(card, message)
        return b""

    def client(self, card: Card) -> Client:
        """The connection to a member with an address."""
        with self._lock:
            if self._closed:
                raise TransportError("This site has closed its connections.")
            known = self._clients.get(card.name)
            if known is not None and known[0] == card:
                return known[1]
            client = dial(card, self.service.identity, largest=self.largest)
            self._clients[card.name] = (card, client)
        if known is not None:  # its address or its key is another one now
            known[1].close()
        return client

    def close(self) -> None:
        """Let go of all connections, for good; calls in progress end."""
        with self._lock:
            self._closed = True
            clients = list(self._clients.values())
            self._clients.clear()
        for _, client in clients:
            client.close()

    def _leave(self, folder: Folder, card: Card, message: bytes) -> None:
        header, _ = messages.begin(message)
        kind = type(header).__name__.lower()
        if isinstance(header, Hello) and header.answer:
            # A slot of its own: a question that was made before must not take its place.
            kind = "answer"
        slot = f"{self.service.identity.name}-{kind}"
        if isinstance(header, Share | Verdict):
            slot += f"-{header.round}"
        if isinstance(header, Summand):
            # A site is at most one step ahead of another, so the one before is not overwritten.
            slot += f"-{header.step % 2}"
        # A share is the same however often it is sent, and sealing it takes time.
        if not (isinstance(header, Share) and folder.holds(card.name, slot)):
            folder.put(self.service.seal(message, card.name), card.name, slot)

    def _relay(self, card: Card, message: bytes) -> None:
        sealed = self.service.seal(message, card.name)
        reason = "no member has an address"
        for relay in self.service.roster.others():
            if not relay.address or relay.name == card.name:
                continue
            try:
                self.client(relay).send(sealed, timeout=self.timeout)
            except TransportError as error:
                reason = str(error)
                continue
            return
        raise TransportError(f"Cannot reach {card.name!r}, which can only dial out: {reason}")


QUICKEST = 0.2
SLOWEST = 15.0

IDLE = 1.0
"""The longest sleep, after which a changed manifest is noticed."""

COLLECT = 0.25
"""The seconds between two looks into the folder."""

HUNG = 10.0

MOST_THREADS = 1000
"""More than a federation has members: each silent one may hold a thread."""


@dataclass(frozen=True)
class Problem:
    """The reason why the last visit to a peer failed; ``refused`` if the peer answered with a
    refusal."""

    text: str = ""
    refused: bool = False


NO_PROBLEM = Problem()


@dataclass
class Turn:
    """One peer's schedule. Times are those of ``time.monotonic``."""

    busy: bool = False
    began: float = 0.0
    """When the visit that is under way began."""
    closed_until: float = 0.0
    """While the peer cannot be reached: the next attempt."""
    pause: float = QUICKEST
    """The pause before that attempt."""
    hello_due: float = 0.0
    shares_due: float = 0.0
    """When unsettled shares are sent again; a new share is sent at once."""
    retry: float = QUICKEST
    """The pause before what was not answered is sent again."""
    reachable: bool = False
    problem: Problem = NO_PROBLEM
    """What was wrong with the last visit."""


class Courier:
    """Runs in the background from ``start`` to ``stop``."""

    def __init__(
        self,
        service: Service,
        *,
        largest: int,
        heartbeat: float = 10.0,
        timeout: float = 60.0,
        folder: Folder | None = None,
        at_once: int = 6,
    ) -> None:
        self.service = service
        self.heartbeat = heartbeat
        self.folder = folder
        self.ways = Ways(service, largest=largest, timeout=timeout, folder=folder)
        self._at_once = at_once
        self._turns: dict[str, Turn] = {}
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="proxyfl-courier")
        self._followers: dict[str, threading.Thread] = {}
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="proxyfl-courier", daemon=True)
        service.on_contact = self._heard_from
        service.compares_clocks = folder is None

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and let go of all connections."""
        with self._lock:
            self._closing.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(10)
        self.ways.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for follower in self._followers.values():
            follower.join(5)

    def send_shares(self, names: Iterable[str]) -> None:
        """There are new shares for these peers."""
        with self._lock:
            for name in names:
                self._turn(name).shares_due = 0.0
        self._wake.set()

    def say_hello(self, names: Iterable[str]) -> None:
        """Tell these peers how far this site is, and so ask how far they are."""
        with self._lock:
            for name in names:
                self._turn(name).hello_due = 0.0
        self._wake.set()

    def reachable(self, name: str) -> bool:
        """True if the last attempt to reach ``name`` succeeded."""
        with self._lock:
            return self._turn(name).reachable

    def problem(self, name: str) -> Problem:
        """The problem with the last visit to ``name``."""
        with self._lock:
            return self._turn(name).problem

    def _turn(self, name: str) -> Turn:
        return self._turns.setdefault(name, Turn())

    def _heard_from(self, name: str) -> None:
        """A peer that speaks can be spoken to: what it is owed need not wait any longer."""
        with self._lock:
            turn = self._turn(name)
            if not turn.reachable:
                turn.pause = QUICKEST
                turn.closed_until = 0.0
        self._wake.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._closing.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            try:
                pause = self._look_around()
            except Exception as error:
                self.service.fail(error)
                return

    def _look_around(self) -> float:
        """Collects the content of the folder, and gives each peer that is due its turn.

        Returns the seconds until something is due again."""
        pause = IDLE
        if self.folder is not None:
            self._collect(self.folder)
            pause = COLLECT
        owed = self.service.exchange.owed_to()
        for card in self.service.roster.others():
            pause = min(pause, self._look_at(card, owes=card.name in owed))
        self._follow_all()
        return pause

    def _look_at(self, card: Card, *, owes: bool) -> float:
        """Give a peer its turn if it is due; return the seconds until one may be."""
        with self._lock:
            turn = self._turn(card.name)
            if turn.busy or self._closing.is_set():
                return IDLE
            wanted_at = turn.hello_due
            if owes and self.service.exchange.is_admitted(card.name):
                wanted_at = min(turn.hello_due, turn.shares_due)
            now = time.monotonic()
            wait = max(wanted_at, turn.closed_until) - now
            if wait > 0:
                return wait
            if not self._has_room(now):
                return HUNG
            turn.busy = True
            turn.began = now
            self._pool.submit(self._visit, card, turn)
        return IDLE

    def _has_room(self, now: float) -> bool:
        under_way = 0
        for turn in self._turns.values():
            if turn.busy and now - turn.began < HUNG:
                under_way += 1
        return under_way < self._at_once

    def _visit(self, card: Card, turn: Turn) -> None:
        """Talk to a peer. Runs in the pool, where nobody sees an exception: all end here."""
        problem = None
        try:
            self._talk(card, turn)
        except Exception as error:
            self.service.note_failure(error)
            problem = Problem(describe(error), isinstance(error, PeerRefused))
        try:
            if problem is not None and not self._closing.is_set():
                about = {"reason": problem.text[:300], "lost": turn.reachable}
                self.service.log.add("unreachable", peer=card.name, **about)
        except Exception as error:  # a log that cannot be written ends the site
            self.service.fail(error)
        finally:
            self._note(turn, problem)
            self._wake.set()
            self.service.exchange.notify()

    def _note(self, turn: Turn, problem: Problem | None) -> None:
        with self._lock:
            turn.busy = False
            turn.reachable = problem is None
            turn.problem = problem or NO_PROBLEM
            if problem is not None:
                turn.closed_until = time.monotonic() + turn.pause
                turn.pause = min(2 * turn.pause, SLOWEST)
                turn.hello_due = 0.0
                turn.shares_due = 0.0
            else:
                turn.pause = QUICKEST

    def _talk(self, card: Card, turn: Turn) -> None:
        """Say hello if it is due, then send what is owed."""
        exchange = self.service.exchange
        name = card.name
        if time.monotonic() >= turn.hello_due:
            known = exchange.is_admitted(name)
            pause = self.heartbeat if known else turn.retry
            turn.hello_due = time.monotonic() + pause
            hello = exchange.hello(name, time=int(time.time()))
            self._send(card, hello)
            exchange.was_told(hello)
        if exchange.is_admitted(name) and time.monotonic() >= turn.shares_due:
            turn.shares_due = time.monotonic() + turn.retry
            for header, body in exchange.outgoing(name):
                self._send(card, header, body)
        owed = exchange.owed_to()
        if exchange.is_admitted(name) and name not in owed:
            turn.retry = QUICKEST
        else:
            turn.retry = min(2 * turn.retry, SLOWEST)

    def _send(self, card: Card, header: Header, body: bytes | memoryview = b"") -> None:
        head = messages.head(header, self.service.identity)
        answer = self.ways.carry(card, head, body)
        if answer:
            reply = self.service.take(answer, via=card.name)
            if reply:  # the answer is not taken in, and the peer is told why
                self.ways.carry(card, reply)

    def _follow_all(self) -> None:
        """A site without an address of its own holds a stream to every member that has one."""
        current = self.service.roster.current
        me = self.service.identity.name
        if self.folder is not None or current.member(me).address:
            return
        for card in self.service.roster.others():
            running = self._followers.get(card.name)
            if card.address and (running is None or not running.is_alive()):
                thread = threading.Thread(target=self._follow, args=(card,), daemon=True)
                self._followers[card.name] = thread
                thread.start()

    def _follow(self, card: Card) -> None:
        """Take what comes over the stream to a peer. Whatever ends it is on record; the next turn
        opens another."""
        try:
            try:
                for message in self.ways.client(card).follow():
                    self.receive(message, via=card.name)
            except Exception as error:
                if not self._closing.is_set():
                    self.service.log.add(
                        "unreachable", peer=card.name, reason=describe(error)[:300]
                    )
        except Exception as error:  # a log that cannot be written ends the site
            self.service.fail(error)
        self._closing.wait(5 * QUICKEST)

    def receive(self, message: bytes, *, via: str | None) -> None:
        """Handle a message that came by stream, relay or file, and send the answer on its way."""
        try:
            if message.startswith(RELAY):
                message = self.service.unseal(message)
                via = None
            answer = self.service.take(message, via=via)
            if answer:
                self._answer(messages.begin(message)[0].sender, answer)
        except ProxyFLError as error:
            self.service.note_failure(error)
            self.service.note_refusal(str(error))

    def _answer(self, sender: str, answer: bytes) -> None:
        card = self.service.roster.card(sender)
        try:
            self.ways.carry(card, answer)
        except ProxyFLError:
            self.service.exchange.was_not_told(sender)
            raise

    def _collect(self, folder: Folder) -> None:
        """Deal with the files that lie there for this site.

        A folder that cannot be read now, a share that is away, is looked at again later."""
        try:
            for path, message in folder.waiting(self.service.identity.name):
                if message.startswith(RELAY):
                    self.receive(message, via=None)
                else:
                    self.service.note_refusal(f"a file that is not sealed: {path.name}")
                path.unlink(missing_ok=True)
        except OSError as error:
            self.service.log.add("unreachable", reason=f"the folder: {error}"[:300])


def describe(error: Exception) -> str:
    """An exception in words; one that is not ours, and so unexpected, with its type."""
    if isinstance(error, ProxyFLError):
        return str(error)
    return f"{type(error).__name__}: {error}"
