"""What one process does with the clients it hosts. The same code runs alone, in a worker, and on an
MPI rank."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxyfl.data import Dataset
from proxyfl.federation import exchange
from proxyfl.federation.membership import Presence
from proxyfl.federation.methods import Method
from proxyfl.federation.modelfile import save_model
from proxyfl.federation.rounds import Client, ClientRound, run_rounds
from proxyfl.gossip.topology import Topology
from proxyfl.records import folder
from proxyfl.records.row import record_of, row_of
from proxyfl.simulation import checkpoint
from proxyfl.simulation import clients as build
from proxyfl.simulation.checkpoint import Checkpoint
from proxyfl.simulation.clients import Site
from proxyfl.simulation.config import Config
from proxyfl.transport.base import Transport


@dataclass(frozen=True)
class Prepared:
    """A run whose input was found to be in order."""

    config: Config
    dataset: Dataset
    sites: list[Site]
    table: Mapping[str, Method]
    mixing: Topology
    presences: Mapping[str, Sequence[Presence]]

    def sites_of(self, name: str) -> list[Site]:
        """The clients' data under a method: everyone's own, or all of it in one place."""
        return [build.pooled(self.sites)] if self.table[name].pooled else self.sites


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
class Done:
    """One round as a host did it: its clients' records, and the checkpoint files it wrote (name ->
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
        records = [row_of(self.method, record, whole=True) for record in self.records]
        return {**vars(self), "records": records}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Done":
        """What ``as_dict`` made plain."""
        return cls(
            **{
                **content,
                "records": [record_of(row) for row in content["records"]],
            }
        )


Engine = Callable[[Prepared, Sequence[Task], Path | None], Iterator[Done]]
"""Runs tasks and yields each round of each method, done by all clients; writes below the folder."""


def merged(parts: Sequence[Done]) -> Done:
    """One round as all hosts did it, the records in the order of the clients."""
    records = sorted(
        (record for part in parts for record in part.records), key=lambda record: record.client
    )
    files = {name: checksum for part in parts for name, checksum in part.files.items()}
    return Done(
        parts[0].method, parts[0].round, records, files, ended=all(part.ended for part in parts)
    )


def rounds_of(
    prepared: Prepared, task: Task, hosted: Sequence[int], transport: Transport, out: Path | None
) -> Iterator[Done]:
    """Run one method's rounds for the clients hosted here; checkpoint as configured; save the
    models at the end."""
    config, name = prepared.config, task.method
    method, sites = prepared.table[name], prepared.sites_of(name)
    hosted = [i for i in hosted if i < len(sites)]
    ledgers = folder.subfolder(out, "ledger", name) if out is not None else None
    clients = build.clients_for(config, method, prepared.dataset, sites, hosted, ledgers=ledgers)
    if task.checkpoint is not None:
        task.checkpoint.restore(clients)
    presences = prepared.presences[name]
    for number, records in enumerate(
        run_rounds(
            clients,
            rounds=config.rounds,
            exchange=exchange.make(method.exchange, prepared.mixing),
            shares=method.exchange != "none",
            transport=transport,
            presence=lambda round: presences[round],
            evaluate=build.evaluator(config, prepared.dataset),
            evaluate_now=evaluate_now(config),
            start=task.first_round,
            timeout=config.exchange.timeout,
        ),
        start=task.first_round,
    ):
        due = (number + 1) % config.checkpoint_every == 0 or number == config.rounds - 1
        files = (
            _checkpoint(out / "checkpoints" / name, number, clients)
            if out is not None and due
            else {}
        )
        yield Done(name, number, records, files)
    if out is not None:
        _save_models(out / "models" / name, prepared, name, clients)
    yield Done(name, config.rounds, ended=True)


def evaluate_now(config: Config) -> Callable[[int], bool]:
    """Every n-th round, and the last."""
    return lambda round: (round + 1) % config.evaluate_every == 0 or round == config.rounds - 1


def _checkpoint(path: Path, round: int, clients: Sequence[Client]) -> dict[str, int]:
    return dict(checkpoint.write_client(path, round, client) for client in clients)


def _save_models(path: Path, prepared: Prepared, name: str, clients: Sequence[Client]) -> None:
    everyone = len(prepared.sites_of(name))
    for client in clients:
        for role, model in client.learner.models().items():
            about = build.about_model(
                prepared.config, prepared.table[name], prepared.dataset, everyone, client, role
            )
            save_model(
                path / f"{client.id:03d}-{role}.safetensors", model, {"method": name, **about}
            )
