"""Which patches are taken from which slides: tissue, labels, balance, a number for each site.

A patch is *tumour* if at least a stated share of it lies inside a contour, and *normal* if none of
it does. What lies between is neither and is left out. The plan depends on the files and the
settings alone: a plan that is made again is the same.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from proxyfl._validate import number, whole
from proxyfl.data.slides.contours import (
    HOLES,
    TUMOUR,
    filled,
    read_contours,
    sorted_out,
)
from proxyfl.data.slides.slide import Slide
from proxyfl.data.slides.tissue import TissueMap, map_downsample, tissue_map
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import Entry
from proxyfl.errors import DataError
from proxyfl.seeds import numpy_stream

CLASSES = ("normal", "tumour")
Corners = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Patches:
    """What a patch is, and how many are taken."""

    size: int = 512
    level: int = 0
    microns: float | None = None
    overlap: float = 0.0
    tissue: float = 0.5
    tumour: float = 0.75
    per_site: int | None = None
    seed: int = 0
    tumour_groups: tuple[str, ...] = TUMOUR
    hole_groups: tuple[str, ...] = HOLES

    def __post_init__(self) -> None:
        whole("size", self.size, error=DataError)
        whole("level", self.level, at_least=0, error=DataError)
        number("overlap", self.overlap, at_least=0, below=1, error=DataError)
        number("tissue", self.tissue, at_least=0, at_most=1, error=DataError)
        number("tumour", self.tumour, above=0, at_most=1, error=DataError)
        if self.microns is not None:
            number("microns", self.microns, above=0, error=DataError)
        if self.per_site is not None:
            whole("per_site", self.per_site, at_least=2, error=DataError)

    def downsample(self, slide: Slide) -> float | None:
        """How many pixels of the finest level a patch's pixel spans; None if nobody knows."""
        if self.microns is None:
            return slide.downsample_of(self.level)
        return None if slide.microns is None else self.microns / slide.microns


@dataclass(frozen=True)
class Source:
    """A slide's file, its contours if it has any, and whose it is."""

    path: Path
    contours: Path | None
    entry: Entry


@dataclass(frozen=True)
class Candidates:
    """The patches of one slide that could be taken: corners (N, 2) and whether each is tumour."""

    source: Source
    corners: Corners
    tumour: npt.NDArray[np.bool_]

    def entry(self, row: int) -> Entry:
        """The patch in ``row``, for a store's index."""
        x, y = self.corners[row]
        label = CLASSES[int(self.tumour[row])]
        return replace(self.source.entry, label=label, x=str(x), y=str(y))


def plan(
    sources: Sequence[Source],
    patches: Patches,
    faults: Faults,
    *,
    workers: int = 1,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Entry]:
    """The patches of all slides, balanced, as many as asked for each site; sorted by site, slide
    and position."""

    def look(source: Source) -> Candidates:
        found = candidates(source, patches, faults)
        advance(1)
        return found

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(look, sources))
    chosen: list[Entry] = []
    for place, site in enumerate(sorted({source.entry.site for source in sources})):
        own = [each for each in found if each.source.entry.site == site]
        generator = numpy_stream(patches.seed, "patches", place)
        chosen += _drawn(site, own, patches, generator, faults)
    return sorted(chosen, key=_place)


def _drawn(
    site: str,
    own: Sequence[Candidates],
    patches: Patches,
    generator: np.random.Generator,
    faults: Faults,
) -> list[Entry]:
    """A site's patches: drawn uniformly from all of its slides, each class by itself."""
    total = sum(len(each.tumour) for each in own)
    tumours = sum(int(each.tumour.sum()) for each in own)
    sizes = _shares(site, total - tumours, tumours, patches.per_site, faults)
    chosen = []
    for tumour, size in zip((False, True), sizes, strict=True):
        rows = [np.flatnonzero(each.tumour == tumour) for each in own]
        owners = np.repeat(np.arange(len(own)), [len(part) for part in rows])
        places = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        for pick in generator.permutation(len(places))[:size]:
            chosen.append(own[owners[pick]].entry(int(places[pick])))
    return chosen


def _place(entry: Entry) -> tuple[str, str, int, int]:
    return entry.site, entry.file, int(entry.y), int(entry.x)


def _shares(
    site: str, normal: int, tumour: int, asked: int | None, faults: Faults
) -> tuple[int, int]:
    """How many normal and tumour patches a site gives: as many of the one as of the other."""
    wanted = (asked - asked // 2, asked // 2) if asked else (1, 1)
    if normal < wanted[0] or tumour < wanted[1]:
        faults.found(
            "short",
            f"site {site!r}: {normal} normal and {tumour} tumour patches, expected at least "
            f"{wanted[0]} and {wanted[1]}",
        )
    elif asked:
        return wanted
    both = min(normal, tumour)
    if asked:
        both = min(both, asked // 2)
    return both, both


def candidates(source: Source, patches: Patches, faults: Faults) -> Candidates:
    """All patches of one slide that are tissue and have a label."""
    try:
        slide = Slide(source.path)
    except DataError as problem:
        faults.found("unreadable", str(problem).rstrip("."))
        return _none(source)
    try:
        downsample = patches.downsample(slide)
        if downsample is None:
            faults.found("no-scale", f"{source.path}: no microns per pixel")
            return _none(source)
        return _on_grid(source, slide, patches, downsample, faults)
    finally:
        slide.close()


def _none(source: Source) -> Candidates:
    return Candidates(
        source, np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=bool)
    )


def _on_grid(
    source: Source,
    slide: Slide,
    patches: Patches,
    downsample: float,
    faults: Faults,
) -> Candidates:
    side = patches.size * downsample
    reduced = map_downsample(slide.size, side)
    tissue = tissue_map(slide, reduced, faults)
    if not tissue.mask.any():
        faults.found("blank", f"{source.path}: no tissue found")
        return _none(source)
    tumour = _tumour_map(source, slide, patches, tissue, faults)
    corners: list[tuple[int, int]] = []
    labels: list[bool] = []
    step = max(1.0, side * (1 - patches.overlap))
    width, height = slide.size
    for y in np.arange(0, height - side + 1, step):
        for x in np.arange(0, width - side + 1, step):
            if _share(tissue.mask, x, y, side, reduced) < patches.tissue:
                continue
            inside = _share(tumour, x, y, side, reduced)
            if inside == 0 or inside >= patches.tumour:
                corners.append((int(x), int(y)))
                labels.append(inside > 0)
    return Candidates(
        source,
        np.array(corners, dtype=np.int64).reshape(-1, 2),
        np.array(labels, dtype=bool),
    )


def _tumour_map(
    source: Source,
    slide: Slide,
    patches: Patches,
    tissue: TissueMap,
    faults: Faults,
) -> npt.NDArray[np.bool_]:
    shape = (tissue.mask.shape[0], tissue.mask.shape[1])
    if source.contours is None:
        return np.zeros(shape, dtype=bool)
    inside, holes = sorted_out(
        source.contours,
        read_contours(source.contours),
        slide.size,
        faults,
        tumour=patches.tumour_groups,
        holes=patches.hole_groups,
    )
    mask = filled(inside, shape, tissue.downsample)
    return mask & ~filled(holes, shape, tissue.downsample)


def _share(
    mask: npt.NDArray[np.bool_], x: float, y: float, side: float, reduced: float
) -> float:
    """Which part of a patch a map marks."""
    top, left = int(y / reduced), int(x / reduced)
    across = max(1, round(side / reduced))
    return float(mask[top : top + across, left : left + across].mean())
