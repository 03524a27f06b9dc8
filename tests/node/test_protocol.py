"""The exchange conserves mass whatever the network does, and recognises an old backup."""

import dataclasses
from fractions import Fraction
from pathlib import Path

import pytest

from proxyfl.errors import TransportError
from proxyfl.node.exchange.messages import Hello, Restored, Verdict
from proxyfl.node.exchange.protocol import MOST_UNAPPLIED, RestoredError
from proxyfl.node.exchange.store import Store, divide

from .network import Network, Site

QUICK = 300
LONG = 10_000
EVENTS = 80


def run_schedule(seed: int) -> None:
    """One random schedule; the sums are compared at random cuts and at the end."""
    network = Network(seed, sites=2 + seed % 4)
    cut_every = 1 + network.random.randrange(25)
    for event in range(EVENTS):
        network.step()
        if event % cut_every == 0:
            assert network.weights() == network.total_weight, f"seed {seed}, event {event}"
    network.settle()
    assert network.weights() == network.total_weight, f"seed {seed}, settled"
    assert network.values() == network.total_value, f"seed {seed}, settled"
    for site in network.sites.values():
        assert not site.exchange.books.owed_to(), f"seed {seed}: {site.name} still owes something"


def run_schedules(seeds: range) -> None:
    """Many schedules; the seed of one that fails is printed."""
    for seed in seeds:
        try:
            run_schedule(seed)
        except BaseException:
            print(f"The schedule that failed has seed {seed}.")
            raise


def test_mass_is_conserved_over_random_schedules() -> None:
    """Whatever is dropped, delayed, repeated, reordered, cut off or crashed: sums are exact at any
    cut, and once the network heals every share is settled."""
    run_schedules(range(QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_mass_is_conserved_over_many_random_schedules(block: int) -> None:
    """The same, over 10,000 schedules."""
    each = LONG // 10
    run_schedules(range(QUICK + block * each, QUICK + (block + 1) * each))


def two_sites() -> tuple[Site, Site]:
    """Two sites that have met, and have sent each other a share of round 0."""
    a, b = (Site(name, Store(None), Fraction(1)) for name in ("a", "b"))
    meet(a, b)
    release(a, to=b, frame=b"1/2")
    return a, b


def meet(a: Site, b: Site) -> None:
    """Both say hello and are answered."""
    for one, other in ((a, b), (b, a)):
        answer = other.exchange.handle(one.exchange.hello(other.name, time=0), b"", time=0)
        assert isinstance(answer, Hello)
        one.exchange.handle(answer, b"", time=0)


def release(site: Site, *, to: Site, frame: bytes) -> None:
    """Half of the site's weight goes to ``to``."""
    weights = divide(
        site.exchange.books.position().weight, {site.name: 0.5, to.name: 0.5}, site.name
    )
    site.exchange.books.release(kept=b"1/2", frames={to.name: frame}, weights=weights)


def pass_on(a: Site, b: Site) -> Verdict:
    """Site b takes what a owes it."""
    share, frame = a.exchange.books.outbox(b.name)[0]
    verdict = b.exchange.handle(share, frame, time=0)
    assert isinstance(verdict, Verdict)
    return verdict


def test_a_share_is_added_once_however_often_it_arrives() -> None:
    """A repeated share gets the first one's verdict and changes nothing."""
    a, b = two_sites()
    first, second = pass_on(a, b), pass_on(a, b)
    assert (first.outcome, second.outcome) == ("stored", "stored")
    assert len(b.exchange.books.parts()) == 1
    a.exchange.handle(second, b"", time=0)
    assert not a.exchange.books.owed_to()


def test_a_refused_share_returns_to_its_sender() -> None:
    """What the receiver will never add is the sender's again, with its exact weight."""
    a, b = two_sites()
    a.exchange.books.conclude([], b"1/2")
    a.exchange.handle(pass_on(a, b), b"", time=0)
    release(a, to=b, frame=b"!1/4")
    verdict = pass_on(a, b)
    assert verdict.outcome == "refused"
    a.exchange.handle(verdict, b"", time=0)
    assert [(part.returned_by, part.weight) for part in a.exchange.books.parts()] == [
        ("b", Fraction(1, 4))
    ]


def test_another_share_under_the_same_key_is_refused() -> None:
    """Two different shares of one round and sender: the second is refused, the first stands."""
    a, b = two_sites()
    pass_on(a, b)
    share, _ = a.exchange.books.outbox("b")[0]
    other = dataclasses.replace(share, sha256="0" * 64)
    verdict = b.exchange.handle(other, b"1/2", time=0)
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == "refused"
    assert len(b.exchange.books.parts()) == 1


def test_a_flood_of_shares_is_put_off() -> None:
    """One peer can occupy a few places of the inbox and no more; nothing is decided beyond."""
    a, b = two_sites()
    share, frame = a.exchange.books.outbox("b")[0]
    outcomes = []
    for round in range(MOST_UNAPPLIED + 3):
        verdict = b.exchange.handle(dataclasses.replace(share, round=round), frame, time=0)
        assert isinstance(verdict, Verdict)
        outcomes.append(verdict.outcome)
    assert outcomes == ["stored"] * MOST_UNAPPLIED + ["again"] * 3


def test_a_share_from_an_unknown_start_must_say_hello_first() -> None:
    """After a restart nothing is taken before the site has shown its stamp."""
    a, b = two_sites()
    a.open()
    share, frame = a.exchange.books.outbox("b")[0]
    later = dataclasses.replace(share, tag=a.exchange.books.stamp().tag, past=())
    verdict = b.exchange.handle(later, frame, time=0)
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.reason) == ("again", "say hello first")


def test_a_site_that_left_returns_what_it_never_stored() -> None:
    """Its last hello settles a share in flight: not stored, hence the sender's again."""
    a, b = two_sites()
    b.exchange.books.set_state("left")
    a.exchange.handle(b.exchange.hello("a", time=0), b"", time=0)
    assert not a.exchange.books.owed_to()
    assert a.exchange.books.parts(every=True)[0].returned_by == "b"
    assert a.exchange.books.blocked_peers() == {"b"}


def backed_up(tmp_path: Path) -> tuple[Site, Site]:
    """A site restored from a backup of before round 0, and a peer that has its share of round 0."""
    first = Store(tmp_path / "a.sqlite")
    a, b = Site("a", first, Fraction(1)), Site("b", Store(None), Fraction(1))
    backup = tmp_path / "backup.sqlite"
    first.connection.execute("vacuum into ?", (str(backup),))
    meet(a, b)
    release(a, to=b, frame=b"1/2")
    a.exchange.handle(pass_on(a, b), b"", time=0)
    return Site("a", Store(backup), Fraction(1)), b


def told(site: Site, by: Site) -> None:
    """``site`` says hello and takes the answer that it forgot something."""
    answer = by.exchange.handle(site.exchange.hello(by.name, time=0), b"", time=0)
    assert isinstance(answer, Restored)
    site.exchange.handle(answer, b"", time=0)


def shown(site: Site, to: Site) -> None:
    """``site`` is asked for what ``to`` has seen of it, remembers it and shows it."""
    told(site, to)
    meet(site, to)


def rejoin(site: Site, round: int | None = None) -> int:
    """``site`` begins again; returns how many rounds it answers for."""
    books = site.exchange.books
    losses = books.begin_again(books.sightings_to_answer(round=round))
    return sum(len(loss.rounds) + loss.paid for loss in losses)


def test_an_old_backup_is_recognised(tmp_path: Path) -> None:
    """A site restored from a backup is told that its peer has seen what it does not remember, and
    what to do; a share counts as seen although no hello came after it."""
    restored, b = backed_up(tmp_path)
    with pytest.raises(RestoredError, match=r"before 1\).*proxyfl node rejoin"):
        told(restored, b)
    assert rejoin(restored) == 1
    shown(restored, b)
    assert restored.exchange.books.position().weight == 0


def test_a_witness_who_comes_later_is_heard(tmp_path: Path) -> None:
    """A site that began again too early, because the peer that had seen more was away, is stopped
    when it meets that peer; a replay of what it was told before does not stop it."""
    restored, b = backed_up(tmp_path)
    assert rejoin(restored, round=0) == 0
    with pytest.raises(RestoredError, match="proxyfl node rejoin"):
        told(restored, b)
    stale = b.exchange.handle(restored.exchange.hello("b", time=0), b"", time=0)
    assert isinstance(stale, Restored)
    assert rejoin(restored) == 1
    shown(restored, b)
    restored.exchange.handle(stale, b"", time=0)


def test_a_share_from_before_the_restore_is_a_witness_too(tmp_path: Path) -> None:
    """A share of the earlier life that arrives after a new beginning is refused, and must be paid
    for all the same."""
    first = Store(tmp_path / "a.sqlite")
    a, b = Site("a", first, Fraction(1)), Site("b", Store(None), Fraction(1))
    backup = tmp_path / "backup.sqlite"
    first.connection.execute("vacuum into ?", (str(backup),))
    meet(a, b)
    release(a, to=b, frame=b"1/2")
    restored = Site("a", Store(backup), Fraction(1))
    rejoin(restored, round=0)
    meet(restored, b)
    assert pass_on(a, b).outcome == "refused"
    with pytest.raises(RestoredError, match="proxyfl node rejoin"):
        told(restored, b)
    assert rejoin(restored) == 1


def test_a_farewell_outlives_a_hello_that_it_has_overtaken() -> None:
    """An answer that was on its way when its sender ended arrives last: the end stays known, and
    what the sender says at its next start counts again."""
    a, b = two_sites()
    before = b.exchange.hello("a", time=0, answer=True)
    b.exchange.has_ended = True
    a.exchange.handle(b.exchange.hello("a", time=0), b"", time=0)
    assert a.exchange.has_peer_ended("b")
    a.exchange.handle(before, b"", time=0)
    assert a.exchange.has_peer_ended("b")
    b.open()
    a.exchange.handle(b.exchange.hello("a", time=0), b"", time=0)
    assert not a.exchange.has_peer_ended("b")


def test_a_peer_that_is_behind_is_told_of_the_end_itself() -> None:
    """That this site has released its last round is no end to a peer that still has rounds to go:
    it would wait for this site. A peer that is as far needs no further word."""
    a, b = two_sites()
    for site in (a, b):
        site.exchange.books.rounds = 1
    meet(a, b)
    assert b.exchange.books.peers.known("a").round == 1
    assert not a.exchange.knows_the_end("b")
    release(b, to=a, frame=b"1/2")
    meet(a, b)
    assert a.exchange.knows_the_end("b")
    a, b = two_sites()
    for site in (a, b):
        site.exchange.books.rounds = 1
    meet(a, b)
    a.exchange.has_ended = True
    meet(a, b)
    assert a.exchange.knows_the_end("b")


def test_a_restart_is_no_restore() -> None:
    """A site that was killed and started again is taken in."""
    a, b = two_sites()
    a.open()
    meet(a, b)
    assert pass_on(a, b).outcome == "stored"


def test_parts_must_add_up_to_the_whole() -> None:
    """A release that would create or lose weight is refused, with nothing written."""
    a = Site("a", Store(None), Fraction(1))
    with pytest.raises(TransportError, match="do not add up"):
        a.exchange.books.release(kept=b"1", frames={}, weights={"a": Fraction(9, 10)})
    assert a.exchange.books.position().phase == "ready"


@pytest.mark.parametrize("shares", [{"a": 1 / 3, "b": 2 / 3}, {"b": 0.1, "c": 0.9}, {"b": 1.0}])
def test_weights_are_divided_exactly(shares: dict[str, float]) -> None:
    """The parts add up to the whole, whatever the shares."""
    weight = Fraction(0.7) + Fraction(1, 2**70)
    parts = divide(weight, shares, list(shares)[-1])
    assert sum(parts.values()) == weight
    assert min(parts.values()) >= 0
