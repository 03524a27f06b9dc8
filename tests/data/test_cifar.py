"""CIFAR-10 in its published forms; pickles that want to do more than hold an array."""

import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch

from proxyfl.data.sources import load
from proxyfl.data.sources.cifar import BATCHES
from proxyfl.errors import DataError

N = 3


def made(seed):
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (N, 3072), dtype=np.uint8), generator.integers(0, 10, N)


def binary(x, y):
    return np.concatenate([y.astype(np.uint8)[:, None], x], axis=1).tobytes()


def short_string(text):
    """A Python 2 string in a pickle of protocol 2."""
    raw = text if isinstance(text, bytes) else text.encode()
    return b"T" + struct.pack("<i", len(raw)) + raw


def python2(x, y, *, dtype="u1"):
    """A batch as Python 2's cPickle wrote it: opcode by opcode, since Python 3 cannot write such
    strings."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        + b"cnumpy\nndarray\n"
        + b"K\x00\x85"
        + short_string("b")
        + b"\x87R"
        + b"(K\x01"
        + b"J"
        + struct.pack("<i", len(x))
        + b"M"
        + struct.pack("<H", x.shape[1])
        + b"\x86"
        + b"cnumpy\ndtype\n"
        + short_string(dtype)
        + b"K\x00K\x01\x87R"
        + b"(K\x03"
        + short_string("|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89"
        + short_string(x.tobytes())
        + b"tb"
    )
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in y.tolist()) + b"e"
    batch = short_string("data") + array + short_string("labels") + labels
    return (
        b"\x80\x02}(" + short_string("batch_label") + short_string("training batch") + batch + b"u."
    )


def write(folder, encode, suffix):
    folder.mkdir(parents=True, exist_ok=True)
    for i, batch in enumerate(BATCHES):
        (folder / f"{batch}{suffix}").write_bytes(encode(*made(i)))


def pack(path, encode, suffix):
    with tarfile.open(path, "w:gz") as archive:
        for batch in reversed(BATCHES):
            raw = encode(*made(BATCHES.index(batch)))
            member = tarfile.TarInfo(f"cifar-10/{batch}{suffix}")
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))


def expect(found):
    x = np.concatenate([made(i)[0] for i in range(5)]).reshape(-1, 3, 32, 32)
    assert torch.equal(found.train_x, torch.from_numpy(x).float() / 255)
    assert found.train_y.tolist() == np.concatenate([made(i)[1] for i in range(5)]).tolist()
    assert torch.equal(
        found.test_x, torch.from_numpy(made(5)[0].reshape(-1, 3, 32, 32)).float() / 255
    )
    assert found.test_y.tolist() == made(5)[1].tolist()


@pytest.mark.parametrize(
    ("place", "encode", "suffix"),
    [
        ("cifar-10-batches-bin", binary, ".bin"),
        (".", binary, ".bin"),
        ("cifar10/cifar-10-batches-bin", binary, ".bin"),
        ("cifar-10-batches-py", python2, ""),
        (".", python2, ""),
    ],
)
def test_batches_in_a_folder(tmp_path, place, encode, suffix):
    """Binary and python batches hold the same images, channel by channel, in file order."""
    write(tmp_path / place, encode, suffix)
    expect(load("cifar10", directory=tmp_path, download=False))


@pytest.mark.parametrize(
    ("name", "encode", "suffix"),
    [("cifar-10-binary.tar.gz", binary, ".bin"), ("cifar-10-python.tar.gz", python2, "")],
)
def test_published_archives(tmp_path, name, encode, suffix):
    """An archive is read as it is, whatever the order inside, and nothing is unpacked beside it."""
    pack(tmp_path / name, encode, suffix)
    expect(load("cifar10", directory=tmp_path, download=False))
    assert [path.name for path in tmp_path.iterdir()] == [name]


class Evil:
    """Unpickled by an ordinary unpickler, this makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        import os

        return os.mkdir, (str(self.path),)


def test_a_pickle_cannot_run_anything(tmp_path):
    """A batch that names a function of its own is refused, by that name, and the function does not
    run."""
    write(tmp_path, python2, "")
    victim = tmp_path / "made-by-the-pickle"
    pickle.loads(pickle.dumps(Evil(victim)))
    victim.rmdir()  # an ordinary unpickler does run it
    (tmp_path / "data_batch_2").write_bytes(
        pickle.dumps({b"data": Evil(victim), b"labels": []}, protocol=4)
    )
    with pytest.raises(DataError, match=r"data_batch_2: not a python batch .* asks for \w+.mkdir"):
        load("cifar10", directory=tmp_path, download=False)
    assert not victim.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02", "not a python batch"),
        (pickle.dumps([1, 2]), "not a python batch"),
        (pickle.dumps({b"data": [1], b"labels": [1]}), "not a python batch"),
        (python2(*made(0))[:-40], "not a python batch"),
        (python2(*made(0), dtype="O8"), "expected an array of unsigned bytes"),
        (
            python2(np.zeros((2, 3071), dtype=np.uint8), np.zeros(2, dtype=int)),
            r"shape \(N, 3072\), got \(2, 3071\)",
        ),
        (
            python2(np.zeros((2, 3072), dtype=np.uint8), np.zeros(1, dtype=int)),
            "each of 2 images, got 1 labels",
        ),
        (
            python2(np.zeros((1, 3072), dtype=np.uint8), np.full(1, 17)),
            r"within 0..9 .* within 17..17",
        ),
    ],
)
def test_what_damaged_python_batches_get(tmp_path, content, message):
    """A python batch that is truncated, foreign or inconsistent is named, with what is wrong."""
    write(tmp_path, python2, "")
    (tmp_path / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_3: .*{message}"):
        load("cifar10", directory=tmp_path, download=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (binary(*made(0))[:-1], "records of 3073 bytes, got 9218 bytes"),
        (b"", "got 0 bytes"),
        (bytes([10]) + bytes(3072), r"within 0..9 .* within 10..10"),
    ],
)
def test_what_damaged_binary_batches_get(tmp_path, content, message):
    """A binary batch that is truncated or has impossible labels is named, with its size or its
    labels."""
    write(tmp_path, binary, ".bin")
    (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match=rf"test_batch.bin: .*{message}"):
        load("cifar10", directory=tmp_path, download=False)


@pytest.mark.parametrize("content", [b"no archive", "truncated", "foreign"])
def test_what_damaged_archives_get(tmp_path, content):
    """An archive that is none, breaks off, or holds something else is named."""
    path = tmp_path / "cifar-10-binary.tar.gz"
    if content == "foreign":
        with tarfile.open(path, "w:gz") as archive:
            archive.addfile(tarfile.TarInfo("readme.txt"))
        message = "expected the six batches of CIFAR-10, found none"
    else:
        pack(path, binary, ".bin")
        path.write_bytes(content if isinstance(content, bytes) else path.read_bytes()[:-2000])
        message = r"not a complete .tar.gz"
    with pytest.raises(DataError, match=message):
        load("cifar10", directory=tmp_path, download=False)


def test_missing_archive_is_named(tmp_path):
    """With downloads off, the error names the archive and where to put it."""
    with pytest.raises(
        DataError, match=r"cifar10 is not on this machine(.|\n)*cifar-10-binary.tar.gz"
    ):
        load("cifar10", directory=tmp_path, download=False)
