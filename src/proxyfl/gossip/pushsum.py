r"""PushSum in mass form: what clients split, send, add, and read their parameters from.

    m_k <- sum_j P_kj m_j,   w_k <- sum_j P_kj w_j,   theta_k = m_k / w_k

(Kempe et al. 2003; the paper's PushSum)

Algorithm 1 of the paper overwrites theta with theta / w and sends *that* in the next round, which
de-biases twice unless P is doubly stochastic. Here m = w * theta travels, so a consensus stays one
under any column-stochastic P.

Arithmetic: products, quotients and sums come out as if taken in float64 and rounded once to the
type of m (float32 on the wire), so that a share such as 1/3 brings no error that is the same in
every round. What needs no arithmetic gets none: a share of 1, a sum of one mass and a weight of 1
pass m on bit for bit. No result shares memory with its source."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proxyfl.errors import ModelError, TopologyError


@dataclass(frozen=True)
class Mass:
    r"""A client's share of the network's total: split and added, never averaged.

    m_k <- sum_j P_kj m_j,   w_k <- sum_j P_kj w_j,   theta_k = m_k / w_k

    Guarantees: ``split`` conserves the total; equal parameters stay equal under any
    column-stochastic P."""

    m: Tensor
    w: float = 1.0

    @classmethod
    def of(cls, theta: Tensor, w: float = 1.0) -> "Mass":
        """The mass of parameters ``theta`` held with weight ``w``: m = w * theta."""
        return cls(_scaled(theta, w), w)

    @property
    def theta(self) -> Tensor:
        """The de-biased parameters m / w."""
        if not self.w > 0:
            raise TopologyError(
                f"Expected a weight above 0 to read parameters from a mass, got w={self.w}: "
                f"nobody sent to this client "
                "and it kept nothing. Use a topology in which each client keeps a share or is "
                "sent one."
            )
        return self.m.clone() if self.w == 1.0 else (self.m.double() / self.w).to(self.m.dtype)

    def split(self, shares: Mapping[int, float]) -> dict[int, "Mass"]:
        """Receiver -> its part, for shares (one column of P) that add up to 1."""
        total = math.fsum(shares.values())
        if abs(total - 1.0) > 1e-9 or min(shares.values(), default=0.0) < 0:
            raise TopologyError(
                f"Expected shares >= 0 that add up to 1, got {dict(shares)}: sum {total:.10g}."
            )
        return {
            receiver: Mass(_scaled(self.m, share), self.w * share)
            for receiver, share in shares.items()
        }


def add(masses: Sequence[Mass]) -> Mass:
    """The sum, taken in the order given: the same masses in the same order give the same bits."""
    if not masses:
        raise TopologyError(
            "Expected one or more masses to add, got none: the client keeps nothing and gets "
            "nothing."
        )
    first, *others = masses
    kinds = {(mass.m.shape, mass.m.dtype) for mass in masses}
    if len(kinds) > 1:
        found = ", ".join(sorted(f"{tuple(shape)} {dtype}" for shape, dtype in kinds))
        raise ModelError(
            f"Expected masses of one proxy architecture, got {found}. All clients must share the "
            f"proxy."
        )
    if not others:
        return Mass(first.m.clone(), first.w)
    w = math.fsum(mass.w for mass in masses)
    if len(others) == 1:
        return Mass(first.m + others[0].m, w)  # one addition rounds once as it is
    total = first.m.to(torch.float64, copy=True)
    for other in others:
        total += other.m
    return Mass(total.to(first.m.dtype), w)


def _scaled(values: Tensor, factor: float) -> Tensor:
    if factor == 1.0:
        return values.clone()
    # A power of two is exact in every float type, so the product rounds once without the detour (20
    # times faster).
    if math.frexp(factor)[0] == 0.5:
        return values * factor
    return (values.double() * factor).to(values.dtype)
