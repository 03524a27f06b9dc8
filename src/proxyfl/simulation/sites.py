"""The data of a real federation's sites, and their rules of exchange, for a simulation of them."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from pathlib import Path

import torch
from torch import Tensor

from proxyfl import params
from proxyfl._entrypoint import Code
from proxyfl.data import Dataset
from proxyfl.data.examples import Examples, joined
from proxyfl.data.tables import schema as schemas
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import MassChannel
from proxyfl.federation.state import State
from proxyfl.gossip.pushsum import Mass
from proxyfl.gossip.routes import by_kind, routes
from proxyfl.gossip.topology import Topology
from proxyfl.node import assembly
from proxyfl.node.members import trust
from proxyfl.node.members.site import FILE
from proxyfl.node.mixing import Edge, Entry, Guard
from proxyfl.settings import Defence
from proxyfl.simulation import federation
from proxyfl.simulation.config import Config


def code_of(folder: Path, config: Config) -> Code:
    """The code that names in the config of this federation's folder may lead to. At a site, what
    that site trusts."""
    if (folder / FILE).is_file():
        site, place = federation.read(folder)[1][0]
        return trust.code_of(site, place)
    return trust.code_for_simulation(config.data.trust)


def load_sites(folder: Path, code: Code) -> Dataset:
    """The examples of all members, each read and divided as its site does it.

    A person is somebody else at another site, whatever number the files have."""
    manifest, members = federation.read(folder)
    parts = []
    notes = []
    for site, place in members:
        own = assembly.load(manifest, site, place, code)
        assembly.count_units(
            site, manifest, own.train
        )  # refuses persons that this site's data do not name
        parts.append(own)
        notes += [f"{site.name}: {note}" for note in own.notes]
    persons = _number_persons([(own.train, own.test) for own in parts])
    return Dataset(
        manifest.name,
        train=joined([own.train for own in parts], [train for train, _ in persons]),
        test=joined([own.test for own in parts], [test for _, test in persons]),
        task=manifest.task,
        site=_numbers([len(own.train) for own in parts]),
        site_names=[site.name for site, _ in members],
        test_site=_numbers([len(own.test) for own in parts]),
        schema="" if manifest.schema is None else schemas.to_toml(manifest.schema),
        prevalence=manifest.prevalence,
        notes=notes,
    )


def _numbers(lengths: Sequence[int]) -> Tensor:
    """The site of each example."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def _number_persons(
    sites: Sequence[tuple[Examples, Examples]],
) -> list[tuple[Tensor | None, Tensor | None]]:
    """The person of each training and test example, without a number in common between sites.

    Where some sites name persons, each example of the others counts as a person of its own."""
    if all(train.groups is None and test.groups is None for train, test in sites):
        return [(None, None)] * len(sites)
    numbered: list[tuple[Tensor | None, Tensor | None]] = []
    taken = 0
    for train, test in sites:
        of_train, of_test = train.groups, test.groups
        if of_train is None or of_test is None:
            of_train = torch.arange(len(train))
            of_test = torch.arange(len(train), len(train) + len(test))
        numbered.append((of_train + taken, of_test + taken))
        taken += 1 + int(torch.cat([of_train, of_test]).max())
    return numbered


class SiteRules:
    """The mixing of a run whose clients exchange as real sites do.

    No share is heavier than its edge allows (``node.mixing.Edge``): a client keeps what is above.
    What arrives goes through the client's defence. Both are the sites' own code, so masses are
    theirs bit for bit as long as nobody is late."""

    def __init__(
        self,
        graph: Topology,
        clients: Sequence[Client],
        names: Sequence[str],
        defences: Sequence[Defence],
        *,
        training_rounds: int,
        joined: Callable[[Collection[int], int], int],
        kinds: Sequence[str] = (),
    ) -> None:
        """``clients`` are those of this process, ``names``, ``defences`` and ``kinds`` those of
        all. ``joined`` is the number among some clients that have joined by a round."""
        self.graph = graph
        self.names = names
        self.training_rounds = training_rounds
        self.joined = joined
        everyone = range(len(names))
        self.kinds = kinds
        self.groups = by_kind(everyone, kinds)
        self.guards: dict[int, Guard] = {}
        self._before: dict[int, Tensor] = {}
        for client in clients:
            own = defences[client.id]
            self.guards[client.id] = Guard(own.rule, own.radius)
            self._before[client.id] = params.flatten(client.learner.shared).clone()

    def __call__(
        self,
        masses: Mapping[int, Mass],
        present: Sequence[int],
        leaving: Set[int],
        channel: MassChannel,
    ) -> dict[int, Mass]:
        """Send the shares of this process's clients; add up what they receive."""
        mixed: dict[int, Mass] = {}
        for group in by_kind(present, self.kinds):
            own = {client: mass for client, mass in masses.items() if client in group}
            mixed |= self._mix(own, group, leaving & set(group), channel)
        return mixed

    def _mix(
        self,
        masses: Mapping[int, Mass],
        present: Sequence[int],
        leaving: Set[int],
        channel: MassChannel,
    ) -> dict[int, Mass]:
        """The exchange within one kind."""
        round = channel.round
        plan = routes(self.graph, round, present, leaving=leaving)
        (of_kind,) = (group for group in self.groups if present[0] in group)
        mean = self.joined(of_kind, round) / len(plan.present)
        kept: dict[int, Mass] = {}
        for client, mass in masses.items():
            if client not in leaving and round < self.training_rounds:
                self.guards[client].note_move(float((mass.theta - self._before[client]).norm()))
            for receiver, part in divide(mass, plan.shares(client), client, mean).items():
                if receiver == client:
                    kept[client] = part
                else:
                    channel.send(part, sender=client, receiver=receiver)
        mixed = {}
        for client, mass in masses.items():
            if client in leaving:
                continue
            shares = {client: kept.get(client, Mass(mass.theta, 0.0))}
            for sender in plan.senders(client):
                shares[sender] = channel.receive(sender=sender, receiver=client, like=mass.theta)
            mixed[client] = self.add_up(round, client, shares, mean)
            self._before[client] = mixed[client].theta
        return mixed

    def add_up(self, round: int, client: int, shares: Mapping[int, Mass], mean: float) -> Mass:
        """The mass of one client after the round; ``mean`` is the mean weight of those present."""
        entries = [Entry(self.names[at], at, round, shares[at]) for at in sorted(shares)]
        mixed = self.guards[client].mix(entries, self.names[client])
        assert mixed is not None, "``routes`` refuses a round in which a client gets nothing"
        return mixed

    def state(self, client: int) -> State:
        """State of the client's next exchange, besides its proxy."""
        text = self.guards[client].state().encode()
        return {"exchange/guard": torch.tensor(list(text), dtype=torch.uint8)}

    def restore(self, client: Client, state: State) -> None:
        """Continue from ``state``, with a client that has been restored."""
        text = bytes(state["exchange/guard"].tolist()).decode()
        self.guards[client.id].restore(text)
        self._before[client.id] = params.flatten(client.learner.shared).clone()


def divide(mass: Mass, shares: Mapping[int, float], own: int, mean: float) -> dict[int, Mass]:
    """The parts of a client's mass; what is too heavy for an edge, it keeps. All of it leaves with
    a client that leaves."""
    parts = mass.split(shares)
    if own not in shares:
        return parts
    for receiver, share in shares.items():
        heaviest = float(Edge(share, mean).heaviest)
        excess = parts[receiver].w - heaviest
        if receiver != own and excess > 0:
            parts[receiver] = Mass(parts[receiver].theta, heaviest)
            parts[own] = Mass(parts[own].theta, parts[own].w + excess)
    return parts
