"""MNIST and Fashion-MNIST in their idx format: a big-endian header (magic, sizes) and then bytes.

The magic is two zero bytes, the type (8 for unsigned bytes) and the number of dimensions.
Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".
"""

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from proxyfl.data.dataset import Dataset
from proxyfl.data.examples import pixels
from proxyfl.data.fetch import Remote, data_folder, fetch_all, md5_of
from proxyfl.errors import DataError

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class Published:
    """One of the datasets that come as these four files, and where to look for it."""

    name: str
    url: str
    md5: tuple[str, str, str, str]
    labels_md5: str
    """Of the uncompressed test labels: it tells datasets apart whose files have the same names."""
    # below the data folder; the first is where downloads go
    folders: tuple[str, ...]
    class_names: tuple[str, ...]

    @property
    def remotes(self) -> tuple[Remote, ...]:
        """The four compressed files on the net."""
        addresses = [f"{self.url}/{file}.gz" for file in FILES]
        return tuple(map(Remote, addresses, self.md5))


MNIST = Published(
    name="mnist",
    url="https://ossci-datasets.s3.amazonaws.com/mnist",
    md5=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    labels_md5="27ae3e4e09519cfbb04c329615203637",
    folders=("MNIST/raw", "MNIST", "mnist/raw", "mnist", "."),
    class_names=tuple("0123456789"),
)

FASHION_MNIST = Published(
    name="fashion-mnist",
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    md5=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    labels_md5="15d484375f8d13e6eb1aabb0c3f46965",
    # The absolute one is where Debian's package dataset-fashion-mnist puts it.
    folders=(
        "FashionMNIST/raw",
        "FashionMNIST",
        "fashion-mnist/raw",
        "fashion-mnist",
        ".",
        "/usr/share/datasets/fashion-mnist",
    ),
    class_names=(
        "T-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
)


def find(published: Published, directory: str | Path | None = None) -> Path | None:
    """The first folder that holds all four files, compressed or not; None where there is none."""
    for name in published.folders:
        folder = data_folder(directory) / name
        if all(_file(folder, file) is not None for file in FILES):
            return folder
    return None


def load_idx(
    published: Published, directory: str | Path | None = None, *, download: bool = True
) -> Dataset:
    """The dataset from where it is found, else fetched; one grey channel, pixels in [0, 1]."""
    folder = find(published, directory)
    if folder is None:
        folder = data_folder(directory) / published.folders[0]
        fetch_all(published.name, published.remotes, folder, download=download)
    paths = [path for file in FILES if (path := _file(folder, file)) is not None]
    train_x, train_y, test_x, test_y = map(read_idx, paths, (3, 1, 3, 1))
    _same_dataset(published, test_y, paths[3])
    return Dataset(
        name=published.name,
        train_x=pixels(train_x[:, None]),
        train_y=torch.from_numpy(train_y.astype(np.int64)),
        test_x=pixels(test_x[:, None]),
        test_y=torch.from_numpy(test_y.astype(np.int64)),
        classes=len(published.class_names),
        class_names=published.class_names,
    )


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes, plain or gzip; a DataError names the file and
    what is wrong."""
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(
            f"{path}: not a complete gzip file ({problem}). It is truncated or damaged: delete it "
            f"and fetch it again."
        ) from problem
    except OSError as problem:
        raise DataError(f"{path}: cannot be read: {problem.strerror or problem}.") from problem
    expected = bytes((0, 0, 8, dimensions))
    if raw[:4] != expected:
        raise DataError(
            f"{path}: not an idx file of unsigned bytes with {dimensions} dimensions: "
            f"expected magic {expected.hex()}, got {raw[:4].hex() or 'an empty file'}."
        )
    start = 4 + 4 * dimensions
    if len(raw) < start:
        raise DataError(
            f"{path}: truncated in its header: expected at least {start} bytes, got {len(raw)}."
        )
    sizes = np.frombuffer(raw, dtype=">u4", count=dimensions, offset=4).tolist()
    needed = start + math.prod(sizes)
    if len(raw) != needed:
        wrong = "truncated" if len(raw) < needed else "too long"
        raise DataError(
            f"{path}: {wrong}: its header states {' x '.join(map(str, sizes))}, which takes "
            f"{needed} bytes, got {len(raw)}."
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(sizes)


def _file(folder: Path, file: str) -> Path | None:
    for path in (folder / file, folder / f"{file}.gz"):
        if path.is_file():
            return path
    return None


def _same_dataset(published: Published, test_y: npt.NDArray[np.uint8], path: Path) -> None:
    """MNIST's and Fashion-MNIST's files have the same names: in a folder without a name, one passes
    for the other."""
    header = bytes((0, 0, 8, 1)) + len(test_y).to_bytes(4, "big")
    md5 = md5_of(header + test_y.tobytes())
    for other in (MNIST, FASHION_MNIST):
        if other.name != published.name and md5 == other.labels_md5:
            raise DataError(
                f"{path}: expected {published.name}, but this is {other.name}. "
                f"Ask for {other.name}, or put the files of {published.name} into a folder "
                f"{published.folders[0]}."
            )
