"""Every kind of examples gives the same rows, the same checksum, and copies no more than asked."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
import torch

from proxyfl.data.examples import (
    Examples,
    InMemory,
    MemoryMapped,
    Subset,
    as_inputs,
    checksum,
    chunks,
    gather,
    is_in_memory,
)
from proxyfl.data.sources import load
from proxyfl.data.stores import writing
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import Content, Entry
from proxyfl.data.stores.writing import write_store
from proxyfl.errors import DataError

VALUES = np.random.default_rng(0).integers(0, 256, (50, 9, 8, 3), dtype=np.uint8)
LABELS = torch.arange(50) % 4
PERSONS = torch.arange(50) // 2
ROWS = torch.tensor([7, 3, 3, 49, 0])

Make = Callable[[Path, npt.NDArray[np.generic]], Examples]


def in_memory(_folder: Path, values: npt.NDArray[np.generic]) -> Examples:
    """All inputs as one tensor."""
    return InMemory(as_inputs("x", values), LABELS, PERSONS)


def mapped(folder: Path, values: npt.NDArray[np.generic]) -> Examples:
    """The inputs in a file."""
    np.save(folder / "x.npy", values)
    return MemoryMapped(folder / "x.npy", LABELS, PERSONS)


def part_of_more(folder: Path, values: npt.NDArray[np.generic]) -> Examples:
    """The same examples as a part of twice as many."""
    twice = np.concatenate([values[::-1], values])
    np.save(folder / "x.npy", twice)
    everything = MemoryMapped(
        folder / "x.npy", torch.cat([LABELS.flip(0), LABELS]), torch.cat([PERSONS, PERSONS])
    )
    return Subset(everything, torch.arange(50, 100))


def stored(folder: Path, values: npt.NDArray[np.generic]) -> Examples:
    """The same examples in the shards of a store."""
    if values.dtype == np.uint8:
        values = np.moveaxis(values, 3, 1)
    values = values.astype(np.uint8 if values.dtype == np.uint8 else np.float32)
    content = Content(values.shape[1:], str(values.dtype), tuple("0123"))
    entries = [
        Entry(label=str(int(label)), person=f"{int(person):02d}")
        for label, person in zip(LABELS, PERSONS, strict=True)
    ]

    def read(start: int, some: Sequence[Entry]) -> Iterator[npt.NDArray[np.generic]]:
        return iter(values[start : start + len(some)])

    with mock.patch.object(writing, "SHARD_BYTES", 6 * content.row_bytes):
        place = folder / f"store-{len(list(folder.iterdir()))}"
        write_store(place, content, entries, read, Faults())
    loaded = load(str(place)).train
    assert isinstance(loaded, Subset)
    return loaded.examples


KINDS: list[Make] = [in_memory, mapped, part_of_more, stored]


@pytest.mark.parametrize("make", KINDS)
class TestExamplesContract:
    """What ``Examples`` promises, of every kind."""

    def test_rows(self, make: Make, tmp_path: Path) -> None:
        """The rows asked for come in the order asked, as float32, with repetitions."""
        examples = make(tmp_path, VALUES)
        expected = torch.from_numpy(VALUES.copy()).permute(0, 3, 1, 2)[ROWS].float() / 255
        assert len(examples) == 50
        assert examples.shape == (3, 9, 8)
        assert torch.equal(examples.take(ROWS), expected)
        assert torch.equal(examples.labels, LABELS)
        assert examples.groups is not None
        assert torch.equal(examples.groups, PERSONS)

    def test_no_rows(self, make: Make, tmp_path: Path) -> None:
        """An empty batch has the right shape."""
        examples = make(tmp_path, VALUES)
        assert examples.take(ROWS[:0]).shape == (0, 3, 9, 8)

    def test_numbers_stay_as_they_are(self, make: Make, tmp_path: Path) -> None:
        """Anything but unsigned bytes is taken as it is."""
        numbers = np.random.default_rng(1).normal(size=(50, 6))
        examples = make(tmp_path, numbers)
        assert torch.equal(examples.take(ROWS), torch.from_numpy(numbers).float()[ROWS])

    def test_checksum(self, make: Make, tmp_path: Path) -> None:
        """Equal examples of any kind have equal checksums; one other label or pixel tells."""
        reference = in_memory(tmp_path, VALUES)
        assert checksum(make(tmp_path, VALUES)) == checksum(reference)
        other = VALUES.copy()
        other[49, 8, 7, 2] ^= 1
        assert checksum(make(tmp_path, other)) != checksum(reference)

    def test_pickled(self, make: Make, tmp_path: Path) -> None:
        """A pickle of examples gives the same rows."""
        examples = make(tmp_path, VALUES)
        before = examples.take(ROWS)
        assert torch.equal(pickle.loads(pickle.dumps(examples)).take(ROWS), before)

    def test_chunks(self, make: Make, tmp_path: Path) -> None:
        """Chunks are the whole in order, each no larger than asked."""
        examples = make(tmp_path, VALUES)
        parts = list(chunks(examples, 7))
        assert max(map(len, parts)) == 7
        assert torch.equal(torch.cat(parts), examples.take(torch.arange(50)))

    def test_gathered(self, make: Make, tmp_path: Path) -> None:
        """A gathered copy has the same content and is in memory."""
        examples = make(tmp_path, VALUES)
        copy = gather(Subset(examples, ROWS))
        assert torch.equal(copy.x, examples.take(ROWS))
        assert torch.equal(copy.labels, LABELS[ROWS])
        assert is_in_memory(copy)


def test_a_file_is_pickled_as_its_path(tmp_path: Path) -> None:
    """What another process is sent of a mapped file is its path, whatever was read before."""
    values = np.zeros((1000, 100), dtype=np.float32)
    np.save(tmp_path / "x.npy", values)
    examples = MemoryMapped(tmp_path / "x.npy", torch.zeros(1000, dtype=torch.int64))
    examples.take(torch.arange(1000))
    assert len(pickle.dumps(examples)) < 20_000


def test_a_gathered_part_keeps_nothing_else() -> None:
    """A copy of two rows holds the memory of two rows."""
    examples = InMemory(torch.zeros(1000, 8), torch.zeros(1000, dtype=torch.int64))
    copy = gather(Subset(examples, torch.tensor([1, 2])))
    assert copy.x.untyped_storage().nbytes() == 2 * 8 * 4
    assert copy.labels.untyped_storage().nbytes() == 2 * 8


def test_what_is_in_memory(tmp_path: Path) -> None:
    """A part of tensors is in memory, a part of a file is not."""
    assert is_in_memory(Subset(in_memory(tmp_path, VALUES), ROWS))
    assert not is_in_memory(Subset(mapped(tmp_path, VALUES), ROWS))


def test_a_file_that_is_no_array(tmp_path: Path) -> None:
    """A damaged file, objects and names are refused by the file's name."""
    labels = torch.zeros(3, dtype=torch.int64)
    (tmp_path / "x.npy").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"x\.npy: not a readable \.npy"):
        len(MemoryMapped(tmp_path / "x.npy", labels))
    np.save(tmp_path / "x.npy", np.array(["a", "b", "c"]))
    with pytest.raises(DataError, match=r"x\.npy: expected numbers, got <U1"):
        _ = MemoryMapped(tmp_path / "x.npy", labels).shape
