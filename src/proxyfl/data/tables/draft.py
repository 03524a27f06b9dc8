"""A first version of a schema, from several files' headers and types, and from answers.

A draft says what it cannot know. Ranges and lists are asked for: taken from the records they would
tell about them, and no epsilon would cover it. ``from_data`` takes them all the same, and the draft
says so in its first lines and where each of them stands.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxyfl._settings import toml_value
from proxyfl._validate import suggestion
from proxyfl.data.tables.reading import Dialect
from proxyfl.data.tables.schema import NO, YES
from proxyfl.data.tables.survey import HAPPENED, MANY, Column, Survey, survey
from proxyfl.errors import ConfigError, DataError
from proxyfl.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, TIME_TO_EVENT

_ASKED = """\
# A draft. Fill in every [] with what is known beforehand: what a value can be, not what was seen.
# Then compare the file with it: proxyfl schema check FILE --schema THIS_FILE
"""
_LOOKED = """\
# A draft made with --from-data: its ranges and lists were read from the records. That is a look at
# the data that no epsilon covers. Before this file leaves your house, replace them by what is known
# beforehand: what a value can be, not what was seen.
"""
SEEN = "from the records"
"""The remark at what a draft took from the records."""

Spellings = Mapping[str, tuple[str, ...]]
"""Name -> how files write it."""

PLAUSIBLE: dict[str, tuple[float, float, str]] = {
    "age": (0, 110, "years"),
    "height": (100, 220, "cm"),
    "weight": (30, 200, "kg"),
    "bmi": (10, 60, "kg/m2"),
    "sbp": (60, 240, "mmHg"),
    "systolic": (60, 240, "mmHg"),
    "dbp": (30, 140, "mmHg"),
    "diastolic": (30, 140, "mmHg"),
    "trestbps": (60, 240, "mmHg"),
    "heart_rate": (30, 220, "1/min"),
    "pulse": (30, 220, "1/min"),
    "hr": (30, 220, "1/min"),
    "temperature": (34, 42, "degrees C"),
    "temp": (34, 42, "degrees C"),
    "spo2": (50, 100, "%"),
    "saturation": (50, 100, "%"),
    "resp_rate": (5, 60, "1/min"),
    "haemoglobin": (4, 20, "g/dl"),
    "hemoglobin": (4, 20, "g/dl"),
    "hb": (4, 20, "g/dl"),
    "sodium": (110, 170, "mmol/l"),
    "potassium": (2, 8, "mmol/l"),
    "creatinine": (0.2, 12, "mg/dl"),
    "glucose": (30, 600, "mg/dl"),
    "hba1c": (3, 16, "%"),
    "crp": (0, 400, "mg/l"),
    "gcs": (3, 15, "points"),
    "nihss": (0, 42, "points"),
}
"""Plausible ranges of common measurements in adults, by the names that columns have."""


INTERVALS: dict[str, tuple[str, tuple[float, ...]]] = {
    "day": ("days", (7, 30, 90, 180, 365, 730, 1825, 3650)),
    "tag": ("days", (7, 30, 90, 180, 365, 730, 1825, 3650)),
    "jour": ("days", (7, 30, 90, 180, 365, 730, 1825, 3650)),
    "month": ("months", (1, 3, 6, 12, 24, 36, 60, 120)),
    "monat": ("months", (1, 3, 6, 12, 24, 36, 60, 120)),
    "year": ("years", (1, 2, 3, 5, 10, 15, 20)),
    "jahr": ("years", (1, 2, 3, 5, 10, 15, 20)),
}
"""Usual ends of intervals of a time, by what its column's name contains."""

ASK_SHARES = "the share of each class as published, never counted here; a rare class needs it"
"""The request for the prevalence. The proxy starts from it; a count of the records would tell of
them what no epsilon covers."""


@dataclass(frozen=True)
class Answers:
    """Facts that only people know: roles, classes and values with their spellings, and ranges."""

    label: str | None = None
    site: str | None = None
    person: str | None = None
    classes: Spellings = field(default_factory=dict)
    values: Mapping[str, Spellings] = field(default_factory=dict)
    """Column -> value -> spellings, of categories."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    prevalence: tuple[float, ...] = ()
    """The publicly known share of each class, in their order; empty if nobody knows."""
    event: str | None = None
    """The column that says whether the label's time is that of the event."""
    findings: tuple[str, ...] = ()
    """The yes/no columns of several findings, in the place of a label."""
    is_value: bool = False
    """Whether the label is a number to be predicted."""
    intervals: tuple[float, ...] = ()
    """The ends of the intervals of a time."""

    @property
    def task(self) -> str:
        """The kind of task (``proxyfl.tasks``)."""
        if self.findings:
            return MULTILABEL
        if self.event is not None:
            return TIME_TO_EVENT
        return REGRESSION if self.is_value else CLASSIFICATION

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns that are no features."""
        named = (self.label, self.event, *self.findings, self.site, self.person)
        return tuple(name for name in named if name is not None)


def draft(
    paths: Path | Sequence[Path],
    *,
    label: str | None = None,
    site: str | None = None,
    person: str | None = None,
    dialect: Dialect | None = None,
    from_data: bool = False,
    prevalence: Sequence[str] = (),
    event: str | None = None,
    findings: Sequence[str] = (),
    is_value: bool = False,
) -> str:
    """The text of a schema for the tables at ``paths``, to be edited."""
    paths = [paths] if isinstance(paths, Path) else list(paths)
    seen = survey(paths, dialect)
    classes = {text.rpartition("=")[0]: (text.rpartition("=")[0],) for text in prevalence}
    shares = shares_of(list(classes), prevalence)
    answers = Answers(
        label,
        site,
        person,
        classes=classes,
        prevalence=shares,
        event=event,
        findings=tuple(findings),
        is_value=is_value,
    )
    check_roles(seen, answers, ", ".join(map(str, paths)))
    check_outcome(seen, answers)
    name = paths[0].stem if len(paths) == 1 else "table"
    return draft_text(name, seen, answers, from_data=from_data)


def shares_of(classes: Sequence[str], texts: Sequence[str]) -> tuple[float, ...]:
    """The share of each class from texts such as ``died=0.05``. A class that alone is left out has
    the rest. Empty without a text; ConfigError if they do not fit."""
    if not texts:
        return ()
    shares: dict[str, float] = {}
    for text in texts:
        name, equals, share = text.rpartition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            equals = ""
        if not equals or not 0 < shares[name] < 1 or name not in classes:
            raise ConfigError(
                f"Expected --prevalence CLASS=SHARE, with a share between 0 and 1 and a class of "
                f"{', '.join(classes)}, got {text!r}."
            )
    left = [name for name in classes if name not in shares]
    rest = 1 - sum(shares.values())
    if len(left) == 1 and rest > 0:
        shares[left[0]] = round(rest, 6)
    elif left or abs(rest) > 1e-3:
        raise ConfigError(
            f"Expected shares of all classes ({', '.join(classes)}) that add up to 1, got "
            f"{' '.join(texts)}."
        )
    return tuple(shares[name] for name in classes)


def check_roles(seen: Survey, answers: Answers, where: str) -> None:
    """Raises DataError unless the columns of label, site and person are there, and each is one of
    these only."""
    named = [("label", answers.label), ("event", answers.event)]
    named += [("finding", name) for name in answers.findings]
    named += [("site", answers.site), ("person", answers.person)]
    first: dict[str, str] = {}
    for role, column in named:
        if column is None:
            continue
        if column not in seen.columns:
            raise DataError(
                f"{where}: no column {column!r} for the {role}.{suggestion(column, seen.columns)}"
            )
        if column in first:
            raise ConfigError(
                f"The column {column!r} cannot be both {first[column]} and {role}. Name it once."
            )
        first[column] = role
    if answers.event is not None and answers.label is None:
        raise ConfigError(
            f"With --event {answers.event} the label is the time until the event or the end of the "
            "follow-up. Name its column with --label."
        )
    if answers.is_value and answers.label is None:
        raise ConfigError(
            "With --value the label is a number to be predicted. Name its column with --label."
        )
    if answers.is_value and answers.event is not None:
        raise ConfigError("A label is a value or a time. Leave out --value, or --event.")
    if answers.findings and (answers.label is not None or answers.event is not None):
        raise ConfigError(
            "Several findings are the label. Leave out --label and --event, or --finding."
        )


def check_outcome(seen: Survey, answers: Answers) -> None:
    """Raises DataError unless a value or a time is a number, and an event or a finding a yes or a
    no."""
    is_number = answers.task in (REGRESSION, TIME_TO_EVENT)
    if is_number and answers.label is not None and not seen.columns[answers.label].is_numeric:
        words = sorted(
            set().union(*(one.words for one in seen.columns[answers.label].by_file.values()))
        )
        raise DataError(
            f"The label {answers.label!r} must be a number, and has {', '.join(words[:5])}. Give "
            "a column of numbers with --label, or correct these cells."
        )
    for name in answers.findings or ((answers.event,) if answers.event is not None else ()):
        if answers_of(seen.columns[name]) is None:
            raise DataError(
                f"The column {name!r} must be a yes or a no, and is written as "
                f"{written_by_site(seen, name) or 'nothing'}. Write 1 and 0, or yes and no."
            )


def written_by_site(seen: Survey, name: str) -> str:
    """Describes how each site writes the values of a column."""
    parts = []
    for file, column in seen.columns[name].by_file.items():
        if column.values:
            parts.append(f"{file}: {', '.join(sorted(column.texts - column.gaps)[:8])}")
    return "; ".join(parts)


def draft_text(
    name: str, seen: Survey, answers: Answers, *, from_data: bool = False, head: str | None = None
) -> str:
    """The text of a schema with ``answers`` filled in. What they leave open is left as [] or, with
    ``from_data``, taken from the records and marked."""
    blocks = [
        head if head is not None else _LOOKED if from_data else _ASKED,
        _top(name, seen, answers),
        _label(seen, answers, from_data),
    ]
    for column in seen.columns.values():
        if column.name not in answers.roles:
            blocks.append(_column(column, seen, answers, from_data))
    return "\n".join(blocks)


def propose_range(column: Column) -> tuple[tuple[float, float], str, bool]:
    """(range, unit, whether it was taken from the records) of a number.

    A column with a common name has what is plausible for that, if its values lie within."""
    low, high = column.span
    known = PLAUSIBLE.get(column.name.strip().lower().replace(" ", "_"))
    if known is not None and known[0] <= low and high <= known[1]:
        return known[:2], known[2], False
    return _outward(low, high), "", True


def _outward(low: float, high: float) -> tuple[float, float]:
    """Bounds around ``low`` and ``high`` with two digits of their difference."""
    if high <= low:
        high = low + 1
    step = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    return _tidy(math.floor(low / step) * step), _tidy(math.ceil(high / step) * step)


def _tidy(value: float) -> float:
    return float(f"{value:.6g}")


def _top(name: str, seen: Survey, answers: Answers) -> str:
    lines = [f"name = {toml_value(name)}"]
    if answers.site is not None:
        lines.append(f"site = {toml_value(answers.site)}")
    if answers.person is not None:
        lines.append(f"person = {toml_value(answers.person)}")
    else:
        lines.append('# person = "..."    the column that tells individuals apart, if there is one')
        guess = seen.guess_person()
        if guess is not None and guess not in answers.roles:
            lines[-1] += f": {guess}?"
    return "\n".join(lines) + "\n"


def _label(seen: Survey, answers: Answers, from_data: bool) -> str:
    if answers.task != CLASSIFICATION:
        return "\n".join(["[label]", *_outcome(seen, answers, from_data)]) + "\n"
    lines = ["[label]", f"column = {toml_value(answers.label or '?')}"]
    if answers.classes:
        names = tuple(answers.classes)
        lines.append(f"classes = {toml_value(names)}    # in this order: the first is class 0")
        lines += _written(answers.classes)
    else:
        lines += _propose_classes(seen, answers, from_data)
    if answers.prevalence:
        lines.append(f"prevalence = {toml_value(answers.prevalence)}    # as publicly known")
    else:
        lines.append(f"prevalence = []    # {ASK_SHARES}")
    return "\n".join(lines) + "\n"


def _outcome(seen: Survey, answers: Answers, from_data: bool) -> list[str]:
    """The label of a task other than classes."""
    lines = [f'task = "{answers.task}"']
    if answers.task == MULTILABEL:
        lines.append(f"findings = {toml_value(answers.findings)}")
        return lines + _answered([seen.columns[name] for name in answers.findings])
    assert answers.label is not None
    column = seen.columns[answers.label]
    lines.append(f"column = {toml_value(answers.label)}")
    if answers.task == REGRESSION:
        bounds, unit, looked = propose_range(column)
        bounds = answers.ranges.get(column.name, bounds)
        if from_data or column.name in answers.ranges or not looked:
            remark = f"    # {SEEN}" if looked and bounds == propose_range(column)[0] else ""
            lines.append(f"range = {toml_value(bounds)}{remark}")
        else:
            lines.append("range = []    # the values that there can be, [low, high]")
        return [*lines, f"unit = {toml_value(unit)}"]
    lines.append(f"event = {toml_value(answers.event)}")
    ends, unit = propose_intervals(column)
    if answers.intervals or from_data:
        chosen = answers.intervals or ends
        remark = f"    # up to the horizon; {SEEN}" if chosen == ends else ""
        lines.append(f"intervals = {toml_value(chosen)}{remark}")
    else:
        lines.append("intervals = []    # ends of intervals, rising; the last one is the horizon")
    lines.append(f"unit = {toml_value(unit)}")
    return lines + _answered([seen.columns[answers.event or ""]])


def propose_intervals(column: Column) -> tuple[tuple[float, ...], str]:
    """(ends of intervals, unit) of a time: usual ones by the column's name, else fourths of the
    longest time. Where they end is a look at the records."""
    _, high = column.span
    for word, (unit, usual) in INTERVALS.items():
        ends = tuple(end for end in usual if end < high)
        if word in column.name.lower() and len(ends) > 1:
            return ends, unit
    most = _outward(0.0, high)[1]
    return tuple(_tidy(most * part / 4) for part in (1, 2, 3, 4)), ""


def answers_of(column: Column) -> dict[str, tuple[str, ...]] | None:
    """How files write the yes and the no of an event or a finding; None if it has other words, or
    words of two vocabularies: whether 1 means dead or alive, nobody knows."""
    if not column.texts:
        return None
    for words in HAPPENED:
        sides: dict[str, tuple[str, ...]] = {}
        for side, alike in zip(("no", "yes"), words.values(), strict=True):
            sides[side] = tuple(text for text in sorted(column.texts) if text.lower() in alike)
        if set(sides["no"]) | set(sides["yes"]) == column.texts:
            return sides
    return None


def _answered(columns: Sequence[Column]) -> list[str]:
    """The spellings of yes and no that are not usual, over some columns."""
    yes: list[str] = []
    no: list[str] = []
    for column in columns:
        sides = answers_of(column)
        if sides is None:
            # what is no yes or no is a fault that names the spelling
            continue
        yes += _select_unusual(sides["yes"], YES)
        no += _select_unusual(sides["no"], NO)
    lines = []
    for side, usual, more in (("yes", YES, yes), ("no", NO, no)):
        if more:
            lines.append(f"{side} = {toml_value((*usual, *dict.fromkeys(more)))}")
    return lines


def _propose_classes(seen: Survey, answers: Answers, from_data: bool) -> list[str]:
    texts = [] if answers.label is None else sorted(seen.columns[answers.label].texts)
    told = from_data or {text.lower() for text in texts} <= {*YES, *NO}
    if told and 1 < len(texts) <= MANY:
        return [f"classes = {toml_value(tuple(texts))}    # in this order: the first is class 0"]
    return [
        "classes = []    # the classes, in an order that all sites share",
        '# written = {CLASS = ["0", "no"], ...}    how files write each class',
    ]


def _written(spellings: Spellings) -> list[str]:
    """How files write each name, if some write it otherwise."""
    others = {}
    for name, texts in spellings.items():
        if set(texts) - {name}:
            others[name] = tuple(text for text in texts if text != name)
    return [f"written = {toml_value(others)}"] if others else []


def _column(column: Column, seen: Survey, answers: Answers, from_data: bool) -> str:
    title = f"[columns.{toml_value(column.name)}]"
    lines = _set_type(column, seen, answers, from_data)
    absent = seen.absent(column.name)
    if absent and not lines[0].startswith('type = "ignored"'):
        lines.append(f'absent = "missing"    # {", ".join(absent)} has no such column')
    return "\n".join([title, *lines]) + "\n"


def _set_type(column: Column, seen: Survey, answers: Answers, from_data: bool) -> list[str]:
    texts = sorted(column.texts)
    lowered = {text.lower() for text in texts}
    proposed = answers.values.get(column.name)
    if column.name in answers.ignored:
        return ['type = "ignored"']
    if not texts:
        return ['type = "ignored"    # it has no value in any file']
    if column.is_id and (seen.is_named_id(column.name) or not column.is_numeric):
        return ['type = "ignored"    # unique: an id?']
    if proposed is None and len(texts) <= 2 and lowered <= {*YES, *NO}:
        return ['type = "yes/no"', *_gapless(column, seen, from_data)]
    if proposed is not None and set(proposed) == {"no", "yes"}:
        return [
            'type = "yes/no"',
            f"yes = {toml_value((*YES, *_select_unusual(proposed['yes'], YES)))}",
            f"no = {toml_value((*NO, *_select_unusual(proposed['no'], NO)))}",
            *_gapless(column, seen, from_data),
        ]
    if proposed is not None:
        return [
            'type = "category"',
            f"values = {toml_value(tuple(proposed))}",
            *_written(proposed),
            *_gapless(column, seen, from_data),
        ]
    if column.formats:
        interval = _interval(from_data)
        return ['type = "date"', f"formats = {toml_value(column.formats)}", *interval]
    if column.is_numeric:
        return _number(column, seen, answers, from_data)
    if len(texts) <= MANY:
        values = "[]    # every value that there can be"
        if from_data:
            values = toml_value(tuple(texts))
        return ['type = "category"', f"values = {values}", *_gapless(column, seen, from_data)]
    return [f'type = "ignored"    # more than {MANY} different texts']


def _select_unusual(texts: Sequence[str], usual: Sequence[str]) -> list[str]:
    """The spellings that are not usual anyway, in small letters, each once."""
    lowered = dict.fromkeys(text.lower() for text in texts)
    return [text for text in lowered if text not in usual]


def _number(column: Column, seen: Survey, answers: Answers, from_data: bool) -> list[str]:
    unit, bounds = "", "range = []    # the plausible values, [low, high]"
    answered = answers.ranges.get(column.name)
    if answered is not None:
        bounds = f"range = {toml_value(answered)}"
        (proposed, unit_of, looked) = propose_range(column)
        if answered == proposed:
            unit = unit_of
            bounds += f"    # {SEEN}" if looked else ""
    elif from_data:
        low, high = column.span
        bounds = f"range = [{low:g}, {high if high > low else low + 1:g}]"
    lines = ['type = "number"', f"unit = {toml_value(unit)}", bounds]
    if column.is_id:
        lines[0] += "    # unique: an id?"
    missing = (*sorted(column.gaps), *column.sentinels)
    if missing and (from_data or answered is not None):
        lines.append(f"missing = {toml_value(missing)}")
    return lines + _gapless(column, seen, from_data and not missing)


def _gapless(column: Column, seen: Survey, looked: bool) -> list[str]:
    """Without a gap in any file, a feature that says so would only take noise."""
    if not looked or seen.absent(column.name):
        return []
    filled = all(one.values == seen.rows[file] for file, one in column.by_file.items())
    return [f"indicator = false    # no gap, {SEEN}"] if filled else []


def _interval(from_data: bool) -> list[str]:
    if from_data:
        return ["# until, unit and range make a feature of it; without them it is not used"]
    return ['unit = "years"', 'until = ""    # a date or a date column', "range = []"]
