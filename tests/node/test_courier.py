"""When the courier sends what: nothing that is asked for is lost, nobody waits for the silent."""

import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from proxyfl.errors import PeerTimeout
from proxyfl.node import participation, reachability
from proxyfl.node.exchange import courier as couriers
from proxyfl.node.exchange import messages
from proxyfl.node.exchange.courier import Courier
from proxyfl.node.exchange.messages import Hello, Share
from proxyfl.node.exchange.reasons import Reasons
from proxyfl.node.exchange.service import Service
from proxyfl.node.members.identity import Card, Identity
from proxyfl.node.members.manifest import Input, Manifest
from proxyfl.node.reachability import Reachability
from proxyfl.transport import wire
from tests.waiting import PATIENCE, wait_until

from .test_service import Corner, asked

NEVER = 1e6
"""A heartbeat that no test lives to see: what goes out was asked for."""

Carry = Callable[..., bytes]


def made(folder: Path, count: int) -> list[Corner]:
    """So many members of one federation."""
    names = [f"site-{at}" for at in range(count)]
    cards = []
    for name in names:
        identity = Identity.create(folder / name, name)
        cards.append(identity.card("127.0.0.1:1"))
    classes = Input((1,), ("0", "1"))
    manifest = Manifest("f", rounds=9, input=classes, members=tuple(cards))
    return [Corner(folder, name, manifest) for name in names]


def answered_by(service: Service, certificate: bytes) -> Carry:
    """Messages reach ``service`` at once, as over a connection."""

    def carry(card: Card, head: bytes, body: bytes | memoryview = b"") -> bytes:
        return service.answer(certificate, iter([head + bytes(body)]))

    return carry


def courier_of(site: Corner, carry: Carry) -> Courier:
    """The site's courier, whose messages go wherever ``carry`` takes them."""
    found = Courier(site.service, largest=1 << 20, heartbeat=NEVER)
    found.ways.carry = carry  # type: ignore[method-assign]  # the network of these tests
    return found


def test_silent_peers_do_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More members than the courier visits at once take a call and never answer it: the last of
    the list is spoken to all the same."""
    monkeypatch.setattr(couriers, "HUNG", 0.1)
    sites = made(tmp_path, 10)
    end = threading.Event()
    reached: list[str] = []

    def carry(card: Card, head: bytes, body: bytes | memoryview = b"") -> bytes:
        if card.name != "site-9":
            end.wait(PATIENCE)
        reached.append(card.name)
        return b""

    courier = courier_of(sites[0], carry)
    courier.start()
    try:
        wait_until(lambda: reached)
        assert reached == ["site-9"]
    finally:
        end.set()
        courier.stop()


def test_a_hello_that_is_asked_for_during_a_visit_still_goes_out(tmp_path: Path) -> None:
    """The site ends while a hello is under way: the peer is told, though no heartbeat is due."""
    here, there = made(tmp_path, 2)
    go, begun = threading.Event(), threading.Event()
    ends: list[bool] = []
    deliver = answered_by(there.service, here.certificate)

    def carry(card: Card, head: bytes, body: bytes | memoryview = b"") -> bytes:
        header, _ = messages.begin(head)
        assert isinstance(header, Hello)
        ends.append(header.ended)
        begun.set()
        go.wait(PATIENCE)
        return deliver(card, head, body)

    courier = courier_of(here, carry)
    courier.start()
    try:
        assert begun.wait(PATIENCE)
        here.exchange.has_ended = True
        courier.say_hello(["site-1"])
        go.set()
        wait_until(lambda: there.exchange.has_peer_ended("site-0"))
        wait_until(lambda: here.exchange.knows_the_end("site-1"))
        assert ends == [False, True]
    finally:
        go.set()
        courier.stop()


def test_a_share_that_is_made_during_a_visit_still_goes_out(tmp_path: Path) -> None:
    """The visit had looked for shares already: the new one is sent, not kept for the heartbeat."""
    here, there = made(tmp_path, 2)
    go, begun = threading.Event(), threading.Event()
    deliver = answered_by(there.service, here.certificate)

    def carry(card: Card, head: bytes, body: bytes | memoryview = b"") -> bytes:
        begun.set()
        go.wait(PATIENCE)
        return deliver(card, head, body)

    courier = courier_of(here, carry)
    courier.start()
    try:
        assert begun.wait(PATIENCE)
        release(here)
        courier.send_shares(["site-1"])
        go.set()
        wait_until(lambda: not here.books.owed_to())
    finally:
        go.set()
        courier.stop()


def test_what_a_peer_puts_off_is_sent_again_ever_later(tmp_path: Path) -> None:
    """A peer that has not accepted the new version yet is not sent the whole share five times a
    second; when it has, the share arrives."""
    here, there = made(tmp_path, 2)
    sent: list[float] = []
    deliver = answered_by(there.service, here.certificate)

    def carry(card: Card, head: bytes, body: bytes | memoryview = b"") -> bytes:
        if isinstance(messages.begin(head)[0], Share):
            sent.append(time.monotonic())
        return deliver(card, head, body)

    here.books.version = 2
    release(here)
    courier = courier_of(here, carry)
    courier.start()
    try:
        wait_until(lambda: len(sent) >= 3)
        for at, least in enumerate((0.2, 0.4)):
            assert sent[at + 1] - sent[at] > 0.6 * least
        assert here.books.owed_to() == {"site-1"}
        there.books.version = 2
        wait_until(lambda: not here.books.owed_to())
    finally:
        courier.stop()


def test_a_folder_that_cannot_be_read_is_looked_at_again(tmp_path: Path) -> None:
    """A share that is away for a moment, a stick that was pulled out: the site goes on."""
    here, _ = made(tmp_path, 2)
    looks: list[str] = []

    class Flaky:
        def waiting(self, name: str) -> list[tuple[Path, bytes]]:
            looks.append(name)
            raise OSError("stale file handle")

    courier = courier_of(here, lambda *_: b"")
    courier.folder = Flaky()  # type: ignore[assignment]  # stands for a folder that fails
    courier.start()
    try:
        wait_until(lambda: len(looks) >= 2)
        assert here.service.failure is None
        assert here.log.counts["unreachable"] >= 2
    finally:
        courier.stop()


class Leaver:
    """A site at its end, beside a peer whose answers the test decides on."""

    def __init__(self, site: Corner, courier: Courier, *, silence: float) -> None:
        self.speaks = silence < PATIENCE
        reasons = Reasons(site.books.store)
        reach = Reachability(site.service, courier, reasons, site.folder, patience=PATIENCE)
        reach.is_there = (  # type: ignore[method-assign]  # the test decides
            lambda name: self.speaks or courier.reachable(name)
        )
        participant: Any = SimpleNamespace(
            books=site.books,
            courier=courier,
            exchange=site.exchange,
            reach=reach,
            patience=PATIENCE,
            is_away=lambda name: False,
            check=lambda: None,
        )
        site.exchange.has_ended = True
        self.ending = participation.Ending(participant, site.service)
        self.thread = threading.Thread(target=self.ending.farewell)
        self.thread.start()


def test_a_farewell_takes_as_long_as_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy peer answers late, and fails to at first: the site stays until it knows.

    Ten seconds were too few for 63 peers on two cores; four of them waited out their patience."""
    monkeypatch.setattr(participation, "FAREWELL_SECONDS", 0.0)
    here, there = made(tmp_path, 2)
    attempts: list[float] = []
    deliver = answered_by(there.service, here.certificate)

    def carry(card: Card, head: bytes, body: bytes | memoryview = b"") -> bytes:
        attempts.append(time.monotonic())
        if len(attempts) < 4:
            raise PeerTimeout("busy")
        return deliver(card, head, body)

    courier = courier_of(here, carry)
    leaver = Leaver(here, courier, silence=0.0)
    courier.start()
    try:
        leaver.thread.join(PATIENCE)
        assert not leaver.thread.is_alive()
        assert there.exchange.has_peer_ended("site-0")
    finally:
        courier.stop()


def test_nobody_stays_for_a_peer_that_is_gone(tmp_path: Path) -> None:
    """A peer that neither answers nor speaks needs no farewell."""
    here, _ = made(tmp_path, 2)

    def carry(card: Card, head: bytes, body: bytes | memoryview = b"") -> bytes:
        raise PeerTimeout("gone")

    courier = courier_of(here, carry)
    courier.start()
    try:
        leaver = Leaver(here, courier, silence=PATIENCE)
        leaver.thread.join(PATIENCE)
        assert not leaver.thread.is_alive()
    finally:
        courier.stop()


def release(site: Corner) -> None:
    """Round 0 of ``site``: half of its mass is for the other."""
    half = Fraction(1, 2)
    message = wire.Message(0, 0, 0.5, torch.ones(site.size), "model")
    site.books.release(
        kept=b"mine",
        frames={"site-1": wire.encode(message)},
        weights={"site-0": half, "site-1": half},
    )


@pytest.fixture
def listener(tmp_path: Path) -> tuple[Corner, Corner, Reachability]:
    """A site that listens to a peer which has said its end before its last round."""
    here, there = made(tmp_path, 2)
    courier = courier_of(here, lambda *_: b"")
    reasons = Reasons(here.books.store)
    reach = Reachability(here.service, courier, reasons, here.folder, patience=PATIENCE)
    there.exchange.has_ended = True
    asked(here, there, there.hello(here))
    return here, there, reach


def test_a_peer_that_talks_on_after_its_end_is_not_waited_for(
    listener: tuple[Corner, Corner, Reachability], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was stopped may only be started anew, and is waited for a while. One that has said
    its end and goes on talking stays for others: to stay for it in turn would end with patience."""
    here, there, reach = listener
    assert not reach.not_waited_for()
    monkeypatch.setattr(reachability, "RESTART_SECONDS", 0.3)

    def is_waited_for_no_more() -> bool:
        asked(here, there, there.hello(here))
        return reach.not_waited_for() == {"site-1"}

    wait_until(is_waited_for_no_more)


def test_no_peer_is_waited_for_after_the_federations_date(
    listener: tuple[Corner, Corner, Reachability], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that has said its end begins no further round once the manifest's date has passed."""
    _, _, reach = listener
    assert not reach.not_waited_for()
    monkeypatch.setattr(Manifest, "is_over", lambda agreed, now: True)
    assert reach.not_waited_for() == {"site-1"}
