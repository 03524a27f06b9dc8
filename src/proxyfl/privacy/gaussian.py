r"""Gaussian noise that has no floating-point holes: exact draws, rounded to a grid.

Noise made of floating-point numbers takes only some of the values that floating-point numbers
can have, and which ones depends on the number that it is added to. From the last bits of sum plus
noise an observer can therefore tell which sums are impossible (Mironov 2012; for DP-SGD, Jin et
al. 2021, arXiv 2112.05307). The remedy is to release

    round(Q + N),    Q = the sum, rounded to the grid;  N = a real Gaussian, exactly

on a grid of spacing sigma C / 2^30. Since Q lies on the grid, this is Q + round(N), an integer
number of grid steps whose possible values are the same for every Q.

How ``steps`` draws round(N) exactly: rejection from a staircase above exp(-z^2 / 2).

    block b      with probability H_b / sum(H): integers, so that the choice is exact
    z            uniform in the block, from 64 random bits (and more, where they are needed)
    accept       if V < K exp(-z^2 / 2) / H_b, V uniform on [0, 1)
    sign         one more random bit

``exp`` and V are compared in double precision with an error bound; where that cannot decide (about
once in 10^12 draws), decimal arithmetic with further random bits does.

Guarantees:
    * what ``steps`` returns is a real Gaussian of standard deviation 2^30 rounded towards zero,
      up to the tail beyond 12 standard deviations, which is left out (probability 4e-33 a draw).
      Adding it to a sum on the grid is post-processing of the Gaussian mechanism, so the
      accountants' epsilon holds for the numbers that are released, bit for bit;
    * rounding the sum moves it by at most sqrt(d) / 2 grid steps; ``shortened`` gives the clipping
      norm that makes room for it, so that the sum on the grid still has sensitivity C;
    * how long a draw takes does not depend on the sum. It depends a little on the draw itself, so
      whoever can time single steps to nanoseconds learns something about the noise: a released
      proxy travels long after its steps.
"""

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from proxyfl.errors import PrivacyError

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
Bits = Callable[[int], Words]
"""n -> n independent, uniform 64-bit numbers."""

GRID_BITS = 30
"""The grid has 2^30 steps in one standard deviation of the noise."""

_REACH = 12
_PER_UNIT = 16
_BLOCKS = _REACH * _PER_UNIT
_TAKEN = 38
"""Of the 64 bits below a block, those that lie below the grid: 64 - (GRID_BITS - log2 16)."""
_DOUBT = 1e-12
"""More than 20 times the error of the comparison in double precision (72 ulp in the exponent)."""
_DIGITS = 80


def spacing(noise_multiplier: float, clip_norm: float) -> float:
    """The grid's spacing, sigma C / 2^30: public, since sigma and C are."""
    return noise_multiplier * clip_norm * 2.0**-GRID_BITS


def shortened(clip_norm: float, *, noise_multiplier: float, size: int) -> float:
    """The norm to which gradients are clipped so that their sum *on the grid* has sensitivity C.

    Two sums that differ by one gradient of norm C' differ, once rounded, by at most
    C' + sqrt(size) grid steps.
    """
    room = math.sqrt(size) * spacing(noise_multiplier, clip_norm)
    if room > clip_norm / 2:
        raise PrivacyError(
            f"A noise multiplier of {noise_multiplier:g} for {size} parameters would leave less "
            "than half of the clipping norm to the gradients after rounding. Nothing could be "
            "learnt under so much noise; use a smaller proxy or less noise."
        )
    return (clip_norm - room) * (1 - 2.0**-40)


def on_grid(total: NDArray[np.float64], step: float) -> NDArray[np.float64]:
    """The sum in whole grid steps."""
    return np.rint(total / step)


def steps(n: int, bits: Bits) -> Integers:
    """``n`` draws of a Gaussian of standard deviation 2^30, rounded to whole numbers."""
    found = [np.empty(0, dtype=np.int64)]
    missing = n
    while missing > 0:
        # 5.5 % are rejected, and a few more so that a second pass is rare
        drawn = _propose(int(missing * 1.1) + 32, bits)
        found.append(drawn[:missing])
        missing -= len(found[-1])
    return np.concatenate(found)


def _propose(n: int, bits: Bits) -> Integers:
    """The accepted ones of ``n`` proposals."""
    choice = bits(n)
    within = choice >> np.uint64(1)
    sign = np.where(choice & np.uint64(1), -1, 1)
    chosen = within < _CUMULATIVE[-1]
    within = within[chosen]
    sign = sign[chosen]
    block = np.searchsorted(_CUMULATIVE, within, side="right")
    position = bits(len(block))
    test = bits(len(block))
    accepted = _accepted(block, position, test, bits)
    drawn: Integers = sign * _whole(block, position)
    return drawn[accepted]


def _accepted(
    block: Integers,
    position: Words,
    test: Words,
    bits: Bits,
) -> NDArray[np.bool_]:
    """Whether V < K exp(-z^2 / 2) / H_b, for each proposal."""
    z = (block + position * 2.0**-64) / _PER_UNIT
    threshold = _SCALE * np.exp(-0.5 * z * z) / _HEIGHTS_AS_FLOAT[block]
    v = test * 2.0**-64
    accepted = v < threshold
    in_doubt = np.abs(v - threshold) < _DOUBT
    for i in np.flatnonzero(in_doubt):
        accepted[i] = _decide(int(block[i]), int(position[i]), int(test[i]), bits)
    return accepted


def _decide(block: int, position: int, test: int, bits: Bits) -> bool:
    """The same comparison, exactly: more and more bits of z and V until they decide."""
    known = 64
    with localcontext() as context:
        while True:
            context.prec = _DIGITS + known
            unit = Decimal(2) ** -known
            low = (block + position * unit) / _PER_UNIT
            high = (block + (position + 1) * unit) / _PER_UNIT
            height = _HEIGHTS[block]
            least = _SCALE * (-high * high / 2).exp() / height
            most = _SCALE * (-low * low / 2).exp() / height
            if (test + 1) * unit <= least:
                return True
            if test * unit >= most:
                return False
            more = bits(2)
            position = (position << 64) + int(more[0])
            test = (test << 64) + int(more[1])
            known += 64


def _whole(block: Integers, position: Words) -> Integers:
    """z 2^30, rounded down: the block's first grid step plus the upper bits of the position."""
    per_block = 2**GRID_BITS // _PER_UNIT
    above = position >> np.uint64(_TAKEN)
    whole: Integers = block * per_block + above.astype(np.int64)
    return whole


def _staircase() -> tuple[int, list[int]]:
    """K, and H_b = ceil(K exp(-z^2 / 2)) at each block's lower edge, their sum just below 2^63."""
    with localcontext() as context:
        context.prec = _DIGITS
        edges = []
        for b in range(_BLOCKS):
            z = Decimal(b) / _PER_UNIT
            edges.append((-(z**2) / 2).exp())
        scale = int(Decimal(2**63 - _BLOCKS - 1) / sum(edges))
        heights = [math.ceil(scale * edge) for edge in edges]
    return scale, heights


_SCALE, _HEIGHTS = _staircase()
_HEIGHTS_AS_FLOAT = np.array(_HEIGHTS, dtype=np.float64)
_CUMULATIVE = np.cumsum(np.array(_HEIGHTS, dtype=np.uint64))
