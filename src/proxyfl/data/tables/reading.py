"""Tables as sites have them, as text: CSV in the dialects people write, Parquet, npz, Excel, and
other tables that can give their rows (``Tabular``: the answer of a query, a data frame).

A file is read in parts of ``ROWS`` rows, so memory does not grow with its length. Every cell stays
the text that the file has: a long number that names a patient is not rounded, and only the schema
says what a text means.

What is recognised, unless it is asked for by name:
    * the encoding: a byte order mark, else UTF-8, else Latin-1 (or Windows-1252 by its letters);
    * the separator: comma, semicolon, tab or bar, whichever divides the first rows most evenly;
    * the decimal sign: a comma where the separator is none, some numbers have one and none a point.
"""

import codecs
import csv
import datetime
import decimal
import io
import itertools
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from proxyfl._validate import choice
from proxyfl.data.arrays import read_npz
from proxyfl.errors import DataError

ROWS = 10_000
"""Rows in a part."""

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
DECIMALS = {"point": ".", "comma": ","}
_SAMPLE = 1000
_WITH_COMMA = re.compile(r"[+-]?\d+,\d+")
_WITH_POINT = re.compile(r"[+-]?\d*\.\d+")


@dataclass(frozen=True)
class Dialect:
    """The form of a CSV file; ``auto`` is recognised."""

    separator: str = "auto"
    decimal: str = "auto"
    encoding: str = "auto"

    def __post_init__(self) -> None:
        choice("separator", self.separator, ("auto", *SEPARATORS), error=DataError)
        choice("decimal sign", self.decimal, ("auto", *DECIMALS), error=DataError)
        if self.encoding != "auto":
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise DataError(
                    f"Unknown encoding {self.encoding!r}. Usual are utf-8, latin-1 and cp1252."
                ) from None


@dataclass(frozen=True)
class Part:
    """Some rows of a table: a list of texts per column.

    ``rows`` numbers them as a spreadsheet does: the header is row 1. ``ragged`` has the rows that
    have more or fewer fields than the header, with that number; they are in no column.
    """

    header: tuple[str, ...]
    rows: npt.NDArray[np.int64]
    columns: dict[str, Sequence[str]]
    decimal: str = "."
    ragged: tuple[tuple[int, int], ...] = ()


@runtime_checkable
class Tabular(Protocol):
    """A table that is no file. ``stem`` names its site, unless the schema has a column for that."""

    @property
    def stem(self) -> str: ...

    @property
    def name(self) -> str: ...

    def parts(self, size: int) -> Iterator[Part]:
        """The rows in parts of at most ``size``; at least one part, which may have no rows."""
        ...


def find(source: str | Sequence[str]) -> list[Path]:
    """The files that ``source`` names, in order: patterns such as sites/*.csv stand for the files
    that match, sorted by name."""
    paths: list[Path] = []
    for text in [source] if isinstance(source, str) else source:
        path = Path(text).expanduser()
        if not any(sign in text for sign in "*?["):
            paths.append(path)
            continue
        anchor = Path(path.anchor or ".")
        pattern = str(path.relative_to(anchor)) if path.anchor else str(path)
        matching = sorted(filter(Path.is_file, anchor.glob(pattern)))
        if not matching:
            raise DataError(f"{text}: no file matches (looked from {Path.cwd()}). Check the name.")
        paths += matching
    return paths


def read(
    path: Path | Tabular,
    dialect: Dialect | None = None,
    *,
    header: Sequence[str] = (),
    rows: int = ROWS,
) -> Iterator[Part]:
    """The table at ``path`` in parts; at least one, which may have no rows.

    ``header`` names the columns of a file that begins without."""
    if not isinstance(path, Path):
        return path.parts(rows)
    if not path.is_file():
        raise DataError(f"{path}: no such file (looked from {Path.cwd()}). Check the name.")
    if path.suffix == ".parquet":
        return _parquet(path, rows)
    if path.suffix == ".npz":
        return _npz(path, rows)
    if path.suffix == ".xlsx":
        return _workbook(path, rows)
    if path.suffix in (".xls", ".ods"):
        raise DataError(f"{path}: this kind of spreadsheet is not read. Save it as .xlsx or CSV.")
    recognised = recognise(path, dialect or Dialect())
    return _csv(path, recognised, tuple(header), rows)


def recognise(path: Path, asked: Dialect) -> Dialect:
    """``asked`` with what it leaves open taken from the file."""
    encoding = asked.encoding
    if encoding == "auto":
        encoding = _encoding(path)
    dialect = replace(asked, encoding=encoding)
    if dialect.separator == "auto":
        dialect = replace(dialect, separator=_separator(path, encoding))
    if dialect.decimal == "auto":
        dialect = replace(dialect, decimal=_decimal(path, dialect))
    return dialect


def _encoding(path: Path) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        start = file.read(4)
        if start.startswith(codecs.BOM_UTF8):
            return "utf-8-sig"
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        file.seek(0)
        windows = False
        is_utf8 = True
        while block := file.read(1 << 20):
            if b"\0" in block:
                raise DataError(
                    f"{path}: has bytes that are not text. If it is UTF-16 without a byte order "
                    "mark, name the encoding; if it is a spreadsheet, save it as CSV first."
                )
            windows = windows or any(byte in block for byte in range(0x80, 0xA0))
            is_utf8 = is_utf8 and _decodes(decoder, block)
    if is_utf8 and _decodes(decoder, b"", final=True):
        return "utf-8"
    return "cp1252" if windows else "latin-1"


def _decodes(decoder: codecs.IncrementalDecoder, block: bytes, *, final: bool = False) -> bool:
    try:
        decoder.decode(block, final)
    except UnicodeDecodeError:
        return False
    return True


def _separator(path: Path, encoding: str) -> str:
    """The separator under which most of the first rows have as many fields as the header."""
    best = "comma"
    best_score = (0, 0)
    for name, sign in SEPARATORS.items():
        widths = list(map(len, _sample(path, encoding, sign)))
        if not widths:
            continue
        fields = widths[0]
        agreeing = widths.count(fields) if fields > 1 else 0
        if (agreeing, fields) > best_score:
            best = name
            best_score = (agreeing, fields)
    return best


def _decimal(path: Path, dialect: Dialect) -> str:
    if dialect.separator == "comma":
        return "point"
    rows = _sample(path, dialect.encoding, SEPARATORS[dialect.separator])
    cells = list(map(str.strip, itertools.chain.from_iterable(rows)))
    commas = list(filter(_WITH_COMMA.fullmatch, cells))
    points = list(filter(_WITH_POINT.fullmatch, cells))
    if commas and points:
        raise DataError(
            f"{path}: has numbers with a comma ({commas[0]}) and with a point ({points[0]}), so "
            "the decimal sign cannot be told. Name it: point or comma."
        )
    return "comma" if commas else "point"


def _sample(path: Path, encoding: str, separator: str) -> list[list[str]]:
    with _open(path, encoding) as file:
        rows = _rows(path, file, separator)
        return [row for row in itertools.islice(rows, _SAMPLE) if row]


def _csv(path: Path, dialect: Dialect, header: tuple[str, ...], size: int) -> Iterator[Part]:
    decimal = DECIMALS[dialect.decimal]
    with _open(path, dialect.encoding) as file:
        rows = _rows(path, file, SEPARATORS[dialect.separator])
        first = 1
        if not header:
            header = _header(path, next(rows, []))
            first = 2
        for start in itertools.count(first, size):
            block = list(itertools.islice(rows, size))
            if block or start == first:
                yield _part(header, start, block, decimal)
            if len(block) < size:
                return


def _header(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    header = tuple(name.strip() for name in names)
    if not any(header):
        raise DataError(f"{path}: expected the names of the columns in the first row, got none.")
    return header


def _part(header: tuple[str, ...], start: int, block: list[list[str]], decimal: str) -> Part:
    """A part from rows of cells. Blank lines are no rows, but count where rows are numbered."""
    whole = []
    numbers = []
    ragged = []
    for number, row in enumerate(block, start):
        if len(row) == len(header):
            whole.append(row)
            numbers.append(number)
        elif row:
            ragged.append((number, len(row)))
    cells: Iterable[Sequence[str]] = zip(*whole, strict=True)
    if not whole:
        cells = [()] * len(header)
    columns = dict(zip(header, cells, strict=True))
    rows = np.array(numbers, dtype=np.int64)
    return Part(header, rows, columns, decimal, tuple(ragged))


def _rows(path: Path, file: io.TextIOBase, separator: str) -> Iterator[list[str]]:
    reader = csv.reader(file, delimiter=separator)
    try:
        yield from reader
    except UnicodeDecodeError as problem:
        raise DataError(f"{path}: cannot be read as {problem.encoding}: {problem}.") from problem
    except csv.Error as problem:
        raise DataError(
            f"{path}, line {reader.line_num}: {problem}. Does a quotation mark never close?"
        ) from problem


def _open(path: Path, encoding: str) -> io.TextIOWrapper:
    try:
        return path.open(encoding=encoding, newline="")
    except OSError as problem:
        raise DataError(f"{path}: cannot be read: {problem.strerror}.") from problem


def _parquet(path: Path, size: int) -> Iterator[Part]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as problem:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow: pip install 'proxyfl[tables]'."
        ) from problem
    start = 2
    try:
        file = parquet.ParquetFile(path)
        header = tuple(file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=size):
            columns = [column.to_pylist() for column in batch.columns]
            yield _columns(header, start, columns)
            start += batch.num_rows
    except (OSError, ValueError) as problem:
        raise DataError(f"{path}: not a readable Parquet file: {problem}.") from problem
    if start == 2:
        yield _columns(header, start, [[] for _ in header])


def _npz(path: Path, size: int) -> Iterator[Part]:
    """One array per column, all of one length."""
    arrays = read_npz(path)
    lengths = {array.shape for array in arrays.values()}
    if len(lengths) != 1 or any(len(shape) != 1 for shape in lengths):
        shapes = {name: array.shape for name, array in arrays.items()}
        raise DataError(
            f"{path}: expected an array of one length for each column of the table, got {shapes}."
        )
    header = tuple(arrays)
    length = next(iter(lengths))[0]
    for first in range(0, max(length, 1), size):
        some = slice(first, first + size)
        columns = [array[some].tolist() for array in arrays.values()]
        yield _columns(header, first + 2, columns)


def _workbook(path: Path, size: int) -> Iterator[Part]:
    """The one sheet of an Excel workbook that has cells."""
    try:
        import openpyxl
    except ImportError as problem:
        raise DataError(
            f"{path}: reading Excel needs openpyxl: pip install 'proxyfl[tables]'."
        ) from problem
    try:
        values = _sheet(path, openpyxl.load_workbook(path, read_only=True, data_only=True))
        texts = _sheet(path, openpyxl.load_workbook(path, read_only=True))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as problem:
        raise DataError(
            f"{path}: not a readable .xlsx file: {problem}. Save it as CSV."
        ) from problem
    rows = []
    for number, (row, written) in enumerate(zip(values, texts, strict=True), 1):
        for value, text in zip(row, written, strict=True):
            if value is None and isinstance(text, str) and text.startswith("="):
                raise DataError(
                    f"{path} row {number}: the formula {text[:40]!r} has no value yet. Open the "
                    "file in a spreadsheet program and save it, which computes it."
                )
        rows.append(row)
    while rows and not any(value is not None for value in rows[-1]):
        rows.pop()
    names = [as_text(value) for value in rows[0]] if rows else []
    while names and not names[-1]:
        names.pop()
    header = _header(path, names)
    for number, row in enumerate(rows[1:], 2):
        if any(value is not None for value in row[len(header) :]):
            raise DataError(f"{path} row {number}: a cell beyond the last column with a name.")
    empty = (None,) * len(header)
    cells = [(*row, *empty)[: len(header)] for row in rows[1:]]
    return parts_of_cells(header, cells, size)


def _sheet(path: Path, workbook: Any) -> list[tuple[Any, ...]]:
    """The rows of the only sheet with cells."""
    filled = {}
    for sheet in workbook.worksheets:
        rows = [tuple(row) for row in sheet.iter_rows(values_only=True)]
        if any(value is not None for row in rows for value in row):
            filled[sheet.title] = rows
    if len(filled) > 1:
        raise DataError(
            f"{path}: expected one sheet with cells, got {', '.join(map(repr, filled))}. Save the "
            "one that has the records as a file of its own."
        )
    return next(iter(filled.values()), [])


def parts_of_cells(
    header: tuple[str, ...],
    rows: Sequence[Sequence[Any]],
    size: int,
    *,
    first: int = 2,
    in_order: bool = True,
) -> Iterator[Part]:
    """Typed rows as parts, numbered from ``first``. Rows in no order of their own are sorted by
    their content."""
    cells = [tuple(map(as_text, row)) for row in rows]
    places = list(range(len(cells)))
    if not in_order:
        places.sort(key=cells.__getitem__)
    for start in range(0, max(len(cells), 1), size):
        some = places[start : start + size]
        columns: Iterable[Sequence[str]] = zip(*(cells[place] for place in some), strict=True)
        if not some:
            columns = [()] * len(header)
        # a name that occurs twice stays in the header, where the schema finds it at fault
        numbers = np.array([first + place for place in some], dtype=np.int64)
        yield Part(header, numbers, dict(zip(header, columns, strict=True)))


def _columns(header: tuple[str, ...], start: int, columns: Sequence[Sequence[Any]]) -> Part:
    rows = np.arange(start, start + len(columns[0]), dtype=np.int64)
    texts = [list(map(as_text, values)) for values in columns]
    return Part(header, rows, dict(zip(header, texts, strict=True)))


EXACT = 2**53
"""Whole numbers below are exact as a float of 64 bits; beyond, several are one."""


def as_text(value: Any) -> str:
    """A typed value as a CSV file would have it, by that value alone.

    A whole number has no decimals, whatever its type: one gap makes a column of whole numbers one
    of floats or decimals, and names in it must stay what they are. One that a float cannot hold
    exactly is written with an exponent. Different bytes have different texts."""
    if value is None:
        return ""
    if isinstance(value, float | np.floating | decimal.Decimal):
        return _of_number(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _of_bytes(bytes(value))
    if isinstance(value, datetime.datetime):
        midnight = value.time() == datetime.time()
        return str(value.date()) if midnight else value.isoformat(sep=" ")
    return str(value)


def _of_number(value: float | np.floating[Any] | decimal.Decimal) -> str:
    if value != value:
        return ""
    if value in (math.inf, -math.inf) or value != int(value):
        return str(value)
    if isinstance(value, decimal.Decimal) or abs(float(value)) < EXACT:
        return str(int(value))
    return f"{value:.16e}"


def _of_bytes(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return f"0x{content.hex()}"
