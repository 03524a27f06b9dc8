"""Which peers can receive now, and why the others cannot.

A peer can receive if it has answered a hello of this start of the program, the last attempt to
reach it succeeded, it was heard from a short while ago, it is active, and it uses the same version
of the manifest. By files "a short while" is ``network.patience``: somebody may carry them.

Guarantees:
    * what is said of a peer follows from its own signed messages and from attempts to reach it;
    * the reasons of all peers are on record (``exchange.reasons``), and what is new is in the audit
      log once.
"""

import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

from proxyfl._command import command
from proxyfl.node.exchange.courier import Courier
from proxyfl.node.exchange.messages import Hello
from proxyfl.node.exchange.reasons import Reasons
from proxyfl.node.exchange.service import Service
from proxyfl.node.members.identity import Card
from proxyfl.node.observe.lines import Attention

SPEAKS_SECONDS = 5.0
"""A peer that was heard from within this time is there."""

LASTING_SECONDS = 1.5
"""What holds up a peer for no longer is not worth a word: all learn of a new manifest in turn."""

MANY_STARTS = 3
WINDOW_SECONDS = 600.0
STEADY_SECONDS = 120.0
"""A peer that started so often within the window is not waited for before it has run steadily."""

RESTART_SECONDS = 60.0
"""A peer that was stopped is waited for during this time: it may only be restarting."""

UNABLE_TO_RECEIVE = frozenset(
    {"old-backup", "other-manifest", "manifest-behind", "manifest-ahead", "refuses"}
)
"""A share for such a peer would lie in the outbox or come back: the site keeps it."""

DEAF = frozenset({"old-backup", "other-manifest", "refuses"})
"""Such a peer cannot even be told that this site goes."""

NOT_WAITED_FOR = UNABLE_TO_RECEIVE | {"restarts", "stopped", "left"}
"""No round waits for the share of such a peer."""

_HARMLESS = frozenset({"never-heard", "unreachable", "joins-later", "finished", "left"})
"""What the audit log says elsewhere, or need not say."""


@dataclass(frozen=True)
class Obstacle:
    """The reason why a peer cannot receive now: a code of ``reasons.CODES``, and a sentence."""

    code: str
    text: str


class Reachability:
    """One site's view of its peers."""

    def __init__(
        self,
        service: Service,
        courier: Courier,
        reasons: Reasons,
        folder: Path,
        *,
        patience: float,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.service = service
        self.courier = courier
        self.reasons = reasons
        self.folder = folder
        self.patience = patience
        self.say = say
        self.exchange = service.exchange
        self.books = service.exchange.books
        self._started = time.monotonic()
        self._since: dict[tuple[str, str], float] = {}
        """When each obstacle, by peer and code, was first seen."""
        self._ended_at: dict[tuple[str, int], float] = {}
        """When it was first seen that a start of a peer's program has ended."""

    def is_there(self, name: str) -> bool:
        """True if a peer answers, or was heard from a moment ago."""
        return self.service.silence(name) < SPEAKS_SECONDS or self.courier.reachable(name)

    def able(self, round: int) -> list[str]:
        """The peers that can receive a share of ``round`` now."""
        gone = self.books.peers.gone()
        names = []
        for card in self.service.roster.others():
            if self._obstacle(card, round, gone) is None:
                names.append(card.name)
        return names

    def possible(self) -> list[str]:
        """The peers that may receive now or later: those that have neither left nor finished.

        A peer has finished if it says so. Once one has released its last round the federation is
        at its end: then all count as finished that have been silent for as long as they would wait
        for others themselves."""
        peers = self.books.peers
        gone = peers.gone()
        is_ending = bool(peers.peers_done(self.books.rounds))
        names = []
        for card in self.service.roster.others():
            name = card.name
            hello = self.exchange.last_hello(name)
            if hello is not None and hello.ended:
                has_finished = hello.round >= self.books.rounds
            else:
                has_finished = is_ending and self._silence_since_start(name) > self.patience
            if name not in gone and not has_finished:
                names.append(name)
        return names

    def handing_on(self) -> list[str]:
        """The members that leave, are there, and have not said that they are done: they may still
        hand mass on, to whoever is left."""
        names = []
        for name in sorted(self.books.peers.gone()):
            hello = self.exchange.last_hello(name)
            if hello is not None and not hello.ended and self.is_there(name):
                names.append(name)
        return names

    def _silence_since_start(self, name: str) -> float:
        return min(self.service.silence(name), time.monotonic() - self._started)

    def unable_to_receive(self) -> set[str]:
        """The peers that get no share for now."""
        return self._with(UNABLE_TO_RECEIVE)

    def deaf(self) -> set[str]:
        """The peers that cannot even be told that this site goes."""
        return self._with(DEAF)

    def not_waited_for(self) -> set[str]:
        """The peers whose shares no round waits for."""
        return {name for name in self._with(NOT_WAITED_FOR) if not self._may_return(name)}

    def may_still_release(self, name: str, round: int) -> bool:
        """True if a peer was stopped before it released ``round``, and may be back soon."""
        hello = self.exchange.last_hello(name)
        return hello is not None and hello.round <= round and self._may_return(name)

    def _may_return(self, name: str) -> bool:
        """True if a peer was stopped a moment ago, and may only be started anew.

        One that is past the manifest's date begins no round, and one that goes on talking after it
        has said its end has ended: it stays for this site, which must not stay for it."""
        hello = self.exchange.last_hello(name)
        if hello is None or self._end(hello) is None or name in self.service.refusals:
            return False
        now = time.monotonic()
        since_end = now - self._ended_at.setdefault((name, hello.boot), now)
        was_stopped = hello.state == "active" and hello.round < self.books.rounds
        is_recent = max(since_end, self.service.silence(name)) < RESTART_SECONDS
        return was_stopped and is_recent and not self.is_over()

    def is_over(self) -> bool:
        """True if the manifest's date has passed, by this site's clock and by most others'."""
        agreed = self.service.roster.current
        return agreed.is_over(time.time()) and agreed.is_over(self.service.federation_time())

    def _with(self, codes: frozenset[str]) -> set[str]:
        round = self.books.position().round
        obstacles = self.obstacles(round)
        return {name for name, obstacle in obstacles.items() if obstacle.code in codes}

    def obstacles(self, round: int) -> dict[str, Obstacle]:
        """Returns the obstacle of each peer that cannot receive a share of ``round`` now."""
        gone = self.books.peers.gone()
        obstacles = {}
        for card in self.service.roster.others():
            obstacle = self._obstacle(card, round, gone)
            if obstacle is None or obstacle.code == "unreachable":
                # One that starts again and again is there now and then, and can receive then.
                obstacle = self._restarts(card.name) or obstacle
            if obstacle is not None:
                obstacles[card.name] = obstacle
        return obstacles

    def _obstacle(self, card: Card, round: int, gone: Set[str]) -> Obstacle | None:
        """Why a peer cannot receive now; None if it can."""
        name = card.name
        if name in gone:
            return Obstacle("left", f"{name} has left the federation.")
        refusal = self.service.refusals.get(name)
        if refusal is not None:
            return Obstacle(*refusal)
        problem = self.courier.problem(name)
        if problem.refused:
            return Obstacle("refuses", f"{name} refuses this site: {problem.text}")
        hello = self.exchange.last_hello(name)
        if hello is None:
            detail = f" {problem.text}" if problem.text else ""
            return Obstacle("never-heard", f"{name} was not heard from yet.{detail}")
        return (
            self._end(hello)
            or self._versions(hello)
            or self._silence(hello, problem.text)
            or self._later(card, round)
        )

    def _end(self, hello: Hello) -> Obstacle | None:
        if not hello.ended:
            return None
        if hello.round >= self.books.rounds:
            return Obstacle("finished", f"{hello.sender} has finished its last round.")
        return Obstacle("stopped", f"{hello.sender} was stopped in round {hello.round + 1}.")

    def _versions(self, hello: Hello) -> Obstacle | None:
        own = self.books.version
        if hello.version < own:
            return Obstacle(
                "manifest-behind",
                f"{hello.sender} has not accepted version {own} of the manifest (it has "
                f"{hello.version}). Rounds go on without it. Its operator runs: "
                f"{command('node', 'accept', hello.sender, 'manifest.toml')}",
            )
        if hello.version > own:
            return Obstacle(
                "manifest-ahead",
                f"{hello.sender} uses version {hello.version} of the manifest; this site has "
                f"accepted version {own}. Get it and run: "
                f"{command('node', 'accept', self.folder, 'manifest.toml')}",
            )
        return None

    def _silence(self, hello: Hello, problem: str) -> Obstacle | None:
        name = hello.sender
        heard = self.service.silence(name) < self._freshness
        if heard and self.exchange.is_admitted(name) and self.courier.reachable(name):
            return None
        return Obstacle("unreachable", f"{name} cannot be reached. {problem}".rstrip())

    @property
    def _freshness(self) -> float:
        """A peer that was not heard from for so many seconds may be away."""
        beats = 3 * self.courier.heartbeat + SPEAKS_SECONDS
        return beats if self.courier.folder is None else max(beats, self.patience)

    def _restarts(self, name: str) -> Obstacle | None:
        now = time.monotonic()
        # A copy: the threads that listen add to it.
        starts = [
            at for at in tuple(self.service.starts.get(name, ())) if now - at < WINDOW_SECONDS
        ]
        if len(starts) < MANY_STARTS or now - starts[-1] > STEADY_SECONDS:
            return None
        return Obstacle(
            "restarts",
            f"{name} starts again and again. No round waits for it before it has run for "
            f"{STEADY_SECONDS:.0f} s. Its operator finds the cause in its log.",
        )

    def _later(self, card: Card, round: int) -> Obstacle | None:
        if card.joins <= round:
            return None
        return Obstacle("joins-later", f"{card.name} takes part from round {card.joins + 1} on.")

    def note(self, round: int) -> None:
        """Put on record what holds up each peer for longer than a moment, and say what is new."""
        now = time.monotonic()
        since = {}
        obstacles = {}
        for name, obstacle in self.obstacles(round).items():
            key = (name, obstacle.code)
            since[key] = self._since.get(key, now)
            if now - since[key] > LASTING_SECONDS:
                obstacles[name] = (obstacle.code, obstacle.text)
        self._since = since
        news, cleared = self.reasons.replace_peers(obstacles)
        for name, before in cleared.items():
            if before not in _HARMLESS:
                self.service.log.add("no longer held up", peer=name, code=before)
        for name in news:
            code, text = obstacles[name]
            if code not in _HARMLESS:
                self.service.log.add("held up", peer=name, code=code, reason=text[:300])
                self.say(Attention(text))

    def wait(self, code: str, text: str) -> None:
        """Put on record that this site waits, and why; what is new is said."""
        if self.reasons.put("waiting", code, text):
            self.service.log.add("waiting", code=code, reason=text[:300])
            self.say(Attention(text))

    def resume(self, *codes: str) -> None:
        """Take it off the record that this site waits, for one of ``codes`` or for any."""
        reason = self.reasons.of("waiting")
        if reason is None or (codes and reason.code not in codes):
            return
        self.reasons.clear("waiting")
        seconds = round(time.time() - reason.since)
        self.service.log.add("continues", code=reason.code, seconds=seconds)
        self.say("continues")
