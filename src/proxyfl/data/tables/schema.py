"""The public schema of a table: what each column means and how it becomes numbers.

All sites agree on one ``schema.toml`` before anybody looks at a record. Encoding uses the schema
alone, never statistics of the records: it costs no privacy and is the same at every site.

    name = "stroke"
    person = "patient"

    [label]
    column = "died"
    classes = ["alive", "dead"]
    written = {alive = ["0", "no"], dead = ["1", "yes"]}

    [columns.age]
    type = "number"
    unit = "years"
    range = [18, 100]

The label is a class, as above, or another outcome (``proxyfl.tasks``):

    [label]                         [label]                       [label]
    task = "regression"             task = "time-to-event"        task = "multilabel"
    column = "hba1c"                column = "days"               findings = ["edema", "effusion"]
    range = [4, 14]                 event = "died"
                                    intervals = [30, 90, 365]

The features follow the order of the columns in the schema, whatever their order in a file.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl import _settings, tasks
from proxyfl._files import short_hash
from proxyfl._validate import choice, number
from proxyfl.errors import ConfigError
from proxyfl.tasks import CLASSIFICATION, Task

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

Written = dict[str, tuple[str, ...]] | tuple[tuple[str, ...], ...]
"""Name -> its spellings in files, besides the name itself. Earlier releases had a list in the order
of the names, which is still read: there a slip of the order exchanges two classes unnoticed."""

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
    written: Written = ()
    """Value -> its spellings in files, besides its name: {never = ["0"], daily = ["1", "2"]}."""
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
    """The spellings of a missing value in this column, besides those of the whole table."""
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
            check_names("yes and no", ("yes", "no"), {"yes": self.yes, "no": self.no})
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
    """The label to predict (``proxyfl.tasks``). Fields of another task are refused."""

    column: str = ""
    """The label's column: of the class, the value or the time. Several findings have none."""
    classes: tuple[str, ...] = ()
    """The classes, in an order that all sites share: the first is class 0."""
    written: Written = ()
    """Class -> its spellings in files, besides its name: {alive = ["0", "no"], dead = ["1"]}."""
    prevalence: tuple[float, ...] = ()
    """The share of each class as it is publicly known, from a register or the literature."""
    task: str = CLASSIFICATION
    """classification, regression, multilabel or time-to-event."""
    range: tuple[float, ...] = ()
    """The public range of a regression's value, [low, high]. A value outside is clipped and
    counted."""
    possible: tuple[float, ...] = ()
    """The values or times that can be, [low, high]. One outside is a fault. Absent: for a value the
    range widened by half its width, for a time everything from 0."""
    loss: str = "squared"
    """The loss of a regression: squared, or huber."""
    unit: str = ""
    """The unit of a value or a time."""
    event: str = ""
    """The column that says whether the time is that of the event (yes) or the end of the
    follow-up (no)."""
    intervals: tuple[float, ...] = ()
    """The ends of the intervals of a time, rising; the last one is the horizon."""
    findings: tuple[str, ...] = ()
    """The yes/no columns of several findings."""
    yes: tuple[str, ...] = YES
    """The spellings of yes for an event or a finding, in capital or small letters."""
    no: tuple[str, ...] = NO
    """The spellings of no, in capital or small letters."""

    def __post_init__(self) -> None:
        choice("label.task", self.task, tasks.KINDS)
        self._check_fields()
        _ = self.outcome  # checks ranges, intervals and findings
        if self.task != CLASSIFICATION:
            check_names("yes and no", ("yes", "no"), {"yes": self.yes, "no": self.no})
            if self.possible:
                tasks.check_range("label.possible", self.possible)
            if self.event and self.event == self.column:
                raise ConfigError(
                    f"The column {self.column!r} cannot be the time and the event. Name both."
                )
            return
        check_names("classes", self.classes, self.written)
        if len(self.classes) < 2:
            raise ConfigError(f"Expected at least two classes, got {list(self.classes)}.")
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
            raise ConfigError(f"Expected shares that add up to 1 in prevalence, got {total:g}.")

    @property
    def outcome(self) -> Task:
        """The outcome to predict, as a value."""
        if self.task == CLASSIFICATION:
            return tasks.classification(self.classes)
        names = self.findings if self.task == tasks.MULTILABEL else (self.column,)
        return Task(self.task, names, self.range, self.loss, self.intervals, self.unit)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the label is read from."""
        return tuple(name for name in (self.column, self.event, *self.findings) if name)

    def _check_fields(self) -> None:
        """Refuse fields of another task, and the lack of those that this one needs."""
        for name in _LABEL_FIELDS:
            default = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != default and name not in _FIELDS_OF[self.task]:
                raise ConfigError(
                    f"label.{name} does not belong to the task {self.task}, which has: "
                    f"{', '.join(_FIELDS_OF[self.task])}."
                )
        for name in _NEEDED_BY[self.task]:
            if not getattr(self, name):
                raise ConfigError(f"The task {self.task} needs label.{name}. State it.")


_LABEL_FIELDS = (
    "column",
    "classes",
    "written",
    "prevalence",
    "range",
    "possible",
    "loss",
    "unit",
    "event",
    "intervals",
    "findings",
    "yes",
    "no",
)
_FIELDS_OF = {
    CLASSIFICATION: ("column", "classes", "written", "prevalence"),
    tasks.REGRESSION: ("column", "range", "possible", "loss", "unit"),
    tasks.MULTILABEL: ("findings", "yes", "no"),
    tasks.TIME_TO_EVENT: ("column", "event", "intervals", "possible", "unit", "yes", "no"),
}
_NEEDED_BY = {
    CLASSIFICATION: ("column",),
    tasks.REGRESSION: ("column", "range"),
    tasks.MULTILABEL: ("findings",),
    tasks.TIME_TO_EVENT: ("column", "event", "intervals"),
}


@dataclass(frozen=True)
class Start:
    """A published risk score, from which the proxy starts. It is public, so it costs no privacy."""

    coefficients: dict[str, float]
    """Column or feature -> its published coefficient in the log odds of the second class: of a
    number per unit, of a yes/no for yes, of a category "column = value", of bins "column 40 to 60",
    of a hinge "column above 60" per unit beyond it. What is left out has 0."""
    intercept: float = 0.0
    """The log odds of a patient whose columns are all 0."""
    source: str = ""
    """The publication."""

    def __post_init__(self) -> None:
        if not self.coefficients:
            raise ConfigError(
                "[start] states no coefficients of a published score. List them below "
                "[start.coefficients], or leave [start] out."
            )
        for name, value in (*self.coefficients.items(), ("intercept", self.intercept)):
            number(f"start: {name}", value)


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
    start: Start | None = None
    """A published score, from which the proxy starts."""

    def __post_init__(self) -> None:
        choice("others", self.others, ("refuse", "ignore"))
        for role in self.roles:
            if role is not None and role in self.columns:
                raise ConfigError(
                    f"The column {role!r} is a label, a site or a person, and is in [columns] too. "
                    "Take it out of [columns]: models must not learn from it."
                )
        if not self.features:
            raise ConfigError(f"The schema {self.name!r} has no column to learn from.")
        for name, column in self.columns.items():
            self._check_until(name, column)
        if self.start is not None:
            from proxyfl.data.tables.features import published_score

            published_score(self)

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
    def notes(self) -> list[str]:
        """Sentences about what is read as it stands and may be meant otherwise."""
        stated = {"label.written": (self.label.classes, self.label.written)}
        for name, column in self.columns.items():
            stated[f"columns.{name}.written"] = (column.values, column.written)
        return [
            f"{where} is a list, read in the order of the names. To rule out a slip, state: "
            f"written = {_settings.toml_value(as_table(names, written))}"
            for where, (names, written) in stated.items()
            if is_ambiguous(names, written)
        ]

    @property
    def features(self) -> dict[str, Column]:
        """The columns that models see, in order."""
        features = {}
        for name, column in self.columns.items():
            if column.is_feature:
                features[name] = column
        return features

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns that are no features: label, site and person."""
        named = (*self.label.columns, self.site, self.person)
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
    blocks = [_block("", schema, skip=("label", "columns", "start"))]
    blocks.append(_block("[label]", schema.label))
    if schema.start is not None:
        blocks.append(_block("[start]", schema.start))
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


def as_table(names: Sequence[str], written: Written) -> dict[str, tuple[str, ...]]:
    """Name -> its spellings as ``written`` states them; a name that it leaves out has its own."""
    if isinstance(written, dict):
        return {name: written.get(name, (name,)) for name in names}
    ways = written or tuple((name,) for name in names)
    return dict(zip(names, ways, strict=True))


def codes_of(names: Sequence[str], written: Written) -> dict[str, int]:
    """Spelling -> the place of the name that it means. A name means itself, too."""
    codes = {canonical(name): code for code, name in enumerate(names)}
    for code, texts in enumerate(as_table(names, written).values()):
        for text in texts:
            codes[canonical(text)] = code
    return codes


def is_ambiguous(names: Sequence[str], written: Written) -> bool:
    """True for a list whose order nothing confirms: a name has neither its own name among its
    spellings nor the plain yes or no that it is."""
    if isinstance(written, dict) or not written:
        return False
    for name, texts in as_table(names, written).items():
        alike = {text.strip().lower() for text in texts}
        said = _plain_answer(name)
        if name.lower() not in alike and (not said or said not in map(_plain_answer, texts)):
            return True
    return False


def check_names(where: str, names: tuple[str, ...], written: Written = ()) -> None:
    """Raises ConfigError unless ``names`` are distinct and ``written`` tells each from the rest: no
    spelling means two of them, or means one and is the name of another."""
    if not names:
        raise ConfigError(f"Expected a list of {where}, got none.")
    if len(set(map(canonical, names))) < len(names):
        raise ConfigError(f"Expected distinct {where}, got {list(names)}.")
    if isinstance(written, dict):
        for name in written:
            choice("name in written", name, names)
    elif written and len(written) != len(names):
        raise ConfigError(
            f"Expected ways of writing for each of the {len(names)} {where}, got {len(written)}. "
            f"List them in the order of the {where}, or state them by name."
        )
    meant: dict[str, str] = {canonical(name): name for name in names}
    for name, texts in as_table(names, written).items():
        for text in map(canonical, texts):
            if meant.setdefault(text, name) == name:
                continue
            other = meant[text]
            if text == canonical(other):
                raise ConfigError(
                    f"written says that {text!r} means {name!r}, and {text!r} is one of the "
                    f"{where} itself. Check the order of written, or rename one of the {where}."
                )
            raise ConfigError(
                f"Expected one meaning for each way of writing {where}, got {text!r} for "
                f"{other!r} and {name!r}."
            )
        if not isinstance(written, dict):
            _check_answers(name, texts)


def _check_answers(name: str, texts: Sequence[str]) -> None:
    """Refuses a list that writes a yes as a no or a no as a yes."""
    said = _plain_answer(name)
    for text in texts:
        if said and _plain_answer(text) not in ("", said):
            stated = _settings.toml_value({name: tuple(texts)})
            raise ConfigError(
                f"The list written says that {text!r} means {name!r}. Is its order right? If it is "
                f"meant so, state it by name: written = {stated[:-1]}, ...}}"
            )


def _plain_answer(text: str) -> str:
    """ "yes" or "no" if that is what ``text`` says everywhere, else nothing."""
    text = canonical(text).lower()
    return "yes" if text in YES else "no" if text in NO else ""


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
                f"{item.name} does not apply to a column of type {column.type!r}, which takes "
                f"{', '.join(sorted(_FIELDS[column.type] | _ALWAYS))}."
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
        raise ConfigError(f"Expected a range from low to high, got [{low:g}, {high:g}].")
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
