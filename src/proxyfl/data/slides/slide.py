"""One slide, opened with OpenSlide: its levels, its scale, and regions of it.

OpenSlide's handle fails for good once one tile was damaged. A slide here opens itself again, so
that the regions beside a damaged one can still be read.
"""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from proxyfl.errors import DataError

SUFFIXES = (
    ".tif",
    ".tiff",
    ".svs",
    ".ndpi",
    ".mrxs",
    ".scn",
    ".vms",
    ".bif",
    ".dcm",
)
CACHE_BYTES = 2**25
SAME_SCALE = 0.02
"""A level whose scale differs by less than this part of it is taken as it is."""

DIRECT = "_read_region"
"""The library's own function in ``openslide.lowlevel``."""
OPAQUE = 0xFF000000
WHITE = 0xFFFFFFFF

Pixels = npt.NDArray[np.uint8]
Argb = npt.NDArray[np.uint32]
"""Alpha, red, green and blue, from the highest byte to the lowest."""


class Damaged(DataError):
    """A region of a slide cannot be read."""


class Slide:
    """A slide that is open. Not for use by two threads at once.

    ``microns`` are those a pixel spans at the finest level, or None if the file does not say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reopened = 0
        self._open()

    def _open(self) -> None:
        library = _openslide(self.path)
        try:
            self._handle = library.OpenSlide(str(self.path))
        except (library.OpenSlideError, OSError) as problem:
            raise DataError(
                f"{self.path}: not a readable slide ({problem})."
            ) from problem
        self._handle.set_cache(library.OpenSlideCache(CACHE_BYTES))
        # asked for with every region, and slow to ask the library for
        self._steps = tuple(map(float, self._handle.level_downsamples))
        self._room: Argb = np.empty((0, 0), dtype=np.uint32)
        self.microns = _microns(self._handle.properties.get("openslide.mpp-x"))

    def close(self) -> None:
        """Let go of the file and of the cache."""
        self._handle.close()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height at the finest level."""
        width, height = self._handle.dimensions
        return int(width), int(height)

    def downsample_of(self, level: int) -> float:
        """How many pixels of the finest level a pixel of ``level`` spans, a side."""
        if level >= len(self._steps):
            raise DataError(
                f"{self.path}: no level {level}; its levels are 0 to {len(self._steps) - 1}. Say "
                "the scale in microns instead."
            )
        return self._steps[level]

    def region(
        self, x: int, y: int, width: int, height: int, downsample: float
    ) -> Pixels:
        """``width`` x ``height`` pixels at ``downsample`` from (x, y) of the finest level, as
        (3, H, W). What lies outside of the slide, or was never scanned, is white.

        Read from a level of that scale if there is one, else from the next finer one and reduced.
        Damaged if it cannot be read."""
        level, step = self._level_for(downsample)
        factor = downsample / step
        if abs(factor - 1) < SAME_SCALE:
            return _planes(self._read(x, y, level, width, height))
        wide, high = round(width * factor), round(height * factor)
        finer = self._read(x, y, level, wide, high)
        return _reduced(_planes(finer), width, height)

    def reduction(self, downsample: float) -> float:
        """How many pixels of the level that is read make one pixel at ``downsample``, a side."""
        return downsample / self._level_for(downsample)[1]

    def _level_for(self, downsample: float) -> tuple[int, float]:
        found = 0
        for level, step in enumerate(self._steps):
            if step <= downsample * (1 + SAME_SCALE):
                found = level
        return found, self._steps[found]

    def _read(self, x: int, y: int, level: int, width: int, height: int) -> Argb:
        """The next call overwrites what this one gives: fresh memory for each region would take a
        tenth of the time."""
        library = _openslide(self.path)
        if self._room.shape != (height, width):
            self._room = np.empty((height, width), dtype=np.uint32)
        found = self._room
        try:
            _fill(found, self._handle, (x, y), level)
        except library.OpenSlideError as problem:
            self._handle.close()
            self._open()
            self.reopened += 1
            raise Damaged(
                f"{self.path}: the region at ({x}, {y}), level {level}, is damaged ({problem})"
            ) from problem
        if found.min() < OPAQUE:
            # never scanned
            found[found < OPAQUE] = WHITE
        return found


def _microns(said: Any) -> float | None:
    try:
        value = float(said)
    except (TypeError, ValueError):
        return None
    return value if 0 < value < 1000 else None


def _fill(found: Argb, handle: Any, place: tuple[int, int], level: int) -> None:
    """Read a region into ``found`` as the library itself gives it: alpha, red, green and blue in
    one number.

    The package's ``read_region`` turns that into an image, from which the colours would have to be
    copied out again: a tenth of the time. A package that no longer has the function behind it is
    asked for the image."""
    from openslide import lowlevel

    height, width = found.shape
    direct = getattr(lowlevel, DIRECT, None)
    slide = getattr(handle, "_osr", None)
    if direct is None or slide is None:
        image = handle.read_region(place, level, (width, height))
        red, green, blue, alpha = np.moveaxis(np.asarray(image, np.uint32), 2, 0)
        found[:] = alpha << 24 | red << 16 | green << 8 | blue
        return
    pointer = found.ctypes.data_as(ctypes.POINTER(ctypes.c_uint32))
    direct(slide, pointer, *place, level, width, height)


def _planes(found: Argb) -> Pixels:
    """Red, green and blue, each for itself."""
    planes = np.empty((3, *found.shape), dtype=np.uint8)
    for plane, shift in zip(planes, (16, 8, 0), strict=True):
        np.right_shift(found, shift, out=plane, casting="unsafe")
    return planes


def _reduced(planes: Pixels, width: int, height: int) -> Pixels:
    """The planes averaged down."""
    from PIL import Image

    reduced = []
    for plane in planes:
        image = Image.fromarray(plane)
        smaller = image.resize((width, height), Image.Resampling.BOX)
        reduced.append(np.asarray(smaller))
    return np.stack(reduced)


def _openslide(path: Path) -> Any:
    try:
        import openslide
    except ImportError as problem:
        raise DataError(
            f"{path}: reading slides needs OpenSlide: pip install 'proxyfl[slides]'."
        ) from problem
    return openslide
