"""New rows of a table, to predict from: by the names of their columns, in the file's order.

Guarantees:
    * the order of columns makes no difference;
    * a column that is missing or unknown is refused by name, and so is every other fault;
    * ids come out in the order of the rows, as the file writes them.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.encoding import encode
from proxyfl.data.tables.faults import Tally, of_header
from proxyfl.data.tables.plain import read_table
from proxyfl.data.tables.reading import read
from proxyfl.errors import DataError


@dataclass(frozen=True)
class NamedRows:
    """Features, the id of each row, and what a user should know of how they were read."""

    x: Tensor
    ids: Sequence[str]
    notes: Sequence[str]


def by_schema(path: Path, text: str, *, ids: str | None = None) -> NamedRows:
    """The rows of ``path``, encoded by the schema in ``text``; label, site and person need not be
    there.

    ``ids`` names the column of ids; absent: the schema's person, or else the row's number."""
    schema = schemas.parse(tomllib.loads(text))
    tally = Tally()
    blocks = []
    names: list[str] = []
    for number, part in enumerate(read(path)):
        column = ids or (schema.person if schema.person in part.header else None)
        if number == 0:
            known = [name for name in part.header if name != ids]
            tally.add(of_header(schema, known, labelled=False))
            _check_ids(path, ids, part.header)
        encoded, faults = encode(schema, part, tally, labelled=False)
        tally.add(faults)
        blocks.append(encoded.x)
        if column is None:
            names += map(str, part.rows.tolist())
        else:
            names += part.columns[column]
    if tally.faults:
        raise DataError(f"{path}: does not fit the model's schema.{tally.summarise()}")
    x = np.concatenate(blocks)
    if not len(x):
        raise DataError(f"{path}: expected rows to predict from, got none.")
    return NamedRows(torch.from_numpy(x), names, tally.notes())


def by_name(
    path: Path, features: Sequence[str], *, ids: str | None = None, others: Sequence[str] = ()
) -> NamedRows:
    """The numeric columns ``features`` of a table; ``others`` may be there and are not used."""
    frame = read_table(path)
    header = [str(name) for name in frame.columns]
    _check_ids(path, ids, header)
    known = (*features, *others, ids)
    missing = [name for name in features if name not in header]
    unknown = [name for name in header if name not in known]
    problems = []
    if missing:
        problems.append(f"no column {', '.join(missing)}")
    if unknown:
        problems.append(f"unknown column {', '.join(unknown)}")
    if problems:
        raise DataError(
            f"{path}: {'; '.join(problems)}. The model was trained on {', '.join(features)}."
        )
    for name in features:
        if frame[name].dtype.kind not in "biuf":
            raise DataError(
                f"{path}: expected numbers in column {name!r}. Correct the cells that are not "
                "numbers."
            )
    values = frame[list(features)].to_numpy(dtype=np.float32, copy=True)
    if not np.isfinite(values).all():
        raise DataError(
            f"{path}: expected finite numbers, got NaN or infinity. Correct or remove those rows."
        )
    rows = range(len(frame)) if ids is None else frame[ids]
    return NamedRows(torch.from_numpy(values), list(map(str, rows)), ())


def _check_ids(path: Path, ids: str | None, header: Sequence[str]) -> None:
    if ids is not None and ids not in header:
        raise DataError(f"{path}: no column {ids!r} for the ids. Its columns: {', '.join(header)}.")
