"""A large proxy between two sites, beside a raw TLS socket: ``python -m benchmarks.exchange``.

Two processes on loopback. Each repetition sends the same number of bytes in four ways, in turn, so
that whatever else the machine does falls on all of them:

    socket          Python's ssl over TLS 1.3: send all, receive all, one byte back
    gRPC            the nodes' transport alone: one call, a short answer
    socket, fsync   as the first, and the receiver writes the bytes to a file as they come and
                    syncs it
    exchange        a share: read from the outbox, signed, sent, checked, stored durably, and the
                    signed verdict applied

The first two promise nothing about a power cut; the last two promise that what was acknowledged
survives one. Prints seconds, ratios and the memory of both ends; writes build/exchange.json."""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import resource
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from proxyfl.machine import keep_freed_memory
from proxyfl.node.exchange import messages
from proxyfl.node.exchange.auditlog import AuditLog
from proxyfl.node.exchange.protocol import Exchange
from proxyfl.node.exchange.service import Service
from proxyfl.node.exchange.store import FILE, Books, Store
from proxyfl.node.members import roster
from proxyfl.node.members.identity import KEY_FILE, TLS_FILE, Identity, tls_name
from proxyfl.node.members.manifest import Input, Manifest
from proxyfl.node.mixing import Mixer, Proxy
from proxyfl.node.trial import LOOPBACK, free_ports
from proxyfl.transport.grpc import Credentials
from proxyfl.transport.grpc.client import Client
from proxyfl.transport.grpc.server import Server

RESNET18 = 11_181_642
"""The parameters of a ResNet-18 with ten classes: 44.7 MB."""

NAMES = ("north", "south")
DRAIN = b"drain"
PLAIN = b"plain"
MEMORY = b"memory"


class Side:
    """One site: keys, manifest, store on disk, service."""

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self.identity = Identity(folder / name, name)
        self.roster = roster.Roster(folder / name, self.identity)
        agreed = self.roster.current
        self.largest = 4 * size + (1 << 16)
        self.books = Books(
            Store(folder / name / FILE),
            federation=agreed.federation,
            me=name,
            version=1,
            rounds=agreed.rounds,
        )
        self.books.start()
        self.mixer = Mixer(self.roster, self.books, Proxy("resnet18", size))
        self.exchange = Exchange(self.books, self.mixer.admit)
        self.exchange.manifest = agreed.digest
        self.exchange.accepted = self.roster.acceptance
        log = AuditLog(folder / name / "audit.jsonl")
        self.service = Service(self.identity, self.roster, self.exchange, log)

    def credentials(self) -> Credentials:
        """What this side shows and trusts."""
        return self.roster.credentials()

    def drain(self) -> None:
        """Add up what has arrived, so that the inbox is empty again."""
        parts = self.books.parts(every=True)
        self.books.conclude(parts, b"", next_round=0)


def peak_memory() -> int:
    """The most memory that this process has had, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def found_two_sites(folder: Path) -> None:
    """Keys, and a manifest that both have accepted."""
    port = free_ports(1)[0]
    cards = []
    for name, address in zip(NAMES, ("", f"{LOOPBACK}:{port}"), strict=True):
        cards.append(Identity.create(folder / name, name).card(address))
    agreed = Manifest(
        "exchange", rounds=10_000, input=Input((1,), ("0", "1")), members=tuple(cards)
    )
    for name in NAMES:
        roster.accept(folder / name, Identity(folder / name, name), agreed)


def receive(folder: Path, size: int, port: int, ready: Any) -> None:
    """The receiving site's process: a raw socket and a gRPC server, until it is killed."""
    keep_freed_memory()
    side = Side(folder, "south", size)

    def answer(certificate: bytes, pieces: Iterator[bytes]) -> bytes:
        start = next(pieces)
        if start == DRAIN:
            side.drain()
            return b""
        if start == MEMORY:
            return str(peak_memory()).encode()
        if start.startswith(PLAIN):
            return str(sum(map(len, pieces))).encode()
        return side.service.answer(certificate, itertools.chain([start], pieces))

    Server(
        side.roster.current.member("south").address,
        credentials=side.credentials,
        who=side.service.member,
        answer=answer,
        follow=lambda _certificate, _listens: iter(()),
        largest=side.largest,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    own = folder / "south"
    context.load_cert_chain(own / TLS_FILE, own / KEY_FILE)
    listener = socket.create_server((LOOPBACK, port))
    ready.set()
    while True:
        plain, _ = listener.accept()
        with context.wrap_socket(plain, server_side=True) as secure:
            _take_all(secure, own / "synced")


def _take_all(secure: ssl.SSLSocket, path: Path) -> None:
    """Each request: one byte that asks for a sync or not, the length, the bytes."""
    buffer = memoryview(bytearray(1 << 20))
    while head := secure.recv(9):
        while len(head) < 9:
            head += secure.recv(9 - len(head))
        left = int.from_bytes(head[1:], "big")
        with contextlib.ExitStack() as stack:
            file = None
            if head[0]:
                file = stack.enter_context(path.open("wb", buffering=0))
            while left:
                count = secure.recv_into(buffer[: min(left, len(buffer))])
                left -= count
                if file is not None:
                    file.write(buffer[:count])
            if file is not None:
                os.fsync(file.fileno())
        secure.sendall(b"x")


class Sender:
    """The sending site, with a raw connection and a gRPC channel to the other."""

    def __init__(self, folder: Path, size: int, port: int) -> None:
        self.side = Side(folder, "north", size)
        self.theta = torch.randn(size)
        card = self.side.roster.current.member("south")
        self.client = Client(
            card.address,
            tls_name(card.fingerprint),
            credentials=self.side.credentials,
            largest=self.side.largest,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        # the comparison is about bytes, not about who is at the other end
        context.verify_mode = ssl.CERT_NONE
        self.raw = context.wrap_socket(socket.create_connection((LOOPBACK, port)))
        self.payload = PLAIN + self.side.mixer.frame(self.theta, Fraction(1), 0)
        self.round = 0
        hello = self.side.exchange.hello("south", time=int(time.time()))
        answer = self._call(messages.pack(hello, self.side.identity))
        self.side.service.take(answer, via="south")

    def _call(self, *parts: bytes | memoryview) -> bytes:
        return self.client.send(*parts, timeout=120)

    def by_socket(self, *, sync: bool) -> None:
        """The bytes over the raw connection, until the receiver says that it has them."""
        self.raw.sendall(bytes([sync]) + len(self.payload).to_bytes(8, "big"))
        self.raw.sendall(self.payload)
        self.raw.recv(1)

    def by_grpc(self) -> None:
        """The bytes over the nodes' transport."""
        self._call(self.payload)

    def release(self) -> None:
        """Put a share into the outbox: half of the weight, so that the rest never runs out."""
        books = self.side.books
        here = books.position()
        half = here.weight / 2
        frame = self.side.mixer.frame(self.theta, half, here.round)
        weights = {"north": here.weight - half, "south": half}
        books.release(kept=b"", frames={"south": frame}, weights=weights)

    def by_exchange(self) -> None:
        """The share in the outbox, as the courier sends it, until its verdict is applied."""
        for share, frame in self.side.books.outbox("south"):
            head = messages.head(share, self.side.identity)
            self.side.service.take(self._call(head, frame), via="south")
        if self.side.books.owed_to():
            raise SystemExit("The share was not stored.")

    def conclude(self) -> None:
        """Both sides go on to their next round."""
        self.side.books.conclude([], b"")
        self._call(DRAIN)


def timed(work: Callable[[], None]) -> float:
    """The seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(sender: Sender, repeats: int) -> dict[str, list[float]]:
    """Seconds of each way, in turn."""
    found: dict[str, list[float]] = {
        "socket": [],
        "gRPC": [],
        "socket, fsync": [],
        "exchange": [],
        "release": [],
    }
    for repeat in range(repeats + 1):
        seconds = {
            "socket": timed(lambda: sender.by_socket(sync=False)),
            "gRPC": timed(sender.by_grpc),
            "socket, fsync": timed(lambda: sender.by_socket(sync=True)),
            "release": timed(sender.release),
            "exchange": timed(sender.by_exchange),
        }
        sender.conclude()
        # the first is for warming up
        if repeat:
            for way, value in seconds.items():
                found[way].append(value)
    return found


def main() -> None:
    """Measure, print, write."""
    keep_freed_memory()  # as `proxyfl node run` does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=RESNET18, help="parameters")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("build/exchange.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        result = _measured(Path(made), args.size, args.repeats)
    for way, seconds in result["seconds"].items():
        speed = 4e-6 * args.size / statistics.median(seconds)
        print(f"{way:>14}: {statistics.median(seconds):.3f} s, {speed:.0f} MB/s")
    for name, ratio in result["ratios"].items():
        print(f"{name}: {ratio:.2f}")
    for end, proxies in result["memory_in_proxies"].items():
        print(f"peak memory of the {end}, above its start: {proxies:.1f} proxies")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1))


def _measured(folder: Path, size: int, repeats: int) -> dict[str, Any]:
    found_two_sites(folder)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    port = free_ports(1)[0]
    process = context.Process(target=receive, args=(folder, size, port, ready), daemon=True)
    process.start()
    try:
        if not ready.wait(120):
            raise SystemExit("The receiving process did not start.")
        sender = Sender(folder, size, port)
        before = {"sender": peak_memory(), "receiver": int(sender._call(MEMORY))}
        seconds = measure(sender, repeats)
        after = {"sender": peak_memory(), "receiver": int(sender._call(MEMORY))}
    finally:
        process.kill()
        process.join()
    ratios = {
        "gRPC beside the socket": ("socket", "gRPC"),
        "exchange beside the socket that syncs": ("socket, fsync", "exchange"),
        "exchange beside the socket": ("socket", "exchange"),
    }
    return {
        "parameters": size,
        "seconds": seconds,
        "ratios": {
            name: statistics.median(
                raw / ours for raw, ours in zip(seconds[base], seconds[way], strict=True)
            )
            for name, (base, way) in ratios.items()
        },
        "memory_in_proxies": {end: (after[end] - before[end]) / (4 * size) for end in before},
    }


if __name__ == "__main__":
    main()
