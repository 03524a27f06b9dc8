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
    """The measurements of one client's round so far."""

    losses: Losses = field(default_factory=Losses)
    scores: dict[Role, Score] = field(default_factory=dict)
    keeps: str | None = None
    steps: int = 0
    training: float = 0.0
    evaluation: float = 0.0


def run_rounds(
    clients: Sequence[Client],
    *,
    rounds: int,
    exchange: Exchange,
    shares: bool,
    transport: Transport,
    presence: Callable[[int], Presence],
    evaluate: Evaluator,
    evaluate_now: Callable[[int], bool],
    start: int = 0,
    timeout: float = 60.0,
) -> Iterator[list[ClientRound]]:
    """Run rounds ``start`` to ``rounds`` for these clients; yield each round's records as
    it ends."""
    for round in range(start, rounds):
        who = presence(round)
        here = [client for client in clients if client.id in who.present]
        work = {
            client.id: _train(client, round, who.steps(client.id, client.steps))
            for client in here
        }
        scored = [
            client
            for client in here
            if evaluate_now(round) or client.id in who.leaving
        ]
        is_last = {
            client.id: round == rounds - 1 or client.id in who.leaving
            for client in scored
        }
        for client in scored:
            models = client.learner.models()
            _score(client.id, work[client.id], models, evaluate, is_last[client.id])
        started = time.perf_counter()
        traffic = (
            _exchange(here, round, who, exchange, transport, timeout)
            if shares
            else {}
        )
        exchanging = (time.perf_counter() - started) / max(1, len(here))
        for client in scored:
            if shares and client.id not in who.handing_over:
                models = {"received": client.learner.shared}
                _score(
                    client.id, work[client.id], models, evaluate, is_last[client.id]
                )
        yield [
            _record(
                c, round, who, work[c.id], traffic.get(c.id, Traffic()), exchanging
            )
            for c in here
        ]


def _train(client: Client, round: int, steps: int) -> _Work:
    # dropout draws from the global generator
    seed_global(client.global_seed(round))
    started = time.perf_counter()
    client.settle(round)
    losses = client.learner.train(round, steps)
    return _Work(losses=losses, steps=steps, training=time.perf_counter() - started)


def _score(
    client: int,
    work: _Work,
    models: Mapping[Role, torch.nn.Module],
    evaluate: Evaluator,
    last: bool,
) -> None:
    started = time.perf_counter()
    for role, model in models.items():
        work.scores[role] = evaluate(model, client, last=last)
        if isinstance(model, Home):
            work.keeps = model.name
    work.evaluation += time.perf_counter() - started


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
    client: Client,
    round: int,
    who: Presence,
    work: _Work,
    traffic: Traffic,
    exchanging: float,
) -> ClientRound:
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
        traffic=traffic,
        weight=client.weight,
        seconds={
            "training": work.training,
            "evaluation": work.evaluation,
            "exchange": exchanging,
        },
        left=who.leaving.get(client.id),
        keeps=work.keeps,
    )
