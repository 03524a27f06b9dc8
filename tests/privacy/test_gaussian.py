"""Exact Gaussian noise on a grid: its distribution, its comparison, and the attack it stops."""

import decimal
import math
import ssl
import threading
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from proxyfl.errors import PrivacyError
from proxyfl.privacy import gaussian
from proxyfl.privacy.noise import add_noise
from proxyfl.seeds import System
from tests.privacy import rejection

Words = NDArray[np.uint64]
STAIRS = gaussian._staircase()
BLOCK = 2**24
"""Grid steps in a block."""
UNNAMED = int((STAIRS.table == gaussian._UNNAMED).sum())
"""R."""


def bits_of(seed: int) -> gaussian.Bits:
    """Random 64-bit numbers from a fixed seed, so that a test's verdict does not change."""
    generator = np.random.default_rng(seed)
    return lambda n: generator.integers(0, 2**64, n, dtype=np.uint64, endpoint=False)


class Fixed(System):
    """A source that takes itself for real, and repeats."""

    def __init__(self, seed: int) -> None:
        self._bits = bits_of(seed)

    def bits(self, n: int) -> Words:
        return self._bits(n)


def forced(*calls: Sequence[int]) -> gaussian.Bits:
    """Bits that are given, one list for each call."""
    words = iter(calls)

    def bits(n: int) -> Words:
        given = np.array(next(words), dtype=np.uint64)
        assert len(given) == n
        return given

    return bits


def word(entry: int, within: int) -> int:
    """The 64 bits that take an entry of the table, and so many grid steps from there."""
    return (entry << 49) + within


def curve(z: Any) -> Any:
    """K exp(-z^2 / 2)."""
    return mpmath.mpf(STAIRS.scale) / STAIRS.scale_unit * mpmath.exp(-z * z / 2)


def threshold(block: int, z: Any) -> Any:
    """The V below which a proposal at z is accepted."""
    height = mpmath.mpf(UNNAMED * STAIRS.weights[block]) / 2**14
    return (curve(z) - STAIRS.counts[block]) / height


def depth(block: int, position: int, known: int = 64) -> Any:
    """The z of so many bits within a block."""
    return (block + mpmath.mpf(position) / 2**known) / 64


# --- what is drawn, by construction ---


def test_the_table_lies_below_the_curve_and_the_staircase_above_it() -> None:
    """In each block L_b <= K exp(-z^2 / 2) <= L_b + h_b."""
    with mpmath.workdps(60):
        for block in range(gaussian._BLOCKS):
            assert threshold(block, mpmath.mpf(block + 1) / 64) >= 0
            assert threshold(block, mpmath.mpf(block) / 64) <= 1


def test_the_tables_name_each_block_as_often_as_they_should() -> None:
    """Block b stands L_b times in the first table for each sign and G_b times in the second, and
    nothing else does."""
    assert len(STAIRS.table) == 2**15
    expected = Counter({gaussian._UNNAMED: UNNAMED})
    for block, count in enumerate(STAIRS.counts):
        expected[block * BLOCK] += count
        expected[-(block + 1) * BLOCK] += count
    assert Counter(STAIRS.table.tolist()) == expected
    assert len(STAIRS.second) == 2**13
    weights = Counter(dict(enumerate(STAIRS.weights)))
    weights[gaussian._BLOCKS] = 2**13 - sum(STAIRS.weights)
    assert Counter(STAIRS.second.tolist()) == weights


def test_the_constants_in_double_precision_are_those_of_the_proof() -> None:
    """L_b and h_b exactly, K exp(-l^2 / 2) as near as double precision allows."""
    for block in range(gaussian._BLOCKS):
        assert STAIRS.named[block] == STAIRS.counts[block]
        assert Fraction(STAIRS.heights[block]) == Fraction(UNNAMED * STAIRS.weights[block], 2**14)
        with mpmath.workdps(60):
            off = mpmath.mpf(float(STAIRS.curve[block])) / curve(mpmath.mpf(block) / 64) - 1
        assert abs(off) <= mpmath.mpf(2) ** -53


def probability(k: int) -> Any:
    """P(floor(N) = k), up to the one constant of all k: the entries of the table that lead to it,
    and the share of the others' proposals that is accepted."""
    outward = k if k >= 0 else -k - 1
    block = outward // BLOCK
    entries = int((STAIRS.table == (k // BLOCK) * BLOCK).sum())
    cell = [mpmath.mpf(outward + end) / 2**30 for end in (0, 1)]
    accepted = mpmath.quad(lambda z: threshold(block, z), cell) * 2**30
    share = mpmath.mpf(UNNAMED * STAIRS.weights[block]) / 2**14
    return (entries + share * accepted) / BLOCK


def test_probabilities_are_those_of_the_floor() -> None:
    """P(k) is that of a Gaussian between k and k + 1: about zero, at the edges of blocks, in blocks
    that no entry names, and in the last one."""
    places = [0, 1, 2, 12345]
    for block in (1, 2, 63, 64, 200, 300, 500, 767):
        places += [block * BLOCK - 1, block * BLOCK, block * BLOCK + 7]
    with mpmath.workdps(120):
        constant = None
        for k in [*places, *(-k - 1 for k in places)]:
            edges = [mpmath.mpf(k + end) / 2**30 for end in (0, 1)]
            expected = mpmath.quad(lambda z: mpmath.exp(-z * z / 2), edges)
            ratio = probability(k) / expected
            constant = constant or ratio
            assert abs(ratio / constant - 1) < mpmath.mpf(10) ** -35
        assert probability(-1) == probability(0) > probability(1) == probability(-2)


def test_minus_one_zero_and_one_are_equally_likely() -> None:
    """The table's bits lead to -2, -1, 0 and 1 once each. Rounded towards zero, 0 would come up
    twice."""
    positive = int(np.flatnonzero(STAIRS.table == 0)[0])
    negative = int(np.flatnonzero(STAIRS.table == -BLOCK)[0])
    words = [word(positive, 0), word(positive, 1), word(negative, BLOCK - 1)]
    words.append(word(negative, BLOCK - 2))
    drawn, rejected = gaussian._propose(4, forced(words, []))
    assert drawn.tolist() == [0, 1, -1, -2]
    assert len(rejected) == 0


def test_a_named_block_is_drawn_from_edge_to_edge() -> None:
    """Every entry of the table with the first and the last step of its block: no gap between
    blocks, no overlap."""
    named = np.flatnonzero(STAIRS.table != gaussian._UNNAMED)
    first = [word(int(entry), 0) for entry in named]
    last = [word(int(entry), BLOCK - 1) for entry in named]
    inner, _ = gaussian._propose(len(first), forced(*_in_pieces(first), []))
    outer, _ = gaussian._propose(len(last), forced(*_in_pieces(last), []))
    assert set(outer.tolist()) - {max(outer.tolist())} == {k - 1 for k in inner} - {min(inner) - 1}
    assert min(inner) == -max(outer) - 1


def _in_pieces(words: list[int]) -> list[list[int]]:
    size = gaussian._PIECE
    return [words[i : i + size] for i in range(0, len(words), size)]


def proposal(block: int, position: int, test: int, *, negative: bool) -> gaussian.Bits:
    """Bits for a proposal above the table's part of the staircase."""
    first = int(np.flatnonzero(STAIRS.table == gaussian._UNNAMED)[0])
    second = int(np.flatnonzero(STAIRS.second == block)[0])
    return forced([word(first, 5)], [(second << 51) + int(negative), position, test])


def test_an_entry_that_names_no_block_in_either_table_is_rejected() -> None:
    """Whatever the other bits are, and without a comparison in doubt."""
    for position, test in [(0, 0), (2**64 - 1, 0), (0, 2**64 - 1)]:
        bits = proposal(gaussian._BLOCKS, position, test, negative=False)
        assert gaussian._propose(1, bits)[1].tolist() == [0]


def test_the_released_sum_is_a_function_of_sum_plus_noise() -> None:
    """Q plus what is drawn is floor(Q + N), for any whole Q and the N that the bits stand for, in
    both parts of the staircase."""
    generator = np.random.default_rng(3)
    for _ in range(200):
        block = int(generator.integers(0, 250))
        position = int(generator.integers(0, 2**64, dtype=np.uint64))
        negative = bool(generator.integers(0, 2))
        drawn, _ = gaussian._propose(1, proposal(block, position, 0, negative=negative))
        outward = (block + Fraction(2 * position + 1, 2**65)) * BLOCK  # half of a last bit further
        noise = -outward if negative else outward
        entry = int(generator.integers(0, 2**15 - UNNAMED))
        below = int(generator.integers(0, BLOCK))
        named, _ = gaussian._propose(1, forced([word(entry, below)], []))
        from_table = int(STAIRS.table[entry]) + below + Fraction(int(generator.integers(1, 99)), 99)
        for total in (-3, 0, 10**12):
            assert total + int(drawn[0]) == math.floor(total + noise)
            assert total + int(named[0]) == math.floor(total + from_table)


# --- the comparison with the curve ---


def test_the_exponential_series_keeps_its_bound() -> None:
    """exp(-t) is within 2 u (u = 2^-53) of the truth, at the ends of its range and within."""
    generator = np.random.default_rng(0)
    t = np.concatenate([[0.0, 2.0**-80, 2.0**-53, 0.1875], generator.random(3000) * 0.1875])
    with mpmath.workdps(40):
        for given, result in zip(t.tolist(), gaussian._exp_minus(t).tolist(), strict=True):
            exact = mpmath.exp(-mpmath.mpf(given))
            assert abs(mpmath.mpf(result) / exact - 1) < 2 * mpmath.mpf(2) ** -53


HARD = [0, 1, 2, 17, 64, 230, 350, 600, 700, 766, 767]
"""Blocks: the inner ones, and those without an entry, whose curve is far below the staircase."""


def close_calls(offsets: Sequence[int]) -> list[tuple[int, int, int]]:
    """Proposals (block, position, test) whose V is so many last bits from the threshold."""
    generator = np.random.default_rng(1)
    calls = []
    for block in HARD * 6:
        position = int(generator.integers(0, 2**64, dtype=np.uint64))
        if block == 0:
            position >>= int(generator.integers(0, 64))  # towards z = 0
        with mpmath.workdps(200):
            exact = int(mpmath.floor(threshold(block, depth(block, position)) * 2**64))
        for offset in offsets:
            if 0 <= exact + offset < 2**64:
                calls.append((block, position, exact + offset))
    return calls


def test_close_calls_are_decided_exactly() -> None:
    """Where V is a few of 64 bits from the threshold, the decision is that of arithmetic with 200
    digits."""
    for block, position, test in close_calls([-(2**20), -5, 5, 2**20]):
        with mpmath.workdps(200):
            points = [
                threshold(block, depth(block, position + end)) - mpmath.mpf(test + end) / 2**64
                for end in (0, 1)
            ]
        assert min(points) * max(points) > 0
        accepted = gaussian._decide(block, position, test, forced())
        assert accepted is bool(points[0] > 0)


@pytest.mark.parametrize("ulps", [-100, -1, 0, 1, 100])
def test_an_inexact_exponential_changes_no_decision(
    ulps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even an exponential that is 100 units off leaves every close call to exact arithmetic."""
    plain = gaussian._exp_minus
    monkeypatch.setattr(gaussian, "_exp_minus", lambda t: plain(t) * (1 + ulps * 2.0**-53))
    calls = close_calls([-(2**20), -40, -5, 5, 40, 2**20])
    block, position, test = (list(values) for values in zip(*calls, strict=True))
    positions = np.array(position, dtype=np.uint64)
    tests = np.array(test, dtype=np.uint64)
    decided = gaussian._accept(np.array(block), positions, tests, forced())
    for i in range(len(calls)):
        with mpmath.workdps(200):
            below = threshold(block[i], depth(block[i], position[i])) > mpmath.mpf(test[i]) / 2**64
        assert bool(decided[i]) is bool(below)


@pytest.mark.parametrize("further", [1, 2, 3])
def test_an_undecided_comparison_draws_further_bits(further: int) -> None:
    """Where the threshold lies within the last bit, 64 further bits of z and V decide, and as many
    again where they leave it open."""
    for block, position, test in close_calls([0]):
        known = 64 * (1 + further)
        with mpmath.workdps(400):
            # all further bits of z are zeros; V agrees with the threshold up to the last 64
            z = depth(block, position)
            exact = int(threshold(block, z) * mpmath.mpf(2) ** known)
        assert exact >> (known - 64) == test
        calls = [[0, exact >> shift & 2**64 - 1] for shift in range(known - 128, -1, -64)]
        for offset in (-(2**30), 2**30):
            last = calls[-1][1] + offset
            if 0 <= last < 2**64:
                bits = forced(*calls[:-1], [0, last])
                assert gaussian._decide(block, position, test, bits) is (offset < 0)


def test_a_threshold_within_the_last_bit_is_never_decided_without_further_bits() -> None:
    """In every block, also where one bit of V is worth more than all of the curve."""
    for block, position, test in close_calls([0]):
        words = np.array([position], dtype=np.uint64), np.array([test], dtype=np.uint64)
        with pytest.raises(StopIteration):
            gaussian._accept(np.array([block]), *words, forced())


def test_another_decimal_context_has_no_part_in_it() -> None:
    """Code that computes with few digits elsewhere changes no decision."""
    block, position, test = close_calls([-5])[3]
    with decimal.localcontext() as context:
        context.prec = 3
        assert gaussian._decide(block, position, test, forced()) is True


# --- what is drawn, by statistics ---


@pytest.mark.parametrize(("scale", "accepted"), [(1.0, True), (1.01, False), (1 / 1.01, False)])
def test_draws_are_normal(scale: float, accepted: bool) -> None:
    """A KS test on 2,000,000 draws accepts the stated deviation and rejects one that is 1 % off."""
    draws = gaussian.steps(2_000_000, bits_of(7)) / 2.0**30
    p = float(stats.kstest(draws * scale, "norm").pvalue)
    assert p > 0.001 if accepted else p < 1e-6


def test_draws_are_those_of_the_oracle() -> None:
    """Two samples of 500,000, this sampler's and the oracle's, differ by chance alone."""
    ours = gaussian.steps(500_000, bits_of(1))
    theirs = rejection.steps(500_000, bits_of(2))
    assert stats.ks_2samp(ours, theirs).pvalue > 0.001
    assert stats.ks_2samp(ours * 1.02, theirs).pvalue < 0.001


def chi_square(counts: NDArray[Any], shares: NDArray[np.float64]) -> float:
    """The p-value of counts, given the expected share of each."""
    expected = shares / shares.sum() * counts.sum()
    assert expected.min() > 20
    return float(stats.chisquare(counts, expected).pvalue)


def test_every_quarter_of_every_block_comes_up_as_often_as_it_should() -> None:
    """A chi-square test over 1,600 cells of 1/256 standard deviation, and over the lowest bits."""
    draws = gaussian.steps(4_000_000, bits_of(3))
    cells = draws >> 22
    edges = np.arange(-800, 801) / 256
    inside = (cells >= -800) & (cells < 800)
    counts = np.bincount(cells[inside] + 800, minlength=1600)
    assert chi_square(counts, np.diff(stats.norm.cdf(edges))) > 0.001
    for shift in (0, 8, 16):
        lowest = np.bincount((draws >> shift) & 255, minlength=256)
        assert chi_square(lowest, np.ones(256)) > 0.001


def unnamed_first(bits: gaussian.Bits) -> gaussian.Bits:
    """The same bits, with every word that chooses an entry choosing one that names no block."""
    entry = int(np.flatnonzero(STAIRS.table == gaussian._UNNAMED)[0])
    calls = [0]

    def changed(n: int) -> Words:
        calls[0] += 1
        words = bits(n)
        if calls[0] > 1:
            return words
        return (words & np.uint64(2**49 - 1)) | np.uint64(entry << 49)

    return changed


def test_the_part_above_the_table_has_its_own_shape() -> None:
    """Proposals above the table's part, alone: in each half of each block, of either sign, as many
    are accepted as lie between the table's part and the curve."""
    n = gaussian._PIECE
    counts = np.zeros(1024, dtype=np.int64)
    for seed in range(40):
        drawn, rejected = gaussian._propose(n, unnamed_first(bits_of(seed)))
        halves = np.delete(drawn, rejected) >> 23
        inside = (halves >= -512) & (halves < 512)
        counts += np.bincount(halves[inside] + 512, minlength=1024)
    edges = np.arange(513) / 128
    areas = np.diff(stats.norm.cdf(edges)) * math.sqrt(2 * math.pi) * STAIRS.scale
    areas = areas / STAIRS.scale_unit - np.repeat(STAIRS.counts[:256], 2) / 128
    shares = np.concatenate([areas[::-1], areas])
    assert chi_square(counts, shares) > 0.001


def test_the_tails_are_there() -> None:
    """Draws beyond 4 standard deviations are as frequent as they should be, on both sides."""
    draws = gaussian.steps(2_000_000, bits_of(9)) / 2.0**30
    expected = 2_000_000 * float(stats.norm.sf(4))
    for count in (int((draws > 4).sum()), int((draws < -4).sum())):
        assert abs(count - expected) < 5 * math.sqrt(expected)


def test_neighbouring_draws_are_independent() -> None:
    """Neither the draws nor their squares go with those next to them, nor do signs and sizes."""
    draws = gaussian.steps(1_000_000, bits_of(11)) / 2.0**30
    for one, two in [(draws[:-1], draws[1:]), (draws[:-1] ** 2, draws[1:] ** 2)]:
        assert abs(float(np.corrcoef(one, two)[0, 1])) < 5e-3
    assert abs(float(np.corrcoef(np.sign(draws), draws**2)[0, 1])) < 5e-3


def test_rejected_proposals_are_all_replaced() -> None:
    """Where a whole piece is rejected, each place gets a draw of its own; all are normal."""
    calls = [0]
    bits = bits_of(4)
    entry = int(np.flatnonzero(STAIRS.table == gaussian._UNNAMED)[0])

    def rejecting(n: int) -> Words:
        calls[0] += 1
        if calls[0] == 1:
            return np.full(n, word(entry, 0), dtype=np.uint64)
        if calls[0] == 2:
            return np.full(n, 2**64 - 1, dtype=np.uint64)
        return bits(n)

    drawn = gaussian.steps(20_000, rejecting)
    assert len(np.unique(drawn)) == 20_000
    assert stats.kstest(drawn / 2.0**30, "norm").pvalue > 0.001


@pytest.mark.parametrize("n", [0, 1, 2, 1000, gaussian._PIECE, gaussian._PIECE + 1])
def test_as_many_draws_as_are_asked_for(n: int) -> None:
    """Any number of draws, none included."""
    drawn = gaussian.steps(n, bits_of(n))
    assert drawn.shape == (n,)
    assert np.abs(drawn).max(initial=0) < 12 * 2**30


# --- its bits ---


@pytest.mark.parametrize("call", [1, 2])
def test_a_source_that_runs_dry_is_an_error(call: int) -> None:
    """Fewer bits than were asked for are never filled up or used twice."""
    calls = [0]
    bits = bits_of(0)

    def short(n: int) -> Words:
        calls[0] += 1
        return bits(n - 1) if calls[0] == call else bits(n)

    with pytest.raises(PrivacyError, match=r"Expected .* random numbers"):
        gaussian.steps(10_000, short)


def test_threads_share_no_bits() -> None:
    """Draws of four threads at a time, from the first use on, are all different."""
    gaussian._staircase.cache_clear()
    drawn: list[NDArray[np.int64]] = []
    source = System()
    threads = [
        threading.Thread(target=lambda: drawn.append(gaussian.steps(50_000, source.bits)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # of 200,000 draws about 6 pairs are equal by chance
    assert len(np.unique(np.concatenate(drawn))) > 199_900


def test_real_bits_come_from_a_cryptographic_source() -> None:
    """The system's bits differ in every call and look uniform."""
    source = System()
    first = source.bits(10_000)
    second = source.bits(10_000)
    assert not np.array_equal(first, second)
    share = np.unpackbits(first.view(np.uint8)).mean()
    assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(640_000)
    assert len(ssl.RAND_bytes(8)) == 8


# --- the sum on the grid ---


def test_the_sum_on_the_grid_keeps_its_sensitivity() -> None:
    """Two sums that differ by one clipped gradient differ by at most C once both are rounded."""
    size = 1000
    clip = 1.0
    noise = 4.0
    short = gaussian.shortened(clip, noise_multiplier=noise, size=size)
    generator = np.random.default_rng(5)
    for seed in range(50):
        first = generator.standard_normal(size) * 100
        change = generator.standard_normal(size)
        change *= short / np.linalg.norm(change)
        released = []
        for total in (first, first + change):
            flat = torch.from_numpy(total.copy())
            add_noise(flat, noise_multiplier=noise, clip_norm=clip, source=Fixed(seed))
            released.append(flat)
        # the same noise on both: what is left is the difference of the sums on the grid
        assert float((released[1] - released[0]).norm()) <= clip
    assert 1 - 1e-5 < short < clip


def test_hopeless_noise_is_refused() -> None:
    """Noise so large that rounding would eat the clipping norm is an error, not a surprise."""
    with pytest.raises(PrivacyError, match="smaller proxy"):
        gaussian.shortened(1.0, noise_multiplier=1e6, size=10**6)


def released_by_floats(total: float, n: int) -> NDArray[np.float32]:
    """What a sum plus ordinary 32-bit Gaussian noise looks like."""
    noise = np.random.default_rng(7).standard_normal(n).astype(np.float32)
    return (np.float32(total) + noise).astype(np.float32)


def released_on_grid(total: float, n: int) -> NDArray[np.float32]:
    """What the same sum looks like with noise from this module."""
    flat = torch.full((n,), total, dtype=torch.float64)
    add_noise(flat, noise_multiplier=1.0, clip_norm=1.0, source=Fixed(int(total)))
    return flat.float().numpy()


def gives_itself_away(y: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mironov's attack: a small y with more digits than 1 + noise can have was 0 + noise."""
    scaled = y.astype(np.float64) * 2.0**24
    return (np.abs(y) < 0.25) & (scaled != np.rint(scaled))


def test_the_floating_point_attack_succeeds_without_and_fails_with() -> None:
    """From ordinary floats the attack names the sum 0 with certainty; from the grid it cannot."""
    assert gives_itself_away(released_by_floats(0.0, 20_000)).mean() > 0.15
    assert gives_itself_away(released_by_floats(1.0, 20_000)).mean() == 0
    shares = []
    for total in (0.0, 1.0):
        released = released_on_grid(total, 200_000)
        near = np.abs(released) < 0.25
        shares.append(gives_itself_away(released).mean() / near.mean())
    assert shares[0] == pytest.approx(shares[1], abs=0.02)
