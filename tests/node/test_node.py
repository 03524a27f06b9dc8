"""Whole sites on loopback: they train together, survive what happens, and leave in order."""

import json
import shutil
import signal
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from proxyfl import params
from proxyfl.cli.main import main
from proxyfl.errors import ConfigError, PrivacyError, RunError
from proxyfl.node import assembly, keeping, supervisor
from proxyfl.node.exchange import auditlog
from proxyfl.node.exchange.protocol import RestoredError
from proxyfl.node.exchange.store import LEAVE_FILE, request_stop
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import roster
from proxyfl.node.members import site as sites
from proxyfl.node.members.identity import Identity
from proxyfl.node.observe import status
from proxyfl.node.supervisor import Node
from proxyfl.privacy.ledger import Ledger
from tests.waiting import PATIENCE, wait_until

from .federations import (
    SEED,
    Running,
    afford,
    change,
    forked,
    predicted,
    quick,
    running,
    total_weight,
    trial,
)


def final_proxy(place: Path) -> torch.Tensor:
    """The proxy that a finished site holds."""
    settings, folder = sites.read(place)
    with Node(settings, folder, seed=SEED) as node:
        node.books.start()
        here = node.books.position()
        keeping.restore(folder, node.client, here.learner)
        node.client.learner.adopt(node.mixer.decode_own(node.books.mass()))
        return params.flatten(node.client.learner.shared).clone()


def events(place: Path) -> list[str]:
    """What the audit log of a site says, in order."""
    return [entry["event"] for entry in auditlog.read(place / auditlog.FILE)]


def test_processes_over_tls_equal_the_in_process_engine(tmp_path: Path) -> None:
    """Four sites with different architectures, sizes and budgets, as processes with mutual TLS: in
    seeded test mode their proxies equal the in-process engine's, bit for bit."""
    layout = trial.lay_out(tmp_path, sites=4, rounds=3, template=quick(patience=PATIENCE))
    for at, place in enumerate(layout.sites):
        change(place, lambda site, at=at: assembly.with_budget(site, 2.0 + at))
        change(
            place,
            lambda site, at=at: replace(
                site, learning=replace(site.learning, batch_size=20 + 5 * at)
            ),
        )
    seeded = ("--simulated-seed", str(SEED))
    others = [forked(place, *seeded) for place in layout.sites[1:]]
    try:
        first = replace(layout, sites=layout.sites[:1])
        assert trial.run(first, *seeded, "--no-status-page") == [0]
        for process in others:
            process.join(PATIENCE)
    finally:
        for process in others:
            process.kill()
            process.join()
    assert [process.exitcode for process in others] == [0, 0, 0]
    expected = predicted(tmp_path)
    for place, outcome in zip(layout.sites, expected, strict=True):
        assert torch.equal(final_proxy(place), outcome.proxy), place.name
    assert total_weight(layout) == 4
    assert {row["private_loss"] is not None for row in status.rows(layout.sites[0])} == {True}


def test_a_dead_peer_does_not_stop_the_others(tmp_path: Path) -> None:
    """One of three never starts: the others wait once, go on without it, and say so."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=4, template=quick(patience=1.5))
    with running(layout, only=["north", "south"]) as made:
        made.join()
    assert made.ended == {"north": "finished", "south": "finished"}
    assert "continued without" in events(layout.sites[0])
    heard = [(row["heard"], row["asked"]) for row in status.rows(layout.sites[1])]
    assert (0, 1) in heard


def test_a_late_peer_is_taken_in_again(tmp_path: Path) -> None:
    """A site that comes when the others are far ahead joins at their round; mass balances."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=12, template=quick(patience=1.0))
    with running(layout, only=["north", "south"], hold=5) as made:
        wait_until(lambda: len(status.rows(layout.sites[0])) == 5)
        made.start(layout.sites[2])
        wait_until(lambda: made.nodes["east"].exchange.is_admitted("north"))
        made.go.set()
        made.join()
    assert set(made.ended.values()) == {"finished"}
    assert "skipped rounds" in events(layout.sites[2])
    assert total_weight(layout) == 3
    last = status.rows(layout.sites[2])[-1]
    assert last["round"] == 11


def test_a_killed_process_goes_on_where_it_was(tmp_path: Path) -> None:
    """kill -9 at arbitrary instants, a restart each time: the proxies are the same, bit for bit."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=6, template=quick(patience=PATIENCE))
    arguments = ("--simulated-seed", str(SEED))
    steady, victim = layout.sites
    started = [forked(steady, *arguments)]
    try:
        for at_least in (1, 3):
            started.append(forked(victim, *arguments))
            wait_until(lambda n=at_least: len(status.rows(victim)) >= n, every=0.01)
            started[-1].kill()
            started[-1].join()
        started.append(forked(victim, *arguments))
        for process in started:
            process.join(PATIENCE)
    finally:
        for process in started:
            process.kill()
            process.join()
    codes = [process.exitcode for process in started]
    assert codes == [0, -signal.SIGKILL, -signal.SIGKILL, 0]
    expected = predicted(tmp_path)
    for place, outcome in zip(layout.sites, expected, strict=True):
        assert torch.equal(final_proxy(place), outcome.proxy), place.name
    assert total_weight(layout) == 2


@pytest.mark.parametrize("sites", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_many_sites_end_together(tmp_path: Path, sites: int) -> None:
    """They finish nearly at once: each tells all others before it goes, so that nobody waits for
    one that has gone. Their patience is longer than that of the test."""
    template = quick(patience=4 * PATIENCE, heartbeat=60.0)
    layout = trial.lay_out(tmp_path, sites=sites, rounds=2, template=template)
    with running(layout) as made:
        made.join()
    assert set(made.ended.values()) == {"finished"}
    for place in layout.sites:
        heard = [(row["heard"], row["asked"]) for row in status.rows(place)]
        assert heard == [(1, 1)] * 2, place.name
    assert total_weight(layout) == sites


def test_a_spent_budget_ends_a_sites_part(tmp_path: Path) -> None:
    """The site takes the steps that its budget covers, hands all of its mass on and leaves; the
    others finish, and the sum of weights is exact."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=6, template=quick(patience=20.0))
    budget = afford(layout.sites[1], steps=5)
    with running(layout) as made:
        made.join()
    assert made.ended == {"north": "finished", "south": "budget spent", "east": "finished"}
    rows = status.rows(layout.sites[1])
    assert rows[-1]["left"] == "budget spent"
    assert len(rows) == 3
    ledger = Ledger.read(layout.sites[1] / assembly.LEDGER_FILE)
    assert ledger.steps == 5
    assert ledger.epsilon().pld <= budget
    assert total_weight(layout) == 3
    found = status.of_folder(*sites.read(layout.sites[1]))
    assert (found["state"], found["weight"]) == ("left", 0.0)


def test_a_budget_is_never_raised(tmp_path: Path) -> None:
    """Whatever later settings say, the lowest budget so far holds."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=1, template=quick())
    with running(layout) as made:
        made.join()
    change(layout.sites[0], lambda site: assembly.with_budget(site, 50.0))
    settings, folder = sites.read(layout.sites[0])
    with (
        Node(settings, folder, seed=SEED) as node,
        pytest.raises(ConfigError, match="never raised"),
    ):
        node.run()


def test_leaving_and_stopping_on_request(tmp_path: Path) -> None:
    """`leave` hands the mass on; `stop` ends after the round, and the site can be started again."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=40, template=quick(patience=3.0))
    with running(layout) as made:
        wait_until(lambda: len(status.rows(layout.sites[2])) >= 2)
        (layout.sites[2] / LEAVE_FILE).touch()
        made.join(["east"])
        assert request_stop(layout.sites[0])
        made.join(["north"])
        assert made.ended["north"] == "stopped"
        made.start(layout.sites[0])
        made.join()
    assert made.ended == {"north": "finished", "south": "finished", "east": "left"}
    assert total_weight(layout) == 3


def test_two_programs_do_not_run_one_site(tmp_path: Path) -> None:
    """The second is told what to do."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=1, template=quick())
    settings, folder = sites.read(layout.sites[0])
    with Node(settings, folder, seed=SEED), pytest.raises(RunError, match="Another program runs"):
        Node(settings, folder, seed=SEED)


def test_a_site_joins_by_a_new_version(tmp_path: Path) -> None:
    """Members accept version 2 while they run; the new site takes part from its round on."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=14, template=quick(patience=5.0))
    newcomer = layout.sites[2]
    first = manifests.Manifest(
        "growing",
        rounds=14,
        input=layout.manifest.input,
        proxy=layout.manifest.proxy,
        members=layout.manifest.members[:2],
    )
    second = manifests.successor(first, add=[layout.manifest.members[2]], joins=8)
    for place in layout.sites:
        shutil.rmtree(place / roster.FOLDER)
    for place in layout.sites[:2]:
        roster.accept(place, Identity(place, place.name), first)
    with running(layout, only=["north", "south"], hold=2) as made:
        wait_until(lambda: len(status.rows(layout.sites[0])) == 2)
        for place in layout.sites[:2]:
            roster.accept(place, Identity(place, place.name), second)
        roster.accept(newcomer, Identity(newcomer, newcomer.name), second)
        made.start(newcomer)
        made.go.set()
        made.join()
    assert set(made.ended.values()) == {"finished"}
    assert status.rows(newcomer)[0]["round"] >= 8
    assert total_weight(layout) == 3
    assert "manifest" in events(layout.sites[0])


def test_rejoin_says_first_what_it_charges_for_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Peers know which rounds a lost copy has released, not with which noise: its operator does."""
    monkeypatch.setattr(supervisor, "REJOIN_SECONDS", 0.0)
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick(patience=PATIENCE))
    north = layout.sites[0]
    settings, _ = sites.read(north)
    assert main(["node", "rejoin", str(north)]) == 2
    said = " ".join(capsys.readouterr().out.split())
    noise = settings.privacy.noise_multiplier
    assert f"noise multiplier {noise:g} (site.toml)" in said
    assert f"put its settings into {north / sites.FILE}" in said
    assert said.index("noise multiplier") < said.index("asks its peers")


def test_rejoin_prints_json_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json stdout has where the site continues, and what it says on the way is on stderr."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick(patience=PATIENCE))
    answer = supervisor.Rejoined(1, charged=2, debt=0.25, silent=("south",))
    monkeypatch.setattr(supervisor.Node, "begin_again", lambda *_: answer)
    assert main(["node", "rejoin", str(layout.sites[0]), "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["round"] == 2
    assert document["charged_rounds"] == 2
    assert document["weight_owed"] == 0.25
    assert document["not_reached"] == ["south"]
    assert "asks its peers" in printed.err


def test_an_old_backup_is_refused_and_can_rejoin(tmp_path: Path) -> None:
    """A site restored from a backup stops before it sends anything; `rejoin` charges what it has
    forgotten and goes on without mass."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=8, template=quick(patience=PATIENCE))
    place = layout.sites[1]
    with running(layout, only=["north"]) as made:
        made.start(place, rounds=2)
        made.join(["south"])
        backup = tmp_path / "backup"
        shutil.copytree(place, backup)
        made.start(place, rounds=3)
        made.join(["south"])
        assert made.ended["south"] == "stopped"
        spent = Ledger.read(place / assembly.LEDGER_FILE).steps
        shutil.rmtree(place)
        shutil.copytree(backup, place)
        made.start(place)
        made.join(["south"])
        refused = made.ended["south"]
        assert isinstance(refused, RestoredError)
        settings, folder = sites.read(place)
        with Node(settings, folder, seed=SEED) as node:
            rejoined = node.begin_again()
        assert rejoined.charged >= 1
        assert rejoined.silent == ()
        assert Ledger.read(place / assembly.LEDGER_FILE).steps >= spent
        made.start(place)
        made.join()
    assert made.ended["south"] == "finished"


def test_a_ledger_that_forgot_is_refused(tmp_path: Path) -> None:
    """A ledger that lacks charges which the store has seen stops the site."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick(patience=5.0))
    with running(layout) as made:
        made.join()
    (layout.sites[0] / assembly.LEDGER_FILE).unlink()
    settings, folder = sites.read(layout.sites[0])
    with Node(settings, folder, seed=SEED) as node, pytest.raises(PrivacyError, match="lacks"):
        node.run()


def test_real_noise_is_the_default(tmp_path: Path) -> None:
    """Without a seed the ledger is real, and two runs of a site differ."""
    alone = quick(patience=0.1, least_peers=0)
    layout = trial.lay_out(tmp_path, sites=2, rounds=1, template=alone)
    made = Running()
    made.start(layout.sites[0], seed=None)
    made.join()
    assert not Ledger.read(layout.sites[0] / assembly.LEDGER_FILE).simulated


def test_the_audit_log_shows_tampering(tmp_path: Path) -> None:
    """A changed line no longer follows from the one before it."""
    log = auditlog.AuditLog(tmp_path / "audit.jsonl")
    for round in range(4):
        log.add("released", round=round)
    assert auditlog.verify(tmp_path / "audit.jsonl") is None
    text = (tmp_path / "audit.jsonl").read_text().replace('"round": 2', '"round": 7')
    (tmp_path / "audit.jsonl").write_text(text)
    assert auditlog.verify(tmp_path / "audit.jsonl") == 3


def test_a_flood_costs_one_line(tmp_path: Path) -> None:
    """A thousand refusals of one peer are counted and hardly written."""
    log = auditlog.AuditLog(tmp_path / "audit.jsonl")
    for _ in range(1000):
        log.add("refused", peer="mallory", reason="x")
    assert len(auditlog.read(tmp_path / "audit.jsonl")) == 1
    assert log.counts["refused"] == 1000


def test_what_a_removed_member_should_get_is_written_off_at_the_start_too(tmp_path: Path) -> None:
    """A version without it is accepted while the site is stopped: its share is owed no more."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=3, template=quick())
    north = layout.sites[0]
    settings, folder = sites.read(north)
    with Node(settings, folder, seed=SEED) as node:
        node.books.start()
        half = Fraction(1, 2)
        weights = {"north": half, "south": half}
        node.books.release(kept=b"mine", frames={"south": b"frame"}, weights=weights)
    second = manifests.successor(layout.manifest, remove=["south"])
    roster.accept(north, Identity(north, "north"), second)
    with Node(settings, folder, seed=SEED) as node:
        assert node.books.owed_to() == {"south"}
        node._start()
        assert node.books.owed_to() == set()
        rows = node.store.connection.execute("select * from written_off").fetchall()
        assert rows == [("south", 0, "1/2")]


def test_a_clock_that_is_set_back_does_not_silence_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year back, and later on: the next refusal is written, with what was left out before, after
    an entry that says so."""
    log = auditlog.AuditLog(tmp_path / "audit.jsonl")
    log.add("refused", peer="mallory")
    log.add("refused", peer="mallory")
    past, later = time.time() - 365 * 86400, time.monotonic() + 11
    monkeypatch.setattr(time, "time", lambda: past)
    monkeypatch.setattr(time, "monotonic", lambda: later)
    log.add("refused", peer="mallory")
    first, jump, second = auditlog.read(tmp_path / "audit.jsonl")
    assert jump["event"] == "clock jumped"
    assert second["time"] < first["time"]
    assert second["left_out_before"] == 1
