"""Epsilons of a number of alike steps, by either accountant."""

from collections.abc import Sequence

from proxyfl.privacy.accounting import Segment, pld_of, rdp_of
from proxyfl.privacy.rdp import PAPER_ORDERS


def rdp_epsilon(
    *,
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    orders: Sequence[float] = PAPER_ORDERS,
) -> float:
    """Epsilon by Rényi DP."""
    return rdp_of([Segment(sampling_rate, noise_multiplier, steps)], delta, orders)


def pld_epsilon(
    *, sampling_rate: float, noise_multiplier: float, steps: int, delta: float
) -> float:
    """Epsilon by privacy loss distributions."""
    return pld_of([Segment(sampling_rate, noise_multiplier, steps)], delta)
