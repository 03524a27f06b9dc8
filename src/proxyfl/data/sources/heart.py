"""UCI heart disease: 920 patients of four hospitals, in their publisher's four files, which are
in the package (``heart_disease/``, with their licence in its README).

Janosi, Steinbrunn, Pfisterer and Detrano (1988), UCI Machine Learning Repository, CC BY 4.0;
Detrano et al., American Journal of Cardiology 64 (1989). The label is whether a coronary artery is
narrowed. Many values are missing outside Cleveland.
"""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from proxyfl.data.dataset import Dataset
from proxyfl.data.fetch import Remote, data_folder, md5_of
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.loading import load_tables
from proxyfl.data.tables.schema import Schema
from proxyfl.errors import DataError

_ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"

HOSPITALS = {
    "cleveland": Remote(f"{_ADDRESS}processed.cleveland.data", "2d91a8ff69cfd9616aa47b59d6f843db"),
    "hungary": Remote(f"{_ADDRESS}processed.hungarian.data", "22e96bee155b5973568101c93b3705f6"),
    "switzerland": Remote(
        f"{_ADDRESS}processed.switzerland.data", "9a87f7577310b3917730d06ba9349e20"
    ),
    "long-beach": Remote(f"{_ADDRESS}processed.va.data", "4249d03ca7711e84f4444768c9426170"),
}
"""The hospitals and their files."""

_FILES = tuple(HOSPITALS.values())

HEADER = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
"""The columns of the files, which have no header."""


def schema() -> Schema:
    """The schema that ships with the package."""
    text = resources.files("proxyfl.data.tables") / "heart_disease.toml"
    with resources.as_file(text) as path:
        return schemas.read(path)


def find(directory: str | Path | None = None) -> Traversable:
    """The folder that holds the four files: the user's own if they are there, else the
    package's."""
    root = data_folder(directory)
    for folder in (root / "heart_disease", root):
        if all((folder / remote.name).is_file() for remote in _FILES):
            return folder
    return resources.files("proxyfl.data.tables") / "heart_disease"


def load_heart_disease(
    directory: str | Path | None = None, *, test_fraction: float = 0.2, seed: int = 0
) -> Dataset:
    """The four hospitals as sites. No network is needed.

    The files are fixed by their checksums, so the test part is drawn by place."""
    with resources.as_file(find(directory)) as folder:
        paths = [folder / remote.name for remote in _FILES]
        for path, remote in zip(paths, _FILES, strict=True):
            _check(path, remote)
        return load_tables(
            paths,
            schema(),
            site_names=tuple(HOSPITALS),
            header=HEADER,
            test_fraction=test_fraction,
            by_place=seed,
        )


def _check(path: Path, remote: Remote) -> None:
    md5 = md5_of(path.read_bytes())
    if md5 != remote.md5:
        raise DataError(
            f"{path}: expected MD5 {remote.md5}, got {md5}. Put the publisher's file in its "
            f"place ({remote.url}), or remove it: the package has a copy."
        )
