"""Runs on any number of workers are equal; runs that are cut off and resumed are equal to those
that are not."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from proxyfl._files import short_hash
from proxyfl.errors import ConfigError, PrivacyError, RunError, WorkerDied
from proxyfl.federation.methods import Method
from proxyfl.records import folder
from proxyfl.records.row import Row
from proxyfl.simulation import checkpoint, engines
from proxyfl.simulation.checkpoint import CheckpointWarning
from proxyfl.simulation.config import to_toml
from proxyfl.simulation.run import Callback, resume, run
from tests.waiting import PATIENCE

from .engines import StopAt, assert_equal_runs, rows, small

BEFORE = Path(__file__).parents[1] / "records" / "before" / "run"


class StartsAt(Callback):
    """Notes the first round of each method that is carried out."""

    def __init__(self) -> None:
        self.rounds: dict[str, int] = {}

    def method_started(self, name: str, method: Method, clients: int, first_round: int) -> None:
        self.rounds[name] = first_round


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one worker that nobody disturbed."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    run(small(), out=path)
    return path


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_changes_nothing(workers: int, whole: Path, tmp_path: Path) -> None:
    """Two and three processes give the same metrics, ledgers and models as one, bit for bit."""
    run(small(), out=tmp_path / "run", workers=workers)
    assert_equal_runs(whole, tmp_path / "run")


@pytest.mark.parametrize(("method", "round"), [("alone", 0), ("fedavg", 3), ("proxyfl", 1)])
@pytest.mark.parametrize("every", [1, 3])
def test_a_resumed_run_equals_an_uninterrupted_one(
    method: str, round: int, every: int, whole: Path, tmp_path: Path
) -> None:
    """Whatever round it was cut off in, and however rare checkpoints are, the end is the same."""
    config = small(checkpoint_every=every)
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", callbacks=[StopAt(method, round)])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["finished"] is False
    resume(tmp_path / "run")
    assert_equal_runs(whole, tmp_path / "run")


def test_a_run_resumes_with_another_number_of_workers(whole: Path, tmp_path: Path) -> None:
    """Begun on one process, ended on two."""
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "run", callbacks=[StopAt("proxyfl", 1)])
    resume(tmp_path / "run", workers=2)
    assert_equal_runs(whole, tmp_path / "run")


def test_convolutions_resume_to_the_bit(tmp_path: Path) -> None:
    """Private convolutions, whose weights lie in memory in another order, are restored with their
    optimizer's state."""
    changes: dict[str, Any] = {
        "methods": ["alone", "proxyfl"],
        "models": {"private": "cnn1", "proxy": "lenet5"},
    }
    run(small(**changes), out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(
            small(**changes, checkpoint_every=1),
            out=tmp_path / "cut",
            callbacks=[StopAt("proxyfl", 1)],
        )
    resume(tmp_path / "cut")
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_budget_below_one_step_is_refused(tmp_path: Path) -> None:
    """A budget that covers not a single step is an error before any work, naming the client."""
    changes: dict[str, Any] = {
        "privacy": {"noise_multiplier": 2.0, "budget": [9.0, 9.0, 0.01, 9.0, 9.0]}
    }
    with pytest.raises(ConfigError, match=r"budget of client 2 .* does not cover a single step"):
        run(small(**changes), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resuming_a_finished_run_changes_nothing(whole: Path, tmp_path: Path) -> None:
    """Resume is safe to repeat."""
    run(small(), out=tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    resume(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert_equal_runs(whole, tmp_path / "run")


def test_a_damaged_checkpoint_is_passed_over(whole: Path, tmp_path: Path) -> None:
    """With its newest checkpoint truncated a run goes on from the one before, says so, and ends the
    same."""
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "run", callbacks=[StopAt("proxyfl", 2)])
    newest = sorted((tmp_path / "run" / "checkpoints" / "proxyfl").iterdir())[-1]
    victim = newest / "003.safetensors"
    victim.write_bytes(victim.read_bytes()[:-7])
    with pytest.warns(CheckpointWarning, match=r"003\.safetensors is truncated or damaged"):
        resume(tmp_path / "run")
    assert_equal_runs(whole, tmp_path / "run")


@pytest.mark.parametrize("loss", ["removed", "header only", "one line short", "replaced"])
@pytest.mark.parametrize("workers", [1, 2])
def test_resume_demands_what_was_charged(loss: str, workers: int, tmp_path: Path) -> None:
    """A ledger that lost charges which the checkpoint knows of stops ``resume``, naming client and
    remedy; nothing is trained."""
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(small(checkpoint_every=1), out=path, callbacks=[StopAt("proxyfl", 2)])
    ledger = path / "ledger" / "proxyfl" / "001.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    if loss == "removed":
        ledger.unlink()
    if loss == "header only":
        ledger.write_bytes(lines[0])
    if loss == "one line short":
        ledger.write_bytes(b"".join(lines[:-1]))
    if loss == "replaced":
        ledger.write_bytes((ledger.parent / "002.jsonl").read_bytes())
    metrics = (path / "metrics.jsonl").read_bytes()
    with pytest.raises(PrivacyError, match=r"client.*1.*(a backup|the right file)"):
        resume(path, workers=workers)
    assert (path / "metrics.jsonl").read_bytes() == metrics


def test_a_checkpoint_that_cannot_be_written_leaves_no_scratch_file(tmp_path: Path) -> None:
    """A refusal names the file, and nothing of it stays beside those that are whole."""
    in_the_way = tmp_path / "000003" / "manifest.json"
    in_the_way.mkdir(parents=True)
    with pytest.raises(RunError, match="Cannot write"):
        checkpoint.commit(tmp_path, 3, {}, metrics_bytes=0, identity="")
    assert list(in_the_way.parent.iterdir()) == [in_the_way]


def test_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    """A checkpoint of a run with other settings is not taken for one's own."""
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "run", callbacks=[StopAt("proxyfl", 2)])
    with pytest.warns(CheckpointWarning, match="other settings"):
        assert (
            checkpoint.newest(tmp_path / "run" / "checkpoints" / "proxyfl", identity="another")
            is None
        )


def test_a_changed_config_is_refused(tmp_path: Path) -> None:
    """Settings that were edited after the run began are an error, before any work."""
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "run", callbacks=[StopAt("alone", 0)])
    (tmp_path / "run" / "config.toml").write_text(to_toml(small(rounds=9)))
    with pytest.raises(RunError, match="changed after the run began"):
        resume(tmp_path / "run")


def test_a_config_from_before_a_setting_existed_is_no_change(whole: Path, tmp_path: Path) -> None:
    """A file without a setting that came later is resumed from its checkpoint, to the same end;
    edited by hand it is refused."""
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "run", callbacks=[StopAt("proxyfl", 2)])
    path = tmp_path / "run" / "config.toml"
    present = path.read_text()
    line = "normalize = false\n"
    assert present.count(line) == 1
    older = present.replace(line, "")
    # what the commit before that setting would have written
    written = short_hash(present.encode())
    for document in (tmp_path / "run").rglob("*.json"):
        text = document.read_text()
        document.write_text(text.replace(written, short_hash(older.encode())))
    path.write_text(older.replace("rounds = ", "rounds = 1"))
    with pytest.raises(RunError, match="changed after the run began"):
        resume(tmp_path / "run")
    path.write_text(older)
    first = StartsAt()
    resume(tmp_path / "run", callbacks=[first])
    assert first.rounds["proxyfl"] == 3
    assert_equal_runs(whole, tmp_path / "run")


def test_a_run_of_a_release_before_names_that_release(tmp_path: Path) -> None:
    """A folder of an earlier release says which one, not that its settings were changed."""
    shutil.copytree(BEFORE, tmp_path / "run")
    with pytest.raises(RunError, match=r"begun by release 0\.1\.0 .* proxyfl report"):
        resume(tmp_path / "run")


def test_another_release_is_refused(tmp_path: Path) -> None:
    """A run begun with another version says which to install."""
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "run", callbacks=[StopAt("alone", 0)])
    about = json.loads((tmp_path / "run" / "environment.json").read_text())
    about["packages"]["torch"] = "1.0"
    (tmp_path / "run" / "environment.json").write_text(json.dumps(about))
    with pytest.raises(RunError, match=r"begun with torch 1\.0"):
        resume(tmp_path / "run")


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    """A run that is at work is locked."""
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "run", callbacks=[StopAt("alone", 0)])
    with folder.locked(tmp_path / "run"), pytest.raises(RunError, match="Another process"):
        resume(tmp_path / "run")


def test_a_worker_that_dies_is_named(whole: Path, tmp_path: Path) -> None:
    """A killed worker ends the run with its clients' names; the run resumes to the same end."""

    class Kill(Callback):
        def round_ended(self, name: str, round: int, rows: Sequence[Row]) -> None:
            if (name, round) == ("fedavg", 1):
                victim = _child("worker 1")
                victim.kill()
                assert wait([victim.sentinel], PATIENCE)  # dead before anybody asks

    with pytest.raises(
        WorkerDied,
        match=r"worker 1, which runs client-1, client-3, was killed by SIGKILL in fedavg",
    ):
        run(small(), out=tmp_path / "run", callbacks=[Kill()], workers=2)
    resume(tmp_path / "run")
    assert_equal_runs(whole, tmp_path / "run")


def _child(name: str) -> BaseProcess:
    (found,) = [process for process in multiprocessing.active_children() if process.name == name]
    return found


def test_a_worker_that_fails_is_heard_while_others_wait_for_it(tmp_path: Path) -> None:
    """An error in one worker ends the run with that error, not with another worker's time-out."""
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "run", callbacks=[StopAt("proxyfl", 1)])
    (tmp_path / "run" / "ledger" / "proxyfl" / "001.jsonl").write_text("spoilt\n")
    started = time.monotonic()
    with pytest.raises(PrivacyError, match=r"Line 1 of the ledger .*001\.jsonl is damaged"):
        resume(tmp_path / "run", workers=2)
    assert time.monotonic() - started < PATIENCE


class Obstruct(Callback):
    """Keeps the workers from writing once `alone` has begun; `proxyfl` begins after it."""

    def __init__(self, obstruct: Callable[[], object]) -> None:
        self.obstruct = obstruct

    def round_ended(self, name: str, round: int, rows: Sequence[Row]) -> None:
        if (name, round) == ("alone", 0):
            self.obstruct()


def _fail_and_stay(line: Connection, error: Exception) -> None:
    line.send(error)
    line.recv()  # until the main process lets go


@pytest.mark.parametrize(
    ("reported", "raised", "text"),
    [
        (RunError("Cannot write x: full."), RunError, r"^Cannot write x: full\.$"),
        (RuntimeError("OSError: full"), WorkerDied, r"worker 0, which runs a, b, failed in r: OSE"),
    ],
)
def test_a_failure_is_told_before_its_process_has_ended(
    reported: Exception, raised: type[Exception], text: str
) -> None:
    """A worker's error arrives while its process still runs: it is that error which is raised."""
    context = multiprocessing.get_context("forkserver")
    line, other_end = context.Pipe()
    process = context.Process(target=_fail_and_stay, args=(other_end, reported), name="worker 0")
    process.start()
    other_end.close()
    try:
        worker = engines._Worker(process, line, "a, b")
        with pytest.raises(raised, match=text):
            engines._next(worker, [worker], "r")
    finally:
        line.close()
        process.kill()
        process.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_workers_on_a_full_disk_say_so(tmp_path: Path) -> None:
    """A real disk of 32 MB that becomes full: the run names the file and says what to do."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not mount a tmpfs")
    try:
        with pytest.raises(RunError, match=r"Cannot write .*No space left on device.*Make room"):
            run(
                small(methods=("alone", "proxyfl")),
                out=disk / "run",
                workers=2,
                callbacks=[Obstruct(lambda: _fill(disk / "ballast"))],
            )
    finally:
        subprocess.run(["umount", disk], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_budgets_and_membership_survive_workers_and_resume(tmp_path: Path) -> None:
    """A run in which clients join, are away and leave is equal on two workers and after an
    interruption."""
    changes: dict[str, Any] = {
        "rounds": 6,
        "privacy": {"noise_multiplier": 2.0, "budget": [1.5, 1.0, 50.0, 50.0, 50.0]},
        "membership": {
            "absence": 0.2,
            "schedule": [{"client": 3, "joins": 2}, {"client": 4, "leaves": 4}],
        },
    }
    result = run(small(**changes), out=tmp_path / "one")
    run(small(**changes), out=tmp_path / "two", workers=2)
    with pytest.raises(KeyboardInterrupt):
        run(small(**changes), out=tmp_path / "cut", callbacks=[StopAt("proxyfl", 4)])
    resume(tmp_path / "cut")
    assert_equal_runs(tmp_path / "one", tmp_path / "two")
    assert_equal_runs(tmp_path / "one", tmp_path / "cut")
    left = result.departures("proxyfl")
    assert left.keys() == {0, 1, 4}
    assert "budget spent" in str(left[0])
    for row in result.finals("proxyfl"):
        assert row["epsilon_pld"] <= [1.5, 1.0, 50.0, 50.0, 50.0][row["client"]]


def _kill_at_random(path: Path, config: Path, kills: int, seed: int) -> int:
    """Run in a real process, kill it at random instants, resume, until it ends; how often it was
    killed."""
    chance, killed = random.Random(seed), 0
    command = [sys.executable, "-m", "proxyfl.cli.main"]
    while True:
        begun = (path / "config.toml").exists()
        arguments = ["resume", str(path)] if begun else ["run", str(config), "--out", str(path)]
        process = subprocess.Popen(
            [*command, *arguments, "--workers", str(chance.choice([1, 2]))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if killed < kills:
            _wait_until_at_work(process, path)
            time.sleep(chance.uniform(0, 0.5))
        if killed < kills and process.poll() is None:
            process.kill()
            killed += 1
            process.communicate()
            continue
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        return killed


def _wait_until_at_work(process: subprocess.Popen[str], path: Path) -> None:
    """Importing torch takes seconds in which nothing can go wrong: wait for the first thing that it
    writes."""
    watched = (path / ".lock", path / "metrics.jsonl")
    before = [p.stat().st_mtime_ns if p.exists() else 0 for p in watched]
    while process.poll() is None and before == [
        p.stat().st_mtime_ns if p.exists() else 0 for p in watched
    ]:
        time.sleep(0.01)


@pytest.mark.parametrize(("kills", "seed"), [(2, 0), pytest.param(60, 1, marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)
def test_kill_9_at_any_instant(kills: int, seed: int, tmp_path: Path) -> None:
    """A process killed at random instants, again and again, is resumed to an end equal to an
    undisturbed run's."""
    config = small(rounds=40 if kills > 10 else 12)
    (tmp_path / "config.toml").write_text(to_toml(config))
    run(config, out=tmp_path / "whole")
    killed, attempt = 0, 0
    while killed < kills:
        path = tmp_path / f"run-{attempt}"
        killed += _kill_at_random(path, tmp_path / "config.toml", kills - killed, seed + attempt)
        assert_equal_runs(tmp_path / "whole", path)
        attempt += 1
    print(f"killed {killed} times over {attempt} runs, all resumed equal")
    assert rows(tmp_path / "whole")
