"""The sweep command, called as the program calls it, with a stand-in for the runs' processes."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from proxyfl.cli import main
from proxyfl.cli.commands import sweep
from proxyfl.cli.main import parser
from proxyfl.errors import ConfigError
from proxyfl.sweeps import pool as processes
from proxyfl.sweeps.file import plan
from proxyfl.sweeps.pool import Outcome, Status
from tests.waiting import PATIENCE, wait_until

STANDIN = (sys.executable, "-S", str(Path(__file__).parents[1] / "sweeps" / "standin.py"))
SWEEP = (
    '[set]\nrounds = 2\nmethods = ["alone"]\n[grid]\nseed = [0, 1]\nlearning.beta = [0.0, 0.5]\n'
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sweep of two by two."""
    path = tmp_path / "study.toml"
    path.write_text(SWEEP)
    return path


def call(*line: str | Path) -> int:
    arguments = parser("sweep").parse_args(["sweep", *map(str, line)])
    assert arguments.run is sweep.execute
    return sweep.execute(arguments, command=STANDIN)


def test_dry_run_lists_and_starts_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run names every run and what there is of it, and leaves no trace."""
    assert call(file, "--out", file.parent / "out", "--dry-run", "--parallel", "3") == 0
    shown = capsys.readouterr().out
    assert "seed=1,beta=0.5" in shown
    assert "4 runs, 4 to do, 3 at a time" in shown
    assert not (file.parent / "out").exists()


def test_runs_then_skips(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first call runs all and says so line by line; the second finds all finished."""
    line = (file, "--out", file.parent / "out", "--parallel", "2")
    assert call(*line) == 0
    shown = capsys.readouterr()
    assert "4 of 4 runs are finished (0 were before), 0 failed." in shown.out
    assert shown.err.startswith("4 runs, 0 of them finished before\nstarted: seed=0,beta=0.0\n")
    assert shown.err.count("finished after") == 4
    assert "(4 of 4 done)" in shown.err
    assert call(*line) == 0
    shown = capsys.readouterr()
    assert "(4 were before)" in shown.out
    assert "started" not in shown.err


def test_the_folder_is_named_after_the_sweep(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --out the runs lie in a folder that is the same every time, so that the same line
    continues."""
    monkeypatch.chdir(file.parent)
    assert call("study.toml", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["out"] == "runs/study"


def test_json_says_how_each_run_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON document on standard output and nothing else; exit code 1 because a run failed."""
    (tmp_path / "s.toml").write_text("[set]\nrounds = 1\n[grid]\nseed = [0, 13]\n")
    assert call(tmp_path / "s.toml", "--out", tmp_path / "out", "--json") == 1
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert shown.err == ""
    assert found["failed"] == 1
    assert [
        (run["name"], run["settings"], run["before"], run["state"]) for run in found["runs"]
    ] == [("seed=0", {"seed": 0}, "new", "finished"), ("seed=13", {"seed": 13}, "new", "resumable")]
    errors = {outcome["name"]: outcome["error"] for outcome in found["outcomes"]}
    assert errors["seed=0"] is None
    assert "no luck with seed 13" in errors["seed=13"]


def test_failures_are_told_at_once_and_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed run's last words are shown when it fails; at the end it is named, with its log and
    how to try again."""
    (tmp_path / "s.toml").write_text("[set]\nrounds = 1\n[grid]\nseed = [13, 0]\n")
    assert call(tmp_path / "s.toml", "--out", tmp_path / "out", "--parallel", "1") == 1
    shown = capsys.readouterr()
    assert "FAILED after" in shown.err
    assert "    no luck with seed 13" in shown.err
    assert "1 of 2 runs are finished (0 were before), 1 failed." in shown.out
    assert f"failed: seed=13 (what it said: {tmp_path / 'out' / 'seed=13.log'})" in shown.out
    assert (
        f"To try them again: proxyfl sweep {tmp_path / 's.toml'} --out {tmp_path / 'out'}"
        in shown.out
    )


def test_as_far_as_asked(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the runs to their first round: each is named as stopped, and the last lines say how
    to compare what there is."""
    monkeypatch.setenv("STANDIN_WAITS", "1")
    out = file.parent / "out"
    line = (file, "--out", out, "--until", "1", "--only", "seed=0")
    assert call(*line, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "2 runs, 2 to do" in shown
    assert "seed=1" not in shown
    assert call(*line) == 0
    shown_then = capsys.readouterr()
    assert shown_then.err.count("stopped as asked after") == 2
    assert shown_then.out.splitlines() == [
        "0 of 2 runs are finished (0 were before), 0 failed.",
        "2 of 2 have come to round 1.",
        f"To compare: proxyfl table {out} --round 1",
    ]
    assert call(*line, "--dry-run") == 0
    assert "2 runs, 0 to do" in capsys.readouterr().out


def test_an_interrupt_says_how_to_continue_the_same(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that continues has the same limits."""

    def interrupted(*_: Any, **__: Any) -> list[Outcome]:
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "execute", interrupted)
    out = file.parent / "out"
    line = (file, "--out", out, "--until", "1", "--only", "seed=0,1")
    with pytest.raises(KeyboardInterrupt):
        call(*line)
    continued = f"proxyfl sweep {' '.join(map(str, line))}"
    assert capsys.readouterr().err.endswith(f"Stopped. To continue: {continued}\n")


@pytest.mark.parametrize("parallel", ["0", "-2"])
def test_parallel_is_checked(file: Path, parallel: str) -> None:
    """A number of runs at a time below one is refused before any work."""
    with pytest.raises(ConfigError, match="--parallel >= 1"):
        call(file, "--out", file.parent / "out", "--parallel", parallel)
    assert not (file.parent / "out").exists()


def test_the_program_understands_what_its_runs_are_told(file: Path) -> None:
    """The command lines of a sweep's processes are ones that the program takes, for new runs and
    for begun ones."""
    run = plan(file, file.parent / "out")[0]
    begun = main.parser().parse_args(processes.arguments(run))
    assert (begun.config, begun.out, begun.workers) == (run.beside(".toml"), run.folder, 1)
    run.folder.mkdir(parents=True)
    (run.folder / "config.toml").touch()
    resumed = main.parser().parse_args(processes.arguments(run))
    assert (resumed.run_folder, resumed.workers) == (run.folder, 1)
    assert begun.run is not resumed.run


def test_a_real_interrupt(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that gets Ctrl-C says how to continue, and leaves neither processes nor a lock
    behind."""
    monkeypatch.setenv("STANDIN_PACE", "1000")
    out = file.parent / "out"
    code = (
        "import sys; from proxyfl.cli.main import parser; "
        "from proxyfl.cli.commands import sweep; "
        "a = parser('sweep').parse_args(sys.argv[1:]); "
        f"sweep.execute(a, command={STANDIN!r})"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code, "sweep", str(file), "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((out / "seed=0,beta=0.0" / "attempts").exists)
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=PATIENCE)
    assert f"Stopped. To continue: proxyfl sweep {file} --out {out}" in said
    assert "interrupted" in (out / "seed=0,beta=0.0.log").read_text()
    monkeypatch.setenv("STANDIN_PACE", "0")
    assert call(file, "--out", out) == 0


def test_a_terminal_shows_bars_and_time(file: Path) -> None:
    """On a terminal the running runs are shown with the time remaining, and failures stay on the
    screen."""
    runs = plan(file, file.parent / "out")
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with sweep.Progress(4, 1, console=console) as progress:
        outcomes: list[Any] = [Outcome(runs[0], 3.0, "bad luck")]
        progress.tell(Status(outcomes, {runs[1].name: 0.25}, 1, 0.5, 7200.0))
        assert progress._live is not None
        progress._live.refresh()
    assert "2 of 4 done, about 2.0 h left" in screen.getvalue()
    assert "    bad luck" in screen.getvalue()
    assert screen.getvalue().count("started: seed=0,beta=0.5") == 1


def test_a_sweep_under_mpiexec_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every rank would run the whole sweep: the message says to start it without the launcher."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert main.main(["sweep", "any.toml"]) == 2
    assert "without mpiexec" in capsys.readouterr().err
