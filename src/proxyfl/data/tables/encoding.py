"""Texts of a table as features of a model, by the schema alone.

Guarantees:
    * a row's features depend on that row and the schema, on nothing else: not on other rows, not on
      the order of columns or rows, not on the machine (but for dates later than ``today``);
    * every feature lies in [-1, 1];
    * a value outside its range is clipped and counted; a value that cannot be is a fault.

A text is understood once per part, however often it occurs: that is what makes a million rows
quick.
"""

import datetime
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from proxyfl.data.tables.faults import HEADER, Fault, Tally
from proxyfl.data.tables.features import (
    Features,
    Floats,
    Mask,
    advice,
    possible,
    spread,
    with_indicator,
)
from proxyfl.data.tables.reading import Part
from proxyfl.data.tables.schema import DAYS, Column, Schema, canonical, is_date

Codes = npt.NDArray[np.int64]

UNREADABLE = np.inf
"""Stands for a text that is no number or date. (A text such as "inf" is none either.)"""

ABSENT, UNKNOWN = -1, -2
"""The codes of a missing value and of one that no list has."""


@dataclass(frozen=True)
class Encoded:
    """The rows of a part: features, label (-1 where there is none), site, person, and the row's
    number in the file."""

    x: Features
    y: Codes
    site: Sequence[str]
    person: Sequence[str]
    rows: Codes


def header_faults(
    schema: Schema, header: Sequence[str], *, labelled: bool = True
) -> list[Fault]:
    """The columns that a file has too many, too few or twice."""
    faults = []
    for name in dict.fromkeys(header):
        if header.count(name) > 1:
            faults.append(
                Fault(HEADER, name, "duplicate column", name, "each column once")
            )
        if schema.others == "refuse" and name not in (
            *schema.columns,
            *schema.roles,
        ):
            faults.append(
                Fault(
                    HEADER, name, "unknown column", name, "a column of the schema"
                )
            )
    needed = [
        n
        for n, c in schema.columns.items()
        if c.type != "ignored" and c.absent == "refuse"
    ]
    for name in [*needed, *(schema.roles if labelled else ())]:
        if name not in header:
            faults.append(
                Fault(
                    HEADER, name, "absent column", "no such column", "this column"
                )
            )
    return faults


def encode(
    schema: Schema,
    part: Part,
    tally: Tally,
    *,
    labelled: bool = True,
    today: datetime.date | None = None,
) -> tuple[Encoded, list[Fault]]:
    """The part's rows as features, and every fault in them, in the order of rows.

    Rows with a fault are left out. ``tally`` counts rows and what was changed or left out, not the
    faults themselves. Without ``labelled``, label, site and person are not looked at."""
    reader = _Reader(schema, part, tally, today or datetime.date.today())
    blocks = [
        reader.features(name, column) for name, column in schema.features.items()
    ]
    for name, column in schema.columns.items():
        if column.type == "date":
            reader.dates(name)
    y, site, person = reader.roles() if labelled else reader.no_roles()
    keep = ~reader.bad
    kept = Encoded(
        np.concatenate(blocks, axis=1)[keep],
        y[keep],
        _selected(site, keep),
        _selected(person, keep),
        part.rows[keep],
    )
    tally.rows += len(part.rows) + len(part.ragged)
    tally.skipped += len(part.ragged) + int(reader.bad.sum())
    faults = [*_ragged(part), *reader.faults]
    return kept, sorted(faults, key=lambda fault: fault.row)


class _Reader:
    """Understands one part, column by column, and collects what is wrong with it."""

    def __init__(
        self, schema: Schema, part: Part, tally: Tally, today: datetime.date
    ) -> None:
        self.schema = schema
        self.part = part
        self.tally = tally
        self.today = float(today.toordinal())
        self.bad: Mask = np.zeros(len(part.rows), dtype=bool)
        self.faults: list[Fault] = []
        self._dates: dict[str, Floats] = {}

    def features(self, name: str, column: Column) -> Features:
        """The column's features: (rows, as many as ``feature_names`` has for it)."""
        if column.type == "category":
            return self._category(name, column)
        if column.type == "yes/no":
            return self._yes_no(name, column)
        return self._measured(name, column)

    def _texts(self, name: str) -> Sequence[str]:
        return self.part.columns.get(name) or [""] * len(self.part.rows)

    def _is_missing(self, column: Column | None = None) -> Callable[[str], bool]:
        own = () if column is None else column.missing
        written = {canonical(text) for text in (*self.schema.missing, *own)}
        if "" not in written:
            written.add("")  # an empty cell has no other meaning
        return written.__contains__

    def _report(self, name: str, kind: str, mask: Mask, expected: str) -> None:
        texts = self._texts(name)
        for i in np.flatnonzero(mask).tolist():
            row = int(self.part.rows[i])
            self.faults.append(Fault(row, name, kind, texts[i], expected))
        self.bad |= mask

    def _measured(self, name: str, column: Column) -> Features:
        values = (
            self._numbers(name, column)
            if column.type == "number"
            else self._interval(name)
        )
        self.tally.missing[name] += int(np.isnan(values).sum())
        low, high = column.range
        impossible = np.isfinite(values) & ~possible(values, column)
        unit = f" {column.unit}" if column.unit else ""
        expected = f"a value around {low:g} to {high:g}{unit}{advice(values, impossible, column)}"
        self._report(name, "unit", impossible, expected)
        outside = (
            np.isfinite(values) & ((values < low) | (values > high)) & ~impossible
        )
        if outside.any():
            self.tally.clipped[name] += int(outside.sum())
        return spread(np.clip(values, low, high), column)

    def _numbers(self, name: str, column: Column) -> Floats:
        is_missing = self._is_missing(column)
        decimal = self.part.decimal

        def meaning(text: str) -> float:
            if is_missing(canonical(text)):
                return np.nan
            return number(text if decimal == "." else text.replace(decimal, "."))

        values = each(meaning, self._texts(name))
        unreadable = np.isinf(values)
        hint = f"a number with {decimal!r} as decimal sign"
        self._report(name, "number", unreadable, hint)
        values[unreadable] = np.nan
        return values

    def _interval(self, name: str) -> Floats:
        column = self.schema.columns[name]
        until = column.until or ""
        if is_date(until):
            end = np.float64(datetime.date.fromisoformat(until).toordinal())
            ends = np.full(len(self.part.rows), end)
        else:
            ends = self.dates(until)
        found: Floats = (ends - self.dates(name)) / DAYS[column.unit or "years"]
        return found

    def dates(self, name: str) -> Floats:
        """A column's dates as days since the year 1."""
        if name in self._dates:
            return self._dates[name]
        column = self.schema.columns[name]
        is_missing = self._is_missing(column)

        def meaning(text: str) -> float:
            return (
                np.nan
                if is_missing(canonical(text))
                else _date(text, column.formats)
            )

        values = each(meaning, self._texts(name))
        unreadable = np.isinf(values)
        self._report(
            name, "date", unreadable, f"a date as {' or '.join(column.formats)}"
        )
        values[unreadable] = np.nan
        future = values > self.today
        self._report(name, "future", future, "a date until today")
        values[future] = np.nan
        self._dates[name] = values
        return values

    def _category(self, name: str, column: Column) -> Features:
        listed = spellings(column.values, column.written)
        codes = self._codes(name, column, listed)
        if column.unknown == "other":
            unknown = codes == UNKNOWN
            codes[unknown] = len(column.values)
            if unknown.any():
                self.tally.others[name] += int(unknown.sum())
        expected = f"one of {', '.join(column.values)}"
        self._report(name, "category", codes == UNKNOWN, expected)
        options = np.arange(len(column.values) + (column.unknown == "other"))
        hot = codes[:, None] == options
        return with_indicator(hot.astype(np.float32), codes == ABSENT, column)

    def _yes_no(self, name: str, column: Column) -> Features:
        listed = spellings(("no", "yes"), (column.no, column.yes))
        either = {text.lower(): code for text, code in listed.items()}
        codes = self._codes(name, column, either, lower=True)
        self._report(name, "yes/no", codes == UNKNOWN, "a yes or a no")
        signs = np.where(codes < 0, 0, 2 * codes - 1)
        return with_indicator(
            signs[:, None].astype(np.float32), codes == ABSENT, column
        )

    def _codes(
        self,
        name: str,
        column: Column,
        listed: Mapping[str, int],
        *,
        lower: bool = False,
    ) -> Codes:
        is_missing = self._is_missing(column)

        def meaning(text: str) -> int:
            text = canonical(text)
            if is_missing(text):
                return ABSENT
            return listed.get(text.lower() if lower else text, UNKNOWN)

        codes = each(meaning, self._texts(name)).astype(np.int64)
        self.tally.missing[name] += int((codes == ABSENT).sum())
        return codes

    def roles(self) -> tuple[Codes, Sequence[str], Sequence[str]]:
        """Label, site and person of each row; a row that lacks one of them is at fault."""
        label = self.schema.label
        column = Column("category", values=label.classes, written=label.written)
        y = self._codes(
            label.column, column, spellings(label.classes, label.written)
        )
        expected = f"one of {', '.join(label.classes)}"
        self._report(label.column, "label", y == UNKNOWN, expected)
        self._report(label.column, "no label", y == ABSENT, expected)
        named = []
        # All whose person is "NA" are not one person; a site may have that name.
        for role, kind, unnamed in (
            (self.schema.site, "no site", operator.not_),
            (self.schema.person, "no person", self._is_missing()),
        ):
            texts = (
                [] if role is None else [text.strip() for text in self._texts(role)]
            )
            if role is not None:
                empty = np.array([unnamed(text) for text in texts], dtype=bool)
                self._report(role, kind, empty, "a name")
            named.append(texts)
        return y, named[0], named[1]

    def no_roles(self) -> tuple[Codes, Sequence[str], Sequence[str]]:
        """No label, no site, no person."""
        return np.full(len(self.part.rows), -1, dtype=np.int64), [], []


def spellings(
    names: Sequence[str], written: Sequence[Sequence[str]]
) -> dict[str, int]:
    """Way of writing -> number of the value that it means."""
    ways = written or [[name] for name in names]
    codes = {}
    for code, texts in enumerate(ways):
        for text in texts:
            codes[canonical(text)] = code
    return codes


def each(meaning: Callable[[str], float], texts: Sequence[str]) -> Floats:
    """The meaning of each text, worked out once per distinct text."""
    meanings = {text: meaning(text) for text in set(texts)}
    return np.fromiter(map(meanings.__getitem__, texts), np.float64, len(texts))


def number(text: str) -> float:
    """The number that ``text`` writes with a point, or UNREADABLE."""
    if "_" in text:  # Python's own 1_000 is no number of a table
        return UNREADABLE
    try:
        value = float(text)
    except ValueError:
        return UNREADABLE
    return UNREADABLE if np.isnan(value) else value


def _date(text: str, formats: Sequence[str]) -> float:
    for form in formats:
        try:
            return float(datetime.datetime.strptime(text.strip(), form).toordinal())
        except ValueError:
            continue
    return UNREADABLE


def _ragged(part: Part) -> list[Fault]:
    expected = f"{len(part.header)} fields"
    return [
        Fault(row, "", "fields", f"{found} fields", expected)
        for row, found in part.ragged
    ]


def _selected(texts: Sequence[str], keep: Mask) -> Sequence[str]:
    return list(itertools.compress(texts, keep.tolist()))
