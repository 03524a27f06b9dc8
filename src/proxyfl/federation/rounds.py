"""The one round loop: train, evaluate, exchange, record. Every method, engine and experiment runs
through it.

Guarantees:
    * a client's round is on its ledger before its first step, and is checked there again before its
      proxy leaves;
    * what a client computes depends on its own streams and on what it received, not on which
      clients share its process;
    * total mass is conserved over every exchange, departures included.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from proxyfl import params
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import Exchange, MassChannel, Traffic
from proxyfl.federation.home.model import Home
from proxyfl.federation.learners import Losses
from proxyfl.federation.membership import Presence
from proxyfl.federation.methods import Role
from proxyfl.federation.metrics import Score
from proxyfl.privacy.guarantee import Epsilon
from proxyfl.seeds import seed_global
from proxyfl.transport.base import Transport


class Evaluator(Protocol):
    """Scores a model of a client; ``last`` if it is the client's last score."""

    def __call__(
        self, model: torch.nn.Module, client: int, *, last: bool = False
    ) -> Score: ...


@dataclass(frozen=True)
class ClientRound:
    """One client's round: scores, losses, costs. ``keeps`` names what was chosen as the private
    model, where there was a choice (``federation.home``)."""

    round: int
    client: int
    name: str
    present: int
    expected: int
    steps: int
    losses: Losses
    scores: Mapping[Role, Score]
    epsilon: Epsilon
    traffic: Traffic
    weight: float
    seconds: Mapping[str, float]
    left: str | None = None
    keeps: str | None = None


@dataclass
class _Work:
    """One client's round so far; ``last`` if its scores are the client's last."""

    client: Client
    steps: int
    last: bool
    losses: Losses
    training: float
    scores: dict[Role, Score] = field(default_factory=dict)
    keeps: str | None = None
    evaluation: float = 0.0

    def score(
        self, models: Mapping[Role, torch.nn.Module], evaluate: Evaluator
    ) -> None:
        started = time.perf_counter()
        for role, model in models.items():
            self.scores[role] = evaluate(model, self.client.id, last=self.last)
            if isinstance(model, Home):
                self.keeps = model.name
        self.evaluation += time.perf_counter() - started


def run_rounds(
    clients: Sequence[Client],
    *,
    rounds: int,
    exchange: Exchange | None,
    transport: Transport,
    presence: Callable[[int], Presence],
    evaluate: Evaluator,
    evaluate_now: Callable[[int], bool],
    start: int = 0,
    timeout: float = 60.0,
) -> Iterator[list[ClientRound]]:
    """Run rounds ``start`` to ``rounds`` for these clients; yield each round's records as
    it ends. Without an ``exchange`` nothing is shared."""
    for round in range(start, rounds):
        who = presence(round)
        here = [client for client in clients if client.id in who.present]
        work = [_train(client, round, who, round == rounds - 1) for client in here]
        scored = work
        if not evaluate_now(round):
            scored = [each for each in work if each.client.id in who.leaving]
        for each in scored:
            each.score(each.client.learner.models(), evaluate)
        started = time.perf_counter()
        traffic: dict[int, Traffic] = {}
        if exchange is not None:
            traffic = _exchange(here, round, who, exchange, transport, timeout)
        exchanging = (time.perf_counter() - started) / max(1, len(here))
        for each in scored:
            if exchange is not None and each.client.id not in who.handing_over:
                each.score({"received": each.client.learner.shared}, evaluate)
        yield [_record(each, round, who, traffic, exchanging) for each in work]


def _train(client: Client, round: int, who: Presence, last: bool) -> _Work:
    # dropout draws from the global generator
    seed_global(client.global_seed(round))
    started = time.perf_counter()
    client.settle(round)
    steps = who.steps(client.id, client.steps)
    losses = client.learner.train(round, steps)
    seconds = time.perf_counter() - started
    return _Work(client, steps, last or client.id in who.leaving, losses, seconds)


def _exchange(
    here: Sequence[Client],
    round: int,
    who: Presence,
    exchange: Exchange,
    transport: Transport,
    timeout: float,
) -> dict[int, Traffic]:
    if not here:
        return {}
    shared = here[0].learner.shared
    channel = MassChannel(
        transport, round, params.fingerprint(shared), params.size(shared), timeout
    )
    for client in here:
        client.ledger.check_release(round)
    mixed = exchange(
        {client.id: client.mass() for client in here},
        who.present,
        who.handing_over,
        channel,
    )
    for client in here:
        if client.id in mixed:
            client.receive(round, mixed[client.id])
        else:
            client.weight = 0.0
    return channel.traffic


def _record(
    work: _Work,
    round: int,
    who: Presence,
    traffic: Mapping[int, Traffic],
    exchanging: float,
) -> ClientRound:
    client = work.client
    return ClientRound(
        round=round,
        client=client.id,
        name=client.name,
        present=len(who.present),
        expected=who.expected,
        steps=work.steps,
        losses=work.losses,
        scores=work.scores,
        epsilon=client.ledger.epsilon(through=round),
        traffic=traffic.get(client.id, Traffic()),
        weight=client.weight,
        seconds={
            "training": work.training,
            "evaluation": work.evaluation,
            "exchange": exchanging,
        },
        left=who.leaving.get(client.id),
        keeps=work.keeps,
    )
