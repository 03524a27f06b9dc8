"""Sweeps: what a file means, what it is refused for, and how its runs are carried out, stopped and
taken up again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proxyfl.errors import ConfigError, RunError
from proxyfl.records import folder
from proxyfl.simulation import config
from proxyfl.sweeps import pool as processes
from proxyfl.sweeps.file import Point, only, plan, state
from proxyfl.sweeps.pool import Status, execute
from tests.waiting import PATIENCE

STANDIN = (sys.executable, "-S", str(Path(__file__).with_name("standin.py")))
TWO_BY_TWO = """
[set]
rounds = 2
[grid]
methods = ["alone", "proxyfl"]
seed = [0, 1]
"""


def planned(tmp_path: Path, text: str) -> list[Point]:
    (tmp_path / "sweep.toml").write_text(text)
    return plan(tmp_path / "sweep.toml", tmp_path / "out")


def begin(run: Point) -> None:
    """Leave a run's folder as a process does that was stopped early."""
    run.folder.mkdir(parents=True)
    (run.folder / "config.toml").write_text(config.to_toml(run.config))
    (run.folder / "metrics.jsonl").touch()


def attempts(run: Point) -> list[str]:
    return (run.folder / "attempts").read_text().splitlines()


def test_every_combination_once(tmp_path: Path) -> None:
    """A grid is the product of its lists; names say what varies, and folders are called by them."""
    runs = planned(tmp_path, TWO_BY_TWO)
    assert [run.name for run in runs] == [
        "alone,seed=0",
        "alone,seed=1",
        "proxyfl,seed=0",
        "proxyfl,seed=1",
    ]
    assert [(run.config.methods, run.config.seed, run.config.rounds) for run in runs[1:3]] == [
        (("alone",), 1, 2),
        (("proxyfl",), 0, 2),
    ]
    assert runs[0].folder == tmp_path / "out" / "alone,seed=0"
    assert runs[2].settings == {"methods": "proxyfl", "seed": 0}


def test_nothing_is_written_by_planning(tmp_path: Path) -> None:
    """A plan leaves no trace."""
    planned(tmp_path, TWO_BY_TWO)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sweep.toml"]


def test_base_lies_beside_the_sweep(tmp_path: Path) -> None:
    """The base is found beside the sweep's file, and what the sweep does not mention is the
    base's."""
    (tmp_path / "base.toml").write_text(
        'rounds = 7\n[learning]\nalpha = 0.25\n[exchange]\nself_weight = "none"\n'
    )
    runs = planned(tmp_path, 'base = "base.toml"\n[set]\nlearning.beta = 0.1\n[grid]\nseed = [4]\n')
    assert runs[0].config == config.load(tmp_path / "base.toml", ["learning.beta=0.1", "seed=4"])


def test_three_ways_to_write_a_key(tmp_path: Path) -> None:
    """Quoted, dotted and as tables, a setting is the same setting."""
    texts = (
        '[grid]\n"learning.beta" = [0.0, 0.5]\n',
        "[grid]\nlearning.beta = [0.0, 0.5]\n",
        "[grid.learning]\nbeta = [0.0, 0.5]\n",
    )
    found = [planned(tmp_path, text) for text in texts]
    assert found[0] == found[1] == found[2]
    assert [run.config.learning.beta for run in found[0]] == [0.0, 0.5]


def test_variants_vary_together(tmp_path: Path) -> None:
    """A variant's settings go together under its name, and combine with the grid."""
    runs = planned(
        tmp_path,
        '[grid]\nseed = [0, 1]\n[[variant]]\nname = "honest"\nlearning.beta = '
        "0.0\nmodels.residual = true\n"
        '[[variant]]\nname = "the paper\'s"\nlearning.beta = 0.5\nmodels.residual = false\n',
    )
    assert [run.name for run in runs] == [
        "honest,seed=0",
        "honest,seed=1",
        "the-paper-s,seed=0",
        "the-paper-s,seed=1",
    ]
    assert [(r.config.learning.beta, r.config.models.residual) for r in runs[1:3]] == [
        (0.0, True),
        (0.5, False),
    ]


def test_names_tell_settings_of_one_kind_apart(tmp_path: Path) -> None:
    """Where the last part of two keys is the same, the whole key stands in the name."""
    runs = planned(
        tmp_path,
        "[grid]\nprivate_optimizer.learning_rate = [0.1]\nproxy_optimizer.learning_rate = [0.2, "
        "0.3]\n",
    )
    assert runs[0].name == "private_optimizer.learning_rate=0.1,proxy_optimizer.learning_rate=0.2"


def test_names_are_short_and_differ(tmp_path: Path) -> None:
    """A name that is too long is cut, and names that would read the same are told apart."""
    sources = ["a/b", "a b", "x" * 300 + "1", "x" * 300 + "2"]
    names = [run.name for run in planned(tmp_path, f"[grid]\ndata.source = {sources}\n")]
    assert len(set(names)) == 4
    assert max(map(len, names)) <= 120
    assert all("/" not in name for name in names)


BAD: list[tuple[str, str]] = [
    (
        "[grid]\nlearning.betta = [0.1]\n",
        r"sweep.toml: Unknown setting 'learning.betta'. Did you mean 'learning.beta'",
    ),
    (
        "[grid]\nlearning.beta = [0.1, 1.5]\n",
        r"In the run beta=1.5: Expected 0 <= learning.beta <= 1, got .*1.5",
    ),
    (
        "[grid]\nseed = []\n",
        r"Expected a list of one or more values for 'seed' in \[grid\], got \[\]",
    ),
    ("[grid]\nseed = 3\n", r"Expected a list .* got 3. A value for all runs goes below \[set\]"),
    (
        '[grid]\nmethods = ["alone", "fedprox"]\n',
        r"In the run fedprox: Unknown method 'fedprox'. Known: alone",
    ),
    (
        '[grid]\nseed = [0, "one"]\n',
        r"In the run seed=one: Expected a whole number for seed, got 'one'",
    ),
    (
        "rounds = 3\n[grid]\nseed = [0]\n",
        r"Unknown key in .*sweep.toml: 'rounds'. Known: base, set, grid, variant",
    ),
    ("[set]\nseed = 1\n[grid]\nseed = [0]\n", r"'seed' is given more than once"),
    ("[set]\nrounds = 5\n", r"Nothing varies"),
    ("[grid]\nprivacy.noise_multiplier = [1, 1.0]\n", r"are the same run"),
    ("[[variant]]\nlearning.beta = 0.1\n", r"Expected a name for each \[\[variant\]\]"),
    ('[variant]\nname = "a"\n', r"Mind the double brackets"),
    (
        '[[variant]]\nname = "a"\nseed = 0\n[[variant]]\nname = "a"\nseed = 1\n',
        r"2 variants are called 'a'",
    ),
    ("[grid]\nseed = [0\n", r"is not valid TOML"),
    ("grid = 3\n", r"expected a table for 'grid', got 3"),
    ('base = "nowhere.toml"\n[grid]\nseed = [0]\n', r"No config file .*nowhere.toml"),
    (
        f"[grid]\nseed = {list(range(200))}\nrounds = {list(range(1, 101))}\n",
        r"at most 10000 runs, got 20000",
    ),
]


@pytest.mark.parametrize(
    ("text", "message"), BAD, ids=[text.split("\n")[-2][:30] for text, _ in BAD]
)
def test_bad_sweeps_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """What cannot be run is refused before any work, with what was found and what to do."""
    with pytest.raises(ConfigError, match=message):
        planned(tmp_path, text)
    assert not (tmp_path / "out").exists()


def test_other_settings_in_the_folder_are_refused(tmp_path: Path) -> None:
    """A run made with other settings is not taken for this sweep's, and the difference is named."""
    run = planned(tmp_path, "[set]\nrounds = 5\n[grid]\nseed = [0]\n")[0]
    begin(run)
    assert planned(tmp_path, "[set]\nrounds = 5\n[grid]\nseed = [0, 1]\n")[0] == run
    with pytest.raises(
        RunError, match=r"seed=0 holds a run with other settings: rounds is 5 there and 9 here"
    ):
        planned(tmp_path, "[set]\nrounds = 9\n[grid]\nseed = [0]\n")


@pytest.mark.parametrize("summary", ["", "{", "[]", '{"finished": false}', '{"finished": "yes"}'])
def test_only_finished_is_finished(tmp_path: Path, summary: str) -> None:
    """A run is finished if its summary says so; a torn or older one is resumable."""
    run = planned(tmp_path, "[grid]\nseed = [0]\n")[0]
    assert state(run.folder) == "new"
    begin(run)
    assert state(run.folder) == "resumable"
    (run.folder / "summary.json").write_text(summary)
    assert state(run.folder) == "resumable"
    (run.folder / "summary.json").write_text('{"finished": true}')
    assert state(run.folder) == "finished"


def test_runs_are_run_once_and_failures_stay_alone(tmp_path: Path) -> None:
    """All runs end, with one thread and one worker each; one that fails says why, and it alone is
    tried again."""
    runs = planned(tmp_path, "[set]\nrounds = 2\n[grid]\nseed = [0, 13, 2]\n")
    outcomes = {o.point.name: o for o in execute(runs, parallel=2, command=STANDIN, poll=0.01)}
    assert {name: o.error is None for name, o in outcomes.items()} == {
        "seed=0": True,
        "seed=13": False,
        "seed=2": True,
    }
    error = outcomes["seed=13"].error
    assert error is not None
    assert error.startswith("a line before\nno luck with seed 13\n(exit code 3; all it said: ")
    assert "no luck" in runs[1].beside(".log").read_text()
    again = execute(runs, parallel=2, command=STANDIN, poll=0.01)
    assert [o.point.name for o in again] == ["seed=13"]
    assert attempts(runs[0]) == ["run --workers 1 threads=1"]
    assert attempts(runs[1]) == ["run --workers 1 threads=1", "resume --workers 1 threads=1"]


def test_success_without_a_finished_run_is_a_failure(tmp_path: Path) -> None:
    """A process that ends with 0 but leaves no finished run has failed, and so has one that was
    killed."""
    runs = planned(tmp_path, "[grid]\nseed = [0]\n")
    nothing = execute(runs, parallel=1, command=(sys.executable, "-S", "-c", "pass"), poll=0.01)
    assert "(exit code 0" in str(nothing[0].error)
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    killed = execute(runs, parallel=1, command=(sys.executable, "-S", "-c", suicide), poll=0.01)
    assert "killed by SIGKILL" in str(killed[0].error)


def test_never_more_than_asked_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most ``parallel`` runs are at work, and as many as that while enough are waiting."""
    monkeypatch.setenv("STANDIN_PACE", "0.02")
    seen: list[Status] = []
    execute(
        planned(tmp_path, "[set]\nrounds = 3\n[grid]\nseed = [0, 1, 2, 3, 4]\n"),
        parallel=2,
        command=STANDIN,
        tell=seen.append,
        poll=0.01,
    )
    assert max(len(status.running) for status in seen) == 2
    assert all(len(status.running) == 2 for status in seen if status.waiting)
    assert [status.part_done for status in seen] == sorted(status.part_done for status in seen)
    assert (seen[-1].part_done, seen[-1].waiting, len(seen[-1].outcomes)) == (1.0, 0, 5)


def test_time_remaining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time left is guessed from the rounds done since the start, not from those of an earlier
    attempt."""
    runs = planned(tmp_path, "[set]\nrounds = 10\n[grid]\nseed = [0, 1]\n")
    begin(runs[0])
    rows: list[dict[str, Any]] = [{"method": "alone", "round": n} for n in range(5)]
    folder.append_metrics(runs[0].folder, rows)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = processes._Clock(runs)
    assert clock.status([], runs, []).seconds_left is None
    now = 110.0
    folder.append_metrics(runs[0].folder, [{"method": "alone", "round": n} for n in range(5, 10)])
    with (runs[0].folder / "metrics.jsonl").open("a") as torn:
        torn.write('{"method": "alo')
    status = clock.status([], runs, [])
    assert status.running == {"seed=0": 10 / 30, "seed=1": 0.0}
    assert status.seconds_left == pytest.approx(10 / 5 * 50)


def test_interrupted_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt stops the processes; the next time finished runs are skipped, begun ones
    resumed, others run."""
    runs = planned(
        tmp_path, '[set]\nrounds = 2\nmethods = ["alone"]\n[grid]\nseed = [0, 1, 2, 3]\n'
    )
    assert len(execute(runs[:1], parallel=1, command=STANDIN, poll=0.01)) == 1
    monkeypatch.setenv("STANDIN_PACE", "1000")
    monkeypatch.setattr(processes, "_GRACE", PATIENCE)

    def tell(status: Status) -> None:
        if all((run.folder / "attempts").exists() for run in runs[1:3]):
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        execute(runs, parallel=2, command=STANDIN, tell=tell, poll=0.01)
    assert time.monotonic() - began < PATIENCE
    assert [state(run.folder) for run in runs] == ["finished", "resumable", "resumable", "new"]
    assert "interrupted" in runs[1].beside(".log").read_text()
    monkeypatch.setenv("STANDIN_PACE", "0")
    assert [o.error for o in execute(runs, parallel=2, command=STANDIN, poll=0.01)] == [
        None,
        None,
        None,
    ]
    assert [len(attempts(run)) for run in runs] == [1, 2, 2, 1]
    assert attempts(runs[1])[1].startswith("resume ")


def rounds_done(run: Point) -> int:
    return len((run.folder / "metrics.jsonl").read_text().splitlines())


def test_as_far_as_asked_and_later_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs stop once they have done the rounds asked for, and not before; asked for as many again
    they are left alone; without a limit they are continued to the end."""
    runs = planned(tmp_path, '[set]\nrounds = 6\nmethods = ["alone"]\n[grid]\nseed = [0, 1]\n')
    monkeypatch.setenv("STANDIN_WAITS", "3")
    seen: list[Status] = []
    outcomes = execute(runs, parallel=2, until=3, command=STANDIN, tell=seen.append, poll=0.01)
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert [rounds_done(run) for run in runs] == [3, 3]
    assert [state(run.folder) for run in runs] == ["resumable", "resumable"]
    assert seen[-1].part_done == 1.0
    assert execute(runs, parallel=2, until=3, command=STANDIN, poll=0.01) == []
    monkeypatch.delenv("STANDIN_WAITS")
    outcomes = execute(runs, parallel=2, command=STANDIN, poll=0.01)
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert [state(run.folder) for run in runs] == ["finished", "finished"]
    assert attempts(runs[0])[1].startswith("resume ")


@pytest.mark.parametrize("until", [6, 7])
def test_no_run_is_stopped_at_its_own_end(until: int, tmp_path: Path) -> None:
    runs = planned(tmp_path, '[set]\nrounds = 6\nmethods = ["alone"]\n[grid]\nseed = [0]\n')
    (outcome,) = execute(runs, parallel=1, until=until, command=STANDIN, poll=0.01)
    assert outcome.error is None
    assert state(runs[0].folder) == "finished"


def test_a_failure_before_the_round_asked_for_is_one(tmp_path: Path) -> None:
    runs = planned(tmp_path, '[set]\nrounds = 6\nmethods = ["alone"]\n[grid]\nseed = [13]\n')
    (outcome,) = execute(runs, parallel=1, until=3, command=STANDIN, poll=0.01)
    assert "no luck with seed 13" in str(outcome.error)


@pytest.mark.parametrize(
    ("text", "until", "message"),
    [
        (TWO_BY_TWO, 0, "--until >= 1"),
        (TWO_BY_TWO.replace('"alone", ', '["alone", "joint"], '), 1, "in .grid."),
    ],
)
def test_rounds_that_cannot_be_asked_for(
    text: str, until: int, message: str, tmp_path: Path
) -> None:
    """A limit below one, and a limit for runs of several methods one after the other, are refused
    before anything is written."""
    runs = planned(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        execute(runs, parallel=1, until=until, command=STANDIN)
    assert not (tmp_path / "out").exists()


def test_some_of_the_runs(tmp_path: Path) -> None:
    """One value, several of one setting, several settings at once."""
    runs = planned(tmp_path, TWO_BY_TWO)
    assert only(runs, []) == runs
    assert [run.name for run in only(runs, ["seed=1"])] == ["alone,seed=1", "proxyfl,seed=1"]
    assert only(runs, ["seed=0,1"]) == runs
    (one,) = only(runs, ["seed=0", "methods=proxyfl"])
    assert one.name == "proxyfl,seed=0"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["sed=0"], "Unknown key of --only 'sed'. Did you mean 'seed'"),
        (["seed=2"], "Unknown value of seed '2'. Known: 0, 1."),
        (["seed"], "Unknown value of seed ''. Known: 0, 1."),
        (["seed=0,7"], "Unknown value of seed '7'"),
        (["seed=0", "seed=1"], "No run has seed=0 and seed=1."),
    ],
)
def test_runs_that_are_not_there(wanted: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        only(planned(tmp_path, TWO_BY_TWO), wanted)
    assert message in str(caught.value)


def test_a_stubborn_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does not heed the request to stop is ended by force after a while."""
    monkeypatch.setenv("STANDIN_PACE", "1000")
    monkeypatch.setenv("STANDIN_STUBBORN", "1")
    monkeypatch.setattr(processes, "_GRACE", 0.2)
    runs = planned(tmp_path, "[grid]\nseed = [0]\n")
    children: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def remember(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        children.append(real(*args, **kwargs))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", remember)

    def tell(status: Status) -> None:
        if (runs[0].folder / "attempts").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(runs, parallel=1, command=STANDIN, tell=tell, poll=0.01)
    assert [child.returncode for child in children] == [-signal.SIGKILL]


def test_one_sweep_at_a_time_in_a_folder(tmp_path: Path) -> None:
    """A second sweep in the same folder is refused while the first is at work, and welcome
    after."""
    runs = planned(tmp_path, "[grid]\nseed = [0]\n")
    with processes._alone_in(folder.subfolder(tmp_path / "out")):
        with pytest.raises(RunError, match="Another sweep"):
            execute(runs, parallel=1, command=STANDIN, poll=0.01)
        assert not runs[0].folder.exists()
    assert len(execute(runs, parallel=1, command=STANDIN, poll=0.01)) == 1


def test_an_orphan_keeps_its_folder(tmp_path: Path) -> None:
    """While a process that a killed sweep left behind lives, its folder is not taken from it."""
    out = folder.subfolder(tmp_path / "out")
    with processes._alone_in(out) as lock:
        orphan = subprocess.Popen(
            [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,)
        )
    try:
        with pytest.raises(RunError, match="left behind"), processes._alone_in(out):
            pass
    finally:
        orphan.communicate(b"\n")
    with processes._alone_in(out) as lock:
        assert os.fstat(lock)


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    """A sweep folder that cannot be made is an error that names it."""
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RunError, match=r"Cannot write .*out"):
        execute(planned(tmp_path, "[grid]\nseed = [0]\n"), parallel=1, command=STANDIN)


def test_a_finished_sweep_needs_nothing(tmp_path: Path) -> None:
    """Where all is done no process is started and nothing is written."""
    runs = planned(tmp_path, "[grid]\nseed = [0]\n")
    execute(runs, parallel=1, command=STANDIN, poll=0.01)
    assert execute(runs, parallel=1, command=("no-such-program",)) == []


TINY = """
[set]
rounds = 2
partition.clients = 2
partition.examples = 100
[grid]
methods = ["alone", "proxyfl"]
seed = [0, 1]
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A signal between the start of a process and its entry in the list leaves no process
    behind."""
    monkeypatch.setenv("STANDIN_PACE", "1000")
    started = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(planned(tmp_path, TWO_BY_TWO), parallel=2, command=STANDIN)
    finally:
        signal.signal(number, before)
        left = [process for process in started if process.poll() is None]
        for process in left:
            process.kill()
    assert len(started) == 1
    assert not left


@pytest.mark.slow
def test_a_real_sweep_interrupted_and_continued(tmp_path: Path) -> None:
    """Two methods and two seeds, for real: stopped in the middle and continued, every run ends
    finished and whole."""
    runs = planned(tmp_path, TINY)

    def tell(status: Status) -> None:
        if status.outcomes and status.running:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(runs, parallel=2, tell=tell)
    states = [state(run.folder) for run in runs]
    assert "finished" in states
    assert states.count("finished") < 4
    outcomes = execute(runs, parallel=2)
    assert [o.error for o in outcomes] == [None] * (4 - states.count("finished"))
    for run in runs:
        rows = list(folder.read_metrics(run.folder))
        assert [(row["round"], row["client"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.slow
def test_a_real_sweep_in_two_parts_is_the_same(tmp_path: Path) -> None:
    """Stopped at a round and continued, for real: every row but its times is that of an
    uninterrupted run."""
    text = TINY.replace("rounds = 2", "rounds = 60\ncheckpoint_every = 2")
    text = text.replace("[0, 1]", "[0]")
    (tmp_path / "whole").mkdir()
    runs, whole = planned(tmp_path, text), planned(tmp_path / "whole", text)
    assert [o.error for o in execute(whole, parallel=2)] == [None, None]
    assert [o.error for o in execute(runs, parallel=2, until=4)] == [None, None]
    assert {state(run.folder) for run in runs} == {"resumable"}
    assert [o.error for o in execute(runs, parallel=2)] == [None, None]
    for run, other in zip(runs, whole, strict=True):
        assert untimed(run) == untimed(other)


def untimed(run: Point) -> list[dict[str, Any]]:
    rows = []
    for row in folder.read_metrics(run.folder):
        kept = {k: v for k, v in row.items() if not k.startswith("seconds_")}
        rows.append(kept)
    return rows


@pytest.mark.slow
def test_a_real_run_that_fails_and_one_that_does_not(tmp_path: Path) -> None:
    """A setting that only the data can refuse fails its own run alone, in the words of the real
    program."""
    runs = planned(
        tmp_path,
        TINY.replace("[0, 1]", "[0]").replace('["alone", "proxyfl"]', '["alone"]')
        + "learning.batch_size = [20, 5000]\n",
    )
    good, bad = sorted(execute(runs, parallel=2), key=lambda outcome: outcome.point.name)
    assert good.error is None
    assert state(good.point.folder) == "finished"
    assert "learning.batch_size=5000 is larger than the 100 examples of client 0" in str(bad.error)
    assert state(bad.point.folder) == "new"


QUICK = """
[set]
rounds = 300
[grid]
seed = [0, 1, 2]
learning.batch_size = [50, 60]
[[variant]]
name = "honest"
learning.beta = 0.0
[quick]
rounds = 2
seed = [7]
partition.clients = 4
"""


def test_the_quick_variant(tmp_path: Path) -> None:
    """A list replaces the grid's, another value is set in every run; without --quick nothing of it
    counts."""
    (tmp_path / "sweep.toml").write_text(QUICK)
    full, quick = (
        plan(tmp_path / "sweep.toml", tmp_path / "out", quick=quick) for quick in (False, True)
    )
    assert len(full) == 6
    assert {(run.config.rounds, run.config.partition.clients) for run in full} == {(300, 8)}
    assert [run.name for run in quick] == [
        "honest,seed=7,batch_size=50",
        "honest,seed=7,batch_size=60",
    ]
    assert {(run.config.rounds, run.config.partition.clients) for run in quick} == {(2, 4)}


@pytest.mark.parametrize(
    ("quick", "said"),
    [
        ("", r"no quick variant. Say below \[quick\]"),
        ("[quick]\nseed = 1\n", r"Expected a list .* for 'seed' in \[grid\]"),
        ("[quick]\nrunds = 1\n", r"Unknown setting 'runds'. Did you mean 'rounds'"),
        ("quick = 3\n", r"expected a table for 'quick', got 3"),
    ],
)
def test_a_wrong_quick_variant_is_refused(quick: str, said: str, tmp_path: Path) -> None:
    text = quick + TWO_BY_TWO if quick.startswith("quick") else TWO_BY_TWO + quick
    (tmp_path / "sweep.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        plan(tmp_path / "sweep.toml", tmp_path / "out", quick=True)
