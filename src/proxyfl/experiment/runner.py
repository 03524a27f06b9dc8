"""Run what a config describes: every method on the same data, the same partition and the same seeds.

Everything that can be wrong with the input is found before the run's folder comes into being.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from proxyfl._validate import choice
from proxyfl.data import Dataset, class_counts
from proxyfl.errors import ConfigError
from proxyfl.experiment import build, folder
from proxyfl.experiment.build import Site
from proxyfl.experiment.config import Config, values
from proxyfl.federation import exchange, membership
from proxyfl.federation.methods import METHODS, Method
from proxyfl.federation.rounds import Client, ClientRound, run_rounds
from proxyfl.gossip import topology
from proxyfl.transport.memory import MemoryTransport


class Callback:
    """Follows a run. Override what you need; what you raise stops the run, with its records intact."""

    def started(self, config: Config, out: Path | None, sites: Sequence[Site]) -> None:
        """Before the first round of the first method."""

    def method_started(self, name: str, method: Method, clients: int) -> None:
        """Before the first round of a method."""

    def round_ended(self, name: str, records: Sequence[ClientRound]) -> None:
        """After every round of a method, with one record per client."""

    def finished(self, result: "Result") -> None:
        """After the last round of the last method."""


@dataclass(frozen=True)
class Result:
    """What a run gave. ``final`` holds, per method, each client's last record; ``metrics`` all of them as rows."""

    config: Config
    out: Path | None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    final: dict[str, list[ClientRound]] = field(default_factory=dict)
    methods: dict[str, Method] = field(default_factory=dict)

    def accuracy(self, name: str, client: int) -> float:
        """Final test accuracy of the model that ``client`` keeps under method ``name``."""
        records = self.final[name]
        record = records[0] if self.methods[name].pooled else records[client]
        return record.scores[self.methods[name].keeps].accuracy

    def gain(self, name: str, client: int, *, over: str = "alone") -> float | None:
        """How much ``client`` gains from method ``name``; None if the other method was not part of the run."""
        return self.accuracy(name, client) - self.accuracy(over, client) if over in self.final else None


@dataclass(frozen=True)
class Prepared:
    """A run whose input was found to be in order."""

    config: Config
    dataset: Dataset
    sites: list[Site]
    table: Mapping[str, Method]
    mixing: topology.Topology

    def sites_of(self, name: str) -> list[Site]:
        """The clients' data under a method: everyone's own, or all of it in one place."""
        return [build.pooled(self.sites)] if self.table[name].pooled else self.sites


def prepare(config: Config, *, dataset: Dataset | None = None, table: Mapping[str, Method] = METHODS) -> Prepared:
    """Load and check everything that a run needs; raise ``InputError`` if something does not fit."""
    for name in config.methods:
        choice("method", name, table)
    _check_device(config.device)
    torch.set_num_threads(config.threads)
    dataset = dataset if dataset is not None else build.load_data(config)
    sites = build.deal(config, dataset)
    settings = config.exchange
    mixing = topology.make(
        settings.topology, self_weight=settings.self_weight, degree=settings.degree, seed=config.seed
    )
    prepared = Prepared(config, dataset, sites, table, mixing)
    if any(table[name].exchange == "pushsum" for name in config.methods):
        topology.check_columns(mixing(0, len(sites)), len(sites))
    for name in config.methods:
        some = prepared.sites_of(name)
        # One client of each private architecture, and each with its own settings where those differ.
        trial = range(len(some)) if _differ(config) else range(1)
        build.clients_for(config, table[name], dataset, some, trial)
    return prepared


def run(
    config: Config,
    *,
    out: Path | str | None = None,
    dataset: Dataset | None = None,
    table: Mapping[str, Method] = METHODS,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run every method of ``config``; write a run folder at ``out`` if one is given."""
    return execute(prepare(config, dataset=dataset, table=table), out=out, callbacks=callbacks)


def execute(prepared: Prepared, *, out: Path | str | None = None, callbacks: Sequence[Callback] = ()) -> Result:
    """Run what ``prepare`` found to be in order."""
    config = prepared.config
    path = folder.create(Path(out), config) if out is not None else None
    result = Result(config, path, methods={name: prepared.table[name] for name in config.methods})
    for callback in callbacks:
        callback.started(config, path, prepared.sites)
    try:
        for name in config.methods:
            _run_method(prepared, name, path, result, callbacks)
    finally:
        if path is not None:
            folder.write_json(path / "summary.json", summary(result, prepared))
    for callback in callbacks:
        callback.finished(result)
    return result


def _run_method(
    prepared: Prepared, name: str, path: Path | None, result: Result, callbacks: Sequence[Callback]
) -> None:
    method, sites = prepared.table[name], prepared.sites_of(name)
    for callback in callbacks:
        callback.method_started(name, method, len(sites))
    ledgers = folder.subfolder(path, "ledger", name) if path is not None else None
    clients = build.clients_for(prepared.config, method, prepared.dataset, sites, range(len(sites)), ledgers=ledgers)
    for records in rounds_of(prepared, name, clients, len(sites)):
        rows = [{"method": name, **record.as_dict()} for record in records]
        if path is not None:
            folder.append_metrics(path, rows)
        result.metrics.extend(rows)
        result.final[name] = list(records)
        for callback in callbacks:
            callback.round_ended(name, records)
    if path is not None:
        save_models(path / "models" / name, prepared, name, clients)


def rounds_of(prepared: Prepared, name: str, clients: Sequence[Client], everyone: int) -> Iterator[list[ClientRound]]:
    """The round loop of one method over the clients given."""
    config, method = prepared.config, prepared.table[name]
    return run_rounds(
        clients,
        rounds=config.rounds,
        exchange=exchange.make(method.exchange, prepared.mixing),
        shares=method.exchange != "none",
        transport=MemoryTransport(),
        presence=membership.everyone(everyone),
        evaluate=build.evaluator(config, prepared.dataset),
        evaluate_now=evaluate_now(config),
        timeout=config.exchange.timeout,
    )


def evaluate_now(config: Config) -> Callable[[int], bool]:
    """Every n-th round, and the last."""
    return lambda round: (round + 1) % config.evaluate_every == 0 or round == config.rounds - 1


def save_models(path: Path, prepared: Prepared, name: str, clients: Iterable[Client]) -> None:
    """Write each client's final models."""
    for client in clients:
        for role, model in client.learner.models().items():
            about = build.about_model(prepared.config, prepared.table[name], prepared.dataset, client, role)
            folder.save_model(path / f"{client.id:03d}-{role}.safetensors", model, {"method": name, **about})


def summary(result: Result, prepared: Prepared) -> dict[str, Any]:
    """Final scores, costs and confusion counts per method and client, as plain data."""
    counts = class_counts(prepared.dataset.train_y.numpy(), [s.rows for s in prepared.sites], prepared.dataset.classes)
    return {
        "classes": list(prepared.dataset.class_names),
        "clients": [
            {"name": site.name, "examples": len(site.y), "class_counts": row.tolist()}
            for site, row in zip(prepared.sites, counts, strict=True)
        ],
        "methods": {
            name: {
                "keeps": result.methods[name].keeps,
                "clients": [
                    record.as_dict()
                    | {"confusion": {role: score.confusion.tolist() for role, score in record.scores.items()}}
                    for record in records
                ],
            }
            for name, records in result.final.items()
        },
    }


def _differ(config: Config) -> bool:
    settings = (config.models.private, config.learning.batch_size, config.learning.steps_per_round,
                config.privacy.noise_multiplier, config.privacy.clip_norm, config.privacy.delta)  # fmt: skip
    return config.partition.kind in ("dirichlet", "site") or any(len(values(s)) > 1 for s in settings)


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f'Cannot use device={device!r}: {reason} Use device="cpu" or one that is there.') from error
