"""Means, spreads and paired tests: by hand, against scipy and by enumeration, and whether they mean
what they say."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.records.answers import Spread, spread
from proxyfl.sweeps import statistics
from proxyfl.sweeps.statistics import compare, paired_test
from reproduction.series import differences

scores = st.floats(0, 1).map(lambda x: round(x, 4))


def test_mean_and_spread_by_hand() -> None:
    """1, 2, 3 have mean 2 and a sample standard deviation of exactly 1."""
    assert spread([1, 2, 3]) == Spread(2.0, 1.0, 3, 1, 3)


def test_one_value_has_no_spread() -> None:
    """The spread of one value is unknown, not zero."""
    assert spread([0.7]) == Spread(0.7, None, 1, 0.7, 0.7)


def test_no_values_are_refused() -> None:
    """Nothing has no mean."""
    with pytest.raises(ValueError, match="got none"):
        spread([])


def test_t_test_by_hand() -> None:
    """Differences 1, 2, 3: t = 2 sqrt(3) with 2 degrees of freedom, whose tail is 1 - t / sqrt(2 +
    t^2)."""
    t = 2 * math.sqrt(3)
    assert paired_test([1, 2, 3]).t_test == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)


@settings(max_examples=25)
@given(st.lists(st.tuples(scores, scores), min_size=3, max_size=30))
def test_agrees_with_scipy(pairs: list[tuple[float, float]]) -> None:
    """Wherever scipy's paired t-test is defined, ours is the same."""
    ours, theirs = (np.array(side) for side in zip(*pairs, strict=True))
    found = paired_test(ours - theirs)
    assert found.difference == pytest.approx(float((ours - theirs).mean()), abs=1e-9)
    if np.std(np.round(ours - theirs, 12)) > 1e-9:
        assert found.std == pytest.approx(float((ours - theirs).std(ddof=1)), abs=1e-9)
        assert found.t_test == pytest.approx(
            float(scipy.stats.ttest_rel(ours, theirs).pvalue), rel=1e-6
        )


def test_signed_ranks_by_enumeration() -> None:
    """Without ties, the signed-rank p-value is the share of sign patterns whose rank sum is as far
    out."""
    found = [0.3, -0.1, 0.4, 0.2, -0.5, 0.6, 0.7]
    ranks = scipy.stats.rankdata(np.abs(found))
    centre = ranks.sum() / 2
    seen = abs(ranks[np.array(found) > 0].sum() - centre)
    sums = [
        sum(r for r, up in zip(ranks, signs, strict=True) if up)
        for signs in itertools.product((0, 1), repeat=7)
    ]
    assert paired_test(found).wilcoxon == pytest.approx(
        np.mean([abs(s - centre) >= seen for s in sums])
    )


@settings(max_examples=25)
@given(
    st.lists(scores.map(lambda x: round(x - 0.41234, 5)), min_size=3, max_size=12, unique_by=abs)
)
def test_signed_ranks_agree_with_scipy(found: list[float]) -> None:
    """Without ties and zeros scipy's exact signed-rank test gives the same p-value."""
    expected = scipy.stats.wilcoxon(found, method="exact").pvalue
    assert paired_test(found).wilcoxon == pytest.approx(float(expected))


def test_signed_ranks_of_many() -> None:
    """Beyond fifty differences the normal approximation is scipy's, without its correction."""
    found = [math.sin(k) + 0.2 for k in range(80)]
    expected = scipy.stats.wilcoxon(found, method="approx", correction=False).pvalue
    assert paired_test(found).wilcoxon == pytest.approx(float(expected), rel=1e-6)


def test_signed_ranks_with_ties() -> None:
    """Equal differences share their ranks: 1, 1, 2 all positive are the one extreme pattern of
    eight, counted on both sides."""
    assert paired_test([0.1, 0.1, 0.2]).wilcoxon == pytest.approx(2 / 8)


@pytest.mark.parametrize("n", [3, 5, 8])
def test_smallest_signed_rank_p_value(n: int) -> None:
    """All differences of one sign give the smallest p-value that there is for their number."""
    assert paired_test(
        [0.01 * k for k in range(1, n + 1)]
    ).wilcoxon == statistics.smallest_wilcoxon(n)


def test_no_differences_are_no_evidence() -> None:
    """Equal scores give p = 1 in both tests."""
    found = paired_test([0.0, 0.0, 0.0])
    assert (found.t_test, found.wilcoxon) == (1.0, 1.0)


def test_what_cannot_be_tested_has_no_p_value() -> None:
    """One difference has no p-value, and equal differences have no t-test: the spread is unknown,
    not zero."""
    one = paired_test([0.1])
    assert (one.t_test, one.wilcoxon, one.std) == (None, None, None)
    assert paired_test([0.8 - 0.7, 0.3 - 0.2, 0.6 - 0.5]).t_test is None


@settings(max_examples=15)
@given(st.lists(scores, min_size=2, max_size=8))
def test_the_other_way_round(found: list[float]) -> None:
    """Exchanging the two methods turns the difference's sign and leaves the p-values."""
    one, other = paired_test(found), paired_test([-d for d in found])
    assert one.difference == -other.difference
    assert (one.t_test, one.wilcoxon) == (other.t_test, other.wilcoxon)


def test_pairs_share_seed_and_client() -> None:
    """Only a client of the same seed is a counterpart; what has none is left out."""
    ours = {(0, 0): 0.5, (0, 1): 0.7, (1, 0): 0.9}
    theirs = {(0, 1): 0.6, (1, 0): 0.4, (2, 0): 0.1}
    assert differences(ours, theirs) == {0: [pytest.approx(0.1)], 1: [pytest.approx(0.5)]}


def test_a_pooled_method_is_paired_with_each_client() -> None:
    """One model for everybody stands against every client of its seed, on either side."""
    joint, alone = ({(0, 0): 0.9, (1, 0): 0.8}, {(0, 0): 0.5, (0, 1): 0.6, (1, 1): 0.7})
    assert differences(joint, alone, ours_pooled=True) == {
        0: pytest.approx([0.4, 0.3]),
        1: pytest.approx([0.1]),
    }
    assert differences(alone, joint, theirs_pooled=True) == {
        0: pytest.approx([-0.4, -0.3]),
        1: pytest.approx([-0.1]),
    }
    both = differences(joint, {(0, 0): 0.5}, ours_pooled=True, theirs_pooled=True)
    assert both == {0: [pytest.approx(0.4)]}


def test_seeds_are_tested_from_three_on() -> None:
    """The test over seeds is that of the seeds' means; two seeds have none."""
    pairs = {0: [0.1, 0.3], 1: [0.2, 0.0], 2: [0.4, 0.2]}
    found = compare(pairs)
    assert found.over_clients == paired_test([0.1, 0.3, 0.2, 0.0, 0.4, 0.2])
    assert found.over_seeds == paired_test([0.2, 0.1, 0.3])
    assert compare({0: [0.1, 0.3], 1: [0.2, 0.0]}).over_seeds is None


def test_only_the_test_over_seeds_keeps_its_promise() -> None:
    """Without an effect, but with luck shared within seeds, 5 % of tests over seeds err, and far
    more over clients."""
    generator = np.random.default_rng(7)
    wrong_clients = wrong_seeds = 0
    for _ in range(400):
        shared = generator.normal(0, 0.03, size=(5, 1))
        found = compare(dict(enumerate((shared + generator.normal(0, 0.02, size=(5, 8))).tolist())))
        assert found.over_clients.t_test is not None
        assert found.over_seeds is not None
        assert found.over_seeds.t_test is not None
        wrong_clients += found.over_clients.t_test < 0.05
        wrong_seeds += found.over_seeds.t_test < 0.05
    assert 0.02 < wrong_seeds / 400 < 0.09
    assert wrong_clients / 400 > 0.3
