"""Callbacks that record a run elsewhere: TensorBoard, MLflow. Both are optional extras, imported
when they are asked for.

A run's own records (``metrics.jsonl``) are always written and are the source; what is tracked here
is a copy of them.

Names, in both: ``METHOD/QUANTITY`` is the mean over the clients that were present,
``METHOD/QUANTITY/CLIENT`` one client's value. The step is the number of rounds done. An epsilon
carries its kind in its name (``proxyfl/epsilon_end-to-end``), its "mean" is the largest, and where
there is no guarantee there is no epsilon."""

import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from proxyfl._command import command
from proxyfl._files import write_json
from proxyfl._validate import choice
from proxyfl.errors import ConfigError, ProxyFLError
from proxyfl.measures import MEASURES
from proxyfl.privacy.guarantee import Kind
from proxyfl.records.row import ROLES, SECONDS, Row, epsilon
from proxyfl.records.run import Run
from proxyfl.simulation.config import Config, flat, to_toml
from proxyfl.simulation.division import ClientData
from proxyfl.simulation.run import Callback

_MLFLOW_RUN = "mlflow.json"
_BATCH = 500
_LONGEST_PARAM = 500


class TensorBoard(Callback):
    """Writes a run's curves where ``tensorboard --logdir`` finds them: ``log_dir``, or the run's
    own folder."""

    def __init__(self, log_dir: Path | str | None = None) -> None:
        self._open: Callable[..., Any] = _optional(
            "torch.utils.tensorboard", "tensorboard"
        ).SummaryWriter
        self.log_dir = Path(log_dir) if log_dir is not None else None
        self._writer: Any = None

    def started(self, config: Config, out: Path | None, sites: Sequence[ClientData]) -> None:
        """Open the log and note the settings."""
        where = self.log_dir or (out / "tensorboard" if out is not None else None)
        if where is None:
            raise ConfigError(
                "TensorBoard needs a folder to write to: give log_dir, or run with an output "
                "folder."
            )
        self._writer = self._open(str(where))
        self._writer.add_text("config", "    " + to_toml(config).replace("\n", "\n    "))

    def round_ended(self, name: str, round: int, rows: Sequence[Row]) -> None:
        """Write the round, flushed, so that an interrupted run is seen up to its last round."""
        for tag, value in scalars(name, rows):
            self._writer.add_scalar(tag, value, round + 1)
        self._writer.flush()

    def finished(self, result: Run) -> None:
        """Close the log."""
        self._writer.close()


class MLflow(Callback):
    """Logs a run to MLflow: settings as parameters, curves as metrics, the kind of guarantee in the
    names.

    A resumed run continues the MLflow run that it began, which its folder remembers.
    ``tracking_uri`` is MLflow's own default (the environment's ``MLFLOW_TRACKING_URI``) unless
    given."""

    def __init__(self, experiment: str = "proxyfl", tracking_uri: str | None = None) -> None:
        mlflow = _optional("mlflow", "mlflow")
        self._entities = _optional("mlflow.entities", "mlflow")
        self._refused: type[Exception] = _optional("mlflow.exceptions", "mlflow").MlflowException
        self.experiment = experiment
        self._client = mlflow.MlflowClient(tracking_uri=tracking_uri)
        self._run = ""
        self._out: Path | None = None

    def started(self, config: Config, out: Path | None, sites: Sequence[ClientData]) -> None:
        """Begin an MLflow run, or continue the one that the folder remembers."""
        self._out = out
        remembered = out / _MLFLOW_RUN if out is not None else None
        if remembered is not None and remembered.is_file():
            self._run = json.loads(remembered.read_text(encoding="utf-8"))["run_id"]
            self._ask(self._client.update_run, self._run, "RUNNING")
            return
        experiment = self._ask(self._client.get_experiment_by_name, self.experiment)
        if experiment:
            where = experiment.experiment_id
        else:
            where = self._ask(self._client.create_experiment, self.experiment)
        name = out.name if out is not None else None
        self._run = self._ask(self._client.create_run, where, run_name=name).info.run_id
        if remembered is not None:
            write_json(remembered, {"run_id": self._run, "experiment": self.experiment})
        params = [
            self._entities.Param(key, str(value)[:_LONGEST_PARAM])
            for key, value in flat(config).items()
        ]
        self._ask(self._client.log_batch, self._run, params=params)

    def round_ended(self, name: str, round: int, rows: Sequence[Row]) -> None:
        """Log the round."""
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(tag, value, now, round + 1) for tag, value in scalars(name, rows)
        ]
        for first in range(0, len(metrics), _BATCH):
            self._ask(self._client.log_batch, self._run, metrics=metrics[first : first + _BATCH])

    def finished(self, result: Run) -> None:
        """End the MLflow run."""
        self._ask(self._client.set_terminated, self._run, "FINISHED")

    def _ask(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except self._refused as error:
            advice = ""
            if self._out is not None:
                advice = f" Continue with: {command('resume', self._out)}"
            raise ProxyFLError(
                f"MLflow could not record the run: {error}. Its own records are intact.{advice}"
            ) from error


TRACKERS: dict[str, Callable[[], Callback]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def from_names(names: Sequence[str]) -> list[Callback]:
    """The trackers called ``names``; unknown names and missing extras are refused at once."""
    for name in names:
        choice("tracker", name, TRACKERS)
    return [TRACKERS[name]() for name in dict.fromkeys(names)]


def scalars(method: str, rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
    """A round as pairs of a name and a number: first what holds for all clients present, then each
    client's."""
    each: dict[str, Mapping[str, float]] = {}
    for row in rows:
        name = _safe(row["name"])
        if name in each:
            name = f"{name}-{row['client']}"
        each[name] = _quantities(row)
    together: dict[str, list[float]] = {}
    for values in each.values():
        for quantity, value in values.items():
            together.setdefault(quantity, []).append(value)
    for quantity, present in together.items():
        is_epsilon = quantity.startswith("epsilon")
        mean = max(present) if is_epsilon else fmean(present)
        yield f"{method}/{quantity}", mean
    for client, values in each.items():
        for quantity, value in values.items():
            yield f"{method}/{quantity}/{client}", value


def _quantities(row: Row) -> Mapping[str, float]:
    keys = ["private_loss", "proxy_loss", "bytes_sent", "bytes_received"]
    keys += [f"{role}_{measure}" for role in ROLES for measure in MEASURES]
    keys += [f"seconds_{part}" for part in SECONDS]
    quantities = {key: row.get(key) for key in keys}
    spent = epsilon(row)
    if spent.kind is not Kind.NONE:
        quantities[f"epsilon_{spent.kind}"] = spent.best
    return {key: float(value) for key, value in quantities.items() if value is not None}


def _safe(name: str) -> str:
    """A client's name as part of a tag: what MLflow refuses in one becomes an underscore."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-. ") else "_" for c in name)


def _optional(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"Tracking with {extra} needs a package that is not installed ({error}). "
            f"Install it with: pip install 'proxyfl[{extra}]'."
        ) from error
