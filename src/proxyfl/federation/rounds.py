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

from proxyfl.federation.client import Client
from proxyfl.federation.exchange import Exchange, Traffic
from proxyfl.federation.home import Home
from proxyfl.federation.learners import Losses, goes_on, warn_of_fault
from proxyfl.federation.masked import MaskedSum
from proxyfl.federation.membership import Presence
from proxyfl.federation.methods import Role
from proxyfl.federation.metrics import Score
from proxyfl.federation.prevalence import NOTHING, Meaning
from proxyfl.privacy.guarantee import Epsilon
from proxyfl.privacy.isolation import modes_contained
from proxyfl.seeds import seed_global


class Evaluator(Protocol):
    """Scores a model of a client; ``last`` if it is the client's last score. ``meaning`` says what
    the model's probabilities are for."""

    def __call__(
        self, model: torch.nn.Module, client: int, *, last: bool = False, meaning: Meaning = NOTHING
    ) -> Score: ...


@dataclass(frozen=True)
class ClientRound:
    """One client's round: scores, losses, costs. ``keeps`` names what was chosen as the private
    model, where there was a choice (``federation.home``); ``folds`` has the losses by which."""

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
    folds: tuple[float, float] | None = None


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
    folds: tuple[float, float] | None = None
    evaluation: float = 0.0

    def received(self) -> dict[Role, torch.nn.Module]:
        """The proxy as it came out of the exchange."""
        return {"received": self.client.learner.snapshot()}

    @modes_contained()
    def score(
        self, models: Callable[[], Mapping[Role, torch.nn.Module]], evaluate: Evaluator
    ) -> None:
        started = time.perf_counter()
        try:
            for role, model in models().items():
                meaning = self.client.balances.meaning(role, model)
                self.scores[role] = evaluate(model, self.client.id, last=self.last, meaning=meaning)
                if isinstance(model, Home):
                    self.keeps, self.folds = model.name, model.folds
        except Exception as problem:
            if not goes_on(self.client.ledger, problem):
                raise
            warn_of_fault("A round has no score, because a model cannot be evaluated", problem)
        self.evaluation += time.perf_counter() - started


def run_rounds(
    clients: Sequence[Client],
    *,
    rounds: int,
    exchange: Exchange | MaskedSum | None,
    presence: Callable[[int], Presence],
    evaluate: Evaluator,
    evaluate_now: Callable[[int], bool],
    start: int = 0,
) -> Iterator[list[ClientRound]]:
    """Run rounds ``start`` to ``rounds`` for these clients; yield each round's records as
    it ends. Without an ``exchange`` nothing is shared. With a masked sum it is part of every step,
    and what a client received is what its proxy is."""
    for round in range(start, rounds):
        who = presence(round)
        here = [client for client in clients if client.id in who.present]
        last = round == rounds - 1
        traffic: dict[int, Traffic] = {}
        if isinstance(exchange, MaskedSum):
            work, traffic = _train_in_step(clients, round, who, last, exchange)
        else:
            work = [_train(client, round, who, last) for client in here]
        scored = work
        if not evaluate_now(round):
            scored = [each for each in work if each.client.id in who.leaving]
        for each in scored:
            each.score(each.client.learner.models, evaluate)
        started = time.perf_counter()
        if isinstance(exchange, MaskedSum):
            for client in clients:
                client.receive(round, client.mass())
        elif exchange is not None:
            traffic = _exchange(here, round, who, exchange)
        exchanging = (time.perf_counter() - started) / max(1, len(here))
        for each in scored:
            if exchange is not None and each.client.id not in who.handing_over:
                each.score(each.received, evaluate)
        yield [_record(each, round, who, traffic, exchanging) for each in work]


@modes_contained()
def _train(client: Client, round: int, who: Presence, last: bool) -> _Work:
    # dropout draws from the global generator
    seed_global(client.global_seed(round))
    started = time.perf_counter()
    client.settle(round)
    steps = who.steps(client.id, client.steps)
    losses = client.learner.train(round, steps)
    seconds = time.perf_counter() - started
    return _Work(client, steps, last or client.id in who.leaving, losses, seconds)


def _train_in_step(
    clients: Sequence[Client], round: int, who: Presence, last: bool, masked: MaskedSum
) -> tuple[list[_Work], dict[int, Traffic]]:
    players, traffic = masked.train(clients, round, who)
    work = []
    for i, player in players.items():
        is_last = last or i in who.leaving
        work.append(_Work(player.client, player.steps, is_last, player.losses, player.seconds))
    return work, traffic


def _exchange(
    here: Sequence[Client], round: int, who: Presence, exchange: Exchange
) -> dict[int, Traffic]:
    if not here:
        return {}
    for client in here:
        client.ledger.check_release(round)
    masses = {client.id: client.mass() for client in here}
    mixed, traffic = exchange(round, masses, present=who.present, leaving=who.handing_over)
    for client in here:
        if client.id in mixed:
            client.receive(round, mixed[client.id])
        else:
            client.weight = 0.0
    return traffic


def _record(
    work: _Work, round: int, who: Presence, traffic: Mapping[int, Traffic], exchanging: float
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
        seconds={"training": work.training, "evaluation": work.evaluation, "exchange": exchanging},
        left=who.leaving.get(client.id),
        keeps=work.keeps,
        folds=work.folds,
    )
