"""Who is alive: a TCP connection from every process to the first, which the kernel closes when a
process dies.

MPI itself does not say that a rank was killed; its launcher may, and may not. The connections carry
one byte now and then, so that a process that was stopped rather than killed is noticed too. They
carry no data of a run.

Guarantees: a death is noticed at once (on one machine within milliseconds), a silence after
``limit`` seconds; each is reported once; a process that was itself suspended counts the others'
silence from its own awakening."""

import contextlib
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_BEAT, _END = b".", b"!"
_TOKEN = 16
_HELLO = _TOKEN + 4
_LONGEST_BEAT = 1.0

Report = Callable[[int, str, str], None]
"""(rank, what happened to it, how that shows)."""


@dataclass(frozen=True)
class Address:
    """Where the first process listens, and the secret that shows a caller belongs to the job."""

    hosts: tuple[str, ...]
    port: int
    token: str


class Watch:
    """The first process's end: listens, and reports whom it loses."""

    def __init__(self, ranks: int, report: Report, *, local: bool) -> None:
        self.limit = float("inf")
        self.slept = 0.0
        """Seconds for which this process was suspended, if that was just now."""
        self._report = report
        self._listener = socket.create_server(
            ("127.0.0.1" if local else "", 0), backlog=max(8, ranks)
        )
        token = secrets.token_bytes(_TOKEN)
        hosts = ("127.0.0.1",) if local else _own_names()
        self.address = Address(hosts, self._listener.getsockname()[1], token.hex())
        self._token = token
        self._lines: dict[int, socket.socket] = {}
        self._heard: dict[int, float] = {}
        self._over = threading.Event()
        threading.Thread(target=self._listen, name="watch", daemon=True).start()

    def end(self) -> None:
        """Tell everyone that what ends now ends on purpose, and stop watching."""
        self._over.set()
        for line in list(self._lines.values()):
            with contextlib.suppress(OSError):
                line.send(_END)

    def _listen(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ, None)
        clock = _Clock()
        while not self._over.is_set():
            ready = selector.select(clock.pause(self.limit))
            self.slept = clock.overslept()
            if self.slept:
                self._heard = dict.fromkeys(self._heard, time.monotonic())
            for key, _ in ready:
                if key.data is None:
                    self._greet(selector)
                elif not self._still_there(key.data):
                    selector.unregister(self._lines.pop(key.data))
                    self._tell(key.data, "was lost", "its process ended")
            if clock.beat_is_due():
                self._beat(selector)

    def _beat(self, selector: selectors.BaseSelector) -> None:
        for rank, line in list(self._lines.items()):
            with contextlib.suppress(OSError):
                line.send(_BEAT)
            if time.monotonic() - self._heard[rank] > self.limit:
                selector.unregister(self._lines.pop(rank))
                self._tell(rank, "stalled", f"it has not been heard of for {self.limit:g} s")

    def _tell(self, rank: int, what: str, how: str) -> None:
        if not self._over.is_set():
            self._report(rank, what, how)

    def _greet(self, selector: selectors.BaseSelector) -> None:
        line, _ = self._listener.accept()
        line.settimeout(5.0)
        try:
            hello = b""
            while len(hello) < _HELLO and (more := line.recv(_HELLO - len(hello))):
                hello += more
        except OSError:
            hello = b""
        if not secrets.compare_digest(hello[:_TOKEN], self._token):
            line.close()  # not one of us
            return
        line.setblocking(False)
        rank = int.from_bytes(hello[_TOKEN:], "big")
        self._lines[rank], self._heard[rank] = line, time.monotonic()
        selector.register(line, selectors.EVENT_READ, rank)

    def _still_there(self, rank: int) -> bool:
        self._heard[rank] = time.monotonic()
        return _read(self._lines[rank]) != b""


class Lifeline:
    """Every other process's end. Reports rank 0 when it is lost; says nothing once ``end`` was
    announced."""

    def __init__(self, rank: int, address: Address, report: Report) -> None:
        self.limit = float("inf")
        self._report = report
        self._line = _connected(address)
        self._line.sendall(bytes.fromhex(address.token) + rank.to_bytes(4, "big"))
        self._line.setblocking(False)
        self._over = threading.Event()
        threading.Thread(target=self._listen, name="lifeline", daemon=True).start()

    def end(self) -> None:
        """Stop listening; what happens to rank 0 is of no interest any more."""
        self._over.set()

    def _listen(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._line, selectors.EVENT_READ)
        clock, heard = _Clock(), time.monotonic()
        while not self._over.is_set():
            ready = selector.select(clock.pause(self.limit))
            if clock.overslept():
                heard = time.monotonic()
            if ready:
                heard, text = time.monotonic(), _read(self._line)
                if self._over.is_set() or (text is not None and _END in text):
                    return
                if text == b"":
                    self._report(0, "was lost", "its process ended")
                    return
            if clock.beat_is_due():
                with contextlib.suppress(OSError):
                    self._line.send(_BEAT)
            if time.monotonic() - heard > self.limit:
                self._report(0, "stalled", f"it has not been heard of for {self.limit:g} s")
                return


class _Clock:
    """When to give the next sign of life, and whether this process slept through the last ones."""

    def __init__(self) -> None:
        self._beat, self._due = 0.0, time.monotonic()

    def pause(self, limit: float) -> float:
        """How long to wait for news at most: four signs of life fit into ``limit``."""
        self._beat = min(_LONGEST_BEAT, limit / 4)
        self._due = min(self._due, time.monotonic() + self._beat)
        return max(0.0, self._due - time.monotonic())

    def overslept(self) -> float:
        """The seconds that passed beyond what was to be waited, if many: stopped by a signal, or
        starved."""
        late = time.monotonic() - self._due
        return late if late > self._beat + 1.0 else 0.0

    def beat_is_due(self) -> bool:
        """Whether it is time for a sign of life; if so, the next one is planned."""
        due = time.monotonic() >= self._due
        if due:
            self._due = time.monotonic() + self._beat
        return due


def _read(line: socket.socket) -> bytes | None:
    """What has come; nothing (b"") if the other end is gone, None if it was a false alarm."""
    try:
        return line.recv(4096)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _own_names() -> tuple[str, ...]:
    name = socket.gethostname()
    numbers: list[str] = []
    with contextlib.suppress(OSError):
        numbers = socket.gethostbyname_ex(name)[2]
    return tuple(dict.fromkeys([name, socket.getfqdn(), *numbers]))


def _connected(address: Address) -> socket.socket:
    problem: OSError | None = None
    for host in address.hosts:
        try:
            return socket.create_connection((host, address.port), timeout=5.0)
        except OSError as error:
            problem = error
    raise problem or OSError("no address to connect to")
