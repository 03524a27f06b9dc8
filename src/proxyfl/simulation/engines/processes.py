"""The clients of a run spread over worker processes that keep their models resident.

The main process loads and checks the data, hands each worker the examples of its own clients, every
N-th, and then forgets them: no process holds more than its clients' examples and the test set. What
is read from a file is handed over as its path. All workers go through the same methods and rounds;
proxies cross in shared memory, and each round's records come back to the main process. A client
computes the same bits wherever it runs, so the number of workers changes nothing but the time.

Failure: a worker that raises or dies ends the run with one message that names it, its clients and
the round; the others are stopped. What was recorded and checkpointed is intact.
"""

import contextlib
import multiprocessing
import pickle
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from proxyfl._machine import end_with_parent, keep_freed_memory, return_freed_memory
from proxyfl._validate import whole
from proxyfl.errors import ProxyFLError, WorkerDied
from proxyfl.simulation.engines import serial
from proxyfl.simulation.engines.serial import (
    Engine,
    RoundReport,
    Task,
    merged,
    rounds_of,
)
from proxyfl.simulation.prepare import Prepared
from proxyfl.transport.shared import SharedTransport, shared_folder


@dataclass(frozen=True)
class Assignment:
    """All that a worker needs to know; sent to it once, when it has started."""

    prepared: Prepared
    """The run, with the examples of the worker's own clients."""
    tasks: Sequence[Task]
    number: int
    workers: int
    out: Path | None
    frames: Path


@dataclass
class _Worker:
    process: BaseProcess
    line: Connection
    clients: str


def engine(workers: int) -> Engine:
    """The engine of ``workers`` processes; of this one alone where one is enough."""
    whole("workers", workers)

    def rounds(
        prepared: Prepared,
        tasks: Sequence[Task],
        out: Path | None,
    ) -> Iterator[RoundReport]:
        needed = min(workers, len(prepared.clients))
        if needed < 2:
            return serial.rounds(prepared, tasks, out)
        return _rounds(prepared, tasks, out, needed)

    return rounds


def _rounds(
    prepared: Prepared,
    tasks: Sequence[Task],
    out: Path | None,
    workers: int,
) -> Iterator[RoundReport]:
    """Run ``tasks`` on ``workers`` processes; yield each round once all workers have done it."""
    # A fork of this process would inherit locked mutexes of torch's threads. The fork server has
    # imported everything and has no threads yet: workers start at once and share its memory.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["proxyfl.simulation.engines.processes"])
    team: list[_Worker] = []
    with shared_folder() as frames:
        try:
            for number in range(workers):
                line, other_end = context.Pipe()
                process = context.Process(
                    target=_work,
                    args=(other_end,),
                    name=f"worker {number}",
                    daemon=True,
                )
                process.start()
                other_end.close()
                own = _own(len(prepared.clients), number, workers)
                names = [prepared.clients[i].name for i in own]
                team.append(_Worker(process, line, ", ".join(names)))
                part = prepared.only(own)
                job = Assignment(part, tasks, number, workers, out, frames)
                # As bytes: `Connection.send` would share tensors with this process instead.
                content = pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
                with contextlib.suppress(OSError):  # it has died: `_next` says so
                    line.send_bytes(content)
            prepared.release_examples()
            return_freed_memory()
            yield from _merged(prepared, tasks, team)
            for worker in team:
                _next(worker, team, "the end")
                worker.process.join()
        finally:
            for worker in team:
                worker.process.kill()
                worker.process.join()


def _own(clients: int, number: int, workers: int) -> list[int]:
    """The clients of worker ``number``: every ``workers``-th."""
    return list(range(number, clients, workers))


def _merged(
    prepared: Prepared,
    tasks: Sequence[Task],
    team: list[_Worker],
) -> Iterator[RoundReport]:
    """Each round once all workers have reported it, the records in the order of the clients."""
    for task in tasks:
        # All begin a method together: one without a client in a long `joint` would wait for the
        # others in vain.
        for worker in team:
            # it has died: `_next` says so, and of what
            with contextlib.suppress(OSError):
                worker.line.send(task.method)
        busy = team[: len(prepared.clients_of(task.method))]
        for round in range(task.first_round, prepared.config.rounds + 1):
            where = f"{task.method}, round {round}"
            parts = []
            for worker in busy:
                told = _next(worker, team, where)
                parts.append(RoundReport.from_dict(told))
            yield merged(parts)


def _next(worker: _Worker, team: list[_Worker], where: str) -> Any:
    """The worker's next message. Raises at once if any worker of the team has failed: the others
    may wait for it."""
    while True:
        running = []
        for other in team:
            if other.process.exitcode is None:
                running.append(other.process.sentinel)
            elif other.process.exitcode != 0:
                raise _failure(other, where)
        if wait([worker.line, *running]) == [worker.line]:
            try:
                return worker.line.recv()
            except (EOFError, OSError):
                # the line was cut before the process was seen to end
                worker.process.join()
                raise _died(worker, where) from None


def _failure(worker: _Worker, where: str) -> ProxyFLError:
    """The reason why a worker failed: its last message, or how it ended."""
    try:
        while True:
            message = worker.line.recv()
            if isinstance(message, ProxyFLError):
                return message
            if isinstance(message, Exception):
                return WorkerDied(
                    f"{worker.process.name}, which runs {worker.clients}, failed in {where}: "
                    f"{message}."
                )
    except (EOFError, OSError):
        return _died(worker, where)


def _died(worker: _Worker, where: str) -> WorkerDied:
    code = worker.process.exitcode
    how = f"ended with code {code}"
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    return WorkerDied(
        f"{worker.process.name}, which runs {worker.clients}, {how} in {where}."
    )


def _work(line: Connection) -> None:
    # Ctrl-C reaches the main process, which ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    try:
        job: Assignment = pickle.loads(line.recv_bytes())
        keep_freed_memory()  # from here on: what receiving the data took has gone back
        torch.set_num_threads(job.prepared.config.threads)
        _run_tasks(job, line)
        line.send(None)
    except (BrokenPipeError, EOFError):
        pass  # the main process is gone, and with it the run
    except ProxyFLError as error:
        line.send(error)
        sys.exit(1)
    except Exception as error:
        # reported by the main process, which knows what to tell the user
        line.send(RuntimeError(f"{type(error).__name__}: {error}"))
        sys.exit(1)


def _run_tasks(job: Assignment, line: Connection) -> None:
    prepared = job.prepared
    for task in job.tasks:
        line.recv()  # all others are done with the method before
        own = _own(len(prepared.clients_of(task.method)), job.number, job.workers)
        if not own:
            continue
        # A folder for each method: the fastest worker may begin the next before the slowest has
        # ended the last.
        transport = SharedTransport(job.frames / task.method)
        for report in rounds_of(prepared, task, own, transport, job.out):
            line.send(report.as_dict())
