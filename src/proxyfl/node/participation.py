"""A site's part in one round's exchange, and its end.

``Participant`` gives shares away, waits for those of others, and adds up. ``Ending`` takes the last
steps, after all rounds or before.

Guarantees of a round:
    * what is given away is in the outbox in the same transaction in which it leaves the mass;
    * waiting ends after ``patience`` seconds at the latest, and who was missing is said;
    * a peer that was missed is not waited for again until it is heard from, and one that is held
      up (``reachability``) is not waited for at all;
    * whatever asks the site to stop ends a wait within a second: ``check`` raises it. What was
      trained by then is in the outbox, and the next start continues with the exchange;
    * mass that nobody takes stays this site's own, parameters and weight.

Guarantees of the end:
    * a site does not go while it owes a share to a peer that may still take it, up to ``patience``
      seconds; what is still owed then is in its store and goes out when the site starts again;
    * a site does not go before everybody who is there knows that it goes, up to ``patience``
      seconds: nobody who could be told waits for it for nothing;
    * a site that ends because all others leave takes what they hand on first, up to ``patience``
      seconds;
    * what a leaving site holds goes to the others, including what a peer refused and returned.
      What nobody can take within ``patience`` seconds it keeps: the weight is on record, and goes
      to a peer that is there when the site starts again;
    * a request to stop ends each of these waits within a second.
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
from proxyfl.node.exchange.auditlog import AuditLog
from proxyfl.node.exchange.courier import Courier
from proxyfl.node.exchange.protocol import Exchange
from proxyfl.node.exchange.service import Service
from proxyfl.node.exchange.store import Part, divide
from proxyfl.node.exits import StopRequested
from proxyfl.node.mixing import Guard, Mixer
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
            mass = self._withdraw(mass)
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
            before = self.mixer.decode_own(held) if held else self.initial
            self.guard.note_move(float((mass.theta - before).norm()))
        with contextlib.suppress(StopRequested):  # what was trained is released before the end
            self.await_settlement()
        left = self.left()
        blocked = self.books.blocked_peers() | self.reach.unable_to_receive()
        if leaving:  # what nobody can take now stays here
            blocked |= self.others() - set(self.reach.able(here.round))
        shares = self.mixer.shares(here.round, blocked=blocked, left=left, leaving=leaving)
        me = self.books.me
        last = me if me in shares else list(shares)[-1]
        most = self.mixer.most_weights(here.round, shares, left=left, leaving=leaving)
        mine = Fraction(0)
        weights: dict[str, Fraction] = {}
        frames: dict[str, bytes] = {}
        for name, weight in divide(here.weight, shares, last).items():
            sent = Fraction(0) if name == me else min(weight, most[name])
            mine += weight - sent
            # A part that rounds to nothing is not sent; the others add up to the whole.
            if sent > 0:
                weights[name] = sent
                frames[name] = self.mixer.frame(mass.theta, sent, here.round)
        if mine or me in shares:
            weights[me] = mine
        self.books.release(
            kept=self.mixer.encode_own(mass.theta, mine),
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
        theta = self.mixer.decode_own(self.books.mass())
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
        content = self.mixer.encode_own(mass.theta, weight) if weight else b""
        self.books.conclude([], content)
        return kept

    def _withdraw(self, mass: Mass) -> Mass:
        """Refuse what arrives from now on, and add what had arrived: all of it is handed on."""
        self.books.set_state("leaving")
        mixed = self.take_in(mass)
        if mixed is None:
            raise TransportError("A site without mass has nothing to hand on.")
        return mixed

    def take_in(self, mass: Mass) -> Mass | None:
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
        mixed = self.guard.mix(self.mixer.entries(kept, parts), self.books.me)
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
            frame = self.mixer.encode_own(mixed.theta, total)
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
        """True if a wait for ``name`` timed out, and it has not been heard from since."""
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


FAREWELL_SECONDS = 10.0
"""A site without patience still takes so long to tell the others."""

RECENT_SECONDS = 60.0
"""Who was heard from within this time is on record as there when the site ends."""

HURRIED_SECONDS = 1.0
"""A site that a signal asked to stop takes so long to tell the others, and so long again to let
its shares arrive."""

ASK_SECONDS = 2.0
"""The seconds after which a site that waits for the others' end asks them again. Usually it need
not: whoever ends says so to everybody."""


class Ending:
    """One site's last steps."""

    def __init__(self, participant: Participant, service: Service) -> None:
        self.participant = participant
        self.service = service
        self.books = participant.books
        self.courier = participant.courier
        self.exchange = participant.exchange
        self.reach = participant.reach

    def finish(self) -> None:
        """Stay until what is owed is delivered and the others have had their last shares."""
        self.exchange.has_ended = True
        started = time.monotonic()
        now = ask_at = started
        while now < started + self.participant.patience:
            self.participant.check()
            unfinished = self._peers_at_work()
            owed = self._still_owed()
            if not unfinished and not owed:
                break
            if now >= ask_at:
                self.courier.say_hello(unfinished)
                ask_at = now + max(ASK_SECONDS, 0.5 * len(unfinished))
            if now - started > NOTICE_SECONDS:
                self._note_wait(sorted({*unfinished, *owed}))
            self.exchange.wait()
            now = time.monotonic()
        self.reach.resume()
        self.farewell()
        here = self.books.position()
        self.service.log.add("finished", round=here.round, heard=self._heard())

    def await_handovers(self) -> None:
        """Let the members that leave hand their mass to this site."""
        started = time.monotonic()
        while time.monotonic() < started + self.participant.patience:
            self.participant.check()
            leaving = self.reach.handing_on()
            if not leaving:
                break
            if time.monotonic() - started > NOTICE_SECONDS:
                self._note_wait(leaving)
            self.exchange.wait()
        self.reach.resume()

    def drain(self) -> None:
        """Hand on what is left, tell everybody, and go."""
        started = time.monotonic()
        while time.monotonic() < started + self.participant.patience:
            self.participant.check()
            self._hand_on()
            heirs = self.reach.possible() if self._holds_mass() else []
            owed = self._still_owed()
            if not owed and not heirs:
                break
            if time.monotonic() - started > NOTICE_SECONDS:
                self._note_wait(sorted({*owed, *heirs}))
            self.exchange.wait()
        self.reach.resume()
        self.books.set_state("left")
        self.exchange.has_ended = True
        self.farewell()
        weight = float(self.books.position().weight)
        owed = self.books.owed_to()
        self.service.log.add("left", owed=sorted(owed), kept=weight, heard=self._heard())

    def stop(self, *, hurried: bool) -> None:
        """Tell the others that this site stops for now, and let its shares arrive."""
        self.exchange.has_ended = True
        seconds = HURRIED_SECONDS if hurried else SETTLE_SECONDS
        self.farewell(seconds)
        self.participant.await_settlement(seconds, check=self.service.check_behind)
        self.reach.resume()
        self.service.log.add("stopped", round=self.books.position().round, heard=self._heard())

    def _heard(self) -> list[str]:
        """The peers that were heard from in the last minute."""
        service = self.service
        return sorted(name for name in service.contact if service.silence(name) < RECENT_SECONDS)

    def farewell(self, seconds: float | None = None) -> None:
        """One last hello to everybody who is there and does not know yet; within ``seconds``, or
        patiently."""
        longest = max(FAREWELL_SECONDS, self.participant.patience) if seconds is None else seconds
        self.courier.say_hello(self._peers_to_tell())
        deadline = time.monotonic() + longest
        while self._peers_to_tell():
            if self.service.failure is not None or time.monotonic() >= deadline:
                break
            if seconds is None:
                self.participant.check()
            self.exchange.wait()

    def _note_wait(self, names: list[str]) -> None:
        self.reach.note(self.books.position().round)
        self.reach.wait(
            "ending",
            f"Stays for {', '.join(names)}, for up to {self.participant.patience:g} s in all "
            "(network.patience).",
        )

    def _peers_to_tell(self) -> list[str]:
        gone = self.books.peers.gone() | self.reach.deaf()
        names = []
        for card in self.service.roster.others():
            name = card.name
            if name in gone or self.exchange.knows_the_end(name):
                continue
            if self.reach.is_there(name):
                names.append(name)
        return names

    def _still_owed(self) -> set[str]:
        """Peers with undelivered shares, except those that timed out or cannot receive."""
        owed = self.books.owed_to() - self.reach.unable_to_receive()
        return {name for name in owed if not self.participant.is_away(name)}

    def _peers_at_work(self) -> list[str]:
        """Peers that are still at work or connected, as far as this site knows."""
        peers = self.books.peers
        done = peers.peers_done(self.books.rounds) | peers.gone() | self.reach.not_waited_for()
        names = []
        for card in self.service.roster.others():
            # Whoever holds a stream to this site may still need it as a relay.
            needs_us = self.service.has_dialled_in(card.name)
            sums = self.exchange.sums
            if sums is not None and sums.is_behind(card.name):
                # Somebody who was away at the end comes back for the proxy.
                needs_us = card.name not in peers.gone()
            ended = card.name in done or self.exchange.has_peer_ended(card.name)
            if needs_us or not (ended or self.participant.is_away(card.name)):
                names.append(card.name)
        return names

    def _holds_mass(self) -> bool:
        return bool(self.books.position().weight) or bool(self.books.parts(every=True))

    def _hand_on(self) -> None:
        """Give what this site still holds, or what a peer has refused, to one that can take it."""
        heirs = set(self.reach.able(self.books.position().round)) - self.books.blocked_peers()
        if not heirs or not self._holds_mass():
            return
        held = self.participant.client.mass()
        mass = self.participant.take_in(held)
        if mass is not None:
            self.participant.release(mass, leaving=True)
            kept = self.participant.withdraw_rest(mass)
            self.participant.client.weight = kept.w
