"""Faults by column and value, each with the lines of the schema that would mend them.

A remedy is one possibility, never a decision: whether 999 is a code for a missing value or a
measurement is known to those who wrote it. So each has its condition in words.

Guarantee: with a remedy's lines in the schema, the file has none of these faults.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxyfl import tasks
from proxyfl._settings import toml_value
from proxyfl.data.tables.faults import SHOWN, Fault
from proxyfl.data.tables.schema import NO, YES, Column, Label, Schema, as_table, canonical
from proxyfl.data.tables.survey import ANSWERS, GAPS, WORDS, date_format
from proxyfl.errors import ConfigError

LISTED = 12
"""The most distinct values that a remedy lists; more are no slip of one spelling."""


@dataclass(frozen=True)
class Remedy:
    """Lines of a schema, and when they are right."""

    condition: str
    toml: str


@dataclass(frozen=True)
class Group:
    """The faults of one kind in one column of a file."""

    column: str
    kind: str
    expected: str
    values: Mapping[str, int]
    """Value -> how often it was found, the commonest first."""
    rows: tuple[int, ...]
    """The first rows that have the fault."""
    remedies: tuple[Remedy, ...]
    """What would mend it in the schema; none where only the file can be mended."""

    @property
    def count(self) -> int:
        """The number of faults."""
        return sum(self.values.values())


def grouped(faults: Iterable[Fault], schema: Schema) -> list[Group]:
    """The faults by column and kind, in the order in which each first occurs."""
    together: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        together.setdefault((fault.column, fault.kind), []).append(fault)
    groups = []
    for (column, kind), ones in together.items():
        values = Counter(canonical(fault.found) for fault in ones)
        groups.append(
            Group(
                column,
                kind,
                ones[0].expected,
                dict(values.most_common()),
                tuple(fault.row for fault in ones[:SHOWN]),
                tuple(_remedies(schema, column, kind, list(values))),
            )
        )
    return groups


def _remedies(schema: Schema, name: str, kind: str, values: Sequence[str]) -> list[Remedy]:
    if kind == "unknown column":
        lines = [("if models need not see it", {"type": "ignored"})]
        return [_remedy(f"[columns.{toml_value(name)}]", *line) for line in lines]
    if kind == "label":
        proposals = _of_label(schema.label, values)
        return [_remedy("[label]", *line) for line in proposals]
    column = schema.columns.get(name)
    if column is None or kind not in _PROPOSED:
        return []
    proposals = [
        (condition, change)
        for condition, change in _PROPOSED[kind](column, values)
        if _is_legal(column, change)
    ]
    return [_remedy(f"[columns.{toml_value(name)}]", *line) for line in proposals]


Change = dict[str, Any]
Proposals = list[tuple[str, Change]]


def _remedy(table: str, condition: str, change: Change) -> Remedy:
    lines = [f"{key} = {toml_value(value)}" for key, value in change.items()]
    return Remedy(condition, "\n".join([table, *lines]))


def _is_legal(column: Column, change: Change) -> bool:
    """True unless the column refuses the change, such as two date formats that contradict."""
    try:
        replace(column, **change)
    except ConfigError:
        return False
    return True


def _gap(column: Column, values: Sequence[str]) -> Proposals:
    if len(values) > LISTED:
        return []
    return [(f"if {_these(values)} for a missing value", {"missing": (*column.missing, *values)})]


def _these(values: Sequence[str]) -> str:
    return "it stands" if len(values) == 1 else "they stand"


def _of_number(column: Column, values: Sequence[str]) -> Proposals:
    return _gap(column, values)


def _of_unit(column: Column, values: Sequence[str]) -> Proposals:
    """Legal all the same, or codes for a missing value."""
    numbers = _numbers(values)
    proposals: Proposals = []
    if column.type == "number":
        proposals += _gap(column, values)
    if len(numbers) == len(values):
        ends = (*(column.possible or column.range), *numbers)
        possible = (min(ends), max(ends))
        proposals.append(
            ("if such values can be: they are clipped to the range", {"possible": possible})
        )
    return proposals


def _numbers(values: Iterable[str]) -> list[float]:
    numbers = []
    for text in values:
        try:
            numbers.append(float(text.replace(",", ".")))
        except ValueError:
            continue
    return numbers


def _of_category(column: Column, values: Sequence[str]) -> Proposals:
    """Another spelling of a value, a value of its own, or one of many others."""
    proposals: Proposals = []
    if len(values) <= LISTED:
        meant = {text: _alike(text, column.values) for text in values}
        if all(meant.values()):
            written = _add_spellings(as_table(column.values, column.written), meant)
            proposals.append(("if it is only written differently", {"written": written}))
        own: Change = {"values": (*column.values, *values)}
        if column.written and not isinstance(column.written, dict):
            own["written"] = as_table(column.values, column.written)
        proposals.append(("if these values can be", own))
        if all(text.lower() in GAPS for text in values):
            proposals = _gap(column, values) + proposals
    proposals.append(("if others may come, too rare to be listed", {"unknown": "other"}))
    return proposals


def _add_spellings(
    written: Mapping[str, Sequence[str]], meant: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Returns ``written`` with the spellings of ``meant``, without names that have only their
    own."""
    merged = {name: list(texts) for name, texts in written.items()}
    for text, name in meant.items():
        merged[name].append(text)
    return {name: tuple(texts) for name, texts in merged.items() if tuple(texts) != (name,)}


def _alike(text: str, names: Sequence[str]) -> str:
    """The name that ``text`` writes in other letters or in another language, or nothing."""
    for name in names:
        if name.lower() == text.lower():
            return name
    for words in WORDS:
        for alike in words.values():
            if text.lower() not in alike:
                continue
            same = [name for name in names if name.lower() in alike]
            if len(same) == 1:
                return same[0]
    return ""


def _of_answer(column: Column | Label, values: Sequence[str]) -> Proposals:
    """More ways of writing a yes or a no."""
    if len(values) > LISTED:
        return []
    known = {"no": (*NO, *ANSWERS["no"]), "yes": (*YES, *ANSWERS["yes"])}
    sides: dict[str, list[str]] = {"no": [], "yes": []}
    for text in values:
        for side, words in known.items():
            if text.lower() in words:
                sides[side].append(text)
    placed = len(sides["no"]) + len(sides["yes"])
    if placed == len(values):
        change = {side: (*getattr(column, side), *texts) for side, texts in sides.items() if texts}
        return [("if these words mean what they say", change)]
    sides_of = [
        (f"if it is a {side}", {side: (*getattr(column, side), *values)}) for side in ("yes", "no")
    ]
    if not isinstance(column, Column):
        return sides_of
    gap = _gap(column, values)
    return gap + sides_of if all(text.lower() in GAPS for text in values) else sides_of + gap


def _of_date(column: Column, values: Sequence[str]) -> Proposals:
    form = date_format(values)
    proposals: Proposals = []
    if form is not None:
        proposals.append(
            (f"if they are dates like {values[0]}", {"formats": (*column.formats, form)})
        )
    return proposals + _gap(column, values)


def _of_absence(column: Column, values: Sequence[str]) -> Proposals:
    return [("if a site may lack it", {"absent": "missing"})]


def _of_label(label: Label, values: Sequence[str]) -> Proposals:
    """Another spelling of a class, of a yes or of a no; or a number that can be."""
    if label.task == tasks.MULTILABEL:
        return _of_answer(label, values)
    if label.task != tasks.CLASSIFICATION:
        numbers = _numbers(values)
        if len(numbers) < len(values):
            # a time to an event has its event among the label's columns
            return [] if label.task == tasks.REGRESSION else _of_answer(label, values)
        bounds = label.possible or label.range
        if not bounds or (min(numbers) < 0 and label.task == tasks.TIME_TO_EVENT):
            return []
        ends = (*bounds, *numbers)
        return [("if such values can be", {"possible": (min(ends), max(ends))})]
    if len(values) > LISTED:
        return []
    written = as_table(label.classes, label.written)
    meant = {text: _alike(text, label.classes) for text in values}
    if all(meant.values()):
        return [("if it is only written differently", {"written": _add_spellings(written, meant)})]
    return [
        (f"if it is {name!r}", {"written": _add_spellings(written, dict.fromkeys(values, name))})
        for name in label.classes[:SHOWN]
    ]


_PROPOSED: dict[str, Callable[[Column, Sequence[str]], Proposals]] = {
    "number": _of_number,
    "unit": _of_unit,
    "category": _of_category,
    "yes/no": _of_answer,
    "date": _of_date,
    "absent column": _of_absence,
    "empty column": _of_absence,
}
"""Kind of fault -> the changes of its column that mend it, with their conditions."""

IN_THE_FILE = {
    "fields": "A separator within a text needs quotes around the text.",
    "future": "Correct the dates in the file.",
    "no label": "Leave out rows whose outcome nobody knows.",
    "no site": "Name the site in each row.",
    "no person": "Name the person in each row.",
    "rounded name": "Export the column as text.",
    "duplicate column": "Rename or remove one of them in the file.",
    "two parts": "Give all rows of a person to one part.",
    "two sites": "Decide to which site each person belongs. Sites that number their own patients "
    "put their name before the number.",
    "absent column": "Add the column, or give it this name in the file.",
    "label": "Correct the outcome in the file.",
    "date": "Correct the dates in the file.",
    "number": "Correct the numbers in the file.",
    "unit": "Convert the values in the file to the unit of the schema.",
    "yes/no": "Correct the answers in the file.",
}
"""Kind of fault -> what to do about it where the schema is right."""
