r"""PushSum: what clients split, send, add, and read their parameters from.

    m_k <- sum_j P_kj m_j,   w_k <- sum_j P_kj w_j,   theta_k = m_k / w_k   (Kempe et al. 2003)

Algorithm 1 of the paper overwrites theta with theta / w and sends *that* with its share, which
de-biases twice unless P is doubly stochastic. Here the mass m = w theta is what is split and added,
so a consensus stays one under any column-stochastic P.

A mass is carried as the pair (theta, w). The product w theta is never formed: in float32 it would
become 0 for a client whose weight decays because nobody sends to it. Splitting divides w alone and
is exact. Adding takes the mean of the thetas, weighted by w: the same sum in exact arithmetic.

Arithmetic: the weighted mean comes out as if taken in float64 and rounded once to the type of
theta. What needs no arithmetic gets none: a sum of one mass passes theta on bit for bit. No result
shares memory with its source."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxyfl.errors import ModelError, TopologyError

# a plan is rehearsed with weights alone, and a planner does not wait
if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Mass:
    r"""A client's share of the network's total m = w theta: split and added, never averaged.

    m_k <- sum_j P_kj m_j,   w_k <- sum_j P_kj w_j,   theta_k = m_k / w_k

    Guarantees: ``split`` conserves the total exactly; equal parameters stay equal under any
    column-stochastic P; a client to whom nobody sends keeps its parameters bit for bit; a weight
    too small to be represented is an error, never 0."""

    theta: "Tensor"
    w: float = 1.0

    @classmethod
    def of(cls, theta: "Tensor", w: float = 1.0) -> "Mass":
        """The mass of parameters ``theta``, which are copied, held with weight ``w``."""
        return cls(theta.clone(), w)

    @property
    def m(self) -> "Tensor":
        """The mass w theta in float64: what is conserved. It does not travel."""
        return self.theta.double() * self.w

    def split(self, shares: Mapping[int, float]) -> dict[int, "Mass"]:
        """Receiver -> its part, for shares (one column of P) that add up to 1."""
        total = math.fsum(shares.values())
        least = min(shares.values(), default=0.0)
        if abs(total - 1.0) > 1e-9 or least < 0:
            raise TopologyError(
                f"Expected shares >= 0 that add up to 1, got {dict(shares)}: sum {total:.10g}."
            )
        parts = {}
        for receiver, share in shares.items():
            weight = part_of(self.w, share)
            parts[receiver] = Mass.of(self.theta, weight)
        return parts


def part_of(w: float, share: float) -> float:
    """The weight ``w * share`` of a part; TopologyError if float64 cannot hold it."""
    part = w * share
    if share > 0 and part < sys.float_info.min:
        raise TopologyError(
            f"A share of {share:g} of a weight of {w:g} is too small to be represented: nobody has "
            "sent to this client for too many rounds. Use a topology in which each client is sent "
            "something, or in which it keeps a larger share."
        )
    return part


def add(masses: Sequence[Mass]) -> Mass:
    """The sum, taken in the order given: the same masses in the same order give the same bits."""
    if not masses:
        raise TopologyError(
            "Expected one or more masses to add, got none: the client keeps nothing and gets "
            "nothing."
        )
    kinds = {(mass.theta.shape, mass.theta.dtype) for mass in masses}
    if len(kinds) > 1:
        architectures = sorted(f"{tuple(shape)} {dtype}" for shape, dtype in kinds)
        raise ModelError(
            f"Expected masses of one proxy architecture, got {', '.join(architectures)}. All "
            "clients must share the proxy."
        )
    w = math.fsum(mass.w for mass in masses)
    if not w > 0:
        raise TopologyError(
            f"Expected a weight above 0 to read parameters from a mass, got w={w}: nobody sent to "
            "this client and it kept nothing. Use a topology in which each client keeps a share "
            "or is sent one."
        )
    if len(masses) == 1:
        return Mass.of(masses[0].theta, w)
    return Mass(_mean(masses, w), w)


def _mean(masses: Sequence[Mass], w: float) -> "Tensor":
    """The mean of the thetas, weighted by w: sum_j w_j theta_j / w."""
    first, *others = masses
    parts = [mass.w / w for mass in masses]
    # Products with powers of two are exact in every float type, so that one addition rounds once
    # without the detour over float64 (20 times faster).
    if len(masses) == 2 and all(map(_is_power_of_two, parts)):
        second = others[0]
        return first.theta * parts[0] + second.theta * parts[1]
    # Weights near 1, by an exact factor, so that no product underflows.
    _, exponent = math.frexp(w)
    weight = math.ldexp(first.w, -exponent)
    total = first.theta.double() * weight
    for other in others:
        weight = math.ldexp(other.w, -exponent)
        total += other.theta.double() * weight
    total /= math.ldexp(w, -exponent)
    return total.to(first.theta.dtype)


def _is_power_of_two(number: float) -> bool:
    return math.frexp(number)[0] == 0.5
