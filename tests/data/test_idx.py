"""idx files: round trip, every kind of damage, where they are looked for."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from proxyfl.data.sources import idx, load
from proxyfl.data.sources.idx import FASHION_MNIST, FILES, MNIST, find, read_idx
from proxyfl.errors import DataError


def idx_bytes(array):
    """The idx encoding, written from its description alone."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_dataset(folder, *, seed=0, suffix=".gz"):
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    sizes = ((256, (30, 28, 28)), (10, (30,)), (256, (10, 28, 28)), (10, (10,)))
    arrays = [generator.integers(0, high, size, dtype=np.uint8) for high, size in sizes]
    for file, array in zip(FILES, arrays, strict=True):
        raw = idx_bytes(array)
        (folder / f"{file}{suffix}").write_bytes(gzip.compress(raw) if suffix else raw)
    return arrays


@settings(max_examples=40)
@given(
    array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6)),
    packed=st.booleans(),
)
def test_round_trip(tmp_path_factory, array, packed):
    """What was encoded is read back exactly, plain or compressed."""
    path = tmp_path_factory.mktemp("idx") / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    found = read_idx(path, array.ndim)
    assert found.shape == array.shape
    assert (found == array).all()


@settings(max_examples=60)
@given(data=st.data())
def test_every_truncation_is_found(tmp_path_factory, data):
    """However many bytes are missing at the end, plain or compressed, the error names the file."""
    raw = idx_bytes(np.arange(60, dtype=np.uint8).reshape(3, 4, 5))
    packed = data.draw(st.booleans())
    raw = gzip.compress(raw) if packed else raw
    path = tmp_path_factory.mktemp("idx") / ("images.gz" if packed else "images")
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(DataError, match=r"images"):
        read_idx(path, 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a", b"\x89PNG....", "expected magic 00000803, got 89504e47"),
        ("a", b"", "got an empty file"),
        (
            "a",
            idx_bytes(np.zeros(4, dtype=np.uint8)),
            "with 3 dimensions: expected magic 00000803, got 00000801",
        ),
        (
            "a",
            bytes((0, 0, 8, 3, 0, 0)),
            "truncated in its header: expected at least 16 bytes, got 6",
        ),
        (
            "a",
            idx_bytes(np.zeros((2, 3, 4), dtype=np.uint8))[:-1],
            "truncated: .* 2 x 3 x 4, .* 40 bytes, got 39",
        ),
        (
            "a",
            idx_bytes(np.zeros((2, 3, 4), dtype=np.uint8)) + b"!",
            "too long: .* 40 bytes, got 41",
        ),
        ("a.gz", b"not gzip", "not a complete gzip file"),
        (
            "a.gz",
            gzip.compress(idx_bytes(np.zeros((2, 3, 4), dtype=np.uint8)), mtime=0)[:-9],
            "not a complete gzip file",
        ),
    ],
)
def test_what_damaged_files_get(tmp_path, name, content, message):
    """Foreign, truncated and overlong files are told apart, by magic and by size."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / name, 3)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("mnist", "."),
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
def test_places(tmp_path, source, place, suffix):
    """Files are found in the usual places, and read as one grey channel in [0, 1]."""
    train_x, train_y, test_x, test_y = write_dataset(tmp_path / place, suffix=suffix)
    found = load(source, directory=tmp_path, download=False)
    assert found.shape == (1, 28, 28)
    assert torch.equal(found.train_x[:, 0], torch.from_numpy(train_x).float() / 255)
    assert torch.equal(found.test_x[:, 0], torch.from_numpy(test_x).float() / 255)
    assert found.train_y.tolist() == train_y.tolist()
    assert found.test_y.tolist() == test_y.tolist()
    assert found.classes == 10


def test_named_folders_come_first(tmp_path):
    """With both datasets in one data folder, each is taken from the folder that has its name."""
    write_dataset(tmp_path, seed=0)
    mine = write_dataset(tmp_path / "FashionMNIST" / "raw", seed=1)
    found = load("fashion-mnist", directory=tmp_path, download=False)
    assert found.train_y.tolist() == mine[1].tolist()


def test_environment_names_the_folder(tmp_path, monkeypatch):
    """Without a directory, PROXYFL_DATA says where the data are."""
    write_dataset(tmp_path / "MNIST" / "raw")
    monkeypatch.setenv("PROXYFL_DATA", str(tmp_path))
    assert find(MNIST) == tmp_path / "MNIST" / "raw"


def test_missing_files_are_listed(tmp_path):
    """With downloads off, the error lists each file that is missing and the folder to put it
    into."""
    with pytest.raises(DataError) as caught:
        load("mnist", directory=tmp_path, download=False)
    message = str(caught.value)
    assert str(tmp_path / "MNIST" / "raw") in message
    assert all(f"{file}.gz" in message for file in FILES)
    assert "--data-dir" in message
    assert "PROXYFL_DATA" in message


def test_label_out_of_range(tmp_path):
    """A label above nine is not a digit."""
    write_dataset(tmp_path, suffix="")
    (tmp_path / FILES[1]).write_bytes(idx_bytes(np.full(30, 10, dtype=np.uint8)))
    with pytest.raises(DataError, match=r"label within 0..9, got 10 at index 0"):
        load("mnist", directory=tmp_path, download=False)


def test_images_and_labels_of_different_number(tmp_path):
    """Files that do not belong together are found out by their lengths."""
    write_dataset(tmp_path, suffix="")
    (tmp_path / FILES[1]).write_bytes(idx_bytes(np.zeros(29, dtype=np.uint8)))
    with pytest.raises(DataError, match="a label for each of 30 examples, got 29"):
        load("mnist", directory=tmp_path, download=False)


def test_one_dataset_does_not_pass_for_the_other(tmp_path, monkeypatch):
    """Fashion-MNIST's files in a folder without a name are not taken for MNIST's, although they are
    called the same."""
    *_, test_y = write_dataset(tmp_path)
    digest = hashlib.md5(idx_bytes(test_y)).hexdigest()
    monkeypatch.setattr(
        idx, "FASHION_MNIST", idx.Published(**(vars(FASHION_MNIST) | {"labels_md5": digest}))
    )
    with pytest.raises(DataError, match="expected mnist, but this is fashion-mnist"):
        load("mnist", directory=tmp_path, download=False)
