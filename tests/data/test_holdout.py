"""Who is held out: each person or record by itself, whatever the others are."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from proxyfl.data import Dataset
from proxyfl.data.examples import InMemory
from proxyfl.data.features.embedding import embed
from proxyfl.data.holdout import divide, fingerprints, held_out, published_rows
from proxyfl.data.sources import load
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import Content, Entry
from proxyfl.data.stores.writing import write_store
from proxyfl.data.tables import schema as schemas
from proxyfl.errors import DataError

KEY = b"a key"

SCHEMA = {
    "name": "clinic",
    "label": {"column": "died", "classes": ["no", "yes"]},
    "columns": {"age": {"type": "number", "range": [0, 300]}},
}

Record = tuple[int, str]
"""A value that no other record has, and a label."""


@settings(max_examples=60)
@given(
    names=st.lists(st.text(max_size=8), min_size=1, max_size=60),
    more=st.text(max_size=8),
    share=st.floats(0.01, 0.99),
    draw=st.randoms(use_true_random=False),
)
def test_one_more_changes_nobodys_side(names: list[str], more: str, share: float, draw) -> None:
    """Whoever is added, wherever, and however the names are ordered: each name keeps its side."""
    before = dict(zip(names, held_out(names, share, KEY), strict=True))
    other = [*names, more]
    draw.shuffle(other)
    after = dict(zip(other, held_out(other, share, KEY), strict=True))
    assert all(after[name] == side for name, side in before.items())


def test_the_share_and_the_key_decide() -> None:
    """As many are held out as the share says, give or take; a larger share holds the same ones out
    and more; another key holds out others."""
    names = [str(i) for i in range(20_000)]
    small, large = held_out(names, 0.2, KEY), held_out(names, 0.3, KEY)
    assert abs(small.mean() - 0.2) < 0.012  # four standard deviations
    assert large[small].all()
    other = held_out(names, 0.2, b"another")
    assert abs((small & other).mean() - 0.04) < 0.006


def test_equal_inputs_are_on_one_side_whatever_their_labels() -> None:
    """Copies have one fingerprint. Labels do not count: columns in bins give many records the same
    inputs, and what a site learns of those of one class must not be tested on the other's."""
    x = torch.randint(0, 3, (2000, 3), generator=torch.Generator().manual_seed(0)).float()
    y = (torch.rand(2000, generator=torch.Generator().manual_seed(1)) < 0.3).long()
    found = fingerprints(InMemory(x, y))
    assert found == fingerprints(InMemory(x, 1 - y))
    assert len(set(found)) == 27
    is_test = held_out(found, 0.3, b"key")
    sides: dict[tuple[float, ...], set[bool]] = {}
    for row, side in zip(x.tolist(), is_test.tolist(), strict=True):
        sides.setdefault(tuple(row), set()).add(side)
    assert all(len(each) == 1 for each in sides.values())
    assert is_test.any()
    assert not is_test.all()


def test_sixty_thousand_images_take_seconds() -> None:
    """Fingerprints of as many images as MNIST has: below 20 s on a busy machine, one when idle."""
    images = InMemory(torch.rand(60_000, 1, 28, 28), torch.zeros(60_000).long())
    started = time.process_time()
    assert len(set(fingerprints(images))) == 60_000
    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (1e-6, r"made: the test part is empty\. Each of 4 records .* Raise data\.test_fraction"),
        (1 - 1e-6, r"made: the training part is empty\. .* Lower data\.test_fraction"),
    ],
)
def test_an_empty_side_is_refused_with_what_to_do(share: float, message: str) -> None:
    """If all fall on one side, the error says so and what can be changed."""
    with pytest.raises(DataError, match=message):
        divide("made", ["a", "b", "c", "d"], share, KEY, unit="records")


def test_published_files_are_divided_by_place() -> None:
    """A constant number of rows, a seed: the same parts everywhere, of a fixed size."""
    train, test = published_rows(100, 0.2, 7)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(100))
    assert len(test) == 20
    assert torch.equal(test, published_rows(100, 0.2, 7)[1])


def npz(folder: Path, records: list[Record]) -> Dataset:
    """Arrays without persons."""
    np.savez(folder / "a.npz", x=columns(records), y=np.array([label for _, label in records]))
    return load(str(folder / "a.npz"), test_fraction=0.3)


def grouped(folder: Path, records: list[Record]) -> Dataset:
    """Arrays with persons."""
    values = columns(records)
    labels = np.array([label for _, label in records])
    np.savez(folder / "a.npz", x=values, y=labels, group=values[:, 0].astype(np.int64))
    return load(str(folder / "a.npz"), test_fraction=0.3)


def npy(folder: Path, records: list[Record]) -> Dataset:
    """Arrays that are read when they are needed."""
    (folder / "a").mkdir(exist_ok=True)
    np.save(folder / "a" / "x.npy", columns(records))
    np.save(folder / "a" / "y.npy", np.array([label for _, label in records]))
    return load(str(folder / "a"), test_fraction=0.3)


def csv(folder: Path, records: list[Record]) -> Dataset:
    """A table of numbers."""
    values = [value for value, _ in records]
    labels = [label for _, label in records]
    pd.DataFrame({"value": values, "label": labels}).to_csv(folder / "a.csv", index=False)
    return load(str(folder / "a.csv"), test_fraction=0.3)


def schema_table(folder: Path, records: list[Record], person: str | None = None) -> Dataset:
    """A table with a schema."""
    rows = [f"n{value},{value},{label}" for value, label in records]
    (folder / "clinic.csv").write_text("\n".join(["who,age,died", *rows]) + "\n")
    tree = SCHEMA | ({"person": person} if person else {"others": "ignore"})
    text = schemas.to_toml(schemas.parse(tree))
    (folder / "schema.toml").write_text(text)
    return load(str(folder / "clinic.csv"), schema=folder / "schema.toml", test_fraction=0.3)


def persons_table(folder: Path, records: list[Record]) -> Dataset:
    """A table whose schema names persons."""
    return schema_table(folder, records, "who")


def images(folder: Path, records: list[Record]) -> Dataset:
    """Images by class; their names follow from their number, as in an export."""
    for label in ("no", "yes"):
        (folder / label).mkdir(exist_ok=True)
        for old in (folder / label).iterdir():
            old.unlink()
    for number, (value, label) in enumerate(records):
        Image.fromarray(np.full((2, 2), value, np.uint8)).save(folder / label / f"{number:03}.png")
    return load(str(folder), test_fraction=0.3)


def store(folder: Path, records: list[Record]) -> Dataset:
    """A store of pixels."""
    place = folder / f"store-{len(list(folder.iterdir()))}"
    pictures = [np.full((1, 2, 2), value, np.uint8) for value, _ in records]
    entries = [Entry(label, file=f"{i}.png") for i, (_, label) in enumerate(records)]
    content = Content((1, 2, 2), "uint8", ("no", "yes"))
    write_store(place, content, entries, lambda at, some: iter(pictures[at:]), Faults())
    return load(str(place), test_fraction=0.3)


def columns(records: list[Record]) -> np.ndarray:
    return np.array([[value, 1] for value, _ in records], dtype=np.float32)


def sides(dataset: Dataset) -> tuple[set[float], set[float]]:
    """The records of either part, each by the value that only it has."""
    train, test = dataset.train_x.flatten(1)[:, 0], dataset.test_x.flatten(1)[:, 0]
    return set(train.tolist()), set(test.tolist())


@pytest.mark.parametrize(
    "kind", [npz, grouped, npy, csv, schema_table, persons_table, images, store]
)
def test_a_source_with_one_more_record_is_divided_as_before(
    tmp_path: Path, kind: Callable[[Path, list[Record]], Dataset]
) -> None:
    """Whatever a file's form and order: one record more is on one side, all others stay."""
    generator = np.random.default_rng(0)
    records = [(i, ("no", "yes")[i // 3 % 2]) for i in range(120)]
    train, test = sides(kind(tmp_path, records))
    assert len(train) + len(test) == 120
    for more in range(3):
        at = int(generator.integers(len(records)))
        records.insert(at, (200 + more, "yes"))
        order = generator.permutation(len(records))
        records = [records[i] for i in order]
        train_now, test_now = sides(kind(tmp_path, records))
        assert train <= train_now
        assert test <= test_now
        assert len(train_now) + len(test_now) == len(train) + len(test) + 1
        train, test = train_now, test_now


def test_features_are_held_out_as_the_images_that_they_are_of(tmp_path: Path) -> None:
    """Without persons a store of features keeps its images' fingerprints: the same key draws the
    same part from either, also after another embedding of the features."""
    records = [(i, ("no", "yes")[i % 2]) for i in range(60)]
    pictures = store(tmp_path, records)
    embed(pictures, tmp_path / "features", "tests.data.features.test_embedding:as_they_are")
    features = load(str(tmp_path / "features"), test_fraction=0.3)
    assert sides(features) == sides(pictures)
    spec = "tests.data.features.test_embedding:squares"
    embed(features, tmp_path / "squares", spec)
    squares = load(str(tmp_path / "squares"), test_fraction=0.3)
    assert torch.allclose(squares.test_x, features.test_x**2)
