"""Contours that pathologists drew: ASAP's XML (Camelyon's) and GeoJSON (QuPath's).

Contours belong to groups. A point is tumour if it is inside a contour of a tumour group and in no
hole. Whether a group is one or the other is stated, never guessed.
"""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from proxyfl import _files
from proxyfl.data.stores.faults import Faults
from proxyfl.errors import DataError

SUFFIXES = (".xml", ".geojson", ".json")
TUMOUR = ("tumor", "tumour", "metastases", "_0", "_1")
HOLES = ("normal", "exclusion", "_2")
"""Groups of Camelyon-16 and -17 and common names, without regard to case."""

Points = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Contour:
    """A polygon (N, 2) in pixels of the finest level, and the group that it is of."""

    group: str
    points: Points


def read_contours(path: Path) -> list[Contour]:
    """The polygons in a contour file."""
    text = _files.read_text(path, "contour file", error=DataError)
    try:
        found = list(_asap(text) if path.suffix == ".xml" else _geojson(text))
    except (ElementTree.ParseError, KeyError, TypeError, ValueError) as problem:
        raise DataError(
            f"{path}: expected ASAP XML or GeoJSON polygons ({type(problem).__name__}: {problem})."
        ) from problem
    return [contour for contour in found if len(contour.points) >= 3]


def _asap(text: str) -> Iterator[Contour]:
    if "<!ENTITY" in text:
        raise ValueError("entities are not allowed in a contour file")
    for annotation in ElementTree.fromstring(text).iter("Annotation"):
        points = []
        for corner in annotation.iter("Coordinate"):
            order = int(corner.attrib["Order"])
            points.append(
                (order, float(corner.attrib["X"]), float(corner.attrib["Y"]))
            )
        corners = [(x, y) for _, x, y in sorted(points)]
        group = annotation.attrib.get("PartOfGroup", "None")
        yield Contour(group, np.array(corners, dtype=np.float64).reshape(-1, 2))


def _geojson(text: str) -> Iterator[Contour]:
    document = json.loads(text)
    features = document["features"] if isinstance(document, dict) else document
    for feature in features:
        properties = feature.get("properties") or {}
        classification = properties.get("classification") or {}
        group = str(classification.get("name", "None"))
        for rings in _polygons(feature["geometry"]):
            outer, *inner = rings
            yield Contour(group, _corners(outer))
            for ring in inner:
                yield Contour("exclusion", _corners(ring))


def _polygons(geometry: dict[str, Any]) -> list[Any]:
    if geometry["type"] == "Polygon":
        return [geometry["coordinates"]]
    if geometry["type"] == "MultiPolygon":
        return list(geometry["coordinates"])
    return []


def _corners(ring: Any) -> Points:
    return np.array(ring, dtype=np.float64)[:, :2]


def sorted_out(
    path: Path,
    contours: Sequence[Contour],
    size: tuple[int, int],
    faults: Faults,
    *,
    tumour: Collection[str] = TUMOUR,
    holes: Collection[str] = HOLES,
) -> tuple[list[Points], list[Points]]:
    """The polygons of tumour and of holes. One that leaves its slide, or whose group is not known,
    is a fault."""
    known = {name.casefold(): 0 for name in tumour}
    known |= {name.casefold(): 1 for name in holes}
    found: tuple[list[Points], list[Points]] = ([], [])
    for number, contour in enumerate(contours):
        points = contour.points
        inside = bool((points >= 0).all() and (points <= np.array(size)).all())
        if not inside:
            low, high = points.min(axis=0), points.max(axis=0)
            faults.found(
                "outside",
                f"{path}: contour {number} reaches from ({low[0]:.0f}, {low[1]:.0f}) to "
                f"({high[0]:.0f}, {high[1]:.0f}), the slide is {size[0]} x {size[1]}",
            )
            continue
        kind = known.get(contour.group.casefold())
        if kind is None:
            faults.found(
                "unknown-group",
                f"{path}: contour {number} is of the group {contour.group!r}, known are "
                f"{', '.join(sorted(known))}",
            )
            continue
        found[kind].append(points)
    return found


def filled(
    polygons: Sequence[Points], shape: tuple[int, int], downsample: float
) -> Mask:
    """Which pixels of a map of ``shape`` have their centre inside one of ``polygons``.

    A pixel spans ``downsample`` pixels of the finest level. Within a polygon the rule is
    even-odd."""
    mask = np.zeros(shape, dtype=bool)
    for points in polygons:
        scaled = points / downsample
        top = max(0, int(np.floor(scaled[:, 1].min())))
        bottom = min(shape[0], int(np.ceil(scaled[:, 1].max())))
        for row in range(top, bottom):
            _fill_row(mask[row], _crossings(scaled, row + 0.5))
    return mask


def _crossings(points: Points, height: float) -> Points:
    """Where the polygon's edges cross a height, from left to right."""
    ends = np.roll(points, -1, axis=0)
    crosses = (points[:, 1] <= height) != (ends[:, 1] <= height)
    first, last = points[crosses], ends[crosses]
    part = (height - first[:, 1]) / (last[:, 1] - first[:, 1])
    crossings: Points = np.sort(first[:, 0] + part * (last[:, 0] - first[:, 0]))
    return crossings


def _fill_row(row: Mask, crossings: Points) -> None:
    """Set the pixels whose centres lie between the first and second crossing, and so on."""
    starts = np.ceil(crossings[0::2] - 0.5).astype(int).clip(0)
    stops = np.ceil(crossings[1::2] - 0.5).astype(int).clip(0)
    for start, stop in zip(starts, stops, strict=True):
        row[start:stop] = True
