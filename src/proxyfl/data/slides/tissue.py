"""Where a slide has tissue: where its colours are saturated.

Glass is grey or white, stained tissue is not. The threshold on saturation is Otsu's (1979): the one
that separates the slide's saturations best. It is never below a floor, so that an empty slide has
no tissue. The map has at most four million pixels, however large the slide, and is read block by
block.
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
    threshold = max(FLOOR, _otsu(counts))
    return TissueMap(saturation > threshold, downsample, threshold)


def _saturation(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The saturation of HSV, 0 to 255; black counts as grey."""
    high = pixels.max(axis=0).astype(np.int32)
    low = pixels.min(axis=0)
    found: npt.NDArray[np.int32] = 255 * (high - low) // np.maximum(high, 1)
    return found.astype(np.uint8)


def _otsu(counts: npt.NDArray[np.int64]) -> int:
    """The threshold with the largest variance between what is below and above it."""
    levels = np.arange(len(counts))
    below = np.cumsum(counts)
    above = below[-1] - below
    total = np.cumsum(counts * levels)
    mean_below = total / np.maximum(below, 1)
    mean_above = (total[-1] - total) / np.maximum(above, 1)
    between = below * above.astype(np.float64) * (mean_below - mean_above) ** 2
    return int(between.argmax())
