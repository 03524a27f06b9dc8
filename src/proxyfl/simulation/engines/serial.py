"""The engine of one process, and what every engine has in common.

An engine runs tasks and yields a report of each round once all clients have done it. ``rounds_of``
is what any process does with the clients that it has: alone, as a worker, or as an MPI rank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxyfl.federation import exchange
from proxyfl.federation.client import Client
from proxyfl.federation.modelfile import save_model
from proxyfl.federation.rounds import ClientRound, run_rounds
from proxyfl.records import folder
from proxyfl.records.row import record_of, row_of
from proxyfl.simulation import checkpoint
from proxyfl.simulation.checkpoint import Checkpoint
from proxyfl.simulation.clients import Assembly, evaluator
from proxyfl.simulation.config import Config
from proxyfl.simulation.prepare import Prepared
from proxyfl.transport.base import Transport
from proxyfl.transport.memory import MemoryTransport


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
    """One round of one process: its clients' records, and the checkpoint files it wrote (name ->
    checksum).

    After the last round, and once the models are saved, comes one with ``ended`` and no records.
    """

    method: str
    round: int
    records: list[ClientRound] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    ended: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain data, to cross from one process to another."""
        records = [
            row_of(self.method, record, whole=True) for record in self.records
        ]
        return {**vars(self), "records": records}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "RoundReport":
        """The report that ``as_dict`` made plain."""
        records = [record_of(row) for row in content["records"]]
        return cls(**{**content, "records": records})


def merged(parts: Sequence[RoundReport]) -> RoundReport:
    """One round of all processes, the records in the order of the clients."""
    records: list[ClientRound] = []
    files: dict[str, int] = {}
    for part in parts:
        records.extend(part.records)
        files |= part.files
    records.sort(key=lambda record: record.client)
    return RoundReport(
        parts[0].method,
        parts[0].round,
        records,
        files,
        ended=all(part.ended for part in parts),
    )


Engine = Callable[[Prepared, Sequence[Task], Path | None], Iterator[RoundReport]]
"""(a prepared run, its tasks, its folder) -> a report of each round, in order."""


def rounds(
    prepared: Prepared,
    tasks: Sequence[Task],
    out: Path | None,
) -> Iterator[RoundReport]:
    """The engine of one process: every client is here, and proxies move through memory."""
    for task in tasks:
        everyone = range(len(prepared.clients_of(task.method)))
        yield from rounds_of(prepared, task, everyone, MemoryTransport(), out)


def rounds_of(
    prepared: Prepared,
    task: Task,
    own: Sequence[int],
    transport: Transport,
    out: Path | None,
) -> Iterator[RoundReport]:
    """Run one method's rounds for the clients ``own``; checkpoint as configured; save the
    models at the end."""
    config, name = prepared.config, task.method
    assembly = prepared.assembly(name)
    ledgers = folder.subfolder(out, "ledger", name) if out is not None else None
    clients = [assembly.client(i, ledgers) for i in own]
    if task.checkpoint is not None:
        task.checkpoint.restore(clients)
    reported = _records(prepared, task, clients, transport)
    for number, records in enumerate(reported, start=task.first_round):
        report = RoundReport(name, number, records)
        if out is not None and _is_due(number, config.checkpoint_every, config):
            below = out / "checkpoints" / name
            for client in clients:
                file, checksum = checkpoint.write_client(below, number, client)
                report.files[file] = checksum
        yield report
    if out is not None:
        _save_models(out / "models" / name, name, assembly, clients)
    yield RoundReport(name, config.rounds, ended=True)


def _is_due(round: int, every: int, config: Config) -> bool:
    """True in every n-th round, and in the last."""
    return (round + 1) % every == 0 or round == config.rounds - 1


def _records(
    prepared: Prepared,
    task: Task,
    clients: Sequence[Client],
    transport: Transport,
) -> Iterator[list[ClientRound]]:
    config, method = prepared.config, prepared.methods[task.method]
    presences = prepared.presences[task.method]
    mixing = None
    if method.exchange != "none":
        mixing = exchange.make(method.exchange, prepared.topology)
    return run_rounds(
        clients,
        rounds=config.rounds,
        exchange=mixing,
        transport=transport,
        presence=lambda round: presences[round],
        evaluate=evaluator(config, prepared.dataset, method),
        evaluate_now=lambda round: _is_due(round, config.evaluate_every, config),
        start=task.first_round,
        timeout=config.exchange.timeout,
    )


def _save_models(
    path: Path,
    method: str,
    assembly: Assembly,
    clients: Sequence[Client],
) -> None:
    for client in clients:
        for role, model in client.learner.models().items():
            about = {"method": method, **assembly.about_model(client, role)}
            save_model(path / f"{client.id:03d}-{role}.safetensors", model, about)
