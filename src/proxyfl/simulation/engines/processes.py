"""The clients of a run spread over worker processes that keep their models resident.

A worker prepares the run for itself from the config, hosts every N-th client, and goes through the
same methods and rounds as all others; proxies cross in shared memory, and each round's records come
back to the main process. A client computes the same bits wherever it runs, so the number of workers
changes nothing but the time.

Failure: a worker that raises or dies ends the run with one message that names it, its clients and
the round; the others are stopped. What was recorded and checkpointed is intact."""

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from proxyfl._machine import end_with_parent, keep_freed_memory
from proxyfl.data import Dataset
from proxyfl.errors import ProxyFLError, WorkerDied
from proxyfl.federation.membership import Presence
from proxyfl.federation.methods import Method
from proxyfl.simulation.config import Config
from proxyfl.simulation.engines.serial import Done, Prepared, Task, merged, rounds_of
from proxyfl.simulation.prepare import prepare
from proxyfl.transport.shared import SharedTransport, shared_folder


@dataclass(frozen=True)
class Assignment:
    """All that a worker needs to know; sent to it once, when it starts."""

    config: Config
    dataset: Dataset | None
    table: Mapping[str, Method]
    presences: Mapping[str, Sequence[Presence]]
    clients: int
    tasks: Sequence[Task]
    number: int
    workers: int
    out: Path | None
    frames: Path

    def hosted(self, clients: int) -> list[int]:
        """The clients of this worker: every ``workers``-th."""
        return list(range(self.number, clients, self.workers))


@dataclass
class _Worker:
    process: BaseProcess
    line: Connection
    clients: str


def rounds(
    prepared: Prepared,
    tasks: Sequence[Task],
    *,
    workers: int,
    out: Path | None,
    dataset: Dataset | None,
) -> Iterator[Done]:
    """Run ``tasks`` on ``workers`` processes; yield each round of each method once all workers have
    done it."""
    # A fork of this process would inherit locked mutexes of torch's threads. The fork server has
    # imported everything and has no threads yet: workers start at once and share its memory.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["proxyfl.simulation.engines.processes"])
    with shared_folder() as frames:
        crew: list[_Worker] = []
        try:
            for number in range(workers):
                job = Assignment(
                    prepared.config,
                    dataset,
                    prepared.table,
                    prepared.presences,
                    len(prepared.sites),
                    tasks,
                    number,
                    workers,
                    out,
                    frames,
                )
                line, other_end = context.Pipe()
                process = context.Process(
                    target=_work, args=(job, other_end), name=f"worker {number}", daemon=True
                )
                process.start()
                other_end.close()
                names = [prepared.sites[i].name for i in job.hosted(len(prepared.sites))]
                crew.append(_Worker(process, line, ", ".join(names)))
            yield from _merged(prepared, tasks, crew)
            for worker in crew:
                _next(worker, crew, "the end")
                worker.process.join()
        finally:
            for worker in crew:
                worker.process.kill()
                worker.process.join()


def _merged(prepared: Prepared, tasks: Sequence[Task], crew: list[_Worker]) -> Iterator[Done]:
    """Each round once all hosts have reported it, the records in the order of the clients."""
    for task in tasks:
        # All begin a method together: one who hosts nobody in a long `joint` would wait for the
        # others in vain.
        for worker in crew:
            with contextlib.suppress(OSError):  # it has died: `_next` says so, and of what
                worker.line.send(task.method)
        hosts = crew[: len(prepared.sites_of(task.method))]
        for round in range(task.first_round, prepared.config.rounds + 1):
            parts = [
                Done.from_dict(_next(worker, crew, f"{task.method}, round {round}"))
                for worker in hosts
            ]
            yield merged(parts)


def _next(worker: _Worker, crew: list[_Worker], where: str) -> Any:
    """The worker's next message. Raises at once if any worker of the crew has failed: the others
    may wait for it."""
    while True:
        running = [other for other in crew if other.process.exitcode is None]
        ready = wait([worker.line, *(other.process.sentinel for other in running)])
        for other in running:
            if other.process.sentinel in ready:
                other.process.join()
                if other.process.exitcode != 0:
                    raise _failure(other, where)
        if worker.line in ready:
            try:
                return worker.line.recv()
            except (EOFError, OSError):  # the line was cut before the process was seen to end
                worker.process.join()
                raise _died(worker, where) from None


def _failure(worker: _Worker, where: str) -> ProxyFLError:
    """What a worker that failed has to say: its last message, or how it ended."""
    try:
        while True:
            message = worker.line.recv()
            if isinstance(message, ProxyFLError):
                return message
            if isinstance(message, Exception):
                return WorkerDied(
                    f"{worker.process.name}, which hosts {worker.clients}, failed in {where}: "
                    f"{message}."
                )
    except (EOFError, OSError):
        return _died(worker, where)


def _died(worker: _Worker, where: str) -> WorkerDied:
    code = worker.process.exitcode
    how = (
        f"was killed by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"ended with code {code}"
    )
    return WorkerDied(f"{worker.process.name}, which hosts {worker.clients}, {how} in {where}.")


def _work(job: Assignment, line: Connection) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the main process, which ends the workers
    end_with_parent()
    try:
        own = job.hosted(job.clients)
        prepared = replace(
            prepare(job.config, dataset=job.dataset, table=job.table, hosted=own),
            presences=job.presences,
        )
        keep_freed_memory()  # from here on: what loading the data took has gone back
        for task in job.tasks:
            line.recv()  # all others are done with the method before
            clients = len(prepared.sites_of(task.method))
            if job.number >= clients:
                continue
            # A folder for each method: the fastest worker may begin the next before the slowest has
            # ended the last.
            transport = SharedTransport(job.frames / task.method)
            for done in rounds_of(prepared, task, job.hosted(clients), transport, job.out):
                line.send(done.as_dict())
        line.send(None)
    except (BrokenPipeError, EOFError):
        pass  # the main process is gone, and with it the run
    except ProxyFLError as error:
        line.send(error)
        sys.exit(1)
    except Exception as error:  # reported by the main process, which knows what to tell the user
        line.send(RuntimeError(f"{type(error).__name__}: {error}"))
        sys.exit(1)
