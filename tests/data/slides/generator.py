"""Writes slides as scanners do: pyramidal, tiled TIFFs with JPEG tiles, contours beside them.

Tissue is a disc of stained texture on glass; tumour is a disc within it with many dark nuclei. Each
scanner has a stain of its own. Textures repeat from tile to tile, so that a slide of ten gigapixels
is written in seconds; its levels are true reductions of the finest one.
"""

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from tests.data.slides.bigtiff import Level, write_pyramid

TILE = 256
GLASS, NORMAL, TUMOUR = range(3)

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Disc:
    """A disc in pixels of the finest level."""

    x: float
    y: float
    radius: float

    def polygon(self, corners: int = 64) -> list[tuple[float, float]]:
        """The disc's outline."""
        turns = [2 * math.pi * i / corners for i in range(corners)]
        return [
            (self.x + self.radius * math.cos(t), self.y + self.radius * math.sin(t)) for t in turns
        ]


@dataclass(frozen=True)
class Scanner:
    """The colours of a stain: of tissue, and of nuclei."""

    tissue: tuple[int, int, int]
    nuclei: tuple[int, int, int]
    microns: float = 0.25


SCANNERS = {
    "north": Scanner((228, 170, 200), (96, 60, 140)),
    "south": Scanner((214, 150, 170), (120, 70, 110), 0.24),
    "west": Scanner((236, 190, 214), (70, 60, 150), 0.23),
    "east": Scanner((205, 160, 205), (60, 40, 120), 0.26),
}


def textures(scanner: Scanner, seed: int) -> list[Pixels]:
    """One tile each of glass, normal tissue and tumour."""
    draw = np.random.default_rng(seed)
    made = []
    plans = (((243, 243, 244), 0, 0), (scanner.tissue, 40, 4), (scanner.tissue, 260, 6))
    for colour, nuclei, radius in plans:
        image = Image.new("RGB", (TILE, TILE), colour)
        pen = ImageDraw.Draw(image)
        for x, y in draw.uniform(0, TILE, (nuclei, 2)):
            reach = radius * draw.uniform(0.6, 1.3)
            pen.ellipse((x - reach, y - reach, x + reach, y + reach), fill=scanner.nuclei)
        noise = draw.normal(0, 4, (TILE, TILE, 1))
        made.append((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))
    return made


def write_slide(
    path: Path,
    size: tuple[int, int],
    tissue: Disc,
    tumour: Disc | None,
    *,
    scanner: Scanner = SCANNERS["north"],
    seed: int = 0,
    levels: int = 4,
    scale: bool = True,
    kinds: Sequence[Pixels] = (),
) -> None:
    """Write a slide of ``size`` (width, height); each level has half the side of the one before.

    ``kinds`` are tiles of glass, normal tissue and tumour, instead of drawn ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = kinds or textures(scanner, seed)
    per_cm = 10_000 / scanner.microns

    def pyramid() -> Iterator[Level]:
        for level in range(levels):
            step = 2**level
            width, height = (-(-side // step) for side in size)
            tiles = _tiles(kinds, width, height, step, tissue, tumour)
            yield Level(width, height, tiles, per_cm / step if scale else None)

    write_pyramid(path, pyramid(), TILE)


def _tiles(
    kinds: Sequence[Pixels], width: int, height: int, step: int, tissue: Disc, tumour: Disc | None
) -> Iterator[bytes]:
    """The tiles of a level, row by row. Those of one kind alone are encoded once."""
    reduced = [_repeated(kind, step) for kind in kinds]
    encoded = [_jpeg(kind) for kind in reduced]
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            alone = _one_kind(left * step, top * step, TILE * step, tissue, tumour)
            if alone is not None:
                yield encoded[alone]
            else:
                kind = _kinds(left, top, step, tissue, tumour)
                yield _jpeg(np.choose(kind[:, :, None], reduced).astype(np.uint8))


def _repeated(kind: Pixels, step: int) -> Pixels:
    """A texture reduced by ``step`` and repeated to a whole tile."""
    side = max(1, TILE // step)
    small = Image.fromarray(kind).resize((side, side), Image.Resampling.BOX)
    return np.tile(np.asarray(small), (TILE // side, TILE // side, 1))


def _one_kind(x: float, y: float, side: float, tissue: Disc, tumour: Disc | None) -> int | None:
    """What a square shows, if it shows one thing alone."""
    for kind, disc in ((TUMOUR, tumour), (NORMAL, tissue)):
        if disc is None:
            continue
        across = (x - disc.x, x + side - disc.x)
        down = (y - disc.y, y + side - disc.y)
        farthest = math.hypot(max(map(abs, across)), max(map(abs, down)))
        nearest = math.hypot(_from_zero(*across), _from_zero(*down))
        if farthest < disc.radius:
            return kind
        if nearest < disc.radius:
            return None
    return GLASS


def _from_zero(low: float, high: float) -> float:
    """How far the interval is from 0."""
    return max(low, -high, 0.0)


def _kinds(
    left: int, top: int, step: int, tissue: Disc, tumour: Disc | None
) -> npt.NDArray[np.int64]:
    """What each pixel of a tile shows."""
    x = (left + np.arange(TILE)[None] + 0.5) * step
    y = (top + np.arange(TILE)[:, None] + 0.5) * step
    found = np.full((TILE, TILE), GLASS)
    for kind, disc in ((NORMAL, tissue), (TUMOUR, tumour)):
        if disc is not None:
            found[(x - disc.x) ** 2 + (y - disc.y) ** 2 < disc.radius**2] = kind
    return found


def _jpeg(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85, subsampling=0)
    return buffer.getvalue()


def write_asap(
    path: Path, polygons: Sequence[Sequence[tuple[float, float]]], group: str = "metastases"
) -> None:
    """Contours in ASAP's XML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ['<?xml version="1.0"?>', "<ASAP_Annotations><Annotations>"]
    for number, polygon in enumerate(polygons):
        lines.append(
            f'<Annotation Name="{number}" Type="Polygon" PartOfGroup="{group}"><Coordinates>'
        )
        for order, (x, y) in enumerate(polygon):
            lines.append(f'<Coordinate Order="{order}" X="{x}" Y="{y}"/>')
        lines.append("</Coordinates></Annotation>")
    lines.append("</Annotations></ASAP_Annotations>")
    path.write_text("\n".join(lines))


def write_geojson(
    path: Path, rings: Sequence[Sequence[tuple[float, float]]], group: str = "Tumor"
) -> None:
    """Contours in GeoJSON: the first ring is the outline, others are holes."""
    feature = {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [list(map(list, r)) for r in rings]},
        "properties": {"classification": {"name": group}},
    }
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))


def write_cohort(
    root: Path, *, persons: int = 3, side: int = 2048, sites: Sequence[str] = tuple(SCANNERS)
) -> None:
    """Slides of some persons at each site, each with a tumour and its contour."""
    for place, site in enumerate(sites):
        for person in range(persons):
            seed = 100 * place + person
            middle = side / 2
            tissue = Disc(middle, middle, 0.46 * side)
            tumour = Disc(middle + 40 * person, middle - 30, 0.24 * side)
            path = root / site / f"{site}-{person}" / f"slide-{seed:03d}.tif"
            write_slide(path, (side, side), tissue, tumour, scanner=SCANNERS[site], seed=seed)
            write_asap(path.with_suffix(".xml"), [tumour.polygon()])
