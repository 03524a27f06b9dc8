"""CIFAR-10 (Krizhevsky 2009): binary batches, python batches, or either archive as it is published.

A binary batch is a sequence of records: one byte of label, then 3 x 32 x 32 bytes of pixels,
channel by channel.

A python batch is a pickle, and unpickling runs what the file says. ``_Reader`` therefore never
reaches a real class: the three names of numpy that these files use lead to inert stand-ins here,
every other name is refused."""

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from proxyfl.data.dataset import Dataset
from proxyfl.data.examples import pixels
from proxyfl.data.fetch import Remote, data_folder, fetch_all
from proxyfl.errors import DataError

CLASS_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
REMOTE = Remote(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"
)
FOLDERS = (".", "cifar10", "cifar-10", "CIFAR10")
PIXELS = 3 * 32 * 32

Bytes = npt.NDArray[np.uint8]
Images = tuple[Bytes, npt.NDArray[np.int64]]
"""Pixels and labels."""


def find(directory: str | Path | None = None) -> Path | None:
    """The folder of batches, or the archive, that ``load_cifar10`` would read; None where there is
    none."""
    for name in FOLDERS:
        root = data_folder(directory) / name
        for inner in ("cifar-10-batches-bin", "cifar-10-batches-py", ""):
            for suffix in (".bin", ""):
                batches = [root / inner / f"{batch}{suffix}" for batch in BATCHES]
                if all(batch.is_file() for batch in batches):
                    return root / inner
        for archive in ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"):
            if (root / archive).is_file():
                return root / archive
    return None


def load_cifar10(directory: str | Path | None = None, *, download: bool = True) -> Dataset:
    """The dataset from where it is found, else fetched; three channels of 32x32, pixels in [0,
    1]."""
    place = find(directory)
    if place is None:
        folder = data_folder(directory)
        fetch_all("cifar10", [REMOTE], folder, download=download)
        place = folder / REMOTE.name
    read = _from_archive(place) if place.is_file() else _from_folder(place)
    x = []
    y = []
    for name, raw in read:
        understand = _binary if name.endswith(".bin") else _python
        images, labels = understand(place / name, raw)
        x.append(images)
        y.append(labels)
    test_x = x.pop()
    test_y = y.pop()
    return Dataset(
        name="cifar10",
        train_x=pixels(np.concatenate(x)),
        train_y=torch.from_numpy(np.concatenate(y)),
        test_x=pixels(test_x),
        test_y=torch.from_numpy(test_y),
        classes=10,
        class_names=CLASS_NAMES,
    )


def _from_folder(folder: Path) -> list[tuple[str, bytes]]:
    suffix = ".bin" if (folder / f"{BATCHES[0]}.bin").is_file() else ""
    batches = []
    try:
        for batch in BATCHES:
            name = f"{batch}{suffix}"
            batches.append((name, (folder / name).read_bytes()))
    except OSError as problem:
        raise DataError(f"{folder}: cannot be read: {problem}.") from problem
    return batches


def _from_archive(path: Path) -> list[tuple[str, bytes]]:
    """The six batches, read inside the archive: nothing is unpacked, so no path in it can lead
    anywhere."""
    batches = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if name.removesuffix(".bin") not in BATCHES:
                    continue
                content = archive.extractfile(member)
                if content is not None:
                    batches[name] = content.read()
    except (OSError, EOFError, tarfile.TarError) as problem:
        raise DataError(
            f"{path}: not a complete .tar.gz ({problem}). Delete it and fetch it again."
        ) from problem
    if sorted(name.removesuffix(".bin") for name in batches) != sorted(BATCHES):
        raise DataError(
            f"{path}: expected the six batches of CIFAR-10, found "
            f"{', '.join(sorted(batches)) or 'none'}."
        )
    return sorted(batches.items())  # data_batch_1 .. 5, then test_batch


def _binary(path: Path, raw: bytes) -> Images:
    if not raw or len(raw) % (1 + PIXELS):
        raise DataError(
            f"{path}: expected records of {1 + PIXELS} bytes, got {len(raw)} bytes, which is not "
            f"a whole number of "
            "records. The file is truncated or not a binary batch of CIFAR-10."
        )
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 1 + PIXELS)
    return _check(path, records[:, 1:], records[:, 0].astype(np.int64))


def _python(path: Path, raw: bytes) -> Images:
    try:
        batch = _Reader(io.BytesIO(raw), encoding="bytes").load()
        array = batch[b"data"]
        x = np.frombuffer(array.raw, dtype=np.uint8).reshape(array.shape)
        y = np.array(list(map(int, batch[b"labels"])), dtype=np.int64)
    except Exception as problem:  # a pickle can fail in any way it likes
        raise DataError(
            f"{path}: not a python batch of CIFAR-10 ({type(problem).__name__}: {problem}). "
            "Fetch it again, or take the binary version."
        ) from problem
    if x.ndim != 2 or x.shape[1] != PIXELS:
        raise DataError(
            f"{path}: expected pixels of shape (N, {PIXELS}), got {x.shape}. Fetch the file again."
        )
    return _check(path, x, y)


def _check(path: Path, x: Bytes, y: npt.NDArray[np.int64]) -> Images:
    seen = f"{y.min()}..{y.max()}" if len(y) else "none"
    if len(x) != len(y) or not set(y.tolist()) <= set(range(10)) or not len(y):
        raise DataError(
            f"{path}: expected a label within 0..9 for each of {len(x)} images, got {len(y)} "
            f"labels within {seen}. Fetch the file again."
        )
    return x.reshape(-1, 3, 32, 32), y


class _Array:
    """Stands in for numpy's array while a batch is read: bytes and a shape, and nothing that could
    run."""

    raw: bytes = b""
    shape: tuple[int, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        is_bytes = isinstance(dtype, _Dtype) and dtype.code in (b"u1", "u1")
        if not is_bytes or fortran or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("expected an array of unsigned bytes in C order")
        self.raw = raw
        self.shape = tuple(map(int, shape))


class _Dtype:
    """Stands in for numpy's dtype; only its code is kept."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment: without meaning for single bytes."""


def _reconstruct(*_: object) -> _Array:
    return _Array()


class _Reader(pickle.Unpickler):
    _allowed: dict[tuple[str, str], Callable[..., object]] = {  # noqa: RUF012 -- read only
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no batch of CIFAR-10 needs"
            )
        return self._allowed[module, name]
