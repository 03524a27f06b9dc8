"""Sites of which there are copies: backups are put back, machines set back, clones run.

The sites are real (``network``), and so are their stores; a backup is SQLite's own. Everything that
the protocol is not told is written down here, as the truth to compare with: which copy has made
which release, and who has received it.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from proxyfl.node.exchange.history import Sighting
from proxyfl.node.exchange.messages import Header, Hello, Restored, Share, Verdict, parse_weight
from proxyfl.node.exchange.protocol import RestoredError
from proxyfl.node.exchange.store import Store

from .network import Site

Release = int
"""A release, as the truth knows it: each has a number of its own."""


@dataclass
class Copy:
    """One copy of a site, and what is true of it."""

    site: Site
    trail: tuple[Release, ...] = ()
    """The releases of its history."""
    ledger: Counter[int] = field(default_factory=Counter)
    """Round -> how often it was charged."""
    answered: frozenset[Release] = frozenset()
    """Releases of other copies that it has answered for."""
    received: dict[str, set[Release]] = field(default_factory=dict)
    """Site -> the releases of it that have reached this copy."""
    is_stopped: bool = False

    @property
    def name(self) -> str:
        """The site's name."""
        return self.site.name

    def duplicate(self, *, starts: bool) -> "Copy":
        """The same site once more, from its store as it is. Unless it ``starts``, the program goes
        on where it was: a machine that was set back."""
        store = Store(None)
        self.site.store.connection.backup(store.connection)
        twin = Site.__new__(Site)
        twin.name = self.name
        twin.store = store
        twin.open(starts=starts)
        received = {name: set(releases) for name, releases in self.received.items()}
        return Copy(twin, self.trail, Counter(self.ledger), self.answered, received)


class Federation:
    """Copies of sites, and the messages between them, driven by one random generator."""

    def __init__(self, seed: int, sites: int) -> None:
        self.random = random.Random(seed)
        self.names = [f"s{i}" for i in range(sites)]
        # Where one site alone gives mass away, its copies give away the same mass most often.
        self.givers = self.random.choice([self.names, self.names[:1]])
        self.copies: dict[str, list[Copy]] = {}
        self.backups: dict[str, list[Copy]] = {name: [] for name in self.names}
        self.away: set[str] = set()
        self.flying: list[tuple[str, Header, bytes]] = []
        self.releases = 0
        self.made: dict[tuple[str, int, str], Release] = {}
        self.trails: dict[str, tuple[Release, ...]] = {}
        self.answers: dict[str, tuple[int, frozenset[Release]]] = {}
        """Chapter -> how many rounds its copy had paid for others, and for which releases."""
        self.found = 0
        self.restores = 0
        for name in self.names:
            copy = Copy(Site(name, Store(None), Fraction(1)))
            self.copies[name] = [copy]
            self._note_chapter(copy)

    def step(self) -> None:
        """One event, whatever it is."""
        events = {
            self.deliver: 30,
            self.send: 25,
            self.release: 14,
            self.conclude: 14,
            self.give: 10,
            self.drop: 3,
            self.repeat: 3,
            self.go_or_come: 5,
            self.restart: 2,
            self.back_up: 4,
            self.put_back: 3,
            self.clone: 1,
            self.rejoin: 6,
        }
        self.random.choices(list(events), list(events.values()))[0]()

    def settle(self) -> None:
        """Clones end, everybody is there, and everybody meets everybody, until nothing is new."""
        self.away.clear()
        for name in self.names:
            working = [copy for copy in self.copies[name] if not copy.is_stopped]
            self.copies[name] = [(working or self.copies[name])[-1]]
        for _ in range(30):
            before = (self.found, len(self.flying))
            for copy in self._every():
                if copy.is_stopped:
                    self._rejoin(copy)
            self._exchange_everything()
            owing = any(copy.site.exchange.books.owed_to() for copy in self._every())
            stopped = any(copy.is_stopped for copy in self._every())
            if not owing and not stopped and before == (self.found, len(self.flying)):
                return
        raise AssertionError("it never becomes quiet")

    def weight(self) -> Fraction:
        """The weight of all sites, with what is under way, less their debts."""
        total = Fraction(0)
        for copy in self._every():
            run = copy.site.store.connection.execute
            weight, debt = run("select weight, debt from site").fetchone()
            total += parse_weight(weight) - parse_weight(debt)
            for (part,) in run("select weight from inbox").fetchall():
                total += parse_weight(part)
            for receiver, round, part in run(
                "select receiver, round, weight from outbox"
            ).fetchall():
                if not self._has_stored(receiver, copy.name, round):
                    total += parse_weight(part)
        return total

    def held(self, name: str) -> set[tuple[int, str]]:
        """The releases of ``name`` that its peers hold: rounds and contents."""
        rows: set[tuple[int, str]] = set()
        for copy in self._every():
            rows |= set(
                copy.site.store.connection.execute(
                    "select round, sha256 from verdicts where sender = ? and outcome = 'stored'",
                    (name,),
                ).fetchall()
            )
        return rows

    # --- what happens

    def deliver(self) -> None:
        """Some message arrives, not in order, at a copy that runs."""
        if self.flying:
            at = self.random.randrange(len(self.flying))
            self._arrive(*self.flying.pop(at))

    def send(self) -> None:
        """A site sends what it owes a peer, or says hello."""
        copy = self._some()
        if copy is None:
            return
        peer = self.random.choice([name for name in self.names if name != copy.name])
        exchange = copy.site.exchange
        if exchange.is_admitted(peer) and self.random.random() < 0.8:
            self._send_shares(copy, peer)
        else:
            self.flying.append((peer, exchange.hello(peer, time=0), b""))

    def release(self) -> None:
        """A site gives parts of its mass away, having charged for the round."""
        copy = self._some(self.givers)
        if copy is not None and copy.site.exchange.books.position().phase == "ready":
            self._release(copy)

    def conclude(self) -> None:
        """A site adds what has arrived."""
        copy = self._some(self.givers)
        if copy is not None and copy.site.exchange.books.position().phase == "released":
            self._conclude(copy)

    def give(self) -> None:
        """A site gives much of its mass to one peer, with which it alone can talk for a moment."""
        copy = self._some(self.givers)
        if copy is None:
            return
        peer = self.random.choice([name for name in self.names if name != copy.name])
        aside, self.flying = self.flying, []
        away, self.away = self.away, set()
        for _ in range(3):
            self.flying.append((peer, copy.site.exchange.hello(peer, time=0), b""))
            self._deliver_all()
        here = copy.site.exchange.books.position()
        if here.phase == "released" and not copy.is_stopped:
            self._conclude(copy)
        if not copy.is_stopped and copy.site.exchange.is_admitted(peer):
            self._release(copy, to=peer)
            self._send_shares(copy, peer)
            self._deliver_all()
        self.flying, self.away = aside, away

    def drop(self) -> None:
        """A message is lost."""
        if self.flying:
            self.flying.pop(self.random.randrange(len(self.flying)))

    def repeat(self) -> None:
        """A message arrives twice."""
        if self.flying:
            self.flying.append(self.random.choice(self.flying))

    def go_or_come(self) -> None:
        """A site is away for a while: it neither speaks nor hears."""
        self.away ^= {self.random.choice(self.names)}

    def restart(self) -> None:
        """A program ends and starts again."""
        copy = self._some()
        if copy is not None:
            copy.site.open()
            self._note_chapter(copy)

    def back_up(self) -> None:
        """A copy of a site's store is put aside."""
        copy = self._some(self.givers)
        if copy is not None:
            self.backups[copy.name].append(copy.duplicate(starts=False))

    def put_back(self) -> None:
        """A backup takes the place of what a site was, or a machine is set back while it runs."""
        name = self.random.choice(self.givers)
        if self.backups[name]:
            self.restores += 1
            backup = self.random.choice(self.backups[name])
            restored = backup.duplicate(starts=self.random.random() < 0.7)
            self._note_chapter(restored)
            self.copies[name] = [restored]

    def clone(self) -> None:
        """A second copy of a site runs for a while, or an earlier second copy ends."""
        copy = self._some()
        if copy is None:
            return
        twins = self.copies[copy.name]
        if len(twins) > 1:
            twins.remove(self.random.choice(twins))
        else:
            twin = copy.duplicate(starts=True)
            self._note_chapter(twin)
            twins.append(twin)

    def rejoin(self) -> None:
        """The operator of a stopped site does what it says."""
        stopped = [copy for copy in self._every() if copy.is_stopped]
        stopped = [copy for copy in stopped if copy.name not in self.away]
        if stopped:
            self._rejoin(self.random.choice(stopped))

    # --- how it happens

    def _every(self) -> list[Copy]:
        return [copy for copies in self.copies.values() for copy in copies]

    def _some(self, names: Sequence[str] = ()) -> Copy | None:
        """A copy that runs, of one of the sites ``names``; of any by default."""
        running = [copy for copy in self._every() if not copy.is_stopped]
        running = [copy for copy in running if copy.name not in self.away]
        running = [copy for copy in running if not names or copy.name in names]
        return self.random.choice(running) if running else None

    def _note_chapter(self, copy: Copy) -> None:
        tag = copy.site.exchange.books.stamp().tag
        (paid,) = copy.site.store.connection.execute("select paid from site").fetchone()
        self.trails[tag] = copy.trail
        self.answers[tag] = (paid, copy.answered)

    def _release(self, copy: Copy, to: str | None = None) -> None:
        """Divide the copy's mass between itself and up to two peers, or itself and ``to``."""
        books = copy.site.exchange.books
        here = books.position()
        copy.ledger[here.round] += 1
        blocked = books.blocked_peers()
        peers = [name for name in self.names if name != copy.name and name not in blocked]
        peers = self.random.sample(peers, min(len(peers), self.random.randint(0, 2)))
        if to is not None:
            peers = [] if to in blocked else [to]
        kept = here.weight * self.random.choice([Fraction(1, 2), Fraction(1, 16)])
        weights = {}
        for peer in peers:
            part = (here.weight - kept) / 2
            if part:
                weights[peer] = part if len(peers) > 1 else 2 * part
        weights[copy.name] = here.weight - sum(weights.values())
        self.releases += 1
        copy.trail += (self.releases,)
        frames = {}
        for peer in weights:
            if peer != copy.name:
                frames[peer] = f"{self.releases}".encode()
        books.release(kept=b"1", frames=frames, weights=weights)
        self._note_chapter(copy)
        for peer in frames:
            share, _ = books.outbox(peer)[-1]
            self.made[copy.name, share.round, share.sha256] = self.releases

    def _conclude(self, copy: Copy) -> None:
        books = copy.site.exchange.books
        books.conclude(books.parts(), b"1")

    def _send_shares(self, copy: Copy, peer: str) -> None:
        for share, frame in copy.site.exchange.books.outbox(peer):
            self.flying.append((peer, share, bytes(frame)))

    def _arrive(self, receiver: str, header: Header, body: bytes) -> None:
        if {receiver, header.sender} & self.away:
            return
        running = [copy for copy in self.copies[receiver] if not copy.is_stopped]
        if not running:
            return
        copy = self.random.choice(running)
        if isinstance(header, Share):
            received = copy.received.setdefault(header.sender, set())
            received.add(self.made[header.sender, header.round, header.sha256])
        try:
            answer = copy.site.exchange.handle(header, body, time=0)
        except RestoredError:
            copy.is_stopped = True
            self.found += 1
            return
        if isinstance(header, Restored):
            self._forgive(copy, header)
        if isinstance(header, Share) and isinstance(answer, Verdict):
            self._check_taken(copy, header, answer)
        if answer is not None:
            self.flying.append((header.sender, answer, b""))

    def _forgive(self, copy: Copy, header: Restored) -> None:
        """A site that goes on although a peer has seen another copy of it has lost no release."""
        trail = set(self.trails[header.seen_tag])
        assert trail <= set(copy.trail) | copy.answered, "it goes on, and has forgotten a release"

    def _check_taken(self, copy: Copy, share: Share, verdict: Verdict) -> None:
        """What is stored comes from a history that has, or has answered for, every release of the
        sender that this copy has received."""
        release = self.made[share.sender, share.round, share.sha256]
        is_news = verdict.outcome == "stored" and release not in copy.received.get("stored", set())
        if not is_news:
            return
        copy.received.setdefault("stored", set()).add(release)
        trail = self.trails[share.tag]
        answered: set[Release] = set()
        for other in self._every():
            if other.name == share.sender:
                answered |= other.answered
        missing = copy.received[share.sender] - set(trail) - answered
        # Releases of the same history that came later, and overtook this one.
        later = {other for other in missing if other > release}
        assert not missing - later, "a share was taken from a copy that has forgotten a release"

    def _rejoin(self, copy: Copy) -> None:
        """Ask all who are there what they have seen, pay, and begin again."""
        exchange = copy.site.open()
        self._note_chapter(copy)
        exchange.is_rejoining = True
        for peer in self._every():
            if peer.name == copy.name or peer.is_stopped or peer.name in self.away:
                continue
            for _ in range(70):
                answer = peer.site.exchange.handle(exchange.hello(peer.name, time=0), b"", time=0)
                assert answer is not None
                exchange.handle(answer, b"", time=0)
                known = {name for name, _ in exchange.books.evidence.every()}
                if isinstance(answer, Hello) or peer.name in known:
                    break
        sightings = exchange.books.sightings_to_answer()
        with exchange.books.store.transaction():
            for seen, loss in zip(sightings, exchange.books.begin_again(sightings), strict=True):
                for round in loss.rounds:
                    copy.ledger[round] += 1
                copy.ledger[loss.rounds.start] += loss.paid
                self._answer(copy, seen)
        copy.site.open()
        self._note_chapter(copy)
        copy.is_stopped = False

    def _answer(self, copy: Copy, seen: Sighting) -> None:
        """A copy that answers for another pays for its releases, and once more for what that one
        had paid for, as far as the sighting tells."""
        copy.answered |= set(self.trails[seen.stamp.tag])
        paid, answered = self.answers[seen.stamp.tag]
        if seen.paid >= paid:
            copy.answered |= answered

    def _exchange_everything(self) -> None:
        """Everybody says hello to everybody and sends all that is owed; rounds are concluded."""
        self._deliver_all()
        for _ in range(3):
            for copy in self._every():
                for peer in self.names:
                    if peer != copy.name and not copy.is_stopped:
                        hello = copy.site.exchange.hello(peer, time=0)
                        self.flying.append((peer, hello, b""))
            self._deliver_all()
        for copy in self._every():
            for peer in self.names:
                if not copy.is_stopped and copy.site.exchange.is_admitted(peer):
                    self._send_shares(copy, peer)
        self._deliver_all()
        for copy in self._every():
            here = copy.site.exchange.books.position()
            if not copy.is_stopped and here.phase == "released":
                self._conclude(copy)
            elif not copy.is_stopped:
                books = copy.site.exchange.books
                books.conclude(books.parts(every=True), b"1", next_round=here.round)

    def _deliver_all(self) -> None:
        while self.flying:
            self._arrive(*self.flying.pop(0))

    def _has_stored(self, receiver: str, sender: str, round: int) -> bool:
        question = "select 1 from verdicts where sender = ? and round = ? and outcome = 'stored'"
        return any(
            copy.site.store.connection.execute(question, (sender, round)).fetchone() is not None
            for copy in self.copies[receiver]
        )


def outcome(seed: int, *, sites: int, events: int) -> dict[str, Any]:
    """Run one schedule to its end, and check it; returns what happened in it."""
    federation = Federation(seed, sites)
    for _ in range(events):
        federation.step()
    federation.settle()
    assert federation.weight() <= sites, float(federation.weight())
    for name in federation.names:
        (copy,) = federation.copies[name]
        held = len(federation.held(name))
        assert held <= copy.ledger.total(), f"{name}: {held} held, {copy.ledger.total()} charged"
    return {"found": federation.found, "restores": federation.restores}
