"""Kinds of examples: tensors in memory, an array in a file, and a part of either.

A trainer, a partition, an evaluation and a checksum take any kind (``Examples``), and a run gives
the same bits whichever it is: the kind decides where inputs are kept, never what they are.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxyfl._examples import Examples as Examples
from proxyfl._examples import Shape
from proxyfl.errors import DataError

CHUNK_BYTES = 2**24
"""Inputs are read through in pieces of about this size."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class InMemory:
    """Inputs ``x`` (N, *shape), labels and groups as tensors."""

    x: Tensor
    labels: Tensor
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> Shape:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    def take(self, rows: Tensor) -> Tensor:
        """The inputs of ``rows``, copied."""
        return self.x.index_select(0, rows.to(self.x.device))


@dataclass(frozen=True, eq=False)
class MemoryMapped:
    """Inputs in a ``.npy`` file, of which only the rows in use are read.

    The values are those that ``as_inputs`` makes of the array. The file must not change while it is
    in use; a run's checksum tells whether it has changed since.
    """

    path: Path
    labels: Tensor
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self._array)

    @cached_property
    def shape(self) -> Shape:
        return tuple(self._inputs(self._array[:0]).shape[1:])

    def take(self, rows: Tensor) -> Tensor:
        return self._inputs(self._array[rows.cpu().numpy()])

    @cached_property
    def _array(self) -> Array:
        return read_npy(self.path, mapped=True)

    def _inputs(self, values: Array) -> Tensor:
        return as_inputs(str(self.path), values)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("path", "labels", "groups")}


@dataclass(frozen=True, eq=False)
class Subset:
    """Some rows of other examples. No input is copied."""

    examples: Examples
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def labels(self) -> Tensor:
        return self.examples.labels[self.rows]

    @cached_property
    def groups(self) -> Tensor | None:
        groups = self.examples.groups
        return None if groups is None else groups[self.rows]

    @property
    def shape(self) -> Shape:
        return self.examples.shape

    def take(self, rows: Tensor) -> Tensor:
        return self.examples.take(self.rows[rows])


@dataclass(frozen=True, eq=False)
class Relabelled:
    """Other examples with other labels, such as classes numbered in another order."""

    examples: Examples
    labels: Tensor

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def groups(self) -> Tensor | None:
        return self.examples.groups

    @property
    def shape(self) -> Shape:
        return self.examples.shape

    def take(self, rows: Tensor) -> Tensor:
        return self.examples.take(rows)


@dataclass(frozen=True, eq=False)
class Joined:
    """Several examples one after the other. No input is copied."""

    parts: tuple[Examples, ...]
    labels: Tensor
    groups: Tensor | None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> Shape:
        return self.parts[0].shape

    def take(self, rows: Tensor) -> Tensor:
        inputs = torch.empty((len(rows), *self.shape))
        start = 0
        for part in self.parts:
            wanted = (rows >= start) & (rows < start + len(part))
            if wanted.any():
                inputs[wanted] = part.take(rows[wanted] - start)
            start += len(part)
        return inputs


@dataclass(frozen=True, eq=False)
class Absent:
    """Examples whose inputs another process holds: labels, groups and shape are all there is."""

    labels: Tensor
    groups: Tensor | None
    shape: Shape

    @classmethod
    def like(cls, examples: Examples) -> Self:
        """``examples`` without their inputs."""
        return cls(*_copy(examples), examples.shape)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Tensor:
        raise DataError(
            f"This process has handed the inputs of {len(rows)} examples to its workers. Load the "
            "data again to read them here."
        )


def chunks(examples: Examples, size: int | None = None) -> Iterator[Tensor]:
    """All inputs in order, ``size`` examples at a time; as many as fill 16 MB for None."""
    if size is None:
        each = max(1, 4 * math.prod(examples.shape))
        size = max(1, CHUNK_BYTES // each)
    if isinstance(examples, InMemory):
        yield from torch.split(examples.x, size)  # views: nothing is copied
        return
    for rows in torch.split(torch.arange(len(examples)), size):
        if len(rows):
            yield examples.take(rows)


def checksum(examples: Examples, start: int = 0) -> int:
    """A CRC-32 of all inputs, then all labels: equal for equal examples, of whichever kind."""
    crc = start
    for inputs in chunks(examples):
        crc = _crc(inputs.cpu(), crc)
    return _crc(examples.labels, crc)


def _crc(tensor: Tensor, start: int) -> int:
    return zlib.crc32(tensor.contiguous().numpy().data, start)


def is_in_memory(examples: Examples) -> bool:
    """True if the inputs are tensors in this process."""
    while isinstance(examples, Subset | Relabelled):
        examples = examples.examples
    return isinstance(examples, InMemory)


def gather(examples: Examples, device: str | torch.device = "cpu") -> InMemory:
    """A copy of the inputs on ``device``, which keeps nothing else alive."""
    inputs = examples.take(torch.arange(len(examples))).to(device)
    return InMemory(inputs, *_copy(examples))


def joined(parts: Sequence[Examples], groups: Sequence[Tensor | None]) -> Examples:
    """All of ``parts`` as one, in their order. ``groups`` are the persons of each part, numbered
    for all of them together; None for each where nobody names persons."""
    labels = torch.cat([part.labels for part in parts])
    known = [each for each in groups if each is not None]
    persons = torch.cat(known) if known else None
    whole = Joined(tuple(parts), labels, persons)
    if all(map(is_in_memory, parts)):
        return gather(whole)
    return whole


def _copy(examples: Examples) -> tuple[Tensor, Tensor | None]:
    """Labels and groups."""
    groups = examples.groups
    return examples.labels.clone(), None if groups is None else groups.clone()


def on_device(examples: Examples, device: str) -> Examples:
    """The examples with their inputs on ``device``; what is read from a file stays there."""
    if device == "cpu" or not is_in_memory(examples):
        return examples
    return gather(examples, device)


def pixels(values: npt.NDArray[np.uint8]) -> Tensor:
    """Eight-bit pixels as float32 in [0, 1]. The scale is the format's, so it reveals nothing."""
    scaled = np.divide(values, np.float32(255), dtype=np.float32, order="C")
    return torch.from_numpy(scaled)


def as_inputs(where: str, values: Array) -> Tensor:
    """An array of examples as float32 inputs; unsigned bytes are pixels, channel first or last."""
    if values.dtype == np.uint8:
        if values.ndim == 3:
            values = values[:, None]
        elif values.ndim == 4 and values.shape[3] <= 4 < values.shape[1]:
            values = np.moveaxis(values, 3, 1)
        return pixels(values)
    if values.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: expected numbers, got {values.dtype}. Convert the values to float32."
        )
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        values = values.astype(np.float64)  # rounded as they are in an array with a fraction
    return torch.from_numpy(values.astype(np.float32))


def read_npy(path: Path, *, mapped: bool = False) -> Array:
    """The array in a ``.npy`` file, mapped rather than read if asked; no pickled objects."""
    try:
        array: Array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, EOFError, ValueError) as problem:
        raise DataError(
            f"{path}: not a readable .npy of plain numbers: {problem}. Write it again with "
            "numpy.save."
        ) from problem
    return array
