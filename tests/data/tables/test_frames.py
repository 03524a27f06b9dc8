"""Tables that are objects in Python, and Excel workbooks."""

from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest
import torch

from proxyfl import from_table
from proxyfl.data import Dataset, sources
from proxyfl.errors import DataError

from .databases import COLUMNS, SCHEMA, cohort


@pytest.fixture
def frame() -> pd.DataFrame:
    """The cohort with two gaps, typed as pandas types it."""
    frame = pd.DataFrame(cohort(), columns=list(COLUMNS))
    frame["seen"] = pd.to_datetime(frame["seen"])
    frame.loc[3, "seen"] = pd.NaT
    frame.loc[5, "age"] = np.nan
    return frame


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path / "schema.toml"


def equal(one: Dataset, other: Dataset) -> bool:
    """True if both have the same examples in the same order."""
    parts = ((one.train, other.train), (one.test, other.test))
    return all(
        torch.equal(a.take(torch.arange(len(a))), b.take(torch.arange(len(b))))
        and torch.equal(a.labels, b.labels)
        for a, b in parts
    )


def test_frames_files_and_datasets_give_the_same(frame: pd.DataFrame, schema: Path) -> None:
    """A frame, whatever its index, a Hugging Face Dataset, CSV, Parquet and Excel."""
    huggingface = pytest.importorskip("datasets")
    place = schema.parent
    frame.to_csv(place / "cohort.csv", index=False)
    frame.to_parquet(place / "cohort.parquet", index=False)
    frame.to_excel(place / "cohort.xlsx", index=False)
    expected = sources.load(str(place / "cohort.csv"), schema=schema)
    assert len(expected.train) + len(expected.test) == 120
    for ending in ("parquet", "xlsx"):
        assert equal(sources.load(str(place / f"cohort.{ending}"), schema=schema), expected)
    shuffled = frame.set_index(frame.index[::-1])
    assert equal(from_table(shuffled, schema=schema), expected)
    assert equal(from_table(huggingface.Dataset.from_pandas(frame), schema=schema), expected)


def test_a_frame_of_numbers_needs_no_schema(frame: pd.DataFrame) -> None:
    """A label and a site by name; words and gaps are refused with their column and row."""
    numbers = frame.drop(columns=["seen", "patient", "smoker"]).dropna()
    found = from_table(numbers.assign(sex=numbers.sex == "f"), label="died", site=None)
    assert found.feature_names == ("age", "sex")
    by_site = from_table(numbers, label="died", site="sex")
    assert by_site.site_names == ("f", "m")
    with pytest.raises(DataError, match="expected numbers in column 'sex'"):
        from_table(numbers, label="died")
    with pytest.raises(DataError, match="no column 'label'"):
        from_table(numbers)
    with pytest.raises(DataError, match="DataFrame or a Hugging Face Dataset, got list"):
        from_table([1, 2])


def test_hugging_face_labels_and_images() -> None:
    """The names of a ClassLabel are the classes; images become pixels in [0, 1]."""
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    label = datasets.ClassLabel(names=["well", "ill"])
    draw = np.random.default_rng(0)
    codes = [i % 2 for i in range(40)]
    table = datasets.Dataset.from_dict(
        {"x": draw.normal(size=40).tolist(), "label": codes},
        features=datasets.Features({"x": datasets.Value("float32"), "label": label}),
    )
    assert from_table(table).class_names == ("well", "ill")
    arrays = [draw.integers(0, 256, size=(6, 5), dtype=np.uint8) for _ in codes]
    kinds = datasets.Features({"image": datasets.Image(), "label": label})
    pictures = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(array) for array in arrays], "label": codes}, features=kinds
    )
    found = from_table(pictures, test_fraction=0.3)
    assert found.shape == (1, 6, 5)
    assert found.class_names == ("well", "ill")
    values = torch.cat([part.take(torch.arange(len(part))) for part in (found.train, found.test)])
    expected = torch.from_numpy(np.stack(arrays)[:, None].astype(np.float32) / 255)
    assert sorted(map(tuple, values.flatten(1).tolist())) == sorted(
        map(tuple, expected.flatten(1).tolist())
    )
    with pytest.raises(DataError, match="remove_columns"):
        from_table(pictures.add_column("age", codes))


def workbook(path: Path, sheets: dict[str, list[list[object]]]) -> None:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)


def test_a_workbook_that_cannot_be_told_is_refused(schema: Path) -> None:
    """Two sheets with cells, a formula without a value, a cell beyond the header, an old format."""
    header: list[object] = list(COLUMNS)
    rows = [header, *map(list, cohort())]
    path = schema.parent / "cohort.xlsx"

    def refused(said: str) -> None:
        with pytest.raises(DataError, match=said):
            sources.load(str(path), schema=schema)

    workbook(path, {"records": rows, "codes": [["a"]]})
    refused("expected one sheet with cells, got 'records', 'codes'")
    workbook(path, {"records": [header, ["p1", "=20+3", "f", True, "2020-01-01", 1]]})
    refused(r"row 2: the formula '=20\+3' has no value")
    workbook(path, {"records": [header, [*rows[1], "note"]]})
    refused("row 2: a cell beyond the last column")
    workbook(path, {"records": [header, ["p1", 150, "f", True, "2020-01-01", 1], *rows[1:]]})
    refused("row 2")
    path.write_bytes(b"PK no workbook")
    refused("not a readable .xlsx")
    workbook(path, {"records": rows, "empty": []})
    assert len(sources.load(str(path), schema=schema).train) > 80
    path.rename(path.with_suffix(".xls"))
    path = path.with_suffix(".xls")
    refused("Save it as .xlsx or CSV")
