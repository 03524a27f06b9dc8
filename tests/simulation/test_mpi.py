"""Runs over MPI ranks are equal to runs in one process; a rank that fails is named, and the run can
be resumed."""

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from proxyfl.errors import DataError
from proxyfl.simulation.checkpoint import Checkpoint
from proxyfl.simulation.config import Config, to_toml
from proxyfl.simulation.engines import Task
from proxyfl.simulation.mpi import Plan, Ranks, on_rank_zero, reason
from proxyfl.simulation.run import run
from tests.waiting import PATIENCE, wait_until

from .. import ranks
from .engines import assert_equal_runs, rows, small

SLOW = pytest.mark.slow


METHODS = ("alone", "joint", "fedavg", "proxyfl", "proxysum")
"""Three that share and two that do not, one of them pooled."""


def settings(
    timeout: float = PATIENCE, methods: Sequence[str] = METHODS, rounds: int = 3
) -> Config:
    """Three clients, each on a rank of its own if there are as many."""
    return small(
        methods=list(methods),
        rounds=rounds,
        partition={"clients": 3, "examples": 40, "p_major": 0.5},
        exchange={
            "topology": "tests.simulation.faults:topology",
            "self_weight": "none",
            "timeout": timeout,
        },
    )


def command(config: Path, out: Path, verb: str = "run") -> list[str]:
    """What every rank is started with."""
    arguments = [str(config), "--out", str(out)] if verb == "run" else [str(out)]
    return ["-m", "proxyfl.cli.main", verb, *arguments, "--json", "--workers", "1"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings as a file."""
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(to_toml(settings()))
    return path


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings for jobs that do not come to their end: one method, many rounds, short waits."""
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(to_toml(settings(5.0, ["proxyfl"], rounds=100)))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one process that the others must equal."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    run(settings(), out=path)
    return path


class TestRanks:
    """Real jobs of one to four ranks."""

    @pytest.fixture(autouse=True)
    def _mpi(self) -> None:
        ranks.needs_mpi()

    @pytest.mark.parametrize("number", [1, 3, pytest.param(2, marks=SLOW)])
    def test_the_number_of_ranks_changes_nothing(
        self, number: int, config: Path, whole: Path, tmp_path: Path
    ) -> None:
        """One, two and three ranks give the metrics, ledgers and models of one process; only rank 0
        prints."""
        done = ranks.run(number, command(config, tmp_path / "run"))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["finished"]
        assert_equal_runs(whole, tmp_path / "run")

    def test_a_killed_rank_ends_the_job_and_the_run_resumes_on_other_ranks(
        self, config: Path, whole: Path, tmp_path: Path
    ) -> None:
        """After kill -9 of a rank the launcher names it, rank 0 says how to resume, and resumed on
        four ranks (one idle) the run ends the same."""
        out = tmp_path / "run"
        done = ranks.run(2, command(config, out), extra={"FAULT": "kill 1 2"})
        assert done.returncode != 0
        assert re.search(r"process rank 1 .*signal 9", done.stderr, re.DOTALL)
        (said,) = messages(done.stderr)
        assert "a rank was lost" in said
        assert f"proxyfl resume {out}" in said
        done = ranks.run(4, command(config, out, "resume"))
        assert done.returncode == 0, done.stderr
        assert_equal_runs(whole, out)

    def test_the_death_of_rank_zero_ends_the_job(self, failing: Path, tmp_path: Path) -> None:
        """When rank 0 is killed the launcher says so and ends the others, which say nothing."""
        done = ranks.run(2, command(failing, tmp_path / "run"), extra={"FAULT": "kill 0 1"})
        assert done.returncode != 0
        assert re.search(r"process rank 0 .*signal 9", done.stderr, re.DOTALL)
        assert messages(done.stderr) == []

    @pytest.mark.parametrize(
        ("fault", "expected"),
        [
            (
                "raise 1 1",
                r"rank 1 on \S+, which runs client-1, failed in proxyfl, round 1: Topology "
                r"'\S+:topology' raised OSError .*: the disk of this rank is gone",
            ),
            pytest.param(
                "raise 0 1",
                r"rank 0 on \S+, which runs client-0, client-2, failed in proxyfl, round 1: "
                r"Topology '\S+:topology' raised OSError .*: the disk of this rank is gone",
                marks=SLOW,
            ),
            (
                "stall 1 1",
                r"rank 0 on \S+, which runs client-0, client-2, failed in proxyfl, round 1: "
                r"Client 1 sent nothing .* Client 1 is on rank 1, machine \S+",
            ),
        ],
    )
    def test_a_failing_rank_is_named(
        self, fault: str, expected: str, failing: Path, tmp_path: Path
    ) -> None:
        """A rank that raises, or waits in vain for one that stalls, says where; the job ends."""
        done = ranks.run(2, command(failing, tmp_path / "run"), extra={"FAULT": fault})
        assert done.returncode != 0
        said = messages(done.stderr)
        assert re.search(expected, said[0])
        assert f"proxyfl resume {tmp_path / 'run'}" in said[-1]

    @pytest.mark.parametrize("victim", [1, pytest.param(0, marks=SLOW)])
    def test_a_stopped_rank_ends_the_job(self, victim: int, failing: Path, tmp_path: Path) -> None:
        """A rank that is stopped, not dead, is named by another once it has waited long enough."""
        job = ranks.start(2, command(failing, tmp_path / "run"))
        wait_for_rows(job, tmp_path / "run", 0)
        os.kill(ranks.processes(job)[victim], signal.SIGSTOP)
        done = ranks.finished(job)
        assert done.returncode != 0
        named = rf"rank {victim} on .* stalled: it|Client \d is on rank {victim},"
        assert re.search(named, " ".join(messages(done.stderr))), done.stderr

    @pytest.mark.slow
    def test_a_rank_killed_at_any_instant(self, config: Path, whole: Path, tmp_path: Path) -> None:
        """A run whose rank is killed at a random instant resumes, on another number of ranks, to
        the same end."""
        kill_and_resume(random.Random(0), config, whole, tmp_path / "run", kills=1)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(1, 5))
    def test_ranks_killed_again_and_again(
        self, seed: int, config: Path, whole: Path, tmp_path: Path
    ) -> None:
        """The same with four kills in a row, each of any rank, on two to four ranks."""
        kill_and_resume(random.Random(seed), config, whole, tmp_path / "run", kills=4)

    def test_a_rank_with_other_data_is_refused(self) -> None:
        """A rank whose data are not those of rank 0 says so and ends the job."""
        done = ranks.run(2, ["-m", "tests.simulation.other_data"])
        assert done.returncode != 0
        assert "rank 1 on" in messages(done.stderr)[0]
        assert "differ from those of rank 0" in messages(done.stderr)[0]

    def test_bad_input_is_refused_once(self, config: Path, tmp_path: Path) -> None:
        """A folder that exists already gives one message and exit code 2, whatever the number of
        ranks."""
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "mine.txt").write_text("keep me")
        done = ranks.run(2, command(config, tmp_path / "run"))
        assert done.returncode == 2
        (said,) = messages(done.stderr)
        assert "exists already" in said
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def kill_and_resume(
    draw: random.Random, config: Path, whole: Path, out: Path, *, kills: int
) -> None:
    """Kill a rank ``kills`` times, each when some more rows were recorded; resume; compare."""
    last = len(rows(whole)) - 1
    for _ in range(kills):
        number = draw.choice([2, 3, 4])
        recorded = len(rows(out)) if out.exists() else 0
        job = ranks.start(number, command(config, out, "resume" if out.exists() else "run"))
        wait_for_rows(job, out, min(last, recorded + draw.randint(0, last // (kills + 1))))
        time.sleep(draw.uniform(0, 0.05))
        victim = draw.randrange(number)
        os.kill(ranks.processes(job)[victim], signal.SIGKILL)
        done = ranks.finished(job)
        assert done.returncode != 0, done.stderr
        assert f"process rank {victim} " in done.stderr
    done = ranks.run(draw.choice([1, 2, 3]), command(config, out, "resume"))
    assert done.returncode == 0, done.stderr
    assert_equal_runs(whole, out)


def wait_for_rows(job: "subprocess.Popen[str]", out: Path, number: int) -> None:
    """Wait until the run has more than ``number`` rows of metrics."""
    metrics = out / "metrics.jsonl"

    def has_rows() -> bool:
        assert job.poll() is None, job.communicate()
        return metrics.exists() and metrics.read_bytes().count(b"\n") > number

    wait_until(has_rows, every=0.005)


def messages(stderr: str) -> list[str]:
    """What the job's ranks said about its end; the launcher adds lines of its own."""
    # Open MPI ends what it says about an abort with a zero byte, and our line may come next.
    lines = [line.strip("\0 ") for line in stderr.splitlines()]
    return [line for line in lines if line.startswith("proxyfl: ")]


def test_without_a_launcher_nothing_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside mpiexec the action is called without an engine, and mpi4py is not even looked for."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    assert on_rank_zero(lambda engine: 7 if engine is None else 8) == 7


def test_a_plan_survives_the_journey(tmp_path: Path) -> None:
    """Settings, folder, tasks and the data's fingerprint are the same after JSON as before."""
    resumed = Task("proxyfl", Checkpoint(tmp_path / "checkpoints", 3, 0))
    for out, tasks in ((tmp_path, [resumed, Task("alone")]), (None, [Task("alone")])):
        plan = Plan(settings(), out, tasks, 7)
        assert Plan.decode(plan.encode()) == plan


def test_a_rank_is_described_with_its_clients() -> None:
    """Every N-th client lives on a rank; many are abbreviated, and a rank without any says so by
    silence."""
    described = Ranks([f"client-{i}" for i in range(20)], ("a", "b")).describe(1)
    assert described.startswith("rank 1 on b, which runs client-1, client-3, client-5,")
    assert described.endswith("client-11, 4 more,")
    assert Ranks(["only"], ("a", "b")).describe(1) == "rank 1 on b"


def test_the_reason_of_a_foreign_error_has_its_place() -> None:
    """Our errors speak for themselves; others are told with their type, file and line."""
    assert reason(DataError("No such file.")) == "No such file."
    try:
        raise OSError("no space")
    except OSError as error:
        said = reason(error)
    assert re.fullmatch(r"OSError: no space \(test_mpi\.py, line \d+\)\.", said)
