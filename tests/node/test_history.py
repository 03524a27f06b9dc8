"""Copies of a site: a backup that was put back, a machine that was set back, a clone. A peer that
has seen more of a site than a copy remembers takes nothing from it, however far it has run on."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from proxyfl.node import assembly
from proxyfl.node.exchange import auditlog
from proxyfl.node.exchange.history import RECENT
from proxyfl.node.exchange.messages import Restored, Stamp
from proxyfl.node.exchange.protocol import RestoredError
from proxyfl.node.exchange.store import FILE, Store
from proxyfl.node.members import site as sites
from proxyfl.node.observe import status
from proxyfl.node.supervisor import Node
from proxyfl.privacy.ledger import Ledger
from tests.waiting import wait_until

from .copies import outcome
from .federations import Running, change, quick, running, total_weight, trial
from .network import Site
from .test_protocol import meet, pass_on, rejoin, release, shown, told

STEPS = 2
"""Steps of the tests' sites in one round."""


@pytest.mark.parametrize("block", range(4))
def test_copies_are_found_out_over_random_schedules(block: int) -> None:
    """Backups, restores, machines set back, clones, absences, lost and repeated messages: nothing
    is taken from a copy that has forgotten a release which its receiver knows. Once all stopped
    sites have rejoined, weight less debt is at most one per site, and every ledger has at least
    as many rounds as peers hold."""
    happened = [outcome(seed, sites=3 + seed % 2, events=200) for seed in range(block, 80, 4)]
    assert sum(each["restores"] for each in happened) > 10
    assert sum(each["found"] for each in happened) > 5


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_copies_are_found_out_over_many_random_schedules(block: int) -> None:
    """The same, over 2,000 longer schedules."""
    for seed in range(1000 + block, 3000, 10):
        outcome(seed, sites=3 + seed % 3, events=300)


def copied(site: Site, path: Path) -> Path:
    """A backup of a site's store."""
    site.store.connection.execute("vacuum into ?", (str(path),))
    return path


def exchange_round(*pair: Site) -> None:
    """Both release a round to each other, settle it and conclude it."""
    for one, other in (pair, pair[::-1]):
        release(one, to=other, frame=b"1")
    for one, other in (pair, pair[::-1]):
        verdict = pass_on(one, other)
        assert verdict.outcome == "stored"
        one.exchange.handle(verdict, b"", time=0)
    for one in pair:
        one.exchange.books.conclude(one.exchange.books.parts(), b"1")


def test_a_restored_copy_that_has_run_on_with_others_is_found_out(tmp_path: Path) -> None:
    """B is away; a backup of S is made; A and S go on; A goes; S is put back and runs with B for
    longer than with A. A returns, takes nothing from S, and S stops. Rejoining charges the rounds
    that A has seen and S does not remember, whatever round S is in, and owes what is too much."""
    a, b = (Site(name, Store(None), Fraction(1)) for name in ("a", "b"))
    s = Site("s", Store(tmp_path / "s.sqlite"), Fraction(1))
    meet(s, a)
    exchange_round(s, a)
    backup = copied(s, tmp_path / "backup.sqlite")
    for _ in range(3):
        exchange_round(s, a)
    restored = Site("s", Store(backup), Fraction(1))
    meet(restored, b)
    for _ in range(6):
        exchange_round(restored, b)
    release(restored, to=a, frame=b"1")
    share, frame = restored.exchange.books.outbox("a")[0]
    verdict = a.exchange.handle(share, frame, time=0)
    assert verdict.outcome == "again"  # type: ignore[union-attr]  # a verdict
    with pytest.raises(RestoredError, match="proxyfl node rejoin"):
        told(restored, a)
    assert not a.exchange.books.parts(every=True)
    assert rejoin(restored) == 3
    shown(restored, a)
    meet(restored, b)
    books = restored.exchange.books
    held = a.exchange.books.position().weight + b.exchange.books.position().weight
    assert books.position().weight == 0
    assert held - books.debt() <= 3
    assert books.position().round >= 7


def test_a_debt_is_paid_from_what_arrives(tmp_path: Path) -> None:
    """Two copies of S give away the same mass. The one that rejoins has no weight until what it has
    received makes up for that, and the others then hold what there was in the beginning."""
    a, b = (Site(name, Store(None), Fraction(1)) for name in ("a", "b"))
    s = Site("s", Store(tmp_path / "s.sqlite"), Fraction(1))
    backup = copied(s, tmp_path / "backup.sqlite")
    meet(s, a)
    for _ in range(3):
        release(s, to=a, frame=b"1")
        s.exchange.handle(pass_on(s, a), b"", time=0)
        s.exchange.books.conclude([], b"1")
        a.exchange.books.conclude(a.exchange.books.parts(every=True), b"1", next_round=0)
    restored = Site("s", Store(backup), Fraction(1))
    meet(restored, b)
    release(restored, to=b, frame=b"1")
    restored.exchange.handle(pass_on(restored, b), b"", time=0)
    b.exchange.books.conclude(b.exchange.books.parts(every=True), b"1", next_round=0)
    with pytest.raises(RestoredError):
        told(restored, a)
    assert rejoin(restored) == 3
    books = restored.exchange.books
    assert books.debt() == Fraction(1, 2)
    shown(restored, a)
    total = Fraction(0)
    while books.debt():
        release(a, to=restored, frame=b"1")
        a.exchange.handle(pass_on(a, restored), b"", time=0)
        a.exchange.books.conclude([], b"1")
        books.conclude(books.parts(every=True), b"1", next_round=books.position().round)
        assert not (books.debt() and books.position().weight)
    for site in (a, b, restored):
        total += site.exchange.books.position().weight
    assert total == 2 + Fraction(7, 8) + Fraction(1, 2) - Fraction(1, 2)


def test_a_machine_that_is_set_back_with_its_memory_is_found_out(tmp_path: Path) -> None:
    """The program goes on without a start; its next release shows that it has forgotten one."""
    a, s = Site("a", Store(None), Fraction(1)), Site("s", Store(tmp_path / "s"), Fraction(1))
    meet(s, a)
    backup = copied(s, tmp_path / "backup")
    exchange_round(s, a)
    set_back = Site.__new__(Site)
    set_back.name, set_back.store = "s", Store(backup)
    set_back.open(starts=False)
    for _ in range(4):
        books = set_back.exchange.books
        books.release(kept=b"1", frames={}, weights={"s": books.position().weight})
        books.conclude([], b"1")
    with pytest.raises(RestoredError):
        told(set_back, a)


def test_a_clone_that_has_released_nothing_costs_nothing(tmp_path: Path) -> None:
    """A copy that was started by mistake says hello: it is not taken in, and stops. The site itself
    is asked about it, answers for it and goes on."""
    a, s = Site("a", Store(None), Fraction(1)), Site("s", Store(tmp_path / "s"), Fraction(1))
    meet(s, a)
    backup = copied(s, tmp_path / "backup")
    exchange_round(s, a)
    clone = Site("s", Store(backup), Fraction(1))
    with pytest.raises(RestoredError):
        told(clone, a)
    shown(s, a)
    exchange_round(s, a)
    assert rejoin(clone) == 1


def test_a_clone_that_has_released_stops_the_site_too(tmp_path: Path) -> None:
    """What the clone has released is on no ledger but the clone's."""
    a, b = (Site(name, Store(None), Fraction(1)) for name in ("a", "b"))
    s = Site("s", Store(tmp_path / "s"), Fraction(1))
    meet(s, a)
    clone = Site("s", Store(copied(s, tmp_path / "backup")), Fraction(1))
    exchange_round(s, a)
    meet(clone, b)
    exchange_round(clone, b)
    with pytest.raises(RestoredError):
        told(clone, a)
    with pytest.raises(RestoredError):
        told(s, a)
    assert rejoin(s) == 1


class NoSums:
    """Says nothing of masked sums, and lacks nothing."""

    def spell(self) -> str:
        """No view."""
        return ""


def test_a_vector_that_a_backup_forgets_within_a_round_is_found_out(tmp_path: Path) -> None:
    """A site of masked sums starts again in the middle of a round and sends another vector. A
    backup from between the two has the same round, and lacks a charge: it is stopped, and not told
    to rejoin, which masked sums do not allow."""
    a, s = Site("a", Store(None), Fraction(1)), Site("s", Store(tmp_path / "s"), Fraction(1))
    s.exchange.books.save_sums("{}", proxy=b"proxy")
    s.exchange.books.save_sums("{}", charges=[])
    s.open()
    meet(s, a)
    backup = copied(s, tmp_path / "backup")
    s.exchange.books.save_sums("{}", charges=[])
    meet(s, a)
    restored = Site("s", Store(backup), Fraction(1))
    restored.exchange.sums = NoSums()  # type: ignore[assignment]  # all that a hello needs
    with pytest.raises(RestoredError, match="the newest store and ledger back") as stopped:
        told(restored, a)
    assert "rejoin" not in str(stopped.value)


def test_a_peer_that_was_away_for_long_is_shown_what_it_asks_for(tmp_path: Path) -> None:
    """More starts and rounds than a hello lists: the peer asks, the site shows it, nobody stops."""
    a, s = Site("a", Store(None), Fraction(1)), Site("s", Store(None), Fraction(1))
    meet(s, a)
    for _ in range(2 * RECENT):
        s.open()
    hello = s.exchange.hello("a", time=0)
    assert len(hello.past) == RECENT
    assert isinstance(a.exchange.handle(hello, b"", time=0), Restored)
    shown(s, a)
    exchange_round(s, a)


def test_where_the_parting_is_not_known_every_round_is_charged(tmp_path: Path) -> None:
    """A witness whose memory does not reach back to what both copies have in common."""
    a, s = Site("a", Store(None), Fraction(1)), Site("s", Store(tmp_path / "s"), Fraction(1))
    for _ in range(4):
        books = s.exchange.books
        books.release(kept=b"1", frames={}, weights={"s": books.position().weight})
        books.conclude([], b"1")
    backup = copied(s, tmp_path / "backup")
    for _ in range(2 * RECENT):
        s.open()
    meet(s, a)
    exchange_round(s, a)
    restored = Site("s", Store(backup), Fraction(1))
    with pytest.raises(RestoredError):
        told(restored, a)
    assert rejoin(restored) == 5
    shown(restored, a)


def test_a_lie_about_rounds_hides_nothing(tmp_path: Path) -> None:
    """A member that knows a lost copy's chapters says that it has seen no round there: what an
    honest peer has seen must be paid for all the same."""
    a, s = Site("a", Store(None), Fraction(1)), Site("s", Store(tmp_path / "s"), Fraction(1))
    liar = Site("l", Store(None), Fraction(1))
    meet(s, a)
    backup = copied(s, tmp_path / "backup")
    exchange_round(s, a)
    restored = Site("s", Store(backup), Fraction(1))
    seen = a.exchange.books.peers.known("s").seen
    stamp = Stamp(seen.stamp.epoch, seen.stamp.boot, seen.stamp.tag, 2**40)
    lie = liar.exchange._report_seen("s", seen)
    lie = Restored(
        *liar.exchange._start("s", liar.exchange.books.stamp()),
        *stamp.numbers,
        seen_round=0,
        seen_past=lie.seen_past,
        seen_paid=0,
        seen_debt="0/1",
    )
    restored.exchange.handle(lie, b"", time=0)
    with pytest.raises(RestoredError):
        told(restored, a)
    assert rejoin(restored) == 1
    assert restored.exchange.books.debt() == Fraction(0)


def test_repeated_restores_are_paid_for_in_full(tmp_path: Path) -> None:
    """The same backup is put back twice: the second copy answers for what the first one released,
    and for what the first one had answered for."""
    a, s = Site("a", Store(None), Fraction(1)), Site("s", Store(tmp_path / "s"), Fraction(1))
    meet(s, a)
    backup = copied(s, tmp_path / "backup")
    again = tmp_path / "again"
    shutil.copy(backup, again)
    for _ in range(3):
        exchange_round(s, a)
    first = Site("s", Store(backup), Fraction(1))
    with pytest.raises(RestoredError):
        told(first, a)
    assert rejoin(first) == 3
    shown(first, a)
    for _ in range(2):
        books = first.exchange.books
        release(a, to=first, frame=b"1")
        a.exchange.handle(pass_on(a, first), b"", time=0)
        books.release(kept=b"1", frames={}, weights={"s": books.position().weight})
        books.conclude(books.parts(every=True), b"1")
        a.exchange.books.conclude([], b"1")
    meet(first, a)
    second = Site("s", Store(again), Fraction(1))
    with pytest.raises(RestoredError):
        told(second, a)
    assert rejoin(second) == 3 + 2 + 3


def test_a_rejoined_site_releases_no_round_twice(tmp_path: Path) -> None:
    """S had released its second round when it was stopped, and rejoins at the third. If it released
    the second once more, its count of rounds would not show that, and a copy of S that has answered
    for all before would go on."""
    a, b = (Site(name, Store(None), Fraction(1)) for name in ("a", "b"))
    s = Site("s", Store(tmp_path / "s"), Fraction(1))
    meet(s, a)
    lost = Site("s", Store(copied(s, tmp_path / "lost")), Fraction(1))
    meet(lost, b)
    exchange_round(lost, b)
    exchange_round(s, a)
    release(s, to=a, frame=b"1")
    s.exchange.handle(pass_on(s, a), b"", time=0)
    copy = Site("s", Store(copied(s, tmp_path / "copy")), Fraction(1))
    with pytest.raises(RestoredError):
        told(s, b)
    assert rejoin(s) == 1
    meet(s, a)
    with pytest.raises(RestoredError):
        told(copy, a)
    assert rejoin(copy) == 1
    s.exchange.books.release(kept=b"1", frames={}, weights={"s": Fraction(0)})
    shown(s, a)
    with pytest.raises(RestoredError):
        told(copy, a)
    assert rejoin(copy) == 1


@pytest.mark.parametrize("has_met", [True, False])
@pytest.mark.parametrize("rejoins_first", [True, False])
def test_a_share_that_two_copies_have_stored_counts_once(
    tmp_path: Path, has_met: bool, rejoins_first: bool
) -> None:
    """A's share reaches S, whose verdict is lost, and then the restored S, before or after that one
    rejoins; S has given all of it to B. The restored copy owes what counts twice."""
    a, b = (Site(name, Store(None), Fraction(1)) for name in ("a", "b"))
    s = Site("s", Store(tmp_path / "s"), Fraction(1))
    if has_met:
        meet(s, a)
    release(a, to=s, frame=b"1")
    backup = copied(s, tmp_path / "backup")
    meet(s, a)
    assert pass_on(a, s).outcome == "stored"
    books = s.exchange.books
    books.conclude(books.parts(every=True), b"1", next_round=0)
    meet(s, b)
    books.release(kept=b"1", frames={"b": b"1"}, weights={"b": Fraction(3, 2)})
    assert pass_on(s, b).outcome == "stored"
    restored = Site("s", Store(backup), Fraction(1))
    books = restored.exchange.books
    if rejoins_first:
        with pytest.raises(RestoredError):
            told(restored, b)
        assert rejoin(restored) == 1
    meet(restored, a)
    assert pass_on(a, restored).outcome == "stored"
    books.conclude(books.parts(every=True), b"1", next_round=books.position().round)
    if not rejoins_first:
        with pytest.raises(RestoredError):
            told(restored, b)
        assert rejoin(restored) == 1
    taken = sum(part.weight for part in b.exchange.books.parts(every=True))
    held = a.exchange.books.position().weight + 1 + taken
    assert held + books.position().weight - books.debt() == 3


def test_a_lost_copy_of_a_lost_copy_is_owed_for(tmp_path: Path) -> None:
    """S and a clone of S give the same mass to A and to B. A third copy, from an older backup,
    answers for both: their mass counts once for each."""
    a, b = (Site(name, Store(None), Fraction(1)) for name in ("a", "b"))
    s = Site("s", Store(tmp_path / "s"), Fraction(1))
    backup = copied(s, tmp_path / "backup")
    books = s.exchange.books
    books.release(kept=b"1", frames={}, weights={"s": Fraction(1)})
    books.conclude([], b"1")
    clone = Site("s", Store(copied(s, tmp_path / "clone")), Fraction(1))
    for copy, peer in ((s, a), (clone, b)):
        meet(copy, peer)
        copy.exchange.books.release(kept=b"", frames={peer.name: b"1"}, weights={peer.name: 1})
        assert pass_on(copy, peer).outcome == "stored"
    third = Site("s", Store(backup), Fraction(1))
    for peer in (a, b):
        with pytest.raises(RestoredError):
            told(third, peer)
    assert rejoin(third) >= 3
    held = Fraction(2)
    for peer in (a, b):
        held += sum(part.weight for part in peer.exchange.books.parts(every=True))
    assert held + third.exchange.books.position().weight - third.exchange.books.debt() == 3


def stored_of(place: Path, sender: str) -> set[tuple[int, str]]:
    """The shares of ``sender`` that the site in ``place`` has stored."""
    store = Store(place / FILE)
    rows = store.connection.execute(
        "select round, sha256 from verdicts where sender = ? and outcome = 'stored'", (sender,)
    ).fetchall()
    store.close()
    return set(rows)


def run_together(made: Running, places: Sequence[Path], *, rounds: int) -> None:
    """Run sites, with real noise, until each has done at least so many rounds more; stop them."""
    done = {place: len(status.rows(place)) + rounds for place in places}
    for place in places:
        made.start(place, seed=None)
    wait_until(lambda: all(len(status.rows(place)) >= done[place] for place in places))
    names = [place.name for place in places]
    for name in names:
        made.nodes[name].stopping.set()
    made.join(names)


def test_real_sites_find_out_a_backup_that_has_run_on(tmp_path: Path) -> None:
    """Three real sites with real noise. East stops; a backup of south is made; north and south go
    on; north stops; south is put back and runs with east; north returns: it takes nothing more from
    south, which stops. After rejoining, south's ledger has at least the steps of all that its
    peers hold, and the weights of all are at most 3."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=30, template=quick(patience=1.0))
    north, south, east = layout.sites
    with running(layout, only=[]) as made:
        run_together(made, layout.sites, rounds=2)
        backup = tmp_path / "backup"
        shutil.copytree(south, backup)
        run_together(made, [north, south], rounds=4)
        shutil.rmtree(south)
        shutil.copytree(backup, south)
        run_together(made, [south, east], rounds=7)
        assert set(made.ended.values()) == {"stopped"}
        before = stored_of(north, "south")
        assert len(before) > 1
        made.start(north, seed=None)
        made.start(south, seed=None)
        made.join(["south"])
        refused = made.ended["south"]
        assert isinstance(refused, RestoredError)
        assert stored_of(north, "south") == before
        settings, folder = sites.read(south)
        with Node(settings, folder) as node:
            rejoined = node.begin_again()
        assert rejoined.charged >= 1
        held = stored_of(north, "south") | stored_of(east, "south")
        assert Ledger.read(south / assembly.LEDGER_FILE).steps >= STEPS * len(held)
        made.start(south, seed=None)
        made.start(east, seed=None)
        made.join()
    assert set(made.ended.values()) == {"finished"}
    assert total_weight(layout) <= 3
    held = stored_of(north, "south") | stored_of(east, "south")
    assert Ledger.read(south / assembly.LEDGER_FILE).steps >= STEPS * len(held)
    events = [entry["event"] for entry in auditlog.read(south / auditlog.FILE)]
    assert "began again" in events


def test_of_two_copies_that_run_at_once_at_most_one_goes_on(tmp_path: Path) -> None:
    """A copy of south's folder runs beside south, with real noise. A copy that has not released
    what a peer has seen of the other one stops: one of the two, or both if both have released. Both
    sides say so. Whichever goes on, after rejoining if it must, has a ledger that covers all that
    its peers hold, and the weights are at most 3."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=500, template=quick(patience=2.0))
    north, south, east = layout.sites
    clone = tmp_path / "elsewhere" / "south"
    others = Running()
    with running(layout, only=[]) as made:
        run_together(made, layout.sites, rounds=2)
        shutil.copytree(south, clone)
        change(clone, lambda site: replace(site, network=replace(site.network, listen="")))
        for place in layout.sites:
            made.start(place, seed=None)
        others.start(clone, seed=None)
        copies = {south: made, clone: others}
        try:
            wait_until(lambda: any("south" in run.ended for run in copies.values()))
            before = {place: len(status.rows(place)) for place in copies}
            wait_until(lambda: _is_settled(copies, before))
        finally:
            others.nodes["south"].stopping.set()
            others.join()
        stopped = []
        for place, run in copies.items():
            if isinstance(run.ended.get("south"), RestoredError):
                stopped.append(place)
                (reason, *_) = status.of_folder(*sites.read(place))["stopped_by"].values()
                assert (reason["code"], "node rejoin" in reason["text"]) == ("old-backup", True)
        assert stopped
        peers = [auditlog.read(place / auditlog.FILE) for place in (north, east)]
        assert any(entry["event"] == "second copy" for entries in peers for entry in entries)
        (survivor, *_) = [place for place in copies if place not in stopped] or [south]
        for node in made.nodes.values():
            node.stopping.set()
        made.join()
        if survivor in stopped:
            for place in (north, east):
                made.start(place, seed=None)
            settings, folder = sites.read(survivor)
            with Node(settings, folder) as node:
                assert node.begin_again().charged >= 1
            made.start(survivor, seed=None)
            rounds = len(status.rows(survivor))
            wait_until(lambda: len(status.rows(survivor)) >= rounds + 3)
            for node in made.nodes.values():
                node.stopping.set()
            made.join()
    held = stored_of(north, "south") | stored_of(east, "south")
    assert Ledger.read(survivor / assembly.LEDGER_FILE).steps >= STEPS * len(held)
    assert total_weight(replace(layout, sites=(north, survivor, east))) <= 3


def _is_settled(copies: Mapping[Path, Running], before: Mapping[Path, int]) -> bool:
    """True if each copy of south has stopped or gone on for some rounds."""
    return all(
        "south" in run.ended or len(status.rows(place)) >= before[place] + 5
        for place, run in copies.items()
    )
