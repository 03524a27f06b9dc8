"""Takes one message to a peer: over a connection, a stream that it holds, a relay, or as a file.

    a folder is set                  seal it, and leave it there
    the peer has an address          call it
    the peer holds a stream to us    hand it over there
    neither                          seal it, and ask any member that both can reach to pass it on

Only a call brings the answer back at once; by the other ways it comes as a message of its own.
"""

import threading
from collections.abc import Iterator
from typing import Protocol

from proxyfl.errors import TransportError
from proxyfl.node.exchange import messages
from proxyfl.node.exchange.messages import Hello, Share, Summand, Verdict
from proxyfl.node.exchange.service import Service
from proxyfl.node.members.card import Card, tls_name
from proxyfl.node.members.identity import Identity
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
        elif self.service.dialled_in(card.name):
            self.service.hand(card.name, message)
        else:
            self._relay(card, message)
        return b""

    def client(self, card: Card) -> Client:
        """The connection to a member with an address."""
        with self._lock:
            if self._closed:
                raise TransportError("This site has let go of its connections.")
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
            folder.put(self.service.sealed(message, card.name), card.name, slot)

    def _relay(self, card: Card, message: bytes) -> None:
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
            return
        raise TransportError(f"No way to {card.name!r}, which can only dial out: {reason}")
