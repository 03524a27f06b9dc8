r"""Training in step: all clients take every step of one shared proxy together, through masked sums.

    each client      draws its batch, clips, adds its share of the noise, masks, sends to all
    all              add up the messages of the roster; theta <- optimizer(theta, sum / batch)

with the batch sizes of the roster's clients, added up, as the divisor. There is one proxy, so
nothing is left to mix: private models learn from it as always.

The roster of a step is public: all who are present and still have steps to take. Below the quorum
nobody sends, and nothing is charged. A client that is away, or joins late, takes over the sums that
it has missed; that costs nothing, because it is post-processing.

Guarantees:
    * sums are of whole numbers modulo 2^64, so the proxy is the same to the last bit at every
      client, whichever processes they run in;
    * every message names the attempt and the proxy that it was made for. One for another attempt,
      roster or proxy is refused, and its sender named;
    * what a client computes depends on its own streams and on the sums, not on which clients share
      its process: each has its own state of torch's global generator.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from proxyfl import params
from proxyfl._setonce import SetOnce
from proxyfl.errors import ConfigError, TransportError
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import Traffic
from proxyfl.federation.learners import Losses, Step, Training
from proxyfl.federation.membership import Presence
from proxyfl.gossip.routes import by_kind
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.gaussian import Integers
from proxyfl.privacy.isolation import modes_contained
from proxyfl.privacy.masks import Attempt, Keys, Words, add_up
from proxyfl.seeds import seed_global
from proxyfl.transport.base import Transport

_DIGEST = 32
_FINGERPRINT = 16
_WORD = np.dtype("<u8")


@dataclass(frozen=True)
class Plan:
    """The terms that all clients of a masked sum agree on. ``steps`` are those of a round,
    ``batch_sizes`` the expected batch of each client. Those of one of the ``kinds`` add up by
    themselves."""

    federation: str
    manifest: str
    names: Sequence[str]
    batch_sizes: Sequence[int]
    steps: int
    coalition: Coalition
    kinds: Sequence[str] = ()

    def __post_init__(self) -> None:
        fewest = min(len(group) for group in self.groups())
        if self.coalition.quorum > fewest:
            of_a_kind = " of a kind" if self.kinds else ""
            raise ConfigError(
                f"exchange.quorum={self.coalition.quorum} is more than the {fewest} "
                f"clients{of_a_kind}: no step could be taken. Set it to {fewest} or less."
            )

    def groups(self) -> list[tuple[int, ...]]:
        """The clients of each kind; all in one without kinds."""
        return by_kind(range(len(self.names)), self.kinds)

    def rosters(self, who: Presence) -> list[list[list[int]]]:
        """For each step of a round the rosters of all kinds, as far as there is a quorum."""
        steps = []
        for step in range(self.steps):
            able = [each for each in who.present if who.steps(each, self.steps) > step]
            rosters = [list(group) for group in by_kind(able, self.kinds)]
            rosters = [roster for roster in rosters if len(roster) >= self.coalition.quorum]
            if not rosters:
                break
            steps.append(rosters)
        return steps

    def attempt(self, roster: Sequence[int], round: int, step: int) -> Attempt:
        """A step as the masks know it."""
        names = tuple(self.member(each) for each in roster)
        return Attempt(self.federation, self.manifest, round, step, names)

    def member(self, client: int) -> str:
        """The client's name on rosters, which no two have in common."""
        return f"{client:04d} {self.names[client]}"

    def batch_size(self, roster: Sequence[int]) -> int:
        """The public, expected number of units in the batches of a roster."""
        return sum(self.batch_sizes[each] for each in roster)


def seeded_keys(plan: Plan, seed: int, own: Sequence[int]) -> dict[int, Keys]:
    """The keys of the clients ``own`` of a simulation, who have met all others. They follow from
    the seed, so any process can make anybody's: such masks protect nobody."""
    everyone = []
    for client in range(len(plan.names)):
        everyone.append(Keys(plan.member(client), seed=f"{seed} {client}".encode()))
    for client in own:
        for other in everyone:
            if other is not everyone[client]:
                everyone[client].meet(other.name, other.public)
    return {client: everyone[client] for client in own}


class Player(SetOnce, changing=("_generator", "losses", "seconds", "step", "steps")):
    """A client in the middle of a round: its training, which stands before ``step``, and its own
    state of torch's global generator, from which dropout draws."""

    def __init__(self, client: Client, round: int, steps: int) -> None:
        started = time.perf_counter()
        self.client = client
        self.steps = steps
        self.losses = Losses()
        self.step: Step | None = None
        seed_global(client.global_seed(round))
        self._training: Training = client.learner.training(round, steps)
        self._generator = torch.default_generator.get_state()
        self.seconds = time.perf_counter() - started
        self.go_on()

    @modes_contained()
    def go_on(self, loss: float | None = None) -> None:
        """Train up to the next step of the proxy, after one with this ``loss``."""
        started = time.perf_counter()
        torch.default_generator.set_state(self._generator)
        try:
            # a generator that has not begun takes nothing but None
            self.step = self._training.send(loss)
        except StopIteration as end:
            self.step = None
            self.losses = end.value
        self._generator = torch.default_generator.get_state()
        self.seconds += time.perf_counter() - started

    def draw_again(self) -> None:
        """Replace the batch of the step that the training stands before by a fresh one, which is
        charged. The step's first batch stays with the private model."""
        self.step = (trainer_of(self.client).draw(), None)

    def contribute(self, about: Attempt, keys: Keys) -> tuple[Words, float | None]:
        """The message for the step that the training stands before, and the loss there."""
        if self.step is None:
            raise TransportError(f"{self.client.name} has no step left for {about}.")
        started = time.perf_counter()
        torch.default_generator.set_state(self._generator)
        self.client.ledger.check_release(about.round)
        batch, logits = self.step
        message, loss = trainer_of(self.client).contribute(batch, about, keys, logits)
        self._generator = torch.default_generator.get_state()
        self.seconds += time.perf_counter() - started
        return message, loss


class MaskedSum(SetOnce):
    """Trains the clients of this process in step with all others, over a transport."""

    def __init__(
        self, transport: Transport, plan: Plan, keys: Mapping[int, Keys], *, timeout: float = 60.0
    ) -> None:
        """``keys`` are those of this process's clients, who have met all others."""
        self._transport = transport
        self._plan = plan
        self._keys = keys
        self._timeout = timeout

    def train(
        self, clients: Sequence[Client], round: int, who: Presence
    ) -> tuple[dict[int, Player], dict[int, Traffic]]:
        """One round of this process's clients; those who were present, and everybody's traffic.

        All of ``clients`` follow the sums, those who are away as well."""
        plan = self._plan
        rosters = plan.rosters(who)
        traffic = {client.id: Traffic() for client in clients}
        players = {}
        for client in clients:
            client.settle(round)
            if client.id in who.present:
                steps = sum(client.id in roster for step in rosters for roster in step)
                players[client.id] = Player(client, round, steps)
        for step, of_kinds in enumerate(rosters):
            for roster in of_kinds:
                self._take_step(clients, players, roster, round, step, traffic)
        return players, traffic

    def _take_step(
        self,
        clients: Sequence[Client],
        players: Mapping[int, Player],
        roster: Sequence[int],
        round: int,
        step: int,
        traffic: Mapping[int, Traffic],
    ) -> None:
        """One step of one kind's proxy."""
        plan = self._plan
        (group,) = (each for each in plan.groups() if roster[0] in each)
        about = plan.attempt(roster, round, step)
        frames: dict[int, bytes] = {}
        losses = {}
        for i in roster:
            if i in players:
                message, losses[i] = players[i].contribute(about, self._keys[i])
                frames[i] = encode(message, about, fingerprint(players[i].client))
                self._send(frames[i], i, group, round, step, traffic[i])
        for client in clients:
            if client.id in group:
                total = self._collect(client, roster, about, frames, step, traffic[client.id])
                trainer_of(client).advance(total, plan.batch_size(roster))
        for i, loss in losses.items():
            players[i].go_on(loss)

    def _send(
        self,
        frame: bytes,
        sender: int,
        group: Sequence[int],
        round: int,
        step: int,
        traffic: Traffic,
    ) -> None:
        """Send a message to everybody else of a kind."""
        for receiver in group:
            if receiver != sender:
                key = self._key(round, step)
                self._transport.send(frame, sender=sender, receiver=receiver, round=key)
                traffic.bytes_sent += len(frame)
                traffic.messages_sent += 1

    def _collect(
        self,
        client: Client,
        roster: Sequence[int],
        about: Attempt,
        own: Mapping[int, bytes],
        step: int,
        traffic: Traffic,
    ) -> Integers:
        """The sum of a step as ``client`` computes it."""
        expected = fingerprint(client)
        messages = {}
        for sender in roster:
            if sender == client.id:
                frame = own[sender]
            else:
                frame = self._transport.receive(
                    sender=sender,
                    receiver=client.id,
                    round=self._key(about.round, step),
                    timeout=self._timeout,
                )
                traffic.bytes_received += len(frame)
                traffic.messages_received += 1
            name = self._plan.member(sender)
            messages[name] = decode(frame, about, expected, sender=name)
        size = params.size(client.learner.shared)
        limit = trainer_of(client).largest_sum(self._plan.batch_size(roster), len(roster))
        return add_up(messages, about, size=size, limit=limit)

    def _key(self, round: int, step: int) -> int:
        """A number for the transport, another one for each step."""
        return round * self._plan.steps + step


def encode(message: Words, about: Attempt, proxy: bytes) -> bytes:
    """A message on the wire: the attempt, the ``fingerprint`` of the proxy, the masked values."""
    return about.digest + proxy + message.astype(_WORD).tobytes()


def decode(frame: bytes, about: Attempt, proxy: bytes, *, sender: str) -> Words:
    """The masked values of a message; TransportError if it is for another attempt or proxy."""
    if len(frame) < _DIGEST + _FINGERPRINT or (len(frame) - _DIGEST - _FINGERPRINT) % 8:
        raise TransportError(
            f"{sender} sent {len(frame)} bytes for {about}, which are no message of a masked sum."
        )
    if frame[:_DIGEST] != about.digest:
        raise TransportError(
            f"{sender} sent a message that is not for {about} with the roster "
            f"{', '.join(about.roster)}. Compare its manifest and its round with yours."
        )
    if frame[_DIGEST : _DIGEST + _FINGERPRINT] != proxy:
        raise TransportError(
            f"{sender} has another proxy than the receiver in {about}. One of them has missed a "
            "sum, or computes with another rounding."
        )
    words = np.frombuffer(frame, dtype=_WORD, offset=_DIGEST + _FINGERPRINT)
    return words.astype(np.uint64)


def fingerprint(client: Client) -> bytes:
    """A hash of the client's proxy: in a masked sum all have the same."""
    flat = params.flatten(client.learner.shared).detach().cpu().contiguous()
    return hashlib.sha256(flat.numpy().tobytes()).digest()[:_FINGERPRINT]


def trainer_of(client: Client) -> DPSGD:
    """Returns the trainer of the client's proxy; ConfigError if that is not DP-SGD."""
    trainer = client.learner.trainer
    if not isinstance(trainer, DPSGD):
        raise ConfigError(
            f"A masked sum hides noise shares, and client {client.name} trains without DP. Set "
            "privacy.enabled = true, or choose another method."
        )
    return trainer
