"""The clients of a run spread over the ranks of an MPI job, as ``workers`` spreads them over
processes.

Rank 0 alone reads the command line, makes the run's folder, records and prints. Its engine sends
the plan of the run to the other ranks. Every rank then prepares the run, keeps only its own
clients' data, and goes through the same methods and rounds. Proxies go directly from rank to rank;
records go to rank 0 as JSON after every round, and no rank begins a round before rank 0 has its
records of the last one. A client computes the same bits wherever it runs, so the number of ranks
changes nothing but the time.

Failure: a rank that raises says so and aborts the job. So does a rank that waits longer than
``exchange.timeout`` for a frame, or twice that for anything else: who waits for a frame knows best
who is late. The launcher ends the job when a rank dies, and says which; rank 0 then says how to
resume. What was recorded and checkpointed is intact.

``Ranks`` and ``Plan`` are what all ranks know: who runs whom, and the run.
"""

import atexit
import json
import os
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from proxyfl.data import Dataset
from proxyfl.errors import DataError, InputError, ProxyFLError, RunError, WorkerDied
from proxyfl.federation.methods import METHODS, Method
from proxyfl.simulation.checkpoint import Checkpoint
from proxyfl.simulation.config import Config, from_tree, to_toml
from proxyfl.simulation.engines import Engine, RoundReport, Task, merge, rounds_of
from proxyfl.simulation.prepare import Prepared, fingerprint, prepare
from proxyfl.transport.mpi import MpiEndpoint, MpiTransport, rank_count

_SHOWN = 6


@dataclass(frozen=True)
class Ranks:
    """The machine and the clients of each rank: every N-th client, as with workers."""

    names: Sequence[str]
    machines: Sequence[str]

    def clients_of(self, rank: int, clients: int) -> range:
        """Those of the first ``clients`` clients that run on ``rank``."""
        return range(rank, clients, len(self.machines))

    def describe(self, rank: int) -> str:
        """The rank with its machine and its clients, as a message names it."""
        described = f"rank {rank} on {self.machines[rank]}"
        own = self.clients_of(rank, len(self.names))
        clients = [self.names[client] for client in own]
        if not clients:
            return described
        shown = clients[:_SHOWN]
        if len(clients) > _SHOWN:
            shown.append(f"{len(clients) - _SHOWN} more")
        return f"{described}, which runs {', '.join(shown)},"


def reason(error: BaseException) -> str:
    """The words for ``error``: ours speaks for itself, others with their type and place."""
    if isinstance(error, ProxyFLError):
        return str(error)
    place = ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return f"{type(error).__name__}: {error}{place}."


@dataclass(frozen=True)
class Plan:
    """A run as rank 0 hands it to the other ranks, as JSON; the rest they work out for themselves.

    ``data`` is the fingerprint of rank 0's data, so that a rank with other files is found out.
    """

    config: Config
    out: Path | None
    tasks: Sequence[Task]
    data: int

    def encode(self) -> bytes:
        """The plan as JSON."""
        tasks = []
        for task in self.tasks:
            about: dict[str, Any] = {"method": task.method}
            if task.checkpoint is not None:
                about["path"] = str(task.checkpoint.path.absolute())
                about["round"] = task.checkpoint.round
            tasks.append(about)
        out = None if self.out is None else str(self.out.absolute())
        content = {"config": to_toml(self.config), "out": out, "tasks": tasks, "data": self.data}
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, text: bytes) -> "Plan":
        """The plan that ``encode`` wrote."""
        content = json.loads(text)
        tasks = []
        for about in content["tasks"]:
            checkpoint = None
            if "path" in about:
                # What else a checkpoint holds is rank 0's business.
                checkpoint = Checkpoint(Path(about["path"]), about["round"], 0)
            tasks.append(Task(about["method"], checkpoint))
        config = from_tree(tomllib.loads(content["config"]))
        out = None if content["out"] is None else Path(content["out"])
        return cls(config, out, tasks, content["data"])


_STARTING = 3600.0
"""Seconds that rank 0 may take to load the data and check the run, or to show its result."""

_LOADING = 600.0
"""Seconds that another rank may take to load its part, at least."""

_NOTHING_MORE = b"null"


def on_rank_zero(
    action: Callable[[Engine | None], int],
    *,
    dataset: Dataset | None = None,
    methods: Mapping[str, Method] = METHODS,
) -> int:
    """Call ``action`` with this job's engine on rank 0, with the other ranks at its service.

    Returns the exit code: that of ``action``, and 0 on the other ranks. Without a launcher this is
    ``action(None)``. If rank 0 fails, by a code or an exception, it aborts the job when it exits,
    once it has said why.
    """
    if rank_count() < 2:
        return action(None)
    endpoint = MpiEndpoint()
    if endpoint.rank > 0:
        _follow(endpoint, dataset, methods)
        return 0
    try:
        code = action(partial(_lead, endpoint))
    except BaseException as error:
        atexit.register(endpoint.abort, 2 if isinstance(error, InputError) else 1)
        raise
    if code != 0:
        atexit.register(endpoint.abort, code)
        return code
    for rank in range(1, endpoint.size):
        endpoint.send(_NOTHING_MORE, to=rank)
    endpoint.flush(_LOADING)
    return 0


@dataclass(frozen=True)
class _Job:
    """One run, as one rank takes part in it."""

    endpoint: MpiEndpoint
    ranks: Ranks
    prepared: Prepared
    out: Path | None

    @classmethod
    def on(cls, endpoint: MpiEndpoint, prepared: Prepared, out: Path | None) -> "_Job":
        """The job on the rank of ``endpoint``, which keeps its own clients' examples alone."""
        ranks = Ranks([client.name for client in prepared.clients], endpoint.machines)
        own = prepared.only(ranks.clients_of(endpoint.rank, len(prepared.clients)))
        prepared.release_examples()
        return cls(endpoint, ranks, own, out)

    @property
    def patience(self) -> float:
        """Seconds to wait for anything but a frame."""
        return 2 * self.prepared.config.exchange.timeout

    def rounds(self, task: Task) -> Iterator[RoundReport]:
        """This rank's part of ``task``, whose frames have all been received; WorkerDied if it
        fails."""
        clients = len(self.prepared.clients_of(task.method))
        own = self.ranks.clients_of(self.endpoint.rank, clients)
        # One endpoint serves all methods: nothing is on its way when a method ends.
        transport = MpiTransport(self.endpoint, clients)
        round = task.first_round
        try:
            for report in rounds_of(self.prepared, task, own, transport, self.out):
                self.flush()
                yield report
                round = report.round + 1
        except WorkerDied:
            raise
        except Exception as error:
            who = self.ranks.describe(self.endpoint.rank)
            where = f"{task.method}, round {round}"
            raise WorkerDied(f"{who} failed in {where}: {reason(error)}") from error

    def flush(self) -> None:
        """Wait until all that this rank has sent is received."""
        late = self.endpoint.flush(self.patience)
        if late:
            raise self._stall_error(late[0], "asked for nothing", self.patience)

    def report(self, done: RoundReport) -> None:
        """Send ``done`` to rank 0 and wait until it has it: nobody runs ahead of the records."""
        self.endpoint.send(json.dumps(vars(done)).encode(), to=0)
        self.flush()

    def report_of(self, rank: int, timeout: float) -> RoundReport:
        """The next report of ``rank``."""
        text = self.endpoint.receive(source=rank, timeout=timeout)
        if text is None:
            raise self._stall_error(rank, "reported nothing", timeout)
        return RoundReport(**json.loads(text))

    def _stall_error(self, rank: int, what: str, seconds: float) -> WorkerDied:
        return WorkerDied(
            f"{self.ranks.describe(rank)} stalled: it {what} for {seconds:g} s. "
            "If a round takes that long, raise exchange.timeout."
        )


def _lead(
    endpoint: MpiEndpoint, prepared: Prepared, tasks: Sequence[Task], out: Path | None
) -> Iterator[RoundReport]:
    """The engine of rank 0: each round of each method once all ranks have done it."""
    plan = Plan(prepared.config, out, tasks, fingerprint(prepared))
    job = _Job.on(endpoint, prepared, out)
    others = range(1, endpoint.size)
    try:
        for rank in others:
            endpoint.send(plan.encode(), to=rank)
        for rank in others:
            job.report_of(rank, max(_LOADING, job.patience))
        for task in tasks:
            for report in job.rounds(task):
                parts = [report]
                for rank in others:
                    parts.append(job.report_of(rank, job.patience))
                yield merge(parts)
    except KeyboardInterrupt:
        raise WorkerDied(
            "This job was ended: by its launcher because a rank was lost, which it names, or by "
            "a signal."
        ) from None


def _follow(endpoint: MpiEndpoint, dataset: Dataset | None, methods: Mapping[str, Method]) -> None:
    """Take part in what rank 0 plans, until it plans nothing more."""
    try:
        while True:
            text = endpoint.receive(source=0, timeout=_STARTING)
            if text is None:
                raise WorkerDied(
                    f"rank 0 has sent no plan for {_STARTING:g} s. See its output for the cause."
                )
            if text == _NOTHING_MORE:
                return
            _take_part(endpoint, Plan.decode(text), dataset, methods)
    except KeyboardInterrupt:
        os._exit(130)  # the launcher ends the job, and rank 0 speaks for it
    except Exception as error:
        message = str(error)
        if not isinstance(error, WorkerDied):
            who = Ranks((), endpoint.machines).describe(endpoint.rank)
            message = f"{who} failed: {reason(error)}"
        print(f"proxyfl: {message}", file=sys.stderr, flush=True)
        endpoint.abort(1)


def _take_part(
    endpoint: MpiEndpoint, plan: Plan, dataset: Dataset | None, methods: Mapping[str, Method]
) -> None:
    """The counterpart of ``_lead`` on another rank."""
    if plan.out is not None and not (plan.out / "config.toml").is_file():
        raise RunError(
            f"This machine cannot see the run's folder {plan.out}. Name one that all machines "
            "share with --out."
        )
    prepared = prepare(plan.config, dataset=dataset, methods=methods)
    if fingerprint(prepared) != plan.data:
        raise DataError(
            "The data on this machine differ from those of rank 0. Give all machines the same "
            "files."
        )
    job = _Job.on(endpoint, prepared, plan.out)
    job.report(RoundReport("", 0))
    for task in plan.tasks:
        for done in job.rounds(task):
            job.report(done)
