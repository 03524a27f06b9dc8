"""What the tests of the reproduction share."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proxyfl.simulation import run as runner
from proxyfl.simulation.config import Config, to_toml
from proxyfl.sweeps import file as sweep
from reproduction import catalogue, records
from reproduction.series import Results


def quicker(config: Config) -> Config:
    """One round, of three clients where not all are needed, without the heaviest model: enough for
    every figure and statement to have its values. A slow test runs all as it is."""
    config = replace(config, rounds=1, evaluate_every=1)
    private = config.models.private
    pooled = config.learning.batch_size > config.partition.examples / 2
    if pooled or config.each:
        return config  # batches of everyone's examples, or a model for each client
    models = replace(config.models, private=private.replace("cnn2", "cnn1"))
    return replace(config, models=models, partition=replace(config.partition, clients=3))


def recorded(
    name: str, out: Path, change: Callable[[Config], Config] = lambda config: config
) -> Path:
    """The file of results of one experiment's quick variant, run as ``change`` would have it. What
    an earlier experiment ran already is not run again."""
    runs = []
    for run in sweep.plan(catalogue.EXPERIMENTS[name].file, out / name, quick=True):
        config = change(run.config)
        ran = out / hashlib.sha256(to_toml(config).encode()).hexdigest()
        if not ran.exists():
            runner.run(config, out=ran)
        runs.append(replace(run, config=config, folder=ran))
    record = records.condense(name, runs, yardstick=0.01)
    path = out / "results" / f"{name}.jsonl"
    records.write(record, path)
    return path


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The quick variant of every experiment, made quicker still, run and recorded."""
    out = tmp_path_factory.mktemp("quick")
    for name in catalogue.EXPERIMENTS:
        recorded(name, out, quicker)
    return Results(out / "results")
