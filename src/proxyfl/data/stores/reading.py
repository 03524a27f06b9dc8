"""Reads a store: its checksums first, then an example whenever a batch asks for it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxyfl.data.dataset import Asked, Dataset, divide_rows, of_rows
from proxyfl.data.examples import pixels
from proxyfl.data.labels import encode_labels
from proxyfl.data.stores import index
from proxyfl.data.stores.index import PARTS, Content, Entry, Head, Shard
from proxyfl.errors import DataError

_AS_IT_IS = Asked()


@dataclass(frozen=True, eq=False)
class Stored:
    """The examples of a store. No more of it is in memory than the rows just asked for.

    Pixels come as float32 in [0, 1], features as they are. Rows are read, not mapped: a limit on
    the process's address space does not limit the store."""

    folder: Path
    content: Content
    shards: tuple[Shard, ...]
    labels: Tensor
    groups: Tensor | None = None

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.content.shape

    def take(self, rows: Tensor) -> Tensor:
        values = self.values(rows)
        if values.dtype == np.uint8:
            return pixels(values)
        return torch.from_numpy(values)

    def values(self, rows: Tensor) -> npt.NDArray[Any]:
        """Some examples as they are stored."""
        wanted = rows.cpu().numpy()
        values = np.empty((len(wanted), *self.shape), dtype=self.content.dtype)
        shards = np.searchsorted(self._ends, wanted, side="right")
        # neighbours in one shard are read at once
        apart = (np.diff(wanted) != 1) | (np.diff(shards) != 0)
        cuts = [0, *(np.flatnonzero(apart) + 1), len(wanted)]
        for first, last in pairwise(cuts):
            if first < last:
                self._read(int(shards[first]), int(wanted[first]), values[first:last])
        return values

    def entries(self) -> list[Entry]:
        """The entry of each example in the store's index."""
        head = index.read_head(self.folder)
        entries = index.read_index(self.folder, head)
        own = {shard.file for shard in self.shards}
        own_entries: list[Entry] = []
        start = 0
        for shard in head.shards:
            if shard.file in own:
                own_entries += entries[start : start + shard.examples]
            start += shard.examples
        return own_entries

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        """The number of examples up to and with each shard."""
        return np.cumsum([shard.examples for shard in self.shards], dtype=np.int64)

    def _read(self, number: int, row: int, into: npt.NDArray[Any]) -> None:
        shard = self.shards[number]
        path = self.folder / shard.file
        size = self.content.row_bytes
        within = row - (int(self._ends[number]) - shard.examples)
        try:
            with path.open("rb", buffering=0) as file:
                # the examples are the end of the file, after the head of the .npy format
                head = os.fstat(file.fileno()).st_size - size * shard.examples
                file.seek(head + size * within)
                complete = _fill(file, into)
        except OSError as problem:
            raise DataError(f"{path}: cannot be read: {problem.strerror}.") from problem
        if not complete:
            raise DataError(
                f"{path}: ends before example {row}: it has changed since the store was loaded. "
                "Load the store again."
            )


def _fill(file: Any, into: npt.NDArray[Any]) -> bool:
    """Read as many bytes as ``into`` has; whether there were as many."""
    left = into.data.cast("B")
    while len(left):
        count = file.readinto(left)
        if not count:
            return False
        left = left[count:]
    return True


def is_store(path: Path) -> bool:
    """True if ``path`` is a folder with a store in it."""
    return (path / index.HEAD).is_file()


def load_store(path: Path, asked: Asked = _AS_IT_IS) -> Dataset:
    """The dataset in a store, of which every shard has the checksum that the store says.

    A shard whose checksum is wrong is named and refused, or, with ``faults="skip"``, left out and
    noted. Where the store knows parts, they are kept. Otherwise the test part is held out by person
    where persons are known, else by record."""
    head = index.read_head(path)
    entries = index.read_index(path, head)
    shards, entries, notes = _select_sound(path, head, entries, asked.faults)
    labels, class_names = encode_labels(
        f"{path}, labels",
        np.array([entry.label for entry in entries]),
        asked.classes or head.content.classes,
    )
    persons, person_names = _number(path, entries, "person")
    sites, site_names = _number(path, entries, "site")
    examples = Stored(path.absolute(), head.content, shards, labels, persons)
    notes += [f"skipped {count} x {kind}" for kind, count in head.skipped.items()]
    name = path.resolve().name
    if all(entry.part == "" for entry in entries):
        records = [entry.record for entry in entries]
        train, test = divide_rows(
            name,
            examples,
            class_names,
            asked.test_fraction,
            asked.key,
            person_names=person_names,
            records=records if all(records) else (),
        )
    else:
        train, test = (_rows_of(path, entries, part) for part in PARTS)
    return of_rows(
        name, examples, class_names, train, test, site=sites, site_names=site_names, notes=notes
    )


def _select_sound(
    path: Path, head: Head, entries: Sequence[Entry], faults: str
) -> tuple[tuple[Shard, ...], list[Entry], list[str]]:
    """The shards whose checksums are right, their entries, and what was left out."""
    shards: list[Shard] = []
    kept: list[Entry] = []
    notes: list[str] = []
    start = 0
    for shard in head.shards:
        own = entries[start : start + shard.examples]
        start += shard.examples
        problem = _problem(path / shard.file, shard, head.content)
        if not problem:
            shards.append(shard)
            kept += own
        elif faults == "skip":
            notes.append(f"skipped {shard.examples} examples of {problem}")
        else:
            raise DataError(
                f"{problem} Restore the file, make the store again, or leave its "
                f'{shard.examples} examples out with data.faults = "skip".'
            )
    if not kept:
        raise DataError(
            f"{path}: every shard of this store is damaged or missing. Restore it, or make the "
            "store again."
        )
    return tuple(shards), kept, notes


def _problem(path: Path, shard: Shard, content: Content) -> str:
    """What is wrong with a shard, in a sentence; empty if nothing is."""
    try:
        digest = index.sha256(path)
        held = _held(path)
    except OSError as refused:
        return f"{path}: cannot be read: {refused.strerror}."
    if digest != shard.sha256:
        return (
            f"{path}: its SHA-256 is {digest}, expected {shard.sha256}: it is damaged or was "
            "changed."
        )
    expected = (shard.examples, *content.shape)
    if held != (expected, content.dtype):
        return f"{path}: expected {content.dtype} of shape {expected}, got {held}."
    return ""


def _held(path: Path) -> tuple[tuple[int, ...], str] | None:
    """The shape and the type of the array in a ``.npy`` file; None if it is none."""
    with path.open("rb") as file:
        try:
            np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0(file)
        except ValueError:
            return None
    shape, _, dtype = header
    return shape, str(dtype)


def _number(
    path: Path, entries: Sequence[Entry], what: str
) -> tuple[Tensor | None, tuple[str, ...]]:
    """The persons or sites, numbered in the order of their sorted names, and these; None if no
    entry has one."""
    texts = np.array([getattr(entry, what) for entry in entries])
    if not any(texts):
        return None, ()
    if what == "person" and not all(texts):
        row = int(np.argmax(texts == ""))
        raise DataError(
            f"{path}: example {row} names no person, and others do. Those without a name would be "
            "taken for one person. Name them all, or none."
        )
    names, numbers = np.unique(texts, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(map(str, names))


def _rows_of(path: Path, entries: Sequence[Entry], part: str) -> Tensor:
    rows = [i for i, entry in enumerate(entries) if entry.part == part]
    strange = {entry.part for entry in entries} - set(PARTS)
    if strange or not rows:
        raise DataError(
            f"{path}: expected every example in the part train or test and some in each, got the "
            f"parts {sorted({entry.part for entry in entries})}. Make the store again with both "
            "parts."
        )
    return torch.tensor(rows)
