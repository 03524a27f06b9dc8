"""A site's end: after all rounds, or before.

Guarantees:
    * a site does not go while it owes a share to a peer that may still take it, up to ``patience``
      seconds; what is still owed then lies in its store and goes out when the site starts again;
    * a site does not go before everybody who is there knows that it goes, up to ``patience``
      seconds: nobody who could be told waits for it in vain;
    * what a leaving site holds goes to the others, including what a peer refused and returned.
"""

import threading
import time

from proxyfl.node.exchange.service import Service
from proxyfl.node.participation import Participant

FAREWELL_SECONDS = 10.0
"""A site that is asked to stop, or has no patience, still takes so long to tell the others."""

ASK_SECONDS = 2.0
"""The seconds after which a site that waits for the others' end asks them again. Usually it need
not: whoever ends says so to everybody."""


class Ending:
    """One site's last steps."""

    def __init__(
        self, participant: Participant, service: Service, stopping: threading.Event
    ) -> None:
        self.participant = participant
        self.service = service
        self.stopping = stopping
        self.books = participant.books
        self.courier = participant.courier
        self.exchange = participant.exchange

    def finish(self) -> None:
        """Stay until what is owed is delivered and the others have had their last shares."""
        self.exchange.has_ended = True
        now = time.monotonic()
        deadline = now + self.participant.patience
        ask_at = now
        while now < deadline and not self.stopping.is_set():
            self.service.check_behind()
            unfinished = self._unfinished()
            if not unfinished and not self._still_owed():
                break
            if now >= ask_at:
                self.courier.say_hello(unfinished)
                ask_at = now + max(ASK_SECONDS, 0.5 * len(unfinished))
            self.exchange.wait()
            now = time.monotonic()
        self.farewell()
        here = self.books.position()
        self.service.log.add("finished", round=here.round)

    def drain(self) -> None:
        """Hand on what is left, tell everybody, and go."""
        deadline = time.monotonic() + self.participant.patience
        while self._still_owed() and time.monotonic() < deadline:
            self.service.check_behind()
            self.exchange.wait()
            self._hand_on_again()
        self.books.set_state("left")
        self.exchange.has_ended = True
        self.farewell()
        owed = self.books.owed_to()
        self.service.log.add("left", owed=sorted(owed))

    def farewell(self) -> None:
        """One last hello to everybody who is there and does not know yet."""
        self.courier.say_hello(self._untold())
        started = time.monotonic()
        while self._untold() and self.service.failure is None:
            waited = time.monotonic() - started
            hurried = self.stopping.is_set() or waited > self.participant.patience
            if hurried and waited > FAREWELL_SECONDS:
                break
            self.exchange.wait()

    def _untold(self) -> list[str]:
        gone = self.books.peers.gone()
        found = []
        for card in self.service.roster.others():
            name = card.name
            if name in gone or self.exchange.knows_the_end(name):
                continue
            if self.participant.is_there(name):
                found.append(name)
        return found

    def _still_owed(self) -> set[str]:
        """Peers with unsettled shares, but for those that were waited for in vain already."""
        owed = self.books.owed_to()
        return {name for name in owed if not self.participant.is_away(name)}

    def _unfinished(self) -> list[str]:
        """Peers that are still at work or connected, as far as this site knows."""
        peers = self.books.peers
        done = peers.released_all(self.books.rounds) | peers.gone()
        found = []
        for card in self.service.roster.others():
            # Whoever holds a stream to this site may still need it as a relay.
            needs_us = self.service.dialled_in(card.name)
            ended = card.name in done or self.exchange.ended(card.name)
            if needs_us or not (ended or self.participant.is_away(card.name)):
                found.append(card.name)
        return found

    def _hand_on_again(self) -> None:
        """Give to another peer what one has refused."""
        if not self.books.parts(every=True):
            return
        held = self.participant.client.mass()
        mass = self.participant.taken_in(held)
        if mass is not None:
            self.participant.release(mass, leaving=True)
            self.books.conclude([], b"")
