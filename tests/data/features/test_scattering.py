"""Scattering has the properties that its theory promises."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from proxyfl.data.features.scattering import bank, scatter, scattering
from proxyfl.errors import ModelError


def texture(seed: int = 0, side: int = 96) -> Tensor:
    """A smooth random image (1, 1, side, side)."""
    noise = torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(seed))
    return F.avg_pool2d(noise, 5, stride=1, padding=2)


def change(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> float:
    """How far apart two scatterings are, relative to the first."""
    apart = math.sqrt(sum(float((x - y).square().sum()) for x, y in zip(a, b, strict=True)))
    return apart / math.sqrt(sum(float(x.square().sum()) for x in a))


def test_wavelets_ignore_a_constant() -> None:
    """Every wavelet sums to nothing, so a flat image has order 0 alone, and that is its value."""
    for wavelet in bank(32, 32, 3, 8).wavelets:
        assert abs(float(wavelet.spectra[0][0, 0])) < 1e-6
    zeroth, first, second = scatter(torch.full((1, 1, 32, 32), 0.7), 3)
    torch.testing.assert_close(zeroth, torch.full_like(zeroth, 0.7))
    assert float(first.abs().max()) < 1e-5
    assert float(second.abs().max()) < 1e-5


@pytest.mark.parametrize("scales", [1, 2, 4])
def test_filters_add_no_energy(scales: int) -> None:
    """At each frequency the squares of all filters sum to at most 1, and at some to 1."""
    filters = bank(64, 64, scales, 8)
    total = filters.low.spectra[0] ** 2
    for wavelet in filters.wavelets:
        spectrum = wavelet.spectra[0]
        opposite = spectrum.flip(0, 1).roll((1, 1), (0, 1))
        total += (spectrum**2 + opposite**2) / 2
    assert 0.999 < float(total.max()) <= 1 + 1e-5


def test_scattering_contracts() -> None:
    """Two images' scatterings, sampled at every pixel's worth of weight, are no further apart than
    the images."""
    for seed in range(5):
        a, b = texture(seed), texture(seed + 100)
        weight = 4.0**3  # one coefficient stands for that many pixels
        apart = sum(
            float((x - y).square().sum()) * weight
            for x, y in zip(scatter(a, 3), scatter(b, 3), strict=True)
        )
        assert apart <= 1.1 * float((a - b).square().sum())


def test_a_shift_changes_little_and_less_at_coarse_scales() -> None:
    """One pixel's shift moves the image far more than its scattering, the less the coarser."""
    big = texture(1, 160)
    here, there = big[..., 16:144, 16:144], big[..., 17:145, 16:144]
    image = float((here - there).norm() / (here - here.mean()).norm())
    changes = [change(scatter(here, scales), scatter(there, scales)) for scales in (1, 2, 3, 4)]
    assert changes == sorted(changes, reverse=True)
    assert changes[-1] < 0.03
    assert changes[-1] < image / 5


def test_a_small_deformation_changes_little() -> None:
    """A stretch by s changes the scattering in proportion to s, far less than the spectrum of a
    fine wave changes."""
    side = 128
    at = torch.arange(side, dtype=torch.float32)
    changes = []
    for stretch in (0.0, 0.02, 0.04):
        wave = torch.sin(2.2 * (1 + stretch) * at).expand(1, 1, side, side)
        changes.append(scatter(wave, 4))
    small = change(changes[0], changes[1])
    large = change(changes[0], changes[2])
    assert small < large < 2.5 * small
    assert large < 0.2


def test_angles_answer_to_their_own() -> None:
    """A wave along the columns excites the wavelet of that angle most, and the one across it
    least."""
    at = torch.arange(64, dtype=torch.float32)
    wave = torch.sin(3 * math.pi / 4 * at).expand(1, 1, 64, 64)
    _, first, _ = scatter(wave, 3)
    energy = first[0, 0].square().sum(dim=(1, 2))[:8]
    assert int(energy.argmax()) == 0
    assert int(energy.argmin()) == 4


def test_against_a_plain_convolution() -> None:
    """First-order coefficients equal |x * psi| * phi, computed pixel by pixel without folding."""
    image = texture(2, 32).double()[0, 0]
    padded = F.pad(image[None, None], (8, 8, 8, 8), mode="reflect")[0, 0]
    filters = bank(48, 48, 3, 8)
    for number in (0, 3, 11):
        wavelet = filters.wavelets[number]
        response = torch.fft.ifft2(torch.fft.fft2(padded) * wavelet.spectra[0])
        smooth = torch.fft.ifft2(torch.fft.fft2(response.abs()) * filters.low.spectra[0]).real
        expected = smooth[8:40:8, 8:40:8]
        found = scatter(image[None, None].float(), 3)[1][0, 0, number]
        torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=2e-4)


@pytest.mark.parametrize(
    ("shape", "features"),
    [
        ((1, 28, 28), 3969),
        ((3, 48, 64), 3888),
        ((3, 37, 61), 3888),
        ((1, 8, 8), 144),
        ((2, 4, 5), 2 * 9 * 6),
    ],
)
def test_any_size(shape: tuple[int, ...], features: int) -> None:
    """Images of any size have features, at most 4096, that depend on the image alone."""
    model = scattering(shape)
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    found = model(images)
    assert found.shape == (3, features)
    assert found.isfinite().all()
    torch.testing.assert_close(model(images[1:2])[0], found[1], rtol=1e-3, atol=1e-3)
    assert model(torch.zeros(1, *shape)).abs().max() == 0


def test_what_is_no_image() -> None:
    """Tables, and averages larger than the image, are refused."""
    with pytest.raises(ModelError, match="expects images of shape"):
        scattering((30,))
    with pytest.raises(ModelError, match="averages over 32 pixels, got images of 20x16"):
        scattering((1, 16, 20), scales=5)
