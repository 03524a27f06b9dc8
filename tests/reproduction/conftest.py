"""What the tests of the reproduction share."""

from dataclasses import replace
from pathlib import Path

import pytest

from proxyfl.simulation import run as runner
from proxyfl.sweeps import file as sweep
from reproduction import catalogue, records
from reproduction.series import Results

QUICKER = {"rounds": 2, "evaluate_every": 1}
"""Enough for every figure and statement to have its values; a slow test runs all ten rounds."""


def recorded(name: str, out: Path, **changes: int) -> Path:
    """The file of results of one experiment's quick variant, run with ``changes``."""
    runs = []
    for run in sweep.plan(catalogue.EXPERIMENTS[name].file, out / name, quick=True):
        run = replace(run, config=replace(run.config, **changes))
        runner.run(run.config, out=run.folder)
        runs.append(run)
    record = records.condense(name, runs, yardstick=0.01)
    path = out / "results" / f"{name}.jsonl"
    records.write(record, path)
    return path


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The quick variant of every experiment, with fewer rounds, run and recorded."""
    out = tmp_path_factory.mktemp("quick")
    for name in catalogue.EXPERIMENTS:
        recorded(name, out, **QUICKER)
    return Results(out / "results")
