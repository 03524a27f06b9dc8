"""Tracking: what is told to TensorBoard and MLflow, read back with their own readers where they are
installed."""

import csv
import importlib
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from proxyfl.errors import ConfigError, ProxyFLError
from proxyfl.federation.exchange import Traffic
from proxyfl.federation.learners import Losses
from proxyfl.federation.metrics import Score
from proxyfl.federation.rounds import ClientRound
from proxyfl.privacy.guarantee import Epsilon, Kind
from proxyfl.records import folder
from proxyfl.records.frames import metrics_csv
from proxyfl.records.row import Row, row_of
from proxyfl.records.run import Run
from proxyfl.simulation import tracking
from proxyfl.simulation.config import from_tree
from proxyfl.simulation.tracking import MLflow, TensorBoard, from_names, scalars
from tests.scores import score_of

CONFIG = from_tree({"rounds": 2, "methods": ["proxyfl"], "partition": {"clients": 2}})


def score(accuracy: float) -> Score:
    return score_of([[int(100 * accuracy), int(100 - 100 * accuracy)], [0, 0]])


def record(
    client: int, *, round: int = 0, accuracy: float | None = 0.5, kind: Kind = Kind.CONDITIONAL
) -> Row:
    epsilon = (
        Epsilon(math.inf, math.inf, 1e-3, kind)
        if kind is Kind.NONE
        else Epsilon(3.0 + client, 4.0, 1e-3, kind)
    )
    record = ClientRound(
        round=round,
        client=client,
        name=f"Klinik Süd {client}",
        present=2,
        expected=2,
        steps=3,
        losses=Losses(private=0.25),
        scores={} if accuracy is None else {"private": score(accuracy)},
        epsilon=epsilon,
        traffic=Traffic(),
        weight=1.0,
        seconds={"training": 0.5},
    )
    return row_of("proxyfl", record)


def test_means_and_clients() -> None:
    """A quantity is tracked as its mean over clients and for each client, under a name that both
    trackers take."""
    found = dict(scalars("proxyfl", [record(0, accuracy=0.5), record(1, accuracy=0.75)]))
    assert found["proxyfl/private_accuracy"] == 0.625
    assert found["proxyfl/private_accuracy/Klinik S_d 1"] == 0.75
    assert found["proxyfl/private_macro_accuracy"] == 0.625
    assert found["proxyfl/private_loss"] == 0.25
    assert "proxyfl/proxy_loss" not in found


def test_epsilon_carries_its_kind() -> None:
    """Epsilon is tracked under a name that says its kind; for all clients together it is the
    largest."""
    found = dict(scalars("proxyfl", [record(0), record(1)]))
    assert found["proxyfl/epsilon_conditional"] == 4.0
    assert found["proxyfl/epsilon_conditional/Klinik S_d 0"] == 3.0
    assert not any("epsilon" in name for name, _ in scalars("alone", [record(0, kind=Kind.NONE)]))


def test_rounds_without_evaluation() -> None:
    """Where a round was not evaluated there is no accuracy; where nobody was present there is
    nothing."""
    assert not any("accuracy" in name for name, _ in scalars("proxyfl", [record(0, accuracy=None)]))
    assert list(scalars("proxyfl", [])) == []


def test_clients_with_names_that_read_alike() -> None:
    """Clients whose names become the same tag are told apart by their number."""
    twins = [record(0, accuracy=0.25), record(1, accuracy=0.75)]
    twins = [twin | {"name": f"Süd{'!?'[n]}"} for n, twin in enumerate(twins)]
    found = dict(scalars("proxyfl", twins))
    assert (found["proxyfl/private_accuracy/S_d_"], found["proxyfl/private_accuracy/S_d_-1"]) == (
        0.25,
        0.75,
    )


def test_unknown_tracker() -> None:
    """A tracker that there is not is refused, and the known ones are listed."""
    with pytest.raises(ConfigError, match=r"Unknown tracker 'wandb'. Known: tensorboard, mlflow"):
        from_names(["wandb"])


@pytest.mark.parametrize(("tracker", "extra"), [(TensorBoard, "tensorboard"), (MLflow, "mlflow")])
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tracker: Any, extra: str
) -> None:
    """Without its package a tracker is refused when it is made, before any work, and says what to
    install."""

    def missing(module: str) -> Any:
        raise ModuleNotFoundError(f"No module named {module!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=rf"pip install 'proxyfl\[{extra}\]'"):
        tracker()


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    """TensorBoard's own reader finds every round's values at the number of rounds done, without a
    proper end."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tracker,) = from_names(["tensorboard"])
    tracker.started(CONFIG, tmp_path / "run", [])
    for round, accuracy in enumerate((0.25, 0.5)):
        tracker.round_ended("proxyfl", round, [record(0, round=round, accuracy=accuracy)])
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("proxyfl/private_accuracy")] == [
        (1, 0.25),
        (2, 0.5),
    ]
    assert (
        "rounds = 2" in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    )
    tracker.finished(Run(tmp_path / "run", {}, []))


def test_tensorboard_needs_a_folder() -> None:
    """Without a folder for the log there is an error that says what to give."""
    pytest.importorskip("tensorboard")
    with pytest.raises(ConfigError, match="give log_dir"):
        TensorBoard().started(CONFIG, None, [])


class Recorder:
    """MLflow's client as this package uses it: notes every call."""

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.fails:
                raise OSError("the server is gone")
            self.calls.append((name, args, kwargs))
            info = type("Info", (), {"run_id": "run-1"})
            return None if name == "get_experiment_by_name" else type("Made", (), {"info": info})

        return call


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """An MLflow whose client is a recorder; the test with the real one is below."""
    client = Recorder()
    fake = type(
        "Fake",
        (),
        {
            "MlflowClient": lambda tracking_uri=None: client,
            "MlflowException": OSError,
            "Param": lambda key, value: (key, value),
            "Metric": lambda *values: values,
        },
    )
    monkeypatch.setattr(tracking, "_optional", lambda module, extra: fake)
    return client


def test_mlflow_goes_on_in_the_run_it_began(tmp_path: Path, recorded: Recorder) -> None:
    """A run's folder remembers its MLflow run; a resumed run is logged to that one and not to a new
    one."""
    MLflow("study").started(CONFIG, tmp_path, [])
    MLflow("study").started(CONFIG, tmp_path, [])
    names = [name for name, _, _ in recorded.calls]
    assert names.count("create_run") == 1
    assert names[-1] == "update_run"
    assert json.loads((tmp_path / "mlflow.json").read_text()) == {
        "run_id": "run-1",
        "experiment": "study",
    }


def test_mlflow_gets_large_rounds_in_parts(recorded: Recorder) -> None:
    """A round of many clients is logged in batches below MLflow's limit of a thousand, and all of
    it."""
    tracker = MLflow()
    tracker.started(CONFIG, None, [])
    recorded.calls.clear()
    records = [record(client) for client in range(300)]
    tracker.round_ended("proxyfl", 4, records)
    batches = [kwargs["metrics"] for _, _, kwargs in recorded.calls]
    assert max(map(len, batches)) <= 1000
    sent = [(tag, value) for batch in batches for tag, value, _, step in batch if step == 5]
    assert sent == list(scalars("proxyfl", records))


def test_mlflow_that_fails_stops_the_run_with_a_way_on(tmp_path: Path, recorded: Recorder) -> None:
    """What MLflow refuses is not dropped in silence: the error says that the records are intact and
    how to continue."""
    tracker = MLflow()
    (tmp_path / "run").mkdir()
    tracker.started(CONFIG, tmp_path / "run", [])
    recorded.fails = True
    with pytest.raises(
        ProxyFLError,
        match=r"server is gone. Its own records are intact. Continue with: proxyfl resume .*run",
    ):
        tracker.round_ended("proxyfl", 0, [record(0)])


def test_the_real_mlflow(tmp_path: Path) -> None:
    """MLflow's own client finds the settings, every round's values and the end."""
    mlflow = pytest.importorskip(
        "mlflow", reason="MLflow is not installed: its tracker is tested with a recorder only"
    )
    pytest.importorskip("sqlalchemy", reason="MLflow's database store is not installed")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = MLflow("study", uri)
    (tmp_path / "run").mkdir()
    tracker.started(CONFIG, tmp_path / "run", [])
    for round, accuracy in enumerate((0.25, 0.5)):
        tracker.round_ended("proxyfl", round, [record(0, round=round, accuracy=accuracy)])
    tracker.finished(Run(None, {}, []))
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert (run.data.params["rounds"], run.data.params["partition.clients"]) == ("2", "2")
    history = client.get_metric_history(run.info.run_id, "proxyfl/private_accuracy")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5)]
    assert run.data.metrics["proxyfl/epsilon_conditional/Klinik S_d 0"] == 3.0


def test_metrics_as_csv(tmp_path: Path) -> None:
    """All records of a run as CSV, with an empty cell where a round was not evaluated."""
    (tmp_path / "config.toml").write_text("")
    rows: list[dict[str, Any]] = [
        {"method": "alone", "round": 0, "epsilon_pld": None},
        {"method": "alone", "round": 1, "epsilon_pld": None, "private_accuracy": 0.5},
    ]
    folder.append_metrics(tmp_path, rows)
    assert metrics_csv(tmp_path).splitlines()[0] == "method,round,epsilon_pld,private_accuracy"
    found = list(csv.DictReader(io.StringIO(metrics_csv(tmp_path))))
    assert [row["private_accuracy"] for row in found] == ["", "0.5"]
