r"""Noise shares: one member's part of the noise of a masked sum, in whole grid steps.

    X_k = Q_k + floor(N_k)      Q_k: the clipped sum of member k, rounded to the grid
                                N_k: a Gaussian of standard deviation sigma C / sqrt(h)

The grid's spacing s = sigma C / (2^30 sqrt(h)) follows from public terms, so all members have the
same, and their vectors can be added as whole numbers.

Why the sum of floors is as good as a Gaussian. Let S be the sum of m values floor(N_k), each of
deviation 2^30 grid steps. floor(N) has the probabilities f(j), j whole, of the density f of N - U,
U uniform on [0, 1). If f had no frequencies above half the grid's, the sum of m of them would have
the values at whole j of the m-fold convolution of f, which is the density of N(0, m 4^30) minus the
sum of m uniforms:

    P(S = j) = integral of phi(j + v) b_m(v) dv       b_m: the density of a sum of m uniforms

b_m is the B-spline of order m, and its values at v, v + 1, v + 2, ... add up to 1. So this is the
distribution of *randomised rounding*: draw Y = Q + N with N ~ N(0, m 4^30), then choose the whole
number j with probability b_m(Y - j). The choice looks at Y alone. It is post-processing of the
Gaussian mechanism with multiplier sigma sqrt(m / h), exactly, whatever Q is.

What is left is the part of f above half the grid's frequency, at most 12 m exp(-pi^2 4^30 / 2) for
each value (Poisson summation), and the tail beyond 12 deviations that ``gaussian`` leaves out
(4e-33 a draw). ``distance`` bounds both together; ``coalition.RESERVE`` is the part of delta that
is set aside for it, and ``check_distance`` refuses what would need more.

Guarantees:
    * a member's vector has sensitivity C to one unit, in units of the grid: gradients are clipped
      to ``clip_to``, which leaves room for the rounding (``gaussian.shortened``). Holding a value
      within ``bound`` moves no two vectors further apart;
    * the sum of any m members' vectors is the Gaussian mechanism with multiplier
      sigma sqrt(m / h), post-processed, up to ``distance``;
    * every value of an honest member lies within ``largest``, whatever its data, so a sum beyond
      that times the members is no sum of honest vectors.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxyfl import _validate
from proxyfl.errors import ConfigError, PrivacyError
from proxyfl.privacy import gaussian
from proxyfl.privacy.coalition import RESERVE, Coalition
from proxyfl.privacy.gaussian import Bits, Integers

HEADROOM = 16
"""A sum is held within this many expected batches of clipped gradients, all in one direction. A
batch is larger than that if the true number of examples is 16 times the declared one."""

MOST_MEMBERS = 10_000
"""The most members that a roster may have."""

_TAIL = 4e-33
"""The probability of a Gaussian beyond 12 standard deviations."""
_REACH = 12 << gaussian.GRID_BITS
"""The largest noise, in grid steps."""
_ALIASING = -(math.pi**2) * 2.0 ** (2 * gaussian.GRID_BITS - 1)
"""The logarithm of exp(-pi^2 4^30 / 2): no float is so small."""


@dataclass(frozen=True)
class Share:
    """One member's part of a step's noise. ``noise_multiplier`` (sigma) and ``clip_norm`` (C) are
    those of the sum; all members of a roster must have the same."""

    noise_multiplier: float
    clip_norm: float
    coalition: Coalition

    def __post_init__(self) -> None:
        _validate.number("noise_multiplier", self.noise_multiplier, above=0)
        _validate.number("clip_norm", self.clip_norm, above=0)

    @property
    def own_multiplier(self) -> float:
        """The multiplier of this share by itself: sigma / sqrt(h)."""
        return self.coalition.alone(self.noise_multiplier)

    @property
    def spacing(self) -> float:
        """The grid's spacing; public, and the same for all members."""
        return gaussian.spacing(self.own_multiplier, self.clip_norm)

    def clip_to(self, size: int) -> float:
        """The norm to clip gradients of ``size`` values to, so that their sum on the grid has
        sensitivity C."""
        return gaussian.shortened(self.clip_norm, noise_multiplier=self.own_multiplier, size=size)

    def bound(self, batch_size: int) -> int:
        """The largest value of a member's sum without noise, in grid steps."""
        _validate.whole("batch_size", batch_size)
        return math.ceil(HEADROOM * batch_size * self.clip_norm / self.spacing)

    def largest(self, batch_size: int) -> int:
        """The largest value of a member's vector, noise included."""
        return self.bound(batch_size) + _REACH

    def check_range(self, batch_sizes: int, members: int) -> int:
        """The largest value of a sum over ``members`` whose batch sizes add up to ``batch_sizes``;
        ConfigError unless a sum of 64 bits has room for it."""
        limit = self.bound(batch_sizes) + members * (_REACH + 1)
        if limit >= 2**62:
            raise ConfigError(
                f"Batches of {batch_sizes} in all are too large for a masked sum of 64 bits at "
                f"noise multiplier {self.noise_multiplier:g} and {self.coalition.honest} honest "
                "members. Use smaller batches or more noise."
            )
        return limit

    def noisy(self, total: NDArray[np.float64], batch_size: int, bits: Bits) -> Integers:
        """``total``, a sum of gradients clipped to ``clip_to``, on the grid and with this share of
        the noise."""
        bound = float(self.bound(batch_size))
        held = np.clip(np.rint(total / self.spacing), -bound, bound)
        noise = gaussian.steps(total.size, bits).reshape(total.shape)
        vector: Integers = held.astype(np.int64) + noise
        return vector

    def to_floats(self, total: Integers) -> NDArray[np.float64]:
        """A sum of members' vectors in the unit of gradients."""
        return total.astype(np.float64) * self.spacing


def distance(*, members: int, size: int, steps: int) -> float:
    """The total variation distance between ``steps`` sums of ``members`` vectors of ``size`` values
    and post-processed Gaussian mechanisms; an upper bound."""
    draws = _validate.whole("members", members) * _validate.whole("size", size)
    draws *= _validate.whole("steps", steps, at_least=0)
    span = 2.0 * members * _REACH
    aliasing = 12 * members * span * math.exp(_ALIASING)
    return draws * (_TAIL + aliasing)


def check_distance(*, members: int, size: int, steps: int, epsilon: float, delta: float) -> None:
    """Raise PrivacyError if ``distance`` takes more of ``delta`` than is set aside for it.

    A mechanism at total variation distance d from one that is (epsilon, delta)-private is
    (epsilon, delta + (1 + e^epsilon) d)-private."""
    needed = (1 + math.exp(min(epsilon, 700.0))) * distance(members=members, size=size, steps=steps)
    if needed > RESERVE * delta:
        raise PrivacyError(
            f"A masked sum of {size} values over {steps} steps and {members} members is further "
            f"from a Gaussian than delta={delta:g} at epsilon={epsilon:g} leaves room for. Use "
            "a larger delta, or a smaller epsilon."
        )
