"""Files as sites have them: dialects, odd cells, Parquet and npz."""

import datetime

import numpy as np
import pytest

from proxyfl.data.tables.reading import Dialect, read, recognise
from proxyfl.errors import DataError


def only(path, dialect=None, **options):
    """The single part of a small file."""
    (part,) = read(path, dialect, **options)
    return part


def written(tmp_path, content, encoding="utf-8", name="site.csv"):
    """A file with this content, byte for byte."""
    path = tmp_path / name
    path.write_bytes(content.encode(encoding))
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252"])
def test_dialects_are_recognised(tmp_path, separator, newline, encoding):
    """Separator, line ends, byte order mark and encoding make no difference to what is read."""
    quote = "\u201e" if encoding == "cp1252" else ""
    lines = [["patient", "größe"], ["Zoë" + quote, "1"], ["Jörg", "2"]]
    content = newline.join(separator.join(line) for line in lines) + newline
    part = only(written(tmp_path, content, encoding))
    assert part.header == ("patient", "größe")
    assert list(part.columns["patient"]) == ["Zoë" + quote, "Jörg"]
    assert part.rows.tolist() == [2, 3]


def test_decimal_comma_is_recognised(tmp_path):
    """Numbers with a comma between semicolons mean a decimal comma."""
    part = only(written(tmp_path, "a;b\n1,5;2\n3;x\n"))
    assert part.decimal == ","


def test_a_quoted_comma_is_no_decimal_sign(tmp_path):
    """Between commas a number with a comma is left to the schema, which refuses it."""
    part = only(written(tmp_path, 'a,b\n"1,234",2\n'))
    assert part.decimal == "."
    assert part.columns["a"][0] == "1,234"


def test_two_decimal_signs_are_asked_for_by_name(tmp_path):
    """A file with both signs is refused until its owner names one."""
    path = written(tmp_path, "a;b\n1,5;2.5\n")
    with pytest.raises(DataError, match=r"comma .1,5. and with a point .2\.5.*Name it"):
        only(path)
    assert only(path, Dialect(decimal="comma")).decimal == ","


def test_names_beat_recognition(tmp_path):
    """What is asked for by name is not recognised again."""
    path = written(tmp_path, "a;b,c\n1;2,3\n")
    found = recognise(path, Dialect(separator="comma", encoding="latin-1"))
    assert (found.separator, found.encoding, found.decimal) == ("comma", "latin-1", "point")
    assert only(path, Dialect(separator="comma")).header == ("a;b", "c")


def test_quoted_cells_keep_separators_quotes_and_newlines(tmp_path):
    """A quoted cell is one cell, whatever is in it; rows are numbered as a spreadsheet does."""
    part = only(written(tmp_path, 'a,b\n"x, ""y""\nz",1\n\nw,2\n'))
    assert list(part.columns["a"]) == ['x, "y"\nz', "w"]
    assert part.rows.tolist() == [2, 4]


def test_long_numbers_stay_as_they_are(tmp_path):
    """An identifier of twenty digits is not rounded."""
    part = only(written(tmp_path, "id\n12345678901234567890\n00012\n"))
    assert list(part.columns["id"]) == ["12345678901234567890", "00012"]


def test_rows_of_another_width_are_named(tmp_path):
    """Rows with more or fewer fields than the header are in no column, and are numbered."""
    part = only(written(tmp_path, "a,b\n1,2\n1\n3,4\n5,6,7\n"))
    assert list(part.columns["b"]) == ["2", "4"]
    assert part.ragged == ((3, 1), (5, 3))


def test_parts_are_the_file(tmp_path):
    """Reading in parts gives the same rows with the same numbers."""
    path = written(tmp_path, "a\n" + "\n".join(map(str, range(10))) + "\n")
    parts = list(read(path, rows=4))
    assert [len(part.rows) for part in parts] == [4, 4, 2]
    assert [int(row) for part in parts for row in part.rows] == list(range(2, 12))
    assert [cell for part in parts for cell in part.columns["a"]] == list(map(str, range(10)))


def test_a_header_may_come_from_elsewhere(tmp_path):
    """A file without a header gets the names it is given, and its first row is row 1."""
    part = only(written(tmp_path, "1,2\n3,4\n", name="x.data"), header=("a", "b"))
    assert list(part.columns["b"]) == ["2", "4"]
    assert part.rows.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "names of the columns"),
        (b",,\n1,2,3\n", "names of the columns"),
        (b"a,b\n1,\x00\n", "bytes that are not text"),
        (b'a,b\n1,"' + b"x" * 200_000 + b"\n", "quotation mark never close"),
    ],
)
def test_files_that_are_no_tables(tmp_path, content, message):
    """An empty file, a file without names, bytes and an endless quotation are refused."""
    path = tmp_path / "site.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read(path))


def test_a_wrong_encoding_is_named(tmp_path):
    """A file that is not in the encoding that was asked for is refused."""
    path = written(tmp_path, "a\nö\n", "latin-1")
    with pytest.raises(DataError, match="cannot be read as utf-8"):
        only(path, Dialect(encoding="utf-8"))
    with pytest.raises(DataError, match="Unknown encoding 'klingon'"):
        Dialect(encoding="klingon")


def test_a_missing_file_is_named(tmp_path):
    """A file that is not there is a DataError with the folder that was looked in."""
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "none.csv")


def test_parquet_is_read_as_text(tmp_path):
    """Typed cells become the text that a CSV file would have; nothing becomes an empty cell."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "id": pa.array([2**60 + 1, 2]),
            "age": pa.array([70.5, None]),
            "day": pa.array([datetime.date(2020, 1, 31), None]),
            "at": pa.array([datetime.datetime(2020, 1, 31), None]),
            "ok": pa.array([True, False]),
        }
    )
    pq.write_table(table, tmp_path / "site.parquet")
    part = only(tmp_path / "site.parquet")
    assert part.columns["id"] == [str(2**60 + 1), "2"]
    assert part.columns["age"] == ["70.5", ""]
    assert part.columns["day"] == part.columns["at"] == ["2020-01-31", ""]
    assert part.columns["ok"] == ["True", "False"]


def test_npz_has_an_array_per_column(tmp_path):
    """Arrays of one length are columns; anything else is refused with the shapes."""
    np.savez(tmp_path / "site.npz", age=np.array([70.5, 60]), sex=np.array(["m", "f"]))
    part = only(tmp_path / "site.npz")
    assert part.columns == {"age": ["70.5", "60"], "sex": ["m", "f"]}
    np.savez(tmp_path / "bad.npz", age=np.zeros(2), sex=np.zeros(3))
    with pytest.raises(DataError, match=r"one length for each column.*\(3,\)"):
        only(tmp_path / "bad.npz")
