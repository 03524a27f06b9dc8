"""The engines of one machine, and what every engine has in common.

An engine runs tasks and yields a report of each round once all clients have done it. ``rounds_of``
is what any process does with the clients that it has: alone, as a worker, or as an MPI rank.
``serial`` is the engine of one process; ``engine`` has as many as it is told.

With workers, processes keep the clients' models resident. The main process loads and checks the
data, hands each worker the examples of its own clients, every N-th, and then forgets them: no
process holds more than its clients' examples and the test set. What is read from a file is handed
over as its path. All workers go through the same methods and rounds; proxies cross in shared
memory, and each round's records come back to the main process. A client computes the same bits
wherever it runs, so the number of workers changes nothing but the time.

Failure: a worker that raises or dies ends the run with one message that names it, its clients and
the round; the others are stopped. What was recorded and checkpointed is intact.
"""

import contextlib
import multiprocessing
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from proxyfl._validate import whole
from proxyfl.errors import ConfigError, ProxyFLError, WorkerDied
from proxyfl.federation import exchange
from proxyfl.federation.client import Client
from proxyfl.federation.masked import MaskedSum, seeded_keys
from proxyfl.federation.methods import Method, name_of
from proxyfl.federation.modelfile import save_model
from proxyfl.federation.rounds import ClientRound, run_rounds
from proxyfl.machine import end_with_parent, keep_freed_memory, return_freed_memory
from proxyfl.records import folder
from proxyfl.records.row import Row, row_of
from proxyfl.simulation import checkpoint
from proxyfl.simulation.checkpoint import Checkpoint
from proxyfl.simulation.clients import Assembly, evaluator
from proxyfl.simulation.config import Config
from proxyfl.simulation.prepare import Prepared
from proxyfl.transport.base import Transport
from proxyfl.transport.memory import MemoryTransport
from proxyfl.transport.shared import SharedTransport, shared_folder


@dataclass(frozen=True)
class Task:
    """One method to run, from the start or from a checkpoint."""

    method: str
    checkpoint: Checkpoint | None = None

    @property
    def first_round(self) -> int:
        """The first round that is still to be done."""
        return 0 if self.checkpoint is None else self.checkpoint.round + 1


@dataclass(frozen=True)
class RoundReport:
    """One round of one process: its clients' rows, and the checkpoint files it wrote (name ->
    checksum). Plain data, which crosses from one process to another as it is.

    After the last round, and once the models are saved, comes one with ``ended`` and no rows.
    """

    method: str
    round: int
    rows: list[Row] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    ended: bool = False


def merge(parts: Sequence[RoundReport]) -> RoundReport:
    """One round of all processes, the rows in the order of the clients."""
    rows: list[Row] = []
    files: dict[str, int] = {}
    for part in parts:
        rows.extend(part.rows)
        files |= part.files
    rows.sort(key=lambda row: row["client"])
    return RoundReport(
        parts[0].method, parts[0].round, rows, files, ended=all(part.ended for part in parts)
    )


Engine = Callable[[Prepared, Sequence[Task], Path | None], Iterator[RoundReport]]
"""(a prepared run, its tasks, its folder) -> a report of each round, in order."""


def serial(prepared: Prepared, tasks: Sequence[Task], out: Path | None) -> Iterator[RoundReport]:
    """The engine of one process: every client is here, and proxies move through memory."""
    for task in tasks:
        everyone = range(len(prepared.clients_of(task.method)))
        yield from rounds_of(prepared, task, everyone, MemoryTransport(), out)


def rounds_of(
    prepared: Prepared, task: Task, own: Sequence[int], transport: Transport, out: Path | None
) -> Iterator[RoundReport]:
    """Run one method's rounds for the clients ``own``; checkpoint as configured; save the
    models at the end."""
    config, name = prepared.config, task.method
    assembly = prepared.assembly(name)
    ledgers = folder.subfolder(out, "ledger", name) if out is not None else None
    clients = [assembly.client(i, ledgers) for i in own]
    mix = mixing_of(prepared, task.method, clients)
    memory = None
    if config.exchange.rules == "sites":
        from proxyfl.simulation.sites import SiteRules

        memory = mix if isinstance(mix, SiteRules) else None
    if task.checkpoint is not None:
        task.checkpoint.restore(clients, memory)
    reported = _records(prepared, task, clients, transport, mix)
    for number, records in enumerate(reported, start=task.first_round):
        report = RoundReport(name, number, [row_of(name, record) for record in records])
        if out is not None and _is_due(number, config.checkpoint_every, config):
            below = out / "checkpoints" / name
            for client in clients:
                remembered = {} if memory is None else memory.state(client.id)
                file, checksum = checkpoint.write_client(below, number, client, remembered)
                report.files[file] = checksum
        yield report
    if out is not None:
        _save_models(out / "models" / name, name, assembly, clients)
    yield RoundReport(name, config.rounds, ended=True)


def _is_due(round: int, every: int, config: Config) -> bool:
    """True in every n-th round, and in the last."""
    return (round + 1) % every == 0 or round == config.rounds - 1


def mixing_of(prepared: Prepared, method: str, clients: Sequence[Client]) -> exchange.Mixing | None:
    """The mixing of a method with an exchange of masses, for the clients of this process."""
    config, name = prepared.config, prepared.methods[method].exchange
    if name in ("none", "masked") or not clients:
        return None
    if name != "pushsum" or config.exchange.rules != "sites":
        return exchange.mixing(name, prepared.topology, config.exchange.kinds)
    from proxyfl.simulation.sites import SiteRules  # the code of real sites, with its extra

    return SiteRules(
        prepared.topology,
        clients,
        [client.name for client in prepared.clients],
        config.defences(len(prepared.clients)),
        training_rounds=prepared.study.training_rounds,
        joined=config.membership.joined,
        kinds=config.exchange.kinds,
    )


def _records(
    prepared: Prepared,
    task: Task,
    clients: Sequence[Client],
    transport: Transport,
    mix: exchange.Mixing | None,
) -> Iterator[list[ClientRound]]:
    config, method = prepared.config, prepared.methods[task.method]
    presences = prepared.presences[task.method]
    moves: exchange.Exchange | MaskedSum | None = None
    if method.exchange == "masked" and clients:
        plan = prepared.sums[task.method]
        own = [client.id for client in clients]
        keys = seeded_keys(plan, config.seed, own)
        moves = MaskedSum(transport, plan, keys, timeout=config.exchange.timeout)
    elif mix is not None:
        moves = exchange.over(
            transport, mix, shared=clients[0].learner.shared, timeout=config.exchange.timeout
        )
    return run_rounds(
        clients,
        rounds=config.rounds,
        exchange=moves,
        presence=lambda round: presences[round],
        evaluate=evaluator(config, prepared.dataset, method),
        evaluate_now=lambda round: _is_due(round, config.evaluate_every, config),
        start=task.first_round,
    )


def _save_models(path: Path, method: str, assembly: Assembly, clients: Sequence[Client]) -> None:
    for client in clients:
        for role, model in client.learner.models().items():
            about = {"method": method, **assembly.about_model(client, role)}
            about |= client.balances.meaning(role, model).about()
            save_model(path / f"{client.id:03d}-{role}.safetensors", model, about)


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
        prepared: Prepared, tasks: Sequence[Task], out: Path | None
    ) -> Iterator[RoundReport]:
        needed = min(workers, len(prepared.clients))
        if needed < 2:
            return serial(prepared, tasks, out)
        for task in tasks:
            _check_sendable(task.method, prepared.methods[task.method])
        return _rounds(prepared, tasks, out, needed)

    return rounds


def _check_sendable(name: str, method: Method) -> None:
    """Raise ConfigError for a method whose functions cannot be sent to another process."""
    for part, value in (("learner", method.learner), ("exchange", method.exchange)):
        try:
            pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            raise ConfigError(
                f"The {part} of the method {name!r}, {name_of(value)}, cannot be sent to worker "
                "processes. Define it at the top of a module (functools.partial keeps settings), "
                "or run with workers=1."
            ) from problem


def _rounds(
    prepared: Prepared, tasks: Sequence[Task], out: Path | None, workers: int
) -> Iterator[RoundReport]:
    """Run ``tasks`` on ``workers`` processes; yield each round once all workers have done it."""
    # A fork of this process would inherit locked mutexes of torch's threads. The fork server has
    # imported everything and has no threads yet: workers start at once and share its memory.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["proxyfl.simulation.engines", *_accountants(prepared, tasks)])
    team: list[_Worker] = []
    with shared_folder() as frames:
        try:
            for number in range(workers):
                line, other_end = context.Pipe()
                process = context.Process(
                    target=_work, args=(other_end,), name=f"worker {number}", daemon=True
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
            yield from _merge_reports(prepared, tasks, team)
            for worker in team:
                _next(worker, team, "the end")
                worker.process.join()
        finally:
            for worker in team:
                worker.process.kill()
                worker.process.join()


def _accountants(prepared: Prepared, tasks: Sequence[Task]) -> tuple[str, ...]:
    """What each round's epsilon needs; it takes a second to import, once for all workers."""
    private = any(prepared.methods[task.method].dp for task in tasks)
    return ("dp_accounting.pld", "scipy.fft") if private else ()


def _own(clients: int, number: int, workers: int) -> list[int]:
    """The clients of worker ``number``: every ``workers``-th."""
    return list(range(number, clients, workers))


def _merge_reports(
    prepared: Prepared, tasks: Sequence[Task], team: list[_Worker]
) -> Iterator[RoundReport]:
    """Each round once all workers have reported it, the records in the order of the clients."""
    for task in tasks:
        # All begin a method together: one without a client in a long `joint` would wait for the
        # others for nothing.
        for worker in team:
            # it has died: `_next` says so, and of what
            with contextlib.suppress(OSError):
                worker.line.send(task.method)
        busy = team[: len(prepared.clients_of(task.method))]
        for round in range(task.first_round, prepared.config.rounds + 1):
            where = f"{task.method}, round {round}"
            parts = []
            for worker in busy:
                parts.append(_next(worker, team, where))
            yield merge(parts)


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
                message = worker.line.recv()
            except (EOFError, OSError):
                # the line was cut before the process was seen to end
                worker.process.join()
                raise _died(worker, where) from None
            if isinstance(message, Exception):
                # a worker that fails says why before it ends
                raise _reported_failure(worker, message, where)
            return message


def _failure(worker: _Worker, where: str) -> ProxyFLError:
    """The reason why a worker failed: its last message, or how it ended."""
    try:
        while True:
            message = worker.line.recv()
            if isinstance(message, Exception):
                return _reported_failure(worker, message, where)
    except (EOFError, OSError):
        return _died(worker, where)


def _reported_failure(worker: _Worker, message: Exception, where: str) -> ProxyFLError:
    """The error that a worker reported, as the user reads it."""
    if isinstance(message, ProxyFLError):
        return message
    return WorkerDied(
        f"{worker.process.name}, which runs {worker.clients}, failed in {where}: {message}."
    )


def _died(worker: _Worker, where: str) -> WorkerDied:
    code = worker.process.exitcode
    how = f"ended with code {code}"
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    return WorkerDied(f"{worker.process.name}, which runs {worker.clients}, {how} in {where}.")


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
            line.send(report)
