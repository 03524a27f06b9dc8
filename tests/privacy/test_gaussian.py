"""Exact Gaussian noise on a grid: its distribution, its comparison, and the attack it stops."""

import math
import ssl

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from proxyfl.errors import PrivacyError
from proxyfl.privacy import gaussian
from proxyfl.seeds import System


def bits(n: int) -> NDArray[np.uint64]:
    """Random 64-bit numbers from a fixed seed, so that a test's verdict does not change."""
    return GENERATOR.integers(0, 2**64, n, dtype=np.uint64, endpoint=False)


GENERATOR = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("scale", "accepted"), [(1.0, True), (1.02, False), (2 / 3, False)]
)
def test_draws_are_normal(scale: float, accepted: bool) -> None:
    """A KS test on 400,000 draws accepts the stated deviation and rejects one that is 2 % off."""
    draws = gaussian.steps(400_000, bits) / 2.0**30
    found = bool(stats.kstest(draws * scale, "norm").pvalue > 0.001)
    assert found is accepted


def test_the_tails_are_there() -> None:
    """Draws beyond 4 standard deviations are as frequent as they should be, on both sides."""
    draws = gaussian.steps(2_000_000, bits) / 2.0**30
    expected = 2_000_000 * float(stats.norm.sf(4))
    for count in (int((draws > 4).sum()), int((draws < -4).sum())):
        assert abs(count - expected) < 5 * math.sqrt(expected)


def test_the_staircase_lies_above_the_curve() -> None:
    """Every block's height is at least the curve at its lower edge, so that no test exceeds 1."""
    with mpmath.workdps(60):
        for block, height in enumerate(gaussian._HEIGHTS):
            curve = gaussian._SCALE * mpmath.exp(
                -((mpmath.mpf(block) / 16) ** 2) / 2
            )
            assert curve <= height < curve + 1
    assert sum(gaussian._HEIGHTS) < 2**63


def test_close_calls_are_decided_exactly() -> None:
    """Where double precision cannot tell, the decision is that of arithmetic with 200 digits."""
    generator = np.random.default_rng(1)
    for _ in range(100):
        block = int(generator.integers(0, 192))
        position = int(generator.integers(0, 2**64, dtype=np.uint64))
        with mpmath.workdps(200):
            z = (block + (mpmath.mpf(position) + mpmath.mpf(1) / 2) / 2**64) / 16
            threshold = (
                gaussian._SCALE * mpmath.exp(-z * z / 2) / gaussian._HEIGHTS[block]
            )
            test = int(threshold * 2**64)
        assert gaussian._decide(block, position, max(0, test - 40), bits) is (
            test >= 40
        )
        assert gaussian._decide(block, position, test + 40, bits) is False


def test_an_undecided_comparison_draws_more_bits() -> None:
    """A test number that equals the threshold in its first 64 bits is settled by further ones."""
    drawn = []

    def counting(n: int) -> NDArray[np.uint64]:
        drawn.append(n)
        return np.zeros(n, dtype=np.uint64)

    # At z = 0 the threshold is K / H_0 = 1 up to 2^-59: V = 1 - 2^-64 lies within a bit of it.
    assert gaussian._decide(0, 0, 2**64 - 1, counting) in (True, False)
    assert gaussian._decide(0, 2**63, 0, counting) is True


def test_the_sum_on_the_grid_keeps_its_sensitivity() -> None:
    """Two sums that differ by one clipped gradient differ by at most C once both are rounded."""
    size = 1000
    clip = 1.0
    noise = 4.0
    short = gaussian.shortened(clip, noise_multiplier=noise, size=size)
    step = gaussian.spacing(noise, clip)
    generator = np.random.default_rng(5)
    for _ in range(50):
        first = generator.standard_normal(size) * 100
        change = generator.standard_normal(size)
        change *= short / np.linalg.norm(change)
        moved = gaussian.on_grid(first + change, step) - gaussian.on_grid(
            first, step
        )
        assert np.linalg.norm(moved) * step <= clip
    assert 1 - 1e-5 < short < clip


def test_hopeless_noise_is_refused() -> None:
    """Noise so large that rounding would eat the clipping norm is an error, not a surprise."""
    with pytest.raises(PrivacyError, match="smaller proxy"):
        gaussian.shortened(1.0, noise_multiplier=1e6, size=10**6)


def released_by_floats(total: float, n: int) -> NDArray[np.float32]:
    """What a sum plus ordinary 32-bit Gaussian noise looks like."""
    noise = GENERATOR.standard_normal(n).astype(np.float32)
    return (np.float32(total) + noise).astype(np.float32)


def released_on_grid(total: float, n: int) -> NDArray[np.float32]:
    """What the same sum looks like with noise from this module."""
    step = gaussian.spacing(1.0, 1.0)
    sums = gaussian.on_grid(np.full(n, total), step)
    return ((sums + gaussian.steps(n, bits)) * step).astype(np.float32)


def gives_itself_away(y: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mironov's attack: a small y with more digits than 1 + noise can have was 0 + noise."""
    scaled = y.astype(np.float64) * 2.0**24
    return (np.abs(y) < 0.25) & (scaled != np.rint(scaled))


def test_the_floating_point_attack_succeeds_without_and_fails_with() -> None:
    """From ordinary floats the attack names the sum 0 with certainty; from the grid it cannot."""
    assert gives_itself_away(released_by_floats(0.0, 20_000)).mean() > 0.15
    assert gives_itself_away(released_by_floats(1.0, 20_000)).mean() == 0
    ours = [
        gives_itself_away(released_on_grid(total, 200_000)) for total in (0.0, 1.0)
    ]
    near = [
        (np.abs(released_on_grid(total, 200_000)) < 0.25).mean()
        for total in (0.0, 1.0)
    ]
    shares = [found.mean() / there for found, there in zip(ours, near, strict=True)]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)


def test_real_bits_come_from_a_cryptographic_source() -> None:
    """The system's bits differ in every call and look uniform."""
    source = System()
    first = source.bits(10_000)
    second = source.bits(10_000)
    assert not np.array_equal(first, second)
    share = np.unpackbits(first.view(np.uint8)).mean()
    assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(640_000)
    assert len(ssl.RAND_bytes(8)) == 8
