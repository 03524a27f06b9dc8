"""Means, standard deviations and paired tests over clients and seeds.

Two tests of the same differences d_1 ... d_n, both two-sided: Student's t (are they centred on
zero, if normal?) and Wilcoxon's signed ranks (are they symmetric about zero, whatever their
distribution?). Both take the differences to be independent. Those of the clients of one seed are
not: the clients share an exchange, an initial proxy and a test set. So there are two answers: over
clients (many differences, dependent, p too small) and over the means of the seeds (few differences,
independent).

Guarantees:
    * standard deviations are those of a sample (n - 1), and None for a single value: no spread was
      seen;
    * a p-value that the data cannot give (one difference, or equal ones that are not zero) is None,
      not 0.
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

FEWEST_SEEDS = 3
"""With fewer, a test over seeds says nothing: two differences have one degree of freedom."""

_DECIMALS = 12


@dataclass(frozen=True)
class Spread:
    """The mean of ``n`` values and their standard deviation."""

    mean: float
    std: float | None
    n: int


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


def spread(values: Iterable[float]) -> Spread:
    """Mean and standard deviation of one value or more."""
    values = list(values)
    if not values:
        raise ValueError("Expected one value or more, got none.")
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


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
    over_clients = paired_test(d for differences in by_seed.values() for d in differences)
    enough = len(by_seed) >= FEWEST_SEEDS
    over_seeds = (
        paired_test(fmean(differences) for differences in by_seed.values()) if enough else None
    )
    return Comparison(over_clients, over_seeds, len(by_seed))


def differences(
    ours: Mapping[tuple[K, int], float],
    theirs: Mapping[tuple[K, int], float],
    *,
    ours_pooled: bool = False,
    theirs_pooled: bool = False,
) -> dict[K, list[float]]:
    """Ours minus theirs for each seed, over the clients that both have; keys are (seed, client).

    A pooled method has one model for everybody: it is paired with each client of its seed.
    """
    if ours_pooled and not theirs_pooled:
        flipped = differences(theirs, ours, theirs_pooled=True)
        return {seed: [-d for d in found] for seed, found in flipped.items()}
    if theirs_pooled and not ours_pooled:
        for_all = {seed: value for (seed, _), value in theirs.items()}
        theirs = {key: for_all[key[0]] for key in ours if key[0] in for_all}
    found: dict[K, list[float]] = defaultdict(list)
    for key, value in ours.items():
        if key in theirs:
            found[key[0]].append(value - theirs[key])
    return dict(found)


def _t_test(seen: Spread) -> float | None:
    from scipy.stats import (
        t,
    )  # not at the top: it takes half a second that most commands do not need

    if seen.std is None:
        return None
    if seen.std <= 10.0**-_DECIMALS:
        return 1.0 if seen.mean == 0 else None
    return float(2 * t.sf(abs(seen.mean) / seen.std * math.sqrt(seen.n), seen.n - 1))


def _wilcoxon(differences: Sequence[float]) -> float | None:
    from scipy.stats import wilcoxon

    if len(differences) < 2:
        return None
    if not any(differences):
        return 1.0
    with warnings.catch_warnings():
        # Exact for up to 13 differences, and up to 50 without ties; beyond, scipy approximates, and
        # warns of ties.
        warnings.simplefilter("ignore")
        return float(wilcoxon(differences).pvalue)
