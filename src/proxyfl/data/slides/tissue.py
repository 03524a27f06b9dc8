"""Where a slide has tissue: where its colours are saturated.

Glass is grey or white, stained tissue is not. The threshold on saturation is Otsu's (1979), the one
that separates the slide's saturations best, or a lower one if what is below it is of two kinds
again: glass, and tissue paler than its nuclei. It is never below a floor, so that an empty slide
has no tissue. The map has at most four million pixels, however large the slide, and is read block
by block.
"""

import math
from dataclasses import dataclass

import numpy as np

from proxyfl.data.slides.arrays import Mask, Pixels, Plane, Whole, blank
from proxyfl.data.slides.slide import Damaged, Slide
from proxyfl.data.stores.faults import Faults

MOST_PIXELS = 4_000_000
PER_PATCH = 16
FEWEST_PER_PATCH = 2
BLOCK = 512
"""Pixels a side that are read at once."""
FLOOR = 18
"""The least saturation of 255 that can be tissue."""
TWO_KINDS = 0.8
"""The share of variance that a threshold explains where there are two kinds of pixels. Of one
normal distribution it explains 0.64, of a uniform one 0.75."""


@dataclass(frozen=True)
class TissueMap:
    """A map of the pixels of a reduced slide that are tissue; each spans ``downsample`` pixels."""

    mask: Mask
    downsample: float
    threshold: int


def map_downsample(size: tuple[int, int], patch: float) -> float:
    """The scale of a slide's map: sixteen pixels across a patch of ``patch`` pixels, fewer where
    the map would grow too large."""
    width, height = size
    smallest = math.sqrt(width * height / MOST_PIXELS)
    wanted = max(patch / PER_PATCH, smallest, 1.0)
    coarsest = max(1.0, patch / FEWEST_PER_PATCH)
    return min(wanted, coarsest)


def tissue_map(slide: Slide, downsample: float, faults: Faults) -> TissueMap:
    """Find the tissue of ``slide`` at ``downsample``. A damaged block, if such are skipped, has
    none."""
    full_width, full_height = slide.size
    width = math.ceil(full_width / downsample)
    height = math.ceil(full_height / downsample)
    saturation: Plane = blank(np.uint8, height, width)
    counts: Whole = blank(np.int64, 256)
    factor = slide.reduction(downsample)
    side = max(1, int(BLOCK / factor))
    for top in range(0, height, side):
        for left in range(0, width, side):
            part = saturation[top : top + side, left : left + side]
            high, wide = part.shape
            x = round(left * downsample)
            y = round(top * downsample)
            try:
                block = slide.region(x, y, wide, high, downsample)
            except Damaged as problem:
                faults.report("damaged", str(problem))
                continue
            part[:] = _saturation(block)
            counts += np.bincount(part.ravel(), minlength=256)
    threshold = max(FLOOR, _lowest_split(counts))
    # in the same memory: the map is the largest thing that a plan needs
    mask = saturation.view(np.bool_)
    np.greater(saturation, threshold, out=mask)
    return TissueMap(mask, downsample, threshold)


def _saturation(pixels: Pixels) -> Plane:
    """The saturation of HSV, 0 to 255; black counts as grey."""
    highest = pixels.max(axis=0)
    lowest = pixels.min(axis=0)
    high = highest.astype(np.int32)
    spread = 255 * (high - lowest)
    quotient = spread // np.maximum(high, 1)
    saturation: Plane = quotient.astype(np.uint8)
    return saturation


def _lowest_split(counts: Whole) -> int:
    """Otsu's threshold, taken again of what lies below it as long as that is of two kinds.

    In a pale slide with many nuclei the largest step is from tissue to nuclei; the one from glass
    to tissue is found below it."""
    threshold, _ = _otsu(counts)
    while True:
        lower, explained = _otsu(counts[: threshold + 1])
        if lower < FLOOR or explained < TWO_KINDS:
            return threshold
        threshold = lower


def _otsu(counts: Whole) -> tuple[int, float]:
    """The threshold with the largest variance between what is below and above it, and that variance
    as a share of all."""
    levels = np.arange(len(counts))
    below = np.cumsum(counts)
    number = below[-1]
    above = number - below
    sums = np.cumsum(counts * levels)
    total = sums[-1]
    rest = total - sums
    mean_below = sums / np.maximum(below, 1)
    mean_above = rest / np.maximum(above, 1)
    apart = mean_below - mean_above
    pairs = below * above.astype(np.float64)
    between = pairs * apart**2
    threshold = int(between.argmax())
    mean = total / max(1, number)
    squares = counts * (levels - mean) ** 2
    whole = number * float(squares.sum())
    explained = float(between[threshold]) / max(whole, 1.0)
    return threshold, explained
