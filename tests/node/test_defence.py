"""What the defence buys against members that lie, and what it costs when nobody does."""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from proxyfl import params
from proxyfl.federation import membership
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import MassChannel
from proxyfl.federation.metrics import evaluate
from proxyfl.federation.rounds import run_rounds
from proxyfl.gossip.pushsum import Mass, add
from proxyfl.gossip.routes import routes
from proxyfl.node import assembly, trial
from proxyfl.node.assembly import Relabelled
from proxyfl.node.defence import Guard
from proxyfl.node.members import site as sites
from proxyfl.seeds import stream
from proxyfl.transport.memory import MemoryTransport

SITES = 8
LIAR = 3

Attack = Callable[[Tensor, int], Tensor]


def noise(theta: Tensor, round: int) -> Tensor:
    """Nothing but noise."""
    return 5 * torch.randn(theta.shape, generator=stream(0, "attack", round))


def scaled(theta: Tensor, round: int) -> Tensor:
    """A model blown up tenfold."""
    return 10 * theta


def as_it_is(theta: Tensor, round: int) -> Tensor:
    """What was trained: honest, or on flipped labels."""
    return theta


def received_accuracy(
    folder: Path,
    *,
    attack: Attack,
    rule: str,
    flipped: bool = False,
    rounds: int = 20,
) -> float:
    """The honest sites' mean accuracy of the proxy that they hold in the end."""
    layout = trial.lay_out(
        folder, sites=SITES, rounds=rounds, template=trial.quick_site()
    )
    clients = []
    for at, place in enumerate(layout.sites):
        settings, _ = sites.read(place)
        own = assembly.load(layout.manifest, settings, place)
        train = own.train
        if flipped and at == LIAR:
            train = Relabelled(own.train, 9 - own.train.labels)
        clients.append(
            assembly.client(layout.manifest, settings, train, ledger=None, seed=1)
        )
    guards = [Guard(rule) for _ in clients]
    before = {
        client.id: params.flatten(client.learner.shared) for client in clients
    }
    present = membership.everyone(SITES)
    for _ in run_rounds(
        clients,
        rounds=rounds,
        exchange=partial(
            _exchange, layout.manifest.mixing(), guards, before, attack
        ),
        shares=True,
        transport=MemoryTransport(),
        presence=present,
        evaluate=lambda model, client, last=False: evaluate(model, own.test),
        evaluate_now=lambda _round: False,
    ):
        pass
    honest = [client for client in clients if client.id != LIAR]
    return sum(_accuracy(client, own.test) for client in honest) / len(honest)


def _accuracy(client: Client, test: object) -> float:
    return evaluate(client.learner.shared, test).accuracy  # type: ignore[arg-type]  # Examples


def _exchange(
    topology: Callable[..., object],
    guards: Sequence[Guard],
    before: dict[int, Tensor],
    attack: Attack,
    masses: Mapping[int, Mass],
    present: Sequence[int],
    leaving: Set[int],
    post: MassChannel,
) -> dict[int, Mass]:
    plan = routes(topology, post.round, present)  # type: ignore[arg-type]  # a Topology
    parts = {
        client: mass.split(plan.shares(client)) for client, mass in masses.items()
    }
    mixed = {}
    for client in masses:
        kept = parts[client][client]
        guards[client].moved(float((kept.theta - before[client]).norm()))
        received = [kept]
        for sender in plan.senders(client):
            mass = parts[sender][client]
            if sender == LIAR:
                mass = Mass(attack(mass.theta, post.round), mass.w)
            if guards[client].rule == "clip":
                mass = guards[client].guarded(kept, mass)
            received.append(mass)
        mixed[client] = add(received)
        before[client] = mixed[client].theta
    return mixed


CASES = {
    "all honest": (as_it_is, False),
    "flipped labels": (as_it_is, True),
    "noise": (noise, False),
    "scaled up": (scaled, False),
}


def test_the_defence_holds_against_noise_and_costs_little(tmp_path: Path) -> None:
    """One of eight members sends noise: without a defence the proxies are ruined, with it they are
    within 12 points of those without a liar."""
    honest = received_accuracy(
        tmp_path / "a", attack=as_it_is, rule="clip", rounds=15
    )
    ruined = received_accuracy(tmp_path / "b", attack=noise, rule="none", rounds=15)
    saved = received_accuracy(tmp_path / "c", attack=noise, rule="clip", rounds=15)
    print(f"honest {honest:.3f}, ruined {ruined:.3f}, saved {saved:.3f}")
    assert ruined < honest - 0.25
    assert saved > ruined + 0.2
    assert saved > honest - 0.12


@pytest.mark.slow
def test_the_defence_in_all_cases(tmp_path: Path) -> None:
    """Each attack with and without the defence; prints the table of docs/node.md."""
    table = {}
    for case, (attack, flipped) in CASES.items():
        for rule in ("none", "clip"):
            folder = tmp_path / f"{case} {rule}".replace(" ", "-")
            table[case, rule] = received_accuracy(
                folder, attack=attack, rule=rule, flipped=flipped
            )
            print(f"{case:>16} {rule:>6} {table[case, rule]:.3f}", flush=True)
    assert table["all honest", "clip"] > table["all honest", "none"] - 0.1
    assert table["noise", "clip"] > table["noise", "none"] + 0.2
    assert table["scaled up", "clip"] > table["scaled up", "none"] + 0.05


def test_a_guard_bounds_the_step_and_the_weight() -> None:
    """What is received moves a site by at most the radius, and weighs at most so much."""
    guard = Guard("clip", radius=2.0, most_weight=3.0)
    own = Mass(torch.zeros(4), 0.5)
    for way in (1.0, 1.0, 9.0):
        guard.moved(way)
    pulled = guard.guarded(own, Mass(torch.tensor([0.0, 100, 0, 0]), 8.0))
    assert float(pulled.theta.norm()) == pytest.approx(2.0)
    assert pulled.w == 1.5
    assert guard.clipped == 1
