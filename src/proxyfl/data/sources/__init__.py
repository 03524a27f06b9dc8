"""A dataset by name, by path, or from the user's own ``package.module:factory``."""

import dataclasses
import difflib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from proxyfl._command import command
from proxyfl._entrypoint import HERE, Imports, translate_errors
from proxyfl.data.arrays import is_array_folder, load_npy_folder, load_npz
from proxyfl.data.dataset import Asked, Dataset
from proxyfl.data.holdout import Key, published_rows, seeded_key
from proxyfl.data.sources import cifar, heart, idx
from proxyfl.data.sources.folders import load_folder
from proxyfl.data.sources.synthetic import generate
from proxyfl.data.stores.reading import is_store, load_store
from proxyfl.data.tables import reading as tables
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.databases import Query, is_url
from proxyfl.data.tables.frames import load_query
from proxyfl.data.tables.loading import load_tables
from proxyfl.data.tables.plain import load_table
from proxyfl.data.tables.reading import Dialect
from proxyfl.data.tables.schema import Column, Schema
from proxyfl.errors import DataError
from proxyfl.settings import Synthetic

Directory = str | Path | None

_HERE = Path()
REGULAR = Synthetic()
"""The made-up federation of a user who states nothing about it."""


@dataclass(frozen=True)
class Source:
    """A named dataset: how to load it (directory, what is asked of it, whether to download), and
    where it was found."""

    load: Callable[[Directory, Asked, bool], Dataset]
    find: Callable[[Directory], str | Path | None]
    description: str


def digits(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """scikit-learn's handwritten digits: 1797 grey images of 8x8 with 17 levels, scaled to [0, 1].

    The test part is drawn by place: every copy of scikit-learn has the same images."""
    # the file alone: scikit-learn takes longer to import than most commands to run
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    pixels_and_digit = np.loadtxt(file, delimiter=",")
    images = pixels_and_digit[:, :-1].reshape(-1, 1, 8, 8)
    x = torch.from_numpy(images.astype(np.float32)) / 16
    y = torch.from_numpy(pixels_and_digit[:, -1].astype(np.int64))
    train, test = published_rows(len(y), test_fraction, seed)
    return Dataset("digits", x[train], y[train], x[test], y[test], 10, tuple("0123456789"))


def _describe(published: idx.Published, description: str) -> Source:
    return Source(
        load=lambda directory, _asked, download: idx.load_idx(
            published, directory, download=download
        ),
        find=lambda directory: idx.find(published, directory),
        description=description,
    )


SOURCES = {
    "digits": Source(
        load=lambda _directory, asked, _download: digits(asked.test_fraction, asked.seed),
        find=lambda _directory: "part of scikit-learn",
        description="1797 handwritten digits, 8x8 grey; nothing to download",
    ),
    "mnist": _describe(idx.MNIST, "70,000 handwritten digits, 28x28 grey"),
    "fashion-mnist": _describe(idx.FASHION_MNIST, "70,000 pieces of clothing, 28x28 grey"),
    "cifar10": Source(
        load=lambda directory, _asked, download: cifar.load_cifar10(directory, download=download),
        find=cifar.find,
        description="60,000 photographs of ten kinds, 32x32 colour",
    ),
    "heart_disease": Source(
        load=lambda directory, asked, _download: heart.load_heart_disease(
            directory, test_fraction=asked.test_fraction, seed=asked.seed
        ),
        find=lambda directory: str(heart.find(directory)),
        description="920 patients of four hospitals, a table with missing values",
    ),
    "synthetic": Source(
        load=lambda _directory, asked, _download: generate(asked.synthetic, asked.seed),
        find=lambda _directory: "drawn from the seed",
        description="made-up sites that differ as [data.synthetic] says; nothing to download",
    ),
}

FORMS = {
    "FILE.npz": "arrays x and y, or x_train, y_train, x_test, y_test",
    "FILE.csv, FILE.parquet, FILE.xlsx": "a table with a label column, numeric features, and a "
    "site column if there are sites",
    "SITES/*.csv with a schema": "a table per site, as institutions have them "
    "(proxyfl schema --help)",
    "DATABASE://...": "a database, such as sqlite:///cohort.sqlite, with a SELECT in data.query "
    "(docs/tables.md)",
    "FOLDER of .npy": "the same arrays as files (x.npy, y.npy); inputs are read when needed",
    "STORE": "the output of the commands images, slides and embed",
    "FOLDER": "images by class: CLASS/name.png, or train/CLASS/name.png and test/CLASS/name.png",
    "package.module:factory": "your own function without arguments that returns a "
    "proxyfl.data.Dataset",
}


_SAVE_AS = {
    ".xls": "In the spreadsheet, choose Save as, and then CSV (UTF-8).",
    ".ods": "In the spreadsheet, choose Save as, and then CSV (UTF-8).",
    ".gz": "Unpack it first: gunzip FILE.csv.gz",
    ".zip": "Unpack it first: unzip FILE.zip",
    ".json": "Save it as CSV, one row for each record.",
    ".toml": "It is a file of settings: name it in place of --set data.source.",
}
"""What to do with files of other kinds."""


def load(
    source: str | Sequence[str],
    *,
    directory: str | Path | None = None,
    label: str = "label",
    site: str | None = None,
    classes: Sequence[str] = (),
    schema: str | Path | None = None,
    tests: str | Sequence[str] = (),
    dialect: Dialect | None = None,
    faults: str = "refuse",
    test_fraction: float = 0.2,
    seed: int = 0,
    key: Key | None = None,
    download: bool = True,
    imports: Imports = HERE,
    synthetic: Synthetic = REGULAR,
    query: str = "",
    folder: Path = _HERE,
) -> Dataset:
    """The dataset that ``source`` names: one of ``SOURCES``, a file or folder, or
    ``package.module:factory``.

    ``directory`` is where the named ones are looked for and downloaded to. ``label`` is the label
    column of a table; ``site`` the column of a table, or the array, that says which institution an
    example is from. ``classes`` lists the classes in their order, for files whose classes would
    otherwise follow from their labels; a label that it lacks is refused, and so is a list that
    differs from that of a source with its own. Where the source has no test part of its own, each
    person or record is held out for one with probability ``test_fraction``, by itself, by ``key``
    (``data.holdout``). Without a key it is made of the ``seed``, which also divides the published
    datasets.

    With a ``schema``, ``source`` is one file per site, as a pattern or a list, and ``tests`` are
    the sites' own test parts; ``faults`` says what becomes of rows at fault, ``dialect`` how a CSV
    file is read, also without a schema. ``imports`` says
    which code a ``package.module:factory`` may be. ``query`` is for the URL of a database, whose
    relative paths start at ``folder``.

    Guarantees: the same arguments give the same dataset; a file is never half-read; every failure
    is an InputError."""
    key = key or seeded_key(seed)
    database = parse_query(source, query, folder)
    if schema is not None:
        table = load_tables(
            tables.find(source) if database is None else [database],
            _by_site(schemas.read(Path(schema)), site),
            tests=tables.find(tests) if tests else (),
            dialect=dialect,
            faults=faults,
            test_fraction=test_fraction,
            key=key,
        )
        return _of_classes(table, classes)
    if not isinstance(source, str) or "*" in source:
        raise DataError(
            f"Several files of one table ({source}) need a schema that says what their columns "
            "mean. Name it with data.schema. To draft one, run: "
            f"{command('schema', 'draft', tables.find(source)[0], '--label', label)}"
        )
    asked = Asked(label, site, classes, faults, test_fraction, seed, key, synthetic)
    if database is not None:
        return load_query(database, asked)
    if source.strip() in ("", ".", ".."):
        raise DataError(
            f"Expected a dataset for data.source, got {source!r}. Give a file, a folder of images "
            f"by class, or one of {', '.join(SOURCES)}."
        )
    path = Path(source).expanduser()
    if path.suffix in (".csv", ".parquet", ".xlsx"):
        return load_table(_existing(path), asked, dialect)
    if path.suffix == ".npz":
        return load_npz(_existing(path), asked)
    if source not in SOURCES and is_store(path):
        return load_store(path, asked)
    if source not in SOURCES and is_array_folder(path):
        return load_npy_folder(path, asked)
    if site is not None:
        raise DataError(
            f"Only tables and arrays (.npz, or a folder of .npy) have sites, got site={site!r} for "
            f"the source {source!r}."
        )
    if source in SOURCES:
        named = SOURCES[source].load(directory, asked, download)
        return _of_classes(named, classes)
    if path.is_dir():
        return load_folder(path, asked)
    if ":" in source:
        return _of_classes(_made(source, imports), classes)
    if path.exists():
        advice = _SAVE_AS.get(path.suffix, "Save it as CSV or .npz.")
        raise DataError(f"{path}: files of this kind are not read. {advice}")
    near = difflib.get_close_matches(source.lower(), SOURCES, 1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise DataError(
        f"Unknown source {source!r}.{meant} No such file or folder here, and none of "
        f"{', '.join(SOURCES)}. Expected one of those or {'; '.join(FORMS)}."
    )


def parse_query(source: str | Sequence[str], query: str, folder: Path) -> Query | None:
    """The query to the database that ``source`` names; None if it names none."""
    if isinstance(source, str) and is_url(source):
        return Query(source, query, folder)
    if query:
        raise DataError(
            f"data.query is for a database, and data.source is {source!r}. Set data.source to a "
            "URL such as sqlite:///cohort.sqlite, or leave data.query out."
        )
    return None


def _by_site(schema: Schema, site: str | None) -> Schema:
    """The schema with ``site`` in the place of its own site column, which is then ignored."""
    if site is None or site == schema.site:
        return schema
    columns = {name: c for name, c in schema.columns.items() if name != site}
    if schema.site is not None:
        columns[schema.site] = Column("ignored")
    return dataclasses.replace(schema, site=site, columns=columns)


def _of_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The dataset, which has its own list of classes and must agree with one that is given."""
    if classes and tuple(classes) != dataset.class_names:
        raise DataError(
            f"{dataset.name} has its own classes, {list(dataset.class_names)}, got data.classes = "
            f"{list(classes)}. Leave data.classes out."
        )
    return dataset


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"{path}: no such file (looked from {Path.cwd()}). Check the name.")
    return path


def _made(source: str, imports: Imports) -> Dataset:
    with translate_errors(DataError, f"{source!r} raised"):
        made = imports.resolve(source, error=DataError)()
    if not isinstance(made, Dataset):
        raise DataError(
            f"Expected a proxyfl.data.Dataset from {source!r}, got {type(made).__name__}."
        )
    return made
