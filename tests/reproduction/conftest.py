"""What the tests of the reproduction share."""

from pathlib import Path

import pytest

from proxyfl.simulation import run as runner
from proxyfl.sweeps import file as sweep
from reproduction import catalogue, records
from reproduction.series import Results


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The quick variant of every experiment, run and recorded."""
    out = tmp_path_factory.mktemp("quick")
    for name, experiment in catalogue.EXPERIMENTS.items():
        runs = sweep.plan(experiment.file, out / name, quick=True)
        for run in runs:
            runner.run(run.config, out=run.folder)
        records.write(
            records.condense(name, runs, yardstick=0.01),
            out / "results" / f"{name}.jsonl",
        )
    return Results(out / "results")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test asks first waits for all quick variants."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(1800))
