"""An oracle for ``proxyfl.privacy.gaussian``: the same distribution by another construction.

Rejection from a staircase of 192 blocks, as this package drew its noise at first. It decides close
calls in double precision, one in 10^12, which no statistic sees. It shares no code with what it is
compared to."""

import numpy as np

from proxyfl.privacy.gaussian import Bits, Integers

_PER_UNIT = 16
_EDGES = np.exp(-0.5 * (np.arange(12 * _PER_UNIT) / _PER_UNIT) ** 2)
_SCALE = 2.0**62 / _EDGES.sum()
_HEIGHTS = np.ceil(_SCALE * _EDGES).astype(np.uint64)
_CUMULATIVE = np.cumsum(_HEIGHTS)


def steps(n: int, bits: Bits) -> Integers:
    """``n`` draws of a Gaussian of standard deviation 2^30, rounded down to whole numbers."""
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < n:
        drawn = np.concatenate([drawn, _propose(2 * (n - len(drawn)) + 64, bits)])
    return drawn[:n]


def _propose(n: int, bits: Bits) -> Integers:
    """The accepted ones of ``n`` proposals."""
    choice, position, test = bits(3 * n).reshape(3, n)
    negative = (choice & np.uint64(1)).astype(np.bool_)
    choice = choice >> np.uint64(1)
    within = choice < _CUMULATIVE[-1]
    block = np.searchsorted(_CUMULATIVE, choice, side="right") % len(_HEIGHTS)
    z = (block + position * 2.0**-64) / _PER_UNIT
    accepted = within & (test * 2.0**-64 < _SCALE * np.exp(-0.5 * z * z) / _HEIGHTS[block])
    outward = block * (2**30 // _PER_UNIT) + (position >> np.uint64(38)).astype(np.int64)
    return np.where(negative, -outward - 1, outward)[accepted]
