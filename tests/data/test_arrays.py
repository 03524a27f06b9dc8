"""Arrays with persons and sites, in one file or in a folder of files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from proxyfl.data.examples import InMemory, MemoryMapped, Subset
from proxyfl.data.sources import load
from proxyfl.errors import DataError

Write = Callable[..., str]


def one_file(folder: Path, **arrays: np.ndarray) -> str:
    """The arrays as .npz."""
    np.savez(folder / "a.npz", **arrays)
    return str(folder / "a.npz")


def many_files(folder: Path, **arrays: np.ndarray) -> str:
    """The arrays as .npy files of a folder."""
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return str(folder)


@pytest.mark.parametrize("write", [one_file, many_files])
class TestArrays:
    """What both ways to store arrays promise."""

    def test_persons_are_not_torn_apart(self, write: Write, tmp_path: Path) -> None:
        """With an array ``group`` the test part is drawn by person."""
        x = np.arange(40, dtype=np.float32)[:, None]
        found = load(write(tmp_path, x=x, y=np.arange(40) % 2, group=np.arange(40) // 4))
        assert found.train.groups is not None
        assert found.test.groups is not None
        assert not set(found.train.groups.tolist()) & set(found.test.groups.tolist())
        assert torch.equal(found.test.groups, found.test_x[:, 0].long() // 4)
        assert len(found.test) == 8

    def test_a_person_on_both_sides(self, write: Write, tmp_path: Path) -> None:
        """Parts that the user gives may share no person."""
        parts = {"x_train": np.zeros((2, 1)), "y_train": np.zeros(2), "group_train": np.arange(2)}
        parts |= {"x_test": np.zeros((1, 1)), "y_test": np.zeros(1), "group_test": np.ones(1, int)}
        with pytest.raises(DataError, match="the first is group 1"):
            load(write(tmp_path, **parts))

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"group": np.arange(3)}, "a value of group for each of the 4 examples in x, got 3"),
            ({"group": np.array(["a"] * 4)}, "group: expected one whole number for each person"),
            (
                {"group": np.array([0.0, 1.0, np.nan, 2.0])},
                "group: expected one whole number for each person",
            ),
            ({"group": np.array([0, 1, -1, -1])}, "numbered from 0 to .*, got -1 for example 2"),
            (
                {"group": np.array([0, 1, 2, 2**63], dtype=np.uint64)},
                "got 9223372036854775808 for example 3",
            ),
            ({"ward": np.arange(3)}, "a value of ward for each of the 4 examples in x, got 3"),
        ],
    )
    def test_what_is_short_is_named(
        self, more: dict, message: str, write: Write, tmp_path: Path
    ) -> None:
        """A short or senseless array is named, with what was expected."""
        source = write(tmp_path, x=np.zeros((4, 2)), y=np.arange(4) % 2, **more)
        with pytest.raises(DataError, match=message):
            load(source, site="ward" if "ward" in more else None)

    def test_sites(self, write: Write, tmp_path: Path) -> None:
        """An array of sites follows its examples into the training part."""
        x = np.arange(20, dtype=np.float32)[:, None]
        source = write(tmp_path, x=x, y=np.arange(20) % 2, ward=np.arange(20) % 4)
        found = load(source, site="ward")
        assert found.site is not None
        assert torch.equal(found.site, found.train_x[:, 0].long() % 4)


def test_where_inputs_stay(tmp_path: Path) -> None:
    """A folder's inputs stay in their file, those of an .npz are read; both hold the same."""
    x, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3
    in_file = load(many_files(tmp_path, x=x, y=y))
    in_memory = load(one_file(tmp_path, x=x, y=y))
    assert isinstance(in_file.train, Subset)
    assert isinstance(in_file.train.examples, MemoryMapped)
    assert isinstance(in_memory.train, Subset)
    assert isinstance(in_memory.train.examples, InMemory)
    assert torch.equal(in_file.train_x, in_memory.train_x)
    assert torch.equal(in_file.test_y, in_memory.test_y)
