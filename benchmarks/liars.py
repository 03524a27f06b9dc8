"""What the nodes' defence buys against a member that lies: ``python -m benchmarks.liars``.

Eight sites on the digits, one of which lies, 20 rounds in one process. The figure is the honest
sites' mean accuracy of the proxy that they hold in the end. The radius is chosen on one set of
seeds (``--choose``) and the table is made on another; a seed decides the partition, the test part,
the initial proxy and all noise. Each run is a line of the output file, which is continued."""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from proxyfl import params
from proxyfl.federation import membership
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import MassChannel
from proxyfl.federation.metrics import Score, evaluate
from proxyfl.federation.rounds import run_rounds
from proxyfl.gossip.pushsum import Mass
from proxyfl.gossip.routes import routes
from proxyfl.gossip.topology import Topology
from proxyfl.node import assembly, trial
from proxyfl.node.assembly import Relabelled, SiteData
from proxyfl.node.defence import Guard
from proxyfl.node.members import site as sites
from proxyfl.node.members.manifest import Graph
from proxyfl.seeds import stream
from proxyfl.transport.memory import MemoryTransport

SITES = 8
LIAR = 3
RADII = (1.5, 2.5, 3.5)
CHOOSING = (11,)
FRESH = (21, 22)

RECORDED = Path("experiments/results/node/liars.jsonl")

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


CASES: dict[str, tuple[Attack, bool]] = {
    "honest": (as_it_is, False),
    "flipped labels": (as_it_is, True),
    "noise": (noise, False),
    "tenfold": (scaled, False),
}
"""How the liar lies: what it does to its proxy, and whether it trains on flipped labels."""


def received_accuracy(
    folder: Path,
    case: str,
    guard: Guard,
    *,
    seed: int,
    topology: str = "exponential",
    rounds: int = 20,
) -> float:
    """The honest sites' mean accuracy of the proxy that they hold in the end."""
    attack, flipped = CASES[case]
    layout = trial.lay_out(
        folder, sites=SITES, rounds=rounds, seed=seed, template=trial.quick_site()
    )
    clients = []
    for at, place in enumerate(layout.sites):
        settings, _ = sites.read(place)
        own = assembly.load(layout.manifest, settings, place)
        train = own.train
        if flipped and at == LIAR:
            train = Relabelled(own.train, 9 - own.train.labels)
        clients.append(
            assembly.client(
                layout.manifest, settings, train, ledger=None, seed=seed
            )
        )
    graph = replace(layout.manifest, graph=Graph(topology)).mixing()
    _train(clients, graph, guard, attack, rounds, own)
    honest = [client for client in clients if client.id != LIAR]
    scores = [
        evaluate(client.learner.shared, own.test).accuracy for client in honest
    ]
    return statistics.mean(scores)


def _train(
    clients: Sequence[Client],
    graph: Topology,
    guard: Guard,
    attack: Attack,
    rounds: int,
    own: SiteData,
) -> None:
    guards = [replace(guard, ways=guard.ways.copy()) for _ in clients]
    before = {
        client.id: params.flatten(client.learner.shared) for client in clients
    }

    def judged(model: torch.nn.Module, client: int, *, last: bool = False) -> Score:
        return evaluate(model, own.test)

    for _ in run_rounds(
        clients,
        rounds=rounds,
        exchange=partial(_exchange, graph, guards, before, attack),
        transport=MemoryTransport(),
        presence=membership.everyone(SITES),
        evaluate=judged,
        evaluate_now=lambda _round: False,
    ):
        pass


def _exchange(
    graph: Topology,
    guards: Sequence[Guard],
    before: dict[int, Tensor],
    attack: Attack,
    masses: Mapping[int, Mass],
    present: Sequence[int],
    leaving: Set[int],
    post: MassChannel,
) -> dict[int, Mass]:
    """The nodes' exchange, without the network, in which the liar's shares are its own making."""
    plan = routes(graph, post.round, present)
    parts = {
        client: mass.split(plan.shares(client)) for client, mass in masses.items()
    }
    mixed = {}
    for client in masses:
        kept = parts[client][client]
        guards[client].moved(float((kept.theta - before[client]).norm()))
        received = []
        for sender in plan.senders(client):
            mass = parts[sender][client]
            if sender == LIAR:
                mass = Mass(attack(mass.theta, post.round), mass.w)
            received.append(mass)
        mixed[client] = guards[client].mixed(kept, received)
        before[client] = mixed[client].theta
    return mixed


Key = tuple[str, str, str, float, int]
"""Graph, case, rule, radius, seed."""


def known(out: Path) -> dict[Key, float]:
    """The runs that are in the file already."""
    found: dict[Key, float] = {}
    if out.exists():
        for line in out.read_text().splitlines():
            *key, accuracy = json.loads(line)
            graph, case, rule, radius, seed = key
            found[graph, case, rule, float(radius), seed] = accuracy
    return found


def complete(out: Path, wanted: Sequence[Key]) -> dict[Key, float]:
    """Run what is wanted and not yet in the file."""
    found = known(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    for key in wanted:
        if key in found:
            continue
        graph, case, rule, radius, seed = key
        with tempfile.TemporaryDirectory() as folder:
            found[key] = received_accuracy(
                Path(folder), case, Guard(rule, radius), seed=seed, topology=graph
            )
        with out.open("a") as file:
            file.write(json.dumps([*key, found[key]]) + "\n")
    return found


def wanted_runs(choose: bool, radius: float) -> list[Key]:
    """The runs of the choice, or of the table."""
    seeds = CHOOSING if choose else FRESH
    rules = [("exponential", "none", 0.0)]
    if choose:
        rules += [("exponential", "clip", each) for each in RADII]
    else:
        rules.append(("exponential", "clip", radius))
        rules.append(("complete", "none", 0.0))
        rules += [("complete", rule, radius) for rule in ("clip", "median")]
    found: list[Key] = []
    for seed in seeds:
        for graph, rule, each in rules:
            found += [(graph, case, rule, each, seed) for case in CASES]
    return found


def main() -> None:
    """Run, and print the mean and each value over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--choose", action="store_true", help="all radii, old seeds"
    )
    parser.add_argument("--radius", type=float, default=Guard().radius)
    parser.add_argument("--out", type=Path, default=RECORDED)
    args = parser.parse_args()
    torch.set_num_threads(1)
    wanted = wanted_runs(args.choose, args.radius)
    found = complete(args.out, wanted)
    groups: dict[tuple[str, str, str, float], list[float]] = {}
    for key in wanted:
        groups.setdefault(key[:4], []).append(found[key])
    for (graph, case, rule, radius), values in sorted(groups.items()):
        each = ", ".join(f"{value:.3f}" for value in values)
        mean = statistics.mean(values)
        print(f"{graph:12} {case:15} {rule:7} {radius:4g}  {mean:.3f}  ({each})")


if __name__ == "__main__":
    main()
