r"""Gaussian noise that has no floating-point holes: exact draws, rounded down to a grid.

Noise made of floating-point numbers takes only some of the values that floating-point numbers
can have, and which ones depends on the number that it is added to. From the last bits of sum plus
noise an observer can therefore tell which sums are impossible (Mironov 2012; for DP-SGD, Jin et
al. 2021, arXiv 2112.05307). The remedy is to release

    floor(Q + N),    Q = the sum, rounded to the grid;  N = a real Gaussian, exactly

on a grid of spacing sigma C / 2^30. Since Q is a whole number of grid steps, this is Q + floor(N):
a whole number whose possible values are the same for every Q.

Why down and not towards zero: what is released must be a function of Q + N, which the accountants
are about. floor(Q + N) = Q + floor(N) is one. Q + trunc(N) is none: trunc(N) is 0 for all N between
-1 and 1, so the sum itself would be released twice as often as either neighbour.

How ``steps`` draws floor(N) exactly: a point uniform below a staircase is accepted if it lies below
the curve K exp(-z^2 / 2). For each block b of 1/64 standard deviation,

    L_b = floor(K exp(-r^2 / 2)), r the block's outer edge: below the curve all along the block;
    G_b = what is left up to the curve at the inner edge, in units of R / 2^14, rounded up.

A table of 2^15 entries names each block, of either sign, L_b times. The other R entries, 2.2 % of
all, name none. A second table of 2^13 entries names each block, for both signs, G_b times.

    an entry at random     15 random bits
    it names a block       floor(z) is the block's first grid step plus 24 random bits: no
                           arithmetic but one sum of integers
    it names none          a block by the second table, z uniform in it, a random sign. With V
                           uniform on [0, 1) accept if L_b + V h_b < K exp(-z^2 / 2), where
                           h_b = R G_b / 2^14; reject otherwise, and if no block is named

Proof. Count probability in units of 2^-15. What is accepted in block b has at z the density (over
the block, of each sign)

    L_b + h_b P(V < (K exp(-z^2 / 2) - L_b) / h_b)  =  K exp(-z^2 / 2)

since the quotient lies in [0, 1] by the choice of L_b and G_b. The same K stands in every block, so
an accepted z is Gaussian: which entries there are, and how coarse the heights are, decides how
often a proposal is rejected, not what is drawn. In a block that the table names, z is uniform, and
its first 24 bits are floor(z); no further bit of it matters.

The one comparison with the curve needs numbers that have no end. It is made in double precision by
additions, products and quotients alone, which IEEE 754 rounds correctly on every machine. No
function of a mathematical library is trusted (``_exp_minus`` and ``_DOUBT`` have its error).
Where double precision cannot decide, about once in 10^12 draws, ``_decide`` takes decimal
arithmetic with further random bits of z and V.

Rejected proposals are replaced by spare ones. Proposals are independent and which of them stay
depends on nothing but acceptance, so what ``steps`` returns are independent draws.

Guarantees, for bits that are independent and uniform:
    * what ``steps`` returns is a real Gaussian of standard deviation 2^30 rounded down, up to the
      tail beyond 12 standard deviations, which is left out (probability 4e-33 a draw). Added to a
      sum on the grid it is post-processing of the Gaussian mechanism, so the accountants' epsilon
      holds for the numbers that are released, bit for bit;
    * k and -k - 1 are equally likely: what is released is symmetric about Q - 1/2 grid steps, not
      about Q. The half step, 2^-31 standard deviations, is the same for every Q;
    * rounding the sum moves it by at most sqrt(d) / 2 grid steps; ``shortened`` gives the clipping
      norm that makes room for it, so that the sum on the grid still has sensitivity C;
    * no bits are kept from one call to the next: threads and forked processes share none;
    * how long a draw takes does not depend on the sum. It depends a little on the draw itself, so
      timing single steps to nanoseconds tells something about the noise: a released proxy travels
      long after its steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

from proxyfl.errors import PrivacyError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
Bits = Callable[[int], Words]
"""n -> n independent, uniform 64-bit numbers."""

GRID_BITS = 30
"""The grid has 2^30 steps in one standard deviation of the noise."""

_REACH = 12
_PER_UNIT = 64
_BLOCKS = _REACH * _PER_UNIT
_BLOCK_BITS = 24
"""A block has 2^24 grid steps: GRID_BITS - log2 64."""
_TABLE_BITS = 15
_SECOND_BITS = 13
_FILLED = Decimal("0.998")
"""K as a share of what it could be if G_b were not rounded up."""
_UNNAMED = -(2**62)
"""Stands in the table where an entry names no block; no draw comes near it."""
_DOUBT = 2.0**-40
"""The share of the staircase's height within which double precision leaves a comparison undecided:
900 times the largest error.

With u = 2^-53 and c = K exp(-l^2 / 2) at the block's inner edge l: the curve is off by 5 u c (c is
rounded, ``_exp_minus`` is off by 3 u, their product is rounded), and the point L_b + V h_b by
3 u (c + h_b) (V, the product and the sum are rounded; h_b is exact). The bits of V below the first
64 are worth h_b 2^-64 at most, and those of z 12 c 2^-70. In all less than 9 u (c + h_b)."""
_DIGITS = 80
_PIECE = 2**15
"""Proposals that are made at a time, so that they stay in the cache."""
_ROUNDING = 2.0**-24
"""The share of C for the float64 arithmetic of the sum. Added up one by one, n gradients of norm C
are off by at most n^2 C / 2^53, and the quotient by the spacing by n C / 2^53. Two such sums differ
by less than this share of C more than they should, for batches of up to 16,000 records."""


def spacing(noise_multiplier: float, clip_norm: float) -> float:
    """The grid's spacing, sigma C / 2^30: public, since sigma and C are."""
    return noise_multiplier * clip_norm * 2.0**-GRID_BITS


def shortened(clip_norm: float, *, noise_multiplier: float, size: int) -> float:
    """The norm to which gradients are clipped so that their sum *on the grid* has sensitivity C.

    Two sums that differ by one gradient of norm C' differ, once rounded, by at most
    C' + sqrt(size) grid steps. ``_ROUNDING`` is for the sums' own arithmetic.
    """
    room = math.sqrt(size) * spacing(noise_multiplier, clip_norm)
    if room > clip_norm / 2:
        raise PrivacyError(
            f"A noise multiplier of {noise_multiplier:g} for {size} parameters would leave less "
            "than half of the clipping norm to the gradients after rounding. Nothing could be "
            "learnt under so much noise; use a smaller proxy or less noise."
        )
    return (clip_norm - room) * (1 - _ROUNDING)


def steps(n: int, bits: Bits) -> Integers:
    """Returns ``n`` draws of a Gaussian of standard deviation 2^30, rounded down to whole numbers.

    About 5 ns a draw, for many at a time."""
    if n == 0:
        return np.empty(0, dtype=np.int64)
    # 0.8 % are rejected; the spare ones make a second pass rare
    drawn, rejected = _propose(n + n // 64 + 32, bits)
    spare = np.delete(drawn[n:], rejected[rejected >= n] - n)
    drawn = drawn[:n]
    empty = rejected[rejected < n]
    filled = empty[: len(spare)]
    drawn[filled] = spare[: len(filled)]
    missing = empty[len(spare) :]
    drawn[missing] = steps(len(missing), bits)
    return drawn


def _propose(n: int, bits: Bits) -> tuple[Integers, Integers]:
    """Returns ``n`` proposals, and the places of those among them that are rejected."""
    table = _staircase().table
    proposed = np.empty(n, dtype=np.int64)
    unnamed = []
    for start in range(0, n, _PIECE):
        piece = proposed[start : start + _PIECE]
        words = _draw(len(piece), bits)
        entries = words >> np.uint64(64 - _TABLE_BITS)
        within = words & np.uint64(2**_BLOCK_BITS - 1)
        # no entry is outside of the table; NumPy would first copy what it takes in order to raise
        np.take(table, entries.view(np.int64), out=piece, mode="clip")
        piece += within.view(np.int64)
        unnamed.append(start + np.flatnonzero(piece < _UNNAMED // 2))
    places = np.concatenate(unnamed)
    proposed[places], accepted = _propose_above(len(places), bits)
    return proposed, places[~accepted]


def _propose_above(n: int, bits: Bits) -> tuple[Integers, NDArray[np.bool_]]:
    """Returns ``n`` proposals above the table's part of the staircase, and which are accepted."""
    choice, position, test = _draw(3 * n, bits).reshape(3, n)
    entries = choice >> np.uint64(64 - _SECOND_BITS)
    negative = (choice & np.uint64(1)).astype(np.bool_)
    block = _staircase().second[entries.view(np.int64)]
    accepted = _accept(block, position, test, bits)
    within = position >> np.uint64(64 - _BLOCK_BITS)
    outward = (block << _BLOCK_BITS) + within.view(np.int64)
    # z is no whole number of steps (with probability 1), so that the floor of -z is -outward - 1
    return np.where(negative, -outward - 1, outward), accepted


def _draw(n: int, bits: Bits) -> Words:
    words = bits(n)
    if len(words) != n:
        raise PrivacyError(
            f"Expected {n} random numbers for the noise, got {len(words)}. Nothing was released; "
            "check the source of randomness."
        )
    return words


def _accept(block: Integers, position: Words, test: Words, bits: Bits) -> NDArray[np.bool_]:
    """Returns whether L_b + V h_b < K exp(-z^2 / 2), for each proposal."""
    stairs = _staircase()
    inner = stairs.curve[block]
    height = stairs.heights[block]
    # z = l + d: exp(-z^2 / 2) = exp(-l^2 / 2) exp(-d (l + d / 2))
    d = position * 2.0**-64 / _PER_UNIT
    curve = inner * _exp_minus(d * (block / _PER_UNIT + d / 2))
    point = stairs.named[block] + test * 2.0**-64 * height
    accepted: NDArray[np.bool_] = point < curve
    for i in np.flatnonzero(np.abs(point - curve) <= _DOUBT * (inner + height)):
        accepted[i] = _decide(int(block[i]), int(position[i]), int(test[i]), bits)
    return accepted


def _exp_minus(t: Floats) -> Floats:
    """Returns exp(-t) for t in [0, 3/16], off by less than 3 u (u = 2^-53).

    Twelve terms of the series; those left out are below t^12 / 12! < u / 16. In Horner's rule

        r_i = 1 - r_(i+1) t / i

    the product and the quotient lose u each of a number below t / i, the difference u / 2. So the
    error of r_i is at most u / 2 + (2 u + that of r_(i+1)) t / i, and that of r_1 below 1.1 u.
    Divided by exp(-3/16) that is 1.4 u. ``t`` itself is off by 4 u t < 0.8 u, since d is rounded,
    and stands in it twice, and so are a sum and a product."""
    result = np.ones_like(t)
    for i in range(11, 0, -1):
        result *= t
        result /= i
        np.subtract(1, result, out=result)
    return result


def _decide(block: int, position: int, test: int, bits: Bits) -> bool:
    """Makes the same comparison exactly: further bits of z and V until they decide."""
    stairs = _staircase()
    known = 64
    # a context of its own: what other code has set for its decimals has no part in this
    with localcontext(Context(rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX)) as context:
        while True:
            context.prec = _DIGITS + known
            # the operations below round off less than a billionth of it
            margin = Decimal(10) ** (20 - context.prec)
            unit = Decimal(2) ** -known
            low = (block + position * unit) / _PER_UNIT
            high = (block + (position + 1) * unit) / _PER_UNIT
            scale = Decimal(stairs.scale) / stairs.scale_unit
            least = scale * (-high * high / 2).exp() * (1 - margin)
            most = scale * (-low * low / 2).exp() * (1 + margin)
            height = Decimal(stairs.heights[block])
            named = stairs.counts[block]
            if named + (test + 1) * unit * height <= least:
                return True
            if named + test * unit * height >= most:
                return False
            further = _draw(2, bits)
            position = (position << 64) + int(further[0])
            test = (test << 64) + int(further[1])
            known += 64


@dataclass(frozen=True)
class _Staircase:
    """The constants of the module's proof, by block; the last place stands for no block."""

    scale: int
    """K times ``scale_unit``."""
    scale_unit: int
    counts: list[int]
    """L_b."""
    weights: list[int]
    """G_b."""
    table: Integers
    """The first grid step of the block that each entry names, or ``_UNNAMED``."""
    second: Integers
    """The block that each entry names, or ``_BLOCKS``."""
    curve: Floats
    """K exp(-l^2 / 2) at the block's inner edge l; 0 for no block, so that nothing is accepted."""
    named: Floats
    """L_b; 1 for no block."""
    heights: Floats
    """h_b, exactly: the quotient of a small number and a power of 2."""


@cache
def _staircase() -> _Staircase:
    """Computes the constants, with a K about as large as the tables allow."""
    scale_unit = 2**40
    with localcontext(Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN)):
        edges = []
        for b in range(_BLOCKS + 1):
            z = Decimal(b) / _PER_UNIT
            edges.append((-(z**2) / 2).exp())
        scale = int(_FILLED * 2 ** (_TABLE_BITS - 1) / sum(edges[:-1]) * scale_unit)
        curve = [scale * edge / scale_unit for edge in edges]
        counts = [math.floor(outer) for outer in curve[1:]]
        unnamed = 2**_TABLE_BITS - 2 * sum(counts)
        unit = Decimal(unnamed) / 2 ** (_SECOND_BITS + 1)
        weights = []
        for inner, count in zip(curve[:-1], counts, strict=True):
            weights.append(math.ceil((inner - count) / unit))
    return _Staircase(
        scale,
        scale_unit,
        counts,
        weights,
        table=_first_table(counts),
        second=_second_table(weights),
        curve=np.array([*map(float, curve[:-1]), 0.0]),
        named=np.array([*counts, 1.0]),
        heights=np.array([*weights, 0.0]) * float(unit),
    )


def _first_table(counts: list[int]) -> Integers:
    """Names each block as often as ``counts`` says, and its mirror image as often."""
    first = np.arange(_BLOCKS, dtype=np.int64) << _BLOCK_BITS
    positive = np.repeat(first, counts)
    negative = -positive - 2**_BLOCK_BITS
    unnamed = 2**_TABLE_BITS - 2 * len(positive)
    table = np.concatenate([positive, negative, np.full(unnamed, _UNNAMED)])
    table.setflags(write=False)
    return table


def _second_table(weights: list[int]) -> Integers:
    """Names each block as often as ``weights`` says."""
    blocks = np.repeat(np.arange(_BLOCKS), weights)
    unnamed = 2**_SECOND_BITS - len(blocks)
    table = np.concatenate([blocks, np.full(unnamed, _BLOCKS)])
    table.setflags(write=False)
    return table
