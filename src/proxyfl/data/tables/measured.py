"""Columns of a file as plain numbers, where no schema is needed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from proxyfl.data.tables.encoding import each, number
from proxyfl.data.tables.reading import Dialect, read
from proxyfl.data.tables.schema import MISSING, canonical
from proxyfl.errors import DataError


def numbers(
    path: Path,
    names: Sequence[str],
    dialect: Dialect | None = None,
    *,
    person: str | None = None,
) -> tuple[list[npt.NDArray[np.float64]], list[str]]:
    """The columns ``names``, NaN where a cell has no number, and the person of each row."""
    parts: list[list[npt.NDArray[np.float64]]] = [[] for _ in names]
    persons: list[str] = []
    for part in read(path, dialect):
        for name in [*names, *([person] if person else [])]:
            if name not in part.columns:
                raise DataError(
                    f"{path}: no column {name!r}. Its columns: {', '.join(part.header)}."
                )
        for found, name in zip(parts, names, strict=True):
            found.append(_values(part.columns[name], part.decimal))
        if person is not None:
            persons += [text.strip() for text in part.columns[person]]
    return [np.concatenate(found) for found in parts], persons


def first_of_each(persons: Sequence[str]) -> npt.NDArray[np.int64]:
    """The row in which each person occurs first."""
    return np.sort(np.unique(np.array(persons), return_index=True)[1]).astype(
        np.int64
    )


def _values(texts: Sequence[str], decimal: str) -> npt.NDArray[np.float64]:
    def meaning(text: str) -> float:
        return (
            np.nan
            if canonical(text) in MISSING
            else number(text.replace(decimal, "."))
        )

    values = each(meaning, texts)
    values[np.isinf(values)] = np.nan
    return values
