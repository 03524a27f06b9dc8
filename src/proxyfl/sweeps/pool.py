"""The processes of a sweep: each run in one of its own, a few at a time.

Guarantees:
    * a finished run is never run again, and a run that was begun is resumed;
    * a run that was asked for a part of its rounds is stopped as by Ctrl-C once they are on
      record, and continued later to the same result;
    * one run's failure stops no other; when ``execute`` returns or raises, none of its processes is
      left;
    * at most one sweep is at work in a folder, counting processes that a killed one left behind.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxyfl import _lock
from proxyfl._files import write_text, writing
from proxyfl._validate import whole
from proxyfl.errors import ConfigError
from proxyfl.records import folder
from proxyfl.records.reading import state
from proxyfl.simulation import config as configs
from proxyfl.sweeps.file import Point

COMMAND = (sys.executable, "-m", "proxyfl")
"""The command that starts a run's process."""

_GRACE = 10.0
_TAIL = 16_384


@dataclass(frozen=True)
class Outcome:
    """The end of a run. ``error`` is None for one that finished, or that came as far as was asked,
    else the last lines it said."""

    point: Point
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class Status:
    """The state of a sweep. ``running`` gives the part of each running run that is done, from 0 to
    1."""

    outcomes: Sequence[Outcome]
    running: Mapping[str, float]
    waiting: int
    part_done: float
    seconds_left: float | None


def execute(
    points: Sequence[Point],
    *,
    parallel: int,
    until: int | None = None,
    command: Sequence[str] = COMMAND,
    tell: Callable[[Status], None] = lambda status: None,
    poll: float = 0.2,
) -> list[Outcome]:
    """Run or resume what is not finished, ``parallel`` at a time; ``tell`` hears of it at every
    look. With ``until``, a run is stopped once so many rounds are on record; a quick one may do
    a few more by then.

    Interrupted (or if ``tell`` raises), it stops its processes first; what they have done can be
    resumed."""
    whole("parallel", parallel)
    check_until(until, points)
    waiting = [point for point in points if not is_done(point, until)]
    if not waiting:
        return []
    outcomes: list[Outcome] = []
    running: list[_Process] = []
    clock = _Clock(waiting, until)
    with _alone_in(folder.subfolder(waiting[0].folder.parent)) as lock:
        try:
            while waiting or running:
                while waiting and len(running) < parallel:
                    with _interrupts_wait():
                        running.append(_Process(waiting.pop(0), command, lock))
                at_work = [process.point for process in running]
                tell(clock.status(outcomes, at_work, waiting))
                time.sleep(poll)
                for process in list(running):
                    process.stop_at(until)
                    if process.child.poll() is not None:
                        running.remove(process)
                        outcomes.append(process.outcome())
            tell(clock.status(outcomes, [], []))
        finally:
            _stop(running)
    return outcomes


def is_done(point: Point, until: int | None) -> bool:
    """True of a run that is finished, or has done ``until`` rounds."""
    if state(point.folder) == "finished":
        return True
    return until is not None and _rounds_done(point) >= until


def goal(point: Point, until: int | None) -> int:
    """The rounds that a run is to do: all of them, or ``until``."""
    return point.work if until is None else min(until, point.work)


def check_until(until: int | None, points: Sequence[Point]) -> None:
    """Refuse a number of rounds to which the runs cannot be taken."""
    if until is None:
        return
    whole("--until", until)
    for point in points:
        if len(point.config.methods) > 1:
            raise ConfigError(
                f"The run {point.name} has several methods, one after the other, so that it cannot "
                "be taken to a round of each. List them in [grid], one run per method."
            )


def arguments(point: Point) -> list[str]:
    """The command line that begins or resumes the run, in one process next to others."""
    what = ["run", str(point.beside(".toml")), "--out", str(point.folder)]
    if state(point.folder) != "new":
        what = ["resume", str(point.folder)]
    return [*what, "--workers", "1"]


class _Process:
    """One run at work. What it says on standard error goes into its log, after what earlier
    attempts said."""

    def __init__(self, point: Point, command: Sequence[str], lock: int) -> None:
        self.point = point
        self.began = time.monotonic()
        self.seen_there = False
        self.was_stopped = False
        write_text(point.beside(".toml"), configs.to_toml(point.config))
        environment = dict(os.environ)
        if point.config.threads == 1:
            environment["OMP_NUM_THREADS"] = "1"
        self.log = point.beside(".log")
        with writing(self.log), self.log.open("ab") as log:
            self.said_before = log.tell()
            self.child = subprocess.Popen(
                [*command, *arguments(point)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                # In its own process group a terminal's Ctrl-C does not reach it: we pass it on.
                process_group=0,
                # A child holds the lock while it lives, so that nobody takes an orphan's folder.
                pass_fds=(lock,),
            )

    def stop_at(self, until: int | None) -> None:
        """Stop the run, once, if it has done ``until`` rounds and has more to do: at the second
        look that finds it there, when the checkpoint of the round is written too."""
        if self.was_stopped or goal(self.point, until) == self.point.work:
            return
        if self.seen_there:
            self.was_stopped = True
            self.child.terminate()
        self.seen_there = _rounds_done(self.point) >= goal(self.point, until)

    def outcome(self) -> Outcome:
        """The outcome of the process."""
        code = self.child.returncode
        seconds = time.monotonic() - self.began
        finished = code == 0 and state(self.point.folder) == "finished"
        if finished or self.was_stopped:
            return Outcome(self.point, seconds)
        how = f"exit code {code}"
        if code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        said = _end_of(self.log, self.said_before).decode(errors="replace")
        last = said.strip().splitlines()[-5:]
        last.append(f"({how}; all it said: {self.log})")
        return Outcome(self.point, seconds, "\n".join(last))


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Holds back Ctrl-C and SIGTERM while a process is started.

    An exception between the child's start and its entry in the list would leave it behind."""
    arrived: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):  # what is ignored stays ignored, in the child too
                handlers[number] = handler
                signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for signal_number in arrived:
            signal.raise_signal(signal_number)


def _stop(running: Sequence[_Process]) -> None:
    """End the processes: politely, so that their records are whole; by force after a while, or if
    interrupted again."""
    for process in running:
        process.child.terminate()
    deadline = time.monotonic() + _GRACE
    try:
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.child.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in running:
            if process.child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.child.pid, signal.SIGKILL)
                process.child.wait()


def _alone_in(path: Path) -> contextlib.AbstractContextManager[int]:
    """Hold the sweep folder's lock; refuse if another sweep, or a process that one left behind, is
    at work there."""
    return _lock.hold(
        path / _lock.FILE,
        f"Another sweep, or a run that one left behind, is at work in {path}. "
        "Wait for it to end, or give another folder with --out.",
    )


class _Clock:
    """Estimates the time remaining from the rounds done since the start.

    Nothing is said before one run has ended or a twentieth is done: a run's start is slow, and
    rounds of different methods are counted alike."""

    def __init__(self, todo: Sequence[Point], until: int | None = None) -> None:
        self.work = {}
        for point in todo:
            self.work[point.name] = goal(point, until)
        self.began = time.monotonic()
        self.at_start = {point.name: _rounds_done(point) for point in todo}

    def status(
        self, outcomes: Sequence[Outcome], running: Sequence[Point], waiting: Sequence[Point]
    ) -> Status:
        """The state of the sweep now."""
        done = dict(self.at_start)
        for point in running:
            done[point.name] = _rounds_done(point)
        for outcome in outcomes:
            done[outcome.point.name] = self.work[outcome.point.name]
        in_all = sum(self.work.values())
        now = sum(done.values())
        fresh = now - sum(self.at_start.values())
        left = None
        if fresh and (outcomes or fresh >= in_all / 20):
            left = (time.monotonic() - self.began) / fresh * (in_all - now)
        parts = {}
        for point in running:
            parts[point.name] = min(1.0, done[point.name] / self.work[point.name])
        return Status(list(outcomes), parts, len(waiting), now / in_all, left)


def _rounds_done(point: Point) -> int:
    """The rounds that a run has done, by the last whole line of its metrics."""
    try:
        whole_lines, _, _ = _end_of(point.folder / "metrics.jsonl").rpartition(b"\n")
        row = json.loads(whole_lines.rpartition(b"\n")[2])
        before = point.config.methods.index(row["method"])
        return before * point.config.rounds + int(row["round"]) + 1
    except (OSError, ValueError, KeyError):
        return 0  # not begun


def _end_of(path: Path, start: int = 0) -> bytes:
    """The last bytes of a file, none of them before ``start``."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - _TAIL))
        return file.read()
