"""A folder of images by class: ``CLASS/name.png``, or ``train/CLASS/name.png`` and
``test/CLASS/name.png``.

All images have one size and one number of channels: cutting or scaling them is the user's decision.
Files whose names begin with a dot are left alone; any other file among the images that is no image
is an error."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from proxyfl._command import command
from proxyfl.data.dataset import Asked, Dataset, hold_out
from proxyfl.data.examples import InMemory, pixels
from proxyfl.data.images.rule import Pixels, pillow
from proxyfl.errors import DataError

_SHOWN = 10
"""Files that a message names."""

# How Pillow's modes are read. What is not here has more than eight bits, or an alpha channel, and
# would lose something.
MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB"}


def load_folder(path: Path, asked: Asked) -> Dataset:
    """The images below ``path`` with pixels in [0, 1]; classes are numbered as ``classes`` lists
    them, or else in the order of their sorted names."""
    divided = (path / "train").is_dir() and (path / "test").is_dir()
    roots = [path / "train", path / "test"] if divided else [path]
    names = _class_names(path, roots, asked.classes)
    files: list[Path] = []
    labels: list[int] = []
    trains = 0
    for root in roots:
        trains = len(files)
        for label, name in enumerate(names):
            for file in _visible(root / name, "**/*"):
                if file.is_file():
                    files.append(file)
                    labels.append(label)
        if len(files) == trains:
            raise DataError(
                f"{root}: expected images in the folders {', '.join(names)}, found none."
            )
    x = pixels(_stack(files))
    y = torch.tensor(labels)
    name = path.resolve().name
    if not divided:
        return hold_out(
            name, InMemory(x, y), names, test_fraction=asked.test_fraction, key=asked.key
        )
    return Dataset(
        name=name,
        train_x=x[:trains],
        train_y=y[:trains],
        test_x=x[trains:],
        test_y=y[trains:],
        classes=len(names),
        class_names=tuple(names),
    )


def _class_names(path: Path, roots: Sequence[Path], classes: Sequence[str]) -> list[str]:
    """The classes that were given, or else those that have a folder."""
    children = chain.from_iterable(_visible(root) for root in roots)
    names = sorted({child.name for child in children if child.is_dir()})
    if not names:
        raise DataError(
            f"{path}: expected one folder of images for each class, found no folder. Put the "
            "images of each class into a folder with its name."
        )
    unknown = [name for name in names if name not in classes]
    if classes and unknown:
        raise DataError(
            f"{path}: the folder {unknown[0]!r} is not among data.classes, which are "
            f"{list(classes)}. Rename it, leave it out, or agree on a longer list."
        )
    return list(classes) or names


def _visible(root: Path, pattern: str = "*") -> list[Path]:
    """The files and folders whose names begin with no dot, sorted."""
    paths = root.glob(pattern)
    return sorted(path for path in paths if not path.name.startswith("."))


def _stack(files: Sequence[Path]) -> Pixels:
    """All images as one array (N, C, H, W)."""
    _check_readable(files)
    first = read_image(files[0])
    stacked = np.empty((len(files), *first.shape), dtype=np.uint8)
    for i, file in enumerate(files):
        image = read_image(file)
        if image.shape != first.shape:
            raise DataError(
                f"{file}: expected {_size(first)} like {files[0]}, got {_size(image)}. "
                "Bring all images to one size and one number of channels first."
            )
        stacked[i] = image
    return stacked.transpose(0, 3, 1, 2)


def _check_readable(files: Sequence[Path]) -> None:
    """Raises DataError that names every file which is no image, not the first alone."""
    image_module = pillow(files[0])
    unreadable = []
    for file in files:
        try:
            with image_module.open(file):
                pass
        except Exception:  # Pillow's formats raise whatever they like
            unreadable.append(str(file))
    if unreadable:
        shown = ", ".join(unreadable[:_SHOWN])
        more = f" and {len(unreadable) - _SHOWN} more" if len(unreadable) > _SHOWN else ""
        raise DataError(
            f"{len(unreadable)} of {len(files)} files are not readable images: {shown}{more}. "
            "Remove them, or bring the folder into a store that leaves them out. Run: "
            f"{command('images', '--help')}"
        )


def read_image(file: Path) -> Pixels:
    """One image as (H, W, C)."""
    image_module = pillow(file)
    try:
        with image_module.open(file) as image:
            mode = image.mode
            read = image.convert(MODES[mode]) if mode in MODES else []
            values = np.asarray(read, dtype=np.uint8)
    except Exception as problem:
        # Pillow's decoders raise whatever their format makes them
        raise DataError(
            f"{file}: not a readable image ({type(problem).__name__}: {problem})."
        ) from problem
    if mode not in MODES:
        raise DataError(
            f"{file}: expected 8 bits a channel, grey or RGB, got Pillow's mode {mode!r}. "
            "Convert it first, or store the values as .npz."
        )
    return values if values.ndim == 3 else values[:, :, None]


def _size(image: Pixels) -> str:
    height, width, channels = image.shape
    return f"{width}x{height} pixels of {channels} channel{'s' if channels > 1 else ''}"
