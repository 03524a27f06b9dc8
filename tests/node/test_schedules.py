"""Random schedules of faults on six real sites (``injector``), and that the injector can fail."""

import socket
import subprocess
import sys
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from proxyfl.node import trial
from proxyfl.node.exchange.store import FILE, Store

from . import accounting, injector
from .accounting import Balance, Body, Key, Sent, total
from .injector import KINDS, draw, possible_kinds
from .links import LOOPBACK, Links
from .network import Site
from .test_protocol import meet, pass_on

HALF = Fraction(1, 2)


def share(sender: str, receiver: str, *, round: int = 3, sha256: str = "a") -> Sent:
    """Half of a site's weight, on its way."""
    return Sent(Key(sender, 1, round, sha256), receiver, HALF)


def stored(*shares: Sent) -> frozenset[tuple[Key, str]]:
    """The verdicts of a site that has stored these shares."""
    return frozenset((sent.key, "stored") for sent in shares)


@pytest.mark.timeout(600)
def test_a_short_schedule_ends_with_exact_weights_and_ledgers(tmp_path: Path) -> None:
    """Nine faults within a few seconds: every site ends, is taken in again, and is accounted
    for."""
    outcome = injector.run(tmp_path, 6, short=True)
    assert outcome.faults == 9


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(30))
def test_random_schedules_end_with_exact_weights_and_ledgers(tmp_path: Path, seed: int) -> None:
    """Twelve faults of all kinds that this machine can have, at random times and sites."""
    if "clock" not in possible_kinds():
        pytest.skip(f"needs {injector.FAKETIME}: apt-get install faketime")
    outcome = injector.run(tmp_path, seed)
    assert outcome.faults >= 9


def test_a_seed_is_a_schedule() -> None:
    """The same seed draws the same faults, of all kinds, in order of time."""
    for seed in range(30):
        faults = draw(seed)
        assert faults == draw(seed)
        assert {fault.kind for fault in faults} == set(KINDS)
        assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert draw(0) != draw(1)


def test_weight_counts_once_wherever_it_is() -> None:
    """Held, under way, under way and stored already, or given up on record; twice while two copies
    of its sender hold it."""
    sent = share("a", "b")
    sender = Body("a", own=HALF, outbox=(sent,))
    assert total([sender, Body("b")]) == 2
    received = Body("b", inbox=HALF, verdicts=stored(sent))
    assert total([sender, received]) == 2
    gave_up = Body("a", own=HALF, written_off=(("b", 3, HALF),))
    assert total([gave_up, Body("b")]) == 2
    assert total([gave_up, received]) == 2
    clone = Body("a", own=HALF, outbox=(sent,))
    assert total([sender, clone, Body("b")]) == 3
    assert total([sender, clone, received]) == Fraction(5, 2)


def test_a_share_that_counts_twice_or_not_at_all_is_noticed() -> None:
    """The balance fails on one too many and on one too few."""
    balance = Balance(2)
    balance.check([Body("a"), Body("b")])
    for weight in (HALF, Fraction(3, 2)):
        with pytest.raises(AssertionError, match="the stores hold"):
            balance.check([Body("a", own=weight), Body("b")])
    other = share("a", "b", sha256="another")
    with pytest.raises(AssertionError, match="the stores hold"):
        balance.check([Body("a", own=HALF, outbox=(other,)), Body("b", verdicts=stored(other))])


def test_a_replaced_store_changes_the_balance_by_what_it_held() -> None:
    """A site has sent half of its weight, is put back to before, and begins again without mass:
    the half that it had sent stays, all else of it is lost."""
    old, peer = Body("a"), Body("b")
    sent = share("a", "b")
    lost = Body("a", own=HALF, outbox=())
    holder = Body("b", inbox=HALF, verdicts=stored(sent))
    balance = Balance(2)
    balance.check([lost, holder])
    balance.replace([lost, holder], [old, holder])
    assert balance.weight == Fraction(5, 2)
    began = replace(old, own=Fraction(0), inbox=Fraction(0), outbox=())
    balance.replace([old, holder], [began, holder])
    balance.check([began, holder])
    assert balance.weight == Fraction(3, 2)
    with pytest.raises(AssertionError, match="the stores hold"):
        balance.check([began, peer])


def test_what_a_forgotten_store_had_sent_may_still_arrive() -> None:
    """A share counts from when a peer stores it, also if its sender no longer knows of it."""
    sent = share("a", "b")
    lost = Body("a", own=HALF, outbox=(sent,))
    began = replace(lost, own=Fraction(0), inbox=Fraction(0), outbox=())
    balance = Balance(2)
    balance.replace([lost, Body("b")], [began, Body("b")])
    assert balance.weight == 1
    balance.check([began, Body("b", inbox=HALF, verdicts=stored(sent))])
    assert balance.weight == Fraction(3, 2)


@pytest.mark.parametrize("told", [1, 2])
def test_a_share_of_a_site_and_its_clone_returns_to_both_or_counts_once(told: int) -> None:
    """Refused, it returns to each of the two, whichever is told first; stored, it counts once."""
    sent = share("a", "b")
    site = Body("a", own=HALF, outbox=(sent,))
    again = Body("a", own=HALF, inbox=HALF)
    refused = Body("b", verdicts=frozenset({(sent.key, "refused")}))
    received = Body("b", inbox=HALF, verdicts=stored(sent))
    settled = replace(site, outbox=())
    for receiver, copy in ((refused, again), (received, settled)):
        balance = Balance(2)
        balance.replace([site, Body("b")], [site, site, Body("b")])
        balance.check([site, site, Body("b")])
        balance.check([*([copy] * told), *([site] * (2 - told)), receiver])
        with pytest.raises(AssertionError, match="the stores hold"):
            balance.check([again, again, received])


def test_what_a_forgotten_store_had_taken_is_sent_again_or_gone() -> None:
    """Its sender still owes it and sends it again; or a late verdict takes it from the outbox."""
    sent = share("b", "a")
    lost = Body("a", inbox=HALF, verdicts=stored(sent))
    sender = Body("b", own=HALF, outbox=(sent,))
    old = Body("a")
    balance = Balance(2)
    balance.replace([lost, sender], [old, sender])
    balance.check([old, sender])
    assert balance.weight == 2
    balance.check([old, replace(sender, outbox=())])
    assert balance.weight == Fraction(3, 2)


def test_what_was_meant_for_a_forgotten_store_counts_for_nothing(tmp_path: Path) -> None:
    """A site begins again while a share for what it was is on its way. It stores the share and
    owes it, and the balance follows; a share that is made afterwards counts in full."""
    stores = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        stores.append(Store(tmp_path / name / FILE))
    a, b = Site("a", stores[0], Fraction(1)), Site("b", stores[1], Fraction(1))

    def bodies() -> list[Body]:
        return [accounting.read(name, tmp_path / name) for name in ("a", "b")]

    def send(weight: Fraction) -> None:
        books = b.exchange.books
        kept = books.position().weight - weight
        books.release(kept=b"1", frames={"a": b"1"}, weights={"b": kept, "a": weight})

    def arrive() -> None:
        meet(a, b)
        b.exchange.handle(pass_on(b, a), b"", time=0)
        b.exchange.books.conclude([], b"1")

    meet(a, b)
    send(HALF)
    balance = Balance(2)
    before = bodies()
    a.exchange.books.begin_again(a.exchange.books.sightings_to_answer(round=1))
    a.open()
    balance.replace(before, bodies())
    assert balance.weight == 1
    arrive()
    balance.check(bodies())
    assert balance.weight == HALF
    send(HALF / 2)
    arrive()
    balance.check(bodies())
    assert balance.weight == HALF


@pytest.mark.parametrize("is_known", [True, False])
def test_what_was_meant_for_a_clone_is_owed_unless_the_site_knew_of_it(
    tmp_path: Path, is_known: bool
) -> None:
    """A peer met a clone last, and its share is meant for that one. The site owes the share if it
    had not heard of the clone when the share came. The store does not tell which came first, and
    the balance follows either."""
    places = {name: tmp_path / name for name in ("a", "b")}
    for place in places.values():
        place.mkdir()
    a, b = (Site(name, Store(places[name] / FILE), Fraction(1)) for name in places)
    meet(a, b)
    copy = tmp_path / "clone"
    a.store.connection.execute("vacuum into ?", (str(copy),))
    clone = Site("a", Store(copy), Fraction(1))
    meet(clone, b)
    half = {"b": HALF, "a": HALF}
    b.exchange.books.release(kept=b"1", frames={"a": b"1"}, weights=half)
    balance = Balance(2)

    def bodies() -> list[Body]:
        return [accounting.read(name, place) for name, place in places.items()]

    def ask() -> None:
        hello = a.exchange.hello("b", time=0)
        answer = b.exchange.handle(hello, b"", time=0)
        assert answer is not None
        a.exchange.handle(answer, b"", time=0)

    balance.check(bodies())
    if is_known:
        ask()
        ask()
    b.exchange.handle(pass_on(b, a), b"", time=0)
    if not is_known:
        balance.check(bodies())
        ask()
    balance.check(bodies())
    assert a.exchange.books.debt() == (0 if is_known else HALF)
    assert balance.weight == (2 if is_known else Fraction(3, 2))
    with pytest.raises(AssertionError, match="the stores hold"):
        balance.check([*bodies()[:1], Body("b")])


def test_a_link_is_cut_for_two_sites_alone() -> None:
    """A relay knows who dials: the cut pair gets nothing, another pair is answered."""
    relay, target = trial.free_ports(2)
    with socket.create_server((LOOPBACK, target)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        diallers = {name: _dialler(relay) for name in ("a", "b")}
        try:
            with Links({"c": (relay, target)}) as links:
                for name, process in diallers.items():
                    links.own(process.pid, name)
                links.set("refuses", [("a", "c")])
                assert [_ask(process) for process in diallers.values()] == ["nothing", "answered"]
                links.heal()
                assert [_ask(process) for process in diallers.values()] == ["answered", "answered"]
        finally:
            for process in diallers.values():
                process.kill()
                process.wait()


_DIAL = """
import socket, sys
for line in sys.stdin:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as made:
        try:
            made.sendall(b"x")
            said = made.recv(1)
        except OSError:
            said = b""
        print("answered" if said else "nothing", flush=True)
"""


def _dialler(port: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _DIAL, str(port)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("dial\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def _echo(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(connection.recv(1))
