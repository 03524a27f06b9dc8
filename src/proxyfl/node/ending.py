"""A site's end: after all rounds, or before.

Guarantees:
    * a site does not go while it owes a reachable peer a share, up to ``patience`` seconds; what
      is still owed then lies in its store and goes out when the site is started again;
    * what a leaving site holds goes to the others, including what a peer refused and returned.
"""

import threading
import time

from proxyfl.node.exchange.service import Service
from proxyfl.node.participation import Participant

FAREWELL_SECONDS = 10.0
"""The longest that a site stays to tell everybody who can be reached that it goes. Who is not told
waits for it in vain."""

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
            if not unfinished and not self.books.owed_to():
                break
            if now >= ask_at:
                self.courier.poke(unfinished, hello=True)
                ask_at = now + max(ASK_SECONDS, 0.5 * len(unfinished))
            self.exchange.wait()
            now = time.monotonic()
        self.farewell()
        self.service.log.add("finished", round=self.books.position().round)

    def drain(self) -> None:
        """Hand on what is left, tell everybody, and go."""
        deadline = time.monotonic() + self.participant.patience
        while self.books.owed_to() and time.monotonic() < deadline:
            self.service.check_behind()
            self.courier.poke(self.books.owed_to())
            self.exchange.wait()
            self._hand_on_again()
        self.books.set_state("left")
        self.farewell()
        self.service.log.add("left", owed=sorted(self.books.owed_to()))

    def farewell(self) -> None:
        """One last hello to everybody who can be reached."""
        names = [card.name for card in self.service.roster.others()]
        turns = [
            self.courier.turns[name] for name in names if name in self.courier.turns
        ]
        for turn in turns:
            turn.hello_due = 0.0
        self.courier.poke(names)
        deadline = time.monotonic() + FAREWELL_SECONDS
        while time.monotonic() < deadline:
            waiting = [
                turn
                for turn in turns
                if turn.reachable and (turn.busy or turn.hello_due == 0.0)
            ]
            if not waiting:
                return
            self.exchange.wait()

    def _unfinished(self) -> list[str]:
        """Peers that are still at work or connected, as far as this site knows."""
        done = self.books.released_all() | self.books.gone()
        found = []
        for card in self.service.roster.others():
            away = card.name in self.participant.missed
            # Whoever holds a stream to this site may still need it as a relay.
            needs_us = self.service.dialled_in(card.name)
            ended = card.name in done or self.exchange.ended(card.name)
            if needs_us or not (ended or away):
                found.append(card.name)
        return found

    def _hand_on_again(self) -> None:
        """Give to another peer what one has refused."""
        parts = self.books.parts(every=True)
        if not parts:
            return
        mixer = self.participant.mixer
        mass = mixer.added(self.participant.client.mass(), parts)
        if mass is None:
            return
        here = self.books.position()
        total = sum((part.weight for part in parts), here.weight)
        mine = mixer.to_keep(mass.theta, total)
        self.books.conclude(parts, mine, next_round=here.round)
        self.participant.release(mass, leaving=True)
        self.books.conclude([], b"")
