"""The user's own arrays: one ``.npz`` file, read at once, or a folder of ``.npy`` files, which need
not fit into memory.

Values are taken as they are. Standardising a column with its own mean and deviation would be a look
at the data that no privacy accounting covers: scale with constants known beforehand (an age by
1/100), or account for the statistics. The exception is an array of unsigned bytes: those are
pixels, scaled by 1/255, whatever they show.
"""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from proxyfl.data.dataset import Asked, Dataset, hold_out
from proxyfl.data.examples import Array, Examples, InMemory, MemoryMapped, as_inputs, read_npy
from proxyfl.data.labels import encode_labels
from proxyfl.errors import DataError

PARTS = ("x_train", "y_train", "x_test", "y_test")
GROUP = "group"
"""The array that says which person each example is about, where there is one."""


def load_npz(path: Path, asked: Asked) -> Dataset:
    """``x`` and ``y``, of which a part is kept for the test, or ``x_train, y_train, x_test,
    y_test``.

    ``site`` names an array with the site of each example of ``x`` or ``x_train``; ``group``, or
    ``group_train`` and ``group_test``, number the persons. Images are (N, C, H, W); unsigned bytes
    may also come as (N, H, W) or (N, H, W, C) with at most four channels.
    """
    arrays = read_npz(path)

    def examples(key: str, labels: Tensor, groups: Tensor | None) -> Examples:
        return InMemory(as_inputs(f"{path}, {key}", arrays[key]), labels, groups)

    return _dataset(path, arrays, examples, asked)


def is_array_folder(path: Path) -> bool:
    """True if ``path`` is a folder with arrays in it, as ``load_npy_folder`` reads."""
    return (path / "x.npy").is_file() or (path / "x_train.npy").is_file()


def load_npy_folder(path: Path, asked: Asked) -> Dataset:
    """The arrays of ``load_npz`` as files, ``x.npy``, ``y.npy`` and so on.

    Inputs are read from their file whenever a batch needs them; the rest is read at once.
    """
    arrays = {}
    for file in sorted(path.glob("*.npy")):
        arrays[file.stem] = read_npy(file, mapped=file.name.startswith("x"))

    def examples(key: str, labels: Tensor, groups: Tensor | None) -> Examples:
        return MemoryMapped((path / f"{key}.npy").absolute(), labels, groups)

    return _dataset(path, arrays, examples, asked)


def _dataset(
    path: Path,
    arrays: Mapping[str, Array],
    examples: Callable[[str, Tensor, Tensor | None], Examples],
    asked: Asked,
) -> Dataset:
    """The dataset of these arrays; ``examples`` makes a part of it from the name of its inputs."""
    site, classes = asked.site, asked.classes
    divided = "x_train" in arrays
    _check_names(path, arrays, PARTS if divided else ("x", "y"), site)
    _check_lengths(path, arrays, "x_train" if divided else "x", site)
    sites = None
    site_names: tuple[str, ...] = ()
    if site:
        sites, site_names = encode_labels(f"{path}, {site}", arrays[site])

    def part(key: str, labels: Tensor) -> Examples:
        groups = _groups(path, arrays, key.replace("x", GROUP))
        return examples(key, labels, groups)

    if not divided:
        labels, class_names = encode_labels(f"{path}, y", arrays["y"], classes)
        return hold_out(
            path.stem,
            part("x", labels),
            class_names,
            test_fraction=asked.test_fraction,
            key=asked.key,
            site=sites,
            site_names=site_names,
        )
    # Encoded together, so that a class number means the same in both parts.
    together = np.concatenate([arrays["y_train"], arrays["y_test"]])
    labels, class_names = encode_labels(f"{path}, y_train and y_test", together, classes)
    trains = len(arrays["y_train"])
    return Dataset(
        path.stem,
        train=part("x_train", labels[:trains]),
        test=part("x_test", labels[trains:]),
        classes=len(class_names),
        class_names=class_names,
        site=sites,
        site_names=site_names,
    )


def _check_names(
    path: Path, arrays: Mapping[str, Array], wanted: tuple[str, ...], site: str | None
) -> None:
    needed = (*wanted, site) if site else wanted
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise DataError(
            f"{path}: no array {', '.join(missing)}. Expected x and y, or {', '.join(PARTS)}; "
            f"found {', '.join(arrays) or 'nothing'}."
        )


def _check_lengths(path: Path, arrays: Mapping[str, Array], inputs: str, site: str | None) -> None:
    """A label, a site and a group for each example."""
    pairs = [
        (inputs, inputs.replace("x", "y")),
        (inputs, inputs.replace("x", GROUP)),
        ("x_test", f"{GROUP}_test"),
    ]
    if site:
        pairs.append((inputs, site))
    for key, other in pairs:
        if other not in arrays:
            continue
        for name in (key, other):
            if not arrays[name].ndim:
                raise DataError(
                    f"{path}: expected an array {name} (N, ...), got a single value. Save one row "
                    "for each example."
                )
        expected, length = len(arrays[key]), len(arrays[other])
        if length != expected:
            raise DataError(
                f"{path}: expected a value of {other} for each of the {expected} examples in "
                f"{key}, got {length}. Make them of one length."
            )


def _groups(path: Path, arrays: Mapping[str, Array], key: str) -> Tensor | None:
    """Persons as whole numbers, equal in both parts where they are equal."""
    if key not in arrays:
        return None
    values = arrays[key]
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(
            f"{path}, {key}: expected one whole number for each person, got {values.dtype} of "
            f"shape {values.shape}. Number the persons 0, 1, 2 and so on, one number for each "
            "example."
        )
    numbers = values.astype(np.int64)
    strange = np.flatnonzero(numbers < 0)
    if len(strange):
        raise DataError(
            f"{path}, {key}: expected persons numbered from 0 to 2^63 - 1, got "
            f"{values[strange[0]]} for example {strange[0]}. Leave out examples whose person is "
            "not known, or number each by itself."
        )
    return torch.from_numpy(numbers)


def read_npz(path: Path) -> dict[str, Array]:
    """Every array in the file; pickled objects are refused."""
    if not zipfile.is_zipfile(path):
        raise DataError(
            f"{path}: not a .npz archive, despite its name. Write one with numpy.savez, or give "
            "the file its true name (.csv, .npy)."
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, AttributeError) as problem:
        if "allow_pickle" in str(problem):
            raise DataError(
                f"{path}: has an array of Python objects. Save numbers or texts instead: "
                "numpy.savez(path, x=x.astype('float32'), y=y)."
            ) from problem
        raise DataError(
            f"{path}: not a readable .npz of plain arrays: {problem}. Write it again with "
            "numpy.savez."
        ) from problem
