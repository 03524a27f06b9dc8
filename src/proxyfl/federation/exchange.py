r"""The exchanges by which models mix: P(t) applied to masses, over a transport (paper, Alg. 1,
lines 7 to 11, in mass form).

    none      nothing moves: there is no exchange
    mean      P = 11'/K: everyone sends to a hub, which adds and sends a K-th of the sum back
    cycle     P shifts by one: each client hands its model on whole
    pushsum   P(t) from a topology, peer to peer

Guarantees: the total of masses and weights is the same before and after (to rounding); sums are
taken in the order of the senders, so the result does not depend on where a client runs or on what
arrives first."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from torch import Tensor

from proxyfl.gossip.pushsum import Mass, add
from proxyfl.gossip.routes import routes
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
        self.transport.send(
            frame, sender=sender, receiver=receiver, round=self.round
        )
        counters = self.of(sender)
        counters.bytes_sent += len(frame)
        counters.messages_sent += 1

    def collect(self, client: int, own: Mass, senders: Iterable[int]) -> Mass:
        """What ``senders`` owe ``client``, added in their order; ``own`` is what it kept."""
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
            sender=sender,
            receiver=receiver,
            round=self.round,
            timeout=self.timeout,
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


Exchange = Callable[
    [Mapping[int, Mass], Sequence[int], Set[int], MassChannel], dict[int, Mass]
]
"""(masses of this process's clients, all clients present, those who leave, channel) -> masses of
those who stay."""


def mean(
    masses: Mapping[int, Mass],
    present: Sequence[int],
    leaving: Set[int],
    channel: MassChannel,
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
            mixed[client] = channel.receive(
                sender=hub, receiver=client, like=mass.theta
            )
    return mixed


def peer_to_peer(topology: Topology) -> Exchange:
    """P(t) given by ``topology``: shares go directly from client to client."""

    def exchange(
        masses: Mapping[int, Mass],
        present: Sequence[int],
        leaving: Set[int],
        channel: MassChannel,
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

    return exchange


def make(name: str, topology: Topology) -> Exchange:
    """The exchange that the row of a method with one names."""
    exchanges = {
        "mean": mean,
        "cycle": peer_to_peer(cycle()),
        "pushsum": peer_to_peer(topology),
    }
    return exchanges[name]
