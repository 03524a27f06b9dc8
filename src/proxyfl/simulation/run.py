"""Run what a config describes: every method on the same data, the same partition and the same
seeds.

``prepare`` validates a run before anything is written. ``resume`` continues an interrupted run; the
result is bit-identical to an uninterrupted one."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from proxyfl._files import read_json
from proxyfl._validate import whole
from proxyfl.data import Dataset, class_counts
from proxyfl.federation.methods import METHODS, Method
from proxyfl.federation.rounds import ClientRound
from proxyfl.records import folder
from proxyfl.records.row import Row, confusion_of, roles, row_of
from proxyfl.records.run import Run, state
from proxyfl.simulation import checkpoint
from proxyfl.simulation.clients import Site
from proxyfl.simulation.config import Config, of_run, to_toml
from proxyfl.simulation.engines import processes as workers
from proxyfl.simulation.engines.serial import Done, Engine, Prepared, Task, rounds_of
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

    def finished(self, result: Run) -> None:
        """After the last round of the last method."""

    def stopped(self, error: BaseException) -> None:
        """Instead of ``finished``, when the run was cut off or failed."""


def run(
    config: Config,
    *,
    out: Path | str | None = None,
    dataset: Dataset | None = None,
    table: Mapping[str, Method] = METHODS,
    callbacks: Sequence[Callback] = (),
    workers: int = 1,
    engine: Engine | None = None,
) -> Run:
    """Run every method of ``config``; write a run folder at ``out`` if one is given.

    ``workers`` processes share the clients, unless another ``engine`` is given. Results depend on
    neither.
    """
    prepared = prepare(config, dataset=dataset, table=table)
    return execute(
        prepared, out=out, callbacks=callbacks, workers=workers, dataset=dataset, engine=engine
    )


def execute(
    prepared: Prepared,
    *,
    out: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    workers: int = 1,
    dataset: Dataset | None = None,
    engine: Engine | None = None,
) -> Run:
    """Run what ``prepare`` found to be in order."""
    whole("workers", workers)
    config = prepared.config
    path = None
    if out is not None:
        path = folder.create(
            Path(out), to_toml(config), identity=identity(config), data=fingerprint(prepared)
        )
    tasks = [Task(name) for name in config.methods]
    with folder.locked(path) if path is not None else nullcontext():
        recorder = _Recorder(prepared, path)
        return _carry_out(prepared, recorder, tasks, callbacks, workers, dataset, engine)


def resume(
    path: Path | str,
    *,
    dataset: Dataset | None = None,
    table: Mapping[str, Method] = METHODS,
    callbacks: Sequence[Callback] = (),
    workers: int = 1,
    engine: Engine | None = None,
) -> Run:
    """Go on with the run in ``path``. The end is the same, bit for bit, as that of a run that was
    never cut off."""
    whole("workers", workers)
    path = Path(path)
    config = of_run(path)
    folder.check_environment(path, identity(config))
    with folder.locked(path):
        return _resume(path, config, dataset, table, callbacks, workers, engine)


def _resume(
    path: Path,
    config: Config,
    dataset: Dataset | None,
    table: Mapping[str, Method],
    callbacks: Sequence[Callback],
    crew: int,
    engine: Engine | None,
) -> Run:
    prepared = prepare(config, dataset=dataset, table=table)
    folder.check_data(path, fingerprint(prepared))
    recorder = _Recorder(prepared, path)
    tasks = recorder.restore(path)
    return _carry_out(prepared, recorder, tasks, callbacks, crew, dataset, engine)


def _carry_out(
    prepared: Prepared,
    recorder: "_Recorder",
    tasks: Sequence[Task],
    callbacks: Sequence[Callback],
    crew: int,
    dataset: Dataset | None,
    engine: Engine | None,
) -> Run:
    path = recorder.path
    for callback in callbacks:
        callback.started(prepared.config, path, prepared.sites)
    try:
        waiting = {task.method: task for task in tasks}
        for done in _rounds(prepared, tasks, path, crew, dataset, engine):
            if done.method in waiting:
                first = waiting.pop(done.method).first_round
                clients = len(prepared.sites_of(done.method))
                for callback in callbacks:
                    callback.method_started(
                        done.method, prepared.table[done.method], clients, first
                    )
            if done.ended:
                recorder.end(done.method)
                continue
            recorder.take(done)
            for callback in callbacks:
                callback.round_ended(done.method, done.round, done.records)
    except BaseException as error:
        for callback in callbacks:
            callback.stopped(error)
        raise
    finally:
        if path is not None:
            folder.end_run(path, recorder.summary())
    result = recorder.run()
    for callback in callbacks:
        callback.finished(result)
    return result


def _rounds(
    prepared: Prepared,
    tasks: Sequence[Task],
    out: Path | None,
    crew: int,
    dataset: Dataset | None,
    engine: Engine | None,
) -> Iterator[Done]:
    """The rounds of all tasks, done by ``engine``, in this process, or by a crew of workers."""
    if engine is not None and tasks:
        yield from engine(prepared, tasks, out)
        return
    crew = min(crew, len(prepared.sites))
    if crew > 1 and tasks:
        yield from workers.rounds(prepared, tasks, workers=crew, out=out, dataset=dataset)
        return
    for task in tasks:
        everyone = range(len(prepared.sites_of(task.method)))
        yield from rounds_of(prepared, task, everyone, MemoryTransport(), out)


class _Recorder:
    """Takes rounds in and, where the run has a folder, writes them down."""

    def __init__(self, prepared: Prepared, path: Path | None) -> None:
        self.prepared = prepared
        self.path = path
        self.rows: list[Row] = []
        self.confusion: dict[str, dict[int, Any]] = {}
        self.ended: set[str] = set()

    def restore(self, path: Path) -> list[Task]:
        """Take in what the folder holds; what is still to be done."""
        config = self.prepared.config
        if state(path) == "finished":
            self._restore_finished(path)
            return []
        tasks: list[Task] = []
        keep = 0
        for name in config.methods:
            if tasks:
                tasks.append(Task(name))
                continue
            noted = folder.ended_method(path, name)
            last = None
            if noted is None:
                below = path / "checkpoints" / name
                last = checkpoint.newest(below, identity=identity(config))
                tasks.append(Task(name, last))
            else:
                self.ended.add(name)
            if noted is not None:
                keep = noted["metrics_bytes"]
                self.confusion[name] = _numbered(noted["confusion"])
            elif last is not None:
                keep = last.metrics_bytes
                self.confusion[name] = _numbered(last.confusion)
        folder.cut_metrics(path, keep)
        self.rows.extend(folder.read_metrics(path))
        return tasks

    def take(self, done: Done) -> None:
        """Record one round, then declare its checkpoint."""
        rows = [row_of(done.method, record) for record in done.records]
        self.rows.extend(rows)
        counts = self.confusion.setdefault(done.method, {})
        for record in done.records:
            if record.scores:
                counts[record.client] = confusion_of(record)
        if self.path is None:
            return
        size = folder.append_metrics(self.path, rows)
        if done.files:
            checkpoint.commit(
                self.path / "checkpoints" / done.method,
                done.round,
                done.files,
                metrics_bytes=size,
                identity=identity(self.prepared.config),
                confusion=counts,
            )

    def end(self, name: str) -> None:
        """Note that a method is over; its checkpoints are no longer needed."""
        self.ended.add(name)
        if self.path is None:
            return
        size = folder.metrics_size(self.path)
        noted = {"metrics_bytes": size, "confusion": self.confusion.get(name, {})}
        folder.end_method(self.path, name, noted)
        checkpoint.clear(self.path / "checkpoints" / name)

    def run(self) -> Run:
        """What the run gave: the same that ``proxyfl.load`` reads from its folder."""
        environment = {"simulation": True}
        if self.path is not None:
            environment = read_json(self.path / "environment.json")
        settings = tomllib.loads(to_toml(self.prepared.config))
        return Run(self.path, settings, self.rows, self.summary(), environment)

    def summary(self) -> dict[str, Any]:
        """Final scores, costs and confusion counts per method and client, as plain data."""
        prepared = self.prepared
        methods = prepared.config.methods
        begun = [name for name in methods if name in self.confusion]
        return {
            "finished": self.ended.issuperset(methods),
            "measure": prepared.config.measure,
            "classes": list(prepared.dataset.class_names),
            "clients": _clients(prepared),
            "methods": {name: self._method(name) for name in begun},
        }

    def _method(self, name: str) -> dict[str, Any]:
        method = self.prepared.table[name]
        own = [row for row in self.rows if row["method"] == name]
        final: dict[int, Row] = {}
        for row in own:
            if row["client"] not in final or roles(row):
                final[row["client"]] = row
        clients = []
        for client, row in sorted(final.items()):
            clients.append(row | {"confusion": self.confusion[name].get(client, {})})
        departures = []
        for row in own:
            if row["left"]:
                who = {key: row[key] for key in ("client", "name", "round")}
                departures.append(who | {"why": row["left"]})
        return {
            "keeps": method.keeps,
            "method": asdict(method),
            "clients": clients,
            "departures": departures,
        }

    def _restore_finished(self, path: Path) -> None:
        self.ended.update(self.prepared.config.methods)
        self.rows.extend(folder.read_metrics(path))
        for name, about in folder.read_summary(path)["methods"].items():
            counts = {row["client"]: row["confusion"] for row in about["clients"]}
            self.confusion[name] = counts


def _clients(prepared: Prepared) -> list[dict[str, Any]]:
    """Each client's name and what data it has."""
    labels = prepared.dataset.train_y.numpy()
    owned = [site.rows for site in prepared.sites]
    counts = class_counts(labels, owned, prepared.dataset.classes)
    found = []
    for site, row in zip(prepared.sites, counts, strict=True):
        found.append({"name": site.name, "examples": len(site.y), "class_counts": row.tolist()})
    return found


def _numbered(confusion: Mapping[str, Any]) -> dict[int, Any]:
    """JSON's keys are texts; clients are numbers."""
    return {int(client): counts for client, counts in confusion.items()}
