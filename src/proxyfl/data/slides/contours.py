"""Contours that pathologists drew: ASAP's XML (Camelyon's) and GeoJSON (QuPath's).

Contours belong to groups. A point is tumour if it is inside a contour of a tumour group and in no
hole. Whether a group is one or the other is stated, never guessed.
"""

import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proxyfl import _files
from proxyfl.data.slides.arrays import Mask, Points, blank
from proxyfl.data.stores.faults import Faults
from proxyfl.errors import DataError

SUFFIXES = (".xml", ".geojson", ".json")
TUMOUR = ("tumor", "tumour", "metastases", "_0", "_1")
HOLES = ("normal", "exclusion", "_2")
"""Groups of Camelyon-16 and -17 and common names, without regard to case."""

FAULTY = (
    ElementTree.ParseError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    RecursionError,
)
"""What comes of a file that is XML or JSON of another kind, or neither."""

Polygons = list[Points]


@dataclass(frozen=True)
class Contour:
    """A polygon (N, 2) in pixels of the finest level, and the group that it is of."""

    group: str
    points: Points


def read_contours(path: Path) -> list[Contour]:
    """The contours in a contour file. A point or a line has fewer than three corners."""
    text = _files.read_text(path, "contour file", error=DataError)
    parse = _geojson
    if path.suffix.lower() == ".xml":
        parse = _asap
    try:
        contours = list(parse(text))
    except FAULTY as problem:
        raise DataError(
            f"{path}: expected ASAP XML or GeoJSON polygons ({type(problem).__name__}: {problem})."
        ) from problem
    return contours


def _asap(text: str) -> Iterator[Contour]:
    if "<!ENTITY" in text:
        raise ValueError("entities are not allowed in a contour file")
    document = ElementTree.fromstring(text)
    for annotation in document.iter("Annotation"):
        points = []
        for corner in annotation.iter("Coordinate"):
            order = int(corner.attrib["Order"])
            x = float(corner.attrib["X"])
            y = float(corner.attrib["Y"])
            points.append((order, x, y))
        points.sort()
        ordered = np.array(points, dtype=np.float64)
        rows = ordered.reshape(-1, 3)
        group = annotation.attrib.get("PartOfGroup", "None")
        yield Contour(group, rows[:, 1:])


def _geojson(text: str) -> Iterator[Contour]:
    features = json.loads(text)
    if isinstance(features, dict):
        features = features["features"]
    for feature in features:
        properties = feature.get("properties") or {}
        classification = properties.get("classification") or {}
        group = str(classification.get("name", "None"))
        polygons = _polygons(feature["geometry"])
        if not polygons:
            yield Contour(group, blank(np.float64, 0, 2))
        for rings in polygons:
            outer, *inner = rings
            yield Contour(group, _corners(outer))
            for ring in inner:
                yield Contour("exclusion", _corners(ring))


def _polygons(geometry: dict[str, Any]) -> list[Any]:
    kind = geometry["type"]
    if kind == "Polygon":
        return [geometry["coordinates"]]
    if kind == "MultiPolygon":
        return list(geometry["coordinates"])
    return []


def _corners(ring: Any) -> Points:
    points = np.array(ring, dtype=np.float64)
    places = points[:, :2]
    if places.shape[1] != 2:
        raise ValueError("a corner without x and y")
    return places


def sort_out(
    path: Path,
    contours: Sequence[Contour],
    size: tuple[int, int],
    faults: Faults,
    *,
    tumour: Collection[str] = TUMOUR,
    holes: Collection[str] = HOLES,
) -> tuple[Polygons, Polygons]:
    """The polygons of tumour and of holes. One that leaves its slide, encloses nothing, or is of
    an unknown group is a fault."""
    inside: Polygons = []
    cut_out: Polygons = []
    lists = {}
    for name in tumour:
        lists[name.casefold()] = inside
    for name in holes:
        lists[name.casefold()] = cut_out
    for number, contour in enumerate(contours):
        points = contour.points
        if len(points) < 3:
            faults.report("no-area", f"{path}: contour {number} has {len(points)} corners")
            continue
        low = points.min(axis=0)
        high = points.max(axis=0)
        # what is not a number is not inside either
        begins_inside = (low >= 0).all()
        ends_inside = (high <= size).all()
        if not (begins_inside and ends_inside):
            faults.report(
                "outside",
                f"{path}: contour {number} reaches from ({low[0]:.0f}, {low[1]:.0f}) to "
                f"({high[0]:.0f}, {high[1]:.0f}), the slide is {size[0]} x {size[1]}",
            )
            continue
        group = contour.group.casefold()
        if group not in lists:
            faults.report(
                "unknown-group",
                f"{path}: contour {number} is of the group {contour.group!r}, known are "
                f"{', '.join(sorted(lists))}",
            )
            continue
        lists[group].append(points)
    return inside, cut_out


@dataclass(frozen=True)
class Area:
    """The area inside of some polygons and outside of others, in pixels of a map.

    A pixel of the map spans ``downsample`` pixels of the finest level. It is inside of a polygon if
    its centre is, by the even-odd rule."""

    inside: Sequence[Points]
    holes: Sequence[Points]
    downsample: float

    def rows(self, first: int, last: int, width: int) -> Mask:
        """A mask of the pixels of some rows of the map that are in the area."""
        mask: Mask = blank(bool, last - first, width)
        for points in self.inside:
            _fill(mask, first, points / self.downsample, True)
        for points in self.holes:
            _fill(mask, first, points / self.downsample, False)
        return mask


def _fill(mask: Mask, first: int, points: Points, value: bool) -> None:
    """Set what a polygon covers of the rows from ``first``."""
    heights = points[:, 1]
    highest = math.floor(heights.min())
    lowest = math.ceil(heights.max())
    last = first + len(mask)
    for row in range(max(first, highest), min(last, lowest)):
        crossings = _crossings(points, row + 0.5)
        _fill_row(mask[row - first], crossings, value)


def _crossings(points: Points, height: float) -> Points:
    """Where the polygon's edges cross a height, from left to right."""
    ends = np.roll(points, -1, axis=0)
    starts_above = points[:, 1] <= height
    ends_above = ends[:, 1] <= height
    crosses = starts_above != ends_above
    x, y = points[crosses].T
    end_x, end_y = ends[crosses].T
    part = (height - y) / (end_y - y)
    crossings: Points = x + part * (end_x - x)
    crossings.sort()
    return crossings


def _fill_row(row: Mask, crossings: Points, value: bool) -> None:
    """Set the pixels whose centres lie between the first and second crossing, and so on."""
    first_centres = np.ceil(crossings - 0.5)
    edges = first_centres.astype(int).clip(0)
    for start, stop in edges.reshape(-1, 2):
        row[start:stop] = value
