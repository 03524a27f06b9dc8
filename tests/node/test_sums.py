"""Real sites that train one proxy by masked sums: sockets, keys, stores, ledgers."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from proxyfl.errors import ConfigError
from proxyfl.federation.masked import trainer_of
from proxyfl.node import assembly, preflight
from proxyfl.node.agreement import Record
from proxyfl.node.exchange import auditlog
from proxyfl.node.exchange.protocol import RestoredError
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.store import Store
from proxyfl.node.members import site as sites
from proxyfl.node.members.manifest import Graph, Masked
from proxyfl.node.members.site import Site
from proxyfl.node.observe import status
from proxyfl.node.supervisor import Node
from proxyfl.node.trial import Layout
from proxyfl.privacy import certificate as certificates
from proxyfl.privacy.accounting import Segment, epsilon_of
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.ledger import Ledger
from proxyfl.records import reading
from proxyfl.report.document import cost
from proxyfl.report.site import page as site_page
from tests.waiting import PATIENCE, wait_until

from .federations import SEED, Running, change, predicted, quick, running, trial
from .test_firewalls import without_addresses

ROUNDS = 3
STEPS = 2


def adding(
    folder: Path, *, sites: int, quorum: int, rounds: int = ROUNDS, template: Site | None = None
) -> Layout:
    """A federation whose sites add up."""
    template = template or quick(patience=PATIENCE)
    layout = trial.lay_out(folder, sites=sites, rounds=rounds, template=template)
    masked = Masked(1, quorum, steps=STEPS, noise_multiplier=8.0, learning_rate=0.05)
    return trial.accept_everywhere(layout, replace(layout.manifest, graph=Graph(masked=masked)))


def record_of(place: Path) -> Record:
    """How far a site is."""
    with contextlib.closing(Store(place / STORE_FILE)) as store:
        (text,) = store.connection.execute("select record from sums").fetchone()
    return Record.read(text)


def shared_proxy(place: Path) -> torch.Tensor:
    """The proxy in a site's store, as one vector."""
    with contextlib.closing(Store(place / STORE_FILE)) as store:
        (held,) = store.connection.execute("select proxy from sums").fetchone()
        state = load(bytes(store.frames.read(held)))
    return torch.cat([state[f"model/{key}"].flatten() for key in ("1.weight", "1.bias")])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Three sites that nothing disturbs."""
    layout = adding(tmp_path_factory.mktemp("sums"), sites=3, quorum=3)
    with running(layout) as made:
        made.join()
        assert set(made.ended.values()) == {"finished"}, (made.ended, made.said)
    return layout


def test_sites_that_add_up_equal_the_simulation(finished: Layout) -> None:
    """The one proxy is the simulation's, bit for bit, at every site."""
    expected = predicted(finished.folder)
    for place, outcome in zip(finished.sites, expected, strict=True):
        assert torch.equal(shared_proxy(place), outcome.proxy), place.name
        last = status.rows(place)[-1]
        assert last["private_accuracy"] == outcome.joined


def test_every_step_is_on_the_ledger_once(finished: Layout) -> None:
    """With the terms of the sum, from which both epsilons follow."""
    for place in finished.sites:
        ledger = Ledger.read(place / assembly.LEDGER_FILE)
        assert ledger.steps == ROUNDS * STEPS
        assert {charge.coalition for charge in ledger.charges} == {Coalition(1, 3)}
        row = status.rows(place)[-1]
        assert row["method"] == "proxysum"
        assert row["epsilon_pld"] < row["epsilon_all_others"]


def vectors_sent(place: Path) -> list[tuple[int, int]]:
    """(step, ballot) of each vector that a site's log says it was about to send."""
    entries = auditlog.read(place / auditlog.FILE)
    return [(each["step"], each["ballot"]) for each in entries if each["event"] == "sent a vector"]


def check_ends(layout: Layout, rounds: int) -> None:
    """All have one proxy after all steps; each vector left once, and is on the ledger."""
    for place in layout.sites:
        assert record_of(place).step == rounds * STEPS, place.name
        assert torch.equal(shared_proxy(place), shared_proxy(layout.sites[0])), place.name
        sent = vectors_sent(place)
        assert len(set(sent)) == len(sent), f"{place.name} sent twice under one ballot"
        assert Ledger.read(place / assembly.LEDGER_FILE).steps >= len(sent)


def test_a_site_that_restarts_takes_part_again(tmp_path: Path) -> None:
    """The others go on without it where there is a quorum; it takes over what it has missed, is on
    the roster again, and all end with the same proxy."""
    rounds = 8
    layout = adding(tmp_path, sites=3, quorum=2, rounds=rounds)
    made = Running()
    try:
        for place in layout.sites[1:]:
            made.start(place, seed=None)
        made.start(layout.sites[0], seed=None, rounds=2)
        made.join([layout.sites[0].name])
        made.start(layout.sites[0], seed=None)
        made.join()
        assert set(made.ended.values()) == {"finished"}, (made.ended, made.said)
    finally:
        for node in made.nodes.values():
            node.stopping.set()
    check_ends(layout, rounds)
    assert vectors_sent(layout.sites[0])[-1][0] == rounds * STEPS - 1, "it was on the last roster"


def test_below_the_quorum_nobody_sends(tmp_path: Path) -> None:
    """Two of three wait, say so, and end with what they have; nothing is charged."""
    layout = adding(tmp_path, sites=3, quorum=3, template=quick(patience=9.0))
    names = [place.name for place in layout.sites[:2]]
    with running(layout, only=names) as made:
        made.join(names)
        assert set(made.ended.values()) == {"finished"}, made.ended
    for place in layout.sites[:2]:
        assert vectors_sent(place) == []
        assert Ledger.read(place / assembly.LEDGER_FILE).charges == ()
        assert any("2 of at least 3 members are there" in line for line in made.said[place.name])
        settings, folder = sites.read(place)
        why = status.of_folder(settings, folder)["ended_because"]
        assert why["code"] == "below-quorum"


def test_a_budget_that_ends_takes_a_site_off_the_roster(tmp_path: Path) -> None:
    """A site whose budget covers three steps sends three vectors and leaves; the others go on."""
    layout = adding(tmp_path, sites=3, quorum=2)
    budget = afford_sum(layout.sites[0], steps=3)
    with running(layout) as made:
        made.join()
        assert made.ended[layout.sites[0].name] == "budget spent", made.ended
    assert len(vectors_sent(layout.sites[0])) == 3
    assert Ledger.read(layout.sites[0] / assembly.LEDGER_FILE).epsilon().pld <= budget
    for place in layout.sites[1:]:
        assert record_of(place).step == ROUNDS * STEPS
        # A start that is late, on a busy machine, may cost an attempt.
        assert len(vectors_sent(place)) <= ROUNDS * STEPS + 2


def afford_sum(place: Path, steps: int, *, alone: bool = False) -> float:
    """Set a site's budget so that it covers ``steps`` steps and no more; return it. With
    ``alone``, it would cover them if all others collude."""
    change(place, lambda site: assembly.with_budget(site, None))
    settings, folder = sites.read(place)
    with Node(settings, folder, seed=SEED) as node:
        trainer = trainer_of(node.client)
        costs = []
        for count in (steps, steps + 1):
            segment = Segment(
                trainer.sampling_rate, trainer.noise_multiplier, count, trainer.coalition
            )
            segments = [segment.alone] if alone else [segment]
            costs.append(epsilon_of(segments, node.client.ledger.delta, "pld"))
    budget = sum(costs) / 2
    change(place, lambda site: assembly.with_budget(site, budget))
    return budget


def test_a_site_states_both_epsilons_everywhere(finished: Layout) -> None:
    """Preflight before, status and page during, certificate and report after."""
    place = finished.sites[0]
    settings, folder = sites.read(place)
    about = status.of_folder(settings, folder)
    spent = Ledger.read(place / assembly.LEDGER_FILE).epsilon()
    assert about["privacy"]["epsilon_all_others"] == pytest.approx(spent.against_all)
    assert "against each single member" in about["privacy"]["sentence"]
    assert "If all other members collude" in about["privacy"]["sentence"]
    assert "If all other members collude" in site_page(about)
    ledger = Ledger.read(place / assembly.LEDGER_FILE)
    text = certificates.markdown(certificates.certificate(ledger, certificates.NODE))
    assert "epsilon if all other members collude" in text
    run = reading.read(place)
    assert cost(run.spent("proxysum", reading.SITE_CLIENT))["epsilon_all_others"] > spent.best


def test_preflight_states_both_epsilons(tmp_path: Path) -> None:
    """Before a site joins, with the terms that it signs."""
    layout = adding(tmp_path, sites=3, quorum=3)
    settings, folder = sites.read(layout.sites[0])
    lines = {line.check: line for line in preflight.preflight(settings, folder)}
    assert "If all other members collude against this one, epsilon is" in lines["budget"].text
    assert lines["budget"].ok


def test_a_second_budget_ends_a_site(tmp_path: Path) -> None:
    """``privacy.budget_all_others`` limits the epsilon that is left if all others collude."""
    layout = adding(tmp_path, sites=4, quorum=3)
    limit = afford_sum(layout.sites[0], steps=3, alone=True)

    def limited(site: Site) -> Site:
        return replace(site, privacy=replace(site.privacy, budget=50.0, budget_all_others=limit))

    change(layout.sites[0], limited)
    with running(layout) as made:
        made.join()
        assert made.ended[layout.sites[0].name] == "budget spent", made.ended
    ledger = Ledger.read(layout.sites[0] / assembly.LEDGER_FILE)
    assert ledger.steps == len(vectors_sent(layout.sites[0])) == 3
    assert ledger.epsilon().against_all <= limit


def test_a_site_stopped_as_an_old_copy_is_not_told_to_rejoin(tmp_path: Path) -> None:
    """`node rejoin` refuses, so no alarm asks for it."""
    settings, folder = sites.read(adding(tmp_path, sites=3, quorum=3).sites[0])
    with Node(settings, folder) as node:
        node.service.on_verdict("south", RestoredError("Bring the newest store and ledger back."))
        with pytest.raises(ConfigError, match="the newest store and ledger back"):
            node.begin_again()
    known = status.of_folder(settings, folder)
    (alarm,) = known["alarms"]
    assert (alarm["code"], alarm["command"]) == ("stopped", "")
    assert "Bring the newest store and ledger back." in alarm["text"]


def test_a_site_that_comes_after_the_end_takes_over_the_proxy(tmp_path: Path) -> None:
    """The others stay for it, for as long as they have patience."""
    layout = adding(tmp_path, sites=3, quorum=2, rounds=2)
    late = layout.sites[2]
    others = [place.name for place in layout.sites[:2]]
    with running(layout, only=others) as made:
        wait_until(lambda: len(status.rows(layout.sites[0])) >= 2)
        made.start(late)
        made.join()
        assert set(made.ended.values()) == {"finished"}, made.ended
    assert torch.equal(shared_proxy(late), shared_proxy(layout.sites[0]))
    assert vectors_sent(late) == []
    assert Ledger.read(late / assembly.LEDGER_FILE).charges == ()


@pytest.mark.parametrize("way", ["a relay", "files"])
def test_masked_sums_travel_every_way(way: str, tmp_path: Path) -> None:
    """Two sites that only dial out add up through a third that relays, and three sites without a
    network through files in a folder. Either way the proxy is the simulation's, bit for bit."""
    layout = adding(tmp_path, sites=3, quorum=3)
    if way == "a relay":
        layout = without_addresses(layout, {"south", "east"})
    else:
        shared = str(tmp_path / "shared")

        def by_files(site: Site) -> Site:
            return replace(site, network=replace(site.network, folder=shared, listen=""))

        for place in layout.sites:
            change(place, by_files)
    with running(layout) as made:
        made.join()
        assert set(made.ended.values()) == {"finished"}, (made.ended, made.said)
        if way == "a relay":
            assert made.nodes["north"].service.traffic["messages_relayed"] > 0
    expected = predicted(layout.folder)
    for place, outcome in zip(layout.sites, expected, strict=True):
        assert torch.equal(shared_proxy(place), outcome.proxy), place.name
    check_ends(layout, ROUNDS)
