"""Folders of images of all kinds become one shape by a stated rule; what is wrong is named."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxyfl.cli.main import main
from proxyfl.data import Dataset
from proxyfl.data.images.rule import Rule
from proxyfl.data.images.sheet import CAPTION, SIDE
from proxyfl.data.sources import load
from proxyfl.data.stores import index
from proxyfl.errors import DataError


def save(path: Path, values: np.ndarray, mode: str | None = None, **options: object) -> Path:
    """Write an image, in ``mode`` if given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


def half(width: int, height: int) -> np.ndarray:
    """White on the left, black on the right."""
    values = np.zeros((height, width, 3), dtype=np.uint8)
    values[:, : width // 2] = 255
    return values


def test_the_three_fits(tmp_path: Path) -> None:
    """Stretched, padded and cropped images are where they should be."""
    path = save(tmp_path / "a.png", half(40, 20))
    stretched = Rule(10, 10, "resize").apply(path)
    assert stretched.shape == (3, 10, 10)
    assert stretched[0, :, :4].min() > 250
    assert stretched[0, :, 6:].max() < 5
    padded = Rule(10, 10, "pad", filling="white").apply(path)
    assert padded[:, :2].min() == padded[:, 8:].min() == 255
    assert padded[0, 4, 8] < 5
    cropped = Rule(10, 10, "crop").apply(path)
    assert cropped[0, :, 0].min() > 250
    assert cropped[0, :, 9].max() < 5


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "CMYK", "LA", "RGBA", "I;16"])
def test_every_mode_becomes_the_stated_one(tmp_path: Path, mode: str) -> None:
    """Grey, palette, transparent, printed and 16-bit images all show the same half and half."""
    path = tmp_path / ("a.tif" if mode in ("CMYK", "I;16") else "a.png")
    if mode == "I;16":
        save(path, half(8, 8)[:, :, 0].astype(np.uint16) * 257)
    else:
        save(path, half(8, 8), mode)
    for wanted, channels in (("rgb", 3), ("grey", 1)):
        found = Rule(8, 8, mode=wanted).apply(path)
        assert found.shape == (channels, 8, 8)
        assert found[:, :, :4].min() > 250
        assert found[:, :, 4:].max() < 5


def test_transparency_and_orientation(tmp_path: Path) -> None:
    """What is transparent takes the filling's colour; a camera's orientation is followed."""
    clear = np.zeros((4, 4, 4), dtype=np.uint8)
    path = save(tmp_path / "clear.png", clear)
    assert Rule(4, 4, filling="white").apply(path).min() == 255
    assert Rule(4, 4, filling="black").apply(path).max() == 0
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    turned = save(tmp_path / "turned.png", half(8, 4), exif=exif)
    found = Rule(4, 8).apply(turned)
    assert found[0, :4].min() > 250
    assert found[0, 4:].max() < 5


def test_a_mode_without_a_scale(tmp_path: Path) -> None:
    """Floating-point pixels are refused: nobody knows what is white."""
    path = save(tmp_path / "a.tif", np.ones((4, 4), dtype=np.float32))
    with pytest.raises(DataError, match=r"a\.tif: .*mode 'F', whose scale is not known"):
        Rule(4, 4).apply(path)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two sites, two classes, six persons at each with two images of their own sizes."""
    draw = np.random.default_rng(0)
    root = tmp_path / "sites"
    for site in ("north", "south"):
        for i in range(12):
            label = ("normal", "polyp")[i % 2]
            size = (*draw.integers(5, 30, 2), 3)
            values = draw.integers(0, 256, size, dtype=np.uint8)
            save(root / site / label / f"{site}{i // 2}" / f"{i}.png", values)
    return root


def run(root: Path, *words: str) -> int:
    """`proxyfl images` on the folders, into `store` beside them."""
    options = ["--layout", "site/label/person", "--size", "6x5", *words]
    return main(["images", str(root), "--out", str(root.parent / "store"), *options])


def both(dataset: Dataset) -> set[int]:
    """Persons that are in both parts."""
    assert dataset.train.groups is not None
    assert dataset.test.groups is not None
    return set(dataset.train.groups.tolist()) & set(dataset.test.groups.tolist())


def test_folders_by_site_label_and_person(folders: Path) -> None:
    """All is kept: the sites, the classes, and who is on an image, who is then in one part."""
    assert run(folders) == 0
    found = load(str(folders.parent / "store"))
    assert found.site_names == ("north", "south")
    assert found.class_names == ("normal", "polyp")
    assert found.shape == (3, 5, 6)
    assert len(found.train) + len(found.test) == 24
    assert not both(found)
    assert (folders.parent / "store" / "contact.png").is_file()


def test_small_images_are_shown_large(folders: Path) -> None:
    """On the contact sheet an image of 6 x 5 pixels fills its cell: each pixel is a square."""
    assert run(folders) == 0
    sheet = np.asarray(Image.open(folders.parent / "store" / "contact.png"))
    cell = sheet[CAPTION : CAPTION + SIDE, :SIDE]
    times = (SIDE - 2) // 6
    square = cell[:times, :times]
    assert (square == square[0, 0]).all()
    assert (cell[: 5 * times, : 6 * times] != 255).any(axis=2).mean() > 0.9


def test_an_index(folders: Path, tmp_path: Path) -> None:
    """The same from a table, whatever its columns are called, with parts of its own."""
    lines = ["image,dx,clinic,patient,fold"]
    for path in sorted(folders.rglob("*.png")):
        site, label, person, name = path.relative_to(folders).parts
        part = "test" if person.endswith("5") else "train"
        file = f"{site}/{label}/{person}/{Path(name).stem}"
        lines.append(f"{file},{label},{site},{person},{part}")
    table = tmp_path / "index.csv"
    table.write_text("\n".join(lines) + "\n")
    columns = "--file image --label dx --site clinic --person patient --part fold"
    words = ["--index", str(table), *columns.split(), "--suffix", ".png"]
    assert run(folders, *words) == 0
    found = load(str(tmp_path / "store"))
    assert len(found.test) == 4
    assert found.test_site is not None
    assert found.test_site.bincount().tolist() == [2, 2]
    assert torch.equal(found.test_y.sort().values, torch.tensor([0, 0, 1, 1]))


def no_image(root: Path) -> None:
    """Text among the images."""
    (root / "north" / "polyp" / "north0" / "notes.png").write_text("not an image")


def film(root: Path) -> None:
    """A film among the images."""
    frames = [Image.fromarray(half(8, 8)), Image.fromarray(255 - half(8, 8))]
    path = root / "north" / "polyp" / "north0" / "film.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])


def truncated(root: Path) -> None:
    """An image that ends in its middle."""
    draw = np.random.default_rng(1)
    values = draw.integers(0, 256, (90, 90, 3), dtype=np.uint8)
    path = save(root / "north" / "polyp" / "north0" / "half.jpg", values)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def bomb(root: Path) -> None:
    """A small file that claims 3,600 million pixels."""
    path = save(root / "north" / "polyp" / "north0" / "bomb.png", half(8, 8))
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 60_000, 60_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)


def dangling(root: Path) -> None:
    """A link that leads nowhere."""
    path = root / "north" / "polyp" / "north0" / "link.png"
    path.symlink_to(root / "nowhere")


def linked(root: Path) -> None:
    """A site's folder that is a link."""
    (root / "west").symlink_to(root / "south")


def lost(root: Path) -> None:
    """An image that lies in no person's folder."""
    save(root / "north" / "lost.png", half(8, 8))


def moved(root: Path) -> None:
    """A person who was also at the other site."""
    save(root / "south" / "polyp" / "north0" / "9.png", half(8, 8))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (no_image, "unreadable"),
        (film, "unreadable"),
        (truncated, "unreadable"),
        (bomb, "unreadable"),
        (dangling, "unreadable"),
        (linked, "misplaced"),
        (lost, "misplaced"),
        (moved, "two-sites"),
    ],
)
def test_bad_input_is_named_and_counted(
    folders: Path, capsys: pytest.CaptureFixture[str], spoil, kind: str
) -> None:
    """Each fault is refused by name, or skipped by choice and counted."""
    spoil(folders)
    assert run(folders) == 2
    said = capsys.readouterr().err
    assert f"({kind}: " in said
    assert f"--skip {kind}" in said
    assert run(folders, "--skip", kind) == 0
    assert f"skipped 1 x {kind}" in capsys.readouterr().out
    assert index.read_head(folders.parent / "store").skipped == {kind: 1}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("north/normal/north0/0.png,polyp", "repeated"),
        ("north/./normal/north0/0.png,polyp", "repeated"),
        ("/etc/hostname,polyp", "misplaced"),
        ("../sites/north/normal/north0/0.png,polyp", "misplaced"),
        ("north/normal/north0/99.png,polyp", "unreadable"),
        ("north/normal/north0,polyp", "unreadable"),
        ("north/normal/north0/2.png,", "unnamed"),
    ],
)
def test_rows_of_an_index_that_are_wrong(
    folders: Path, capsys: pytest.CaptureFixture[str], row: str, kind: str
) -> None:
    """A file that is named twice, lies elsewhere or is not there is refused with its row, or
    skipped by choice and counted."""
    lines = ["file,label"]
    for path in sorted(folders.rglob("*.png")):
        lines.append(f"{path.relative_to(folders)},{path.parts[-3]}")
    table = folders.parent / "index.csv"
    table.write_text("\n".join([*lines, row]) + "\n")
    assert run(folders, "--index", str(table)) == 2
    assert f"({kind}: " in capsys.readouterr().err
    assert run(folders, "--index", str(table), "--skip", kind) == 0
    assert index.read_head(folders.parent / "store").skipped == {kind: 1}
    assert len(load(str(folders.parent / "store")).train) < 24


def test_an_index_with_two_columns_of_one_name(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which of two columns is the label is not guessed."""
    table = folders.parent / "index.csv"
    table.write_text("file,label,label\nnorth/normal/north0/0.png,a,b\n")
    assert run(folders, "--index", str(table)) == 2
    assert "expected one column 'label' for the label" in capsys.readouterr().err


def test_a_person_in_both_parts(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An index that puts one person into both parts is refused, or loses that person."""
    lines = ["file,label,person,part"]
    for i, path in enumerate(sorted(folders.rglob("*.png"))):
        part = "train" if i % 2 else "test"
        lines.append(f"{path.relative_to(folders)},{path.parts[-3]},p{i // 3},{part}")
    (folders / "index.csv").write_text("\n".join(lines))
    words = ["--index", str(folders / "index.csv"), "--person", "person", "--part", "part"]
    assert run(folders, *words) == 2
    assert "(two-parts: " in capsys.readouterr().err


def test_options_that_make_no_sense(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong size, layout, kind of fault, class or column is answered with what was expected."""
    for words, expected in (
        (["--size", "big"], "Expected --size WIDTHxHEIGHT"),
        (["--layout", "site/clas"], "Unknown folder in the layout 'clas'"),
        (["--skip", "evrything"], "Unknown kind of fault"),
        (["--classes", "polyp,ulcer"], "the label 'normal' is not among the classes"),
        (["--workers", "0"], "Expected --workers of at least 1"),
    ):
        assert run(folders, *words) == 2
        assert expected in capsys.readouterr().err
