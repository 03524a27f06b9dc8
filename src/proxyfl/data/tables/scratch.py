"""Encoded rows as they come: in memory while they are few, else in a file of their own.

The file is readable by its owner alone, is in the folder for temporary files (``TMPDIR``), and is
removed when the process ends. A process that is killed leaves it there.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxyfl.data.examples import Examples, InMemory, MemoryMapped, Subset

Rows = npt.NDArray[np.float32]

IN_MEMORY = 2**26
"""The bytes up to which rows are kept in memory."""

_HEADER = 128


class Scratch:
    """Takes encoded rows in, part by part. ``examples`` are the same values wherever they lie."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows = 0
        self._parts: list[Rows] = []
        self._file: BinaryIO | None = None

    def add(self, x: Rows) -> None:
        """Take in the rows of one part."""
        self.rows += len(x)
        self._parts.append(x)
        if self._file is not None or 4 * self.rows * self.width > IN_MEMORY:
            self._write()

    def examples(
        self, kept: npt.NDArray[np.int64], labels: Tensor, groups: Tensor | None
    ) -> Examples:
        """The rows ``kept``, with the labels and persons of all rows."""
        rows = torch.from_numpy(kept)
        if self._file is None:
            x = torch.from_numpy(np.concatenate(self._parts)[kept])
            persons = None if groups is None else groups[rows]
            return InMemory(x, labels[rows], persons)
        self._file.seek(0)
        self._file.write(_header(self.rows, self.width))
        self._file.flush()
        everything = MemoryMapped(Path(self._file.name), labels, groups)
        return Subset(everything, rows)

    def _write(self) -> None:
        if self._file is None:
            self._file = (_own_folder() / "rows.npy").open("wb")
            self._file.write(bytes(_HEADER))
        for x in self._parts:
            self._file.write(np.ascontiguousarray(x, dtype="<f4").data)
        self._parts.clear()


def _own_folder() -> Path:
    """A folder that only this user can read, until the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="proxyfl-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker must not
        shutil.rmtree(folder, ignore_errors=True)


def _header(rows: int, width: int) -> bytes:
    """The header of a .npy file, as long for any number of rows."""
    shape = f"({rows}, {width})"
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    start = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    padded = text.ljust(_HEADER - 11) + "\n"
    return start + padded.encode()
