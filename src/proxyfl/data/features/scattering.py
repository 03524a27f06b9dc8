r"""The scattering transform: fixed wavelets, a modulus, and an average. It learns from no data.

Bruna and Mallat (2013, arXiv:1203.1513v2):

    S0 x = x * phi,   S1 x = |x * psi_1| * phi,   S2 x = ||x * psi_1| * psi_2| * phi

psi_(j, theta) is a Morlet wavelet of scale 2^j and angle theta, phi a Gaussian of scale 2^J, and
second-order paths go from fine to coarse (j1 < j2). Features are sampled every 2^J pixels.

Everything is computed in the frequency domain. A signal of scale 2^j is kept at every 2^j-th
pixel: folding a spectrum onto itself does that without an inverse transform.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from proxyfl._validate import whole
from proxyfl.errors import ModelError

CENTRE = 3 * math.pi / 4
"""The frequency of the finest wavelet, in radians a pixel."""
SPREAD = 0.8
"""The width of the finest wavelet's envelope along its wave, in pixels."""
COARSEST = 4
SMALLEST_GRID = 7
MOST_FEATURES = 4096
FLOOR = 1e-5
"""A deviation that counts as none: that of an empty image."""


@dataclass(frozen=True)
class Filter:
    """The spectra of a filter of scale 2^j, for signals at every pixel, every second, every fourth
    and so on."""

    scale: int
    spectra: tuple[Tensor, ...]


@dataclass(frozen=True)
class Bank:
    """The low-pass filter and all wavelets for images of one size.

    Their squares sum to at most 1 at every frequency: an image's scattering has at most the image's
    energy, and two images' scatterings are no further apart than the images."""

    low: Filter
    wavelets: tuple[Filter, ...]


@lru_cache(maxsize=4)
def bank(height: int, width: int, scales: int, angles: int) -> Bank:
    """The filters for images of ``height`` x ``width`` pixels."""
    rows = _frequencies(height)[:, None]
    columns = _frequencies(width)[None]
    reach = SPREAD * 2 ** (scales - 1)
    low = _gaussian(rows, columns, reach, angle=0.0, slant=1.0, centre=0.0)
    low = low / low[0, 0]
    levels = []
    waves = []
    for j in range(scales):
        for k in range(angles):
            angle = math.pi * k / angles
            levels.append(j)
            waves.append(_morlet(rows, columns, j, angle, slant=4 / angles))
    gain = _gain(low, waves)
    wavelets = []
    for j, wave in zip(levels, waves, strict=True):
        wavelets.append(_filter(j, gain * wave))
    return Bank(_filter(scales, low), tuple(wavelets))


def _frequencies(length: int) -> Tensor:
    """The sampled frequencies of a signal of ``length`` pixels, in radians a pixel."""
    turns: Tensor = torch.fft.fftfreq(length, dtype=torch.float64)
    return 2 * math.pi * turns


def _filter(scale: int, spectrum: Tensor) -> Filter:
    spectra = []
    for j in range(scale + 1):
        folded = _fold(spectrum, 2**j, total=True)
        spectra.append(folded.float())
    return Filter(scale, tuple(spectra))


def _gain(low: Tensor, waves: Sequence[Tensor]) -> float:
    """The factor that brings the wavelets' energy to what the low-pass filter leaves.

    A real image has the same energy at opposite frequencies, so a wavelet there counts half."""
    energy = torch.zeros_like(low)
    for wave in waves:
        turned = wave.flip(0, 1)
        opposite = turned.roll((1, 1), (0, 1))
        energy += (wave**2 + opposite**2) / 2
    left = 1 - low**2
    known = left > 1e-9
    ratio = left[known] / energy[known]
    return math.sqrt(float(ratio.min()))


def _morlet(rows: Tensor, columns: Tensor, j: int, angle: float, slant: float) -> Tensor:
    """A Gaussian around the wavelet's frequency, less one around 0 so that it sums to nothing."""
    width = SPREAD * 2**j
    centre = CENTRE / 2**j
    wave = _gaussian(rows, columns, width, angle, slant, centre)
    still = _gaussian(rows, columns, width, angle, slant, 0.0)
    return wave - still * wave[0, 0] / still[0, 0]


def _gaussian(
    rows: Tensor, columns: Tensor, width: float, angle: float, slant: float, centre: float
) -> Tensor:
    """The spectrum of a Gaussian of ``width`` pixels along ``angle`` and width / slant across it,
    moved to the frequency ``centre``. Sampled frequencies are periodic, so neighbouring periods
    are added."""
    total = torch.zeros_like(rows + columns)
    cos = math.cos(angle)
    sin = math.sin(angle)
    periods = (-2 * math.pi, 0.0, 2 * math.pi)
    for down, right in itertools.product(periods, periods):
        x = columns + right
        y = rows + down
        along = width * (cos * x + sin * y - centre)
        across = width / slant * (cos * y - sin * x)
        distance = along**2 + across**2
        total += torch.exp(-distance / 2)
    return total


def scatter(images: Tensor, scales: int, angles: int = 8) -> tuple[Tensor, ...]:
    """The coefficients of orders 0, 1 and 2 of ``images`` (N, C, H, W), each as
    (N, C, paths, H', W') with H' = ceil(H / 2^scales)."""
    step = 2**scales
    padded, margin = _pad(images, step)
    height, width = padded.shape[-2:]
    filters = bank(height, width, scales, angles)
    spectrum = torch.fft.fft2(padded)
    order_0 = [_average(spectrum, filters, 0)]
    order_1 = []
    order_2 = []
    for first in filters.wavelets:
        envelope = _envelope(spectrum, first, 0)
        order_1.append(_average(envelope, filters, first.scale))
        for second in filters.wavelets:
            if second.scale > first.scale:
                inner = _envelope(envelope, second, first.scale)
                order_2.append(_average(inner, filters, second.scale))
    inside = margin // step
    rows = slice(inside, inside + math.ceil(images.shape[-2] / step))
    columns = slice(inside, inside + math.ceil(images.shape[-1] / step))
    coefficients = []
    for order in (order_0, order_1, order_2):
        if order:
            whole_grid = torch.stack(order, dim=2)
            coefficients.append(whole_grid[..., rows, columns])
    return tuple(coefficients)


def _pad(images: Tensor, step: int) -> tuple[Tensor, int]:
    """``images`` continued by their mirror image: the averages' reach on every side, and up to a
    multiple of ``step``."""
    height, width = images.shape[-2:]
    rows = _mirror(height, step)
    columns = _mirror(width, step)
    return images[..., rows[:, None], columns[None]], step


def _mirror(length: int, step: int) -> Tensor:
    """The places from -step to a multiple of ``step``, at least length + step, reflected into
    0 .. length - 1."""
    period = max(1, 2 * (length - 1))
    end = length + step + (-length) % step
    places = torch.arange(-step, end) % period
    return torch.minimum(places, period - places)


def _envelope(spectrum: Tensor, wavelet: Filter, scale: int) -> Tensor:
    """The spectrum of |x * psi|, at every 2^j-th pixel, of a signal at every 2^scale-th."""
    response = spectrum * wavelet.spectra[scale]
    thinned = _fold(response, 2 ** (wavelet.scale - scale))
    modulus = torch.fft.ifft2(thinned).abs()
    envelope: Tensor = torch.fft.fft2(modulus)
    return envelope


def _average(spectrum: Tensor, filters: Bank, scale: int) -> Tensor:
    """x * phi at every 2^J-th pixel, of a signal at every 2^scale-th."""
    response = spectrum * filters.low.spectra[scale]
    thinned = _fold(response, 2 ** (filters.low.scale - scale))
    average: Tensor = torch.fft.ifft2(thinned).real
    return average


def _fold(spectrum: Tensor, factor: int, *, total: bool = False) -> Tensor:
    """The spectrum of every ``factor``-th sample: the mean over its ``factor`` squared tiles.
    ``factor`` is a power of 2.

    The ``total`` instead of the mean makes a filter for the thinned signal."""
    weight = 1.0 if total else 1.0 / factor**2
    while factor > 1:
        height, width = spectrum.shape[-2:]
        rows = height // 2
        columns = width // 2
        spectrum = spectrum[..., :rows, :] + spectrum[..., rows:, :]
        spectrum = spectrum[..., :columns] + spectrum[..., columns:]
        factor //= 2
    return spectrum if weight == 1 else spectrum * weight


class Scattering(nn.Module):
    """Scattering features of an image, flat.

    Each order is standardised by its own mean and deviation *in the image itself*, so that the
    orders, whose sizes differ a hundredfold, weigh alike. No other image has a part in it."""

    def __init__(self, scales: int, angles: int, grid: int) -> None:
        super().__init__()
        self.scales = scales
        self.angles = angles
        self.grid = grid

    def forward(self, images: Tensor) -> Tensor:
        parts = []
        for order in scatter(images, self.scales, self.angles):
            values = order.flatten(1, 2)
            height, width = values.shape[-2:]
            places = (min(self.grid, height), min(self.grid, width))
            pooled = F.adaptive_avg_pool2d(values, places).flatten(1)
            deviation, mean = torch.std_mean(pooled, dim=1, keepdim=True, correction=0)
            parts.append((pooled - mean) / (deviation + FLOOR))
        return torch.cat(parts, dim=1)


def scattering(
    shape: tuple[int, ...], *, scales: int = 0, angles: int = 8, grid: int = 0
) -> nn.Module:
    """Scattering features for images of any size.

    ``scales``: averages reach over 2^scales pixels; 0 takes the most that leave 7x7 places, up to
    4. ``grid``: the most places a side that are kept, by averaging over equal parts; 0 takes the
    most that give no more than 4096 features."""
    if len(shape) != 3:
        raise ModelError(
            f"scattering expects images of shape (channels, height, width), got shape {shape}."
        )
    channels, *sides = shape
    whole("scales", scales, at_least=0, error=ModelError)
    whole("angles", angles, error=ModelError)
    whole("grid", grid, at_least=0, error=ModelError)
    if not scales:
        room = max(2, min(sides) // SMALLEST_GRID)
        scales = min(COARSEST, int(math.log2(room)))
    if 2**scales > min(sides):
        raise ModelError(
            f"scattering with scales={scales} averages over {2**scales} pixels, got images of "
            f"{sides[1]}x{sides[0]}. Take fewer scales."
        )
    if not grid:
        pairs = scales * (scales - 1) // 2
        paths = 1 + scales * angles + pairs * angles**2
        places = MOST_FEATURES // (channels * paths)
        grid = max(1, math.isqrt(places))
    return Scattering(scales, angles, grid)
