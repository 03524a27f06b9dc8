r"""The exchanges by which models mix: P(t) applied to masses (paper, Alg. 1, lines 7 to 11, in
mass form). An exchange owns the transport over which masses travel.

    none      nothing moves: there is no exchange
    mean      P = 11'/K: everyone sends to a hub, which adds and sends a K-th of the sum back
    cycle     P shifts by one: each client hands its model on whole
    pushsum   P(t) from a topology, peer to peer

Guarantees: the total of masses and weights is the same before and after (to rounding); sums are
taken in the order of the senders, so the result does not depend on where a client runs or on what
arrives first."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from proxyfl import params
from proxyfl._entrypoint import is_code, resolve
from proxyfl.errors import ConfigError
from proxyfl.federation.methods import name_of
from proxyfl.gossip.pushsum import Mass, add
from proxyfl.gossip.routes import by_kind, routes
from proxyfl.gossip.topology import Topology, cycle
from proxyfl.transport.base import Transport
from proxyfl.transport.wire import Message, decode, encode


@dataclass
class Traffic:
    """The traffic of one client in one round, as bytes on the wire and as messages."""

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0


@dataclass
class MassChannel:
    """Sends and receives masses over a transport, and counts. One per round and process."""

    transport: Transport
    round: int
    model: str
    size: int
    timeout: float = 60.0
    traffic: dict[int, Traffic] = field(default_factory=dict)

    def of(self, client: int) -> Traffic:
        """The counters of ``client``."""
        return self.traffic.setdefault(client, Traffic())

    def send(self, mass: Mass, *, sender: int, receiver: int) -> None:
        """Put ``mass`` on its way."""
        theta = mass.theta.cpu()
        message = Message(self.round, sender, mass.w, theta, self.model)
        frame = encode(message)
        self.transport.send(frame, sender=sender, receiver=receiver, round=self.round)
        counters = self.of(sender)
        counters.bytes_sent += len(frame)
        counters.messages_sent += 1

    def collect(self, client: int, own: Mass, senders: Iterable[int]) -> Mass:
        """Adds what ``senders`` owe ``client``, in their order, to ``own``, the mass that it
        kept."""
        parts = []
        for sender in senders:
            part = own
            if sender != client:
                part = self.receive(sender=sender, receiver=client, like=own.theta)
            parts.append(part)
        return add(parts)

    def receive(self, *, sender: int, receiver: int, like: Tensor) -> Mass:
        """Wait for the mass that ``sender`` owes ``receiver`` in this round."""
        frame = self.transport.receive(
            sender=sender, receiver=receiver, round=self.round, timeout=self.timeout
        )
        message = decode(
            frame,
            expect_sender=sender,
            expect_round=self.round,
            expect_model=self.model,
            expect_size=self.size,
        )
        counters = self.of(receiver)
        counters.bytes_received += len(frame)
        counters.messages_received += 1
        return Mass(message.values.to(like), message.weight)


class Exchange(Protocol):
    """Exchanges the masses of this process's clients in one round.

    Takes all clients present and those among them who leave; returns the masses of those who stay,
    and the traffic of each client."""

    def __call__(
        self, round: int, masses: Mapping[int, Mass], *, present: Sequence[int], leaving: Set[int]
    ) -> tuple[dict[int, Mass], dict[int, Traffic]]: ...


Mixing = Callable[[Mapping[int, Mass], Sequence[int], Set[int], MassChannel], dict[int, Mass]]
"""(masses, present, leaving, channel) -> masses: one round's exchange, for ``Method.exchange``.

``masses`` are those of this process's clients, ``present`` are all clients, ``leaving`` those who
hand their mass over and take nothing. Clients may be in other processes, so everything moves by
``channel.send`` and ``channel.receive``, in an order in which nobody waits for a message that is
sent later: send first, then receive. Returns the masses of this process's clients who stay."""


def mean(
    masses: Mapping[int, Mass], present: Sequence[int], leaving: Set[int], channel: MassChannel
) -> dict[int, Mass]:
    """P = 11'/K through the first client that stays, who acts as the hub."""
    staying = [client for client in sorted(present) if client not in leaving]
    hub = staying[0]
    for client, mass in masses.items():
        if client != hub:
            channel.send(mass, sender=client, receiver=hub)
    mixed: dict[int, Mass] = {}
    if hub in masses:
        total = channel.collect(hub, masses[hub], sorted(present))
        parts = total.split(dict.fromkeys(staying, 1 / len(staying)))
        mixed[hub] = parts.pop(hub)
        for client, part in parts.items():
            channel.send(part, sender=hub, receiver=client)
    for client, mass in masses.items():
        if client != hub and client not in leaving:
            mixed[client] = channel.receive(sender=hub, receiver=client, like=mass.theta)
    return mixed


def peer_to_peer(topology: Topology) -> Mixing:
    """P(t) given by ``topology``: shares go directly from client to client."""

    def mix(
        masses: Mapping[int, Mass], present: Sequence[int], leaving: Set[int], channel: MassChannel
    ) -> dict[int, Mass]:
        plan = routes(topology, channel.round, present, leaving=leaving)
        kept: dict[int, Mass] = {}
        for client, mass in masses.items():
            for receiver, part in mass.split(plan.shares(client)).items():
                if receiver == client:
                    kept[client] = part
                else:
                    channel.send(part, sender=client, receiver=receiver)
        mixed: dict[int, Mass] = {}
        for client, mass in masses.items():
            if client in leaving:
                continue
            sources = set(plan.senders(client))
            if client in kept:
                sources.add(client)
            own = kept.get(client, mass)
            mixed[client] = channel.collect(client, own, sorted(sources))
        return mixed

    return mix


def within_kinds(mix: Mixing, kinds: Sequence[str]) -> Mixing:
    """``mix`` for the clients of each kind by themselves; ``kinds`` has that of each client."""

    def mix_each(
        masses: Mapping[int, Mass], present: Sequence[int], leaving: Set[int], channel: MassChannel
    ) -> dict[int, Mass]:
        mixed: dict[int, Mass] = {}
        for group in by_kind(present, kinds):
            own = {client: mass for client, mass in masses.items() if client in group}
            mixed |= mix(own, group, leaving & set(group), channel)
        return mixed

    return mix_each if kinds else mix


def mixing(exchange: str | Mixing, topology: Topology, kinds: Sequence[str] = ()) -> Mixing:
    """The mixing of a method's row: by its name, or the caller's own function; with ``kinds``,
    which has the kind of each client, within each of them."""
    return within_kinds(_mixing(exchange, topology), kinds)


def _mixing(exchange: str | Mixing, topology: Topology) -> Mixing:
    mixings = {"mean": mean, "cycle": peer_to_peer(cycle()), "pushsum": peer_to_peer(topology)}
    if not isinstance(exchange, str):
        return _checked(exchange)
    if is_code(exchange):
        return _checked(resolve(exchange, error=ConfigError))
    return mixings[exchange]


def _checked(mix: Mixing) -> Mixing:
    """``mix``, whose result is looked at: every client that stays has a mass of the right size, and
    numbers where it was given numbers."""

    def checked(
        masses: Mapping[int, Mass], present: Sequence[int], leaving: Set[int], channel: MassChannel
    ) -> dict[int, Mass]:
        numbers = all(bool(mass.m.isfinite().all()) for mass in masses.values())
        mixed = mix(masses, present, leaving, channel)
        staying = {client for client in masses if client not in leaving}
        if not isinstance(mixed, dict) or mixed.keys() != staying:
            got = sorted(mixed) if isinstance(mixed, dict) else type(mixed).__name__
            raise ConfigError(
                f"Expected a mass for each of the clients {sorted(staying)} from the exchange "
                f"{name_of(mix)} in round {channel.round}, got {got}."
            )
        for client, mass in mixed.items():
            size = mass.theta.shape if isinstance(mass, Mass) else None
            if size != (channel.size,) or not (mass.w > 0 and math.isfinite(mass.w)):
                raise ConfigError(
                    f"Expected {name_of(mix)} to return {channel.size} parameters and a positive "
                    f"weight for client {client} in round {channel.round}, got {mass}."
                )
            if numbers and not mass.m.isfinite().all():
                raise ConfigError(
                    f"Expected numbers for client {client} from the exchange {name_of(mix)} in "
                    f"round {channel.round}, got parameters that are not finite. Everything it was "
                    "given here is finite."
                )
        return mixed

    return checked


def over(
    transport: Transport, mix: Mixing, *, shared: nn.Module, timeout: float = 60.0
) -> Exchange:
    """The exchange that moves the parameters of models like ``shared`` by ``mix``."""
    model = params.fingerprint(shared)
    size = params.size(shared)

    def exchange(
        round: int, masses: Mapping[int, Mass], *, present: Sequence[int], leaving: Set[int]
    ) -> tuple[dict[int, Mass], dict[int, Traffic]]:
        channel = MassChannel(transport, round, model, size, timeout)
        mixed = mix(masses, present, leaving, channel)
        return mixed, channel.traffic

    return exchange
