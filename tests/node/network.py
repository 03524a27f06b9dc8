"""A simulated network: it drops, delays, repeats, reorders and partitions; sites crash and leave.

The sites are real: ``Exchange`` over real SQLite stores. What is simulated is everything around
them. A schedule is a seed; the same seed gives the same schedule.
"""

import contextlib
import random
import sqlite3
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from proxyfl.errors import TransportError
from proxyfl.gossip.routes import routes
from proxyfl.gossip.topology import make
from proxyfl.node.exchange.messages import Header, Share, parse_weight
from proxyfl.node.exchange.protocol import Exchange
from proxyfl.node.exchange.store import Books, Part, Store, divide

ROUNDS = 1000

Row = tuple[Any, ...]


class Crash(BaseException):
    """The power goes, in the middle of a transaction."""


class FailingStore(Store):
    """A store in memory whose site can die before any statement of a transaction."""

    countdown: int | None = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with super().transaction() as run:
            yield _Counting(self, run)  # type: ignore[misc]  # stands for the connection


class _Counting:
    def __init__(self, store: FailingStore, run: sqlite3.Connection) -> None:
        self._store = store
        self._run = run

    def execute(self, *arguments: object) -> sqlite3.Cursor:
        if self._store.countdown is not None:
            self._store.countdown -= 1
            if self._store.countdown < 0:
                raise Crash
        return self._run.execute(*arguments)


class Site:
    """One site: its mass is a number, so that values are conserved or not, to the last bit."""

    def __init__(self, name: str, store: Store, value: Fraction) -> None:
        self.name = name
        self.store = store
        self.exchange = self.open()
        if not self.exchange.books.mass():
            with store.transaction() as run:
                run.execute("update site set mass = ?", (str(value).encode(),))

    def open(self, *, starts: bool = True) -> Exchange:
        """Start the program; it lives until the next crash. Without ``starts`` it goes on."""
        if isinstance(self.store, FailingStore):
            self.store.countdown = None
        books = Books(self.store, federation="f", me=self.name, version=1, rounds=ROUNDS)
        self.exchange = Exchange(books, refuse_marked)
        if starts:
            self.exchange.books.start()
        return self.exchange

    @property
    def value(self) -> Fraction:
        """What the site holds itself."""
        return Fraction(bytes(self.exchange.books.mass()).decode())


def refuse_marked(share: Share, frame: bytes | memoryview) -> str:
    """Stand in for a receiver's checks: refuse a frame that says so."""
    if bytes(frame[:1]) == b"!":
        raise TransportError("marked as bad")
    return ""


def number(frame: bytes | memoryview) -> Fraction:
    """The value in a frame."""
    return Fraction(bytes(frame).decode().lstrip("!"))


class Network:
    """Sites and the messages between them, driven by one random generator."""

    def __init__(self, seed: int, sites: int, *, store: type[Store] = FailingStore) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.names = [f"s{i}" for i in range(sites)]
        self.topology = make(
            self.random.choice(["exponential", "ring", "random", "complete"]),
            self_weight=self.random.choice([0.5, 1 / 3, 0.1]),
        )
        self.sites = {
            name: Site(name, store(None), Fraction(self.random.randrange(1000), 7))
            for name in self.names
        }
        self.flying: list[tuple[str, Header, bytes]] = []
        self.cut: set[frozenset[str]] = set()
        self.dead: set[str] = set()
        self.total_value = self.values()
        self.total_weight = self.weights()

    def step(self) -> None:
        """One event, whatever it is."""
        events = [
            (self.deliver, 30),
            (self.send, 25),
            (self.release, 12),
            (self.conclude, 12),
            (self.drop, 6),
            (self.repeat, 6),
            (self.partition, 2),
            (self.heal, 2),
            (self.crash, 3),
            (self.leave, 1),
        ]
        names = [event for event, _ in events]
        weights = [weight for _, weight in events]
        self.random.choices(names, weights)[0]()

    def settle(self) -> None:
        """The network heals; everything owed is sent until nothing is left to send."""
        self.cut.clear()
        for site in self.sites.values():
            site.open()
        for _ in range(12):
            for name in self.names:
                for peer in self.sites[name].exchange.books.owed_to():
                    self._hello(name, peer)
            self._deliver_all()
            for name in self.names:
                for peer in self.sites[name].exchange.books.owed_to():
                    self._send_shares(name, peer)
            self._deliver_all()
            for name in self.names:
                site = self.sites[name]
                if site.exchange.books.position().phase == "released":
                    self._conclude(site)
                else:
                    self._absorb(site)
            if not any(self.sites[name].exchange.books.owed_to() for name in self.names):
                return

    def deliver(self) -> None:
        """Some message arrives, not in order."""
        if not self.flying:
            return
        at = self.random.randrange(len(self.flying))
        receiver, header, body = self.flying.pop(at)
        if frozenset((header.sender, receiver)) in self.cut:
            return
        self._arrive(receiver, header, body)

    def send(self) -> None:
        """A site that owes a peer something, or wants to be heard, sends."""
        name, peer = self.random.sample(self.names, 2)
        exchange = self.sites[name].exchange
        if exchange.is_admitted(peer) and self.random.random() < 0.8:
            self._send_shares(name, peer)
        else:
            self._hello(name, peer)

    def release(self) -> None:
        """A site divides its mass and fills its outbox."""
        site = self.sites[self.random.choice(self.names)]
        here = site.exchange.books.position()
        if here.phase == "ready" and here.state == "active":
            self._guarded(site, lambda: self._release(site))

    def conclude(self) -> None:
        """A site waits no longer and adds what has arrived."""
        site = self.sites[self.random.choice(self.names)]
        if site.exchange.books.position().phase == "released":
            self._guarded(site, lambda: self._conclude(site))

    def drop(self) -> None:
        """A message is lost."""
        if self.flying:
            self.flying.pop(self.random.randrange(len(self.flying)))

    def repeat(self) -> None:
        """A message arrives twice."""
        if self.flying:
            self.flying.append(self.random.choice(self.flying))

    def partition(self) -> None:
        """A link is cut."""
        self.cut.add(frozenset(self.random.sample(self.names, 2)))

    def heal(self) -> None:
        """All links work again."""
        self.cut.clear()

    def crash(self) -> None:
        """A site loses everything but its store, now or in the middle of its next transaction."""
        site = self.sites[self.random.choice(self.names)]
        if self.random.random() < 0.5:
            site.open()
        elif isinstance(site.store, FailingStore):
            site.store.countdown = self.random.randrange(6)

    def leave(self) -> None:
        """A site hands its mass on and goes."""
        site = self.sites[self.random.choice(self.names)]
        staying = [s for s in self.sites.values() if s.exchange.books.position().state == "active"]
        here = site.exchange.books.position()
        if here.state != "active" or here.phase != "ready" or len(staying) < 3:
            return

        def go() -> None:
            site.exchange.books.set_state("leaving")
            self._absorb(site)
            self._release(site, leaving=True)
            self._conclude(site)

        self._guarded(site, go)

    def weights(self) -> Fraction:
        """The sum of weights over sites, inboxes and messages in flight."""
        return self._sum(lambda row: parse_weight(row[0]))

    def values(self) -> Fraction:
        """The same sum, of the values."""
        return self._sum(lambda row: number(row[1]))

    def _sum(self, read: Callable[[Row], Fraction]) -> Fraction:
        total = Fraction(0)
        for site in self.sites.values():
            run = site.store.connection
            total += read(run.execute("select weight, mass from site").fetchone())
            for row in run.execute("select weight, frame from inbox").fetchall():
                total += read(row)
            for row in run.execute("select weight, frame, receiver, round from outbox").fetchall():
                if not self._stored(site.name, row[2], row[3]):
                    total += read(row)
        return total

    def _stored(self, sender: str, receiver: str, round: int) -> bool:
        found = (
            self.sites[receiver]
            .store.connection.execute(
                "select 1 from verdicts where sender = ? and round = ? and outcome = 'stored'",
                (sender, round),
            )
            .fetchone()
        )
        return found is not None

    def _guarded(self, site: Site, action: Callable[[], None]) -> None:
        """Do something that the site may not survive; then start it again."""
        try:
            action()
        except Crash:
            site.open()

    def _arrive(self, receiver: str, header: Header, body: bytes) -> None:
        site = self.sites[receiver]

        def take() -> None:
            answer = site.exchange.handle(header, body, time=0)
            if answer is not None:
                self.flying.append((header.sender, answer, b""))

        self._guarded(site, take)

    def _deliver_all(self) -> None:
        while self.flying:
            receiver, header, body = self.flying.pop(0)
            self._arrive(receiver, header, body)

    def _hello(self, name: str, peer: str) -> None:
        self.flying.append((peer, self.sites[name].exchange.hello(peer, time=0), b""))

    def _send_shares(self, name: str, peer: str) -> None:
        exchange = self.sites[name].exchange
        if not exchange.is_admitted(peer):
            return
        for share, frame in exchange.books.outbox(peer):
            self.flying.append((peer, share, frame))

    def _release(self, site: Site, *, leaving: bool = False) -> None:
        exchange = site.exchange
        here = exchange.books.position()
        shares = self._shares(site, leaving=leaving)
        last = site.name if site.name in shares else list(shares)[-1]
        weights = divide(here.weight, shares, last)
        value = site.value
        frames: dict[str, bytes] = {}
        rest = value
        for name in shares:
            if name == last:
                continue
            part = value * Fraction(shares[name])
            rest -= part
            frames[name] = self._frame(part)
        if last != site.name:
            frames[last] = self._frame(rest)
            rest = Fraction(0)
        exchange.books.release(kept=str(rest).encode(), frames=frames, weights=weights)

    def _frame(self, value: Fraction) -> bytes:
        bad = "!" if self.random.random() < 0.05 else ""
        return f"{bad}{value}".encode()

    def _shares(self, site: Site, *, leaving: bool) -> dict[str, float]:
        blocked = site.exchange.books.blocked_peers()
        round = site.exchange.books.position().round
        me = self.names.index(site.name)
        gone = frozenset({me}) if leaving else frozenset()
        plan = routes(self.topology, round, range(len(self.names)), leaving=gone).shares(me)
        shares: dict[str, float] = {}
        for position, share in plan.items():
            name = self.names[position]
            if name in blocked and not leaving:
                name = site.name
            shares[name] = shares.get(name, 0.0) + share
        if leaving:
            active = [n for n in self.names if n != site.name and n not in blocked]
            return {active[0]: 1.0} if active else {site.name: 1.0}
        return shares

    def _absorb(self, site: Site) -> None:
        """Add what lies in the inbox to the mass, within the round."""
        parts = site.exchange.books.parts(every=True)
        if parts:
            total = site.value + _sum_of(parts)
            here = site.exchange.books.position().round
            site.exchange.books.conclude(parts, str(total).encode(), next_round=here)

    def _conclude(self, site: Site) -> None:
        parts = site.exchange.books.parts()
        total = site.value + _sum_of(parts)
        site.exchange.books.conclude(parts, str(total).encode())


def _sum_of(parts: list[Part]) -> Fraction:
    return sum((number(part.frame) for part in parts), Fraction(0))
