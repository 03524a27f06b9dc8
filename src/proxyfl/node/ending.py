"""A site's end: after all rounds, or before.

Guarantees:
    * a site does not go while it owes a share to a peer that may still take it, up to ``patience``
      seconds; what is still owed then lies in its store and goes out when the site starts again;
    * a site does not go before everybody who is there knows that it goes, up to ``patience``
      seconds: nobody who could be told waits for it in vain;
    * a site that ends because all others leave takes what they hand on first, up to ``patience``
      seconds;
    * what a leaving site holds goes to the others, including what a peer refused and returned.
      What nobody can take within ``patience`` seconds it keeps: the weight is on record, and goes
      to a peer that is there when the site starts again;
    * a request to stop ends each of these waits within a second.
"""

import time

from proxyfl.node.exchange.service import Service
from proxyfl.node.participation import NOTICE_SECONDS, SETTLE_SECONDS, Participant

FAREWELL_SECONDS = 10.0
"""A site without patience still takes so long to tell the others."""

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
            unfinished = self._unfinished()
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
        self.service.log.add("finished", round=here.round)

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
        self.service.log.add("left", owed=sorted(owed), kept=weight)

    def stop(self, *, hurried: bool) -> None:
        """Tell the others that this site stops for now, and let its shares arrive."""
        self.exchange.has_ended = True
        seconds = HURRIED_SECONDS if hurried else SETTLE_SECONDS
        self.farewell(seconds)
        self.participant.await_settlement(seconds, check=self.service.check_behind)
        self.reach.resume()
        self.service.log.add("stopped", round=self.books.position().round)

    def farewell(self, seconds: float | None = None) -> None:
        """One last hello to everybody who is there and does not know yet; within ``seconds``, or
        patiently."""
        longest = max(FAREWELL_SECONDS, self.participant.patience) if seconds is None else seconds
        self.courier.say_hello(self._untold())
        deadline = time.monotonic() + longest
        while self._untold() and self.service.failure is None and time.monotonic() < deadline:
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

    def _untold(self) -> list[str]:
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

    def _unfinished(self) -> list[str]:
        """Peers that are still at work or connected, as far as this site knows."""
        peers = self.books.peers
        done = peers.released_all(self.books.rounds) | peers.gone() | self.reach.not_waited_for()
        names = []
        for card in self.service.roster.others():
            # Whoever holds a stream to this site may still need it as a relay.
            needs_us = self.service.dialled_in(card.name)
            sums = self.exchange.sums
            if sums is not None and sums.is_behind(card.name):
                # Somebody who was away at the end comes back for the proxy.
                needs_us = card.name not in peers.gone()
            ended = card.name in done or self.exchange.ended(card.name)
            if needs_us or not (ended or self.participant.is_away(card.name)):
                names.append(card.name)
        return names

    def _holds_mass(self) -> bool:
        return bool(self.books.position().weight) or bool(self.books.parts(every=True))

    def _hand_on(self) -> None:
        """Give what this site still holds, or what a peer has refused, to one that can take it."""
        heirs = set(self.reach.able(self.books.position().round)) - self.books.blocked()
        if not heirs or not self._holds_mass():
            return
        held = self.participant.client.mass()
        mass = self.participant.taken_in(held)
        if mass is not None:
            self.participant.release(mass, leaving=True)
            kept = self.participant.withdraw_rest(mass)
            self.participant.client.weight = kept.w
