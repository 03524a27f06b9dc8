"""Noise shares: their sum is the noise of the promise, their grid keeps the sensitivity."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import interpolate, stats

from proxyfl.errors import ConfigError, PrivacyError
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.shares import Share, check_distance, distance

GENERATOR = np.random.default_rng(26)


def bits(n: int) -> NDArray[np.uint64]:
    """Random 64-bit numbers from a fixed seed, so that a test's verdict does not change."""
    return GENERATOR.integers(0, 2**64, n, dtype=np.uint64, endpoint=False)


def floors(deviation: float, reach: int) -> NDArray[np.float64]:
    """The probabilities of a Gaussian rounded down, from -reach to reach."""
    edges = np.arange(-reach, reach + 2) / deviation
    upper = np.diff(stats.norm.cdf(edges))
    # of the two tails the small one is exact
    lower = np.diff(stats.norm.sf(edges[::-1]))[::-1]
    probabilities: NDArray[np.float64] = np.where(edges[:-1] > 0, lower, upper)
    return probabilities


def rounded_at_random(deviation: float, members: int, reach: int) -> NDArray[np.float64]:
    """The probabilities of N(0, m deviation^2), rounded at random by the B-spline of order m."""
    spline = interpolate.BSpline.basis_element(np.arange(members + 1.0), extrapolate=False)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    found = np.zeros(2 * reach + 1)
    whole = np.arange(-reach, reach + 1)
    for piece in range(members):
        for node, weight in zip(nodes, weights, strict=True):
            v = piece + (node + 1) / 2
            density = stats.norm.pdf(whole + v, scale=deviation * math.sqrt(members))
            found += weight / 2 * float(spline(v)) * density
    return found


@pytest.mark.parametrize("members", [1, 2, 3, 8])
@pytest.mark.parametrize("deviation", [0.5, 1.0, 1.5, 2.0])
def test_a_sum_of_floors_is_a_gaussian_rounded_at_random(deviation: float, members: int) -> None:
    """On grids so coarse that it can be computed, the two differ by no more than the bound that is
    stated for each value; with one member they are the same."""
    reach = 40 * members
    each = floors(deviation, reach)
    total = each
    for _ in range(members - 1):
        total = np.convolve(total, each)[reach:-reach]
    off = float(np.abs(total - rounded_at_random(deviation, members, reach)).max())
    bound = 12 * members * math.exp(-(math.pi**2) * deviation**2 / 2)
    assert off <= (1e-14 if members == 1 else bound + 1e-14)


def test_the_bound_is_about_something() -> None:
    """On a grid as coarse as the noise a sum of floors is *not* a Gaussian rounded at random, so
    the comparison above can fail."""
    each = floors(0.3, 40)
    total = np.convolve(each, each)[40:-40]
    assert float(np.abs(total - rounded_at_random(0.3, 2, 40)).max()) > 1e-3


@pytest.mark.parametrize("members", [1, 2, 5, 30])
def test_random_rounding_looks_at_the_sum_alone(members: int) -> None:
    """The probabilities of rounding y to the whole numbers near it add up to 1 for every y."""
    spline = interpolate.BSpline.basis_element(np.arange(members + 1.0), extrapolate=False)
    for y in np.linspace(0, 1, 17, endpoint=False):
        chances = np.nan_to_num(spline(y + np.arange(members)))
        assert math.isclose(chances.sum(), 1, rel_tol=1e-9)
        assert (chances >= -1e-15).all()


@pytest.mark.parametrize(("colluders", "quorum"), [(1, 2), (2, 4), (8, 16), (1, 10)])
@pytest.mark.parametrize(("scale", "accepted"), [(1.0, True), (1.06, False), (0.94, False)])
def test_h_shares_have_the_noise_of_the_promise(
    colluders: int, quorum: int, scale: float, accepted: bool
) -> None:
    """The noise of h members together has deviation sigma C by a KS test, which rejects 6 % more
    and less."""
    coalition = Coalition(colluders, quorum)
    share = Share(3.0, 0.5, coalition)
    nothing = np.zeros(60_000)
    total = sum(share.noisy(nothing, 60, bits) for _ in range(coalition.honest))
    noise = share.to_floats(np.asarray(total)) / (3.0 * 0.5)
    assert bool(stats.kstest(noise * scale, "norm").pvalue > 1e-4) is accepted


def test_one_share_alone_is_what_is_left_if_all_others_collude() -> None:
    """One member's noise has the multiplier sigma / sqrt(h), with which the second epsilon is
    computed."""
    share = Share(4.0, 1.0, Coalition(8, 16))
    noise = share.to_floats(share.noisy(np.zeros(100_000), 60, bits))
    assert math.isclose(share.own_multiplier, 4 / math.sqrt(8))
    assert stats.kstest(noise / share.own_multiplier, "norm").pvalue > 1e-4


@given(
    size=st.integers(1, 400),
    honest=st.integers(1, 100),
    sigma=st.floats(0.3, 50),
    clip=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_sum_on_the_common_grid_keeps_its_sensitivity(
    size: int, honest: int, sigma: float, clip: float, seed: int
) -> None:
    """Two sums that differ by one gradient of the norm that is clipped to differ by at most C on
    the grid, whatever rounding does to them."""
    share = Share(sigma, clip, Coalition(1, honest + 1))
    generator = np.random.default_rng(seed)
    gradient = generator.normal(size=size)
    gradient *= share.clip_to(size) / np.linalg.norm(gradient)
    # half-way between two grid points is where rounding moves the most
    total = (generator.integers(-1000, 1000, size) + 0.5) * share.spacing
    with_it, without = (_without_noise(share, each) for each in (total + gradient, total))
    assert np.linalg.norm((with_it - without).astype(float)) * share.spacing <= clip


def _without_noise(share: Share, total: NDArray[np.float64]) -> NDArray[np.int64]:
    """What ``noisy`` gives, minus the noise that the same bits give for nothing."""
    drawn: list[NDArray[np.uint64]] = []

    def recording(n: int) -> NDArray[np.uint64]:
        drawn.append(bits(n))
        return drawn[-1]

    noisy = share.noisy(total, 60, recording)
    replay = iter(drawn)
    return noisy - share.noisy(np.zeros_like(total), 60, lambda _n: next(replay))


@given(values=st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=20))
def test_every_honest_value_is_in_range(values: list[float]) -> None:
    """Whatever the data, an honest vector lies within the public bound: a sum out of range is
    nobody's honest one, and no failure tells anything about the data."""
    share = Share(4.0, 1.0, Coalition(2, 4))
    vector = share.noisy(np.array(values), 60, bits)
    assert int(np.abs(vector).max()) <= share.largest(60)
    assert 4 * share.largest(60) <= share.check_range(4 * 60, 4) + 4


def test_holding_within_range_moves_nothing_apart() -> None:
    """A sum that is held within the bound is no further from any other than before."""
    share = Share(4.0, 1.0, Coalition(2, 4))
    edge = share.bound(1) * share.spacing
    near, far = np.array([edge * 0.99]), np.array([edge * 1.5])
    held = _without_noise_of_batch(share, far) - _without_noise_of_batch(share, near)
    assert 0 < int(held[0]) * share.spacing < float(far[0] - near[0])


def _without_noise_of_batch(share: Share, total: NDArray[np.float64]) -> NDArray[np.int64]:
    generator = np.random.default_rng(1)

    def fixed(n: int) -> NDArray[np.uint64]:
        return generator.integers(0, 2**64, n, dtype=np.uint64, endpoint=False)

    return share.noisy(total, 1, fixed)


def test_batches_that_64_bits_cannot_hold_are_refused() -> None:
    """A sum that could wrap around is refused before anything is drawn."""
    share = Share(0.01, 1.0, Coalition(1, 101))
    with pytest.raises(ConfigError, match="too large for a masked sum of 64 bits"):
        share.check_range(10**6, 100)
    assert Share(4.0, 1.0, Coalition(60, 121)).check_range(121 * 60, 121) < 2**62


def test_the_distance_from_a_gaussian_is_below_what_is_set_aside() -> None:
    """For a million parameters, 10,000 steps and 100 members the distance is below 1e-20."""
    assert 0 < distance(members=100, size=10**6, steps=10**4) < 1e-20
    check_distance(members=100, size=10**6, steps=10**4, epsilon=3, delta=1e-6)


def test_a_delta_without_room_for_the_distance_is_refused() -> None:
    """Where the noise is further from a Gaussian than delta allows, nothing is promised."""
    with pytest.raises(PrivacyError, match="further from a Gaussian"):
        check_distance(members=100, size=10**6, steps=10**4, epsilon=3, delta=1e-12)


@pytest.mark.parametrize(("colluders", "quorum"), [(1, 1), (4, 3), (-1, 2), (0, 0), (0, 4)])
def test_a_coalition_leaves_somebody_honest(colluders: int, quorum: int) -> None:
    """Terms under which nobody's noise would be left are refused."""
    with pytest.raises(ConfigError):
        Coalition(colluders, quorum)


def test_a_member_can_subtract_its_own_noise() -> None:
    """One curious member is a coalition of one: what it cannot subtract of a sum by the smallest
    roster still has the noise that the epsilon is stated for, and no member can be left out of
    the count."""
    coalition = Coalition(1, 8)
    share = Share(3.0, 1.0, coalition)
    parts = [share.noisy(np.zeros(60_000), 60, bits) for _ in range(coalition.quorum)]
    left = share.to_floats(np.asarray(sum(parts)) - parts[0]) / 3.0
    assert stats.kstest(left, "norm").pvalue > 1e-4
    with pytest.raises(ConfigError, match="one curious member is a coalition"):
        Coalition(0, 8)


def test_fewer_honest_members_than_promised_weaken_the_promise() -> None:
    """The multiplier falls with the root of those who are left; more than promised add nothing."""
    coalition = Coalition(8, 16)
    left = [coalition.multiplier(4.0, honest) for honest in (16, 8, 4, 2, 1)]
    assert left == pytest.approx([4.0, 4.0, 4 / math.sqrt(2), 2.0, math.sqrt(2)])
