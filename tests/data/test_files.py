"""The user's arrays and tables."""

import shlex

import numpy as np
import pandas as pd
import pytest
import torch

from proxyfl.cli.main import main
from proxyfl.data.sources import load
from proxyfl.errors import DataError

SITED = {"label": "diagnosis", "site": "hospital"}


def table(**changed):
    columns = {
        "age": [30.0, 41.5, 22.0, 67.0],
        "smoker": [True, False, False, True],
        "hospital": ["north", "south", "north", "east"],
        "diagnosis": ["ill", "well", "well", "ill"],
    }
    return pd.DataFrame(columns | changed)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_table(tmp_path, kind):
    """Features are every other column as they are, labels and sites are numbered by sorted name."""
    path = tmp_path / f"patients.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        table().to_parquet(path)
    else:
        table().to_csv(path, index=False)
    found = load(str(path), label="diagnosis", site="hospital", test_fraction=0.25)
    assert found.class_names == ("ill", "well")
    assert found.site_names == ("east", "north", "south")
    rows = {tuple(row) for row in torch.cat([found.train_x, found.test_x]).tolist()}
    assert rows == {(30.0, 1.0), (41.5, 0.0), (22.0, 0.0), (67.0, 1.0)}
    sites = {30.0: "north", 41.5: "south", 22.0: "north", 67.0: "east"}
    labels = {30.0: "ill", 41.5: "well", 22.0: "well", 67.0: "ill"}
    for x, y, site in zip(found.train_x, found.train_y, found.site, strict=True):
        assert found.site_names[site] == sites[x[0].item()]
        assert found.class_names[y] == labels[x[0].item()]


@pytest.mark.parametrize(
    ("frame", "arguments", "message"),
    [
        (table(), {}, "no column 'label'. Its columns: age, smoker, hospital, diagnosis"),
        (table(), {"label": "diagnosis", "site": "ward"}, "no column 'ward'"),
        (
            table(),
            {"label": "diagnosis"},
            "expected numbers in column 'hospital', got 'north' in row 2",
        ),
        (table(age=["30", "41", "unknown", "67"]), SITED, "'age', got 'unknown' in row 4"),
        (table(age=[1.0, 2.0, None, 4.0]), SITED, "'age' is empty or NaN in row 4"),
        (
            table(diagnosis=["a", None, "b", "a"]),
            {"label": "diagnosis"},
            "'diagnosis' is empty in row 3",
        ),
        (
            table(label=[0, 1, -1, 0]),
            {"site": "hospital"},
            "expected numbers in column 'diagnosis'",
        ),
        (table(diagnosis=[0, 1, -1, 0]), SITED, "got -1 in row 4"),
        (table(diagnosis=[0, 1, 0.5, 0]), SITED, "got values such as 0.5 in row 4"),
        (table(), SITED | {"classes": ("ill",)}, "label 'well' in row 3"),
        (
            table()[["diagnosis"]],
            {"label": "diagnosis"},
            "expected rows with features besides 'diagnosis'",
        ),
        (table()[:0], SITED, "got 0 rows"),
        (
            table(age=[1.0, np.inf, 3.0, 4.0]),
            SITED,
            "expected finite values, got inf in column 'age', row 3",
        ),
    ],
)
def test_what_bad_tables_get(tmp_path, frame, arguments, message):
    """Missing columns, words among numbers, empty cells and impossible labels are named with column
    and row."""
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=message):
        load(str(tmp_path / "t.csv"), **arguments)


def test_rows_are_those_of_schema_check_and_of_a_spreadsheet(tmp_path):
    """The same gap is in the same row with and without a schema, after blank lines and a cell of
    two lines as well: the header is row 1."""
    path = tmp_path / "t.csv"
    path.write_text('age,label\n30,"a\nb"\n\n\n41,c\n,c\n')
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'name = "t"\n[label]\ncolumn = "label"\nclasses = ["a\\nb", "c"]\n'
        '[columns.age]\ntype = "category"\nvalues = ["30", "41"]\nmissing = ["-"]\n'
    )
    with pytest.raises(DataError, match=r"column 'age' is empty or NaN in row 6\."):
        load(str(path))
    path.write_text(path.read_text().replace("\n,c", "\n52,c"))
    with pytest.raises(DataError, match="row 6, column 'age': expected"):
        load(str(path), schema=str(schema))


@pytest.mark.parametrize("name", ["t.csv", "north and south.csv"])
def test_the_advice_for_gaps_and_words_runs_as_printed(tmp_path, monkeypatch, capsys, name):
    """A table that needs a schema is refused with the command that drafts one, not with the advice
    to fill gaps in from the records."""
    monkeypatch.chdir(tmp_path)
    table(age=[1.0, None, 3.0, 4.0]).to_csv(name, index=False)
    with pytest.raises(DataError) as refused:
        load(name, **SITED)
    words = shlex.split(str(refused.value).split("Run: ")[1])
    assert main(words[1:]) == 0
    assert 'column = "diagnosis"' in capsys.readouterr().out
    assert "Fill it" not in str(refused.value)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    """Where the optional reader is missing, the error says what to install."""

    def missing(path):
        raise ImportError("no engine")

    monkeypatch.setattr(pd, "read_parquet", missing)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"needs pyarrow: pip install 'proxyfl\[tables\]'"):
        load(str(tmp_path / "t.parquet"))


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npz"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\xff\xfe\x00"])
def test_damaged_files(tmp_path, name, content):
    """A file that is not what its ending says is named."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        load(str(tmp_path / name))


def test_npz_of_one_part(tmp_path):
    """x and y are split; floats stay as they are."""
    x = np.linspace(-3, 7, 20).reshape(10, 2)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(10) % 3, where=np.array(["b", "a"] * 5))
    found = load(str(tmp_path / "a.npz"), site="where", test_fraction=0.3, seed=1)
    assert found.classes == 3
    assert len(found.train_y) + len(found.test_y) == 10
    together = torch.cat([found.train_x, found.test_x])
    assert torch.equal(together[together[:, 0].argsort()], torch.from_numpy(x.astype(np.float32)))
    assert found.site_names == ("a", "b")


def test_npz_of_two_parts(tmp_path):
    """Parts that are given are kept, and a class name means the same number in both."""
    np.savez(
        tmp_path / "a.npz",
        x_train=np.zeros((2, 3)),
        y_train=np.array(["b", "c"]),
        x_test=np.ones((2, 3)),
        y_test=np.array(["a", "c"]),
    )
    found = load(str(tmp_path / "a.npz"))
    assert found.class_names == ("a", "b", "c")
    assert found.train_y.tolist() == [1, 2]
    assert found.test_y.tolist() == [0, 2]


@pytest.mark.parametrize("layout", [(6, 9, 8), (6, 9, 8, 3), (6, 3, 9, 8)])
def test_npz_pixels(tmp_path, layout):
    """Unsigned bytes are pixels: scaled by 1/255, channels first, one channel where there is
    none."""
    x = np.random.default_rng(0).integers(0, 256, layout, dtype=np.uint8)
    np.savez(
        tmp_path / "a.npz", x_train=x, y_train=np.zeros(6, int), x_test=x, y_test=np.zeros(6, int)
    )
    expected = {3: lambda: x[:, None], 4: lambda: x if layout[1] == 3 else x.transpose(0, 3, 1, 2)}[
        x.ndim
    ]()
    assert torch.equal(
        load(str(tmp_path / "a.npz")).train_x, torch.from_numpy(expected.copy()).float() / 255
    )


@pytest.mark.parametrize(
    ("arrays", "site", "message"),
    [
        (
            {"images": np.zeros(2)},
            None,
            "no array x, y. Expected x and y, or x_train, .*found images",
        ),
        ({"x_train": np.zeros((2, 2)), "y_train": np.zeros(2)}, None, "no array x_test, y_test"),
        ({"x": np.zeros((2, 2)), "y": np.zeros(2)}, "ward", "no array ward"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2)}, None, "of y for each of the 3 .* got 2"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(3), "ward": np.zeros(2)},
            "ward",
            "expected a value of ward for each of the 3 examples in x, got 2",
        ),
        ({"x": np.zeros((3, 2)), "y": np.float64(1)}, None, "array y .*got a single value"),
        ({"x": np.array([["a"], ["b"]]), "y": np.zeros(2)}, None, "x: expected numbers, got <U1"),
        ({"x": np.full((40, 2), np.nan), "y": np.arange(40)}, None, "finite values, got nan"),
        (
            {"x": np.array([{}, {}], dtype=object), "y": np.zeros(2)},
            None,
            "has an array of Python objects",
        ),
    ],
)
def test_what_bad_npz_get(tmp_path, arrays, site, message):
    """Missing arrays are listed with those found; pickled objects are never loaded."""
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load(str(tmp_path / "a.npz"), site=site)


@pytest.mark.parametrize("kind", ["csv", "npz", "npy", "two parts"])
def test_the_classes_are_those_named(tmp_path, kind):
    """With ``classes``, files of every kind have these, in this order, whatever their labels are;
    a label outside of them is refused by name."""
    x = np.arange(80, dtype=np.float32).reshape(40, 2)
    y = np.array(["ill", "well", "ill", "ill"] * 10)
    path = tmp_path / f"patients.{kind}"
    if kind == "csv":
        pd.DataFrame({"age": x[:, 0], "label": y}).to_csv(path, index=False)
    elif kind == "npz":
        np.savez(path, x=x, y=y)
    elif kind == "npy":
        path.mkdir()
        np.save(path / "x.npy", x)
        np.save(path / "y.npy", y)
    else:
        path = tmp_path / "parts.npz"
        np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    found = load(str(path), classes=("well", "unknown", "ill"))
    assert (found.classes, found.class_names) == (3, ("well", "unknown", "ill"))
    assert set(torch.cat([found.train_y, found.test_y]).tolist()) == {0, 2}
    place = "in row 3" if kind == "csv" else "at index 1"
    with pytest.raises(DataError, match=rf"label 'well' {place} is not among data\.classes"):
        load(str(path), classes=("ill", "unknown"))
