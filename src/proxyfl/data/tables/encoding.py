"""Texts of a table as features of a model, by the schema alone.

Guarantees:
    * a row's features depend on that row and the schema, on nothing else: not on other rows, not on
      the order of columns or rows, not on the machine (except for dates later than ``today``);
    * every feature is within [-1, 1];
    * a value outside its range is clipped and counted; a value that cannot be is a fault.

A text is understood once per part, however often it occurs: that is what makes a million rows
quick.
"""

import datetime
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from proxyfl import tasks
from proxyfl.data.tables.faults import Fault, Tally
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
from proxyfl.data.tables.schema import DAYS, Column, Schema, canonical, codes_of, is_date

Codes = npt.NDArray[np.int64]
Labels = npt.NDArray[np.float32]
Targets = Codes | Labels

UNREADABLE = np.inf
"""Stands for a text that is no number or date. (A text such as "inf" is none either.)"""

LATEST = 1e9
"""The largest time that is read: any horizon is before it, and float32 holds it."""

ROUNDED = re.compile(r"[+-]?\d+([.,]\d+)?[eE]\+\d+")
"""A name that a spreadsheet or a float has rounded, such as 1.23E+15."""

ABSENT, UNKNOWN = -1, -2
"""The codes of a missing value and of one that no list has."""


@dataclass(frozen=True)
class Encoded:
    """The rows of a part: features, label (-1 where there is none), site, person, and the row's
    number in the file. A label is that of the schema's task (``proxyfl.tasks``)."""

    x: Features
    y: Targets
    site: Sequence[str]
    person: Sequence[str]
    rows: Codes


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
    x = reader.features()
    for name, column in schema.columns.items():
        if column.type == "date":
            reader.dates(name)
    y: Targets = np.full(len(part.rows), -1, dtype=np.int64)
    site: Sequence[str] = []
    person: Sequence[str] = []
    if labelled:
        y = reader.labels()
        # All whose person is "NA" are not one person; a site may have that name.
        site = reader.named(schema.site, "no site", {""})
        person = reader.named(schema.person, "no person", reader.missing())
    keep = ~reader.bad
    kept = Encoded(
        x=x[keep],
        y=y[keep],
        site=list(itertools.compress(site, keep)),
        person=list(itertools.compress(person, keep)),
        rows=part.rows[keep],
    )
    tally.rows += len(part.rows) + len(part.ragged)
    tally.skipped += len(part.ragged)
    tally.skipped += int(reader.bad.sum())
    faults = _report_ragged(part) + reader.faults
    return kept, sorted(faults, key=lambda fault: fault.row)


class _Reader:
    """Understands one part, column by column, and collects what is wrong with it."""

    def __init__(self, schema: Schema, part: Part, tally: Tally, today: datetime.date) -> None:
        self.schema = schema
        self.part = part
        self.tally = tally
        self.today = float(today.toordinal())
        self.bad: Mask = np.zeros(len(part.rows), dtype=bool)
        self.faults: list[Fault] = []
        self._dates: dict[str, Floats] = {}

    def features(self) -> Features:
        """All features: (rows, as many as ``feature_names`` has)."""
        blocks = []
        for name, column in self.schema.features.items():
            if column.type == "category":
                blocks.append(self._category(name, column))
            elif column.type == "yes/no":
                blocks.append(self._yes_no(name, column))
            else:
                blocks.append(self._measure(name, column))
        return np.concatenate(blocks, axis=1)

    def _texts(self, name: str) -> Sequence[str]:
        return self.part.columns.get(name) or [""] * len(self.part.rows)

    def missing(self, column: Column | None = None) -> set[str]:
        """The spellings of a missing value; an empty cell has no other meaning."""
        own = () if column is None else column.missing
        written = map(canonical, (*self.schema.missing, *own))
        return {"", *written}

    def _report(self, name: str, kind: str, mask: Mask, expected: str) -> None:
        texts = self._texts(name)
        for i in np.flatnonzero(mask).tolist():
            row = int(self.part.rows[i])
            self.faults.append(Fault(row, name, kind, texts[i], expected))
        self.bad |= mask

    def _remove(self, values: Floats, name: str, kind: str, mask: Mask, expected: str) -> None:
        self._report(name, kind, mask, expected)
        values[mask] = np.nan

    def _measure(self, name: str, column: Column) -> Features:
        read = self._numbers if column.type == "number" else self._interval
        values = read(name, column)
        known = np.isfinite(values)
        self.tally.missing[name] += int((~known).sum())
        low, high = column.range
        impossible = known & ~possible(values, column)
        unit = f" {column.unit}" if column.unit else ""
        hint = advice(values, impossible, column)
        expected = f"a value around {low:g} to {high:g}{unit}{hint}"
        self._report(name, "unit", impossible, expected)
        beyond = (values < low) | (values > high)
        outside = known & beyond & ~impossible
        if outside.any():
            self.tally.clipped[name] += int(outside.sum())
        return spread(np.clip(values, low, high), column)

    def _numbers(self, name: str, column: Column) -> Floats:
        decimal = self.part.decimal
        values = numbers(self._texts(name), decimal, self.missing(column))
        expected = f"a number with {decimal!r} as decimal sign"
        self._remove(values, name, "number", np.isinf(values), expected)
        return values

    def _interval(self, name: str, column: Column) -> Floats:
        until = column.until or ""
        if is_date(until):
            end = np.float64(datetime.date.fromisoformat(until).toordinal())
            ends = np.full(len(self.part.rows), end)
        else:
            ends = self.dates(until)
        days = ends - self.dates(name)
        interval: Floats = days / DAYS[column.unit or "years"]
        return interval

    def dates(self, name: str) -> Floats:
        """A column's dates as days since the year 1."""
        if name in self._dates:
            return self._dates[name]
        column = self.schema.columns[name]

        def meaning(text: str) -> float:
            return _date(canonical(text), column.formats)

        values = _each(meaning, self._texts(name), self.missing(column))
        expected = f"a date as {' or '.join(column.formats)}"
        self._remove(values, name, "date", np.isinf(values), expected)
        future = values > self.today
        self._remove(values, name, "future", future, "a date until today")
        self._dates[name] = values
        return values

    def _category(self, name: str, column: Column) -> Features:
        listed = codes_of(column.values, column.written)
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
        return with_indicator(hot, codes == ABSENT, column)

    def _yes_no(self, name: str, column: Column) -> Features:
        listed = codes_of(("no", "yes"), {"no": column.no, "yes": column.yes})
        either = {text.lower(): code for text, code in listed.items()}
        codes = self._codes(name, column, either)
        self._report(name, "yes/no", codes == UNKNOWN, "a yes or a no")
        signs = np.where(codes < 0, 0, 2 * codes - 1)
        return with_indicator(signs[:, None], codes == ABSENT, column)

    def _codes(self, name: str, column: Column | None, listed: Mapping[str, int]) -> Codes:
        either_case = column is not None and column.type == "yes/no"

        def meaning(text: str) -> int:
            text = canonical(text)
            if either_case:
                text = text.lower()
            return listed.get(text, UNKNOWN)

        missing = self.missing(column)
        values = _each(meaning, self._texts(name), missing, absent=ABSENT)
        codes = values.astype(np.int64)
        self.tally.missing[name] += int((codes == ABSENT).sum())
        return codes

    def labels(self) -> Targets:
        """The label of each row; a row without one is at fault."""
        kind = self.schema.label.task
        if kind == tasks.REGRESSION:
            return self._values()
        if kind == tasks.TIME_TO_EVENT:
            return np.stack([self._times(), self._answers(self.schema.label.event)], axis=1)
        if kind == tasks.MULTILABEL:
            return np.stack([self._answers(name) for name in self.schema.label.findings], axis=1)
        label = self.schema.label
        listed = codes_of(label.classes, label.written)
        y = self._codes(label.column, None, listed)
        expected = f"one of {', '.join(label.classes)}"
        self._report(label.column, "label", y == UNKNOWN, expected)
        self._report(label.column, "no label", y == ABSENT, expected)
        return y

    def _answers(self, name: str) -> Labels:
        """1 for yes and 0 for no in a column of the label."""
        label = self.schema.label
        listed = codes_of(("no", "yes"), {"no": label.no, "yes": label.yes})
        either = {text.lower(): code for text, code in listed.items()}
        missing = self.missing()

        def meaning(text: str) -> int:
            return either.get(canonical(text).lower(), UNKNOWN)

        codes = _each(meaning, self._texts(name), missing, absent=ABSENT)
        self._report(name, "label", codes == UNKNOWN, "a yes or a no")
        self._report(name, "no label", codes == ABSENT, "a yes or a no")
        return codes.astype(np.float32)

    def _values(self) -> Labels:
        """The value of each row, clipped to the public range and counted."""
        label = self.schema.label
        low, high = label.range
        margin = (high - low) / 2
        least, most = label.possible or (low - margin, high + margin)
        values = self._label_numbers(least, most)
        clipped = ((values < low) | (values > high)) & ~self.bad
        if clipped.any():
            self.tally.clipped[label.column] += int(clipped.sum())
        return np.clip(values, low, high).astype(np.float32)

    def _times(self) -> Labels:
        """The time of each row. One beyond the horizon is no fault: that is what the event's
        absence by then means."""
        label = self.schema.label
        least, most = label.possible or (0.0, LATEST)
        times = self._label_numbers(max(least, 0.0), most)
        return np.clip(times, 0, most).astype(np.float32)

    def _label_numbers(self, least: float, most: float) -> Floats:
        """The numbers in the label's column. A missing, unreadable or impossible one is a fault,
        and 0 in its place."""
        label = self.schema.label
        values = numbers(self._texts(label.column), self.part.decimal, self.missing())
        unit = f" {label.unit}" if label.unit else ""
        expected = f"a number from {least:g} to {most:g}{unit}"
        if label.task == tasks.TIME_TO_EVENT and not label.possible:
            expected = f"a time of 0 or more{unit}"
        absent = np.isnan(values)
        unreadable = np.isinf(values)
        known = ~absent & ~unreadable
        impossible = known & ((values < least) | (values > most))
        self._report(label.column, "no label", absent, expected)
        self._report(label.column, "label", unreadable | impossible, expected)
        values[~known | impossible] = 0.0
        return values

    def named(self, column: str | None, kind: str, missing: Collection[str]) -> Sequence[str]:
        """The site or the person of each row; a row without one is at fault."""
        if column is None:
            return []
        texts = [canonical(text) for text in self._texts(column)]
        unnamed = np.array([text in missing for text in texts], dtype=bool)
        self._report(column, kind, unnamed, "a name")
        rounded = np.array([ROUNDED.fullmatch(text) is not None for text in texts], dtype=bool)
        self._report(column, "rounded name", rounded, "all digits of a name")
        return texts


def numbers(texts: Sequence[str], decimal: str, missing: Collection[str]) -> Floats:
    """The number that each text writes: NaN where it is missing, else maybe UNREADABLE."""

    def meaning(text: str) -> float:
        return _number(text.replace(decimal, "."))

    return _each(meaning, texts, missing)


def _each(
    meaning: Callable[[str], float],
    texts: Sequence[str],
    missing: Collection[str],
    *,
    absent: float = np.nan,
) -> Floats:
    """The meaning of each text, worked out once per distinct text; ``absent`` where missing."""
    meanings = {}
    for text in set(texts):
        is_missing = canonical(text) in missing
        meanings[text] = absent if is_missing else meaning(text)
    return np.fromiter(map(meanings.__getitem__, texts), np.float64, len(texts))


def _number(text: str) -> float:
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
            day = datetime.datetime.strptime(text, form)
        except ValueError:
            continue
        return float(day.toordinal())
    return UNREADABLE


def _report_ragged(part: Part) -> list[Fault]:
    expected = f"{len(part.header)} fields"
    faults = []
    for row, fields in part.ragged:
        faults.append(Fault(row, "", "fields", f"{fields} fields", expected))
    return faults
