"""The processes of a sweep: each run in one of its own, a few at a time.

Guarantees:
    * a finished run is never run again, and a run that was begun is resumed;
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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxyfl._files import writing
from proxyfl._validate import whole
from proxyfl.errors import RunError
from proxyfl.records import folder
from proxyfl.records.run import state
from proxyfl.simulation import config as configs
from proxyfl.sweeps.file import Run

COMMAND = (sys.executable, "-m", "proxyfl.cli.main")
"""How a run's process is started."""

_GRACE = 10.0
_TAIL = 16_384


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``error`` is None for one that finished, else the last lines that it
    said."""

    run: Run
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class Status:
    """Where a sweep stands. ``running`` gives the part of each running run that is done, from 0 to
    1."""

    outcomes: Sequence[Outcome]
    running: Mapping[str, float]
    waiting: int
    part_done: float
    seconds_left: float | None


def execute(
    runs: Sequence[Run],
    *,
    parallel: int,
    command: Sequence[str] = COMMAND,
    tell: Callable[[Status], None] = lambda status: None,
    poll: float = 0.2,
) -> list[Outcome]:
    """Run or resume what is not finished, ``parallel`` at a time; ``tell`` hears of it at every
    look.

    Interrupted (or if ``tell`` raises), it stops its processes first; what they have done can be
    resumed."""
    whole("parallel", parallel)
    waiting = [run for run in runs if state(run.folder) != "finished"]
    if not waiting:
        return []
    outcomes: list[Outcome] = []
    running: list[_Process] = []
    clock = _Clock(waiting)
    with _alone_in(folder.subfolder(waiting[0].folder.parent)) as lock:
        try:
            while waiting or running:
                while waiting and len(running) < parallel:
                    running.append(_Process(waiting.pop(0), command, lock))
                tell(clock.status(outcomes, [process.run for process in running], waiting))
                time.sleep(poll)
                for process in [p for p in running if p.child.poll() is not None]:
                    running.remove(process)
                    outcomes.append(process.outcome())
            tell(clock.status(outcomes, [], []))
        finally:
            _stop(running)
    return outcomes


def arguments(run: Run) -> list[str]:
    """What the program is told to do for ``run``: begin it or go on with it, in one process, as
    others run beside."""
    begin = ["run", str(run.beside(".toml")), "--out", str(run.folder)]
    return [
        *(begin if state(run.folder) == "new" else ["resume", str(run.folder)]),
        "--workers",
        "1",
    ]


class _Process:
    """One run at work. What it says on standard error goes into its log, after what earlier
    attempts said."""

    def __init__(self, run: Run, command: Sequence[str], lock: int) -> None:
        self.run, self.began, config = run, time.monotonic(), run.beside(".toml")
        with writing(config):
            config.write_text(configs.to_toml(run.config), encoding="utf-8")
        one_thread = {"OMP_NUM_THREADS": "1"} if run.config.threads == 1 else {}
        with writing(run.beside(".log")), run.beside(".log").open("ab") as log:
            self.said_before = log.tell()
            self.child = subprocess.Popen(
                [*command, *arguments(run)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **one_thread},
                # Its own process group: a terminal's Ctrl-C reaches us alone, and we pass it on
                # once.
                process_group=0,
                # While a child lives it holds the lock, so that an orphan's folder is not taken
                # from it.
                pass_fds=(lock,),
            )

    def outcome(self) -> Outcome:
        code, seconds = self.child.returncode, time.monotonic() - self.began
        if code == 0 and state(self.run.folder) == "finished":
            return Outcome(self.run, seconds)
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        with self.run.beside(".log").open("rb") as log:
            log.seek(max(self.said_before, log.seek(0, os.SEEK_END) - _TAIL))
            last = log.read().decode(errors="replace").strip().splitlines()[-5:]
        return Outcome(
            self.run,
            seconds,
            "\n".join([*last, f"({how}; all it said: {self.run.beside('.log')})"]),
        )


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


@contextlib.contextmanager
def _alone_in(path: Path) -> Iterator[int]:
    """Hold the sweep folder's lock; refuse if another sweep, or a process that one left behind, is
    at work there."""
    import fcntl  # Unix only, as is killing a process group

    with writing(path / ".lock"):
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"Another sweep, or a run that one left behind, is at work in {path}. "
                "Wait for it to end, or give another folder with --out."
            ) from error
        yield lock
    finally:
        os.close(lock)


class _Clock:
    """Guesses the time remaining from the rounds done since the start; rounds of all methods count
    alike."""

    def __init__(self, todo: Sequence[Run]) -> None:
        self.todo, self.began = list(todo), time.monotonic()
        self.at_start = {run.name: _rounds_done(run) for run in todo}

    def status(
        self, outcomes: Sequence[Outcome], running: Sequence[Run], waiting: Sequence[Run]
    ) -> Status:
        done = {run.name: _rounds_done(run) for run in running} | {
            o.run.name: o.run.work for o in outcomes
        }
        done = {run.name: done.get(run.name, self.at_start[run.name]) for run in self.todo}
        in_all, now = sum(run.work for run in self.todo), sum(done.values())
        fresh = now - sum(self.at_start.values())
        left = (time.monotonic() - self.began) / fresh * (in_all - now) if fresh else None
        parts = {run.name: done[run.name] / run.work for run in running}
        return Status(list(outcomes), parts, len(waiting), now / in_all, left)


def _rounds_done(run: Run) -> int:
    """How far a run has come, by the last whole line of its metrics."""
    try:
        with (run.folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            row = json.loads(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2])
        return run.config.methods.index(row["method"]) * run.config.rounds + int(row["round"]) + 1
    except (OSError, ValueError, KeyError):
        return 0  # not begun
