"""How long an experiment will take: from recorded seconds, the ratio of the machines, and what is
done already."""

import json
from pathlib import Path

import pytest

from proxyfl.simulation import config
from proxyfl.sweeps import file as sweep
from reproduction import duration
from tests.reproduction.samples import group, record

SWEEP = '[set]\nrounds = 10\nmethods = ["alone"]\n[grid]\nseed = [0, 1, 2, 3]\n'


@pytest.fixture
def runs(tmp_path: Path) -> list[sweep.Point]:
    (tmp_path / "s.toml").write_text(SWEEP)
    return sweep.plan(tmp_path / "s.toml", tmp_path / "out")


KNOWN = record("s", [group("alone", "private", [[0.5]])])
"""Two seconds per round, and a yardstick of 10 ms."""


def test_seconds_scale_with_rounds_cores_and_the_machine(runs: list[sweep.Point]) -> None:
    one = duration.seconds_left(runs, KNOWN, parallel=1, here=0.01)
    assert one == pytest.approx(4 * (duration.START_SECONDS + 10 * 2.0))
    assert duration.seconds_left(runs, KNOWN, parallel=2, here=0.01) == pytest.approx(one / 2)
    assert duration.seconds_left(runs, KNOWN, parallel=1, here=0.02) == pytest.approx(2 * one)


def test_rounds_done_need_not_be_done_again(runs: list[sweep.Point]) -> None:
    before = duration.seconds_left(runs, KNOWN, parallel=1, here=0.01)
    runs[0].folder.mkdir(parents=True)
    (runs[0].folder / "config.toml").write_text(config.to_toml(runs[0].config))
    rows = [{"method": "alone", "round": r, "client": 0} for r in range(4)]
    (runs[0].folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    after = duration.seconds_left(runs, KNOWN, parallel=1, here=0.01)
    assert before is not None
    assert after == pytest.approx(before - 4 * 2.0)


def test_a_part_of_the_rounds_takes_a_part_of_the_time(runs: list[sweep.Point]) -> None:
    part = duration.seconds_left(runs, KNOWN, parallel=1, here=0.01, until=3)
    assert part == pytest.approx(4 * (duration.START_SECONDS + 3 * 2.0))


def test_nothing_is_made_up(runs: list[sweep.Point]) -> None:
    """Without a record, or with one that lacks the method, there is no estimate."""
    assert duration.seconds_left(runs, None, parallel=1, here=0.01) is None
    other = record("s", [group("joint", "proxy", [[0.5]])])
    assert duration.seconds_left(runs, other, parallel=1, here=0.01) is None


def test_the_yardstick_is_a_time() -> None:
    assert 1e-4 < duration.yardstick(steps=3) < 5
