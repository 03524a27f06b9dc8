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
import numpy.typing as npt

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

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TissueMap:
    """Which pixels of a reduced slide are tissue; each spans ``downsample`` pixels."""

    mask: Mask
    downsample: float
    threshold: int


def map_downsample(size: tuple[int, int], patch: float) -> float:
    """The scale of a slide's map: sixteen pixels across a patch of ``patch`` pixels, fewer where
    the map would grow too large."""
    width, height = size
    smallest = math.sqrt(width * height / MOST_PIXELS)
    return min(
        max(patch / PER_PATCH, smallest, 1.0), max(1.0, patch / FEWEST_PER_PATCH)
    )


def tissue_map(slide: Slide, downsample: float, faults: Faults) -> TissueMap:
    """Find the tissue of ``slide`` at ``downsample``. A damaged block, if such are skipped, has
    none."""
    width, height = (math.ceil(side / downsample) for side in slide.size)
    saturation = np.zeros((height, width), dtype=np.uint8)
    counts = np.zeros(256, dtype=np.int64)
    side = max(1, int(BLOCK / slide.reduction(downsample)))
    for top in range(0, height, side):
        for left in range(0, width, side):
            high, wide = min(side, height - top), min(side, width - left)
            x, y = round(left * downsample), round(top * downsample)
            try:
                block = slide.region(x, y, wide, high, downsample)
            except Damaged as problem:
                faults.found("damaged", str(problem))
                continue
            found = _saturation(block)
            saturation[top : top + high, left : left + wide] = found
            counts += np.bincount(found.ravel(), minlength=256)
    threshold = max(FLOOR, _lowest_split(counts))
    return TissueMap(saturation > threshold, downsample, threshold)


def _saturation(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The saturation of HSV, 0 to 255; black counts as grey."""
    high = pixels.max(axis=0).astype(np.int32)
    low = pixels.min(axis=0)
    found: npt.NDArray[np.int32] = 255 * (high - low) // np.maximum(high, 1)
    return found.astype(np.uint8)


def _lowest_split(counts: npt.NDArray[np.int64]) -> int:
    """Otsu's threshold, taken again of what lies below it as long as that is of two kinds.

    In a pale slide with many nuclei the largest step is from tissue to nuclei; the one from glass
    to tissue is found below it."""
    threshold, _ = _otsu(counts)
    while True:
        lower, explained = _otsu(counts[: threshold + 1])
        if lower < FLOOR or explained < TWO_KINDS:
            return threshold
        threshold = lower


def _otsu(counts: npt.NDArray[np.int64]) -> tuple[int, float]:
    """The threshold with the largest variance between what is below and above it, and that variance
    as a share of all."""
    levels = np.arange(len(counts))
    below = np.cumsum(counts)
    above = below[-1] - below
    total = np.cumsum(counts * levels)
    mean_below = total / np.maximum(below, 1)
    mean_above = (total[-1] - total) / np.maximum(above, 1)
    between = below * above.astype(np.float64) * (mean_below - mean_above) ** 2
    found = int(between.argmax())
    mean = total[-1] / max(1, below[-1])
    whole = below[-1] * float((counts * (levels - mean) ** 2).sum())
    return found, float(between[found]) / max(whole, 1.0)
