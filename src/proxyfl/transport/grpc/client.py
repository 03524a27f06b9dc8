"""The asking end: one peer, one channel, made when first used and again when certificates change.

Guarantees:
    * nothing is sent before the peer has shown a certificate that ``trusted`` signed, under the
      name expected, over TLS 1.3; there is no plain text to fall back to;
    * every call ends by its timeout: with the answer, PeerTimeout, PeerRefused, or TransportError.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from proxyfl.errors import PeerRefused, PeerTimeout, TransportError
from proxyfl.transport.grpc import FOLLOW, HANDSHAKE_SECONDS, PIECE, SEND, Credentials, options

_LASTING = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)
"""How a peer says no to a message or to its sender; others are a matter of the moment."""


class Client:
    """Asks one peer. Use it from any thread."""

    def __init__(
        self, address: str, name: str, *, credentials: Callable[[], Credentials], largest: int
    ) -> None:
        self.address = address
        self._name = name
        self._credentials = credentials
        self._largest = largest
        self._lock = threading.Lock()
        self._shown: Credentials | None = None
        self._channel: Any = None

    def send(self, *parts: bytes | memoryview, timeout: float) -> bytes:
        """The peer's answer to the message that ``parts`` make up."""
        channel = self._open()
        try:
            answer: bytes
            if sum(map(len, parts)) <= PIECE:
                answer = channel.unary_unary(SEND)(b"".join(parts), timeout=timeout)
            else:
                ask = channel.stream_unary(SEND)
                answer = ask(_pieces(parts), timeout=timeout)
        except grpc.RpcError as error:
            raise self._translate(error) from error
        except ValueError as error:  # how grpc says that the channel was closed meanwhile
            raise TransportError(f"The connection to {self.address} is closed.") from error
        return answer

    def follow(self) -> Iterator[bytes]:
        """The peer's messages for this end, as they come, for as long as both live."""
        ask = self._open().unary_stream(FOLLOW)
        try:
            yield from ask(b"")
        except grpc.RpcError as error:
            raise self._translate(error) from error
        except ValueError as error:
            raise TransportError(f"The connection to {self.address} is closed.") from error

    def close(self) -> None:
        """Let go of the connection; a later call makes a new one."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open(self) -> Any:
        wanted = self._credentials()
        with self._lock:
            old = None
            if self._channel is None or wanted != self._shown:
                old = self._channel
                self._channel = self._made(wanted)
                self._shown = wanted
            channel = self._channel
        if old is not None:
            old.close()
        return channel

    def _made(self, credentials: Credentials) -> Any:
        secure = grpc.ssl_channel_credentials(
            credentials.trusted, credentials.key, credentials.certificate
        )
        named = [
            ("grpc.ssl_target_name_override", self._name),
            ("grpc.initial_reconnect_backoff_ms", 200),
            # By its name a pause, in truth the time that one attempt to connect may take.
            ("grpc.min_reconnect_backoff_ms", 1000 * HANDSHAKE_SECONDS),
            ("grpc.max_reconnect_backoff_ms", 5000),
            ("grpc.use_local_subchannel_pool", 1),
            # A site's proxy settings are for browsers; peers are reached directly.
            ("grpc.enable_http_proxy", 0),
        ]
        return grpc.secure_channel(
            self.address, secure, options=[*options(sent=PIECE, received=self._largest), *named]
        )

    def _translate(self, error: Any) -> TransportError:
        code, details = error.code(), error.details() or ""
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return PeerTimeout(f"{self.address} did not answer in time.")
        if code == grpc.StatusCode.UNAVAILABLE:
            return PeerTimeout(f"{self.address} cannot be reached: {details:.300}")
        refused = f"{self.address} refused ({code.name}): {details:.400}"
        if code in _LASTING:
            return PeerRefused(refused)
        return TransportError(refused)


def _pieces(parts: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    for part in parts:
        for start in range(0, len(part), PIECE):
            yield bytes(part[start : start + PIECE])
