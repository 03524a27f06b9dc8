"""Writes tiled BigTIFF files of JPEG tiles, as slide scanners do; tiles that are equal are stored
once, so that a slide of ten gigapixels takes a few megabytes.

After Adobe's TIFF 6.0 and the BigTIFF layout (offsets of eight bytes).
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

SHORT, LONG, RATIONAL, LONG8 = 3, 4, 5, 16
SIZES = {SHORT: 2, LONG: 4, RATIONAL: 8, LONG8: 8}


@dataclass(frozen=True)
class Level:
    """One image of the pyramid: its size and its tiles, row by row."""

    width: int
    height: int
    tiles: Iterable[bytes]
    per_cm: float | None


def write_pyramid(path: Path, levels: Iterable[Level], tile: int) -> None:
    """Write the levels, the finest first, each in a directory of its own."""
    with path.open("wb") as file:
        file.write(b"II" + struct.pack("<HHHQ", 43, 8, 0, 0))
        link = 8
        for number, level in enumerate(levels):
            offsets, counts = _tiles(file, level.tiles)
            places = [_array(file, offsets), _array(file, counts)]
            start = file.tell()
            entries = _entries(level, tile, number, len(offsets), places)
            file.write(struct.pack("<Q", len(entries)) + b"".join(entries))
            end = file.tell()
            file.write(struct.pack("<Q", 0))
            file.seek(link)
            file.write(struct.pack("<Q", start))
            file.seek(0, 2)
            link = end


def _tiles(file: BinaryIO, tiles: Iterable[bytes]) -> tuple[list[int], list[int]]:
    known: dict[bytes, int] = {}
    offsets, counts = [], []
    for data in tiles:
        if data not in known:
            known[data] = file.tell()
            file.write(data)
        offsets.append(known[data])
        counts.append(len(data))
    return offsets, counts


def _array(file: BinaryIO, values: list[int]) -> int:
    """Where a list of offsets was put; a single one stands in its entry itself."""
    if len(values) == 1:
        return values[0]
    place = file.tell()
    file.write(np.array(values, dtype="<u8").tobytes())
    return place


def _entries(
    level: Level, tile: int, number: int, count: int, places: Sequence[int]
) -> list[bytes]:
    unit = 1 if level.per_cm is None else 3
    scale = int(level.per_cm or 1) | 1 << 32
    rows = [
        (254, LONG, 1, 1 if number else 0),
        (256, LONG, 1, level.width),
        (257, LONG, 1, level.height),
        (258, SHORT, 3, 8 | 8 << 16 | 8 << 32),
        (259, SHORT, 1, 7),
        (262, SHORT, 1, 6),
        (277, SHORT, 1, 3),
        (282, RATIONAL, 1, scale),
        (283, RATIONAL, 1, scale),
        (284, SHORT, 1, 1),
        (296, SHORT, 1, unit),
        (322, SHORT, 1, tile),
        (323, SHORT, 1, tile),
        (324, LONG8, count, places[0]),
        (325, LONG8, count, places[1]),
        (530, SHORT, 2, 1 | 1 << 16),
    ]
    return [struct.pack("<HHQQ", *row) for row in rows]
