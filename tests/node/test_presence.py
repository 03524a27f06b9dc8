"""Who must be there before a round is trained, who is waited for, and how a site ends alone."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxyfl.cli.main import main
from proxyfl.errors import ConfigError
from proxyfl.node import assembly, exits, reachability, supervisor
from proxyfl.node.exchange import auditlog
from proxyfl.node.exchange.protocol import RestoredError
from proxyfl.node.exchange.store import LEAVE_FILE
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import roster
from proxyfl.node.members import site as sites
from proxyfl.node.members.identity import Identity, read_card
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.observe import status
from proxyfl.node.supervisor import Node
from proxyfl.node.trial import Layout
from proxyfl.privacy.ledger import Ledger
from tests.waiting import PATIENCE, wait_until

from .federations import SEED, Running, afford, change, forked, quick, running, total_weight, trial


def charges(place: Path) -> int:
    """The number of rounds on a site's ledger."""
    path = place / assembly.LEDGER_FILE
    return len(Ledger.read(path).charges) if path.exists() else 0


def told(place: Path) -> dict[str, Any]:
    """What a site's status says."""
    return status.of_folder(*sites.read(place))


def waits(place: Path, code: str = "too-few-peers") -> bool:
    """True if a site says that it waits for this reason."""
    reason = told(place)["waiting_for"]
    return reason is not None and reason["code"] == code


def held_up(place: Path, peer: str) -> str | None:
    """The code of what holds up a peer, as a site sees it."""
    (found,) = [each for each in told(place)["peers"] if each["name"] == peer]
    return None if found["held_up"] is None else found["held_up"]["code"]


def events(place: Path, event: str) -> list[dict[str, Any]]:
    """The entries of a kind in a site's audit log."""
    return [entry for entry in auditlog.read(place / auditlog.FILE) if entry["event"] == event]


def accept(place: Path, manifest: Manifest) -> None:
    """Accept a manifest for a site."""
    roster.accept(place, Identity(place, place.name), manifest)


def test_a_site_that_hears_nobody_trains_no_round_and_spends_nothing(tmp_path: Path) -> None:
    """It waits, says so in the terminal, the status and the audit log, and goes on with the first
    peer that comes, whichever was there first."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=4, template=quick(patience=0.3))
    north, south = layout.sites
    with running(layout, only=["north"]) as made:
        wait_until(lambda: waits(north))
        assert charges(north) == 0
        assert status.rows(north) == []
        sentence = told(north)["waiting_for"]["text"]
        assert "0 of at least 1 peers can receive (network.least_peers)" in sentence
        assert "Nothing is charged" in sentence
        assert held_up(north, "south") == "never-heard"
        wait_until(lambda: any("network.least_peers" in line for line in made.said["north"]))
        wait_until(lambda: [each["code"] for each in events(north, "waiting")] == ["too-few-peers"])
        made.nodes["north"].participant.patience = PATIENCE
        made.nodes["north"].reach.patience = PATIENCE
        change(south, lambda site: replace(site, network=replace(site.network, patience=PATIENCE)))
        made.start(south)
        made.join()
    assert set(made.ended.values()) == {exits.End.FINISHED}
    assert [row["heard"] for row in status.rows(north)] == [1] * 4
    assert told(north)["waiting_for"] is None
    assert total_weight(layout) == 2


def test_a_site_whose_only_peer_dies_waits_until_it_is_back(tmp_path: Path) -> None:
    """kill -9 of the other site: what is charged meanwhile is at most the rounds until that is
    noticed, however short the patience."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=40, template=quick(patience=1.0))
    north, south = layout.sites
    processes = [forked(south, "--simulated-seed", str(SEED))]
    with running(layout, only=["north"]) as made:
        try:
            wait_until(lambda: len(status.rows(north)) >= 2)
            processes[0].kill()
            processes[0].join()
            wait_until(lambda: waits(north))
            alone = charges(north)
            wait_until(lambda: len(events(north, "unreachable")) >= 1)
            assert charges(north) == alone < 40
            processes.append(forked(south, "--simulated-seed", str(SEED)))
            wait_until(lambda: charges(north) > alone)
            made.nodes["north"].stopping.set()
            made.join()
        finally:
            for process in processes:
                process.kill()
                process.join()
    assert made.ended == {"north": exits.End.STOPPED}
    assert total_weight(layout) == 2


def test_no_site_runs_through_its_rounds_ahead_of_all_others(tmp_path: Path) -> None:
    """A peer that answers and gets nowhere, with short patience: the site is a few rounds ahead,
    waits without a charge and says for whom; with the peer it goes on to the end."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=20, template=quick(patience=0.3))
    north, south = layout.sites
    change(south, lambda site: replace(site, network=replace(site.network, patience=PATIENCE)))
    go = threading.Event()
    with running(layout, only=["south"]) as made:
        trainer = made.nodes["south"].client.learner.trainer
        trainer.optimizer.register_step_post_hook(lambda *_: go.wait(PATIENCE))
        try:
            made.start(north)
            wait_until(lambda: waits(north, "peers-behind"))
            ahead = charges(north)
            assert ahead == supervisor.MOST_AHEAD + 1
            sentence = told(north)["waiting_for"]["text"]
            assert sentence.startswith(f"Round {ahead + 1} waits for peers that are more than 4 ")
            assert "south (round 1). Nothing is charged meanwhile." in sentence
        finally:
            go.set()
        made.nodes["north"].participant.patience = PATIENCE
        made.nodes["north"].reach.patience = PATIENCE
        made.join()
    assert set(made.ended.values()) == {exits.End.FINISHED}
    assert charges(north) == 20
    assert total_weight(layout) == 2


def test_least_peers_counts_those_who_can_receive(tmp_path: Path) -> None:
    """With two asked for, one is not enough; with the second, the round begins."""
    template = quick(patience=PATIENCE, least_peers=2)
    layout = trial.lay_out(tmp_path, sites=3, rounds=2, template=template)
    with running(layout, only=["north", "south"]) as made:
        wait_until(lambda: waits(layout.sites[0]) and waits(layout.sites[1]))
        wait_until(lambda: "1 of at least 2" in told(layout.sites[0])["waiting_for"]["text"])
        assert charges(layout.sites[0]) == charges(layout.sites[1]) == 0
        made.start(layout.sites[2])
        made.join()
    assert set(made.ended.values()) == {exits.End.FINISHED}
    assert total_weight(layout) == 3


def test_a_federation_of_one_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    """Nobody else in the manifest: an error that says what to do; least_peers = 0 trains alone."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick())
    alone = replace(layout.manifest, members=layout.manifest.members[:1])
    layout = trial.accept_everywhere(replace(layout, sites=layout.sites[:1]), alone)
    place = layout.sites[0]
    settings, folder = sites.read(place)
    with (
        Node(settings, folder, seed=SEED) as node,
        pytest.raises(ConfigError, match=r"0 other members.*federation add.*trains alone"),
    ):
        node.run()
    assert charges(place) == 0
    change(place, lambda site: replace(site, network=replace(site.network, least_peers=0)))
    with running(layout) as made:
        made.join()
    assert made.ended == {"north": exits.End.FINISHED}
    assert charges(place) == 2


def test_a_site_ends_when_all_others_have_left(tmp_path: Path) -> None:
    """It does not run through the other rounds alone: it says that nobody is left, and ends."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=1000, template=quick(patience=PATIENCE))
    north, south = layout.sites
    with running(layout) as made:
        wait_until(lambda: len(status.rows(north)) >= 2)
        (south / LEAVE_FILE).touch()
        made.join()
    assert made.ended == {"north": exits.End.FINISHED, "south": exits.End.LEFT}
    reason = told(north)["ended_because"]
    assert reason["code"] == "nobody-left"
    assert reason["text"] in made.said["north"]
    assert len(status.rows(north)) < 100
    assert total_weight(layout) == 2
    # and again, without another charge
    before = charges(north)
    made = Running()
    made.start(north)
    made.join()
    assert made.ended == {"north": exits.End.FINISHED}
    assert charges(north) == before


def test_a_site_that_comes_when_the_others_have_finished_ends(tmp_path: Path) -> None:
    """It was away during the last rounds. One peer tells it that all rounds are done, the other is
    not there any more: it trains nothing for nobody, and does not wait for ever."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=6, template=quick(patience=2.0))
    north, south, east = layout.sites
    made = Running()
    for place in (north, south):
        made.start(place)
    made.start(east, rounds=2)
    made.join()
    assert made.ended == {"north": "finished", "south": "finished", "east": "stopped"}
    spent = charges(east)
    made = Running()
    for place in (north, east):
        made.start(place)
    made.join()
    assert set(made.ended.values()) == {exits.End.FINISHED}
    assert charges(east) == spent
    assert told(east)["ended_because"]["code"] == "nobody-left"
    assert total_weight(layout) == 3


def test_sites_that_exchange_files_wait_for_somebody_who_collects(tmp_path: Path) -> None:
    """Nobody collects what lies in the folder: nothing is trained. Then somebody does."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick(patience=PATIENCE))
    for place in layout.sites:
        change(
            place,
            lambda site: replace(
                site, network=replace(site.network, folder=str(tmp_path / "shared"), listen="")
            ),
        )
    with running(layout, only=["north"]) as made:
        wait_until(lambda: waits(layout.sites[0]))
        assert charges(layout.sites[0]) == 0
        made.start(layout.sites[1])
        made.join()
    assert set(made.ended.values()) == {exits.End.FINISHED}
    assert total_weight(layout) == 2


def test_one_member_on_an_old_manifest_slows_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three accept a new version: they finish without waiting for the third, whose patience
    and theirs are longer than the test's; the third trains nothing meanwhile. Both sides say why,
    with the command to run."""
    monkeypatch.setattr(reachability, "LASTING_SECONDS", 0.0)
    layout = trial.lay_out(tmp_path, sites=3, rounds=12, template=quick(patience=4 * PATIENCE))
    north, south, east = layout.sites
    second = manifests.successor(layout.manifest)
    with running(layout, hold=2) as made:
        for place in layout.sites:
            wait_until(lambda place=place: len(status.rows(place)) == 2)
        accept(north, second)
        accept(south, second)
        made.go_on(hold=11)
        wait_until(lambda: held_up(east, "north") == "manifest-ahead" and waits(east))
        spent = charges(east)
        assert f"proxyfl node accept {east} manifest.toml" in told(east)["waiting_for"]["text"]
        for place in (north, south):
            wait_until(lambda place=place: len(status.rows(place)) == 11)
            wait_until(lambda place=place: held_up(place, "east") == "manifest-behind")
        made.go.set()
        made.join(["north", "south"])
        assert made.ended["north"] == made.ended["south"] == exits.End.FINISHED
        assert charges(east) == spent <= 4
        made.join()
    for place in (north, south):
        entry = next(each for each in events(place, "held up") if each["peer"] == "east")
        assert entry["code"] == "manifest-behind"
        assert "proxyfl node accept east manifest.toml" in entry["reason"]
        assert any("has not accepted version 2" in line for line in made.said[place.name])
        assert len(status.rows(place)) == 12
    assert "manifest-ahead" in {entry["code"] for entry in events(east, "held up")}
    assert total_weight(layout) == 3


def test_a_member_that_accepts_late_is_taken_in_again(tmp_path: Path) -> None:
    """The third accepts while it waits: it goes on at once, with the others."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=200, template=quick(patience=4 * PATIENCE))
    north, south, east = layout.sites
    second = manifests.successor(layout.manifest)
    with running(layout, hold=2) as made:
        for place in layout.sites:
            wait_until(lambda place=place: len(status.rows(place)) == 2)
        accept(north, second)
        accept(south, second)
        made.go.set()
        wait_until(lambda: waits(east))
        before = len(status.rows(east))
        accept(east, second)
        wait_until(lambda: len(status.rows(east)) >= before + 2)
        wait_until(lambda: held_up(north, "east") != "manifest-behind")
    assert [entry["code"] for entry in events(north, "no longer held up")] == ["manifest-behind"]
    assert total_weight(layout) == 3


def test_members_of_two_manifests_with_one_number_train_nothing(tmp_path: Path) -> None:
    """Each refuses the other's hello: neither spends anything, and both say which site to ask."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=9, template=quick(patience=PATIENCE))
    north, south, _ = layout.sites
    accept(north, manifests.successor(layout.manifest, remove=["east"]))
    accept(south, replace(manifests.successor(layout.manifest, remove=["east"]), rounds=8))
    with running(layout, only=["north", "south"]):
        wait_until(lambda: waits(north) and waits(south))
        wait_until(lambda: held_up(north, "south") == "other-manifest")
        wait_until(lambda: held_up(south, "north") == "other-manifest")
        assert charges(north) == charges(south) == 0


def test_a_member_that_was_removed_elsewhere_trains_nothing(tmp_path: Path) -> None:
    """Its peers have revoked its key and do not talk to it: it waits, and says who is missing.
    The others do not wait for it."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=6, template=quick(patience=4 * PATIENCE))
    north, south, east = layout.sites
    second = manifests.successor(layout.manifest, remove=["east"])
    accept(north, second)
    accept(south, second)
    with running(layout) as made:
        made.join(["north", "south"])
        wait_until(lambda: waits(east))
        assert charges(east) == 0
        sentence = told(east)["waiting_for"]["text"]
        assert "north" in sentence
        assert "south" in sentence


def test_a_member_on_its_old_key_slows_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """North has a new key that the others have accepted and north has not: they finish without
    waiting for it, whatever their patience, and both sides say why, with the command to run."""
    monkeypatch.setattr(reachability, "LASTING_SECONDS", 0.0)
    layout = trial.lay_out(tmp_path, sites=3, rounds=12, template=quick(patience=4 * PATIENCE))
    north, south, east = layout.sites
    with running(layout, hold=2) as made:
        for place in layout.sites:
            wait_until(lambda place=place: len(status.rows(place)) == 2)
        assert main(["node", "rotate-key", str(north)]) == 0
        card, _ = read_card(north / "next" / "north.card.toml")
        second = manifests.successor(layout.manifest, replace=[card])
        accept(south, second)
        accept(east, second)
        made.go_on(hold=11)
        run = "proxyfl node accept north manifest.toml"
        for place in (south, east):
            wait_until(lambda place=place: len(status.rows(place)) == 11)
            wait_until(lambda place=place: held_up(place, "north") == "manifest-behind")
            entry = next(each for each in events(place, "held up") if each["peer"] == "north")
            assert run in entry["reason"]
        wait_until(lambda: waits(north) and held_up(north, "south") == "refuses")
        assert run in told(north)["waiting_for"]["text"]
        made.go.set()
        made.join(["south", "east"])
        assert made.ended["south"] == made.ended["east"] == exits.End.FINISHED
    assert charges(north) <= 4
    assert total_weight(layout) == 3


@contextmanager
def stopped_by_a_peer(tmp_path: Path) -> Iterator[tuple[Layout, Running, Path, str]]:
    """South of three runs from an old backup, and was told so; the others go on."""
    template = quick(patience=4 * PATIENCE)
    layout = trial.lay_out(tmp_path, sites=3, rounds=300, template=template)
    south = layout.sites[1]
    with running(layout, only=["north", "east"]) as made:
        made.start(south, rounds=2)
        made.join(["south"])
        backup = tmp_path / "backup"
        shutil.copytree(south, backup)
        made.start(south, rounds=2)
        made.join(["south"])
        shutil.rmtree(south)
        shutil.copytree(backup, south)
        made.start(south)
        made.join(["south"])
        verdict = made.ended["south"]
        assert isinstance(verdict, RestoredError)
        yield layout, made, south, str(verdict)


def test_a_site_that_a_peer_stopped_does_not_start_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict is in the store: each further start ends at once, with an exit code of its own
    and nothing charged, whether or not a peer is there; `rejoin` lifts it. The others do not wait
    for it, however long their patience."""
    with stopped_by_a_peer(tmp_path) as (layout, made, south, said):
        spent = charges(south)
        peer = min(told(south)["stopped_by"])
        assert told(south)["stopped_by"][peer]["code"] == "old-backup"
        boots = made.nodes["north"].exchange.last_hello("south").boot
        words = ["node", "run", str(south), "--no-status-page", "--simulated-seed", str(SEED)]
        assert main(words) == exits.STOPPED_BY_PEER == 13
        err = capsys.readouterr().err
        assert any(reason["text"] in err for reason in told(south)["stopped_by"].values())
        assert made.nodes["north"].exchange.last_hello("south").boot == boots
        assert charges(south) == spent
        assert main(["node", "status", str(south)]) == 0
        assert f"Stopped by {peer} (old-backup)" in capsys.readouterr().out
        north = layout.sites[0]
        wait_until(
            lambda: "old-backup" in (held_up(north, "south"), held_up(layout.sites[2], "south"))
        )
        rounds = len(status.rows(north))
        wait_until(lambda: len(status.rows(north)) >= rounds + 5)
        texts = [said, *(reason["text"] for reason in told(south)["stopped_by"].values())]
        assert any("node rejoin" in text for text in texts)
        settings, folder = sites.read(south)
        with Node(settings, folder, seed=SEED) as node:
            node.begin_again()
        assert told(south)["stopped_by"] == {}
        made.start(south)
        before = len(status.rows(south))
        wait_until(lambda: len(status.rows(south)) > before)


def test_a_verdict_of_a_peer_that_was_removed_is_void(tmp_path: Path) -> None:
    """A member that lied is out of the manifest: the site starts as it was."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=2, template=quick(patience=PATIENCE))
    north, south, _ = layout.sites
    settings, folder = sites.read(north)
    with Node(settings, folder, seed=SEED) as node:
        node.reasons.put("verdict", "old-backup", "It lies.", peer="east")
        with pytest.raises(RestoredError, match="It lies"):
            node.run()
    second = manifests.successor(layout.manifest, remove=["east"])
    for place in (north, south):
        accept(place, second)
    with running(layout, only=["north", "south"]) as made:
        made.join()
    assert set(made.ended.values()) == {exits.End.FINISHED}
    assert told(north)["stopped_by"] == {}


def test_a_member_in_a_restart_loop_is_not_waited_for(tmp_path: Path) -> None:
    """It starts, says hello and dies, again and again: the others go on without it, and say so,
    though it is heard from all the time and their patience is long."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=300, template=quick(patience=4 * PATIENCE))
    north, _, east = layout.sites
    change(east, lambda site: replace(site, learning=replace(site.learning, steps_per_round=10**6)))
    with running(layout, only=["north", "south"]) as made:
        seen = -1
        process = None
        try:
            for _ in range(4):
                process = forked(east, "--simulated-seed", str(SEED))
                wait_until(lambda boot=seen: _boot(made, "east") > boot)
                seen = _boot(made, "east")
                process.kill()
                process.join()
            rounds = len(status.rows(north))
            wait_until(lambda: len(status.rows(north)) >= rounds + 3)
            wait_until(lambda: held_up(north, "east") == "restarts")
        finally:
            if process is not None:
                process.kill()
                process.join()
    assert any("east starts again and again" in line for line in made.said["north"])


def _boot(made: Running, peer: str) -> int:
    boots = []
    for node in made.nodes.values():
        hello = node.exchange.last_hello(peer)
        boots.append(-1 if hello is None else hello.boot)
    return min(boots)


def test_a_peer_that_was_stopped_is_waited_for_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that stops says so: the others go on once it had the time to be started anew, and not
    after their whole patience."""
    monkeypatch.setattr(reachability, "RESTART_SECONDS", 0.5)
    layout = trial.lay_out(tmp_path, sites=3, rounds=300, template=quick(patience=4 * PATIENCE))
    north = layout.sites[0]
    with running(layout, only=["north", "south"]) as made:
        made.start(layout.sites[2], rounds=2)
        made.join(["east"])
        rounds = len(status.rows(north))
        wait_until(lambda: len(status.rows(north)) >= rounds + 5)
        wait_until(lambda: held_up(north, "east") == "stopped")


def test_a_spent_site_ends_also_with_nobody_left(tmp_path: Path) -> None:
    """Both spend their budgets in the same round of a thousand: each ends, keeps the mass that
    nobody takes, says so, and charges nothing more, however often it is started."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=1000, template=quick(patience=5.0))
    budgets = {place: afford(place, steps=5) for place in layout.sites}
    with running(layout) as made:
        made.join()
    assert set(made.ended.values()) <= {exits.End.SPENT, exits.End.FINISHED}
    assert exits.End.SPENT in made.ended.values()
    assert total_weight(layout) == 2
    for place in layout.sites:
        ledger = Ledger.read(place / assembly.LEDGER_FILE)
        assert len(status.rows(place)) <= 3
        assert 4 <= ledger.steps <= 5
        assert ledger.epsilon().pld <= budgets[place]
    spent = [place for place in layout.sites if made.ended[place.name] is exits.End.SPENT]
    for place in spent:
        assert told(place)["ended_because"]["code"] == "budget-spent"
        before = charges(place)
        again = Running()
        again.start(place)
        again.join()
        assert again.ended == {place.name: exits.End.SPENT}
        assert charges(place) == before
    assert total_weight(layout) == 2


def test_a_spent_site_that_trains_alone_keeps_its_mass_and_ends(tmp_path: Path) -> None:
    """The case of a thousand rounds: all others have left, least_peers = 0. Weight and parameters
    of its mass stay in its store, and what became of them is said."""
    layout = trial.lay_out(
        tmp_path, sites=2, rounds=1000, template=quick(patience=PATIENCE, least_peers=0)
    )
    north, south = layout.sites
    afford(north, steps=61)
    with running(layout) as made:
        wait_until(lambda: len(status.rows(south)) >= 1)
        (south / LEAVE_FILE).touch()
        made.join()
    assert made.ended == {"north": exits.End.SPENT, "south": exits.End.LEFT}
    assert len(status.rows(north)) == 31
    reason = told(north)["ended_because"]
    assert reason["code"] == "budget-spent"
    assert "keeps a weight of 2" in reason["text"]
    assert total_weight(layout) == 2
    settings, folder = sites.read(north)
    with Node(settings, folder, seed=SEED) as node:
        node.books.start()
        assert node.books.position().weight == 2
        assert node.mixer.decode_own(node.books.mass()).isfinite().all()
    assert events(north, "left")[-1]["kept"] == 2.0


def test_what_a_leaving_site_keeps_goes_to_a_peer_that_comes_back(tmp_path: Path) -> None:
    """Nobody was there when it left: it keeps its mass. Started again beside a peer that waits
    for somebody, it hands the mass on and has nothing left. The peer does not end before it has
    taken the mass, though nobody else is left, and its proxy is the mean of both."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=30, template=quick(patience=0.5))
    north, south = layout.sites
    (north / LEAVE_FILE).touch()
    with running(layout, only=["north"]) as made:
        made.join()
    assert made.ended == {"north": exits.End.LEFT}
    assert told(north)["weight"] == 1.0
    assert charges(north) == 0
    for place in layout.sites:
        change(place, lambda site: replace(site, network=replace(site.network, patience=PATIENCE)))
    with running(layout, only=["south"]) as made:
        wait_until(lambda: waits(south))
        made.start(north)
        made.join()
    assert made.ended == {"north": exits.End.LEFT, "south": exits.End.FINISHED}
    assert told(north)["weight"] == 0.0
    assert told(south)["weight"] == 2.0
    assert charges(south) == 0
    assert total_weight(layout) == 2


def test_a_member_that_announces_its_end_and_dies_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 between the announcement and the handover: the last site ends all the same, long
    before its patience is over, and the weight is where it was."""
    monkeypatch.setattr(reachability, "SPEAKS_SECONDS", 0.5)
    layout = trial.lay_out(tmp_path, sites=2, rounds=30, template=quick(patience=4 * PATIENCE))
    north = layout.sites[0]
    with running(layout, only=["south"]) as made:
        settings, folder = sites.read(north)
        with Node(settings, folder, seed=SEED) as dying:
            dying._start()
            dying.books.set_state("leaving")
            dying.courier.start()
            wait_until(lambda: made.nodes["south"].reach.handing_on() == ["north"])
        made.join()
    assert made.ended == {"south": exits.End.FINISHED}
    assert total_weight(layout) == 2
