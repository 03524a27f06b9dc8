"""Means, standard deviations and paired tests over clients and seeds.

Two tests of the same differences d_1 ... d_n, both two-sided: Student's t (are they centred on
zero, if normal?) and Wilcoxon's signed ranks (are they symmetric about zero, whatever their
distribution?). Both take the differences to be independent. Those of the clients of one seed are
not: the clients share an exchange, an initial proxy and a test set. So there are two answers: over
clients (many differences, dependent, p too small) and over the means of the seeds (few differences,
independent).

Both are computed here, without scipy, whose import would take longer than the rest of a table.

Guarantees:
    * standard deviations are those of a sample (n - 1), and None for a single value: no spread was
      seen;
    * a p-value that the data cannot give (one difference, or equal ones that are not zero) is None,
      not 0.
"""

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from proxyfl.records.answers import Spread, spread

K = TypeVar("K", bound=Hashable)

FEWEST_SEEDS = 3
"""With fewer, a test over seeds says nothing: two differences have one degree of freedom."""

_DECIMALS = 12
_TERMS = 200
_MOST_EXACT = 50


@dataclass(frozen=True)
class PairedTest:
    """The mean of ``n`` paired differences, their standard deviation, and the p-values of the two
    tests."""

    difference: float
    std: float | None
    n: int
    t_test: float | None
    wilcoxon: float | None


@dataclass(frozen=True)
class Comparison:
    """One method against another: over all pairs of a client and a seed, and over seeds if there
    are enough."""

    over_clients: PairedTest
    over_seeds: PairedTest | None
    seeds: int


def paired_test(differences: Iterable[float]) -> PairedTest:
    """Test whether paired differences are centred on zero."""
    # Differences of scores that are equal on paper may differ in the last bit, and would get
    # different ranks.
    differences = [round(d, _DECIMALS) for d in differences]
    seen = spread(differences)
    return PairedTest(seen.mean, seen.std, seen.n, _t_test(seen), _wilcoxon(differences))


def smallest_wilcoxon(n: int) -> float:
    """The smallest p-value that signed ranks of ``n`` differences can give: all of one sign."""
    return min(1.0, 2.0 ** (1 - n))


def compare(pairs: Mapping[K, Sequence[float]]) -> Comparison:
    """Compare two methods, given the differences between them for each seed, one per client."""
    by_seed = {seed: differences for seed, differences in pairs.items() if differences}
    over_clients = paired_test(itertools.chain.from_iterable(by_seed.values()))
    over_seeds = None
    if len(by_seed) >= FEWEST_SEEDS:
        over_seeds = paired_test(fmean(differences) for differences in by_seed.values())
    return Comparison(over_clients, over_seeds, len(by_seed))


def _t_test(seen: Spread) -> float | None:
    if seen.std is None:
        return None
    if seen.std <= 10.0**-_DECIMALS:
        return 1.0 if seen.mean == 0 else None
    freedom = seen.n - 1
    t = seen.mean / seen.std * math.sqrt(seen.n)
    # P(|T| > t) = I_x(freedom / 2, 1 / 2) with x = freedom / (freedom + t^2), A&S 26.7.1
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised I_x(a, b), by its continued fraction (A&S 26.5.8) from the end inwards."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    fraction = 0.0
    for m in range(_TERMS, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        fraction = even / (1.0 + odd / (1.0 + fraction))
    first = -(a + b) * x / (a + 1)
    log_front = math.lgamma(a + b) - math.lgamma(a + 1) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (1.0 + first / (1.0 + fraction))


def _wilcoxon(differences: Sequence[float]) -> float | None:
    """Signed ranks without the zeros: exact for up to 50 differences, normal beyond."""
    if len(differences) < 2:
        return None
    nonzero = sorted((d for d in differences if d), key=abs)
    if not nonzero:
        return 1.0
    ranks = _double_ranks([abs(d) for d in nonzero])
    positive = sum(rank for rank, d in zip(ranks, nonzero, strict=True) if d > 0)
    centre = sum(ranks) / 2
    distance = abs(positive - centre)
    if len(ranks) > _MOST_EXACT:
        deviation = math.sqrt(sum(rank * rank for rank in ranks)) / 2
        return math.erfc(distance / deviation / math.sqrt(2))
    counts = _rank_sums(ranks)
    extreme = sum(count for total, count in counts.items() if abs(total - centre) >= distance)
    return min(1.0, float(extreme / 2 ** len(ranks)))


def _double_ranks(sizes: Sequence[float]) -> list[int]:
    """Twice the rank of each of the sorted ``sizes``; equal ones share the mean of their ranks."""
    ranks = []
    before = 0
    for _, group in itertools.groupby(sizes):
        n = len(list(group))
        ranks += [2 * before + n + 1] * n
        before += n
    return ranks


def _rank_sums(ranks: Sequence[int]) -> dict[int, int]:
    """Sum -> in how many of all patterns of signs the positive ranks add up to it."""
    counts = {0: 1}
    for rank in ranks:
        more = dict(counts)
        for total, count in counts.items():
            more[total + rank] = more.get(total + rank, 0) + count
        counts = more
    return counts
