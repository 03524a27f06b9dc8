"""Runs over MPI ranks are equal to runs in one process; a rank that fails is named, and the run can
go on."""

import json
import re
from pathlib import Path

import pytest
import torch

from proxyfl.federation import membership
from proxyfl.simulation import clients as build
from proxyfl.simulation.config import Config, to_toml
from proxyfl.simulation.engines.mpi import _own_sites, _runs_of_equals, _unrolled, leading, led
from proxyfl.simulation.engines.ranks import Places
from proxyfl.simulation.run import run

from .. import ranks
from .engines import assert_equal_runs, small

LIMIT = 120.0


def settings(**changes: object) -> Config:
    """Three clients, two methods that share and two that do not, one of them pooled."""
    return small(
        methods=["alone", "joint", "fedavg", "proxyfl"],
        rounds=3,
        partition={"clients": 3, "examples": 40, "p_major": 0.5},
        exchange={
            "topology": "tests.simulation.faults:topology",
            "self_weight": "none",
            "timeout": 5.0,
        },
        **changes,
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

    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_the_number_of_ranks_changes_nothing(
        self, number: int, config: Path, whole: Path, tmp_path: Path
    ) -> None:
        """One, two and three ranks give the metrics, ledgers and models of one process; only rank 0
        prints."""
        done = ranks.run(number, command(config, tmp_path / "run"), timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["finished"]
        assert_equal_runs(whole, tmp_path / "run")

    def test_a_killed_rank_is_named_and_the_run_resumes_on_other_ranks(
        self, config: Path, whole: Path, tmp_path: Path
    ) -> None:
        """After kill -9 of a rank the job ends with its name, and resumed on four ranks (one idle)
        it ends the same."""
        done = ranks.run(
            2, command(config, tmp_path / "run"), timeout=LIMIT, extra={"FAULT": "kill 1 2"}
        )
        assert done.returncode != 0
        said = one_message(done.stderr)
        assert re.search(
            r"rank 1 on \S+, which hosts client-1, was lost in proxyfl, round 2: its process ended",
            said,
        )
        assert f"proxyfl resume {tmp_path / 'run'}" in said
        done = ranks.run(4, command(config, tmp_path / "run", "resume"), timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        assert_equal_runs(whole, tmp_path / "run")

    @pytest.mark.parametrize(
        ("fault", "expected"),
        [
            (
                "raise 1 1",
                r"rank 1 on \S+, which hosts client-1, failed in proxyfl, round 1: OSError: the "
                r"disk of this",
            ),
            (
                "raise 0 1",
                r"rank 0 on \S+, which hosts client-0, client-2, failed in proxyfl, round 1: "
                r"OSError: the",
            ),
            (
                "stall 1 1",
                r"rank 1 on \S+, which hosts client-1, stalled in proxyfl, round 1: client 1 sent "
                r"nothing",
            ),
            (
                "kill 0 1",
                r"rank 0 on \S+, which hosts client-0, client-2, was lost in proxyfl, round 1: "
                r"its process",
            ),
        ],
    )
    def test_a_failing_rank_ends_the_job_with_its_name(
        self, fault: str, expected: str, config: Path, tmp_path: Path
    ) -> None:
        """A rank that raises, stalls or dies, rank 0 too, is named once, with its clients and the
        round; none hangs."""
        done = ranks.run(
            2, command(config, tmp_path / "run"), timeout=LIMIT, extra={"FAULT": fault}
        )
        assert done.returncode != 0
        assert re.search(expected, one_message(done.stderr))

    def test_bad_input_is_refused_once(self, config: Path, tmp_path: Path) -> None:
        """A folder that exists already gives one message and exit code 2, whatever the number of
        ranks."""
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "mine.txt").write_text("keep me")
        done = ranks.run(2, command(config, tmp_path / "run"), timeout=LIMIT)
        assert done.returncode == 2
        assert "exists already" in one_message(done.stderr)
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def one_message(stderr: str) -> str:
    """The one line that the job's ranks said about its end; the launcher adds lines of its own."""
    # Open MPI ends what it says about an abort with a zero byte, and our line may come next.
    lines = [
        line.strip("\0 ")
        for line in stderr.splitlines()
        if line.strip("\0 ").startswith("proxyfl: ")
    ]
    assert len(lines) == 1, stderr
    return lines[0]


def test_without_a_launcher_nothing_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside mpiexec ``led`` is the action itself, and mpi4py is not even looked for."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    assert led(lambda: 7 if not leading() else 8) == 7


def test_a_rank_keeps_only_what_it_hosts() -> None:
    """Hosted clients have exactly the data that dealing gives them; of the others only names and
    rows remain."""
    settled = settings()
    dataset = build.load_data(settled)
    for own, dealt in zip(
        _own_sites(settled, dataset, [1]), build.deal(settled, dataset), strict=True
    ):
        assert own.name == dealt.name
        assert own.rows.tolist() == dealt.rows.tolist()
        if own.name == "client-1":
            assert torch.equal(own.x, dealt.x)
            assert torch.equal(own.y, dealt.y)
        else:
            assert len(own.x) == len(own.y) == 0


def test_presences_survive_the_journey() -> None:
    """Who is there, who leaves and who takes fewer steps is the same after JSON as before."""
    schedule = [membership.Stay(0, leaves=4), membership.Stay(2, joins=3, away=(5, 6))]
    allowances = {1: membership.Allowance(3, 20)}
    plan = membership.plan(4, 12, schedule=schedule, absence=0.2, seed=1, allowances=allowances)
    assert any(presence.leaving for presence in plan)
    assert any(presence.fewer_steps for presence in plan)
    assert _unrolled(json.loads(json.dumps(_runs_of_equals(plan)))) == plan
    constant = membership.plan(4, 500)
    assert len(_runs_of_equals(constant)) == 1
    assert _unrolled(_runs_of_equals(constant)) == constant


def test_a_rank_is_described_with_its_clients() -> None:
    """Every N-th client lives on a rank; many are abbreviated, and a rank without any says so by
    silence."""
    places = Places(tuple(f"client-{i}" for i in range(20)), ("a", "b"))
    assert places.describe(1).startswith("rank 1 on b, which hosts client-1, client-3, client-5,")
    assert places.describe(1).endswith("client-11, 4 more,")
    assert [places.home(client) for client in (0, 1, 19)] == [0, 1, 1]
    assert Places(("only",), ("a", "b")).describe(1) == "rank 1 on b"
    try:
        raise OSError("no space")
    except OSError as error:
        said = places.failed(0, "in proxyfl, round 3", error)
    assert re.search(
        r"failed in proxyfl, round 3: OSError: no space \(test_mpi\.py, line \d+\)\.$", said
    )
