"""Tables that are objects in Python: a pandas data frame, a Hugging Face ``Dataset``.

They are read as files are: by a schema, or as columns of numbers with a label. A ``Dataset`` whose
one feature is an image becomes images.
"""

import decimal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from proxyfl.data.dataset import Asked, Dataset, hold_out
from proxyfl.data.examples import InMemory, pixels
from proxyfl.data.holdout import Key, seeded_key
from proxyfl.data.labels import encode_labels
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.databases import Query
from proxyfl.data.tables.loading import load_tables
from proxyfl.data.tables.plain import Rows, as_frame, of_frame
from proxyfl.data.tables.reading import Part, as_text, parts_of_cells
from proxyfl.data.tables.schema import Schema
from proxyfl.errors import DataError


@dataclass(frozen=True)
class Frame:
    """A pandas data frame, row for row. Its index is no column."""

    frame: Any
    stem: str = "table"

    @property
    def name(self) -> str:
        """The name in messages and notes."""
        return self.stem

    def __str__(self) -> str:
        return self.stem

    def parts(self, size: int) -> Iterator[Part]:
        """The rows in parts; ``Part.rows`` has a row's place in the frame, from 0."""
        header = tuple(map(str, self.frame.columns))
        # None where a value is missing, whatever the column's type calls it
        plain = self.frame.astype(object).where(self.frame.notna(), None)
        rows = list(plain.itertuples(index=False, name=None))
        return parts_of_cells(header, rows, size, first=0)


def from_table(
    table: Any,
    *,
    schema: Schema | str | Path | None = None,
    label: str = "label",
    site: str | None = None,
    classes: Sequence[str] = (),
    test: Any = None,
    name: str = "table",
    faults: str = "refuse",
    test_fraction: float = 0.2,
    key: Key | None = None,
    seed: int = 0,
) -> Dataset:
    """A dataset from a pandas data frame or a Hugging Face ``Dataset``.

    With ``schema`` (the path of a schema.toml) the columns mean what it says, and ``test`` may be a
    test part of its own. Without, ``label`` and ``site`` name columns, and every other column is a
    feature, or the one image. The names of a ``ClassLabel`` are the classes. Each person or record
    is held out with probability ``test_fraction``, by itself, by ``key`` or else a key made of
    ``seed``; the index of a frame plays no part."""
    key = key or seeded_key(seed)
    if schema is not None:
        form = schema if isinstance(schema, Schema) else schemas.read(Path(schema))
        return load_tables(
            [Frame(as_frame(table), name)],
            form,
            tests=[] if test is None else [Frame(as_frame(test), name)],
            faults=faults,
            test_fraction=test_fraction,
            key=key,
        )
    if test is not None:
        raise DataError(f"{name}: a test part of its own needs a schema. Leave test out.")
    asked = Asked(label, site, classes, faults, test_fraction, seed, key)
    pictures = _image_columns(table)
    if pictures:
        return _of_images(table, pictures, asked, name)
    names = classes or _class_names(table, label)
    frame = as_frame(table)
    if names and not classes:
        # numbers that stand for names; a missing one (-1) is refused below as an unknown class
        frame = frame.assign(**{label: [_name(code, names) for code in frame[label]]})
        asked = Asked(label, site, names, faults, test_fraction, seed, key)
    return of_frame(Path(name), frame, asked)


def load_query(query: Query, asked: Asked) -> Dataset:
    """The answer of a query to a database without a schema: numbers and a label."""
    header, rows = query.answer()
    ordered = sorted(rows, key=lambda row: tuple(map(as_text, row)))
    plain = Rows(header, [tuple(map(_as_float, row)) for row in ordered])
    return of_frame(Path(query.stem), as_frame(plain), asked)


def _as_float(value: Any) -> Any:
    """An exact decimal of a database as the float that pandas computes with."""
    return float(value) if isinstance(value, decimal.Decimal) else value


def _name(code: Any, names: Sequence[str]) -> str:
    return names[code] if isinstance(code, int) and 0 <= code < len(names) else str(code)


def _is_hugging_face(table: Any) -> bool:
    return hasattr(table, "features") and hasattr(table, "to_pandas")


def _class_names(table: Any, label: str) -> tuple[str, ...]:
    """The names of a ``ClassLabel``; empty if the labels are no such."""
    if not _is_hugging_face(table):
        return ()
    return tuple(getattr(table.features.get(label), "names", None) or ())


def _image_columns(table: Any) -> list[str]:
    if not _is_hugging_face(table):
        return []
    return [name for name, kind in table.features.items() if type(kind).__name__ == "Image"]


def _of_images(table: Any, pictures: Sequence[str], asked: Asked, name: str) -> Dataset:
    """Images of one size, in grey or colour, with their labels."""
    others = [c for c in table.column_names if c not in (*pictures, asked.label, asked.site)]
    if len(pictures) > 1 or others:
        raise DataError(
            f"{name}: expected one image and a label in each row, got the columns "
            f"{', '.join(table.column_names)}. Drop the others with remove_columns."
        )
    if asked.label not in table.column_names:
        raise DataError(
            f"{name}: no column {asked.label!r}. Its columns: {', '.join(table.column_names)}. "
            "Name the right one with label=."
        )
    stack: list[npt.NDArray[np.uint8]] = []
    for row, image in enumerate(table[pictures[0]]):
        array = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
        array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        if stack and array.shape != stack[0].shape:
            raise DataError(
                f"{name} row {row}: expected images of one size and colour, got {array.shape} "
                f"after {stack[0].shape}. Resize them first."
            )
        stack.append(array)
    names = asked.classes or _class_names(table, asked.label)
    codes = list(table[asked.label])
    labels = np.array([_name(code, names) for code in codes] if names else codes)
    y, class_names = encode_labels(f"{name}, column {asked.label!r}", labels, names)
    sites, site_names = None, ()
    if asked.site is not None:
        where = f"{name}, column {asked.site!r}"
        sites, site_names = encode_labels(where, np.array(table[asked.site]))  # type: ignore[assignment]
    x = pixels(np.stack(stack)) if stack else torch.zeros(0)
    return hold_out(
        name,
        InMemory(x, y),
        class_names,
        test_fraction=asked.test_fraction,
        key=asked.key,
        site=sites,
        site_names=site_names,
    )
