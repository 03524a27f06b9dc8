"""Which patches are taken from which slides: tissue, labels, balance, a number for each site.

A patch is *tumour* if at least a stated share of it lies inside a contour, and *normal* if none of
it does. What lies between is neither and is left out. The plan depends on the files and the
settings alone: a plan that is made again is the same.

Patches are balanced over all slides of a site, so one slide more moves those of others: the promise
of a federation is then about the patches in the store. With ``per_slide`` each slide's patches
follow from that slide alone, and the promise reaches back to the slides.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from proxyfl._validate import number, whole
from proxyfl.data.slides.arrays import Mask, Points, Shares, Whole, blank
from proxyfl.data.slides.contours import HOLES, TUMOUR, Area, read_contours, sort_out
from proxyfl.data.slides.slide import Slide
from proxyfl.data.slides.tissue import map_downsample, tissue_map
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import Entry
from proxyfl.errors import DataError
from proxyfl.machine import return_freed_memory
from proxyfl.seeds import numpy_stream

CLASSES = ("normal", "tumour")


@dataclass(frozen=True)
class Patches:
    """The size of a patch, and the number taken."""

    size: int = 512
    level: int = 0
    microns: float | None = None
    overlap: float = 0.0
    tissue: float = 0.5
    tumour: float = 0.75
    per_site: int | None = None
    per_slide: int | None = None
    """At most so many of each class from each slide, whatever the others have: no balance."""
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
        if self.per_slide is not None:
            whole("per_slide", self.per_slide, error=DataError)
            if self.per_site is not None:
                raise DataError(
                    f"Expected per_site or per_slide, got both ({self.per_site} and "
                    f"{self.per_slide}). Leave one of them out."
                )

    def downsample(self, slide: Slide) -> float | None:
        """The side of a patch's pixel, in pixels of the finest level; None if nobody knows."""
        if self.microns is None:
            return slide.downsample_of(self.level)
        if slide.microns is None:
            return None
        return self.microns / slide.microns


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
    corners: Whole
    tumour: Mask

    def entry(self, row: int) -> Entry:
        """The patch in ``row``, for a store's index."""
        x, y = map(str, self.corners[row])
        label = CLASSES[int(self.tumour[row])]
        return replace(self.source.entry, label=label, x=x, y=y)


def plan(
    sources: Sequence[Source],
    patches: Patches,
    faults: Faults,
    *,
    workers: int = 1,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Entry]:
    """The patches of all slides, balanced, as many as asked for each site, or those of each slide
    by itself; sorted by site, slide and position."""

    def look(source: Source) -> Candidates:
        by_slide = candidates(source, patches, faults)
        advance(1)
        return by_slide

    with ThreadPoolExecutor(workers) as pool:
        by_slide = list(pool.map(look, sources))
    # of maps and tiles: the extraction needs as much, on threads of its own
    return_freed_memory()
    chosen: list[Entry] = []
    if patches.per_slide is not None:
        for each in by_slide:
            chosen += _of_slide(each, patches.per_slide, patches.seed)
        return sorted(chosen, key=_place)
    by_site: dict[str, list[Candidates]] = defaultdict(list)
    for each in by_slide:
        by_site[each.source.entry.site].append(each)
    for place, (site, own) in enumerate(sorted(by_site.items())):
        generator = numpy_stream(patches.seed, "patches", place)
        chosen += _draw(site, own, patches, generator, faults)
    return sorted(chosen, key=_place)


def _of_slide(own: Candidates, most: int, seed: int) -> list[Entry]:
    """At most ``most`` patches of each class, drawn by a stream that follows from this slide's own
    candidates: no other slide, nor their number or order, has a part in it."""
    content = hashlib.sha256(own.corners.tobytes() + own.tumour.tobytes()).digest()
    generator = numpy_stream(seed, "patches", int.from_bytes(content[:8], "big"))
    chosen = []
    for tumour in (False, True):
        rows = np.flatnonzero(own.tumour == tumour)
        for row in generator.permutation(rows)[:most]:
            chosen.append(own.entry(row))
    return chosen


def _draw(
    site: str,
    own: Sequence[Candidates],
    patches: Patches,
    generator: np.random.Generator,
    faults: Faults,
) -> list[Entry]:
    """A site's patches: drawn uniformly from all of its slides, each class by itself."""
    sizes = _shares(site, own, patches.per_site, faults)
    chosen = []
    for tumour, size in zip((False, True), sizes, strict=True):
        rows = []
        owners = []
        for owner, each in enumerate(own):
            own_rows = np.flatnonzero(each.tumour == tumour)
            rows.append(own_rows)
            owners.append(np.full_like(own_rows, owner))
        every_row = np.concatenate(rows)
        every_owner = np.concatenate(owners)
        order = generator.permutation(len(every_row))
        for pick in order[:size]:
            owner = every_owner[pick]
            chosen.append(own[owner].entry(every_row[pick]))
    return chosen


def _place(entry: Entry) -> tuple[str, str, int, int]:
    x = int(entry.x)
    y = int(entry.y)
    return entry.site, entry.file, y, x


def _shares(
    site: str, own: Sequence[Candidates], asked: int | None, faults: Faults
) -> tuple[int, int]:
    """How many normal and tumour patches a site gives: as many of the one as of the other."""
    normal = 0
    tumour = 0
    for each in own:
        marked = int(each.tumour.sum())
        tumour += marked
        normal += len(each.tumour) - marked
    wanted = (1, 1)
    if asked:
        half = asked // 2
        wanted = (asked - half, half)
    enough = normal >= wanted[0] and tumour >= wanted[1]
    if not enough:
        faults.report(
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
        faults.report("unreadable", str(problem).rstrip("."))
        return _none(source)
    try:
        downsample = patches.downsample(slide)
        if downsample is None:
            faults.report("no-scale", f"{source.path}: no microns per pixel")
            return _none(source)
        return _on_grid(source, slide, patches, downsample, faults)
    finally:
        slide.close()


def _none(source: Source) -> Candidates:
    return Candidates(source, blank(np.int64, 0, 2), blank(bool, 0))


def _on_grid(
    source: Source, slide: Slide, patches: Patches, downsample: float, faults: Faults
) -> Candidates:
    """The candidates on a slide that is open. One row of patches after the other is looked at, so
    that no map but the tissue's is ever whole in memory."""
    side = patches.size * downsample
    reduced = map_downsample(slide.size, side)
    tissue = tissue_map(slide, reduced, faults)
    if not tissue.mask.any():
        faults.report("blank", f"{source.path}: no tissue found")
        return _none(source)
    area = _tumour_area(source, slide, patches, reduced, faults)
    width, height = slide.size
    step = max(1.0, side * (1 - patches.overlap))
    across = max(1, round(side / reduced))
    lefts = np.arange(0, width - side + 1, step)
    columns = _spans(lefts / reduced, across, tissue.mask.shape[1])
    # a slide may be smaller than a patch
    corners = [blank(np.int64, 0, 2)]
    labels = [blank(bool, 0)]
    for y in np.arange(0, height - side + 1, step):
        top = int(y / reduced)
        rows = tissue.mask[top : top + across]
        drawn = area.rows(top, top + len(rows), rows.shape[1])
        covered = _mark(rows, columns)
        inside = _mark(drawn, columns)
        has_label = (inside == 0) | (inside >= patches.tumour)
        taken = has_label & (covered >= patches.tissue)
        row_corners = blank(np.int64, taken.sum(), 2)
        row_corners[:, 0] = lefts[taken]
        row_corners[:, 1] = y
        corners.append(row_corners)
        labels.append(inside[taken] > 0)
    every_corner = np.concatenate(corners)
    if not len(every_corner):
        faults.report(
            "blank",
            f"{source.path}: {width} x {height} pixels, of which no patch of {side:.0f} x "
            f"{side:.0f} is tissue with a label",
        )
    return Candidates(source, every_corner, np.concatenate(labels))


def _tumour_area(
    source: Source, slide: Slide, patches: Patches, downsample: float, faults: Faults
) -> Area:
    if source.contours is None:
        return Area([], [], downsample)
    inside, holes = sort_out(
        source.contours,
        read_contours(source.contours),
        slide.size,
        faults,
        tumour=patches.tumour_groups,
        holes=patches.hole_groups,
    )
    return Area(inside, holes, downsample)


Spans = tuple[Whole, Whole]
"""The first column of each patch in a map, and the one after its last."""


def _spans(lefts: Points, across: int, width: int) -> Spans:
    first = lefts.astype(np.int64)
    last = np.minimum(first + across, width)
    return first, last


def _mark(rows: Mask, spans: Spans) -> Shares:
    """Which part of each patch in a row of patches is marked."""
    first, last = spans
    height, width = rows.shape
    up_to: Whole = blank(np.int64, width + 1)
    in_column = rows.sum(axis=0)
    np.cumsum(in_column, out=up_to[1:])
    marked = up_to[last] - up_to[first]
    shares: Shares = marked / (height * (last - first))
    return shares
