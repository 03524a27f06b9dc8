"""Takes messages to peers: over a connection, a stream that the peer holds, a relay, or as a file.

    the peer has an address          call it
    the peer holds a stream to us    hand it over there
    neither                          seal it, and ask any member that both can reach to pass it on
    a folder is set                  seal it, and leave it there

A share is sent until its verdict arrives; a hello goes out now and then, and at once when a round
waits for a peer. One peer's silence does not hold up the others: each has its own turn and its own
pause, which grows up to ``SLOWEST`` seconds while the peer cannot be reached. Between turns the
courier sleeps: many sites can share a machine.
"""

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from proxyfl.errors import ProxyFLError, TransportError
from proxyfl.node.exchange import messages
from proxyfl.node.exchange.messages import Header, Share, Verdict
from proxyfl.node.exchange.service import RELAY, Service
from proxyfl.node.members.card import Card, tls_name
from proxyfl.transport.files import Folder

QUICKEST = 0.2
SLOWEST = 15.0

IDLE = 1.0
"""The longest sleep, after which a changed manifest is noticed."""

COLLECT = 0.25
"""The seconds between two looks into the folder."""


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


@dataclass
class Turn:
    """One peer's schedule: its next turn, and the result of the last."""

    busy: bool = False
    due: float = 0.0
    hello_due: float = 0.0
    pause: float = QUICKEST
    reachable: bool = False


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
        workers: int = 6,
    ) -> None:
        self.service = service
        self.heartbeat = heartbeat
        self.timeout = timeout
        self.largest = largest
        self.folder = folder
        self.turns: dict[str, Turn] = {}
        self._clients: dict[str, tuple[Card, Client]] = {}
        self._pool = ThreadPoolExecutor(
            workers, thread_name_prefix="proxyfl-courier"
        )
        self._followers: dict[str, threading.Thread] = {}
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name="proxyfl-courier", daemon=True
        )
        service.on_contact = self._heard_from

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
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()
        for _, client in clients:
            client.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for follower in self._followers.values():
            follower.join(5)

    def poke(self, names: Iterable[str] = (), *, hello: bool = False) -> None:
        """Something is due now; with ``hello``, ask these peers how far they are."""
        now = time.monotonic()
        for name in names:
            turn = self.turns.setdefault(name, Turn())
            if hello:
                turn.hello_due = min(turn.hello_due, now)
            if turn.reachable:
                turn.due = min(turn.due, now)
        self._wake.set()

    def reachable(self, name: str) -> bool:
        """True if the last attempt to reach ``name`` succeeded."""
        return self.turns.setdefault(name, Turn()).reachable

    def tried(self, name: str) -> bool:
        """True if reaching ``name`` has been tried at all."""
        return self.turns.setdefault(name, Turn()).due > 0

    def _heard_from(self, name: str) -> None:
        """A peer that speaks can be spoken to: what it is owed need not wait any longer."""
        turn = self.turns.setdefault(name, Turn())
        if not turn.reachable:
            turn.pause = QUICKEST
            turn.due = 0.0
            self._wake.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._closing.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            try:
                pause = self._look_around()
            except (ProxyFLError, OSError, sqlite3.Error) as error:
                self.service.failure = error
                self.service.exchange.notify()
                return

    def _look_around(self) -> float:
        """Collect what lies in the folder, and give each peer that is due its turn.

        Returns the seconds until something is due again."""
        pause = IDLE
        if self.folder is not None:
            self._collect()
            pause = COLLECT
        owed = self.service.exchange.books.owed_to()
        for card in self.service.roster.others():
            turn = self.turns.setdefault(card.name, Turn())
            wanted_at = turn.due
            if card.name not in owed:
                wanted_at = max(turn.due, turn.hello_due)
            wait = wanted_at - time.monotonic()
            if turn.busy:
                continue
            if wait <= 0:
                self._give_turn(card, turn)
            else:
                pause = min(pause, wait)
        self._follow_all()
        return pause

    def _give_turn(self, card: Card, turn: Turn) -> None:
        with self._lock:
            if not self._closing.is_set():
                turn.busy = True
                self._pool.submit(self._visit, card, turn)

    def _visit(self, card: Card, turn: Turn) -> None:
        before = turn.reachable
        try:
            self._talk(card, turn)
            turn.reachable = True
            turn.pause = QUICKEST
        except (ProxyFLError, sqlite3.Error) as error:
            turn.reachable = False
            turn.hello_due = 0.0
            turn.pause = min(2 * turn.pause, SLOWEST)
            about = {"reason": str(error)[:300], "lost": before}
            self.service.log.add("unreachable", peer=card.name, **about)
        finally:
            turn.due = time.monotonic() + turn.pause
            turn.busy = False
            self._wake.set()
            self.service.exchange.notify()

    def _talk(self, card: Card, turn: Turn) -> None:
        """Say hello if it is due, then send what is owed."""
        exchange = self.service.exchange
        name = card.name
        if not exchange.admitted(name) or time.monotonic() >= turn.hello_due:
            # Before the hello is made: one that is asked for meanwhile must still go out.
            turn.hello_due = time.monotonic() + self.heartbeat
            self._send(card, exchange.hello(name, time=int(time.time())))
        if not exchange.admitted(name):
            return
        for share, frame in exchange.books.unsettled(name):
            self._send(card, share, frame)

    def _send(
        self, card: Card, header: Header, body: bytes | memoryview = b""
    ) -> None:
        head = messages.head(header, self.service.identity)
        answer = self.carry(card, head, body)
        if answer:
            self.service.take(answer, via=card.name)

    def carry(
        self, card: Card, head: bytes, body: bytes | memoryview = b""
    ) -> bytes:
        """Take a message to a peer by whichever way there is; the answer, if it came at once."""
        self.service.traffic["bytes_sent"] += len(head) + len(body)
        self.service.traffic["messages_sent"] += 1
        if card.address and self.folder is None:
            return self.client(card).send(head, body, timeout=self.timeout)
        message = b"".join([head, body])
        if self.folder is not None:
            self._leave(self.folder, card, message)
            return b""
        if self.service.dialled_in(card.name):
            self.service.hand(card.name, message)
            return b""
        return self._relay(card, message)

    def _leave(self, folder: Folder, card: Card, message: bytes) -> None:
        header, _ = messages.begin(message)
        kind = type(header).__name__.lower()
        slot = f"{self.service.identity.name}-{kind}"
        if isinstance(header, Share | Verdict):
            slot += f"-{header.round}"
        # A share is the same however often it is sent, and sealing it takes time.
        if not (isinstance(header, Share) and folder.holds(card.name, slot)):
            folder.put(self.service.sealed(message, card.name), card.name, slot)

    def _relay(self, card: Card, message: bytes) -> bytes:
        sealed = self.service.sealed(message, card.name)
        reason = "no member has an address"
        for relay in self.service.roster.others():
            if not relay.address or relay.name == card.name:
                continue
            try:
                self.client(relay).send(sealed, timeout=self.timeout)
            except TransportError as error:
                reason = str(error)
                continue
            return b""
        raise TransportError(
            f"No way to {card.name!r}, which can only dial out: {reason}"
        )

    def client(self, card: Card) -> Client:
        """The connection to a member with an address."""
        from proxyfl.transport.grpc import Credentials
        from proxyfl.transport.grpc import client as grpc_client

        identity = self.service.identity
        with self._lock:
            known = self._clients.get(card.name)
            if known is not None and known[0] == card:
                return known[1]
            client: Client = grpc_client.Client(
                card.address,
                tls_name(card.fingerprint),
                credentials=lambda: Credentials(
                    identity.key_pem(), identity.tls_certificate(), card.pem
                ),
                largest=self.largest,
            )
            self._clients[card.name] = (card, client)
            return client

    def _follow_all(self) -> None:
        """A site without an address of its own holds a stream to every member that has one."""
        current = self.service.roster.current
        me = self.service.identity.name
        if self.folder is not None or current.member(me).address:
            return
        for card in self.service.roster.others():
            running = self._followers.get(card.name)
            if card.address and (running is None or not running.is_alive()):
                thread = threading.Thread(
                    target=self._follow, args=(card,), daemon=True
                )
                self._followers[card.name] = thread
                thread.start()

    def _follow(self, card: Card) -> None:
        try:
            for message in self.client(card).follow():
                self.received(message, via=card.name)
        except ProxyFLError as error:
            self.service.log.add(
                "unreachable", peer=card.name, reason=str(error)[:300]
            )
        self._closing.wait(5 * QUICKEST)

    def received(self, message: bytes, *, via: str | None) -> None:
        """Handle a message that came by stream, relay or file, and send the answer on its way."""
        try:
            if message.startswith(RELAY):
                message = self.service.opened(message)
                via = None
            answer = self.service.take(message, via=via)
            if answer:
                sender = messages.begin(message)[0].sender
                self.carry(self.service.roster.current.member(sender), answer)
        except ProxyFLError as error:
            self.service.refused(str(error))

    def _collect(self) -> None:
        """Deal with the files that lie there for this site."""
        assert self.folder is not None
        for path, message in self.folder.waiting(self.service.identity.name):
            if message.startswith(RELAY):
                self.received(message, via=None)
            else:
                self.service.refused(f"a file that is not sealed: {path.name}")
            path.unlink(missing_ok=True)
