"""A federation's outcome, predicted in one process: simulate first, then deploy.

The same manifest and site files, the same client, the same round loop; masses go through memory,
and noise is seeded. In test mode (`proxyfl node run --simulated-seed N`) a real federation's
proxies are equal to these, bit for bit.

``alone`` is what a site has if it does not join: its private model trained on its own examples for
as many steps, without DP, since nothing of it is shared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from proxyfl import params
from proxyfl.errors import ConfigError
from proxyfl.federation import exchange, membership
from proxyfl.federation.client import Client
from proxyfl.federation.metrics import Score, evaluate
from proxyfl.federation.rounds import run_rounds
from proxyfl.measures import MEASURES
from proxyfl.node import assembly
from proxyfl.node.assembly import SiteData
from proxyfl.node.members import manifest, site
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import Site
from proxyfl.privacy.guarantee import Epsilon
from proxyfl.transport.memory import MemoryTransport


@dataclass(frozen=True)
class Outcome:
    """One site's scores, in the manifest's measure."""

    name: str
    architecture: str
    examples: int
    alone: float | None
    joined: float | None
    epsilon: Epsilon
    proxy: torch.Tensor | None = None

    def gain(self, measure: str) -> float | None:
        """The gain from joining; None where the measure is not defined."""
        if self.alone is None or self.joined is None:
            return None
        return MEASURES[measure].gain(self.joined, self.alone)


def find_sites(folder: Path) -> tuple[Manifest, list[tuple[Site, Path]]]:
    """The manifest in ``folder``, and the site folders in it, in the manifest's order."""
    agreed = manifest.read(folder)
    found: dict[str, tuple[Site, Path]] = {}
    for path in sorted(folder.glob(f"*/{site.FILE}")):
        settings, place = site.read(path)
        found[settings.name] = (settings, place)
    missing = [name for name in agreed.names() if name not in found]
    if missing:
        raise ConfigError(
            f"No {site.FILE} for {', '.join(missing)} below {folder}. A simulation needs each "
            "site's settings, and data of its shape: real, public, or made up."
        )
    return agreed, [found[name] for name in agreed.names()]


def predict(
    folder: Path, *, seed: int = 0, say: Callable[[int], None] = lambda round: None
) -> list[Outcome]:
    """Run the federation in ``folder`` in this process."""
    agreed, sites = find_sites(folder)
    if agreed.rounds == manifest.MOST_ROUNDS:
        raise ConfigError(
            f"The manifest ends on {agreed.ends} and states no number of rounds. A simulation "
            "needs one: state both, `proxyfl federation new --rounds N --until DATE`."
        )
    data = []
    clients = []
    for settings, place in sites:
        own = assembly.load(agreed, settings, place)
        client = assembly.client(
            agreed, settings, own.train, ledger=None, seed=seed
        )
        data.append(own)
        clients.append(client)
    simulate(agreed, clients, data[0], say=say)
    outcomes = []
    for (settings, _), own, client in zip(sites, data, clients, strict=True):
        joined = evaluate(client.learner.models()["private"], own.test)
        found = outcome(
            agreed,
            settings,
            own,
            joined=joined.values[agreed.measure],
            epsilon=client.ledger.epsilon(),
            seed=seed,
        )
        proxy = params.flatten(client.learner.shared)
        outcomes.append(replace(found, proxy=proxy))
    return outcomes


def simulate(
    agreed: Manifest,
    clients: Sequence[Client],
    judged_on: SiteData,
    *,
    say: Callable[[int], None] = lambda round: None,
) -> None:
    """Run all rounds of ``clients`` in this process, budgets and late joiners included."""
    schedule = []
    for at, card in enumerate(agreed.members):
        schedule.append(membership.Attendance(at, card.joins))
    allowances = {}
    for client in clients:
        allowances[client.id] = _allowance(client, agreed.training_rounds)
    presences = membership.plan(
        len(clients),
        agreed.rounds,
        schedule=schedule,
        allowances=allowances,
        settling=agreed.settle,
    )

    def judged(model: torch.nn.Module, client: int, *, last: bool = False) -> Score:
        return evaluate(model, judged_on.test)

    rounds = run_rounds(
        clients,
        rounds=agreed.rounds,
        exchange=exchange.make("pushsum", agreed.mixing()),
        transport=MemoryTransport(),
        presence=lambda round: presences[round],
        evaluate=judged,
        evaluate_now=lambda _round: False,
    )
    for number, _ in enumerate(rounds):
        say(number)


def alone(
    agreed: Manifest, settings: Site, own: SiteData, seed: int | None
) -> Score:
    """The score of the site's private model trained by itself for as many steps."""
    client = assembly.client(
        agreed, settings, own.train, ledger=None, seed=seed, method="alone"
    )
    for round in range(agreed.rounds):
        client.learner.train(round, client.steps)
    return evaluate(client.learner.models()["private"], own.test)


def outcome(
    agreed: Manifest,
    settings: Site,
    own: SiteData,
    *,
    joined: float | None,
    epsilon: Epsilon,
    seed: int | None,
) -> Outcome:
    """The site's score ``joined`` beside its score alone."""
    baseline = alone(agreed, settings, own, seed)
    return Outcome(
        name=settings.name,
        architecture=settings.model.architecture,
        examples=len(own.train),
        alone=baseline.values[agreed.measure],
        joined=joined,
        epsilon=epsilon,
    )


def _allowance(client: Client, rounds: int) -> membership.Allowance:
    wanted = rounds * client.steps
    affordable = assembly.affordable_steps(client, wanted)
    if affordable == wanted:
        return membership.Allowance(client.steps)
    return membership.Allowance(client.steps, affordable)
