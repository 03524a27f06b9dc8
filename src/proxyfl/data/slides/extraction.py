"""Slides with contours to a store of labelled patches."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

from proxyfl.data.images.listing import persons_apart
from proxyfl.data.images.sheet import contact_sheet
from proxyfl.data.slides import contours
from proxyfl.data.slides.arrays import Pixels, room
from proxyfl.data.slides.planning import CLASSES, Patches, Source
from proxyfl.data.slides.slide import Damaged, Slide
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import Content, Entry, Head
from proxyfl.data.stores.writing import Array, Fault, write_store
from proxyfl.errors import DataError


def with_contours(
    root: Path,
    entries: Sequence[Entry],
    folder: Path | None,
    faults: Faults,
    *,
    without: str = "refuse",
) -> list[Source]:
    """Each slide with the contour file of its name, next to it or in ``folder``.

    ``without="normal"`` takes a slide that has none as free of tumour; otherwise it is a fault."""
    kept = persons_apart(entries, faults)
    shelf = folder or root
    drawn = _contour_files(shelf)
    slides: Counter[str] = Counter()
    for entry in entries:
        slides[Path(entry.file).stem] += 1
    sources = []
    for entry in kept:
        path = root / entry.file
        if not entry.person:
            raise DataError(
                f"{path}: whose slide is it? Name the person with the layout, the index, or "
                "--person-from; a test part is drawn by person."
            )
        own = _of_slide(entry.file, drawn, shelf, slides)
        missing = ""
        if own is None:
            missing = f"no contour file of this name in {shelf}"
        elif not contours.read_contours(own):
            missing = f"no contour in {own}"
        if missing and without != "normal":
            faults.report(
                "no-contours",
                f"{path}: {missing}; --without-contours normal takes such slides as free of tumour",
            )
            continue
        sources.append(Source(path, own, entry))
    for stem, paths in drawn.items():
        if stem not in slides:
            for path in paths:
                faults.report("orphan", f"{path}: no slide of this name")
    return sources


def _contour_files(folder: Path) -> dict[str, list[Path]]:
    """The contour files below a folder, by the slide's name."""
    by_stem: dict[str, list[Path]] = defaultdict(list)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder (looked from {Path.cwd()}). Check the name.")
    for path in sorted(folder.rglob("*")):
        suffix = path.suffix.lower()
        if suffix in contours.SUFFIXES and path.is_file():
            by_stem[path.stem].append(path)
    return by_stem


def _of_slide(
    file: str, drawn: Mapping[str, Sequence[Path]], shelf: Path, slides: Mapping[str, int]
) -> Path | None:
    """The contour file of a slide: the one that lies where the slide does, or the only one of its
    name. Nothing is guessed where two slides, or two files, share a name."""
    stem = Path(file).stem
    named = drawn.get(stem, ())
    place = shelf / Path(file).parent
    beside = [path for path in named if path.parent == place]
    candidates = beside or named
    if not candidates:
        return None
    if len(candidates) > 1:
        raise DataError(
            f"{candidates[0]} and {candidates[1]}: two contour files for one slide. Remove one."
        )
    if not beside and slides[stem] > 1:
        raise DataError(
            f"{candidates[0]}: {slides[stem]} slides have this name. Put each contour file next to "
            "its slide, or into the same folders below --contours."
        )
    return candidates[0]


def name_persons(entries: Sequence[Entry], pattern: str) -> list[Entry]:
    """The entries with the part of each file's name that ``pattern`` finds as its person."""
    try:
        finder = re.compile(pattern)
    except re.error as problem:
        raise DataError(
            f"--person-from {pattern!r} is not a valid pattern: {problem}."
        ) from problem
    named = []
    for entry in entries:
        match = finder.search(Path(entry.file).name)
        if match is None:
            raise DataError(f"{entry.file}: --person-from {pattern!r} does not match its name.")
        named.append(replace(entry, person=match[0]))
    return named


def extract(
    root: Path,
    entries: Sequence[Entry],
    folder: Path,
    patches: Patches,
    faults: Faults,
    *,
    workers: int = 1,
    advance: Callable[[int], None] = lambda count: None,
) -> Head:
    """Write the planned patches (``entries``) of the slides below ``root`` to a store.

    Memory does not depend on the slides' sizes: each thread has one slide open, and one patch."""
    made = {"source": root.resolve().name, "patches": asdict(patches)}
    shape = (3, patches.size, patches.size)
    content = Content(shape, "uint8", CLASSES, made)

    def read(_start: int, some: Sequence[Entry]) -> Iterator[Array | Fault]:
        slide: Slide | None = None
        opened = ""
        # used again for every patch: fresh memory would be a tenth of the time
        pixels: Pixels = room(np.uint8, *content.shape)
        try:
            for entry in some:
                if slide is None or opened != entry.file:
                    if slide is not None:
                        slide.close()
                    slide = Slide(root / entry.file)
                    opened = entry.file
                yield _patch(slide, entry, patches, pixels)
        finally:
            if slide is not None:
                slide.close()

    return write_store(
        folder,
        content,
        entries,
        read,
        faults,
        workers=workers,
        advance=advance,
        draw=partial(contact_sheet, folder),
    )


def _patch(slide: Slide, entry: Entry, patches: Patches, pixels: Pixels) -> Array | Fault:
    """A patch, in the memory of ``pixels``, or what is wrong with it."""
    downsample = patches.downsample(slide)
    if downsample is None:
        return ("no-scale", f"{slide.path}: no microns per pixel")
    x = int(entry.x)
    y = int(entry.y)
    size = patches.size
    try:
        return slide.region(x, y, size, size, downsample, pixels)
    except Damaged as problem:
        return ("damaged", str(problem))
