"""Run what a config describes: every method on the same data, the same partition and the same
seeds.

Everything that can be wrong with the input is found (by ``prepare``) before the run's folder comes
into being. A run that was cut off, at whatever instant, is continued by ``resume`` and ends as if
nothing had happened."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxyfl._validate import whole
from proxyfl.data import Dataset, class_counts
from proxyfl.federation.methods import METHODS, Method
from proxyfl.federation.rounds import ClientRound
from proxyfl.records import folder
from proxyfl.simulation import checkpoint
from proxyfl.simulation.clients import Site
from proxyfl.simulation.config import Config
from proxyfl.simulation.engines import mpi
from proxyfl.simulation.engines import processes as workers
from proxyfl.simulation.engines.serial import Done, Prepared, Task, rounds_of
from proxyfl.simulation.prepare import fingerprint, identity
from proxyfl.simulation.prepare import prepare as prepare
from proxyfl.transport.memory import MemoryTransport


class Callback:
    """Follows a run. Override what you need; what you raise stops the run, with its records
    intact."""

    def started(self, config: Config, out: Path | None, sites: Sequence[Site]) -> None:
        """Before the first round of the first method."""

    def method_started(self, name: str, method: Method, clients: int, first_round: int) -> None:
        """Before the records of a method's first round, or of the first that was still to be
        done."""

    def round_ended(self, name: str, round: int, records: Sequence[ClientRound]) -> None:
        """After every round of a method, with one record for each client that was present."""

    def finished(self, result: "Result") -> None:
        """After the last round of the last method."""

    def stopped(self, error: BaseException) -> None:
        """Instead of ``finished``, when the run was cut off or failed."""


@dataclass(frozen=True)
class Result:
    """What a run gave. ``final`` holds, per method, each client's last record with scores;
    ``metrics`` all as rows."""

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
        # A client that left before the last exchange has received nothing in it: it keeps the proxy
        # it had.
        return record.scores[role if role in record.scores else "proxy"].accuracy

    def gain(self, name: str, client: int, *, over: str = "alone") -> float | None:
        """How much ``client`` gains from method ``name``; None if the other method was not part of
        the run."""
        return (
            self.accuracy(name, client) - self.accuracy(over, client)
            if over in self.final
            else None
        )


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
    whole("workers", workers)
    config = prepared.config
    path = (
        folder.create(Path(out), config, identity(config), fingerprint(prepared))
        if out is not None
        else None
    )
    result = Result(
        config,
        path,
        prepared.sites,
        methods={name: prepared.table[name] for name in config.methods},
    )
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
    """Go on with the run in ``path``. The end is the same, bit for bit, as that of a run that was
    never cut off."""
    whole("workers", workers)
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
    result = Result(
        config, path, prepared.sites, methods={name: table[name] for name in config.methods}
    )
    tasks: list[Task] = []
    keep = 0
    for name in config.methods:
        ended = folder.read_method(path, name)
        if ended is not None and not tasks:
            result.final[name] = [ClientRound.from_dict(r) for r in ended["clients"]]
            result.departures[name] = [ClientRound.from_dict(r) for r in ended["departures"]]
            keep = ended["metrics_bytes"]
            continue
        last = (
            checkpoint.newest(path / "checkpoints" / name, identity=identity(config))
            if not tasks
            else None
        )
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
                    callback.method_started(
                        done.method, result.methods[done.method], clients, task.first_round
                    )
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
            folder.write_json(
                path / "summary.json", summary(result, prepared, finished=_finished(result))
            )
    for callback in callbacks:
        callback.finished(result)
    return result


def _rounds(
    prepared: Prepared, tasks: Sequence[Task], out: Path | None, crew: int, dataset: Dataset | None
) -> Iterator[Done]:
    """The rounds of all tasks, done in this process, by a crew of workers, or by the ranks of an
    MPI job."""
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
    """Take one round into the result and, where there is a folder, onto the disk; then declare its
    checkpoint."""
    rows = [{"method": done.method, **record.as_dict()} for record in done.records]
    result.metrics.extend(rows)
    final = {record.client: record for record in result.final.get(done.method, [])}
    final |= {
        record.client: record
        for record in done.records
        if record.scores or record.client not in final
    }
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
            "departures": [
                record.as_dict(whole=True) for record in result.departures.get(name, [])
            ],
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
    counts = class_counts(
        prepared.dataset.train_y.numpy(), [s.rows for s in prepared.sites], prepared.dataset.classes
    )
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
