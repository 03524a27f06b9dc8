"""The answering end.

Guarantees:
    * a call reaches ``answer`` only over TLS 1.3, with a client certificate that the trusted ones
      signed; who that is, ``answer`` decides from the certificate;
    * a message arrives in pieces of at most ``PIECE`` bytes, one at a time as ``answer`` asks for
      them; a larger piece is refused before its memory is taken, and so is whatever exceeds
      ``largest`` in all;
    * one peer, whatever certificates it shows, has at most ``per_peer`` calls in progress and one
      stream; more are turned away before they are read, and a message that has not arrived after
      ``patience`` seconds ends its call. So one peer cannot occupy all threads, by many calls or
      by slow ones;
    * strangers who connect and say nothing are let go after ``HANDSHAKE_SECONDS``, and all
      connections together take at most half of the files that the process may open;
    * certificates, one's own and the trusted ones, may change while the server runs: each new
      connection asks for them.
"""

import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from proxyfl.errors import TransportError
from proxyfl.transport.grpc import (
    FOLLOW,
    HANDSHAKE_SECONDS,
    KEEPALIVE_SECONDS,
    PIECE,
    SEND,
    Credentials,
    options,
)

MOST_CONNECTIONS = 512

Who = Callable[[bytes], str]
"""The peer's certificate -> its name; TransportError if it is nobody's."""

Answer = Callable[[bytes, Iterator[bytes]], bytes]
"""(the peer's certificate, the message in pieces) -> answer; TransportError refuses."""

Follow = Callable[[bytes, Callable[[], bool]], Iterator[bytes]]
"""(the peer's certificate, whether it still listens) -> messages for it, as they come."""


class Server:
    """Listens from the start; ``stop`` ends it. ``port`` is the one that was given or found."""

    def __init__(
        self,
        address: str,
        *,
        credentials: Callable[[], Credentials],
        who: Who,
        answer: Answer,
        follow: Follow,
        largest: int,
        threads: int = 8,
        per_peer: int = 4,
        patience: float = 120.0,
        refused: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._credentials = credentials
        self._who = who
        self._answer = answer
        self._follow = follow
        self._per_peer = per_peer
        self._largest = largest
        self._patience = patience
        self._refused = refused
        self._lock = threading.Lock()
        self._busy: dict[str, int] = {}
        self._server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="proxyfl-server"),
            handlers=[_Methods(self._send, self._stream)],
            options=[
                *options(sent=largest, received=PIECE),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", 2 * per_peer),
                ("grpc.max_allowed_incoming_connections", _most_connections()),
                ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
                # Without these a server answers a client's keepalive with GOAWAY.
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 500 * KEEPALIVE_SECONDS),
                ("grpc.http2.max_ping_strikes", 0),
            ],
        )
        self._shown = credentials()
        secure = grpc.dynamic_ssl_server_credentials(
            _configuration(self._shown), self._renew, require_client_authentication=True
        )
        try:
            self.port: int = self._server.add_secure_port(address, secure)
        except RuntimeError as error:
            raise TransportError(
                f"Cannot listen on {address}: is it in use, or not an address of this machine?"
            ) from error
        self._server.start()

    def stop(self, grace: float = 1.0) -> None:
        """Take no more calls; give those in progress ``grace`` seconds."""
        self._server.stop(grace).wait(grace + 5)

    def _renew(self) -> Any:
        """The credentials for the next handshake; None keeps those of the last.

        gRPC frees what it replaces, also under a handshake that runs beside it: with new ones for
        each handshake, strangers who called all at once crashed the process."""
        credentials = self._credentials()
        with self._lock:
            if credentials == self._shown:
                return None
            self._shown = credentials
        return _configuration(credentials)

    def _send(self, messages: Iterator[bytes], context: Any) -> bytes:
        certificate = self._certificate(context)
        name = self._name_of(certificate, context)
        with _Turn(self, name, context, self._per_peer):
            limit = _Limit(self._patience, context)
            try:
                return self._answer(certificate, self._arriving(messages, limit))
            except TransportError as error:
                self._refused(str(error))
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:400])
                raise
            finally:
                limit.lift()

    def _arriving(self, messages: Iterator[bytes], limit: "_Limit") -> Iterator[bytes]:
        """The pieces of a call's message; ``limit`` is lifted when all have arrived."""
        size = 0
        try:
            for piece in messages:
                size += len(piece)
                if size > self._largest:
                    raise TransportError(
                        f"A message of more than {self._largest} bytes, the most allowed."
                    )
                yield piece
        except grpc.RpcError as error:
            raise TransportError("a call ended before its message had arrived") from error
        limit.lift()
        if limit.passed or not size:
            raise TransportError("a call ended before its message had arrived")

    def _name_of(self, certificate: bytes, context: Any) -> str:
        try:
            return self._who(certificate)
        except TransportError as error:
            self._refused(str(error))
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error)[:400])
            raise

    def _stream(self, message: bytes, context: Any) -> Iterator[bytes]:
        certificate = self._certificate(context)
        name = self._name_of(certificate, context)
        with _Turn(self, f"stream {name}", context, 1):
            try:
                yield from self._follow(certificate, context.is_active)
            except TransportError as error:
                self._refused(str(error))
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:400])

    def _certificate(self, context: Any) -> bytes:
        about = context.auth_context()
        versions = about.get("ssl_tls_version", [b"TLSv1.3"])
        certificates = about.get("x509_pem_cert", [])
        if list(versions) != [b"TLSv1.3"] or len(certificates) != 1:
            self._refused(f"a connection by {versions!r} with {len(certificates)} certificates")
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "TLS 1.3 with a certificate, please.")
        certificate: bytes = certificates[0]
        return certificate


class _Limit:
    """Cancels a call after ``seconds``, unless it is lifted before.

    gRPC may end the messages of a cancelled call as if all had come; ``passed`` tells."""

    def __init__(self, seconds: float, context: Any) -> None:
        self.passed = False
        self._context: Any = context
        self._timer = threading.Timer(seconds, self._cancel)
        self._timer.daemon = True
        self._timer.start()

    def lift(self) -> None:
        """Let the call be. The timer holds this and this the timer: with the call among them, it
        would count as in progress until Python looks for such circles."""
        self._timer.cancel()
        self._context = None

    def _cancel(self) -> None:
        self.passed = True
        context = self._context
        if context is not None:
            context.cancel()


class _Turn:
    """A peer's place among those that are being answered."""

    def __init__(self, server: Server, key: str, context: Any, most: int) -> None:
        self._server = server
        self._key = key
        self._context = context
        self._most = most

    def __enter__(self) -> None:
        with self._server._lock:
            count = self._server._busy.get(self._key, 0)
            full = count >= self._most
            if not full:
                self._server._busy[self._key] = count + 1
        if full:
            self._server._refused("a peer with too many calls at a time")
            self._context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"At most {self._most} calls at a time."
            )

    def __exit__(self, *_: object) -> None:
        with self._server._lock:
            self._server._busy[self._key] -= 1
            if not self._server._busy[self._key]:
                del self._server._busy[self._key]


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """The two methods, with bytes as they are: there is nothing to deserialize."""

    def __init__(self, send: object, stream: object) -> None:
        self._methods = {
            # As a stream, so that the call is known before its message is waited for.
            SEND: grpc.stream_unary_rpc_method_handler(send),
            FOLLOW: grpc.unary_stream_rpc_method_handler(stream),
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)


def _most_connections() -> int:
    """Half of the files that this process may open, so that its own can always be opened."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft < 0 else min(soft // 2, MOST_CONNECTIONS)


def _configuration(credentials: Credentials) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key, credentials.certificate)], root_certificates=credentials.trusted
    )
