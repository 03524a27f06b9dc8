"""Run what a config describes: every method on the same data, the same partition and the same seeds.

Everything that can be wrong with the input is found before the run's folder comes into being. A run that was cut off,
at whatever instant, is continued by ``resume`` and ends as if nothing had happened.
"""

import hashlib
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from proxyfl._validate import choice, whole
from proxyfl.data import Dataset, class_counts
from proxyfl.errors import ConfigError
from proxyfl.experiment import build, checkpoint, folder, mpi, workers
from proxyfl.experiment.build import Site
from proxyfl.experiment.config import Config, to_toml, values
from proxyfl.experiment.host import Done, Prepared, Task, rounds_of
from proxyfl.federation import membership
from proxyfl.federation.methods import METHODS, Method
from proxyfl.federation.rounds import Client, ClientRound
from proxyfl.gossip import topology
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.transport.memory import MemoryTransport


class Callback:
    """Follows a run. Override what you need; what you raise stops the run, with its records intact."""

    def started(self, config: Config, out: Path | None, sites: Sequence[Site]) -> None:
        """Before the first round of the first method."""

    def method_started(self, name: str, method: Method, clients: int, first_round: int) -> None:
        """Before the records of a method's first round, or of the first that was still to be done."""

    def round_ended(self, name: str, round: int, records: Sequence[ClientRound]) -> None:
        """After every round of a method, with one record for each client that was present."""

    def finished(self, result: "Result") -> None:
        """After the last round of the last method."""

    def stopped(self, error: BaseException) -> None:
        """Instead of ``finished``, when the run was cut off or failed."""


@dataclass(frozen=True)
class Result:
    """What a run gave. ``final`` holds, per method, each client's last record with scores; ``metrics`` all as rows."""

    config: Config
    out: Path | None
    sites: Sequence[Site] = ()
    metrics: list[dict[str, Any]] = field(default_factory=list)
    final: dict[str, list[ClientRound]] = field(default_factory=dict)
    methods: dict[str, Method] = field(default_factory=dict)
    departures: dict[str, list[ClientRound]] = field(default_factory=dict)

    def accuracy(self, name: str, client: int) -> float:
        """Final test accuracy of the model that ``client`` keeps under method ``name``."""
        pooled = self.methods[name].pooled
        record = next(r for r in self.final[name] if pooled or r.client == client)
        role = self.methods[name].keeps
        # A client that left before the last exchange has received nothing in it: it keeps the proxy it had.
        return record.scores[role if role in record.scores else "proxy"].accuracy

    def gain(self, name: str, client: int, *, over: str = "alone") -> float | None:
        """How much ``client`` gains from method ``name``; None if the other method was not part of the run."""
        return self.accuracy(name, client) - self.accuracy(over, client) if over in self.final else None


def prepare(
    config: Config,
    *,
    dataset: Dataset | None = None,
    table: Mapping[str, Method] = METHODS,
    hosted: Collection[int] | None = None,
) -> Prepared:
    """Load and check everything that a run needs; raise ``InputError`` if something does not fit.

    A process that hosts only some clients names them in ``hosted``: it keeps their data alone, and leaves the checks,
    and who is present when, to the process that started it.
    """
    for name in config.methods:
        choice("method", name, table)
    _check_device(config.device)
    torch.set_num_threads(config.threads)
    dataset = dataset if dataset is not None else build.load_data(config)
    pools = any(table[name].pooled for name in config.methods) and 0 in (hosted or ())
    sites = build.deal(config, dataset, None if pools else hosted)
    if hosted is not None:
        dataset = replace(dataset, train_x=dataset.train_x[:1].clone(), train_y=dataset.train_y[:1], site=None)
    settings = config.exchange
    mixing = topology.make(
        settings.topology, self_weight=settings.self_weight, degree=settings.degree, seed=config.seed
    )
    if any(table[name].exchange == "pushsum" for name in config.methods):
        topology.check_columns(mixing(0, len(sites)), len(sites))
    presences: dict[str, Sequence[membership.Presence]] = {}
    for name in config.methods if hosted is None else ():
        some = [build.pooled(sites)] if table[name].pooled else sites
        # Where clients differ in settings each is tried; where they do not, one stands for all.
        tried = range(len(some)) if _differ(config) else range(1)
        clients = build.clients_for(config, table[name], dataset, some, tried)
        presences[name] = _plan(config, table[name], len(some), clients)
    return Prepared(config, dataset, sites, table, mixing, presences)


def run(
    config: Config,
    *,
    out: Path | str | None = None,
    dataset: Dataset | None = None,
    table: Mapping[str, Method] = METHODS,
    callbacks: Sequence[Callback] = (),
    workers: int = 1,
) -> Result:
    """Run every method of ``config``; write a run folder at ``out`` if one is given.

    ``workers`` processes share the clients. Results do not depend on their number.
    """
    prepared = prepare(config, dataset=dataset, table=table)
    return execute(prepared, out=out, callbacks=callbacks, workers=workers, dataset=dataset)


def execute(
    prepared: Prepared,
    *,
    out: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    workers: int = 1,
    dataset: Dataset | None = None,
) -> Result:
    """Run what ``prepare`` found to be in order."""
    config = prepared.config
    path = folder.create(Path(out), config, identity(config), fingerprint(prepared)) if out is not None else None
    result = Result(config, path, prepared.sites, methods={name: prepared.table[name] for name in config.methods})
    tasks = [Task(name) for name in config.methods]
    with folder.locked(path) if path is not None else nullcontext():
        return _carry_out(prepared, result, tasks, callbacks, workers, dataset)


def resume(
    path: Path | str,
    *,
    dataset: Dataset | None = None,
    table: Mapping[str, Method] = METHODS,
    callbacks: Sequence[Callback] = (),
    workers: int = 1,
) -> Result:
    """Go on with the run in ``path``. The end is the same, bit for bit, as that of a run that was never cut off."""
    path = Path(path)
    config = folder.read_config(path)
    folder.check_environment(path, identity(config))
    with folder.locked(path):
        return _resume(path, config, dataset, table, callbacks, workers)


def _resume(
    path: Path,
    config: Config,
    dataset: Dataset | None,
    table: Mapping[str, Method],
    callbacks: Sequence[Callback],
    crew: int,
) -> Result:
    prepared = prepare(config, dataset=dataset, table=table)
    folder.check_data(path, fingerprint(prepared))
    result = Result(config, path, prepared.sites, methods={name: table[name] for name in config.methods})
    tasks: list[Task] = []
    keep = 0
    for name in config.methods:
        ended = folder.read_method(path, name)
        if ended is not None and not tasks:
            result.final[name] = [ClientRound.from_dict(r) for r in ended["clients"]]
            result.departures[name] = [ClientRound.from_dict(r) for r in ended["departures"]]
            keep = ended["metrics_bytes"]
            continue
        last = checkpoint.newest(path / "checkpoints" / name, identity=identity(config)) if not tasks else None
        if last is not None:
            keep = last.metrics_bytes
            result.final[name] = [ClientRound.from_dict(r) for r in last.final]
            result.departures[name] = [ClientRound.from_dict(r) for r in last.departures]
        tasks.append(Task(name, last))
    folder.cut_metrics(path, keep)
    result.metrics.extend(folder.read_metrics(path))
    return _carry_out(prepared, result, tasks, callbacks, crew, dataset)


def _carry_out(
    prepared: Prepared,
    result: Result,
    tasks: Sequence[Task],
    callbacks: Sequence[Callback],
    crew: int,
    dataset: Dataset | None,
) -> Result:
    path, config = result.out, prepared.config
    for callback in callbacks:
        callback.started(config, path, prepared.sites)
    try:
        waiting = {task.method: task for task in tasks}
        for done in _rounds(prepared, tasks, path, crew, dataset):
            if done.method in waiting:
                task, clients = waiting.pop(done.method), len(prepared.sites_of(done.method))
                for callback in callbacks:
                    callback.method_started(done.method, result.methods[done.method], clients, task.first_round)
            if done.ended:
                _end_method(result, done.method)
                continue
            _record(result, done)
            for callback in callbacks:
                callback.round_ended(done.method, done.round, done.records)
    except BaseException as error:
        for callback in callbacks:
            callback.stopped(error)
        raise
    finally:
        if path is not None:
            folder.write_json(path / "summary.json", summary(result, prepared, finished=_finished(result)))
    for callback in callbacks:
        callback.finished(result)
    return result


def _rounds(
    prepared: Prepared, tasks: Sequence[Task], out: Path | None, crew: int, dataset: Dataset | None
) -> Iterator[Done]:
    """The rounds of all tasks, done in this process, by a crew of workers, or by the ranks of an MPI job."""
    whole("workers", crew)
    if mpi.leading() and tasks:
        yield from mpi.rounds(prepared, tasks, out=out)
        return
    crew = min(crew, len(prepared.sites))
    if crew > 1 and tasks:
        yield from workers.rounds(prepared, tasks, workers=crew, out=out, dataset=dataset)
        return
    for task in tasks:
        everyone = range(len(prepared.sites_of(task.method)))
        yield from rounds_of(prepared, task, everyone, MemoryTransport(), out)


def _record(result: Result, done: Done) -> None:
    """Take one round into the result and, where there is a folder, onto the disk; then declare its checkpoint."""
    rows = [{"method": done.method, **record.as_dict()} for record in done.records]
    result.metrics.extend(rows)
    final = {record.client: record for record in result.final.get(done.method, [])}
    final |= {record.client: record for record in done.records if record.scores or record.client not in final}
    result.final[done.method] = [final[client] for client in sorted(final)]
    departures = result.departures.setdefault(done.method, [])
    departures.extend(record for record in done.records if record.left)
    if result.out is None:
        return
    size = folder.append_metrics(result.out, rows)
    if done.files:
        checkpoint.commit(
            result.out / "checkpoints" / done.method,
            done.round,
            done.files,
            metrics_bytes=size,
            identity=identity(result.config),
            final=[record.as_dict(whole=True) for record in result.final[done.method]],
            departures=[record.as_dict(whole=True) for record in departures],
        )


def _end_method(result: Result, name: str) -> None:
    """Note that a method is over; its checkpoints are no longer needed."""
    if result.out is None:
        return
    folder.write_method(
        result.out,
        name,
        {
            "clients": [record.as_dict(whole=True) for record in result.final.get(name, [])],
            "departures": [record.as_dict(whole=True) for record in result.departures.get(name, [])],
            "metrics_bytes": folder.metrics_size(result.out),
        },
    )
    checkpoint.clear(result.out / "checkpoints" / name)


def _finished(result: Result) -> bool:
    if result.out is None:
        return True
    return all(folder.read_method(result.out, name) is not None for name in result.methods)


def summary(result: Result, prepared: Prepared, *, finished: bool = True) -> dict[str, Any]:
    """Final scores, costs and confusion counts per method and client, as plain data."""
    counts = class_counts(prepared.dataset.train_y.numpy(), [s.rows for s in prepared.sites], prepared.dataset.classes)
    return {
        "finished": finished,
        "classes": list(prepared.dataset.class_names),
        "clients": [
            {"name": site.name, "examples": len(site.y), "class_counts": row.tolist()}
            for site, row in zip(prepared.sites, counts, strict=True)
        ],
        "methods": {
            name: {
                "keeps": result.methods[name].keeps,
                "clients": [record.as_dict(whole=True) for record in records],
                "departures": [
                    {"client": r.client, "name": r.name, "round": r.round, "why": r.left}
                    for r in result.departures.get(name, [])
                ],
            }
            for name, records in result.final.items()
        },
    }


def identity(config: Config) -> str:
    """What a checkpoint must agree with: all settings that results depend on."""
    return hashlib.sha256(to_toml(config).encode()).hexdigest()[:16]


def fingerprint(prepared: Prepared) -> int:
    """A checksum of the data as it was dealt out: a resumed run must find the same."""
    checksum = 0
    for site in prepared.sites:
        for part in (site.x, site.y):
            checksum = zlib.crc32(part.contiguous().numpy().tobytes(), checksum)
    return checksum


def _plan(config: Config, method: Method, clients: int, tried: Sequence[Client]) -> Sequence[membership.Presence]:
    """Who is there when. A method without exchange has no federation to leave but by its budget."""
    settings = config.membership
    if method.exchange == "none":
        return membership.plan(clients, config.rounds, allowances=_allowances(config, clients, tried))
    return membership.plan(
        clients,
        config.rounds,
        schedule=settings.schedule,
        absence=settings.absence,
        seed=config.seed,
        allowances=_allowances(config, clients, tried),
    )


def _allowances(config: Config, clients: int, tried: Sequence[Client]) -> dict[int, membership.Allowance]:
    if not _capped(config):
        return {}
    allowances = {}
    for client in tried:
        trainer, in_all = client.learner.trainer, None
        if isinstance(trainer, DPSGD):
            limit = config.rounds * client.steps
            in_all = client.ledger.affordable_steps(trainer.sampling_rate, trainer.noise_multiplier, limit)
            if in_all < 1:
                raise ConfigError(
                    f"The budget of client {client.id} ({client.ledger.budget}) does not cover a single step. "
                    "Raise privacy.budget or privacy.noise_multiplier, or use smaller batches."
                )
            in_all = None if in_all == limit else in_all
        allowances[client.id] = membership.Allowance(client.steps, in_all)
    if len(tried) == 1:
        allowances = dict.fromkeys(range(clients), allowances[tried[0].id])
    return allowances


def _capped(config: Config) -> bool:
    return config.privacy.budget is not None and config.privacy.enabled


def _differ(config: Config) -> bool:
    settings = (config.models.private, config.learning.batch_size, config.learning.steps_per_round,
                config.partition.examples, config.privacy.noise_multiplier, config.privacy.clip_norm,
                config.privacy.delta, config.privacy.budget)  # fmt: skip
    return config.partition.kind in ("dirichlet", "site") or any(len(values(s)) > 1 for s in settings)


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f'Cannot use device={device!r}: {reason} Use device="cpu" or one that is there.') from error
