"""New examples, without labels, to predict from: read as the training data was, and checked against
its shape."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from proxyfl._examples import Shape
from proxyfl.data import arrays
from proxyfl.data.examples import as_inputs, pixels, read_npy
from proxyfl.data.sources.folders import read_image
from proxyfl.data.tables import plain
from proxyfl.errors import DataError


def load_inputs(path: Path, shape: Shape) -> Tensor:
    """The examples in ``path`` as (n, *shape): an .npz with x, an .npy, a table without label, or
    one image."""
    if not path.is_file():
        raise DataError(f"No such file: {path}. Check the name.")
    x = _read(path, shape)
    if tuple(x.shape) == shape:
        x = x.unsqueeze(0)  # a single example
    if tuple(x.shape[1:]) != shape or not len(x):
        raise DataError(
            f"{path}: expected one or more examples of shape {shape}, as in training, got an "
            f"array of shape {tuple(x.shape)}. Prepare them as the training data."
        )
    if not bool(x.isfinite().all()):
        raise DataError(
            f"{path}: expected finite numbers, got NaN or infinity. Correct or remove those "
            "examples."
        )
    return x


def _read(path: Path, shape: Shape) -> Tensor:
    if path.suffix == ".npz":
        arrays_by_key = arrays.read_npz(path)
        key = next((k for k in ("x", "x_test") if k in arrays_by_key), None)
        if key is None:
            raise DataError(
                f"{path}: expected an array x of shape (n, *{shape}), "
                f"got {', '.join(arrays_by_key) or 'no array'}."
            )
        return as_inputs(f"{path}, {key}", arrays_by_key[key])
    if path.suffix == ".npy":
        return as_inputs(str(path), read_npy(path))
    if path.suffix in (".csv", ".parquet", ".xlsx"):
        numbers = plain.read_table(path).select_dtypes("number")
        return torch.from_numpy(numbers.to_numpy(dtype=np.float32, copy=True))
    return pixels(read_image(path).transpose(2, 0, 1)[None])
