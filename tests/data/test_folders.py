"""Folders of images by class."""

import numpy as np
import pytest
import torch
from PIL import Image

from proxyfl.data.sources import load
from proxyfl.errors import DataError


def image(path, *, size=(5, 4), mode="RGB", seed=0):
    """Write a random image of ``size`` (width, height); return its pixels as (C, H, W)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"RGB": (3,), "RGBA": (4,), "L": ()}[mode]
    values = np.random.default_rng(seed).integers(
        0, 256, (size[1], size[0], *channels), dtype=np.uint8
    )
    Image.fromarray(values, mode=None).save(path)
    return values[None] if mode == "L" else values.transpose(2, 0, 1)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_classes_are_folders(tmp_path, mode):
    """Each image is read exactly, channels first, in [0, 1], with the label of its folder; other
    files stay out."""
    expected = {}
    for i, name in enumerate(["polyp", "normal", "polyp", "normal", "ulcer"]):
        pixels = image(tmp_path / name / f"{i}.png", mode=mode, seed=i)
        expected[(pixels / np.float32(255)).astype(np.float32).tobytes()] = name
    (tmp_path / "index.csv").write_text("beside the folders, not in them")
    (tmp_path / "polyp" / ".DS_Store").write_text("hidden")
    found = load(str(tmp_path), test_fraction=0.5)
    assert found.class_names == ("normal", "polyp", "ulcer")
    assert found.shape == (3 if mode == "RGB" else 1, 4, 5)
    x, y = (torch.cat([found.train_x, found.test_x]), torch.cat([found.train_y, found.test_y]))
    assert {
        a.numpy().tobytes(): found.class_names[b] for a, b in zip(x, y, strict=True)
    } == expected


def test_train_and_test_folders(tmp_path):
    """Given parts are kept, and classes have the same number in both, also where one part lacks a
    class."""
    a = image(tmp_path / "train" / "b" / "1.png", seed=1)
    image(tmp_path / "train" / "c" / "1.png", seed=2)
    image(tmp_path / "test" / "c" / "1.png", seed=3)
    image(tmp_path / "test" / "a" / "1.png", seed=4)
    found = load(str(tmp_path))
    assert found.class_names == ("a", "b", "c")
    assert found.train_y.tolist() == [1, 2]
    assert found.test_y.tolist() == [0, 2]
    assert torch.equal(found.train_x[0], torch.from_numpy(a.copy()).float() / 255)


def test_an_image_of_another_size(tmp_path):
    """The first image that differs is named, with both sizes."""
    image(tmp_path / "a" / "1.png")
    image(tmp_path / "a" / "2.png", size=(6, 4))
    with pytest.raises(
        DataError, match=r"2.png: expected 5x4 pixels of 3 channels like .*1.png, got 6x4 pixels"
    ):
        load(str(tmp_path))


def test_grey_among_colour(tmp_path):
    """Grey and colour images do not mix."""
    image(tmp_path / "a" / "1.png")
    image(tmp_path / "b" / "2.png", mode="L")
    with pytest.raises(DataError, match=r"2.png: .*got 5x4 pixels of 1 channel\."):
        load(str(tmp_path))


def test_modes_that_would_lose_something(tmp_path):
    """An alpha channel, or more than eight bits, is refused rather than cut off."""
    image(tmp_path / "a" / "1.png", mode="RGBA")
    with pytest.raises(DataError, match=r"1.png: expected 8 bits .* got Pillow's mode 'RGBA'"):
        load(str(tmp_path))
    Image.fromarray(np.full((4, 5), 60000, dtype=np.uint16)).save(tmp_path / "a" / "1.png")
    with pytest.raises(DataError, match=r"1.png: expected 8 bits .* got Pillow's mode 'I"):
        load(str(tmp_path))


def test_a_file_that_is_no_image(tmp_path):
    """A file among the images that cannot be read is named, not skipped; so is an image that breaks
    off."""
    image(tmp_path / "a" / "1.png")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "a" / "Thumbs.db").write_text("not an image")
    with pytest.raises(DataError, match=r"2 of 3 files are not readable .*Thumbs.db.*notes.txt"):
        load(str(tmp_path))
    (tmp_path / "a" / "Thumbs.db").unlink()
    (tmp_path / "a" / "notes.txt").unlink()
    (tmp_path / "a" / "2.png").write_bytes((tmp_path / "a" / "1.png").read_bytes()[:60])
    with pytest.raises(DataError, match=r"2.png: not a readable image"):
        load(str(tmp_path))


def test_empty_folders(tmp_path):
    """A folder without classes, and classes without images, say what was expected."""
    with pytest.raises(DataError, match="one folder of images for each class, found no folder"):
        load(str(tmp_path))
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="expected images in the folders a, found none"):
        load(str(tmp_path))


def test_the_classes_are_those_named(tmp_path):
    """With ``classes`` the order is theirs and a class without a folder is one, too; a folder that
    they lack is refused by name."""
    for i, name in enumerate(["polyp", "normal", "polyp"]):
        image(tmp_path / name / f"{i}.png", seed=i)
    found = load(str(tmp_path), classes=("polyp", "ulcer", "normal"))
    assert found.class_names == ("polyp", "ulcer", "normal")
    assert sorted(torch.cat([found.train_y, found.test_y]).tolist()) == [0, 0, 2]
    with pytest.raises(DataError, match=r"the folder 'polyp' is not among data\.classes"):
        load(str(tmp_path), classes=("normal", "ulcer"))
