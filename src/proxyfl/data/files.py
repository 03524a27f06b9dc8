"""The user's own tables without a schema: ``.csv``, ``.parquet``, ``.xlsx``, queries, data frames.

Values are taken as they are. Standardising a column with its own mean and deviation would be a look
at the data that no privacy accounting covers: scale with constants known beforehand (an age by
1/100), or account for the statistics.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from proxyfl._command import command
from proxyfl.data.dataset import Asked, Dataset, hold_out
from proxyfl.data.examples import InMemory
from proxyfl.data.labels import encoded
from proxyfl.errors import DataError


def load_table(path: Path, asked: Asked) -> Dataset:
    """The table in a file; see ``of_frame``."""
    return of_frame(path, read_table(path), asked)


def of_frame(path: Path, frame: Any, asked: Asked) -> Dataset:
    """A table with one example a row: ``label`` and ``site`` name columns, every other column is a
    feature.

    Faults are named with their column and their row, counted as a spreadsheet does."""
    label, site = asked.label, asked.site
    for column in (label, site) if site else (label,):
        if column not in frame.columns:
            setting = "data.site" if column == site else "data.label"
            raise DataError(
                f"{path}: no column {column!r}. Its columns: {', '.join(map(str, frame.columns))}. "
                f"Name the right one with {setting}."
            )
        if frame[column].isna().any():
            row = _spreadsheet_row(path, int(frame[column].isna().argmax()))
            raise DataError(
                f"{path}: column {column!r} is empty in row {row}. Complete or remove that row."
            )
    features = [column for column in frame.columns if column not in (label, site)]
    if not features or not len(frame):
        raise DataError(
            f"{path}: expected rows with features beside {label!r}, got {frame.shape[0]} rows."
        )
    for column in features:
        _check_feature(path, frame[column], asked)
    labels = frame[label].to_numpy()
    y, names = encoded(
        f"{path}, column {label!r}", labels, asked.classes, place=lambda i: _place(path, i)
    )
    sites = None
    site_names: tuple[str, ...] = ()
    if site:
        where = f"{path}, column {site!r}"
        sites, site_names = encoded(where, frame[site].to_numpy(), place=lambda i: _place(path, i))
    x = torch.from_numpy(frame[features].to_numpy(dtype=np.float32, copy=True))
    dataset = hold_out(
        path.stem,
        InMemory(x, y),
        names,
        test_fraction=asked.test_fraction,
        key=asked.key,
        site=sites,
        site_names=site_names,
    )
    return dataset.described(feature_names=features)


def _check_feature(path: Path, values: Any, asked: Asked) -> None:
    """Raises DataError unless ``values``, a column of features, are finite numbers."""
    import pandas as pd

    if values.dtype.kind not in "biuf":
        is_text = (pd.to_numeric(values, errors="coerce").isna() & values.notna()).to_numpy()
        first = int(is_text.argmax())
        row = _spreadsheet_row(path, first)
        fault = (
            f"expected numbers in column {values.name!r}, got {values.iloc[first]!r} in row {row}"
        )
    elif values.isna().any():
        row = _spreadsheet_row(path, int(values.isna().argmax()))
        fault = f"column {values.name!r} is empty or NaN in row {row}"
    elif np.isinf(values.to_numpy(dtype=np.float32)).any():
        first = int(np.isinf(values.to_numpy(dtype=np.float32)).argmax())
        row = _spreadsheet_row(path, first)
        raise DataError(
            f"{path}: expected finite values, got {values.iloc[first]} in column {values.name!r}, "
            f"row {row}. Correct it or remove the row."
        )
    else:
        return
    words = ["schema", "draft", str(path), "--label", asked.label]
    if asked.site:
        words += ["--site", asked.site]
    raise DataError(
        f"{path}: {fault}. A public schema says what gaps and words mean; do not fill gaps with "
        "statistics of the records, which no epsilon covers. Draft one, complete it, and name it "
        f"with data.schema. Run: {command(*words)}"
    )


def _place(path: Path, index: int) -> str:
    return f"in row {_spreadsheet_row(path, index)}"


def _spreadsheet_row(path: Path, index: int) -> int:
    """The row that a spreadsheet shows for the data frame's row ``index``: the header is row 1, and
    blank lines, which pandas leaves out, count."""
    if path.suffix == ".csv":
        filled = 0
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            for row, cells in enumerate(csv.reader(file), start=1):
                if len(cells) > 1 or "".join(cells).strip():
                    filled += 1
                if filled == index + 2:
                    return row
    return index + 2


def read_table(path: Path) -> Any:
    """A CSV or Parquet file as a data frame."""
    try:
        import pandas as pd
    except ImportError as problem:
        raise DataError(
            f"{path}: reading tables needs pandas: pip install 'proxyfl[tables]'."
        ) from problem
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix == ".xlsx":
            return pd.read_excel(path)
        return pd.read_csv(path)
    except ImportError as problem:
        needed = "openpyxl" if path.suffix == ".xlsx" else "pyarrow"
        raise DataError(
            f"{path}: reading {path.suffix} needs {needed}: pip install 'proxyfl[tables]'."
        ) from problem
    except (OSError, ValueError) as problem:
        raise DataError(f"{path}: not a readable table: {problem}.") from problem


class Rows(NamedTuple):
    """Rows of plain values, each as long as the header."""

    header: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


def as_frame(table: Any) -> Any:
    """A data frame of a user's program, as it is; of a Hugging Face ``Dataset``; of ``Rows``."""
    try:
        import pandas as pd
    except ImportError as problem:
        raise DataError("Tables need pandas: pip install 'proxyfl[tables]'.") from problem
    if hasattr(table, "features") and hasattr(table, "to_pandas"):
        return table.to_pandas()
    if isinstance(table, Rows):
        return pd.DataFrame(table.rows, columns=list(table.header))
    if not isinstance(table, pd.DataFrame):
        raise DataError(
            f"Expected a pandas DataFrame or a Hugging Face Dataset, got {type(table).__name__}. "
            "Of a DatasetDict take one part, such as found['train']."
        )
    return table
