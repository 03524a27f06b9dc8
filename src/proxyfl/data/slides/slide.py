"""One slide, opened with OpenSlide: its levels, its scale, and regions of it.

OpenSlide's handle fails for good once one tile was damaged. A slide here opens itself again, so
that the regions next to a damaged one can still be read.
"""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from proxyfl.data.slides.arrays import Argb, Pixels, room
from proxyfl.errors import DataError

SUFFIXES = (".tif", ".tiff", ".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".bif", ".dcm")
CACHE_BYTES = 2**25
"""The most that a slide keeps of decoded tiles."""
CACHED_REGIONS = 2
"""The regions whose tiles are kept: the last one, and its right-hand neighbour."""
USUAL_TILE = 256
PIXEL_BYTES = 4
SAME_SCALE = 0.02
"""A level whose scale differs by less than this part of it is taken as it is."""

DIRECT = "_read_region"
"""The library's own function in ``openslide.lowlevel``."""
OPAQUE = 0xFF000000
WHITE = 0xFFFFFFFF
ROWS = 32
"""The rows whose colours are separated at once: few enough to stay in the processor's cache."""


class Damaged(DataError):
    """A region of a slide cannot be read."""


class Slide:
    """A slide that is open. Not for use by two threads at once.

    ``microns`` are those a pixel spans at the finest level, or None if the file does not say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reopened = 0
        self._cached = 0
        self._room: Argb = room(np.uint32, 0, 0)
        self._open()

    def _open(self) -> None:
        library = _openslide(self.path)
        try:
            self._handle = library.OpenSlide(str(self.path))
        except (library.OpenSlideError, OSError) as problem:
            raise DataError(
                f"{self.path}: not a readable slide ({problem}). Open it in a viewer to see if "
                "the file is whole."
            ) from problem
        self._keep_tiles()
        # asked for with every region, and slow to ask the library for
        steps = self._handle.level_downsamples
        self._steps = tuple(map(float, steps))
        properties = self._handle.properties
        self.microns = _microns(properties.get("openslide.mpp-x"))
        self._tile = _tile_side(properties)

    def close(self) -> None:
        """Let go of the file and of the cache."""
        self._handle.close()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height at the finest level."""
        width, height = self._handle.dimensions
        return int(width), int(height)

    def downsample_of(self, level: int) -> float:
        """The side of a pixel of ``level``, in pixels of the finest level."""
        if level >= len(self._steps):
            raise DataError(
                f"{self.path}: no level {level}; its levels are 0 to {len(self._steps) - 1}. Say "
                "the scale in microns instead."
            )
        return self._steps[level]

    def region(
        self, x: int, y: int, width: int, height: int, downsample: float, into: Pixels | None = None
    ) -> Pixels:
        """``width`` x ``height`` pixels at ``downsample`` from (x, y) of the finest level, as
        (3, H, W), in memory of their own or in that of ``into``. What lies outside of the slide, or
        was never scanned, is white.

        Read from a level of that scale if there is one, else from the next finer one and reduced.
        Damaged if it cannot be read."""
        if into is None:
            into = room(np.uint8, 3, height, width)
        level, step = self._level_for(downsample)
        factor = downsample / step
        if abs(factor - 1) < SAME_SCALE:
            argb = self._read(x, y, level, width, height)
            _separate(argb, into)
            return into
        wide = round(width * factor)
        high = round(height * factor)
        argb = self._read(x, y, level, wide, high)
        finer: Pixels = room(np.uint8, 3, high, wide)
        _separate(argb, finer)
        _reduce(finer, into)
        return into

    def reduction(self, downsample: float) -> float:
        """The side of a pixel at ``downsample``, in pixels of the level that is read."""
        return downsample / self._level_for(downsample)[1]

    def _level_for(self, downsample: float) -> tuple[int, float]:
        coarsest = 0
        for level, step in enumerate(self._steps):
            if step <= downsample * (1 + SAME_SCALE):
                coarsest = level
        return coarsest, self._steps[coarsest]

    def _read(self, x: int, y: int, level: int, width: int, height: int) -> Argb:
        """The next call overwrites what this one gives: fresh memory for each region would take a
        tenth of the time."""
        library = _openslide(self.path)
        if self._room.shape != (height, width):
            self._make_room(width, height)
        argb = self._room
        try:
            _fill(argb, self._handle, (x, y), level)
        except library.OpenSlideError as problem:
            self._handle.close()
            self._open()
            self.reopened += 1
            raise Damaged(
                f"{self.path}: the region at ({x}, {y}), level {level}, is damaged ({problem})"
            ) from problem
        return argb

    def _make_room(self, width: int, height: int) -> None:
        """Room for a region, and for the decoded tiles that it shares with the next one."""
        self._room = room(np.uint32, height, width)
        across = width + 2 * self._tile
        down = height + 2 * self._tile
        region = PIXEL_BYTES * across * down
        wanted = min(CACHE_BYTES, CACHED_REGIONS * region)
        if wanted > self._cached:
            self._cached = wanted
            self._keep_tiles()

    def _keep_tiles(self) -> None:
        library = _openslide(self.path)
        cache = library.OpenSlideCache(self._cached)
        self._handle.set_cache(cache)


def _microns(said: Any) -> float | None:
    try:
        value = float(said)
    except (TypeError, ValueError):
        return None
    if not 0 < value < 1000:
        return None
    return value


def _tile_side(properties: Mapping[str, str]) -> int:
    """The longer side of a tile of the finest level."""
    sides = []
    for side in ("width", "height"):
        said = properties.get(f"openslide.level[0].tile-{side}", USUAL_TILE)
        sides.append(int(said))
    return max(sides)


def _fill(argb: Argb, handle: Any, place: tuple[int, int], level: int) -> None:
    """Read a region into ``argb`` as the library itself gives it: alpha, red, green and blue in
    one number.

    The package's ``read_region`` turns that into an image, from which the colours would have to be
    copied out again: a tenth of the time. A package that no longer has the function behind it is
    asked for the image."""
    from openslide import lowlevel

    height, width = argb.shape
    direct = getattr(lowlevel, DIRECT, None)
    slide = getattr(handle, "_osr", None)
    if direct is None or slide is None:
        image = handle.read_region(place, level, (width, height))
        values = np.asarray(image, dtype=np.uint32)
        red, green, blue, alpha = np.moveaxis(values, 2, 0)
        argb[:] = alpha << 24
        argb |= red << 16
        argb |= green << 8
        argb |= blue
        return
    numbers = ctypes.POINTER(ctypes.c_uint32)
    pointer = argb.ctypes.data_as(numbers)
    x, y = place
    direct(slide, pointer, x, y, level, width, height)


def _separate(argb: Argb, into: Pixels) -> None:
    """Write red, green and blue to ``into``, each for itself. What was never scanned is white."""
    for top in range(0, len(argb), ROWS):
        rows = slice(top, top + ROWS)
        some = argb[rows]
        if some.min() < OPAQUE:
            # never scanned
            some[some < OPAQUE] = WHITE
        red, green, blue = into[:, rows]
        np.right_shift(some, 16, out=red, casting="unsafe")
        np.right_shift(some, 8, out=green, casting="unsafe")
        np.copyto(blue, some, casting="unsafe")


def _reduce(finer: Pixels, into: Pixels) -> None:
    """Write the planes to ``into``, averaged down to its size."""
    from PIL import Image

    _, height, width = into.shape
    averaging = Image.Resampling.BOX
    for plane, smaller in zip(finer, into, strict=True):
        image = Image.fromarray(plane)
        image = image.resize((width, height), averaging)
        smaller[:] = np.asarray(image)


def _openslide(path: Path) -> Any:
    try:
        import openslide
    except ImportError as problem:
        raise DataError(
            f"{path}: reading slides needs OpenSlide: pip install 'proxyfl[slides]'."
        ) from problem
    return openslide
