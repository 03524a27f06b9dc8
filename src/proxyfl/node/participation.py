"""A site's part in one round's exchange: give shares away, wait for those of others, add up.

Guarantees:
    * what is given away lies in the outbox in the same transaction in which it leaves the mass;
    * waiting ends after ``patience`` seconds at the latest, and who was missing is said;
    * a peer that was missed is not waited for again until it is heard from.
"""

import time
from collections.abc import Mapping, Sequence, Set
from fractions import Fraction
from pathlib import Path

from proxyfl import params
from proxyfl.errors import TransportError
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import MassChannel
from proxyfl.gossip.pushsum import Mass
from proxyfl.node import keeping
from proxyfl.node.defence import Guard
from proxyfl.node.exchange.books import Part, divided
from proxyfl.node.exchange.courier import Courier
from proxyfl.node.exchange.protocol import Exchange
from proxyfl.node.mixing import Mixer
from proxyfl.node.observe.auditlog import AuditLog

FIRST_ASK = 0.5
SLOWEST_ASK = 4.0
"""The seconds after which a waiting round asks the missing peers again: twice as many each time."""

SETTLE_SECONDS = 10.0
"""The longest wait of a round for the verdicts on the shares before."""

SPEAKS_SECONDS = 5.0
"""A peer that was heard from within this time is there."""


class Participant:
    """One site's exchange, as the round loop calls it."""

    def __init__(
        self,
        client: Client,
        exchange: Exchange,
        mixer: Mixer,
        courier: Courier,
        log: AuditLog,
        folder: Path,
        *,
        patience: float,
        guard: Guard,
    ) -> None:
        self.client = client
        self.exchange = exchange
        self.books = exchange.books
        self.mixer = mixer
        self.courier = courier
        self.log = log
        self.folder = folder
        self.patience = patience
        self.guard = guard
        self.initial = params.flatten(client.learner.shared)
        self.missed: dict[str, float] = {}
        self.heard_of = 0
        self.expected = 0
        self.mass_in = 0.0
        self.mass_out = 0.0

    def __call__(
        self,
        masses: Mapping[int, Mass],
        present: Sequence[int],
        leaving: Set[int],
        post: MassChannel,
    ) -> dict[int, Mass]:
        """Exchange this site's mass for that of the next round."""
        mass = masses[self.client.id]
        gone = self.client.id in leaving
        if gone:
            mass = self._withdrawn(mass)
        sent = self.release(mass, leaving=gone)
        counters = post.of(self.client.id)
        counters.messages_sent += len(sent)
        counters.bytes_sent += sum(sent.values())
        if gone:
            self.books.conclude([], b"")
            return {}
        parts, mixed = self.finish()
        self.mass_in = float(sum(part.weight for part in parts))
        for part in parts:
            if not part.returned_by:
                counters.messages_received += 1
                counters.bytes_received += len(part.frame)
        if mixed is None:
            return {}
        return {self.client.id: mixed}

    def release(self, mass: Mass, *, leaving: bool) -> dict[str, int]:
        """Put this round's shares into the outbox; return their sizes by receiver."""
        here = self.books.position()
        held = self.books.mass()
        before = self.mixer.kept(held) if held else self.initial
        way = mass.theta - before
        self.guard.moved(float(way.norm()))
        self.await_settlement()
        left = self.left()
        blocked = self.books.blocked()
        shares = self.mixer.shares(
            here.round, blocked=blocked, left=left, leaving=leaving
        )
        me = self.books.me
        last = me if me in shares else list(shares)[-1]
        weights: dict[str, Fraction] = {}
        frames: dict[str, bytes] = {}
        for name, weight in divided(here.weight, shares, last).items():
            # A part that rounds to nothing is not sent; the others add up to the whole.
            if name == me or weight > 0:
                weights[name] = weight
            if name != me and weight > 0:
                frames[name] = self.mixer.frame(mass.theta, weight, here.round)
        mine = weights.get(me, Fraction(0))
        self.books.release(
            kept=self.mixer.to_keep(mass.theta, mine),
            frames=frames,
            weights=weights,
            learner=keeping.save(self.folder, self.client, here.round),
            charges=keeping.charges(self.client.ledger),
        )
        self.mass_out = float(sum(weights[name] for name in frames))
        self.log.add(
            "released", round=here.round, to=sorted(frames), leaving=leaving
        )
        self.courier.send_shares(frames)
        sizes = {}
        for receiver, frame in frames.items():
            sizes[receiver] = len(frame)
        return sizes

    def await_settlement(self) -> None:
        """Let a share that is under way to a reachable peer arrive before the next is made.

        Else that peer would count as blocked, and this site would keep what it should send."""
        deadline = time.monotonic() + min(self.patience, SETTLE_SECONDS)
        while time.monotonic() < deadline:
            owed = self.books.owed_to()
            if not any(self.is_there(name) for name in owed):
                return
            self.exchange.wait()

    def is_there(self, name: str) -> bool:
        """True if a peer answers, or was heard from a moment ago."""
        heard = self.courier.service.silence(name) < SPEAKS_SECONDS
        return heard or self.courier.reachable(name)

    def finish(self) -> tuple[list[Part], Mass | None]:
        """Wait for this round's shares, add what has arrived, and begin the next round."""
        here = self.books.position()
        self.await_senders(here.round)
        parts = self.books.parts()
        theta = self.mixer.kept(self.books.mass())
        kept = Mass(theta, float(here.weight))
        mixed = self.guard.added(self.mixer, kept, parts)
        self._conclude(parts, mixed, next_round=here.round + 1)
        keeping.forget_others(self.folder, here.learner)
        return parts, mixed

    def await_senders(self, round: int) -> None:
        """Return when all who should send have, or will not; or when patience is over."""
        deadline = time.monotonic() + self.patience
        ask_at = 0.0
        ask_pause = FIRST_ASK
        senders = self.mixer.senders(round, left=self.left())
        while True:
            missing = self._missing(senders, round)
            self.expected = len(senders)
            self.heard_of = len(senders) - len(missing)
            waited_for = [name for name in missing if not self.is_away(name)]
            if not waited_for:
                break
            now = time.monotonic()
            if now >= deadline:
                self._give_up(waited_for)
                break
            if now >= ask_at:
                self.courier.say_hello(waited_for)
                ask_at = now + ask_pause
                ask_pause = min(2 * ask_pause, SLOWEST_ASK)
            self.exchange.wait(min(0.5, deadline - now))
        if missing:
            self.log.add(
                "continued without",
                round=round,
                peers=sorted(missing),
                heard=self.heard_of,
            )

    def left(self) -> set[str]:
        """Members who have announced that they leave."""
        members = set(self.mixer.roster.current.names())
        return self.books.peers.gone() & members

    def _withdrawn(self, mass: Mass) -> Mass:
        """Refuse what arrives from now on, and add what had arrived: all of it is handed on."""
        self.books.set_state("leaving")
        mixed = self.taken_in(mass)
        if mixed is None:
            raise TransportError("A site without mass has nothing to hand on.")
        return mixed

    def taken_in(self, mass: Mass) -> Mass | None:
        """``mass`` and all that has arrived, which is this site's own from now on; the round stays.

        None if all of it weighs nothing."""
        parts = self.books.parts(every=True)
        if not parts:
            return mass
        mixed = self.mixer.added(mass, parts)
        if mixed is not None:
            round = self.books.position().round
            self._conclude(parts, mixed, next_round=round)
        return mixed

    def _conclude(
        self, parts: Sequence[Part], mixed: Mass | None, *, next_round: int
    ) -> None:
        frame = b""
        if mixed is not None:
            total = self.books.position().weight
            for part in parts:
                total += part.weight
            frame = self.mixer.to_keep(mixed.theta, total)
        self.books.conclude(parts, frame, next_round=next_round)

    def _missing(self, senders: Set[str], round: int) -> list[str]:
        heard = self.books.heard(round)
        left = self.left()
        missing = []
        for name in sorted(senders - heard - left):
            if not self.exchange.owes_nothing(name, round):
                missing.append(name)
        return missing

    def is_away(self, name: str) -> bool:
        """True if ``name`` was waited for in vain and has not been heard from since."""
        since = self.missed.get(name)
        if since is None:
            return False
        absence = time.monotonic() - since
        if self.courier.service.silence(name) < absence:
            del self.missed[name]
            self.log.add("is back", peer=name)
            return False
        return True

    def _give_up(self, names: Sequence[str]) -> None:
        now = time.monotonic()
        for name in names:
            # A peer that talks but does not send is slow, not away: it is waited for again.
            if self.courier.service.silence(name) >= self.patience / 2:
                self.missed[name] = now
