"""Privacy loss distributions: the tighter accountant.

dp-accounting discretises the privacy loss of *one* step, pessimistically, by connecting the dots
(Doroshenko et al. 2022, arXiv:2207.04380). Composition is this module's: a product of Fourier
transforms that are computed once per setting, so that an epsilon after every round costs
milliseconds where the library's own composition takes up to a second.

Guarantees: the result is an upper bound. Every approximation is charged for: the discretisation is
pessimistic; the mass outside the transform's window (Chernoff), and an allowance for the rounding
of the transforms, count as certain loss of privacy. A coarser interval gives a larger epsilon,
never a smaller one."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # loaded where they are used: they take most of a second
    from dp_accounting.pld import pld_pmf

Floats = NDArray[np.float64]
Spectrum = NDArray[np.complex128]
Part = tuple[float, float, int]
"""Sampling rate, noise multiplier, number of steps."""

INTERVAL = 1e-4
# The interval is halved or doubled until the epsilon expected and one step's range of losses have
# about this many: an epsilon of 87 needs no grid of 0.0001, losses that are all below 0.001 need a
# finer one, and the library takes microseconds for every point of a step.
_INTERVALS_PER_EPSILON = 2**15
_INTERVALS_PER_STEP = 2**17
_MOST_HALVINGS = 3
_LARGEST_WINDOW = 2**22
_PIECE = 2**13
# The share of delta that the window's two tails may take together.
_TAIL_SHARE = 1e-6
# Rounding grows with the number of factors; measured against exact Gaussians it stays two orders
# below this.
_ROUNDING_PER_STEP = 2.0**-49
# Where Chernoff's bound is tried, in units of 1 / loss.
_MOMENTS = np.geomspace(0.02, 500.0, 28)


class _Loss(NamedTuple):
    """The loss of one step in one direction (example removed, or added), on a grid."""

    first: int
    probabilities: Floats
    infinite: float
    log_moments_up: Floats
    log_moments_down: Floats


def interval_for(expected_epsilon: float, smallest_noise: float) -> float:
    """The grid's spacing: 1e-4 for losses of ordinary size, less for small ones and more for large
    ones.

    Guarantees: more steps, which raise the ``expected_epsilon``, never make the grid finer, so that
    the epsilon found on it never falls as steps are added."""
    wanted = max(
        expected_epsilon / _INTERVALS_PER_EPSILON, _step_range(smallest_noise) / _INTERVALS_PER_STEP
    )
    doublings = math.floor(math.log2(wanted / INTERVAL))
    return INTERVAL * 2.0 ** max(-_MOST_HALVINGS, doublings)


def _step_range(noise: float) -> float:
    """The spread of one step's losses, nearly: 1/(2 s^2) +- 9/s in either direction."""
    return 1 / noise**2 + 18 / noise


@lru_cache(maxsize=4096)
def epsilon(parts: tuple[Part, ...], delta: float, interval: float) -> float:
    """The smallest epsilon at ``delta`` that the composed distributions prove; infinite if they
    prove none.

    Raises ``OverflowError`` if the grid would be unreasonably large.
    """
    removed = _epsilon_one_way(parts, 0, delta, interval)
    # Without sampling, removing and adding an example lose equally much.
    if all(rate == 1 for rate, _, _ in parts):
        return removed
    added = _epsilon_one_way(parts, 1, delta, interval)
    return max(removed, added)


@lru_cache(maxsize=32)
def _one_step(rate: float, noise: float, interval: float) -> tuple[_Loss, _Loss]:
    """One step's loss in both directions: an example removed, and one added."""
    from dp_accounting.pld import privacy_loss_distribution

    if _step_range(noise) / interval > _LARGEST_WINDOW:
        raise OverflowError(
            f"One step with noise multiplier {noise} needs too many intervals of {interval}."
        )
    step = privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=interval, sampling_prob=rate, pessimistic_estimate=True
    )
    # The library composes and answers, but does not hand out the probabilities: here and in _loss
    # are the only private names used, and the tests hold the results against the library's own
    # composition.
    removed = _loss(step._pmf_remove.to_dense_pmf(), interval)
    if rate == 1:
        return removed, removed
    return removed, _loss(step._pmf_add.to_dense_pmf(), interval)


def _loss(pmf: "pld_pmf.DensePLDPmf", interval: float) -> _Loss:
    """The part of the library's distributions that this module needs."""
    masses = np.asarray(pmf._probs, dtype=np.float64)
    probabilities = np.maximum(masses, 0.0)
    first = int(pmf._lower_loss)
    places = first + np.arange(len(probabilities), dtype=np.float64)
    losses: Floats = places * interval
    present = probabilities > 0
    logs = np.log(probabilities[present])
    at = losses[present]
    up = np.array([_log_sum_exp(logs + t * at) for t in _MOMENTS])
    down = np.array([_log_sum_exp(logs - t * at) for t in _MOMENTS])
    # What rounding took from the total is counted where it hurts most.
    lost = 1.0 - float(probabilities.sum())
    infinite = max(float(pmf._infinity_mass), lost)
    return _Loss(first, probabilities, infinite, up, down)


def _log_sum_exp(x: Floats) -> float:
    top = float(x.max())
    scaled = float(np.exp(x - top).sum())
    return top + math.log(scaled)


@lru_cache(maxsize=8)
def _spectrum(rate: float, noise: float, interval: float, way: int, size: int) -> Spectrum:
    """The Fourier transform of one step's loss, kept for the next query over a window of the same
    ``size``."""
    from scipy import fft

    step = _one_step(rate, noise, interval)[way]
    return np.asarray(fft.rfft(step.probabilities, size))


def _epsilon_one_way(parts: Sequence[Part], way: int, delta: float, interval: float) -> float:
    from scipy import fft

    steps = []
    for rate, noise, n in parts:
        loss = _one_step(rate, noise, interval)[way]
        steps.append((loss, n))
    tail = _TAIL_SHARE * delta
    low, high = _window(steps, tail, interval)
    width = high - low + 1
    longest = max(width, *(len(loss.probabilities) for loss, _ in steps))
    # Powers of two, so that the next query finds the transforms of this one.
    size = 2 ** math.ceil(math.log2(longest))
    if size > _LARGEST_WINDOW:
        raise OverflowError(f"The composition needs {size} intervals of {interval}.")
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    for rate, noise, n in parts:
        spectrum = _spectrum(rate, noise, interval, way, size)
        product *= _power(spectrum, n)
    origin = sum(n * loss.first for loss, n in steps)
    composed = fft.irfft(product, size)
    probabilities = np.roll(composed, -((low - origin) % size))[:width]
    log_finite = sum(n * math.log1p(-loss.infinite) for loss, n in steps)
    infinite = -math.expm1(log_finite)
    rounding = _ROUNDING_PER_STEP * sum(n for _, n in steps)
    return _solve(
        low * interval, np.maximum(probabilities, 0.0), infinite + tail + rounding, delta, interval
    )


def _window(steps: Sequence[tuple[_Loss, int]], tail: float, interval: float) -> tuple[int, int]:
    """Grid indices between which all but ``tail`` of the composed loss lies (Chernoff, half of it
    on each side)."""
    slack = math.log(2 / tail)
    moments_up = sum(n * loss.log_moments_up for loss, n in steps)
    moments_down = sum(n * loss.log_moments_down for loss, n in steps)
    up = (moments_up + slack) / _MOMENTS
    down = -(moments_down + slack) / _MOMENTS
    lowest = 0
    highest = 0
    for loss, n in steps:
        lowest += n * loss.first
        highest += n * (loss.first + len(loss.probabilities) - 1)
    down_to = float(np.max(down)) / interval
    up_to = float(np.min(up)) / interval
    low = max(lowest, math.floor(down_to))
    high = min(highest, math.ceil(up_to))
    return low, max(low, high)


def _power(base: Spectrum, n: int) -> Spectrum:
    """base^n by squaring: several times faster than NumPy's complex power."""
    # What is below this has no weight in the sum, and its powers would become slow subnormal
    # numbers.
    square = base.copy()
    result = np.ones_like(base)
    while True:
        square[square.real**2 + square.imag**2 < 1e-120] = 0.0
        if n & 1:
            result *= square
        n >>= 1
        if not n:
            return result
        square *= square


def _solve(
    first: float, probabilities: Floats, infinite: float, delta: float, interval: float
) -> float:
    """The smallest epsilon >= 0 with infinite + sum_l p(l) (1 - e^(epsilon - l))_+ <= delta."""
    from scipy import signal

    if infinite >= delta:
        return math.inf
    # From the largest loss down: mass[i] = sum_{j >= i} p_j and discounted[i] = sum_{j >= i} p_j
    # e^(l_i - l_j), the latter as a recursive filter, which cannot overflow whatever the losses
    # are. Piece by piece, since the answer often lies in the upper tail.
    descending = probabilities[::-1]
    discount = math.exp(-interval)
    end, total, state = 0, 0.0, np.zeros(1)
    mass, weight = infinite, 0.0
    while end < len(descending):
        piece = descending[end : end + _PIECE].copy()
        discounted, state = signal.lfilter([1.0], [1.0, -discount], piece, zi=state)
        piece[0] += total
        totals = np.cumsum(piece)
        masses = infinite + totals
        too_much = masses - discounted > delta
        crossed = bool(too_much.any())
        count = int(np.argmax(too_much)) if crossed else len(piece)
        if count:
            mass, weight = float(masses[count - 1]), float(discounted[count - 1])
        end += count
        if crossed:
            break
        total = float(totals[-1])
    if mass <= delta:
        return 0.0
    loss = first + (len(descending) - end) * interval
    return max(0.0, loss + math.log((mass - delta) / weight))
