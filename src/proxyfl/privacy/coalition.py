r"""The coalitions that an epsilon holds against, where members hide in each other's noise.

In a masked sum (``masks``) nobody sees one member's vector, only the sum over a roster. Each member
adds a *share* of the noise, of variance (sigma C)^2 / h, with

    h = quorum - colluders

    quorum       the fewest members that a sum may have (K_min)
    colluders    the most members that pool what they know, or leave their noise out (t). At least
                 one: every member knows its own noise and can subtract it from the sum, so a
                 single curious member is a coalition already

A roster has at least ``quorum`` members, and at most ``colluders`` of them collude. So what the
coalition cannot subtract has at least h shares of noise, a multiplier of at least sigma. If *all*
others collude, one share is left: a multiplier of sigma / sqrt(h). The promise becomes weaker with
every colluder beyond t; it does not break down (``multiplier``).

Without a coalition (None wherever one is asked for) each member adds all of the noise by itself,
and its epsilon holds against all others together.
"""

import math
from dataclasses import dataclass

from proxyfl import _validate
from proxyfl.errors import ConfigError


@dataclass(frozen=True)
class Coalition:
    """The terms of a masked sum: how many members may collude, and the fewest that a sum has."""

    colluders: int
    quorum: int

    def __post_init__(self) -> None:
        _validate.whole("colluders", self.colluders, at_least=0)
        _validate.whole("quorum", self.quorum)
        if not self.colluders:
            raise ConfigError(
                "Expected colluders of 1 or more, got 0: each member knows its own noise and can "
                "subtract it from the sum, so one curious member is a coalition. Raise "
                "exchange.colluders."
            )
        if self.colluders >= self.quorum:
            raise ConfigError(
                f"Expected fewer colluders than members in the smallest roster, got "
                f"colluders={self.colluders} and quorum={self.quorum}: nobody would be left whose "
                "noise hides the sum. Lower exchange.colluders, or raise exchange.quorum."
            )

    @property
    def honest(self) -> int:
        """The number of noise shares that no coalition of the agreed size can subtract (h)."""
        return self.quorum - self.colluders

    def multiplier(self, noise_multiplier: float, honest: int) -> float:
        """The noise multiplier that is left when only ``honest`` members of a roster are: sigma
        for h of them, sigma / sqrt(h) if it is one member against all others.

        More than h count as h: the promise is not made better than agreed."""
        _validate.whole("honest", honest)
        counted = min(honest, self.honest)
        return noise_multiplier * math.sqrt(counted / self.honest)

    def alone(self, noise_multiplier: float) -> float:
        """The multiplier of one member's own noise, sigma / sqrt(h): what is left if all others
        collude."""
        return self.multiplier(noise_multiplier, 1)

    @property
    def sentence(self) -> str:
        """The condition of the first epsilon, for the person who answers for the data."""
        if self.honest == 1:
            return ALL_OTHERS
        if self.colluders == 1:
            return (
                "The stated epsilon holds against everyone outside and against each single member, "
                "as long as no two members pool what they know or leave out their noise."
            )
        return (
            f"The stated epsilon holds against everyone outside and against up to {self.colluders} "
            "members that pool what they know or leave out their noise."
        )


RESERVE = 1e-9
"""The part of delta that a masked sum sets aside for the distance of its noise from a Gaussian
(``shares.distance``)."""

ALL_OTHERS = (
    "The stated epsilon holds even if all other members pool what they know, together with "
    "everyone outside."
)
"""The condition of an epsilon whose noise a member added by itself."""


def worst_case(epsilon: str) -> str:
    """The sentence on the second epsilon, which holds whatever the other members do."""
    return f"If all other members collude against this one, epsilon is {epsilon}."
