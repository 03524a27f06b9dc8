"""A site's part in one round's exchange: give shares away, wait for those of others, add up.

Guarantees:
    * what is given away lies in the outbox in the same transaction in which it leaves the mass;
    * waiting ends after ``patience`` seconds at the latest, and who was missing is said;
    * a peer that was missed is not waited for again until it is heard from, and one that is held
      up (``reachability``) is not waited for at all;
    * whatever asks the site to stop ends a wait within a second: ``check`` raises it. What was
      trained by then is in the outbox, and the next start continues with the exchange;
    * mass that nobody takes stays this site's own, parameters and weight.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence, Set
from fractions import Fraction
from pathlib import Path

from proxyfl import params
from proxyfl.errors import TransportError
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import Traffic
from proxyfl.gossip.pushsum import Mass
from proxyfl.node import keeping
from proxyfl.node.defence import Guard
from proxyfl.node.exchange.auditlog import AuditLog
from proxyfl.node.exchange.books import Part, divided
from proxyfl.node.exchange.courier import Courier
from proxyfl.node.exchange.protocol import Exchange
from proxyfl.node.exits import StopRequested
from proxyfl.node.mixing import Mixer
from proxyfl.node.reachability import Reachability

FIRST_ASK = 0.5
SLOWEST_ASK = 4.0
"""The seconds after which a waiting round asks the missing peers again: twice as many each time."""

SETTLE_SECONDS = 10.0
"""The longest wait of a round for the verdicts on the shares before."""

NOTICE_SECONDS = 5.0
"""A wait that lasts longer is put on record with its reason."""


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
        reach: Reachability,
        patience: float,
        guard: Guard,
        check: Callable[[], None],
    ) -> None:
        """``check`` is called at least once a second while this waits; it raises what ends it."""
        self.client = client
        self.exchange = exchange
        self.books = exchange.books
        self.mixer = mixer
        self.courier = courier
        self.log = log
        self.folder = folder
        self.reach = reach
        self.patience = patience
        self.guard = guard
        self.check = check
        self.initial = params.flatten(client.learner.shared)
        self.missed: dict[str, float] = {}
        self.heard_of = 0
        self.expected = 0
        self.mass_in = 0.0
        self.mass_out = 0.0

    def __call__(
        self, round: int, masses: Mapping[int, Mass], *, present: Sequence[int], leaving: Set[int]
    ) -> tuple[dict[int, Mass], dict[int, Traffic]]:
        """Exchanges this site's mass for that of the next round."""
        mass = masses[self.client.id]
        gone = self.client.id in leaving
        if gone:
            mass = self._withdrawn(mass)
        sent = self.release(mass, leaving=gone)
        traffic = Traffic(messages_sent=len(sent), bytes_sent=sum(sent.values()))
        counted = {self.client.id: traffic}
        if gone:
            kept = self.withdraw_rest(mass)
            return ({self.client.id: kept} if kept.w else {}), counted
        parts, mixed = self.finish()
        self.mass_in = float(sum(part.weight for part in parts))
        for part in parts:
            if not part.returned_by:
                traffic.messages_received += 1
                traffic.bytes_received += len(part.frame)
        if mixed is None:
            return {}, counted
        return {self.client.id: mixed}, counted

    def release(self, mass: Mass, *, leaving: bool) -> dict[str, int]:
        """Put this round's shares into the outbox; return their sizes by receiver."""
        here = self.books.position()
        if not leaving and here.round < self.mixer.roster.current.training_rounds:
            held = self.books.mass()
            before = self.mixer.kept(held) if held else self.initial
            self.guard.moved(float((mass.theta - before).norm()))
        with contextlib.suppress(StopRequested):  # what was trained is released before the end
            self.await_settlement()
        left = self.left()
        blocked = self.books.blocked() | self.reach.unable_to_receive()
        if leaving:  # what nobody can take now stays here
            blocked |= self.others() - set(self.reach.able(here.round))
        shares = self.mixer.shares(here.round, blocked=blocked, left=left, leaving=leaving)
        me = self.books.me
        last = me if me in shares else list(shares)[-1]
        most = self.mixer.most_weights(here.round, shares, left=left, leaving=leaving)
        mine = Fraction(0)
        weights: dict[str, Fraction] = {}
        frames: dict[str, bytes] = {}
        for name, weight in divided(here.weight, shares, last).items():
            sent = Fraction(0) if name == me else min(weight, most[name])
            mine += weight - sent
            # A part that rounds to nothing is not sent; the others add up to the whole.
            if sent > 0:
                weights[name] = sent
                frames[name] = self.mixer.frame(mass.theta, sent, here.round)
        if mine or me in shares:
            weights[me] = mine
        self.books.release(
            kept=self.mixer.to_keep(mass.theta, mine),
            frames=frames,
            weights=weights,
            learner=keeping.save(self.folder, self.client, here.round),
            charges=keeping.charges(self.client.ledger),
            defence=self.guard.state(),
        )
        self.mass_out = float(sum(weights[name] for name in frames))
        self.log.add("released", round=here.round, to=sorted(frames), leaving=leaving)
        if leaving:  # a share past the graph is taken from somebody who is known to leave
            self.courier.say_hello(frames)
        self.courier.send_shares(frames)
        sizes = {}
        for receiver, frame in frames.items():
            sizes[receiver] = len(frame)
        return sizes

    def await_settlement(
        self, seconds: float = SETTLE_SECONDS, *, check: Callable[[], None] | None = None
    ) -> None:
        """Let a share that is under way to a reachable peer arrive before the next is made.

        Else that peer would count as blocked, and this site would keep what it should send."""
        deadline = time.monotonic() + min(self.patience, seconds)
        while time.monotonic() < deadline:
            owed = self.books.owed_to() - self.reach.not_waited_for()
            if not any(self.reach.is_there(name) for name in owed):
                return
            (check or self.check)()
            self.exchange.wait()

    def finish(self) -> tuple[list[Part], Mass | None]:
        """Wait for this round's shares, add what has arrived, and begin the next round."""
        here = self.books.position()
        self.await_senders(here.round)
        theta = self.mixer.kept(self.books.mass())
        parts = self._due(self.books.parts())
        mixed = self._mix(Mass(theta, float(here.weight)), parts)
        self._conclude(parts, mixed, next_round=here.round + 1)
        keeping.forget_others(self.folder, here.learner)
        return parts, mixed

    def await_senders(self, round: int) -> None:
        """Return when all who should send have, or will not; or when patience is over."""
        started = time.monotonic()
        deadline = started + self.patience
        ask_at = 0.0
        ask_pause = FIRST_ASK
        senders = self.mixer.senders(round, left=self.left())
        while True:
            self.courier.service.check_behind()
            missing = self._missing(senders, round)
            self.expected = len(senders)
            self.heard_of = len(senders) - len(missing)
            held_up = self.reach.not_waited_for() if missing else set()
            waited_for = []
            for name in missing:
                if name not in held_up and not self.is_away(name):
                    waited_for.append(name)
            if not waited_for:
                break
            self.check()
            now = time.monotonic()
            if now >= deadline:
                self._give_up(waited_for)
                break
            if now >= ask_at:
                self.courier.say_hello(waited_for)
                ask_at = now + ask_pause
                ask_pause = min(2 * ask_pause, SLOWEST_ASK)
            if now - started > NOTICE_SECONDS:
                self._note_wait(round, waited_for)
            self.exchange.wait(min(0.5, deadline - now))
        self.reach.resume("shares")
        if missing:
            self.log.add(
                "continued without", round=round, peers=sorted(missing), heard=self.heard_of
            )

    def _note_wait(self, round: int, names: Sequence[str]) -> None:
        self.reach.note(round)
        self.reach.wait(
            "shares",
            f"Round {round + 1} waits for the shares of {', '.join(names)}, for up to "
            f"{self.patience:g} s in all (network.patience).",
        )

    def left(self) -> set[str]:
        """Members who have announced that they leave."""
        members = set(self.mixer.roster.current.names())
        return self.books.peers.gone() & members

    def others(self) -> set[str]:
        """All members but this site."""
        return {card.name for card in self.mixer.roster.others()}

    def withdraw_rest(self, mass: Mass) -> Mass:
        """End a leaving site's round; returns what it keeps because nobody takes it."""
        weight = self.books.position().weight
        kept = Mass(mass.theta, float(weight))
        content = self.mixer.to_keep(mass.theta, weight) if weight else b""
        self.books.conclude([], content)
        return kept

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
        mixed = self._mix(mass, parts)
        if mixed is not None:
            round = self.books.position().round
            self._conclude(parts, mixed, next_round=round)
        return mixed

    def _due(self, parts: Sequence[Part]) -> list[Part]:
        """Those of ``parts`` that one round adds."""
        round = self.books.position().round
        heaviest = self.mixer.heaviest(round, left=self.left())
        return self.guard.due(parts, self.books.me, heaviest)

    def _mix(self, kept: Mass, parts: Sequence[Part]) -> Mass | None:
        """The sum of ``kept`` and ``parts`` by the defence."""
        mixed = self.guard.mixed(self.mixer.entries(kept, parts), self.books.me)
        if self.guard.clipped:
            round = self.books.position().round
            self.log.add("clipped", round=round, peers=sorted(self.guard.clipped))
        return mixed

    def _conclude(self, parts: Sequence[Part], mixed: Mass | None, *, next_round: int) -> None:
        frame = b""
        if mixed is not None:
            total = self.books.position().weight
            for part in parts:
                total += part.weight
            frame = self.mixer.to_keep(mixed.theta, total)
        state = self.guard.state()
        self.books.conclude(parts, frame, next_round=next_round, defence=state)

    def _missing(self, senders: Set[str], round: int) -> list[str]:
        heard = self.books.heard(round)
        left = self.left()
        missing = []
        for name in sorted(senders - heard - left):
            if not self.exchange.has_room(name):
                continue  # earlier shares of it are there, and this one can come after them alone
            owes = not self.exchange.owes_nothing(name, round)
            if owes or self.reach.may_still_release(name, round):
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
