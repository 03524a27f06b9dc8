"""Poisson sampling: rates and independence, by statistics that can fail."""

import pytest
import torch
from scipy import stats

from proxyfl.errors import ConfigError
from proxyfl.privacy.sampling import poisson
from proxyfl.seeds import Randomness, Seeded, System

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
