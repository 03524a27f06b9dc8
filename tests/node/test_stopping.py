"""Stops: by a signal, on request, by a failure; what each leaves behind, and its exit code."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from proxyfl.cli import signals
from proxyfl.cli.main import main
from proxyfl.errors import TransportError
from proxyfl.node import assembly, exits, participation, supervisor
from proxyfl.node.exchange import auditlog
from proxyfl.node.exchange import store as stores
from proxyfl.node.exchange.reasons import Reasons
from proxyfl.node.exchange.store import LEAVE_FILE, STOP_FILE
from proxyfl.node.members import site as sites
from proxyfl.node.observe import status
from proxyfl.privacy.ledger import Ledger
from tests.waiting import PATIENCE, wait_until

from .federations import (
    SEED,
    Running,
    change,
    forked,
    predicted,
    quick,
    running,
    total_weight,
    trial,
)
from .test_courier import courier_of
from .test_courier import made as corners
from .test_node import final_proxy
from .test_presence import charges, events, waits

PROMISED_SECONDS = 5.0
DOCKER_SECONDS = 10.0
"""`docker stop` kills what has not ended by then; a busy machine may take so long."""

ROOT = Path(__file__).parents[2]


def with_steps(place: Path, steps: int) -> None:
    """Give a site rounds of so many steps."""
    change(
        place, lambda site: replace(site, learning=replace(site.learning, steps_per_round=steps))
    )


def test_sigterm_in_the_middle_of_training_ends_the_process_in_time(tmp_path: Path) -> None:
    """A round of a million steps: the process ends before Docker would kill it, by its own exit
    code. The round is charged and nothing of it is released or kept."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick(patience=PATIENCE))
    north = layout.sites[0]
    with_steps(north, 10**6)
    change(north, lambda site: assembly.with_budget(site, None))
    with running(layout, only=["south"]) as made:
        process = forked(north, "--simulated-seed", str(SEED))
        try:
            wait_until(lambda: charges(north) == 1)
            time.sleep(0.5)  # some of its steps
            os.kill(process.pid or 0, signal.SIGTERM)
            asked = time.monotonic()
            process.join(PATIENCE)
            assert time.monotonic() - asked < DOCKER_SECONDS
        finally:
            process.kill()
            process.join()
        assert process.exitcode == 10
        made.nodes["south"].stopping.set()
        made.join()
    assert "SIGTERM: stops now" in (north / "node.log").read_text()
    assert charges(north) == 1
    assert events(north, "released") == []
    assert not (north / "state").exists()
    assert total_weight(layout) == 2


def test_a_round_that_a_stop_interrupts_is_trained_again_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In test mode, where noise repeats, the proxies are those of an undisturbed run, bit for bit:
    nothing of the interrupted training stays in any model."""
    monkeypatch.setattr(supervisor, "TRAINING_SECONDS", 0.0)
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick(patience=PATIENCE))
    north = layout.sites[0]
    for place in layout.sites:
        with_steps(place, 40)
    interrupted = 0
    with running(layout, only=["south"]) as made:
        for round in (1, 2):
            made.start(north)
            node = made.nodes["north"]
            wait_until(lambda round=round: charges(north) >= round, every=0.001)
            node.stopping.set()
            made.join(["north"])
            assert made.ended["north"] is exits.End.STOPPED
            interrupted += len(events(north, "released")) < charges(north)
        made.start(north)
        made.join()
    assert interrupted
    expected = predicted(tmp_path)
    for place, outcome in zip(layout.sites, expected, strict=True):
        assert torch.equal(final_proxy(place), outcome.proxy), place.name
    assert total_weight(layout) == 2


def test_an_interrupted_round_with_real_noise_is_charged_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its noise is new when it is trained again, so both are on the ledger: what the ledger says
    is at least what was spent."""
    monkeypatch.setattr(supervisor, "TRAINING_SECONDS", 0.0)
    layout = trial.lay_out(
        tmp_path, sites=2, rounds=1, template=quick(patience=PATIENCE, least_peers=0)
    )
    north = layout.sites[0]
    with_steps(north, 10**4)
    change(north, lambda site: assembly.with_budget(site, None))
    made = Running()
    made.start(north, seed=None)
    wait_until(lambda: charges(north) == 1, every=0.001)
    made.nodes["north"].stopping.set()
    made.join()
    assert made.ended == {"north": exits.End.STOPPED}
    assert events(north, "released") == []
    with_steps(north, 2)
    change(north, lambda site: replace(site, network=replace(site.network, patience=0.1)))
    made.start(north, seed=None)
    made.join()
    ledger = Ledger.read(north / assembly.LEDGER_FILE)
    assert not ledger.simulated
    assert [(charge.round, charge.steps) for charge in ledger.charges] == [(0, 10**4), (0, 2)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 10), (signal.SIGINT, 130)])
def test_a_signal_ends_a_site_that_waits(tmp_path: Path, number: int, code: int) -> None:
    """Nobody is there, and it would wait for ever: it ends at once, by a code for each signal."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick(patience=PATIENCE))
    north = layout.sites[0]
    process = forked(north)
    try:
        wait_until(lambda: waits(north))
        os.kill(process.pid or 0, number)
        asked = time.monotonic()
        process.join(PATIENCE)
        assert time.monotonic() - asked < DOCKER_SECONDS
    finally:
        process.kill()
        process.join()
    assert process.exitcode == code
    assert events(north, "stopped")
    assert charges(north) == 0


STUCK = """
import hashlib, sys, threading
from proxyfl.cli import signals
signals.LAST_SECONDS = float(sys.argv[1])
stopping = threading.Event()
with signals.StopSignals(stopping, lambda line: print(line, flush=True)):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes of C code
"""


@pytest.mark.parametrize(
    ("last", "sent", "code"),
    [
        (0.2, [signal.SIGTERM], 10),
        (0.2, [signal.SIGINT], 130),
        (3600.0, [signal.SIGTERM, signal.SIGTERM], 10),
        (3600.0, [signal.SIGINT, signal.SIGINT], 130),
    ],
)
def test_a_site_that_hangs_ends_after_a_while_or_at_the_second_signal(
    last: float, sent: list[int], code: int
) -> None:
    """The main thread is in C code and sees no signal: the process ends all the same."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(last)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(sent[0])
        assert "stops now; once more to end at once" in process.stdout.readline()
        for number in sent[1:]:
            process.send_signal(number)
        assert process.wait(PATIENCE) == code
    finally:
        process.kill()
        process.wait()


def test_all_that_a_signal_waits_for_is_within_what_is_promised() -> None:
    """Training, farewell and last shares together, and the end of what hangs: 5 seconds."""
    usual = supervisor.TRAINING_SECONDS + 2 * participation.HURRIED_SECONDS
    assert usual < signals.LAST_SECONDS < PROMISED_SECONDS


def test_stopping_a_site_that_does_not_run_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`node stop` says so and leaves nothing behind; the next run runs to its end."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick(patience=PATIENCE))
    before = sorted(layout.sites[0].iterdir())
    assert main(["node", "stop", str(layout.sites[0])]) == 0
    assert "north is not running. Nothing was stopped" in capsys.readouterr().out
    assert sorted(layout.sites[0].iterdir()) == before
    # what an earlier release, or a run that was killed, may have left
    (layout.sites[0] / STOP_FILE).write_text("")
    (layout.sites[1] / STOP_FILE).write_text("another run")
    with running(layout) as made:
        made.join()
    assert set(made.ended.values()) == {exits.End.FINISHED}


def test_a_site_that_waits_is_stopped_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`node stop` is seen also by a round that waits for shares, however long its patience."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=99, template=quick(patience=4 * PATIENCE))
    north, south = layout.sites
    process = forked(south, "--simulated-seed", str(SEED))
    with running(layout, only=["north"]) as made:
        try:
            wait_until(lambda: len(status.rows(north)) >= 1)
        finally:
            process.kill()
            process.join()
        wait_until(lambda: waits(north, "shares") or waits(north))
        assert main(["node", "stop", str(north)]) == 0
        assert "north stops" in capsys.readouterr().out
        made.join()
    assert made.ended == {"north": exits.End.STOPPED}
    assert not (north / STOP_FILE).exists()
    assert total_weight(layout) == 2


def test_leaving_while_the_site_does_not_run_is_done_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`node leave` says that it starts the site for that; where nobody takes the mass, it stays."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=9, template=quick(patience=0.2))
    assert main(["node", "leave", str(layout.sites[0])]) == 0
    out = capsys.readouterr().out
    assert "is not running. It starts now" in out
    assert "keeps a weight of 1" in out
    assert charges(layout.sites[0]) == 0


def test_leaving_prints_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json stdout has one document, and the lines of the site that was started go to
    stderr."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=9, template=quick(patience=0.2))
    assert main(["node", "leave", str(layout.sites[0]), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"site": "north", "was_running": False, "left": True}
    assert "keeps a weight of 1" in printed.err


def test_a_request_to_leave_that_cannot_be_met_does_not_wait_for_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A site that cannot start, that a peer has stopped, or that has finished has not left, and its
    next run does not leave for good either."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=1, template=quick(patience=PATIENCE))
    north, south = layout.sites
    aside = tmp_path / "manifests"
    (north / "manifests").rename(aside)
    assert main(["node", "leave", str(north)]) == 2
    assert "it has not left. Its next run does not leave either." in capsys.readouterr().out
    assert not (north / LEAVE_FILE).exists()
    aside.rename(north / "manifests")
    store = stores.Store(south / stores.FILE)
    Reasons(store).put("verdict", "old-backup", "x", peer="north")
    assert main(["node", "leave", str(south)]) == 13
    assert not (south / LEAVE_FILE).exists()
    Reasons(store).clear("verdict")
    store.close()
    made = Running()
    for place in layout.sites:
        made.start(place, seed=None)
    made.join()
    assert set(made.ended.values()) == {exits.End.FINISHED}
    assert main(["node", "leave", str(north)]) == 0
    assert not (north / LEAVE_FILE).exists()


def test_a_sender_that_fails_ends_the_site_with_its_reason(tmp_path: Path) -> None:
    """Whatever is raised in the sender's thread, also what nobody has thought of: the site does
    not go on in silence, though its patience is long."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=99, template=quick(patience=4 * PATIENCE))
    with running(layout, hold=1) as made:
        wait_until(lambda: len(status.rows(layout.sites[0])) == 1)

        def fail() -> float:
            raise KeyError("a defect")

        courier = made.nodes["north"].courier
        courier._look_around = fail  # type: ignore[method-assign]  # the defect
        made.go.set()
        made.join(["north"])
    error = made.ended["north"]
    assert isinstance(error, TransportError)
    assert re.search(r"can send no more \(KeyError\): 'a defect'", str(error))


def test_a_visit_that_fails_is_on_record_and_repeated(tmp_path: Path) -> None:
    """An exception of any kind in a visit: logged with its type, and the peer is visited again."""
    here, there = corners(tmp_path, 2)
    visits: list[int] = []

    def carry(*_: object) -> bytes:
        visits.append(1)
        raise ZeroDivisionError("a defect")

    courier = courier_of(here, carry)
    courier.start()
    try:
        wait_until(lambda: len(visits) >= 3)
        wait_until(lambda: "ZeroDivisionError: a defect" in courier.problem("site-1").text)
    finally:
        courier.stop()
    entries = auditlog.read(here.folder / "audit.jsonl")
    assert entries[0]["reason"] == "ZeroDivisionError: a defect"
    assert here.service.failure is None
    assert there.log.counts["connected"] == 0


def test_a_log_that_cannot_be_written_ends_the_site(tmp_path: Path) -> None:
    """A visit cannot even put its failure on record: the site must not go on as if nothing was."""
    here, _ = corners(tmp_path, 2)

    def carry(*_: object) -> bytes:
        raise ZeroDivisionError("a defect")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    here.log.add = refuse  # type: ignore[method-assign]  # a full disk
    courier = courier_of(here, carry)
    courier.start()
    try:
        wait_until(lambda: here.service.failure is not None)
        with pytest.raises(TransportError, match="No space left"):
            here.service.check_behind()
    finally:
        courier.stop()


def test_a_backup_tool_that_locks_the_store_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site says so and goes on when the lock is gone; nothing is lost."""
    monkeypatch.setattr(stores, "_ATTEMPT_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "LOCK_NOTICE_SECONDS", 0.2)
    layout = trial.lay_out(tmp_path, sites=2, rounds=6, template=quick(patience=PATIENCE))
    north = layout.sites[0]
    with running(layout, hold=2) as made:
        wait_until(lambda: len(status.rows(north)) == 2)
        tool = sqlite3.connect(north / stores.FILE, isolation_level=None, timeout=60)
        tool.execute("begin immediate")
        made.go.set()
        wait_until(lambda: any("has locked the store" in line for line in made.said["north"]))
        tool.execute("rollback")
        tool.close()
        made.join()
    assert set(made.ended.values()) == {exits.End.FINISHED}
    assert [row["heard"] for row in status.rows(north)] == [1] * 6
    assert "store-locked" in [entry["code"] for entry in events(north, "waiting")]
    assert total_weight(layout) == 2


def test_a_locked_store_does_not_keep_a_site_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to stop ends the wait for the lock, at the start and later."""
    monkeypatch.setattr(stores, "_ATTEMPT_SECONDS", 0.05)
    layout = trial.lay_out(tmp_path, sites=2, rounds=6, template=quick(patience=PATIENCE))
    north = layout.sites[0]
    stores.Store(north / stores.FILE).close()
    tool = sqlite3.connect(north / stores.FILE, isolation_level=None)
    tool.execute("begin immediate")
    stopping = threading.Event()
    stopping.set()
    settings, folder = sites.read(north)
    with pytest.raises(exits.StopRequested):
        supervisor.Node(settings, folder, seed=SEED, stopping=stopping)
    assert not stores.is_running(north)
    tool.close()


def test_every_exit_code_has_one_home() -> None:
    """The help, docs/reference/exit-codes.md and the systemd unit say what ``exits`` says."""
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.*?) \|", page, re.MULTILINE))
    assert {int(code) for code in rows} == set(exits.MEANINGS)
    for end in exits.End:
        assert exits.exit_code(end) in exits.MEANINGS
    unit = (ROOT / "deploy" / "proxyfl-node.service").read_text()
    good = re.search(r"^SuccessExitStatus=(.*)$", unit, re.MULTILINE)
    final = re.search(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert good
    assert final
    ends = {exits.exit_code(end) for end in exits.End} - {0}
    assert set(map(int, good[1].split())) == ends | {exits.INTERRUPTED}
    assert set(map(int, final[1].split())) == ends | {exits.STOPPED_BY_PEER}
