"""gRPC with mutual TLS 1.3: who gets in, what is bounded, what changes without a restart."""

import contextlib
import gc
import multiprocessing
import os
import random
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from proxyfl.errors import PeerTimeout, TransportError
from proxyfl.node.members.identity import Identity, fingerprint_of, tls_name
from proxyfl.transport.grpc import PIECE, SEND, Credentials
from proxyfl.transport.grpc.client import Client
from proxyfl.transport.grpc.server import Server
from tests.waiting import PATIENCE, wait_until

LARGEST = 4 << 20


class Pair:
    """A server that echoes, and what its clients need."""

    def __init__(self, folder: Path, patience: float = PATIENCE) -> None:
        self.server_identity = Identity.create(folder / "server", "server")
        self.friend = Identity.create(folder / "friend", "friend")
        self.stranger = Identity.create(folder / "stranger", "stranger")
        self.trusted = [self.friend.card("").pem]
        self.callers: list[str] = []
        self.refused: list[str] = []
        self.answering = threading.Event()
        self.answering.set()
        self.server = Server(
            "127.0.0.1:0",
            credentials=lambda: self.credentials(self.server_identity, *self.trusted),
            who=fingerprint_of,
            answer=self.echo,
            follow=self.three,
            largest=LARGEST,
            patience=patience,
            refused=self.refused.append,
        )

    def credentials(self, identity: Identity, *trusted: bytes) -> Credentials:
        """What one end shows and trusts."""
        return Credentials(identity.key_pem(), identity.tls_certificate(), b"".join(trusted))

    def client(
        self, identity: Identity, *, trusted: Identity | None = None, port: int | None = None
    ) -> Client:
        """A client with the keys of ``identity``."""
        peer = trusted or self.server_identity
        return Client(
            f"127.0.0.1:{port or self.server.port}",
            tls_name(peer.fingerprint),
            credentials=lambda: self.credentials(identity, peer.card("").pem),
            largest=LARGEST,
        )

    def echo(self, certificate: bytes, pieces: Iterator[bytes]) -> bytes:
        """The message; "held" when the server is told to, "bad" is refused."""
        message = b"".join(pieces)
        self.callers.append(fingerprint_of(certificate))
        if message == b"held":
            self.answering.wait(PATIENCE)
        if message == b"bad":
            raise TransportError("a bad message")
        return message

    def three(self, certificate: bytes, listens: Callable[[], bool]) -> Iterator[bytes]:
        """Three messages."""
        yield from (b"1", b"2", b"3")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A running server."""
    made = Pair(tmp_path)
    yield made
    made.answering.set()
    made.server.stop(0)


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Pair]:
    """A server that ends calls whose message does not arrive soon."""
    made = Pair(tmp_path, patience=3.0)
    yield made
    made.server.stop(0)


def test_a_member_is_answered_and_known_by_its_key(pair: Pair) -> None:
    """The answer comes back, and the server sees the client's own key."""
    client = pair.client(pair.friend)
    assert client.send(b"hello", timeout=PATIENCE) == b"hello"
    assert list(client.follow()) == [b"1", b"2", b"3"]
    assert pair.callers == [pair.friend.fingerprint]
    client.close()


def test_a_call_that_has_ended_makes_room_for_the_next(pair: Pair) -> None:
    """Many calls, one after the other on one connection: each is let go when it is answered or
    refused, without waiting for Python's search for circles."""
    client = pair.client(pair.friend)
    gc.disable()
    try:
        for number in range(40):
            message = str(number).encode()
            assert client.send(message, timeout=PATIENCE) == message
            with pytest.raises(TransportError, match="a bad message"):
                client.send(b"bad", timeout=PATIENCE)
            assert list(client.follow()) == [b"1", b"2", b"3"]
    finally:
        gc.enable()
    client.close()


def delayed(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes, each piece a tenth of a second later."""
    with contextlib.suppress(OSError):
        while part := source.recv(1 << 16):
            time.sleep(0.1)
            target.sendall(part)


def test_a_peer_far_away_is_reached(pair: Pair) -> None:
    """A connection whose every leg takes a tenth of a second, as between continents, is made at
    the first attempt."""
    with socket.create_server(("127.0.0.1", 0)) as between:
        client = pair.client(pair.friend, port=between.getsockname()[1])
        answers: list[bytes] = []
        asking = threading.Thread(
            target=lambda: answers.append(client.send(b"hello", timeout=PATIENCE))
        )
        asking.start()
        near, _ = between.accept()
        far = socket.create_connection(("127.0.0.1", pair.server.port))
        for way in ((near, far), (far, near)):
            threading.Thread(target=delayed, args=way, daemon=True).start()
        asking.join()
        assert answers == [b"hello"]
        client.close()
        near.close()
        far.close()


def test_a_stranger_does_not_get_in(pair: Pair) -> None:
    """A certificate that no member signed ends the handshake."""
    client = pair.client(pair.stranger)
    with pytest.raises(PeerTimeout, match="cannot be reached"):
        client.send(b"hello", timeout=PATIENCE)
    assert pair.callers == []
    client.close()


def test_a_client_talks_to_no_other_server(pair: Pair) -> None:
    """A server with another key than the expected one hears nothing."""
    client = pair.client(pair.friend, trusted=pair.stranger)
    with pytest.raises(PeerTimeout, match="cannot be reached"):
        client.send(b"hello", timeout=PATIENCE)
    assert pair.callers == []
    client.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_there_is_no_way_below_tls_1_3(pair: Pair, version: ssl.TLSVersion) -> None:
    """A member that offers TLS 1.2 is refused; with TLS 1.3 the same handshake succeeds."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = version
    context.maximum_version = version
    folder = pair.friend.folder
    context.load_cert_chain(folder / "tls.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", pair.server.port), PATIENCE) as plain:
        if version == ssl.TLSVersion.TLSv1_2:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(plain)
        else:
            with context.wrap_socket(plain) as secure:
                assert secure.version() == "TLSv1.3"


def test_grpc_must_not_come_first() -> None:
    """Whoever imports grpc before the suites are set would allow TLS 1.2: refused at import."""
    environment = {**os.environ, "GRPC_SSL_CIPHER_SUITES": ""}
    script = "import grpc, proxyfl.transport.grpc"
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert found.returncode == 1
    assert "TLS 1.2 could not be ruled out" in found.stderr


def besieged(folder: Path) -> None:
    """A server to which 16 strangers at once say hello, 1,600 times in all."""
    pair = Pair(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])

    def call() -> None:
        for _ in range(100):
            with contextlib.suppress(OSError):
                address = ("127.0.0.1", pair.server.port)
                with socket.create_connection(address, PATIENCE) as plain:
                    context.wrap_socket(plain).close()

    strangers = [threading.Thread(target=call) for _ in range(16)]
    for stranger in strangers:
        stranger.start()
    for stranger in strangers:
        stranger.join()
    assert pair.client(pair.friend).send(b"still there", timeout=PATIENCE)
    pair.server.stop(0)


def test_strangers_who_call_at_once_do_not_crash_the_server(tmp_path: Path) -> None:
    """Handshakes side by side leave the process alive, and a member is answered afterwards.

    gRPC once freed credentials under them: the process ended by a signal within seconds."""
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=besieged, args=(tmp_path,))
    server.start()
    server.join(PATIENCE)
    assert server.exitcode == 0


def calls_with(pair: Pair, identity: Identity | None, content: bytes) -> bytes:
    """Shake hands as ``identity`` or as nobody, say ``content``, and read until the end: what
    came back, as it went over the wire."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if identity is not None:
        context.load_cert_chain(identity.folder / "tls.pem", identity.folder / "key.pem")
    received = b""
    address = ("127.0.0.1", pair.server.port)
    with (
        contextlib.suppress(OSError),
        socket.create_connection(address, PATIENCE) as plain,
        context.wrap_socket(plain) as secure,
    ):
        secure.sendall(content)
        secure.shutdown(socket.SHUT_WR)
        while part := secure.recv(1 << 16):
            received += part
    return received


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """A frame of HTTP/2."""
    size = len(content).to_bytes(3, "big")
    return size + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def garbage(draw: random.Random) -> Iterator[bytes]:
    """What a peer may say where HTTP/2 is expected: noise, and frames that make no sense."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = frame(4, 0, 0, b"")
    yield b""
    yield bytes(1 << 20)
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield preface + b"\xff" * 100_000
    yield preface + settings * 20_000
    yield preface + settings + frame(6, 0, 0, bytes(8)) * 20_000
    # a header that never ends, in pieces
    unfinished = frame(1, 0, 1, b"\x00" * 16_000)
    yield preface + settings + unfinished + frame(9, 0, 1, b"a" * 16_000) * 100
    # streams that are opened and reset at once
    opened = b""
    for stream in range(1, 4001, 2):
        opened += frame(1, 4, stream, b"\x82\x84\x86")
        opened += frame(3, 0, stream, bytes(4))
    yield preface + settings + opened
    for _ in range(60):
        content = b""
        for _ in range(draw.randrange(1, 20)):
            kind, flags = draw.randrange(12), draw.randrange(256)
            stream = draw.choice([0, 1, 3, 2**31 - 1])
            content += frame(kind, flags, stream, draw.randbytes(draw.randrange(200)))
        yield preface + settings + content


def memory() -> float:
    """The megabytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def garbled(folder: Path) -> None:
    """A server to which a member, a stranger and nobody talk garbage after the handshake."""
    pair = Pair(folder)
    client = pair.client(pair.friend)
    assert client.send(b"before", timeout=PATIENCE)
    before = memory()
    for identity in (pair.friend, pair.stranger, None):
        replies = [calls_with(pair, identity, content) for content in garbage(random.Random(7))]
        assert any(replies) or identity is not pair.friend
        assert client.send(b"meanwhile", timeout=PATIENCE)
    assert set(pair.callers) == {pair.friend.fingerprint}
    assert len(pair.callers) == 4
    assert memory() - before < 100
    pair.server.stop(0)


def hello_of(size: int) -> bytes:
    """The start of a handshake whose first message has ``size`` bytes, in records of TLS."""
    body = b"\x03\x03" + bytes(32 + 1)  # the version, random bytes, no session
    body += (2).to_bytes(2, "big") + b"\x13\x01"  # one cipher suite
    body += b"\x01\x00"  # no compression
    rest = min(size - len(body) - 6, 65_531)
    padding = (21).to_bytes(2, "big") + rest.to_bytes(2, "big") + bytes(rest)
    body += min(len(padding), 65_535).to_bytes(2, "big") + padding
    message = b"\x01" + size.to_bytes(3, "big") + body.ljust(size, b"\x00")
    records = b""
    for start in range(0, len(message), 1 << 14):
        piece = message[start : start + (1 << 14)]
        records += b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece
    return records


def overlong(folder: Path) -> None:
    """A server to which strangers say hello at length: up to 16 MB, the most that TLS can spell."""
    pair = Pair(folder)
    client = pair.client(pair.friend)
    assert client.send(b"before", timeout=PATIENCE)
    before = memory()
    held = []
    for size in (1000, 16_000, 66_000, 1 << 20, (1 << 24) - 1):
        content = hello_of(size)
        for _ in range(10):
            plain = socket.create_connection(("127.0.0.1", pair.server.port), 5)
            held.append(plain)
            with contextlib.suppress(OSError):
                plain.sendall(content)
        assert client.send(b"meanwhile", timeout=PATIENCE)
    assert memory() - before < 100
    for plain in held:
        plain.close()
    newcomer = pair.client(pair.friend)
    assert newcomer.send(b"after", timeout=PATIENCE)
    pair.server.stop(0)


@pytest.mark.parametrize("attack", [garbled, overlong])
def test_garbage_after_the_handshake_and_endless_hellos_do_no_harm(
    tmp_path: Path, attack: Callable[[Path], None]
) -> None:
    """Bytes that are no HTTP/2, frames without end or sense, a first message of 16 MB: the process
    lives, takes little memory, and answers a member meanwhile and afterwards."""
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=attack, args=(tmp_path,))
    server.start()
    server.join(PATIENCE)
    assert server.exitcode == 0


def crowded(folder: Path) -> None:
    """A server that may open 128 files, and strangers who connect 200 times and say nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    pair = Pair(folder)
    client = pair.client(pair.friend)
    assert client.send(b"before", timeout=PATIENCE)
    script = (
        "import resource, socket, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({hard}, {hard}))\n"
        f"address = ('127.0.0.1', {pair.server.port})\n"
        "held = [socket.create_connection(address) for _ in range(200)]\n"
        "print('all', flush=True)\n"
        "sys.stdin.read()\n"
    )
    strangers = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert strangers.stdout is not None
    assert strangers.stdout.readline() == b"all\n"
    wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) > 50)
    for number in range(20):
        with (folder / f"file-{number}").open("w") as file:
            file.write("the site's own")
        assert client.send(b"meanwhile", timeout=PATIENCE)
    strangers.communicate()
    newcomer = pair.client(pair.friend)
    assert newcomer.send(b"after", timeout=PATIENCE)
    pair.server.stop(0)


def test_strangers_do_not_take_all_files(tmp_path: Path) -> None:
    """More silent connections than the process may open files: the site still opens its own, a
    member that is connected is answered, and one that comes later too.

    Without a bound the store and the ledger could not be opened any more: the node ended."""
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=crowded, args=(tmp_path,))
    server.start()
    server.join(PATIENCE)
    assert server.exitcode == 0


def test_strangers_write_nothing_to_the_terminal(
    pair: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    """gRPC would print a line for each handshake that fails: whoever can connect could fill the
    disk of a site whose terminal is a file."""
    client = pair.client(pair.stranger)
    for _ in range(3):
        with pytest.raises(PeerTimeout):
            client.send(b"hello", timeout=PATIENCE)
        client.close()
        address = ("127.0.0.1", pair.server.port)
        with socket.create_connection(address, PATIENCE) as plain:
            plain.sendall(b"no TLS at all")
            plain.shutdown(socket.SHUT_WR)
            plain.recv(1000)
    assert capfd.readouterr().err == ""


def test_plain_text_gets_nothing(pair: Pair) -> None:
    """An HTTP/2 preface without TLS is answered by closing, or by nothing."""
    with socket.create_connection(("127.0.0.1", pair.server.port), PATIENCE) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        plain.settimeout(PATIENCE)
        received = b""
        while part := plain.recv(1000):
            received += part
    assert b"proxyfl" not in received
    assert pair.callers == []


def test_a_message_in_pieces_arrives_whole(pair: Pair) -> None:
    """Parts of any size, longer than a piece or empty, are one message at the other end."""
    content = random.Random(0).randbytes(3 * PIECE + 17)
    parts = [b"head", memoryview(content), b"", b"tail"]
    client = pair.client(pair.friend)
    assert client.send(*parts, timeout=PATIENCE) == b"head" + content + b"tail"
    client.close()


def test_too_large_a_message_is_refused(pair: Pair) -> None:
    """More than the largest allowed does not reach the service, in one piece or in many."""
    client = pair.client(pair.friend)
    with pytest.raises(TransportError, match=f"more than {LARGEST} bytes"):
        client.send(bytes(LARGEST + 1000), timeout=PATIENCE)
    assert pair.callers == []
    client.close()


def test_too_large_a_piece_is_refused(pair: Pair) -> None:
    """A peer whose own program cuts larger pieces is turned away by its first."""
    client = pair.client(pair.friend)
    secure = grpc.ssl_channel_credentials(
        pair.server_identity.card("").pem, pair.friend.key_pem(), pair.friend.tls_certificate()
    )
    name = tls_name(pair.server_identity.fingerprint)
    options = [("grpc.ssl_target_name_override", name), ("grpc.max_send_message_length", -1)]
    with grpc.secure_channel(client.address, secure, options) as channel:
        ask = channel.unary_unary(SEND)
        with pytest.raises(grpc.RpcError, match="larger than max"):
            ask(bytes(PIECE + 1), timeout=PATIENCE)
    assert pair.callers == []
    client.close()


def test_a_refusal_says_why(pair: Pair) -> None:
    """What the service raises reaches the caller and the server's log."""
    client = pair.client(pair.friend)
    with pytest.raises(TransportError, match="a bad message"):
        client.send(b"bad", timeout=PATIENCE)
    assert pair.refused == ["a bad message"]
    client.close()


def test_renewal_and_new_members_need_no_restart(pair: Pair) -> None:
    """Both ends renew their certificates, a member is added: the same server serves all."""
    client = pair.client(pair.friend)
    assert client.send(b"1", timeout=PATIENCE) == b"1"
    pair.friend.renew()
    pair.server_identity.renew()
    assert client.send(b"2", timeout=PATIENCE) == b"2"
    pair.trusted.append(pair.stranger.card("").pem)
    newcomer = pair.client(pair.stranger)
    assert newcomer.send(b"3", timeout=PATIENCE) == b"3"
    client.close()
    newcomer.close()


def test_one_peer_cannot_occupy_the_server(pair: Pair) -> None:
    """Of a flood of slow calls only a few are taken; another peer is answered meanwhile."""
    pair.trusted.append(pair.stranger.card("").pem)
    pair.answering.clear()
    flood = pair.client(pair.stranger)
    turned_away = []

    def call() -> None:
        try:
            flood.send(b"held", timeout=PATIENCE)
        except TransportError as error:
            turned_away.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(pair.callers) + len(turned_away) == 8)
    client = pair.client(pair.friend)
    assert client.send(b"me", timeout=PATIENCE) == b"me"
    assert not pair.answering.is_set()
    pair.answering.set()
    for thread in threads:
        thread.join()
    assert len(turned_away) == 4
    assert all("At most 4" in said for said in turned_away)
    flood.close()
    client.close()


def silent(end: threading.Event, start: bytes = b"") -> Iterator[bytes]:
    """A message of which nothing comes after its start."""
    if start:
        yield start
    end.wait()


def test_a_message_that_stops_half_way_ends_its_call(tmp_path: Path) -> None:
    """Its first piece came in time, the rest does not: the call is ended and put on record."""
    pair = Pair(tmp_path, patience=0.3)
    end = threading.Event()
    client = pair.client(pair.friend)
    call = client._open().stream_unary(SEND).future(silent(end, b"first"))
    wait_until(lambda: "a call ended before its message had arrived" in pair.refused)
    assert pair.callers == []
    end.set()
    assert call.exception(PATIENCE) is not None
    client.close()
    pair.server.stop(0)


def test_slow_senders_do_not_starve_the_others(hasty: Pair) -> None:
    """A member holds more calls open than there are threads, under several certificates of its key,
    and sends nothing: another peer is answered, and the slow calls are ended."""
    pair = hasty
    pair.trusted.append(pair.stranger.card("").pem)
    end = threading.Event()
    slow = []
    calls = []  # gRPC cancels a call that nobody holds
    for _ in range(4):
        pair.stranger.renew()
        slow.append(pair.client(pair.stranger))
        ask = slow[-1]._open().stream_unary(SEND)
        for _ in range(4):
            calls.append(ask.future(silent(end)))
    client = pair.client(pair.friend)
    for _ in range(3):
        assert client.send(b"me", timeout=PATIENCE) == b"me"
    wait_until(lambda: "a call ended before its message had arrived" in pair.refused)
    assert not any(call.done() and call.code().name == "OK" for call in calls)
    end.set()
    for each in (*slow, client):
        each.close()


def test_a_silent_server_is_a_timeout(pair: Pair) -> None:
    """A call ends by its timeout."""
    pair.answering.clear()
    client = pair.client(pair.friend)
    with pytest.raises(PeerTimeout, match="did not answer in time"):
        client.send(b"held", timeout=0.3)
    pair.answering.set()
    client.close()


def test_an_address_in_use_is_named(pair: Pair) -> None:
    """Two servers cannot share a port."""
    with pytest.raises(TransportError, match="Cannot listen"):
        Server(
            f"127.0.0.1:{pair.server.port}",
            credentials=lambda: pair.credentials(pair.friend, *pair.trusted),
            who=fingerprint_of,
            answer=pair.echo,
            follow=pair.three,
            largest=LARGEST,
        )
