"""Frames between the ranks of an MPI job. The one home of mpi4py, which is imported only when a job
needs it.

A rank has one ``Mail``: a thread that makes all MPI calls, with buffers and without blocking, so
that what was sent moves on while the rank trains. A message is a header of six int64 (channel,
sender, receiver, round, length, kind) and, if the length is not 0, the content; MPI keeps the order
of messages between two ranks, which is what ties a content to its header. The receiver acknowledges
what was asked for, hence the sender knows which keys are free again. Nothing is pickled."""

import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

from proxyfl.errors import PeerTimeout, TransportError
from proxyfl.transport import base

if TYPE_CHECKING:
    from mpi4py import MPI

Key = tuple[int, int, int, int]
"""Channel, sender, receiver, round. Channels keep apart what different users of one Mail send under
equal names."""

ALARM = -1
"""The channel whose messages go to ``alarm`` as they arrive, without being asked for."""

_BARRIER = -2
_HEADER = Struct("<6q")
_HEADERS, _CONTENTS = 1, 2
_MESSAGE, _RECEIVED = 0, 1
_SHORTEST, _LONGEST, _PATIENCE = 2e-5, 1e-2, 0.05
"""Seconds between two looks for messages: a twentieth of how long it has been quiet, within these
bounds."""


def launched() -> int:
    """How many ranks the launcher started, judged by what it left in the environment; 1 without a
    launcher."""
    names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"]
    if "PMIX_RANK" in os.environ:  # srun --mpi=pmix says the size in its own words only
        names.append("SLURM_STEP_NUM_TASKS")
    found = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdigit()), 1)


def launcher(ranks: int) -> list[str]:
    """The start of a command line that runs ``ranks`` processes on this machine, however few cores
    it has."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise TransportError("There is no mpiexec. Install one with `pip install 'proxyfl[mpi]'`.")
    said = subprocess.run(
        [found, "--version"], capture_output=True, text=True, check=False, timeout=30
    ).stdout
    open_mpi = any(
        name in said.lower() for name in ("open mpi", "open-mpi", "openrte", "prrte", "prterun")
    )
    return [
        found,
        *(["--oversubscribe", "--bind-to", "none"] if open_mpi else []),
        "-n",
        str(ranks),
    ]


class Mail:
    """What one rank sends and receives. Any of its threads may call. All ranks make theirs at the
    same time.

    Guarantees:
        * ``post`` returns at once; a message arrives whole, once, and is kept until it is taken;
        * ``take`` ends by its timeout, when the mail is closed, and as soon as ``fail`` was called.
    """

    def __init__(self) -> None:
        self._comm = _world().Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.alarm: Callable[[int, bytes], None] = lambda _rank, _content: None
        self._arrived: dict[Key, tuple[bytes, int]] = {}
        self._not_taken: set[Key] = set()
        self._outgoing: deque[tuple[int, Key, bytes, int]] = deque()
        self._closed_channels: set[int] = set()
        self._error: Exception | None = None
        self._closed = False
        state = threading.Lock()
        self._news, self._work = threading.Condition(state), threading.Condition(state)
        self._thread = threading.Thread(target=self._deliver, name="mail", daemon=True)
        self._thread.start()

    def post(self, to: int, key: Key, content: bytes) -> None:
        """Put ``content`` on its way to rank ``to``; TransportError if ``key`` is in use."""
        with self._news:
            self._check(key)
            if key in self._not_taken:
                raise TransportError(base.repeated(sender=key[1], receiver=key[2], round=key[3]))
            self._not_taken.add(key)
            if to == self.rank:
                self._arrived[key] = (bytes(content), to)
                self._news.notify_all()
            else:
                self._outgoing.append((to, key, bytes(content), _MESSAGE))
                self._work.notify()

    def alert(self, to: int, content: bytes) -> None:
        """Send ``content`` to the ``alarm`` of rank ``to``."""
        with self._news:
            self._outgoing.append((to, (ALARM, self.rank, to, 0), bytes(content), _MESSAGE))
            self._work.notify()

    def take(self, key: Key, timeout: float = math.inf) -> bytes | None:
        """The message under ``key``; None if it has not come within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with self._news:
            self._work.notify()
            while key not in self._arrived:
                self._check(key)
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._news.wait(min(left, 3600.0))
            self._check(key)
            content, source = self._arrived.pop(key)
            if source == self.rank:
                self._not_taken.discard(key)
            else:
                self._outgoing.append((source, key, b"", _RECEIVED))
                self._work.notify()
            return content

    def holds(self, key: Key) -> bool:
        """Whether a message under ``key`` has arrived and was not taken."""
        with self._news:
            return key in self._arrived

    def fail(self, error: Exception) -> None:
        """Let everyone who waits, now or later, get ``error``."""
        with self._news:
            self._error = error
            self._news.notify_all()

    def close_channel(self, channel: int) -> None:
        """Drop what was not taken from ``channel`` and refuse to use it from now on."""
        with self._news:
            self._closed_channels.add(channel)
            for key in [key for key in self._arrived if key[0] == channel]:
                del self._arrived[key]
            self._news.notify_all()

    def close(self, timeout: float = 10.0) -> None:
        """Send what is still to be sent, as far as that is possible within ``timeout``, and
        stop."""
        with self._news:
            self._closed = True
            self._news.notify_all()
            self._work.notify()
        self._thread.join(timeout)

    def barrier(self, ranks: Sequence[int], number: int) -> None:
        """Wait until all of ``ranks``, this one among them, wait in the barrier of this ``number``.

        Messages 1, 2, 4 ... places ahead: after the last of them everyone has heard of everyone.
        The core is free meanwhile, which MPI's own barrier does not promise."""
        place = ranks.index(self.rank)
        for step in range((len(ranks) - 1).bit_length()):
            ahead, behind = (ranks[(place + way) % len(ranks)] for way in (2**step, -(2**step)))
            self.post(ahead, (_BARRIER, self.rank, ahead, 64 * number + step), b"")
            self.take((_BARRIER, behind, self.rank, 64 * number + step))

    def abort(self, code: int) -> None:
        """End every rank of the job, whatever it is doing."""
        self._comm.Abort(code)

    def _check(self, key: Key) -> None:
        if self._error is not None:
            raise self._error
        if self._closed or key[0] in self._closed_channels:
            raise TransportError("This transport is closed. Open a new one to send or receive.")

    def _deliver(self) -> None:
        """The thread's loop: send what is to be sent, receive what has come, sleep a little."""
        from mpi4py import MPI

        sends: list[tuple[MPI.Request, bytes]] = []
        receives: deque[tuple[MPI.Request, Key, bytearray, int]] = deque()
        quiet_since = time.monotonic()
        try:
            while True:
                with self._news:
                    outgoing = list(self._outgoing)
                    self._outgoing.clear()
                    done = self._closed and not outgoing and not sends
                if done:
                    return
                self._start(outgoing, sends)
                sends = [(request, held) for request, held in sends if not request.Test()]
                busy = self._look(receives) or bool(outgoing)
                busy = self._finish(receives) or busy
                if busy or self._called(quiet_since):
                    quiet_since = time.monotonic()
        except MPI.Exception as error:
            self.fail(
                TransportError(f"MPI on rank {self.rank} failed: {error.Get_error_string()}.")
            )

    def _start(
        self, outgoing: list[tuple[int, Key, bytes, int]], sends: "list[tuple[MPI.Request, bytes]]"
    ) -> None:
        for to, key, content, kind in outgoing:
            header = _HEADER.pack(*key, len(content), kind)
            sends.append((self._comm.Isend(header, to, _HEADERS), header))
            if content:
                sends.append((self._comm.Isend(content, to, _CONTENTS), content))

    def _look(self, receives: "deque[tuple[MPI.Request, Key, bytearray, int]]") -> bool:
        from mpi4py import MPI

        status, busy = MPI.Status(), False
        while self._comm.Iprobe(MPI.ANY_SOURCE, _HEADERS, status):
            source, header, busy = status.Get_source(), bytearray(_HEADER.size), True
            self._comm.Recv(
                header, source, _HEADERS
            )  # it has arrived, as the probe said: this does not wait
            channel, sender, receiver, round, length, kind = _HEADER.unpack(header)
            key = (channel, sender, receiver, round)
            if kind == _RECEIVED:
                with self._news:
                    self._not_taken.discard(key)
            elif length:
                content = bytearray(length)
                receives.append(
                    (self._comm.Irecv(content, source, _CONTENTS), key, content, source)
                )
            else:
                self._hand_in(key, b"", source)
        return busy

    def _finish(self, receives: "deque[tuple[MPI.Request, Key, bytearray, int]]") -> bool:
        busy = False
        for _ in range(len(receives)):
            request, key, content, source = receives.popleft()
            if request.Test():
                self._hand_in(key, bytes(content), source)
                busy = True
            else:
                receives.append((request, key, content, source))
        return busy

    def _hand_in(self, key: Key, content: bytes, source: int) -> None:
        if key[0] == ALARM:
            self.alarm(source, content)
            return
        with self._news:
            if key[0] not in self._closed_channels:
                self._arrived[key] = (content, source)
                self._news.notify_all()

    def _called(self, quiet_since: float) -> bool:
        """Sleep a little; whether somebody woke us, to send or because they wait for something."""
        pause = _PATIENCE * (time.monotonic() - quiet_since)
        with self._news:
            return bool(self._outgoing) or self._work.wait(min(max(pause, _SHORTEST), _LONGEST))


class MpiTransport:
    """A Transport over one channel of a Mail. ``home`` says on which rank a client lives."""

    def __init__(self, mail: Mail, home: Callable[[int], int], *, channel: int = 0) -> None:
        self._mail, self._home, self._channel = mail, home, channel

    def send(self, frame: bytes, *, sender: int, receiver: int, round: int) -> None:
        """Hand ``frame`` over for ``receiver``."""
        self._mail.post(self._home(receiver), (self._channel, sender, receiver, round), frame)

    def receive(self, *, sender: int, receiver: int, round: int, timeout: float) -> bytes:
        """The frame for this key; waits for it up to ``timeout`` seconds."""
        frame = self._mail.take((self._channel, sender, receiver, round), timeout)
        if frame is None:
            raise PeerTimeout(
                base.silent(sender=sender, receiver=receiver, round=round, timeout=timeout)
            )
        return frame

    def close(self) -> None:
        """Drop what was not received and wake whoever waits, with a TransportError. The Mail goes
        on."""
        self._mail.close_channel(self._channel)


def _world() -> "MPI.Intracomm":
    """All ranks of the job; TransportError if mpi4py is missing, or is not the launcher's."""
    ranks = launched()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise TransportError(
            f"Started with {ranks} ranks, but mpi4py does not load: {error}. Install it with `pip "
            f"install "
            "'proxyfl[mpi]'`, or against the MPI of this cluster with `pip install --no-binary "
            "mpi4py mpi4py`."
        ) from error
    if ranks > 1 and MPI.COMM_WORLD.Get_size() != ranks:
        raise TransportError(
            f"The launcher started {ranks} ranks, but mpi4py finds {MPI.COMM_WORLD.Get_size()}: "
            f"they belong to "
            f"different MPIs. Start with the mpiexec of "
            f"{MPI.Get_library_version().split(',')[0].strip()}."
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise TransportError(
            "This MPI allows calls from the main thread alone; ProxyFL needs MPI_THREAD_SERIALIZED."
        )
    return MPI.COMM_WORLD
