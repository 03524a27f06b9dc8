"""Processor time of an extraction beside plain reading: ``python -m benchmarks.slides``.

Writes a pyramidal slide of JPEG tiles and takes the same patches out of it in two ways, in turn:
with OpenSlide's ``read_region`` and nothing else, and with the extraction, which also separates
colours, takes checksums, writes shards and draws a contact sheet. Prints the share of the
extraction's time that plain reading takes, and what each part of the rest costs.

``--tiles FOLDER`` makes tissue of the images in a folder: tiles of real tissue take longer to
decode than generated ones. Time is the processor's, so that other programs on the machine count
less."""

import argparse
import hashlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import openslide
from PIL import Image
from rich.console import Console
from rich.table import Table

from proxyfl.data.images.listing import from_folders
from proxyfl.data.slides import extraction
from proxyfl.data.slides.arrays import Pixels
from proxyfl.data.slides.planning import Patches, plan
from proxyfl.data.slides.slide import Slide
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import Entry
from proxyfl.machine import keep_freed_memory
from tests.data.slides.generator import SCANNERS, TILE, Disc, textures, write_asap, write_slide

SIDE = 512


class Bench:
    """A slide, the patches that are taken of it, and the ways to take them."""

    def __init__(self, folder: Path, side: int, count: int, tiles: Path | None) -> None:
        self.folder = folder
        self.root = folder / "slides"
        path = self.root / "north" / "somebody" / "slide.tif"
        tumour = Disc(side * 0.45, side * 0.5, side * 0.22)
        tissue = Disc(side / 2, side / 2, side * 0.46)
        kinds = tissue_tiles(tiles)
        write_slide(path, (side, side), tissue, tumour, levels=8, kinds=kinds)
        write_asap(path.with_suffix(".xml"), [tumour.polygon()])
        faults = Faults()
        found = from_folders(self.root, "site/person", faults, suffixes=[".tif"])
        self.sources = extraction.with_contours(self.root, found, None, faults)
        self.patches = Patches(size=SIDE, per_site=count)
        self.planned: Sequence[Entry] = plan(self.sources, self.patches, faults)
        self.path = path

    def tissue(self) -> None:
        """Look for tissue and choose the patches."""
        plan(self.sources, self.patches, Faults())

    def plain(self) -> None:
        """Read the patches with OpenSlide, one after the other."""
        with openslide.OpenSlide(self.path) as slide:
            for x, y in self.corners():
                slide.read_region((x, y), 0, (SIDE, SIDE))

    def pixels(self) -> None:
        """Read them as the extraction does, colours separated, and keep nothing."""
        room = np.empty((3, SIDE, SIDE), dtype=np.uint8)
        slide = Slide(self.path)
        for x, y in self.corners():
            slide.region(x, y, SIDE, SIDE, 1.0, room)
        slide.close()

    def checksums(self) -> None:
        """Take the checksum of as many bytes."""
        room = np.zeros((3, SIDE, SIDE), dtype=np.uint8)
        digest = hashlib.sha256()
        for _ in self.planned:
            digest.update(room.data)

    def files(self) -> None:
        """Write as many bytes to one file."""
        room = np.zeros((3, SIDE, SIDE), dtype=np.uint8)
        path = self.folder / "bytes"
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, len(self.planned) * room.nbytes)
            for _ in self.planned:
                file.write(room.data)
            os.fsync(file.fileno())
        path.unlink()

    def extraction(self) -> None:
        """Write the store and its contact sheet."""
        store = self.folder / "store"
        extraction.extract(self.root, self.planned, store, self.patches, Faults())

    def clean(self) -> None:
        """Remove the store."""
        shutil.rmtree(self.folder / "store", ignore_errors=True)

    def corners(self) -> list[tuple[int, int]]:
        """Where the patches lie."""
        return [(int(entry.x), int(entry.y)) for entry in self.planned]


def tissue_tiles(folder: Path | None) -> list[Pixels]:
    """Glass, normal tissue and tumour: the generator's, or two images of ``folder``."""
    glass, normal, tumour = textures(SCANNERS["north"], 0)
    if folder is None:
        return [glass, normal, tumour]
    files = sorted(folder.rglob("*.jpg"))
    chosen = [files[0], files[-1]]
    found = [glass]
    for file in chosen:
        image = Image.open(file).convert("RGB").resize((TILE, TILE))
        found.append(np.asarray(image))
    return found


def seconds(work: Callable[[], None]) -> float:
    """The processor time of some work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=20_000, help="pixels")
    parser.add_argument("--patches", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--tiles", type=Path, help="a folder of JPEG images")
    args = parser.parse_args()
    # as the command does, for both ways
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.side, args.patches, args.tiles)
        found = measured(bench, args.repeats)
    show(found, len(bench.planned))


def measured(bench: Bench, repeats: int) -> dict[str, list[float]]:
    """Every way's times, in turn."""
    ways = {
        "plain reading": bench.plain,
        "extraction": bench.extraction,
        "reading, colours separated": bench.pixels,
        "checksums": bench.checksums,
        "files": bench.files,
        "tissue, once a slide": bench.tissue,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            found[name].append(seconds(way))
            bench.clean()
    return found


def show(found: dict[str, list[float]], count: int) -> None:
    """The table, and the ratio."""
    table = Table("what", "ms a patch, median", "least")
    for name, times in found.items():
        middle = 1000 * statistics.median(times) / count
        least = 1000 * min(times) / count
        table.add_row(name, f"{middle:.2f}", f"{least:.2f}")
    console = Console()
    console.print(table)
    plain = found["plain reading"]
    ours = found["extraction"]
    ratios = [a / b for a, b in zip(plain, ours, strict=True)]
    middle = statistics.median(ratios)
    least = min(plain) / min(ours)
    console.print(
        f"{count} patches of {SIDE} x {SIDE}: plain reading takes {middle:.2f} of the extraction's "
        f"processor time (median of {len(ratios)} trials in turn; {least:.2f} by the least times)"
    )


if __name__ == "__main__":
    main()
