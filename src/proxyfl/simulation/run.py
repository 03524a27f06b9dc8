"""Run what a config describes: every method on the same data, the same partition and the same
seeds.

``prepare`` validates a run before anything is written. ``resume`` continues an interrupted run; the
result is bit-identical to an uninterrupted one."""

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from proxyfl import _validate
from proxyfl._files import Document, read_json, write_json
from proxyfl.data import Dataset, class_counts
from proxyfl.errors import ConfigError
from proxyfl.federation.methods import METHODS, Method
from proxyfl.records import folder, summary
from proxyfl.records.reading import state
from proxyfl.records.row import Row
from proxyfl.records.run import Run
from proxyfl.simulation import checkpoint, engines
from proxyfl.simulation.config import Config, of_run, to_toml
from proxyfl.simulation.division import ClientData
from proxyfl.simulation.engines import Engine, RoundReport, Task
from proxyfl.simulation.prepare import Prepared, fingerprint, identity
from proxyfl.simulation.prepare import prepare as prepare
from proxyfl.simulation.reference import reference_scores


class Callback:
    """Follows a run. Override what you need; what you raise stops the run, with its records
    intact."""

    def started(self, config: Config, out: Path | None, sites: Sequence[ClientData]) -> None:
        """Before the first round of the first method."""

    def method_started(self, name: str, method: Method, clients: int, first_round: int) -> None:
        """Before the records of a method's first round, or of the first that was still to be
        done."""

    def round_ended(self, name: str, round: int, rows: Sequence[Row]) -> None:
        """After every round of a method, with one row for each client that was present: what
        metrics.jsonl gets (``proxyfl.records.row`` lists the keys)."""

    def finished(self, result: Run) -> None:
        """After the last round of the last method."""

    def stopped(self, error: BaseException) -> None:
        """Instead of ``finished``, when the run was cut off or failed."""


def run(
    config: Config,
    *,
    out: Path | str | None = None,
    dataset: Dataset | None = None,
    methods: Mapping[str, Method] = METHODS,
    callbacks: Sequence[Callback] = (),
    workers: int = 1,
    engine: Engine | None = None,
    progress: bool = True,
) -> Run:
    """Run every method of ``config``; write a run folder at ``out`` if one is given.

    ``workers`` processes share the clients, unless another ``engine`` is given. Results depend on
    neither. A table follows the run where standard error is a terminal, and in notebooks, unless
    ``progress`` is False.
    """
    from proxyfl.simulation.progress import following

    _check_callbacks(callbacks)
    if out is not None:
        _validate.path("out", out)
    prepared = prepare(config, dataset=dataset, methods=methods)
    with following(progress) as shown:
        callbacks = [*shown, *callbacks]
        return execute(prepared, out=out, callbacks=callbacks, workers=workers, engine=engine)


def execute(
    prepared: Prepared,
    *,
    out: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    workers: int = 1,
    engine: Engine | None = None,
) -> Run:
    """Run what ``prepare`` found to be in order."""
    engine = engine or engines.engine(workers)
    config = prepared.config
    settings = identity(config)
    path = None
    if out is not None:
        path = folder.create(
            Path(out),
            to_toml(config),
            identity=settings,
            data=fingerprint(prepared),
            notes=prepared.dataset.notes,
        )
    recorder = _Recorder(prepared, path, settings)
    tasks = [Task(name) for name in config.methods]
    with folder.locked(path) if path is not None else nullcontext():
        return _carry_out(recorder, tasks, callbacks, engine)


def resume(
    path: Path | str,
    *,
    dataset: Dataset | None = None,
    methods: Mapping[str, Method] = METHODS,
    callbacks: Sequence[Callback] = (),
    workers: int = 1,
    engine: Engine | None = None,
    progress: bool = True,
) -> Run:
    """Continue the run in ``path``; the result is bit-identical to an uninterrupted one.

    ``progress`` is that of ``run``."""
    from proxyfl.simulation.progress import following

    _check_callbacks(callbacks)
    _validate.path("path", path)
    engine = engine or engines.engine(workers)
    path = Path(path)
    folder.check_environment(path)  # first: another release may have other settings
    config = of_run(path)
    settings = folder.check_settings(path, identity(config))
    with folder.locked(path):
        prepared = prepare(config, dataset=dataset, methods=methods)
        folder.check_data(path, fingerprint(prepared))
        recorder = _Recorder(prepared, path, settings)
        tasks = recorder.restore(path)
        with following(progress) as shown:
            return _carry_out(recorder, tasks, [*shown, *callbacks], engine)


def _check_callbacks(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"Expected objects of proxyfl.Callback in callbacks, got {callback!r:.60}. Make a "
                "class: class Follow(proxyfl.Callback), with a method such as round_ended(self, "
                "name, round, rows), and pass callbacks=[Follow()]."
            )


def _carry_out(
    recorder: "_Recorder", tasks: Sequence[Task], callbacks: Sequence[Callback], engine: Engine
) -> Run:
    path = recorder.path
    prepared = recorder.prepared
    described = [client.without_inputs() for client in prepared.clients]
    for callback in callbacks:
        callback.started(prepared.config, path, described)
    try:
        _follow(recorder, tasks, callbacks, engine)
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


def _follow(
    recorder: "_Recorder", tasks: Sequence[Task], callbacks: Sequence[Callback], engine: Engine
) -> None:
    """Record every round that the engine reports, and tell the callbacks."""
    if not tasks:
        return
    prepared = recorder.prepared
    to_begin = {task.method: task.first_round for task in tasks}
    for report in engine(prepared, tasks, recorder.path):
        name = report.method
        if name in to_begin:
            first = to_begin.pop(name)
            clients = len(prepared.clients_of(name))
            for callback in callbacks:
                callback.method_started(name, prepared.methods[name], clients, first)
        if report.ended:
            recorder.end(name)
            continue
        recorder.take(report)
        for callback in callbacks:
            callback.round_ended(name, report.round, report.rows)


class _Recorder:
    """Takes rounds in and, where the run has a folder, writes them down.

    ``identity`` of the settings that the run began with: its checkpoints carry it."""

    def __init__(self, prepared: Prepared, path: Path | None, identity: str) -> None:
        self.prepared = prepared
        self.path = path
        self.identity = identity
        self.rows: list[Row] = []
        self.ended: set[str] = set()
        # now: workers take the inputs with them
        self._references = reference_scores(prepared) if "alone" in prepared.methods else {}

    def restore(self, path: Path) -> list[Task]:
        """Take in what the folder holds; what is still to be done."""
        config = self.prepared.config
        if state(path) == "finished":
            self.ended.update(config.methods)
            self.rows.extend(folder.read_metrics(path))
            return []
        tasks: list[Task] = []
        keep = 0
        for name in config.methods:
            if tasks:
                tasks.append(Task(name))
                continue
            note = folder.ended(path, name)
            if note.exists():
                self.ended.add(name)
                keep = read_json(note)["metrics_bytes"]
                continue
            below = path / "checkpoints" / name
            last = checkpoint.newest(below, identity=self.identity)
            tasks.append(Task(name, last))
            if last is not None:
                keep = last.metrics_bytes
        folder.cut_metrics(path, keep)
        self.rows.extend(folder.read_metrics(path))
        return tasks

    def take(self, report: RoundReport) -> None:
        """Record one round, then declare its checkpoint."""
        self.rows.extend(report.rows)
        if self.path is None:
            return
        size = folder.append_metrics(self.path, report.rows)
        if report.files:
            checkpoint.commit(
                self.path / "checkpoints" / report.method,
                report.round,
                report.files,
                metrics_bytes=size,
                identity=self.identity,
            )

    def end(self, name: str) -> None:
        """Note that a method is over; its checkpoints are no longer needed."""
        self.ended.add(name)
        if self.path is None:
            return
        size = folder.append_metrics(self.path, [])
        write_json(folder.ended(self.path, name), {"metrics_bytes": size})
        checkpoint.clear(self.path / "checkpoints" / name)

    def run(self) -> Run:
        """The run as recorded: the same that ``proxyfl.load`` reads from its folder."""
        environment = {"simulation": True, "notes": list(self.prepared.dataset.notes)}
        if self.path is not None:
            environment = read_json(self.path / "environment.json")
        settings = tomllib.loads(to_toml(self.prepared.config))
        return Run(self.path, settings, self.rows, self.summary(), environment)

    def summary(self) -> Document:
        """Final scores, costs and confusion counts per method and client, as plain data."""
        prepared = self.prepared
        methods = prepared.config.methods
        recorded = {row["method"] for row in self.rows}
        begun = [name for name in methods if name in recorded]
        about: Document = {"classes": list(prepared.dataset.class_names)}
        if not prepared.dataset.task.is_classification:
            about = {"classes": [], "task": asdict(prepared.dataset.task)}
        return {
            "finished": self.ended.issuperset(methods),
            "measure": prepared.config.measure,
            **about,
            "clients": _clients(prepared),
            "methods": {name: self._method(name) for name in begun},
        }

    def _method(self, name: str) -> Document:
        own = [row for row in self.rows if row["method"] == name]
        about = summary.of_method(self.prepared.methods[name], own)
        if name == "alone" and "alone" in self.ended:
            for client in about["clients"]:
                # an ``alone`` that chose among estimators needs no other opponent
                chosen = any(row.get("keeps") for row in own)
                known = {} if chosen else self._references
                client["reference"] = known.get(client["client"])
        return about


def _clients(prepared: Prepared) -> list[Document]:
    """Each client's name and what data it has."""
    if not prepared.dataset.task.is_classification:
        return [{"name": each.name, "examples": len(each)} for each in prepared.clients]
    labels = prepared.dataset.train.labels.numpy()
    owned = [client.rows.numpy() for client in prepared.clients]
    counts = class_counts(labels, owned, prepared.dataset.classes)
    clients = []
    for client, row in zip(prepared.clients, counts.tolist(), strict=True):
        about = {"name": client.name, "examples": len(client), "class_counts": row}
        clients.append(about)
    return clients
