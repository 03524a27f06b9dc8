"""Plans who takes part in which round: everyone, unless a schedule, chance or a spent budget says
otherwise.

A client that is *away* keeps its mass and its models and does nothing. One that *leaves* takes part
in the exchange a last time, handing on all of its mass, and is gone for good; it keeps its private
model. One that *joins* brings a weight of 1 and the common initial proxy.

Guarantee: presence is a function of the settings and the round alone, so it is planned once, before
the run, and all of its processes agree. A client's ledger enforces its budget again, whatever is
planned here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from proxyfl.errors import ConfigError, TopologyError
from proxyfl.gossip.pushsum import part_of
from proxyfl.gossip.routes import by_kind, routes
from proxyfl.gossip.topology import Topology
from proxyfl.seeds import derive


@dataclass(frozen=True)
class Presence:
    """One round: who is there, who leaves at its end and why, and who takes fewer steps than usual.

    When all who are present leave, there is nobody to take over: they exchange as usual a last time
    (``handing_over`` is empty), and the run is over."""

    present: tuple[int, ...]
    expected: int
    leaving: Mapping[int, str] = field(default_factory=dict)
    fewer_steps: Mapping[int, int] = field(default_factory=dict)

    @property
    def handing_over(self) -> frozenset[int]:
        """Those who hand all of their mass to the others in this round."""
        if len(self.leaving) == len(self.present):
            return frozenset()
        return frozenset(self.leaving)

    def steps(self, client: int, usual: int) -> int:
        """The number of steps that ``client`` takes in this round."""
        return self.fewer_steps.get(client, usual)


@dataclass(frozen=True)
class Attendance:
    """The attendance of one client: from ``joins`` on, not in the rounds ``away`` (first to last),
    until ``leaves``."""

    client: int = -1
    joins: int = 0
    leaves: int | None = None
    away: tuple[int, ...] = ()

    def includes(self, round: int) -> bool:
        """True if the client is there in ``round``."""
        gone = self.leaves is not None and round >= self.leaves
        away = any(first <= round <= last for first, last in self.absences)
        return round >= self.joins and not gone and not away

    @property
    def absences(self) -> list[tuple[int, int]]:
        """The first and the last round of each absence."""
        return list(zip(self.away[::2], self.away[1::2], strict=True))


@dataclass(frozen=True)
class Allowance:
    """A client's steps in a round, and the number that its budget allows in all (None: no
    budget)."""

    per_round: int
    in_all: int | None = None


def everyone(clients: int) -> Callable[[int], Presence]:
    """All clients, in every round."""
    presence = Presence(tuple(range(clients)), clients)
    return lambda _round: presence


def plan(
    clients: int,
    rounds: int,
    *,
    schedule: Sequence[Attendance] = (),
    absence: float = 0.0,
    seed: int = 0,
    allowances: Mapping[int, Allowance] | None = None,
    settling: int = 0,
) -> list[Presence]:
    """The presence in each of ``rounds`` rounds. After the last client has left, nobody is
    present. In the last ``settling`` rounds everyone takes no step."""
    stays = _checked(schedule, clients, rounds)
    spent = dict.fromkeys(range(clients), 0)
    gone: set[int] = set()
    presences = []
    for round in range(rounds):
        expected = 0
        present = []
        leaving = {}
        fewer = {}
        settles = round >= rounds - settling
        for c, stay in stays.items():
            if round < stay.joins or c in gone:
                continue
            expected += 1
            is_last = stay.leaves == round + 1
            # Chance does not keep one from handing over.
            missing = not is_last and _absent(c, round, absence, seed)
            if missing or not stay.includes(round):
                continue
            present.append(c)
            if is_last:
                leaving[c] = f"scheduled to leave at round {round + 1}"
            if settles:
                fewer[c] = 0
                continue
            allowance = (allowances or {}).get(c)
            if allowance is None or allowance.in_all is None:
                continue
            left = allowance.in_all - spent[c]
            if left < allowance.per_round:
                fewer[c] = left
                leaving[c] = f"budget spent after {allowance.in_all} steps"
            spent[c] += min(left, allowance.per_round)
        gone |= set(leaving)
        presences.append(Presence(tuple(present), expected, leaving, fewer))
    return presences


def rehearse(topology: Topology, presences: Sequence[Presence], kinds: Sequence[str] = ()) -> None:
    """Try every round's exchange over ``topology`` without models; raise TopologyError if one of
    them would fail. ``kinds``: that of each client, if they mix within kinds.

    Who sends to whom, and every client's weight, follow from the plan alone. So what could fail in
    a late round, after privacy was spent, fails here."""
    weights: dict[int, float] = {}
    for round, presence in enumerate(presences):
        if not presence.present:
            continue
        present = presence.present
        weights = dict.fromkeys(present, 1.0) | weights
        received: dict[int, list[float]] = {client: [] for client in present}
        for group in by_kind(present, kinds):
            leaving = presence.handing_over & set(group)
            mixing = routes(topology, round, group, leaving=leaving)
            for sender in group:
                for receiver, share in mixing.shares(sender).items():
                    part = _part(weights[sender], share, sender, round)
                    received[receiver].append(part)
        for client, parts in received.items():
            weights[client] = math.fsum(parts)


def _part(weight: float, share: float, sender: int, round: int) -> float:
    try:
        return part_of(weight, share)
    except TopologyError as error:
        raise TopologyError(f"Client {sender} in round {round}: {error}") from error


def _checked(schedule: Sequence[Attendance], clients: int, rounds: int) -> dict[int, Attendance]:
    stays = {c: Attendance(c) for c in range(clients)}
    seen: set[int] = set()
    for stay in schedule:
        if stay.client == Attendance().client:
            raise ConfigError(
                "An entry of membership.schedule names nobody; write {client = 3, joins = 20}, "
                "for example."
            )
        if not 0 <= stay.client < clients:
            raise ConfigError(
                f"membership.schedule names client {stay.client}; there are clients 0 to "
                f"{clients - 1}. "
                "Name one of those or raise partition.clients."
            )
        if stay.client in seen:
            raise ConfigError(
                f"membership.schedule names client {stay.client} twice; give one entry for each "
                f"client."
            )
        if len(stay.away) % 2 or any(a > b for a, b in stay.absences):
            raise ConfigError(
                f"Expected away = [first, last, ...] for client {stay.client}, pairs of rounds, "
                f"got {list(stay.away)}."
            )
        if stay.leaves is not None and stay.leaves <= stay.joins:
            raise ConfigError(
                f"Client {stay.client} leaves at round {stay.leaves} but joins at round "
                f"{stay.joins}: it would never "
                "take part. Let it leave later or leave it out."
            )
        if stay.leaves is not None and not stay.includes(stay.leaves - 1):
            raise ConfigError(
                f"Client {stay.client} is away in round {stay.leaves - 1}, its last, and could "
                f"not hand its mass on. "
                "Let it leave before it goes away, or after it is back."
            )
        seen.add(stay.client)
        stays[stay.client] = stay
    for round in range(rounds):
        if not any(stay.includes(round) for stay in stays.values()):
            raise ConfigError(
                f"membership.schedule leaves no one in round {round}. Let at least one client "
                f"take part in each round."
            )
    return stays


def _absent(client: int, round: int, probability: float, seed: int) -> bool:
    if not probability > 0:
        return False
    return derive(seed, "absence", client, round) / 2.0**63 < probability
