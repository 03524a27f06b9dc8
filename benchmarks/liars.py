"""What a member that lies can do, and what the sites' defence buys: ``python -m benchmarks.liars``.

Eight sites on the digits, one or two of which lie, 20 rounds in one process. The figure is the
honest sites' mean accuracy of the proxy that they hold in the end. The exchange is that of
``proxyfl.simulation.sites``, with the rules by which a real site takes shares: no share is heavier
than its edge allows, and what a sender has waiting is one voice. The radius is chosen on some seeds
(``--choose``) and the table is made on others; a seed decides the partition, the test part, the
initial proxy and all noise. Runs that are in the output file are not repeated."""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from proxyfl import Mass
from proxyfl.data.examples import Relabelled
from proxyfl.federation import exchange, membership
from proxyfl.federation.metrics import Score, evaluate
from proxyfl.federation.rounds import run_rounds
from proxyfl.node import assembly, trial
from proxyfl.node.assembly import SiteData
from proxyfl.node.exchange.protocol import MOST_UNAPPLIED
from proxyfl.node.exchange.store import Part
from proxyfl.node.members import site as sites
from proxyfl.node.members.manifest import Graph, Manifest
from proxyfl.node.mixing import MOST_MEANS, Edge, Entry
from proxyfl.parts import Client, routes
from proxyfl.seeds import stream
from proxyfl.settings import Defence
from proxyfl.simulation.sites import SiteRules
from proxyfl.transport.memory import MemoryTransport

SITES = 8
LIAR = 3
ROUNDS = 20
RADII = (1.5, 2.5, 3.5, 5.0, 7.0)
CHOOSING = (11, 12)
FRESH = (21, 22, 23)
FAR = 1000.0

RECORDED = Path("experiments/results/node/liars.json")
COMMAND = "python -m benchmarks.liars"


def unchanged(theta: Tensor) -> Tensor:
    """What was trained."""
    return theta


def hundredfold(theta: Tensor) -> Tensor:
    """A proxy blown up."""
    return 100 * theta


def flip_sign(theta: Tensor) -> Tensor:
    """The opposite of what was learnt."""
    return -theta


def push(theta: Tensor) -> Tensor:
    """Far away, in the same direction in every round, so that what is left of it adds up."""
    direction = torch.randn(theta.shape, generator=stream(0, "attack"))
    pushed: Tensor = theta + FAR * direction / direction.norm()
    return pushed


@dataclass(frozen=True)
class Lie:
    """How the liar lies: what it does to its proxy, how heavy its shares are in multiples of honest
    ones, how many of them it saves up to send at once, from which round on, and whether it trains
    on flipped labels. Several ``liars`` do the same.

    ``uneven`` sites take between 1 and 15 steps a round, without a budget."""

    change: Callable[[Tensor], Tensor] = unchanged
    weight: float = 1.0
    shares: int = 1
    begins: int = 0
    flipped: bool = False
    uneven: bool = False
    liars: tuple[int, ...] = (LIAR,)


LIES = {
    "honest": Lie(),
    "honest, uneven sites": Lie(uneven=True),
    "flipped labels": Lie(flipped=True),
    "100-fold": Lie(hundredfold),
    "sign flip": Lie(flip_sign),
    "one direction": Lie(push),
    "one direction, false weight": Lie(push, weight=MOST_MEANS),
    "one direction, weight 8": Lie(push, weight=16),
    "one direction, four shares": Lie(push, shares=4),
    "sign flip, four shares": Lie(flip_sign, shares=4),
    "sign flip, false weight": Lie(flip_sign, weight=MOST_MEANS),
    "one direction, last round": Lie(push, begins=ROUNDS - 1),
    "one direction, two liars": Lie(push, liars=(LIAR, 6)),
    "sign flip, two liars": Lie(flip_sign, liars=(LIAR, 6)),
}
"""A share of an honest site weighs 0.5 on the exponential graph: 16 times as much is all 8 sites'
weight, which is refused. ``MOST_MEANS`` times as much is the most that is taken."""


class Attacked(SiteRules):
    """The sites' exchange, in which the liars' shares are their own making."""

    def __init__(
        self, agreed: Manifest, clients: Sequence[Client], defence: Defence, lie: Lie
    ) -> None:
        super().__init__(
            agreed.mixing(),
            clients,
            agreed.names(),
            [defence] * len(clients),
            training_rounds=agreed.training_rounds,
            joined=lambda _clients, _round: len(clients),
        )
        self.agreed = agreed
        self.lie = lie
        self.saved: dict[tuple[int, int], list[tuple[Part, Mass]]] = {}
        self.waiting: dict[tuple[int, int], list[tuple[Part, Mass]]] = {}
        """By liar and receiver."""

    def add_up(self, round: int, client: int, shares: Mapping[int, Mass], mean: float) -> Mass:
        """What an honest site has after the round, given all that it takes from the liars."""
        liars = self.lie.liars
        if client in liars or round < self.lie.begins:
            return super().add_up(round, client, shares, mean)
        names = self.agreed.names()
        entries = []
        for at, mass in shares.items():
            if at not in liars:
                entries.append(Entry(names[at], at, round, mass))
        for liar in liars:
            entries += self._taken(round, client, liar, shares.get(liar), mean)
        entries.sort(key=lambda entry: (entry.place, entry.round))
        mixed = self.guards[client].mix(entries, names[client])
        assert mixed is not None, "a site keeps a part of its mass in every round"
        return mixed

    def _taken(
        self, round: int, client: int, liar: int, sent: Mass | None, mean: float
    ) -> list[Entry]:
        """What an honest site takes from one liar, which may have ``sent`` a share."""
        names, pair = self.agreed.names(), (liar, client)
        edge = Edge(self._usual(round, liar, client), mean)
        if sent is not None:
            theta = self.lie.change(sent.theta)
            weight = self.lie.weight * edge.share if self.lie.weight > 1 else sent.w
            part = Part(names[liar], round, 1, "", Fraction(weight), b"")
            saved = self.saved.setdefault(pair, [])
            if part.weight <= edge.heaviest:
                saved.append((part, Mass(theta, weight)))
            if len(saved) == self.lie.shares:
                self.waiting[pair] = [*self.waiting.get(pair, []), *saved][:MOST_UNAPPLIED]
                saved.clear()
        waiting = self.waiting.get(pair, [])
        due = self.guards[client].due([part for part, _ in waiting], names[client], edge.heaviest)
        self.waiting[pair] = [(part, mass) for part, mass in waiting if part not in due]
        return [Entry(p.sender, liar, p.round, mass) for p, mass in waiting if p in due]

    def _usual(self, round: int, liar: int, receiver: int) -> float:
        """The part of its mass that the graph tells the liar to send."""
        shares = routes(self.agreed.mixing(), round, range(SITES)).shares(liar)
        return shares.get(receiver, 0.0)


def received_accuracy(
    folder: Path,
    case: str,
    defence: Defence,
    *,
    seed: int,
    topology: str = "exponential",
    rounds: int = ROUNDS,
) -> float:
    """The honest sites' mean accuracy of the proxy that they hold in the end."""
    lie = LIES[case]
    if lie.begins:
        lie = replace(lie, begins=rounds - 1)
    layout = trial.lay_out(
        folder, sites=SITES, rounds=rounds, seed=seed, template=trial.quick_site()
    )
    agreed = replace(layout.manifest, graph=Graph(topology))
    clients = []
    for at, place in enumerate(layout.sites):
        settings, _ = sites.read(place)
        if lie.uneven:
            learning = replace(settings.learning, steps_per_round=1 + 2 * at)
            privacy = replace(settings.privacy, budget=None)
            settings = replace(settings, learning=learning, privacy=privacy)
        own = assembly.load(agreed, settings, place)
        train = own.train
        if lie.flipped and at in lie.liars:
            train = Relabelled(own.train, 9 - own.train.labels)
        clients.append(assembly.client(agreed, settings, train, ledger=None, seed=seed))
    _train(clients, Attacked(agreed, clients, defence, lie), rounds, own)
    honest = [client for client in clients if client.id not in lie.liars]
    scores = [evaluate(client.learner.shared, own.test).accuracy for client in honest]
    return statistics.mean(scores)


def _train(clients: Sequence[Client], attacked: Attacked, rounds: int, own: SiteData) -> None:
    def judged(model: torch.nn.Module, client: int, **_how: object) -> Score:
        return evaluate(model, own.test)

    for _ in run_rounds(
        clients,
        rounds=rounds,
        exchange=exchange.over(MemoryTransport(), attacked, shared=clients[0].learner.shared),
        presence=membership.everyone(SITES),
        evaluate=judged,
        evaluate_now=lambda _round: False,
    ):
        pass


Key = tuple[str, str, str, float, int]
"""Graph, case, rule, radius, seed."""


def known(out: Path) -> dict[Key, float]:
    """The runs that are in the file already."""
    runs: dict[Key, float] = {}
    if out.exists():
        for graph, case, rule, radius, seed, accuracy in json.loads(out.read_text())["runs"]:
            runs[graph, case, rule, float(radius), seed] = accuracy
    return runs


def complete(out: Path, wanted: Sequence[Key]) -> dict[Key, float]:
    """Run what is wanted and not yet in the file."""
    runs = known(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    for key in wanted:
        if key in runs:
            continue
        graph, case, rule, radius, seed = key
        with tempfile.TemporaryDirectory() as folder:
            runs[key] = received_accuracy(
                Path(folder), case, _defence(rule, radius), seed=seed, topology=graph
            )
        _write(out, _document(runs))
    return runs


def _write(path: Path, text: str) -> None:
    """Writes the whole text or nothing: a run that is stopped can be continued."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)


def _defence(rule: str, radius: float) -> Defence:
    """The defence of a run; the table has 0 as the radius of ``none``."""
    return Defence(rule, radius or Defence().radius)


def _document(runs: Mapping[Key, float]) -> str:
    """The file: a run is a line."""
    fields = ["graph", "case", "rule", "radius", "seed", "accuracy"]
    lines = [json.dumps([*key, accuracy]) for key, accuracy in runs.items()]
    head = f'{{"command": {json.dumps(COMMAND)}, "fields": {json.dumps(fields)}, "runs": [\n'
    return head + ",\n".join(lines) + "\n]}\n"


def wanted_runs(choose: bool, radius: float) -> list[Key]:
    """The runs of the choice, or of the table."""
    rules = [("exponential", "none", 0.0)]
    if choose:
        rules += [("exponential", "clip", each) for each in RADII]
    else:
        rules.append(("exponential", "clip", radius))
        rules.append(("complete", "none", 0.0))
        rules += [("complete", rule, radius) for rule in ("clip", "median")]
    wanted: list[Key] = []
    for seed in CHOOSING if choose else FRESH:
        for graph, rule, each in rules:
            wanted += [(graph, case, rule, each, seed) for case in LIES]
    return wanted


def main() -> None:
    """Run, and print the mean and each value over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choose", action="store_true", help="all radii, other seeds")
    parser.add_argument("--radius", type=float, default=Defence().radius)
    parser.add_argument("--out", type=Path, default=RECORDED)
    args = parser.parse_args()
    torch.set_num_threads(1)
    wanted = wanted_runs(args.choose, args.radius)
    runs = complete(args.out, wanted)
    groups: dict[tuple[str, str, str, float], list[float]] = {}
    for key in wanted:
        groups.setdefault(key[:4], []).append(runs[key])
    for (graph, case, rule, radius), values in sorted(groups.items()):
        each = ", ".join(f"{value:.3f}" for value in values)
        mean = statistics.mean(values)
        print(f"{graph:12} {case:28} {rule:7} {radius:4g}  {mean:.3f}  ({each})")


if __name__ == "__main__":
    main()
