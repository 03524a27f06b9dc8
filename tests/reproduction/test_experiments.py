"""The sweep files: each loads, is about what it says, and its quick variant runs and is
recorded."""

import subprocess
import sys
from pathlib import Path

import pytest

from proxyfl.sweeps import file as sweep
from reproduction import records
from reproduction.__main__ import main
from reproduction.catalogue import EXPERIMENTS, FOLDER
from reproduction.records import Record
from reproduction.series import Results
from tests.privacy.alike import pld_epsilon
from tests.reproduction.conftest import recorded
from tests.waiting import PATIENCE

ALL = sorted(EXPERIMENTS)


def planned(name: str, tmp_path: Path, *, quick: bool = False) -> list[sweep.Point]:
    return sweep.plan(EXPERIMENTS[name].file, tmp_path, quick=quick)


def test_every_file_is_in_the_catalogue() -> None:
    """Nothing lies in experiments/ that nobody runs, and nothing is listed that is not there."""
    assert sorted(path.stem for path in FOLDER.glob("*.toml")) == ALL


@pytest.mark.parametrize("name", ALL)
def test_each_file_loads(name: str, tmp_path: Path) -> None:
    """Every run's settings are valid, on the data and for the seeds that the page speaks of."""
    runs = planned(name, tmp_path)
    assert {run.config.data.source for run in runs} == {
        name if name in ("fashion-mnist", "cifar10") else "mnist"
    }
    assert {run.config.seed for run in runs} == (
        set(range(5)) if "mnist" in name or name == "cifar10" else {0, 1, 2}
    )
    assert all(run.config.partition.clients == 8 for run in runs)


@pytest.mark.parametrize("name", ALL)
def test_quick_variants_need_no_data(name: str, tmp_path: Path) -> None:
    """A quick variant is the same comparison on the embedded digits."""
    full, quick = planned(name, tmp_path), planned(name, tmp_path, quick=True)
    assert {run.config.data.source for run in quick} == {"digits"}
    assert {run.config.methods for run in quick} == {run.config.methods for run in full}
    assert all(run.config.rounds <= 10 for run in quick)


@pytest.mark.parametrize("name", ALL)
def test_quick_variants_run_and_are_recorded(name: str, quick: Results) -> None:
    """Every method of every run has scores of every client at every evaluation."""
    assert_scored(quick.record(name), [1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_quick_variants_run_to_their_end(name: str, tmp_path: Path) -> None:
    """The same with all rounds of the quick variant."""
    assert_scored(records.read(recorded(name, tmp_path)), [5, 10])


def assert_scored(record: Record, rounds: list[int]) -> None:
    """All clients have scores after each of ``rounds``, the last of which is the end."""
    everyone = record.base["partition.clients"]
    assert record.rounds == rounds[-1]
    for group in record.groups:
        assert list(group.rounds) == rounds
        clients = 1 if group.method == "joint" else everyone
        assert all(len(scores) == clients for seed in group.accuracy for scores in seed)
        assert all(0 <= score <= 1 for score in group.at(rounds[-1]).values())


def test_the_papers_settings(tmp_path: Path) -> None:
    """What the paper states about its benchmarks (section 3.1)."""
    for name, models, examples, p_major, rounds in (
        ("mnist", ("lenet5", "mlp"), 1000, 0.8, 300),
        ("fashion-mnist", ("lenet5", "mlp"), 1000, 0.8, 300),
        ("cifar10", ("cnn2", "cnn1"), 3000, 0.3, 200),
    ):
        for run in planned(name, tmp_path):
            config = run.config
            assert (config.models.private, config.models.proxy) == models
            assert (config.partition.examples, config.partition.p_major, config.rounds) == (
                examples,
                p_major,
                rounds,
            )
            assert (config.learning.alpha, config.learning.beta, config.learning.batch_size) == (
                0.5,
                0.5,
                250,
            )
            assert (config.privacy.noise_multiplier, config.privacy.clip_norm) == (1.0, 1.0)
            for settings in (config.private_optimizer, config.proxy_optimizer):
                assert (settings.name, settings.learning_rate, settings.weight_decay) == (
                    "adam",
                    0.001,
                    1e-4,
                )
        assert len({run.config.methods for run in planned(name, tmp_path)}) == 8


def test_noise_is_what_epsilon_asks_for(tmp_path: Path) -> None:
    """The noise multipliers of the epsilon sweep spend what their names say, and hardly less."""
    for run in planned("epsilon", tmp_path):
        if run.config.methods == ("alone",):
            continue
        examples = 8000 if run.config.methods == ("joint",) else 1000
        batch, rounds = run.config.learning.batch_size, run.config.rounds
        noise = run.config.privacy.noise_multiplier
        assert isinstance(batch, int)
        assert isinstance(noise, float)
        steps = rounds * (examples // batch)
        spent = pld_epsilon(
            sampling_rate=batch / examples, noise_multiplier=noise, steps=steps, delta=1e-3
        )
        target = float(str(run.settings["variant"]).split("-")[1])
        assert 0.99 * target < spent <= target
        assert run.config.learning.beta == 0 or run.config.methods == ("joint",)


def test_a_quick_experiment_by_its_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It says how long it will take, runs and records; a second time there is nothing to do."""
    command = ["run", "mixing", "--quick", "--out", str(tmp_path / "runs")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "1 runs, 1 to do" in said
    assert "about" in said
    assert (tmp_path / "runs" / "record.jsonl").is_file()
    assert main(command) == 0
    assert "1 runs, 0 to do" in capsys.readouterr().out


def test_what_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An experiment that has not been run cannot be recorded; the message says what to do."""
    assert main(["record", "mixing", "--out", str(tmp_path)]) == 2
    assert "Run it first" in capsys.readouterr().err


def test_missing_data_are_said_once_and_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the dataset, and without a way to fetch it, nothing is started."""
    command = [
        sys.executable,
        "-m",
        "reproduction",
        "run",
        "mnist",
        "--out",
        str(tmp_path / "runs"),
    ]
    monkeypatch.setenv("PROXYFL_DATA", str(tmp_path / "nothing"))
    # a port that nobody listens on: no network, wherever this runs
    for proxy in ("https_proxy", "http_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert "mnist" in done.stderr.lower()
    assert not (tmp_path / "runs").exists()
