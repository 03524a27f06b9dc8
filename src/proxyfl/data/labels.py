"""Labels as files have them, numbers or names, to class numbers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxyfl.errors import DataError


def encode_labels(
    name: str,
    values: npt.NDArray[Any],
    classes: Sequence[str] = (),
    *,
    place: Callable[[int], str] = "at index {}".format,
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as int64, and the name of each class. Errors say where a label is by ``place``.

    With ``classes``, label i is the i-th of them, whatever labels there are, and a label that is
    not among them is refused. Without, whole numbers stay as they are (classes 0 .. largest), and
    anything else is numbered in the order of its sorted names: the classes then follow from the
    data."""
    values = np.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(
            f"{name}: expected one value for each example, got an array of shape {values.shape}. "
            "Give a single column of labels."
        )
    if len(values) == 0:
        raise DataError(
            f"{name}: expected at least one example, got none. Check that the file and its "
            "selection are not empty."
        )
    if values.dtype.kind == "f":
        strange = ~np.isfinite(values) | (values != np.floor(values))
        if strange.any():
            where = int(np.argmax(strange))
            raise DataError(
                f"{name}: expected whole numbers or names, got values such as {values[where]} "
                f"{place(where)}."
            )
        values = values.astype(np.int64)
    if classes:
        return _number(name, values, classes, place), tuple(classes)
    if values.dtype.kind in "iu":
        if values.min() < 0:
            where = int(np.argmax(values < 0))
            raise DataError(f"{name}: expected numbers from 0, got {values[where]} {place(where)}.")
        if values.max() >= 1_000_000:
            raise DataError(
                f"{name}: expected a class number, got {values.max()}: is this the right column? "
                "Name the one with the classes."
            )
        ids = values
        names: Iterable[object] = range(int(values.max()) + 1)
    else:
        names, ids = np.unique(values.astype(str), return_inverse=True)
    return torch.from_numpy(ids.astype(np.int64)), tuple(map(str, names))


def _number(
    name: str, values: npt.NDArray[Any], classes: Sequence[str], place: Callable[[int], str]
) -> Tensor:
    """For each label its place in ``classes``."""
    numbers = {each: number for number, each in enumerate(classes)}
    texts = values.astype(str)
    distinct, places = np.unique(texts, return_inverse=True)
    of_distinct = np.empty(len(distinct), dtype=np.int64)
    for i, label in enumerate(distinct.tolist()):
        if label not in numbers:
            where = int(np.argmax(texts == label))
            raise DataError(
                f"{name}: label {label!r} {place(where)} is not among data.classes, which are "
                f"{list(classes)}. Correct it, leave the example out, or agree on a longer list."
            )
        of_distinct[i] = numbers[label]
    return torch.from_numpy(of_distinct[places])
