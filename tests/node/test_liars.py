"""A member that lies: what a site takes from it, and how far that can move the site's proxy."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor

from proxyfl.gossip.pushsum import Mass
from proxyfl.node.exchange import auditlog
from proxyfl.node.exchange.messages import Share, Verdict, spell_weight
from proxyfl.node.members import site as sites
from proxyfl.node.members.site import Site
from proxyfl.node.mixing import MOST_HANDOVERS, PEERS, Entry, Guard
from proxyfl.node.supervisor import Node
from proxyfl.transport import wire

from .federations import SEED, change, predicted, quick, running, total_weight, trial

NAMES = ("north", "south", "east", "west")
ROUNDS = 9

HALF = Fraction(1, 2)


@contextmanager
def four_sites(folder: Path) -> Iterator[list[Node]]:
    """Four sites that are open and do not run. In even rounds each sends to the next, in odd rounds
    to the one after it."""
    layout = trial.lay_out(folder, sites=4, rounds=ROUNDS, template=quick())
    with ExitStack() as stack:
        nodes = []
        for place in layout.sites:
            node = stack.enter_context(Node(*sites.read(place), seed=SEED))
            node.books.start()
            node.mixer.is_silent = lambda name: False
            nodes.append(node)
        yield nodes


def greet(sender: Node, receiver: Node, **changes: object) -> None:
    """The receiver hears a hello, with some fields changed."""
    hello = sender.exchange.hello(receiver.site.name, time=0)
    receiver.exchange.handle(replace(hello, **changes), b"", time=0)  # type: ignore[arg-type]


def offer(
    sender: Node,
    receiver: Node,
    round: int,
    *,
    weight: Fraction = HALF,
    theta: Tensor | None = None,
) -> Verdict:
    """The receiver's verdict on a share."""
    proxy = receiver.mixer.proxy
    values = torch.zeros(proxy.size) if theta is None else theta
    position = sender.roster.current.position(sender.site.name)
    frame = wire.encode(wire.Message(round, position, float(weight), values, proxy.model))
    share = Share(
        sender.books.federation,
        1,
        sender.site.name,
        receiver.site.name,
        *sender.books.stamp().numbers,
        round=round,
        weight=spell_weight(weight),
        size=len(frame),
        sha256=hashlib.sha256(frame).hexdigest(),
        past=(),
    )
    verdict = receiver.exchange.handle(share, frame, time=0)
    assert isinstance(verdict, Verdict)
    return verdict


def test_what_the_graph_does_not_send_is_refused(tmp_path: Path) -> None:
    """A share that the round's graph does not send is put off while its round lasts, and refused
    afterwards; the audit log names the sender and the round. What the graph sends is stored."""
    with four_sites(tmp_path) as (north, south, east, _):
        for other in (north, east):
            greet(other, south)
        assert offer(north, south, 0).outcome == "stored"
        assert offer(east, south, 0).outcome == "again"
        south.books.skip_to(2)
        verdict = offer(east, south, 0)
        assert verdict.outcome == "refused"
        assert "the graph of round 0 sends nothing from 'east'" in verdict.reason
        assert [part.sender for part in south.books.parts(every=True)] == ["north"]
        entries = auditlog.read(south.folder / auditlog.FILE)
        assert {entry["peer"] for entry in entries if entry["event"] == "refused"} == {"east"}


def test_a_refused_share_returns_with_its_exact_weight(tmp_path: Path) -> None:
    """The weight of a share that the graph does not send is its sender's again."""
    with four_sites(tmp_path) as (_, south, east, _):
        greet(east, south)
        greet(south, east)
        frame = east.mixer.frame(torch.zeros(east.mixer.proxy.size), HALF, 0)
        weights = {"south": HALF, "east": HALF}
        east.books.release(kept=b"", frames={"south": frame}, weights=weights)
        south.books.skip_to(3)
        share, sent = east.books.outbox("south")[0]
        verdict = south.exchange.handle(share, sent, time=0)
        assert isinstance(verdict, Verdict)
        east.exchange.handle(verdict, b"", time=0)
        returned = [(part.returned_by, part.weight) for part in east.books.parts(every=True)]
        assert returned == [("south", HALF)]


@pytest.mark.parametrize("weight", [Fraction(5, 4), Fraction(2), Fraction(4)])
def test_a_share_weighs_no_more_than_its_edge_carries(tmp_path: Path, weight: Fraction) -> None:
    """A member of mean weight sends 0.5 on an edge. Twice as much is taken, more is not, although
    the members' total is 4."""
    with four_sites(tmp_path) as (north, south, _, _):
        greet(north, south)
        south.books.skip_to(3)
        verdict = offer(north, south, 0, weight=weight)
        assert verdict.outcome == "refused"
        assert "at most 1" in verdict.reason
        assert offer(north, south, 2, weight=Fraction(1)).outcome == "stored"


def test_a_site_with_much_weight_sends_what_an_edge_carries_and_keeps_the_rest(
    tmp_path: Path,
) -> None:
    """An honest site that holds 3.5 of 4 is never refused for it, and no weight is lost."""
    with four_sites(tmp_path) as (north, *_):
        with north.store.transaction() as run:
            run.execute("update site set weight = ?", (spell_weight(Fraction(7, 2)),))
        north.participant.release(Mass(north.participant.initial.clone(), 3.5), leaving=False)
        ((share, _),) = north.books.outbox("south")
        assert share.exact_weight == 1
        assert north.books.position().weight == Fraction(5, 2)


def test_a_member_that_leaves_may_hand_over_past_the_graph(tmp_path: Path) -> None:
    """Once a member has said that it leaves, it may send to anybody, but not without end; what it
    hands over at once is no more than twice the mean weight."""
    with four_sites(tmp_path) as (_, south, east, _):
        greet(east, south)
        assert offer(east, south, 0).outcome == "again"
        greet(east, south, state="leaving")
        assert offer(east, south, 2, weight=Fraction(3)).outcome == "refused"
        for round in (0, 4, 6):
            assert offer(east, south, round).outcome == "stored"
        drop_waiting(south)
        assert MOST_HANDOVERS == 4
        assert offer(east, south, 8, weight=Fraction(2)).outcome == "stored"
        assert offer(east, south, 1, weight=Fraction(2)).outcome == "refused"


def drop_waiting(node: Node) -> None:
    """Make room in a site's inbox, as its next round would."""
    with node.store.transaction() as run:
        run.execute("delete from inbox")


def test_sites_that_hear_of_a_departure_at_different_times_take_each_others_shares(
    tmp_path: Path,
) -> None:
    """Without south, north sends to east in round 0. East takes that once it knows that south has
    left, or hears nothing of south; until then it puts it off. What somebody sends who has not
    heard of it yet, it takes as well."""
    with four_sites(tmp_path) as (north, south, east, west):
        for other in (north, west):
            greet(other, east)
        assert offer(north, east, 0).outcome == "again"
        east.mixer.is_silent = lambda name: name == "south"
        assert offer(north, east, 0).outcome == "stored"
        east.mixer.is_silent = lambda name: False
        assert offer(north, east, 3).outcome == "stored"
        greet(south, east, state="leaving")
        assert offer(north, east, 2).outcome == "stored"
        assert offer(north, east, 5).outcome == "stored"
        assert offer(west, east, 0).outcome == "again"


def test_who_leaves_does_not_come_back_within_an_epoch(tmp_path: Path) -> None:
    """A member cannot hand over as one that leaves and then go on as before."""
    with four_sites(tmp_path) as (north, south, *_):
        greet(north, south, state="leaving")
        greet(north, south, state="active", clock=north.books.stamp().clock)
        assert south.books.peers.known("north").state == "leaving"
        assert south.books.peers.gone() == {"north"}
        greet(north, south, state="left")
        greet(north, south, state="active")
        assert south.books.peers.known("north").state == "left"


def entries(own: Tensor, *others: tuple[str, Tensor], weight: float = 0.5) -> list[Entry]:
    """A site's own mass and shares of others, each in a round of its own."""
    found = [Entry("me", 0, -1, Mass(own, 0.5))]
    for at, (name, theta) in enumerate(others):
        found.append(Entry(name, 1 + NAMES.index(name), at, Mass(theta, weight)))
    return found


def guard(rule: str, *, radius: float = 2.0, way: float = 1.0) -> Guard:
    """A defence that has seen its site go ``way`` in a round."""
    made = Guard(rule, radius)
    made.note_move(way)
    return made


def test_four_shares_of_one_sender_are_one_voice_in_a_median() -> None:
    """Against two honest senders, one liar with four shares is outvoted: each parameter stays
    between the honest values."""
    honest = [("north", torch.ones(3)), ("south", torch.full((3,), 0.5))]
    lies = [("west", torch.full((3,), -9.0))] * 4
    heard = entries(torch.zeros(3), *honest, *lies)
    mixed = guard("median", radius=100).mix(heard, "me")
    assert mixed is not None
    assert float(mixed.theta.min()) >= 0
    assert mixed.w == pytest.approx(3.5)


def test_four_shares_move_a_site_no_farther_than_the_limit_allows_one() -> None:
    """All that a sender has waiting is pulled as one."""
    lies = [("west", torch.tensor([0.0, 900.0]))] * 4
    mixed = guard("clip").mix(entries(torch.zeros(2), *lies), "me")
    assert mixed is not None
    assert float(mixed.theta.norm()) == pytest.approx(2.0 * 4 / 5)


def test_a_voice_is_no_heavier_than_one_share_may_be(tmp_path: Path) -> None:
    """Of four shares that wait, a round adds the oldest two, which weigh as much as one share may;
    the others wait, and every weight stays where it can be counted."""
    with four_sites(tmp_path) as (north, south, *_):
        greet(north, south)
        south.books.skip_to(8)
        for round in (0, 2, 4, 6):
            assert offer(north, south, round).outcome == "stored"
        south.participant.release(Mass(south.participant.initial.clone(), 1.0), leaving=False)
        south.participant.patience = 0.0
        parts, mixed = south.participant.finish()
        assert [part.round for part in parts] == [0, 2]
        assert mixed is not None
        assert south.books.position().weight == HALF + 1
        assert [part.round for part in south.books.parts(every=True)] == [4, 6]


def test_what_is_within_its_limit_is_added_bit_for_bit() -> None:
    """Honest shares, two of them of one sender, give the same bits with a defence as without."""
    generator = torch.Generator().manual_seed(3)
    thetas = [torch.randn(50, generator=generator) for _ in range(4)]
    heard = entries(thetas[0], ("north", thetas[1]), ("north", thetas[2]), ("south", thetas[3]))
    sums = [guard(rule, radius=100).mix(heard, "me") for rule in ("none", "clip")]
    assert sums[0] is not None
    assert sums[1] is not None
    assert torch.equal(sums[0].theta, sums[1].theta)
    assert sums[0].w == sums[1].w


def test_no_sender_can_stretch_the_limit_for_itself() -> None:
    """Others who are far away widen a sender's limit, its own distance does not; with one other
    sender it is that one's distance, with more the lower middle one."""
    own, far = torch.zeros(2), torch.tensor([50.0, 0.0])
    watcher = guard("clip")
    for _ in range(5):
        watcher.mix(entries(own, ("west", far)), "me")
    assert watcher.limit("west") == 2.0
    assert watcher.clipped == ["west"]
    watcher.mix(entries(own, ("north", far / 10)), "me")
    assert watcher.limit("west") == pytest.approx(PEERS * 5)
    watcher.mix(entries(own, ("south", far / 5)), "me")
    assert watcher.limit("west") == pytest.approx(PEERS * 5)


FAR = 1000.0


@pytest.mark.parametrize("weight", [Fraction(1), Fraction(0)])
def test_a_site_that_leaves_hands_on_nothing_that_its_defence_has_not_seen(
    tmp_path: Path, weight: Fraction
) -> None:
    """What had arrived when a site leaves goes through its defence before it is handed on, also if
    the site has no weight of its own; no weight is lost."""
    with four_sites(tmp_path) as (north, south, *_):
        greet(north, south)
        initial = south.participant.initial
        for round in (0, 2, 4):
            assert offer(north, south, round, theta=initial + FAR).outcome == "stored"
        with south.store.transaction() as run:
            run.execute("update site set weight = ?", (spell_weight(weight),))
        south.participant.guard.note_move(0.1)
        mixed = south.participant.take_in(Mass(initial.clone(), float(weight)))
        assert mixed is not None
        assert float((mixed.theta - initial).norm()) <= south.participant.guard.limit("") + 1e-5
        assert south.books.position().weight == weight + Fraction(3, 2)
        assert not south.books.parts(every=True)


def test_a_site_without_weight_takes_nothing_that_its_defence_has_not_seen(tmp_path: Path) -> None:
    """A site that rejoined holds no mass; what it receives is pulled towards the proxy it has."""
    with four_sites(tmp_path) as (north, south, *_):
        greet(north, south)
        initial = south.participant.initial
        offer(north, south, 0, theta=initial + FAR)
        with south.store.transaction() as run:
            run.execute("update site set weight = '0/1'")
        south.participant.release(Mass(initial + 0.01, 0.0), leaving=False)
        south.participant.patience = 0.0
        _, mixed = south.participant.finish()
        assert mixed is not None
        limit = south.participant.guard.limit("north")
        assert float((mixed.theta - initial - 0.01).norm()) == pytest.approx(limit, rel=1e-3)
        assert south.books.position().weight == HALF


def test_a_restart_keeps_the_limit(tmp_path: Path) -> None:
    """What the defence has measured is in the store: a site that is started between a release and
    its exchange pulls no honest share."""
    layout = trial.lay_out(tmp_path, sites=4, rounds=ROUNDS, template=quick())
    settings, folder = sites.read(layout.sites[1])
    with Node(settings, folder, seed=SEED) as node:
        node.books.start()
        node.participant.guard.distances["north"] = 2.5
        initial = node.participant.initial
        node.participant.release(Mass(initial + 0.01, 1.0), leaving=False)
        before = node.participant.guard
        assert before.limit("east") == PEERS * 2.5
    with Node(settings, folder, seed=SEED) as node:
        assert node.participant.guard == before


def test_rounds_that_only_mix_do_not_shorten_the_yardstick(tmp_path: Path) -> None:
    """A site that settles goes nowhere by itself: such rounds are no measure of its way."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=5, template=quick())
    agreed = replace(layout.manifest, settle=3, average=0.5)
    layout = trial.accept_everywhere(layout, agreed)
    with running(layout) as made:
        made.join()
    for node in made.nodes.values():
        ways = list(node.participant.guard.ways)
        assert len(ways) == 2
        assert min(ways) > 0
    assert total_weight(layout) == 3


def test_a_defence_is_on_by_default_and_honest_sites_do_not_notice(tmp_path: Path) -> None:
    """A new site clips. On honest sites the simulation's proxies are the same with and without."""
    assert Site("a").defence.rule == "clip"
    layout = trial.lay_out(tmp_path, sites=4, rounds=4, template=trial.quick_site())
    guarded = predicted(tmp_path)
    for place in layout.sites:
        change(place, lambda site: replace(site, defence=replace(site.defence, rule="none")))
    for one, other in zip(guarded, predicted(tmp_path), strict=True):
        assert one.proxy is not None
        assert other.proxy is not None
        assert torch.equal(one.proxy, other.proxy)


def test_a_setting_of_earlier_releases_is_no_error(tmp_path: Path) -> None:
    """`defence.most_weight` limited weights once; the protocol does now."""
    path = tmp_path / sites.FILE
    path.write_text('name = "a"\n[defence]\nrule = "median"\nmost_weight = 3.0\n')
    assert sites.read(path)[0].defence.rule == "median"
