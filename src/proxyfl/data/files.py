"""The user's own arrays and tables: ``.npz``, ``.csv``, ``.parquet``.

Values are taken as they are. Standardising a column with its own mean and deviation would be a look
at the data that no privacy accounting covers: scale with constants known beforehand (an age by
1/100), or account for the statistics. The exception is an array of unsigned bytes: those are
pixels, scaled by 1/255, whatever they show."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxyfl.data.dataset import Dataset, encoded, pixels, split
from proxyfl.errors import DataError

PARTS = ("x_train", "y_train", "x_test", "y_test")


def load_npz(
    path: Path, *, site: str | None = None, test_fraction: float = 0.2, seed: int = 0
) -> Dataset:
    """``x`` and ``y``, of which a part is kept for the test, or ``x_train, y_train, x_test,
    y_test``.

    ``site`` names an array with the site of each example of ``x`` or ``x_train``. Images are (N, C,
    H, W); unsigned bytes may also come as (N, H, W) or (N, H, W, C) with at most four channels."""
    arrays = read_npz(path)
    wanted = PARTS if "x_train" in arrays else ("x", "y")
    missing = [key for key in (*wanted, *([site] if site else [])) if key not in arrays]
    if missing:
        raise DataError(
            f"{path}: no array {', '.join(missing)}. Expected x and y, or {', '.join(PARTS)}; "
            f"found {', '.join(arrays) or 'nothing'}."
        )
    sites, site_names = encoded(f"{path}, {site}", arrays[site]) if site else (None, ())
    x, labels = features(path, wanted[0], arrays[wanted[0]]), arrays[wanted[1]]
    if wanted != PARTS:
        y, names = encoded(f"{path}, y", labels)
        return split(
            path.stem,
            x,
            y,
            names,
            test_fraction=test_fraction,
            seed=seed,
            site=sites,
            site_names=site_names,
        )
    # Encoded together, so that a class number means the same in both parts.
    train_count = len(labels)
    y, names = encoded(f"{path}, y_train and y_test", np.concatenate([labels, arrays["y_test"]]))
    return Dataset(
        name=path.stem,
        train_x=x,
        train_y=y[:train_count],
        test_x=features(path, "x_test", arrays["x_test"]),
        test_y=y[train_count:],
        classes=len(names),
        class_names=names,
        site=sites,
        site_names=site_names,
    )


def load_table(
    path: Path,
    *,
    label: str = "label",
    site: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """A table with one example a row: ``label`` and ``site`` name columns, every other column is a
    feature."""
    frame = read_table(path)
    for column in (label, *([site] if site else [])):
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
    y, names = encoded(f"{path}, column {label!r}", frame[label].to_numpy())
    sites, site_names = (
        encoded(f"{path}, column {site!r}", frame[site].to_numpy()) if site else (None, ())
    )
    x = torch.from_numpy(frame[features].to_numpy(dtype=np.float32, copy=True))
    return split(
        path.stem,
        x,
        y,
        names,
        test_fraction=test_fraction,
        seed=seed,
        site=sites,
        site_names=site_names,
    )


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Every array in the file; pickled objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, AttributeError) as problem:
        raise DataError(f"{path}: not a readable .npz of plain arrays: {problem}.") from problem


def features(path: Path, key: str, values: npt.NDArray[Any]) -> Tensor:
    """An array of examples as a tensor; uint8 means pixels, channel first or last."""
    if values.dtype == np.uint8:
        if values.ndim == 3:
            values = values[:, None]
        elif values.ndim == 4 and values.shape[3] <= 4 < values.shape[1]:
            values = np.moveaxis(values, 3, 1)
        return pixels(values)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: expected numbers in {key}, got {values.dtype}.")
    return torch.from_numpy(values.astype(np.float32))


def read_table(path: Path) -> Any:
    """A CSV or Parquet file as a data frame."""
    try:
        import pandas as pd
    except ImportError as problem:
        raise DataError(
            f"{path}: reading tables needs pandas: pip install 'proxyfl[tables]'."
        ) from problem
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ImportError as problem:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow: pip install 'proxyfl[tables]'."
        ) from problem
    except (OSError, ValueError) as problem:
        raise DataError(f"{path}: not a readable table: {problem}.") from problem
