"""The user's own tables: ``.csv``, ``.parquet``.

Values are taken as they are. Standardising a column with its own mean and deviation would be a look
at the data that no privacy accounting covers: scale with constants known beforehand (an age by
1/100), or account for the statistics.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxyfl.data.dataset import Asked, Dataset, hold_out
from proxyfl.data.examples import InMemory
from proxyfl.data.labels import encoded
from proxyfl.errors import DataError


def load_table(path: Path, asked: Asked) -> Dataset:
    """A table with one example a row: ``label`` and ``site`` name columns, every other column is a
    feature."""
    label, site = asked.label, asked.site
    frame = read_table(path)
    for column in (label, site) if site else (label,):
        if column not in frame.columns:
            raise DataError(
                f"{path}: no column {column!r}. Its columns: {', '.join(map(str, frame.columns))}."
            )
        if frame[column].isna().any():
            raise DataError(
                f"{path}: column {column!r} is empty in row {int(frame[column].isna().argmax())}."
            )
    features = [column for column in frame.columns if column not in (label, site)]
    if not features or not len(frame):
        raise DataError(
            f"{path}: expected rows with features beside {label!r}, got {frame.shape[0]} rows."
        )
    for column in features:
        values = frame[column]
        if values.dtype.kind not in "biuf":
            raise DataError(
                f"{path}: expected numbers in column {column!r}, got {values.iloc[0]!r} in row 0. "
                "Encode it as numbers or leave it out."
            )
        if values.isna().any():
            raise DataError(
                f"{path}: column {column!r} is empty or NaN in row {int(values.isna().argmax())}. "
                "Fill it or drop the row first."
            )
    labels = frame[label].to_numpy()
    y, names = encoded(f"{path}, column {label!r}", labels, asked.classes)
    sites = None
    site_names: tuple[str, ...] = ()
    if site:
        where = f"{path}, column {site!r}"
        sites, site_names = encoded(where, frame[site].to_numpy())
    x = torch.from_numpy(frame[features].to_numpy(dtype=np.float32, copy=True))
    dataset = hold_out(
        path.stem,
        InMemory(x, y),
        names,
        test_fraction=asked.test_fraction,
        seed=asked.seed,
        site=sites,
        site_names=site_names,
    )
    return dataset.described(feature_names=features)


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
        return pd.read_csv(path)
    except ImportError as problem:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow: pip install 'proxyfl[tables]'."
        ) from problem
    except (OSError, ValueError) as problem:
        raise DataError(f"{path}: not a readable table: {problem}.") from problem
