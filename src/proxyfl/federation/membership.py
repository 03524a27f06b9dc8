"""Who takes part in which round: everyone, unless a schedule, chance or a spent budget says otherwise.

A client that is *away* keeps its mass and its models and does nothing. One that *leaves* takes part in the exchange a
last time, handing on all of its mass, and is gone for good. One that *joins* brings a weight of 1 and the common
initial proxy. Presence is a function of the round alone, so every process of a run works it out for itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Presence:
    """One round: who is there, who leaves at its end and why, and who takes fewer steps than usual."""

    present: tuple[int, ...]
    expected: int
    leaving: Mapping[int, str] = field(default_factory=dict)
    fewer_steps: Mapping[int, int] = field(default_factory=dict)

    def steps(self, client: int, usual: int) -> int:
        """How many steps ``client`` takes in this round."""
        return self.fewer_steps.get(client, usual)


def everyone(clients: int) -> Callable[[int], Presence]:
    """All clients, in every round."""
    presence = Presence(tuple(range(clients)), clients)
    return lambda round: presence
