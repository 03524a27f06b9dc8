"""One more record, whatever it is like, changes no other record: neither its side nor its inputs.

Types that follow from all values of a column are the danger: one gap or one word among numbers, and
a reader takes all other values for something else."""

import datetime
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from proxyfl import from_table
from proxyfl.data import Dataset
from proxyfl.data.examples import InMemory
from proxyfl.data.holdout import fingerprints
from proxyfl.data.sources import load
from proxyfl.data.tables.databases import Query
from proxyfl.data.tables.loading import load_tables
from proxyfl.data.tables.reading import Dialect, as_text
from proxyfl.data.tables.schema import parse, to_toml
from proxyfl.errors import DataError

pytest.importorskip("sqlalchemy")

Row = dict[str, Any]
COLUMNS = ("who", "day", "kind", "age", "died")
SCHEMA = {
    "name": "clinic",
    "label": {"column": "died", "classes": ["no", "yes"], "written": {"no": ["0"], "yes": ["1"]}},
    "columns": {
        "age": {"type": "number", "range": [0, 1000]},
        "kind": {"type": "category", "values": ["1", "2", "3"], "unknown": "other"},
        "day": {
            "type": "date",
            "formats": ["%Y%m%d"],
            "range": [0, 20],
            "unit": "years",
            "until": "2030-01-01",
        },
    },
}
PERSONS = {**SCHEMA, "person": "who"}
RECORDS = {**SCHEMA, "columns": {**SCHEMA["columns"], "who": {"type": "ignored"}}}


def usual(number: int) -> Row:
    """A record of whole numbers; the age is one that no other has."""
    return {
        "who": 1000 + number // 2,
        "day": 20150101 + number % 28,
        "kind": 1 + number % 3,
        "age": number,
        "died": number // 3 % 2,
    }


ODD: dict[str, Row] = {
    "usual": {},
    "a gap in everything": dict.fromkeys(COLUMNS),
    "no person": {"who": None},
    "a word for a person": {"who": "x-7"},
    "a fraction for a person": {"who": 7.5},
    "no day": {"day": None},
    "a word for a day": {"day": "unknown"},
    "no kind": {"kind": None},
    "a word for a kind": {"kind": "none of these"},
    "a fraction": {"age": 333.5},
    "a word for a number": {"age": "high"},
    "no age": {"age": None},
    "no label": {"died": None},
    "a word for a label": {"died": "perhaps"},
    "a large number": {"age": 2**70},
}


def as_frame(rows: list[Row]) -> pd.DataFrame:
    """The rows as pandas types them, column by column."""
    return pd.DataFrame(rows, columns=list(COLUMNS))


def csv(place: Path, rows: list[Row]) -> str:
    as_frame(rows).to_csv(place / "clinic.csv", index=False)
    return str(place / "clinic.csv")


def workbook(place: Path, rows: list[Row]) -> str:
    as_frame(rows).to_excel(place / "clinic.xlsx", index=False)
    return str(place / "clinic.xlsx")


def typed_workbook(place: Path, rows: list[Row]) -> str:
    """Each cell with a type of its own, and days as dates of the spreadsheet."""
    book = openpyxl.Workbook()
    book.active.append(list(COLUMNS))
    for row in rows:
        cells = [row[name] for name in COLUMNS]
        book.active.append([float(c) if isinstance(c, int) and c > 2**60 else c for c in cells])
    book.save(place / "clinic.xlsx")
    return str(place / "clinic.xlsx")


def parquet_file(place: Path, rows: list[Row]) -> str:
    """A column of several types is one of texts, as the writer of the file has to decide."""
    frame = as_frame(rows)
    for name in COLUMNS:
        if frame[name].dtype == object:
            frame[name] = [None if value is None else str(value) for value in frame[name]]
    parquet.write_table(pa.Table.from_pandas(frame), place / "clinic.parquet")
    return str(place / "clinic.parquet")


def database(place: Path, rows: list[Row]) -> str:
    """SQLite, whose cells have types of their own."""
    (place / "clinic.sqlite").unlink(missing_ok=True)
    with closing(sqlite3.connect(place / "clinic.sqlite")) as connection, connection:
        connection.execute(f"CREATE TABLE clinic ({', '.join(COLUMNS)})")
        cells = [tuple(row[name] for name in COLUMNS) for row in rows]
        cells = [tuple(str(c) if c == 2**70 else c for c in row) for row in cells]
        connection.executemany("INSERT INTO clinic VALUES (?, ?, ?, ?, ?)", cells)
    return f"sqlite:///{place / 'clinic.sqlite'}"


def numeric_database(place: Path, rows: list[Row]) -> str:
    """A database to which pandas has written the frame: one gap makes a column one of floats."""
    (place / "clinic.sqlite").unlink(missing_ok=True)
    frame = as_frame(rows)
    for name in COLUMNS:
        if frame[name].dtype == object:
            frame[name] = [None if value is None else str(value) for value in frame[name]]
    with closing(sqlite3.connect(place / "clinic.sqlite")) as connection, connection:
        frame.to_sql("clinic", connection, index=False)
    return f"sqlite:///{place / 'clinic.sqlite'}"


SOURCES = [csv, workbook, typed_workbook, parquet_file, database, numeric_database]


def contents(dataset: Dataset) -> set[tuple[Any, ...]]:
    """Each record with its side: inputs and label. An age is one record's alone."""
    found = set()
    for side, part in (("train", dataset.train), ("test", dataset.test)):
        for x, y in zip(part.take(torch.arange(len(part))), part.labels, strict=True):
            found.add((side, *x.tolist(), int(y)))
    return found


@pytest.mark.parametrize("tree", [PERSONS, RECORDS], ids=["persons", "records"])
@pytest.mark.parametrize("source", [*SOURCES, None])
def test_one_more_record_changes_no_other(
    tmp_path: Path, source: Callable[[Path, list[Row]], str] | None, tree: dict[str, Any]
) -> None:
    """Files, databases and frames with a schema: one more record, of any kind and at any place,
    leaves side, inputs and label of all others as they were."""
    (tmp_path / "schema.toml").write_text(to_toml(parse(tree)))

    def read(rows: list[Row]) -> set[tuple[Any, ...]]:
        if source is None:
            return contents(
                from_table(as_frame(rows), schema=tmp_path / "schema.toml", faults="skip")
            )
        query = "SELECT * FROM clinic" if "database" in source.__name__ else ""
        return contents(
            load(
                source(tmp_path, rows), schema=tmp_path / "schema.toml", query=query, faults="skip"
            )
        )

    rows = [usual(number) for number in range(60)]
    before = read(rows)
    assert len(before) == 60
    for at, (what, cells) in enumerate(ODD.items()):
        more = {**usual(301), **cells}
        after = read([*rows[: 3 * at], more, *rows[3 * at :]])
        assert before <= after, what
        assert len(after) <= 61
    assert before == read(rows[::-1])


def test_a_rounded_name_is_refused(tmp_path: Path) -> None:
    """Long numbers of persons that one gap has made floats: several are one name, and no choice
    leaves the rest as it is, so the table is refused also where faults are skipped."""
    (tmp_path / "schema.toml").write_text(to_toml(parse(PERSONS)))
    rows = [usual(number) for number in range(60)]
    for row in rows:
        row["who"] += 2**60
    whole = from_table(as_frame(rows), schema=tmp_path / "schema.toml", faults="skip")
    assert len(set(whole.train.groups.tolist())) > 15
    with pytest.raises(DataError, match=r"rounded name.*1\.152921504606848"):
        from_table(
            as_frame([*rows, {**usual(301), "who": None}]),
            schema=tmp_path / "schema.toml",
            faults="skip",
        )
    text = "who,day,kind,age,died\n" + "1.15E+18,20150101,1,5,0\n" * 3
    (tmp_path / "clinic.csv").write_text(text)
    with pytest.raises(DataError, match="rounded name"):
        load(str(tmp_path / "clinic.csv"), schema=tmp_path / "schema.toml", faults="skip")


def plain_csv(place: Path, frame: pd.DataFrame) -> Dataset:
    frame.to_csv(place / "plain.csv", index=False)
    return load(str(place / "plain.csv"), classes=("0", "1"))


def plain_workbook(place: Path, frame: pd.DataFrame) -> Dataset:
    frame.to_excel(place / "plain.xlsx", index=False)
    return load(str(place / "plain.xlsx"), classes=("0", "1"))


def plain_parquet(place: Path, frame: pd.DataFrame) -> Dataset:
    frame.to_parquet(place / "plain.parquet", index=False)
    return load(str(place / "plain.parquet"), classes=("0", "1"))


def plain_query(place: Path, frame: pd.DataFrame) -> Dataset:
    (place / "plain.sqlite").unlink(missing_ok=True)
    with closing(sqlite3.connect(place / "plain.sqlite")) as connection, connection:
        frame.to_sql("plain", connection, index=False)
    url = f"sqlite:///{place / 'plain.sqlite'}"
    return load(url, query="SELECT * FROM plain", classes=("0", "1"))


def plain_frame(place: Path, frame: pd.DataFrame) -> Dataset:
    return from_table(frame, classes=("0", "1"))


def plain_arrays(place: Path, frame: pd.DataFrame) -> Dataset:
    x = np.stack([frame["a"].to_numpy(), frame["b"].to_numpy()], axis=1)
    np.savez(place / "plain.npz", x=x, y=frame["label"].to_numpy())
    return load(str(place / "plain.npz"))


@pytest.mark.parametrize(
    "read", [plain_csv, plain_workbook, plain_parquet, plain_query, plain_frame, plain_arrays]
)
def test_one_more_record_without_a_schema(
    tmp_path: Path, read: Callable[[Path, pd.DataFrame], Dataset]
) -> None:
    """A fraction among whole numbers makes their column one of floats. Large numbers, which single
    precision rounds, are rounded as before, so that no fingerprint changes."""
    large = 0 if read is plain_workbook else 2**60 + 2**36 + 1
    rows = [{"a": large + 2**38 * i, "b": i % 5, "label": i % 2} for i in range(80)]
    before = contents(read(tmp_path, pd.DataFrame(rows)))
    assert len(before) == 80
    for more in ({"a": 0.5, "b": 1, "label": 1}, {"a": 1, "b": 2.5, "label": 0.0}):
        after = contents(read(tmp_path, pd.DataFrame([more, *rows])))
        assert before <= after
        assert len(after) == 81


def test_the_form_of_a_table_without_a_schema_is_stated(tmp_path: Path) -> None:
    """A site that states separator and decimal sign has its file read by them, whatever one record
    suggests."""
    path = tmp_path / "plain.csv"
    path.write_text("a;label\n" + "".join(f"{i};{i % 2}\n" for i in range(40)))
    stated = Dialect("semicolon", "point", "utf-8")
    before = contents(load(str(path), dialect=stated))
    with path.open("a") as file:
        file.write("1,5;1\n")
    assert len(contents(load(str(path)))) == 41
    with pytest.raises(DataError, match=r"expected numbers in column 'a', got '1,5' in row 42"):
        load(str(path), dialect=stated)
    path.write_text(path.read_text().replace("1,5;1", "1.5;1"))
    assert before < contents(load(str(path), dialect=stated))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """In a query and in a frame."""
    url = database(tmp_path, [usual(number) for number in range(9)])
    with pytest.raises(DataError, match="'age' appears twice"):
        load(url, query="SELECT age, age, died AS label FROM clinic")
    with pytest.raises(DataError, match="'a' appears twice"):
        from_table(pd.DataFrame([[1, 2, 0], [3, 4, 1]], columns=["a", "a", "label"]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (float("nan"), ""),
        (np.float32(7), "7"),
        (-0.0, "0"),
        (float(2**53 - 1), str(2**53 - 1)),
        (float(2**53), "9.0071992547409920e+15"),
        (2**60 + 1, str(2**60 + 1)),
        (float("inf"), "inf"),
        (0.1, "0.1"),
        (True, "True"),
        (b"caf\xc3\xa9", "café"),
        (b"\xff\x01", "0xff01"),
        (memoryview(b"\xff\x02"), "0xff02"),
        (bytearray(b"p1"), "p1"),
        (datetime.date(2020, 2, 1), "2020-02-01"),
    ],
)
def test_a_value_has_one_text(value: object, text: str) -> None:
    """By itself, whatever type its column has; different bytes are different texts."""
    assert as_text(value) == text


def test_both_zeros_are_one_record() -> None:
    """0.0 and -0.0 are equal inputs, and so on one side."""
    zeros = InMemory(torch.tensor([[0.0], [-0.0], [1.0]]), torch.zeros(3).long())
    one, other, third = fingerprints(zeros)
    assert one == other != third


def test_a_promise_per_record_skips_no_person(tmp_path: Path) -> None:
    """One record of a person in the test part takes all others of theirs out of training. That is
    one person's, and many records': where the promise is for records it is refused."""
    (tmp_path / "tests").mkdir()
    rows = [usual(number) for number in range(40)]
    file = Path(csv(tmp_path, rows))
    as_frame([*(usual(number) for number in range(200, 240)), rows[0]]).to_csv(
        tmp_path / "tests" / "clinic.csv", index=False
    )
    schema = parse(PERSONS)
    held = [tmp_path / "tests" / "clinic.csv"]
    found = load_tables([file], schema, tests=held, faults="skip")
    assert len(found.train) == 38
    with pytest.raises(DataError, match="two parts"):
        load_tables([file], schema, tests=held, faults="skip", per_record=True)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM clinic", ()),
        ("SELECT *, 'LIMIT 3' AS x FROM clinic -- LIMIT 3", ()),
        ("SELECT c.*, (SELECT v FROM m WHERE m.who = c.who LIMIT 1) FROM clinic c", ()),
        ("SELECT *, RANK() OVER (PARTITION BY who ORDER BY day) FROM clinic", ()),
        ("SELECT * FROM clinic LIMIT 100", ("a limit on the rows",)),
        ("SELECT TOP 10 * FROM clinic", ("a limit on the rows",)),
        ("SELECT age - AVG(age) OVER () FROM clinic", ("a window over all rows",)),
        ("SELECT * FROM clinic ORDER BY random() LIMIT 9", ("chance", "a limit on the rows")),
    ],
)
def test_clauses_that_couple_records_are_seen(query: str, said: tuple[str, ...]) -> None:
    """Preflight names a query whose rows depend on other records, where its words show it."""
    assert Query("sqlite:///clinic.sqlite", query).couplings() == said
