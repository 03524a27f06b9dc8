"""The public schema of a table: what each column means and how it becomes numbers.

All sites agree on one ``schema.toml`` before anybody looks at a record. Encoding uses the schema
alone, never statistics of the records: it costs no privacy and is the same at every site.

    name = "stroke"
    person = "patient"

    [label]
    column = "died"
    classes = ["alive", "dead"]
    written = [["0", "no"], ["1", "yes"]]

    [columns.age]
    type = "number"
    unit = "years"
    range = [18, 100]

The features follow the order of the columns in the schema, whatever their order in a file.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl import _settings
from proxyfl._files import short_hash
from proxyfl._validate import choice, number
from proxyfl.errors import ConfigError

TYPES = {
    "number": "a measurement with a unit and a plausible range",
    "category": "one of a fixed list of values",
    "yes/no": "a yes or a no",
    "date": "a date, taken as the time until another date",
    "ignored": "in the file, and not used",
}
"""Every type of column."""

ENCODINGS = {
    "scaled": "one number from -1 to 1 over the range",
    "bins": "one indicator per interval between the knots",
    "hinges": "scaled, and one ramp from each knot to the end of the range",
}
"""The ways in which a number becomes features."""

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""The spellings of a missing value, unless the schema says otherwise."""

YES = ("1", "yes", "y", "true", "t")
NO = ("0", "no", "n", "false", "f")
DAYS = {"days": 1.0, "weeks": 7.0, "months": 365.25 / 12, "years": 365.25}
"""The units of an interval between two dates, in days."""


@dataclass(frozen=True)
class Column:
    """One column of a table. Fields that do not belong to its type are refused."""

    type: str
    """number, category, yes/no, date or ignored."""
    unit: str = ""
    """The unit of a number; of an interval: days, weeks, months or years (the default)."""
    range: tuple[float, ...] = ()
    """The plausible values, [low, high]. A value outside is clipped and counted."""
    possible: tuple[float, ...] = ()
    """The values that can be, [low, high]. A value outside is a fault."""
    encoding: str = "scaled"
    """scaled, bins or hinges."""
    knots: tuple[float, ...] = ()
    """The points at which bins and hinges begin."""
    values: tuple[str, ...] = ()
    """The values of a category."""
    written: tuple[tuple[str, ...], ...] = ()
    """The spelling of each value of a category in files, if not its name."""
    unknown: str = "refuse"
    """The treatment of a value that is not in the list: refuse, or other."""
    yes: tuple[str, ...] = YES
    """The spellings of yes in files, in capital or small letters."""
    no: tuple[str, ...] = NO
    """The spellings of no in files, in capital or small letters."""
    formats: tuple[str, ...] = ("%Y-%m-%d",)
    """The form of a date in files."""
    until: str | None = None
    """The end of a date's interval: another column, or a date such as 2020-12-31.
    A date without it serves only as the end of others."""
    missing: tuple[str, ...] = ()
    """The spellings of a missing value in this column, beside those of the whole table."""
    indicator: bool = True
    """Whether a feature says that the value is missing."""
    fill: float | None = None
    """The value that stands for a missing number; absent: the middle of the range."""
    absent: str = "refuse"
    """The treatment of a file without this column: refuse, or missing for all its rows."""

    def __post_init__(self) -> None:
        choice("type", self.type, TYPES)
        choice("encoding", self.encoding, ENCODINGS)
        choice("unknown", self.unknown, ("refuse", "other"))
        choice("absent", self.absent, ("refuse", "missing"))
        _check_fields(self)
        if self.is_measured:
            _check_range(self)
            _check_knots(self)
        if self.type == "category":
            check_names("values", self.values, self.written)
        if self.type == "yes/no":
            check_names("yes and no", ("yes", "no"), (self.yes, self.no))
        if self.type == "date":
            _check_formats(self.formats)

    @property
    def is_measured(self) -> bool:
        """True if the column becomes one number on a range, as a number or as an interval."""
        is_interval = self.type == "date" and self.until is not None
        return self.type == "number" or is_interval

    @property
    def is_feature(self) -> bool:
        """True if models see the column."""
        return self.is_measured or self.type in ("category", "yes/no")


@dataclass(frozen=True)
class Label:
    """The class to be predicted."""

    column: str
    """The label's column."""
    classes: tuple[str, ...]
    """The classes, in an order that all sites share: the first is class 0."""
    written: tuple[tuple[str, ...], ...] = ()
    """The spelling of each class in files, if not its name."""
    prevalence: tuple[float, ...] = ()
    """The share of each class as it is publicly known, from a register or the literature."""

    def __post_init__(self) -> None:
        check_names("classes", self.classes, self.written)
        if len(self.classes) < 2:
            raise ConfigError(
                f"Expected at least two classes, got {list(self.classes)}."
            )
        if not self.prevalence:
            return
        if len(self.prevalence) != len(self.classes):
            raise ConfigError(
                f"Expected a share for each of {len(self.classes)} classes in prevalence, got "
                f"{len(self.prevalence)}."
            )
        for share in self.prevalence:
            number("prevalence", share, above=0, below=1)
        total = sum(self.prevalence)
        if abs(total - 1) > 1e-6:
            raise ConfigError(
                f"Expected shares that add up to 1 in prevalence, got {total:g}."
            )


@dataclass(frozen=True)
class Schema:
    """The form of a table on which all sites agree; see the module's docstring."""

    label: Label
    columns: dict[str, Column]
    name: str = "table"
    """The table's name."""
    site: str | None = None
    """The column that names a row's institution; absent: each file is a site."""
    person: str | None = None
    """The column that names a row's individual; absent: each row is one."""
    missing: tuple[str, ...] = MISSING
    """The spellings of a missing value in files."""
    others: str = "refuse"
    """The treatment of a column that the schema does not name: refuse, or ignore."""

    def __post_init__(self) -> None:
        choice("others", self.others, ("refuse", "ignore"))
        for role in (self.label.column, self.site, self.person):
            if role is not None and role in self.columns:
                raise ConfigError(
                    f"The column {role!r} is a label, a site or a person, and is in [columns] too. "
                    "Take it out of [columns]: models must not learn from it."
                )
        if not self.features:
            raise ConfigError(
                f"The schema {self.name!r} has no column to learn from."
            )
        for name, column in self.columns.items():
            self._check_until(name, column)

    def _check_until(self, name: str, column: Column) -> None:
        end = column.until
        if end is None or is_date(end):
            return
        known = []
        for other, its in self.columns.items():
            if its.type == "date" and other != name:
                known.append(other)
        if end not in known:
            raise ConfigError(
                f"columns.{name}.until: expected a date such as 2020-12-31 or another column of "
                f"type date ({', '.join(known) or 'there is none'}), got {end!r}."
            )

    @property
    def features(self) -> dict[str, Column]:
        """The columns that models see, in order."""
        found = {}
        for name, column in self.columns.items():
            if column.is_feature:
                found[name] = column
        return found

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns that are no features: label, site and person."""
        named = (self.label.column, self.site, self.person)
        return tuple(name for name in named if name is not None)

    @property
    def fingerprint(self) -> str:
        """A short checksum by which sites see that they use the same schema."""
        return short_hash(to_toml(self).encode())


def read(path: Path) -> Schema:
    """The schema in the file at ``path``."""
    return _settings.build(Schema, _settings.read_toml(path, "schema"), source=path)


def parse(tree: Mapping[str, Any], source: str = "schema") -> Schema:
    """The schema that a nested mapping describes; an error names its ``source``."""
    return _settings.build(Schema, tree, source=source)


def to_toml(schema: Schema) -> str:
    """The schema as TOML that ``parse`` reads back to an equal one; defaults are left out."""
    blocks = [_block("", schema, skip=("label", "columns"))]
    blocks.append(_block("[label]", schema.label))
    for name, column in schema.columns.items():
        blocks.append(_block(f"[columns.{_settings.toml_value(name)}]", column))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _block(title: str, table: Any, skip: tuple[str, ...] = ()) -> str:
    lines = [title] if title else []
    for item in dataclasses.fields(table):
        value = getattr(table, item.name)
        if item.name not in skip and value != item.default:
            lines.append(f"{item.name} = {_settings.toml_value(value)}")
    return "\n".join(lines)


def is_date(text: str) -> bool:
    """True if ``text`` has the form of 2020-12-31."""
    return re.fullmatch(r"\d{4}-\d\d-\d\d", text) is not None


def canonical(text: str) -> str:
    """``text`` without spaces around it; a whole number without decimals, so that 1.0 is 1."""
    text = text.strip()
    whole, dot, decimals = text.partition(".")
    if dot and not decimals.strip("0") and whole.lstrip("+-").isdecimal():
        return whole
    return text


def check_names(
    where: str,
    names: tuple[str, ...],
    written: tuple[tuple[str, ...], ...] = (),
) -> None:
    """Raise ConfigError unless ``names`` are distinct and ``written`` tells each from the rest."""
    if not names:
        raise ConfigError(f"Expected a list of {where}, got none.")
    if written and len(written) != len(names):
        raise ConfigError(
            f"Expected ways of writing for each of the {len(names)} {where}, got {len(written)}."
        )
    if len(set(map(canonical, names))) < len(names):
        raise ConfigError(f"Expected distinct {where}, got {list(names)}.")
    spellings = list(map(canonical, itertools.chain.from_iterable(written)))
    twice = sorted({text for text in spellings if spellings.count(text) > 1})
    if twice:
        raise ConfigError(
            f"Expected one meaning for each way of writing {where}, got {twice}."
        )


_MEASURED = {"unit", "range", "possible", "encoding", "knots", "fill"}
_FIELDS = {
    "number": _MEASURED,
    "category": {"values", "written", "unknown"},
    "yes/no": {"yes", "no"},
    "date": _MEASURED | {"formats", "until"},
    "ignored": set(),
}
_ALWAYS = {"type", "missing", "indicator", "absent"}


def _check_fields(column: Column) -> None:
    """Refuse what does nothing: a setting of another type."""
    for item in dataclasses.fields(column):
        allowed = item.name in _ALWAYS | _FIELDS[column.type]
        if not allowed and getattr(column, item.name) != item.default:
            raise ConfigError(
                f"{item.name} means nothing for a column of type {column.type!r}. "
                f"It takes {', '.join(sorted(_FIELDS[column.type] | _ALWAYS))}."
            )


def _check_range(column: Column) -> None:
    if len(column.range) != 2:
        raise ConfigError(
            f"Expected a plausible range such as range = [18, 100], got {list(column.range)}. "
            "Take it from what the column can be, not from the records."
        )
    low, high = column.range
    number("range", low)
    number("range", high)
    if not low < high:
        raise ConfigError(
            f"Expected a range from low to high, got [{low:g}, {high:g}]."
        )
    possible = column.possible
    if possible and len(possible) != 2:
        raise ConfigError(f"Expected possible = [low, high], got {list(possible)}.")
    if possible and not possible[0] <= low < high <= possible[1]:
        raise ConfigError(
            f"Expected possible around the range, got {list(possible)} and {list(column.range)}."
        )
    if column.fill is not None:
        number("fill", column.fill, at_least=low, at_most=high)
    if column.type == "date":
        choice("unit", column.unit or "years", DAYS)


def _check_knots(column: Column) -> None:
    low, high = column.range
    if (column.encoding == "scaled") != (not column.knots):
        raise ConfigError(
            "Expected knots with the encodings bins and hinges, and with no other, got "
            f"encoding={column.encoding!r} and knots={list(column.knots)}."
        )
    ascending = all(a < b for a, b in itertools.pairwise(column.knots))
    if not ascending or any(not low < knot < high for knot in column.knots):
        raise ConfigError(
            f"Expected ascending knots within ({low:g}, {high:g}), got {list(column.knots)}."
        )


def _check_formats(formats: tuple[str, ...]) -> None:
    """Refuse formats of which one takes for a day what another takes for a month."""
    if not formats:
        raise ConfigError("Expected at least one date format, such as %Y-%m-%d.")
    orders: dict[str, str] = {}
    for form in formats:
        shape = form.replace("%d", "%.").replace("%m", "%.")
        if orders.setdefault(shape, form) != form:
            raise ConfigError(
                f"The formats {orders[shape]!r} and {form!r} read the same text as different "
                "dates. Keep one, and bring the other files to it."
            )
