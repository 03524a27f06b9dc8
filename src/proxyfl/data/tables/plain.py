"""The user's own tables without a schema: ``.csv``, ``.parquet``, ``.xlsx``, queries, data frames.

Values are taken as they are. Standardising a column with its own mean and deviation would be a look
at the data that no privacy accounting covers: scale with constants known beforehand (an age by
1/100), or account for the statistics.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from proxyfl._command import command
from proxyfl.data.dataset import Asked, Dataset, hold_out
from proxyfl.data.examples import InMemory
from proxyfl.data.labels import encode_labels
from proxyfl.data.tables.reading import Dialect, read
from proxyfl.data.tables.schema import MISSING
from proxyfl.errors import DataError

MANY_CLASSES = 20
"""With more distinct labels than this, and nearly as many as rows, a column is no label."""

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a model's input can be."""


def load_table(path: Path, asked: Asked, dialect: Dialect | None = None) -> Dataset:
    """The table in a file; see ``of_frame``. ``dialect`` is the form of a CSV file."""
    return of_frame(path, read_table(path, dialect), asked)


def of_frame(path: Path, frame: Any, asked: Asked) -> Dataset:
    """A table with one example a row: ``label`` and ``site`` name columns, every other column is a
    feature.

    Faults are named with their column and their row, counted as a spreadsheet does."""
    label, site = asked.label, asked.site
    _refuse_twice(path, list(frame.columns))
    for column in (label, site) if site else (label,):
        if column not in frame.columns:
            setting = "data.site" if column == site else "data.label"
            known = list(map(str, frame.columns))
            meant = _meant(column, known)
            raise DataError(
                f"{path}: no column {column!r}.{meant} Its columns: {', '.join(known)}. Name the "
                f"right one with --set {setting}=COLUMN."
            )
        if frame[column].isna().any():
            row = _spreadsheet_row(frame, int(frame[column].isna().argmax()))
            raise DataError(
                f"{path}: column {column!r} is empty in row {row}. Complete or remove that row."
            )
    features = [column for column in frame.columns if column not in (label, site)]
    if not features or not len(frame):
        raise DataError(
            f"{path}: expected rows with features besides {label!r}, got {frame.shape[0]} rows."
        )
    for column in features:
        _check_feature(path, frame, column, asked)
    labels = frame[label].to_numpy()
    _check_classes(path, label, frame[label], asked)

    def place(index: int) -> str:
        return f"in row {_spreadsheet_row(frame, index)}"

    y, names = encode_labels(f"{path}, column {label!r}", labels, asked.classes, place=place)
    sites = None
    site_names: tuple[str, ...] = ()
    if site:
        where = f"{path}, column {site!r}"
        sites, site_names = encode_labels(where, frame[site].to_numpy(), place=place)
    # Through 64 bits, whatever a column's type: one fraction among whole numbers changes the type,
    # and must not change how a large number is rounded.
    x = torch.from_numpy(frame[features].to_numpy(dtype=np.float64).astype(np.float32))
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


def _refuse_twice(path: Path, header: Sequence[str]) -> None:
    """Raises DataError if two columns have one name."""
    twice = [name for at, name in enumerate(header) if name in header[:at]]
    if twice:
        raise DataError(
            f"{path}: the column {twice[0]!r} appears twice. Rename or remove one of them."
        )


def _meant(name: str, known: Sequence[str]) -> str:
    """The column that was probably meant, which may differ in capital letters alone."""
    lowered = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), lowered, 1)
    return f" Did you mean {lowered[close[0]]!r}?" if close else ""


def _check_classes(path: Path, label: str, values: Any, asked: Asked) -> None:
    """Raises DataError for a label with one value, or with nearly as many as rows."""
    distinct = values.nunique()
    if distinct < 2 and not asked.classes:
        raise DataError(
            f"{path}: the label {label!r} has one value only, {str(values.iloc[0])!r}, so there is "
            "nothing to predict. Name another column with data.label, or give more records."
        )
    if distinct > MANY_CLASSES and 2 * distinct > len(values):
        raise DataError(
            f"{path}: the label {label!r} has {distinct} different values in {len(values)} rows. "
            "Only classes can be predicted. Name a column with few values with data.label."
        )


def _check_feature(path: Path, frame: Any, column: str, asked: Asked) -> None:
    """Raises DataError unless the values of a column of features are finite numbers."""
    import pandas as pd

    values = frame[column]
    if values.dtype.kind not in "biuf":
        is_text = (pd.to_numeric(values, errors="coerce").isna() & values.notna()).to_numpy()
        first = int(is_text.argmax())
        row = _spreadsheet_row(frame, first)
        fault = (
            f"expected numbers in column {values.name!r}, got {values.iloc[first]!r} in row {row}"
        )
    elif values.isna().any():
        row = _spreadsheet_row(frame, int(values.isna().argmax()))
        fault = f"column {values.name!r} is empty or NaN in row {row}"
    elif (is_large := ~(values.abs() <= LARGEST).to_numpy()).any() and values.dtype.kind != "b":
        first = int(is_large.argmax())
        row = _spreadsheet_row(frame, first)
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


def _spreadsheet_row(frame: Any, index: int) -> int:
    """The row that a spreadsheet shows for the data frame's row ``index``: the header is row 1, and
    blank lines, which are no rows, count."""
    rows = frame.attrs.get("rows")
    return index + 2 if rows is None else int(rows[index])


def read_table(path: Path, dialect: Dialect | None = None) -> Any:
    """A CSV, Parquet or Excel file as a data frame."""
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
        return _of_csv(path, dialect)
    except ImportError as problem:
        needed = "openpyxl" if path.suffix == ".xlsx" else "pyarrow"
        raise DataError(
            f"{path}: reading {path.suffix} needs {needed}: pip install 'proxyfl[tables]'."
        ) from problem
    except (OSError, ValueError) as problem:
        if isinstance(problem, DataError):
            raise
        if path.suffix in (".xlsx", ".parquet"):
            raise DataError(
                f"{path}: not a {path.suffix} file, despite its name, or a damaged one. Save it "
                "as CSV."
            ) from problem
        raise DataError(f"{path}: not a readable table: {problem}. Save it as CSV.") from problem


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
            "Of a DatasetDict take one part, such as dataset['train']."
        )
    return table


def _of_csv(path: Path, dialect: Dialect | None) -> Any:
    """A CSV file in any dialect, read as tables with a schema are (``tables.reading``)."""
    import pandas as pd

    columns: dict[str, list[str]] = {}
    rows: list[int] = []
    decimal = "."
    for part in read(path, dialect):
        _refuse_twice(path, part.header)
        if part.ragged:
            row, fields = part.ragged[0]
            raise DataError(
                f"{path}, row {row}: expected {len(part.header)} fields as in the header, got "
                f"{fields}. Does a text contain the separator? Put it in quotation marks."
            )
        decimal = part.decimal
        rows += part.rows.tolist()
        for name, cells in part.columns.items():
            columns.setdefault(name, []).extend(cells)
    frame = pd.DataFrame({name: _convert(cells, decimal) for name, cells in columns.items()})
    frame.attrs["rows"] = rows
    return frame


def _convert(cells: Sequence[str], decimal: str) -> Any:
    """Numbers, or true and false, where all cells are; else texts. A missing value is NaN."""
    import pandas as pd

    texts = pd.Series([text.strip() for text in cells], dtype=object)
    texts = texts.where(~texts.isin(MISSING), np.nan)
    try:
        return pd.to_numeric(texts.str.replace(decimal, ".", regex=False) if len(texts) else texts)
    except (ValueError, TypeError):
        words = set(texts.dropna().str.lower())
        if words <= {"true", "false"} and not texts.isna().any():
            return texts.str.lower() == "true"
        return texts
