"""Columns of a file as plain numbers, where no schema is needed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from proxyfl.data.tables import encoding
from proxyfl.data.tables.features import Floats
from proxyfl.data.tables.reading import Dialect, read
from proxyfl.data.tables.schema import MISSING
from proxyfl.errors import DataError


def numbers(
    path: Path, names: Sequence[str], dialect: Dialect | None = None, *, person: str | None = None
) -> tuple[list[Floats], list[str]]:
    """The columns ``names``, NaN where a cell has no number, and the person of each row."""
    blocks = []
    persons: list[str] = []
    needed = [*names, person] if person else names
    for part in read(path, dialect):
        for name in needed:
            if name not in part.columns:
                raise DataError(
                    f"{path}: no column {name!r}. Name one of: {', '.join(part.header)}."
                )
        block = []
        for name in names:
            texts = part.columns[name]
            block.append(encoding.numbers(texts, part.decimal, MISSING))
        blocks.append(np.array(block))
        if person is not None:
            persons += map(str.strip, part.columns[person])
    values = np.concatenate(blocks, axis=1)
    values[np.isinf(values)] = np.nan
    for name, column in zip(names, values, strict=True):
        if len(column) and np.isnan(column).all():
            raise DataError(
                f"{path}: the column {name!r} has no number. Name another with --within; a column "
                "of texts needs a list of its values."
            )
    return list(values), persons


def first_of_each(persons: Sequence[str]) -> npt.NDArray[np.int64]:
    """The row in which each person occurs first."""
    _, first = np.unique(np.array(persons), return_index=True)
    return np.sort(first).astype(np.int64)
