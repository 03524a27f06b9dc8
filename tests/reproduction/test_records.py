"""Records: what is kept of a sweep, and that it is what the runs said."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from proxyfl.errors import RunError
from proxyfl.records import reading as loading
from proxyfl.simulation import run as runner
from proxyfl.sweeps import file as sweep
from reproduction import merging, records
from reproduction.series import PROXYFL, Results, common_round, scores

SWEEP = """
[set]
methods = ["joint", "proxyfl"]
evaluate_every = 2
rounds = 4
[grid]
learning.alpha = [0.2, 0.4]
seed = [3, 5]
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[sweep.Point]:
    """A small sweep, run."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "small.toml").write_text(SWEEP)
    runs = sweep.plan(folder / "small.toml", folder / "out")
    for run in runs:
        runner.run(run.config, out=run.folder)
    return runs


def test_scores_are_those_of_the_runs(done: list[sweep.Point]) -> None:
    """Every score can be found under its settings, method, model, seed, round and client."""
    record = records.condense("small", done, yardstick=0.01)
    for run in done:
        for row in loading.read(run.folder).rows:
            if "proxy_accuracy" not in row:
                continue
            group = record.group(row["method"], "proxy", learning__alpha=run.config.learning.alpha)
            key = (run.config.seed, row["client"])
            assert group.at(row["round"] + 1)[key] == pytest.approx(row["proxy_accuracy"], abs=5e-5)
            assert group.epsilon_at(row["round"] + 1) == pytest.approx(row["epsilon_pld"], abs=1e-4)
    assert record.seeds == [3, 5]
    assert record.last_round == 4
    assert set(record.seconds_per_round) == {"joint", "proxyfl"}
    assert record.base["partition.clients"] == 8


def test_written_and_read_back(done: list[sweep.Point], tmp_path: Path) -> None:
    """A record survives the file, and the file says nothing of the machine's folders."""
    record = records.condense("small", done, yardstick=0.01)
    records.write(record, tmp_path / "small.jsonl")
    again = records.read(tmp_path / "small.jsonl")
    assert [dict(vars(g), settings=dict(g.settings)) for g in again.groups] == [
        vars(g) for g in record.groups
    ]
    assert str(tmp_path) not in (tmp_path / "small.jsonl").read_text()
    assert "data.directory" not in again.base


def test_unfinished_runs_count_as_far_as_all_have_come(
    done: list[sweep.Point], tmp_path: Path
) -> None:
    """One seed has two rounds and the other four: the group has the two that both have."""
    folder = tmp_path / "out"
    runs = [sweep.Point(run.name, run.settings, run.config, folder / run.name) for run in done]
    for run, source in zip(runs, done, strict=True):
        run.folder.mkdir(parents=True)
        (run.folder / "config.toml").write_text((source.folder / "config.toml").read_text())
        lines = (source.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        late = run.config.seed == 5
        (run.folder / "metrics.jsonl").write_text(
            "".join(x for x in lines if not late or json.loads(x)["round"] < 3)
        )
    record = records.condense("small", runs, yardstick=0.01)
    assert list(record.group("proxyfl", "private", learning__alpha=0.2).rounds) == [2]
    assert common_round(record) == 2
    assert len(scores(record, PROXYFL, 2, learning__alpha=0.2)) == 16


def test_what_is_missing_is_named(tmp_path: Path, done: list[sweep.Point]) -> None:
    with pytest.raises(RunError, match=r"make reproduce EXPERIMENT=skew"):
        Results(tmp_path).record("skew")
    record = records.condense("small", done, yardstick=0.01)
    with pytest.raises(RunError, match=r"expected one record of proxyfl private .*0\.3.*got 0"):
        record.group("proxyfl", "private", learning__alpha=0.3)


def test_seeds_run_later_are_added(tmp_path: Path, done: list[sweep.Point]) -> None:
    """Two seeds recorded one after the other, the first in a file, give the record of both."""
    first = [run for run in done if run.config.seed == 3]
    later = [run for run in done if run.config.seed == 5]
    both = records.condense("small", done, yardstick=0.01)
    file = tmp_path / "small.jsonl"
    records.write(records.condense("small", first, yardstick=0.01), file)
    added = merging.merged(records.read(file), records.condense("small", later, yardstick=0.01))
    assert [vars(group) for group in added.groups] == [vars(group) for group in both.groups]


def test_a_seed_run_again_replaces_its_record(done: list[sweep.Point]) -> None:
    """What is recorded of a seed gives way to a new run of it."""
    both = records.condense("small", done, yardstick=0.01)
    worse = [replace(g, accuracy=[[[0.0]]], seeds=[5]) for g in both.groups]
    again = merging.merged(replace(both, groups=worse), both)
    assert [vars(group) for group in again.groups] == [vars(group) for group in both.groups]


def test_other_settings_are_not_added(done: list[sweep.Point]) -> None:
    """Records of different settings are no record."""
    record = records.condense("small", done, yardstick=0.01)
    other = replace(record, base={**record.base, "learning.batch_size": 7})
    with pytest.raises(RunError, match=r"recorded with learning.batch_size=7"):
        merging.merged(other, record)
