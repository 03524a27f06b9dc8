"""The ranks of an MPI job as one crew: rank 0 gives orders, the others report, and none waits for
another for ever.

How an end comes about:
    * all is well: rank 0 dismisses the others, and every rank finalizes MPI;
    * a rank raises: it tells rank 0, which raises ``WorkerDied`` with what it was told;
    * a rank dies or is stopped: its lifeline (transport/lifeline.py) says so to rank 0, which
      raises ``WorkerDied``; if it was rank 0 itself, rank 1 says so. Launchers that end the whole
      job at a death leave about a second for that;
    * rank 0 raises, for these reasons or others: once it has said why, it aborts the job at its
      exit.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from proxyfl.errors import InputError, ProxyFLError, TransportError, WorkerDied
from proxyfl.transport.lifeline import Address, Lifeline, Watch
from proxyfl.transport.mpi import Mail

_ORDERS, _REPORTS, _GREETINGS, _GO, _FREE = 0, 1, 2, 3, 4
_SHOWN = 6
_PATIENCE = 60.0
_LAST_WORD = 0.7
"""Seconds that rank 0 has to end in good order. Open MPI kills a second after it has asked to
terminate."""


@dataclass(frozen=True)
class Places:
    """Which rank runs on which machine and hosts which clients: every N-th, as with workers."""

    names: tuple[str, ...]
    machines: tuple[str, ...]

    def home(self, client: int) -> int:
        """The rank on which ``client`` lives."""
        return client % len(self.machines)

    def hosted(self, rank: int, clients: int) -> range:
        """Those of the first ``clients`` clients that live on ``rank``."""
        return range(rank, clients, len(self.machines))

    def describe(self, rank: int) -> str:
        """The rank with its machine and its clients, as a message names it."""
        names = [self.names[client] for client in self.hosted(rank, len(self.names))]
        more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        clients = ", ".join([*names[:_SHOWN], *more])
        return f"rank {rank} on {self.machines[rank]}" + (
            f", which hosts {clients}," if names else ""
        )

    def failed(self, rank: int, where: str, error: BaseException) -> str:
        """What to say of ``error``: our own errors speak for themselves, others with their type and
        place."""
        what = str(error)
        if not isinstance(error, ProxyFLError):
            frames = traceback.extract_tb(error.__traceback__)
            at = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
            what = f"{type(error).__name__}: {error}{at}."
        return f"{self.describe(rank)} failed {where}: {what}"


class Crew:
    """Rank 0's side: orders out, reports in, and an eye on everyone."""

    def __init__(self, mail: Mail) -> None:
        self.mail, self.code = mail, 0
        self.machines = (
            socket.gethostname(),
            *(_greeting(mail, rank) for rank in range(1, mail.size)),
        )
        self.places = Places((), self.machines)
        self._orders, self._reports, self._goes, self._channels = 0, [0] * mail.size, 0, _FREE
        self._schedule: list[list[str]] = [[] for _ in range(mail.size)]
        self._busy, self._ending = False, False
        self._out: Path | None = None
        self._failure: WorkerDied | None = None
        self._failed = threading.Event()
        self._main_thread = threading.current_thread() is threading.main_thread()
        if self._main_thread:
            signal.signal(signal.SIGTERM, self._terminated)
        mail.alarm = lambda _rank, message: self._fail(message.decode())
        self._watch = Watch(mail.size, self._lost, local=len(set(self.machines)) == 1)
        self._introduce()

    def begin(
        self,
        places: Places,
        order: Mapping[str, Any],
        schedule: Sequence[Sequence[str]],
        *,
        timeout: float,
        out: Path | None,
    ) -> None:
        """Give all ranks the ``order``. ``schedule`` says, for each rank, where each of its reports
        will come from."""
        self.places, self._busy, self._out = places, True, out
        for planned, more in zip(self._schedule, schedule, strict=True):
            planned.extend(more)
        self._watch.limit = timeout
        for rank in range(1, self.mail.size):
            self.mail.post(rank, (_ORDERS, 0, rank, self._orders), json.dumps(order).encode())
        self._orders += 1

    def channels(self, number: int) -> int:
        """The first of as many channels of the mail that nobody has used yet."""
        first, self._channels = self._channels, self._channels + number
        return first

    def report(self, rank: int, patience: float) -> Any:
        """The next report of ``rank``; WorkerDied if there is none within ``patience`` seconds."""
        content = self.mail.take((_REPORTS, rank, 0, self._reports[rank]), patience)
        if content is None:
            raise WorkerDied(
                f"{self.places.describe(rank)} stalled {self._where(rank)}: it reported nothing "
                f"for {patience:g} s. "
                "If that is how long a round takes, raise exchange.timeout."
            )
        self._reports[rank] += 1
        return json.loads(content)

    def go_on(self) -> None:
        """Tell everyone that a round is on record, so that they may go on from there."""
        for rank in range(1, self.mail.size):
            self.mail.post(rank, (_GO, 0, rank, self._goes), b"")
        self._goes += 1

    def finished(self) -> None:
        """The order was carried out by all."""
        self._busy = False

    def end(self, code: int) -> None:
        """Dismiss the others; if they are still at work, this process aborts the job as its last
        act."""
        self._ending = True
        self._watch.end()
        if self._busy or self._failure is not None:
            atexit.register(self.mail.abort, code or 1)
            return
        for rank in range(1, self.mail.size):
            self.mail.post(rank, (_ORDERS, 0, rank, self._orders), b"null")
        self.mail.close()

    def _introduce(self) -> None:
        for rank in range(1, self.mail.size):
            greeting = {"machine": self.machines[0], "address": asdict(self._watch.address)}
            self.mail.post(rank, (_GREETINGS, 0, rank, 0), json.dumps(greeting).encode())
        for rank in range(1, self.mail.size):
            problem = json.loads(_awaited(self.mail, rank, 1))
            if problem is not None:
                print(
                    f"proxyfl: rank {rank} on {self.machines[rank]} cannot reach rank 0 over TCP "
                    f"({problem}). The run "
                    "goes on; that this rank has died will be noticed by the launcher, or after "
                    "exchange.timeout.",
                    file=sys.stderr,
                )

    def _lost(self, rank: int, what: str, how: str) -> None:
        self._end_if_given_up()
        self._fail(f"{self.places.describe(rank)} {what} {self._where(rank)}: {how}.")

    def _where(self, rank: int) -> str:
        """What the rank was at, judged by the reports that have come, read or not."""
        at = self._reports[rank]
        while self.mail.holds((_REPORTS, rank, 0, at)):
            at += 1
        return (
            self._schedule[rank][at]
            if at < len(self._schedule[rank])
            else "while it waited for orders"
        )

    def _fail(self, message: str) -> None:
        """End the run from another thread: the main one may be computing for long."""
        if self._failure is not None or self._ending:
            return
        self._failure = WorkerDied(message)
        self._failed.set()
        if not self._main_thread:
            self.mail.fail(self._failure)
            return
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        time.sleep(_LAST_WORD)
        if not self._ending:
            _say(message, self._out)
            self.mail.abort(1)

    def _end_if_given_up(self) -> None:
        """After a sleep longer than the others wait for a sign of life: rank 1 has said all there
        is to say."""
        if self._watch.slept > self._watch.limit / 2:
            os._exit(1)

    def _terminated(self, _signal: int, _frame: FrameType | None) -> None:
        """Asked to terminate: by ``_fail``, by a launcher because a rank was lost, or because the
        user wants to."""
        if self._ending:
            return
        self._end_if_given_up()
        self._failed.wait(
            0.3
        )  # the news of a rank's death and the launcher's signal come at about the same time
        self._ending = True
        raise self._failure or KeyboardInterrupt


@contextlib.contextmanager
def lead(mail: Mail) -> Iterator[Crew]:
    """The crew that rank 0 leads. When the block ends, with ``crew.code`` or an exception, so does
    the crew's work."""
    crew = Crew(mail)
    try:
        yield crew
    except BaseException as error:
        crew.end(
            130
            if isinstance(error, KeyboardInterrupt)
            else 2
            if isinstance(error, InputError)
            else 1
        )
        raise
    crew.end(crew.code)


class Follower:
    """Every other rank's side: carries out orders until it is dismissed."""

    def __init__(self, mail: Mail) -> None:
        self.mail, self.where = mail, "before its first order"
        self.out: Path | None = None
        self._reports = self._goes = 0
        if threading.current_thread() is threading.main_thread():
            for name in (
                signal.SIGTERM,
                signal.SIGINT,
            ):  # rank 0 decides what they mean, and ends us
                signal.signal(name, signal.SIG_IGN)
        mail.post(0, (_GREETINGS, mail.rank, 0, 0), json.dumps(socket.gethostname()).encode())
        greeting = json.loads(_awaited(mail, 0, 0))
        self.places = Places((), (greeting["machine"],))
        problem: str | None = None
        self._lifeline: Lifeline | None = None
        try:
            self._lifeline = Lifeline(mail.rank, Address(**greeting["address"]), self._lost)
        except OSError as error:
            problem = str(error)
        mail.post(0, (_GREETINGS, mail.rank, 0, 1), json.dumps(problem).encode())

    def serve(self, carry_out: Callable[[Any], None]) -> None:
        """Carry out orders as they come; return when dismissed."""
        serial = 0
        while True:
            order = json.loads(self.mail.take((_ORDERS, 0, self.mail.rank, serial)) or b"null")
            if order is None:
                break
            serial += 1
            try:
                carry_out(order)
            except (
                BaseException
            ) as error:  # whatever it is, rank 0 must hear of it, or it would wait in vain
                self._give_up(error)
        if self._lifeline is not None:
            self._lifeline.end()
        self.mail.close()

    def begin(self, places: Places, *, timeout: float, out: Path | None) -> None:
        """Note what to say should rank 0 be lost, and how long to wait for it."""
        self.places, self.out = places, out
        if self._lifeline is not None:
            self._lifeline.limit = timeout

    def report(self, content: Mapping[str, Any]) -> None:
        """Send ``content`` to rank 0."""
        self.mail.post(
            0, (_REPORTS, self.mail.rank, 0, self._reports), json.dumps(content).encode()
        )
        self._reports += 1

    def await_go(self, timeout: float) -> int:
        """Wait until rank 0 has one more round on record; always 1. WorkerDied if it takes twice
        ``timeout``.

        Twice, because a rank that rank 0 waits for in vain is for rank 0 to name.
        """
        if self.mail.take((_GO, 0, self.mail.rank, self._goes), 2 * timeout) is None:
            raise WorkerDied(
                f"{self.places.describe(0)} stalled while {self.places.describe(self.mail.rank)} "
                f"waited for it, "
                f"{self.where}: it recorded no round for {2 * timeout:g} s. If that is how long a "
                f"round takes, raise "
                "exchange.timeout."
            )
        self._goes += 1
        return 1

    def _give_up(self, error: BaseException) -> None:
        message = (
            str(error)
            if isinstance(error, WorkerDied)
            else self.places.failed(self.mail.rank, self.where, error)
        )
        self.mail.alert(0, message.encode())
        time.sleep(_PATIENCE)  # rank 0 says it and ends us
        _say(message, self.out)  # it did not
        self.mail.abort(1)

    def _lost(self, rank: int, what: str, how: str) -> None:
        if self.mail.rank == 1:
            _say(f"{self.places.describe(rank)} {what} {self.where}: {how}.", self.out)
        else:
            time.sleep(_LAST_WORD)  # let rank 1 speak
        with contextlib.suppress(Exception):
            self.mail.abort(1)
        os._exit(1)


def _say(message: str, out: Path | None) -> None:
    go_on = (
        f" What was recorded is intact. Go on with: proxyfl resume {out}" if out is not None else ""
    )
    os.write(sys.stderr.fileno(), f"proxyfl: {message}{go_on}\n".encode())


def _greeting(mail: Mail, rank: int) -> str:
    return str(json.loads(_awaited(mail, rank, 0)))


def _awaited(mail: Mail, rank: int, number: int) -> bytes:
    content = mail.take((_GREETINGS, rank, mail.rank, number), _PATIENCE)
    if content is None:
        raise TransportError(
            f"Rank {rank} was started but has said nothing for {_PATIENCE:g} s. Look at its "
            f"machine."
        )
    return content
