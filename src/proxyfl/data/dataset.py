"""A dataset in memory: training and test examples, labels, and where each training example comes
from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxyfl._validate import number
from proxyfl.errors import DataError
from proxyfl.seeds import numpy_stream


@dataclass(frozen=True)
class Dataset:
    """Examples (N, *shape) as float32 with int64 labels; ``site`` says which institution a training
    example is from.

    Guarantees, checked when one is made:
        * training and test part are non-empty, of one shape, and have a label for each example;
        * every value is finite, every label within 0 .. classes - 1, every site within
          ``site_names``.

    Tables say more. ``test_site`` is the site of each test example, so that each site is also
    judged on its own; ``groups`` and ``test_groups`` number the persons. ``schema`` is the text of
    the table's schema, ``prevalence`` the publicly known share of each class, and ``notes`` say
    what a user should know of how the files were read.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    class_names: tuple[str, ...]
    site: Tensor | None = None
    site_names: tuple[str, ...] = ()
    test_site: Tensor | None = None
    groups: Tensor | None = None
    test_groups: Tensor | None = None
    feature_names: tuple[str, ...] = ()
    schema: str = ""
    prevalence: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.class_names) != self.classes or self.classes < 1:
            raise DataError(
                f"{self.name}: expected one name for each class, got classes={self.classes} "
                f"and {len(self.class_names)} names."
            )
        for part, x, y in (
            ("training", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            _check_part(f"{self.name}, {part} part", x, y, self.classes)
        if self.test_x.shape[1:] != self.train_x.shape[1:]:
            raise DataError(
                f"{self.name}: expected training and test examples of one shape, "
                f"got {tuple(self.train_x.shape[1:])} and {tuple(self.test_x.shape[1:])}."
            )
        if self.site is not None:
            where = f"{self.name}, sites"
            _check_ids(where, "site", self.site, len(self.train_y), len(self.site_names))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train_x.shape[1:])


def split(
    name: str,
    x: Tensor,
    y: Tensor,
    class_names: Sequence[str],
    *,
    test_fraction: float,
    seed: int,
    site: Tensor | None = None,
    site_names: Sequence[str] = (),
) -> Dataset:
    """A dataset whose test part is drawn uniformly from all examples, by the stream ``split`` of
    ``seed`` alone.

    The draw looks at no label: it is the same whatever the examples are.
    """
    number("test_fraction", test_fraction, above=0, below=1, error=DataError)
    if len(x) < 2:
        raise DataError(
            f"{name}: expected at least 2 examples, to train on one and test on another, got "
            f"{len(x)}."
        )
    if len(x) != len(y):
        raise DataError(
            f"{name}: expected a label for each example, got {len(x)} examples and {len(y)} labels."
        )
    tests = min(max(round(test_fraction * len(x)), 1), len(x) - 1)
    order = torch.from_numpy(numpy_stream(seed, "split").permutation(len(x)))
    # Sorted: the examples keep the order of their file, and memory is read forwards.
    test, train = order[:tests].sort().values, order[tests:].sort().values
    return Dataset(
        name=name,
        train_x=x[train],
        train_y=y[train],
        test_x=x[test],
        test_y=y[test],
        classes=len(class_names),
        class_names=tuple(class_names),
        site=None if site is None else site[train],
        site_names=tuple(site_names),
    )


def pixels(values: npt.NDArray[np.uint8]) -> Tensor:
    """Eight-bit pixels as float32 in [0, 1]. The scale is the format's, not the data's: it reveals
    nothing."""
    return torch.from_numpy(np.divide(values, np.float32(255), dtype=np.float32, order="C"))


def encoded(name: str, values: npt.NDArray[Any]) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as int64, and the name of each class.

    Whole numbers stay as they are (classes 0 .. largest); anything else is numbered in the order of
    its sorted names."""
    values = np.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(
            f"{name}: expected one value for each example, got an array of shape {values.shape}."
        )
    if len(values) == 0:
        raise DataError(f"{name}: expected at least one example, got none.")
    if (
        values.dtype.kind == "f"
        and np.isfinite(values).all()
        and (values == np.floor(values)).all()
    ):
        values = values.astype(np.int64)
    if values.dtype.kind == "f":
        raise DataError(
            f"{name}: expected whole numbers or names, got values such as {_strange(values)}."
        )
    if values.dtype.kind in "iu":
        if values.min() < 0:
            where = int(np.argmax(values < 0))
            raise DataError(
                f"{name}: expected numbers from 0, got {values[where]} at index {where}."
            )
        if values.max() >= 1_000_000:
            raise DataError(
                f"{name}: expected a class number, got {values.max()}: is this the right column?"
            )
        return torch.from_numpy(values.astype(np.int64)), tuple(
            str(i) for i in range(int(values.max()) + 1)
        )
    names, ids = np.unique(values.astype(str), return_inverse=True)
    return torch.from_numpy(ids.astype(np.int64)), tuple(map(str, names))


def _strange(values: npt.NDArray[np.floating[Any]]) -> str:
    where = int(np.argmax(~np.isfinite(values) | (values != np.floor(values))))
    return f"{values[where]} at index {where}"


def _check_part(where: str, x: Tensor, y: Tensor, classes: int) -> None:
    if x.dtype != torch.float32:
        raise DataError(f"{where}: expected float32 examples, got {x.dtype}.")
    if x.ndim < 2 or x.numel() == 0:
        raise DataError(
            f"{where}: expected examples (N, ...) with N >= 1, got an array of shape "
            f"{tuple(x.shape)}."
        )
    # Both extremes are NaN if any value is; this reads the data once and allocates nothing.
    if not all(extreme.isfinite() for extreme in x.aminmax()):
        first = [int(i) for i in (~x.isfinite()).nonzero()[0]]
        raise DataError(
            f"{where}: expected finite values, got {x[tuple(first)].item()} in example {first[0]} "
            f"at {tuple(first[1:])}. Remove or fill such values first."
        )
    _check_ids(where, "label", y, len(x), classes)


def _check_ids(where: str, what: str, ids: Tensor, length: int, bound: int) -> None:
    if ids.dtype != torch.int64 or ids.ndim != 1:
        raise DataError(
            f"{where}: expected each {what} as one int64, got {ids.dtype} of shape "
            f"{tuple(ids.shape)}."
        )
    if len(ids) != length:
        raise DataError(
            f"{where}: expected a {what} for each of {length} examples, got {len(ids)}."
        )
    bad = (ids < 0) | (ids >= bound)
    if bad.any():
        first = int(bad.nonzero()[0])
        found = int(ids[first])
        raise DataError(
            f"{where}: expected every {what} within 0..{bound - 1}, got {found} at index {first}."
        )
