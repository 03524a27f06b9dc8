"""Noise: its distribution, by tests that reject two thirds and three halves of the right amount."""

import pytest
import torch
from scipy import stats

from proxyfl.errors import ConfigError, PrivacyError
from proxyfl.privacy import gaussian
from proxyfl.privacy import noise as noise_module
from proxyfl.privacy.noise import add_noise, clip_norm_for
from proxyfl.seeds import Randomness, Seeded, System

SOURCES = [Seeded(3, "noise", 0), System()]


def noise(source: Randomness, n: int = 20_000, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    flat = torch.zeros(n, dtype=dtype)
    add_noise(flat, noise_multiplier=1.4, clip_norm=0.7, source=source)
    return flat


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standard_deviation(source: Randomness, dtype: torch.dtype) -> None:
    """A KS test accepts sigma C and rejects 2/3 and 3/2 of it."""
    drawn = noise(source, dtype=dtype).double().numpy()
    scale = 1.4 * 0.7
    assert stats.kstest(drawn, stats.norm(scale=scale).cdf).pvalue > 1e-6
    assert stats.kstest(drawn, stats.norm(scale=scale * 2 / 3).cdf).pvalue < 1e-12
    assert stats.kstest(drawn, stats.norm(scale=scale * 3 / 2).cdf).pvalue < 1e-12


def test_draws_are_fresh() -> None:
    """Consecutive draws, and draws of two clients, are uncorrelated; equal seeds repeat."""
    source = Seeded(3, "noise", 0)
    first, second, other = (noise(source), noise(source), noise(Seeded(3, "noise", 1)))
    for one, two in [(first, second), (first, other)]:
        assert stats.pearsonr(one.numpy(), two.numpy()).pvalue > 1e-6
    assert torch.equal(first, noise(Seeded(3, "noise", 0)))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("part", [7, 2**18])
def test_adds_in_place_to_what_is_there(
    source: Randomness, dtype: torch.dtype, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum keeps its value, shape and memory; only noise comes on top."""
    monkeypatch.setattr(noise_module, "_PART", part)
    flat = torch.full((40, 5), 1000.0, dtype=dtype).t()
    pointer = flat.data_ptr()
    add_noise(flat, noise_multiplier=1.0, clip_norm=1.0, source=source)
    assert flat.data_ptr() == pointer
    assert flat.shape == (5, 40)
    assert 999 < float(flat.mean()) < 1001
    assert 0.8 < float(flat.std()) < 1.2


@pytest.mark.parametrize(
    ("multiplier", "norm"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)]
)
def test_no_noise_is_refused(multiplier: float, norm: float) -> None:
    """A noise that is none is refused and leaves the sum as it was."""
    flat = torch.zeros(3)
    with pytest.raises(ConfigError, match=r"noise_multiplier|clip_norm"):
        add_noise(flat, noise_multiplier=multiplier, clip_norm=norm, source=System())
    assert not flat.any()


def test_integers_are_refused() -> None:
    """A sum that cannot hold noise is refused by its type."""
    with pytest.raises(PrivacyError, match="int64"):
        add_noise(
            torch.zeros(3, dtype=torch.int64), noise_multiplier=1.0, clip_norm=1.0, source=System()
        )


def test_real_noise_lies_on_the_grid() -> None:
    """Whatever the sum, what real noise gives is a whole number of grid steps, in float64."""
    step = gaussian.spacing(2.0, 0.5)
    for sums in (torch.zeros(1000, dtype=torch.float64), torch.rand(1000, dtype=torch.float64)):
        add_noise(sums, noise_multiplier=2.0, clip_norm=0.5, source=System())
        whole = sums / step
        assert torch.equal(whole, whole.round())
        assert abs(float(sums.std()) - 1.0) < 0.2


def test_sums_of_any_length_get_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts or at once: every element gets a draw of its own, and a sum of none stays empty."""
    monkeypatch.setattr(noise_module, "_PART", 100)
    for n in (0, 1, 99, 100, 101, 250):
        flat = noise(System(), n, torch.float64)
        assert flat.shape == (n,)
        assert len(flat.unique()) == n


def test_real_noise_leaves_room_for_rounding() -> None:
    """Gradients are clipped a little below C where the sum is rounded, to C where it is not."""
    settings = {"noise_multiplier": 2.0, "size": 10_000}
    assert clip_norm_for(Seeded(0, "noise"), 1.0, **settings) == 1.0
    assert 0.999999 < clip_norm_for(System(), 1.0, **settings) < 1.0
