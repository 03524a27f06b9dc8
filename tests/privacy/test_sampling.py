"""Poisson sampling: rates and independence, by statistics that can fail."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from proxyfl.errors import ConfigError
from proxyfl.privacy.guarantee import Relation
from proxyfl.privacy.sampling import Sampling, cautious_delta, poisson, public_number, sampling_for
from proxyfl.seeds import Randomness, Seeded, System
from proxyfl.settings import DP
from tests.privacy.alike import pld_epsilon

SOURCES = [Seeded(7, "batches", 0), System()]


def drawn(
    source: Randomness, *, rate: float = 0.2, examples: int = 1000, batches: int = 200
) -> torch.Tensor:
    """One row per batch, one column per example: whether it was drawn."""
    taken = torch.zeros(batches, examples, dtype=torch.bool)
    for row in taken:
        row[poisson(examples, rate, source)] = True
    return taken


@pytest.mark.parametrize("source", SOURCES)
def test_inclusion_rate(source: Randomness) -> None:
    """Examples are drawn at the rate asked for: a binomial test accepts it and rejects a rate one
    tenth off."""
    taken = drawn(source)
    count, total = int(taken.sum()), taken.numel()
    assert stats.binomtest(count, total, 0.2).pvalue > 1e-6
    assert stats.binomtest(count, total, 0.22).pvalue < 1e-12
    assert stats.binomtest(count, total, 0.18).pvalue < 1e-12


@pytest.mark.parametrize("source", SOURCES)
def test_batch_sizes_are_binomial(source: Randomness) -> None:
    """Batch sizes vary as independent draws do, neither fixed nor more spread out."""
    sizes = drawn(source, batches=2000, examples=200).sum(dim=1).double()
    expected = 200 * 0.2 * 0.8
    # (n - 1) s^2 / variance is chi-squared with n - 1 degrees of freedom, nearly, for near-normal
    # sizes.
    statistic = 1999 * float(sizes.var()) / expected
    assert 1e-6 < stats.chi2(1999).cdf(statistic) < 1 - 1e-6


@pytest.mark.parametrize("source", SOURCES)
def test_every_example_alike(source: Randomness) -> None:
    """No example is drawn more often than another."""
    counts = drawn(source, examples=100, batches=2000).sum(dim=0).numpy()
    assert stats.chisquare(counts).pvalue > 1e-6


def test_clients_draw_independently() -> None:
    """Two clients' masks overlap as often as chance has it, and equal streams overlap wholly."""
    one, other = drawn(Seeded(7, "batches", 0)), drawn(Seeded(7, "batches", 1))
    again = drawn(Seeded(7, "batches", 0))
    both = int((one & other).sum())
    assert stats.binomtest(both, one.numel(), 0.04).pvalue > 1e-6
    assert torch.equal(one, again)
    assert stats.binomtest(int((one & again).sum()), one.numel(), 0.04).pvalue < 1e-12


def test_steps_draw_independently() -> None:
    """Two steps of one client overlap as often as chance has it: there are no epochs."""
    taken = drawn(Seeded(7, "batches", 0))
    both = int((taken[:-1] & taken[1:]).sum())
    assert stats.binomtest(both, taken[1:].numel(), 0.04).pvalue > 1e-6


def test_shape_order_and_extremes() -> None:
    """Indices are sorted int64; a tiny rate gives an empty batch; a rate of 1 gives everyone."""
    batch = poisson(1000, 0.3, Seeded(0, "batches"))
    assert batch.dtype == torch.int64
    assert torch.equal(batch, batch.unique(sorted=True))
    assert poisson(10, 1e-12, Seeded(0, "batches")).shape == (0,)
    assert torch.equal(poisson(10, 1.0, Seeded(0, "batches")), torch.arange(10))


@pytest.mark.parametrize(
    ("examples", "rate", "found"), [(0, 0.5, "examples=0"), (5, 0.0, "=0"), (5, 1.5, "=1.5")]
)
def test_bad_input_is_named(examples: int, rate: float, found: str) -> None:
    """Values outside their range are refused by name."""
    with pytest.raises(ConfigError, match=found):
        poisson(examples, rate, System())


def test_a_given_rate_depends_on_nothing_else() -> None:
    """With a rate given, datasets of all sizes are sampled, divided and stepped alike, and the
    guarantee is add-or-remove."""
    made = {sampling_for(50, n, DP(sampling_rate=0.07, delta=1e-3)) for n in (1, 49, 500, 501)}
    assert made == {Sampling(0.07, 50, None)}
    (sampling,) = made
    assert sampling.relation is Relation.ADD_OR_REMOVE
    assert sampling.steps_per_pass == 14
    with pytest.raises(ConfigError, match=r"privacy\.delta must be set"):
        sampling.default_delta()


def test_a_declared_number_stands_in_for_the_own() -> None:
    """With a declared number of examples nothing follows from the true one: the guarantee is
    add-or-remove, as for the rate that the number gives."""
    made = {sampling_for(50, n, DP(examples=500)) for n in (40, 499, 501)}
    assert made == {Sampling(0.1, 50, 500, declared=True)}
    (sampling,) = made
    assert sampling.relation is Relation.ADD_OR_REMOVE
    assert sampling.steps_per_pass == 10
    assert sampling.default_delta() == 1 / 500


def test_the_own_number_is_public() -> None:
    """Without either the rate is B/n as in the paper, and the guarantee is zero-out."""
    sampling = sampling_for(60, 179)
    assert (sampling.rate, sampling.examples) == (60 / 179, 179)
    assert sampling.relation is Relation.ZERO_OUT
    assert sampling.steps_per_pass == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampling_rate": 0.1, "examples": 500}, "got both"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"examples": 40}, "the declared 40 examples"),
        ({}, "the client's 45 examples"),
    ],
)
def test_samplings_that_cannot_be(given: dict[str, float], message: str) -> None:
    """A rate above 1, two answers to one question, and batches above the number are refused."""
    with pytest.raises(ConfigError, match=message):
        sampling_for(50, 45, DP(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("examples", "number", "delta"),
    [
        (9, None, 1e-2),
        (10, 10, 1e-2),
        (99, 90, 1e-3),
        (303, 300, 1e-4),
        (1000, 1000, 1e-4),
        (1001, 1000, 1e-5),
        (1437, 1400, 1e-5),
        (60_001, 60_000, 1e-6),
    ],
)
def test_what_a_site_declares(examples: int, number: int | None, delta: float) -> None:
    """A proposed number is rounded down to two digits, one below 100; delta is 1/(10 n) or less,
    and a power of ten."""
    assert public_number(examples) == number
    assert cautious_delta(examples) == delta
    assert delta / 10 < 1 / (10 * examples) - 1e-12
    assert delta <= 1 / (10 * examples) + 1e-12


def sums(down: int, up: int, rate: float, steps: int) -> tuple[NDArray, NDArray]:
    """The values and probabilities of the sum over ``steps`` Poisson batches of records whose
    gradients are -1 (``down`` of them) and +1 (``up``)."""
    below = stats.binom.pmf(np.arange(down * steps + 1), down * steps, rate)
    above = stats.binom.pmf(np.arange(up * steps + 1), up * steps, rate)
    chances = np.convolve(below[::-1], above)
    values = np.arange(-down * steps, up * steps + 1)
    likely = chances > 1e-18
    return values[likely], chances[likely]


def lower_bound(n: int, batch: int, noise: float, steps: int, delta: float) -> float:
    """An epsilon that n records and n + 1 records, sampled at B/n and B/(n + 1), exceed: an
    observer adds up the noisy sums and compares with a threshold. C = 1."""
    spread = noise * math.sqrt(steps)
    one = sums(n, 0, batch / n, steps)
    other = sums(n, 1, batch / (n + 1), steps)
    centres = [values @ chances for values, chances in (one, other)]
    # of the noise and of the batches
    width = 5 * math.hypot(spread, math.sqrt(n * steps) / 2)
    thresholds = np.linspace(min(centres) - width, max(centres) + width, 800)
    found = 0.0
    for first, second in ((one, other), (other, one)):
        for side in (1, -1):
            tails = [
                stats.norm.cdf(side * (thresholds[:, None] - values) / spread) @ chances
                for values, chances in (first, second)
            ]
            seen = tails[0] > delta
            ratios = (tails[0][seen] - delta) / tails[1][seen]
            found = max(found, float(np.log(ratios.max())))
    return found


@pytest.mark.parametrize(
    ("n", "batch", "steps", "stated", "least"),
    [(100, 100, 50, 6.45, 16.8), (179, 60, 200, 4.21, 4.43)],
)
def test_a_rate_that_follows_from_n_breaks_add_or_remove(
    n: int, batch: int, steps: int, stated: float, least: float
) -> None:
    """Between n and n + 1 records at rates B/n and B/(n + 1) more than the stated epsilon holds, at
    delta 1/(10 n): why B/n is labelled zero-out. The second setting is the demo's."""
    delta = 1 / (10 * n)
    found = pld_epsilon(sampling_rate=batch / n, noise_multiplier=4.0, steps=steps, delta=delta)
    assert found == pytest.approx(stated, abs=0.01)
    assert lower_bound(n, batch, 4.0, steps, delta) > least


def test_a_fixed_rate_keeps_the_stated_epsilon() -> None:
    """At one and the same rate the same observer finds no more than is stated."""
    noise, rate, steps, delta = 4.0, 1 / 3, 200, 1 / 1790
    stated = pld_epsilon(sampling_rate=rate, noise_multiplier=noise, steps=steps, delta=delta)
    spread = noise * math.sqrt(steps)
    without, extra = sums(178, 0, rate, steps), sums(178, 1, rate, steps)
    thresholds = np.linspace(-13000, -10000, 400)
    for first, second in ((without, extra), (extra, without)):
        for side in (1, -1):
            tails = [
                stats.norm.cdf(side * (thresholds[:, None] - values) / spread) @ chances
                for values, chances in (first, second)
            ]
            assert (tails[0] <= math.exp(stated) * tails[1] + delta).all()
