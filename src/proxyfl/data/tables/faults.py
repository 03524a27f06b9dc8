"""Everything that can be wrong with a table: each kind of fault has a name, a place and a count.

Nothing here is silent. A file with faults is refused, or the rows with faults are left out by an
explicit choice (``data.faults = "skip"``), and the tally says how many and why.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from proxyfl._command import command
from proxyfl.data.tables.schema import Schema
from proxyfl.errors import DataError

KINDS = {
    "fields": "a row with more or fewer fields than the header",
    "number": "a text where a number belongs",
    "unit": "a number that cannot be in the column's unit",
    "category": "a category outside the schema",
    "yes/no": "neither a yes nor a no",
    "date": "a text that is no date in the schema's formats",
    "future": "a date in the future",
    "label": "a label that the schema does not know",
    "no label": "a row without a label",
    "no site": "a row that does not name its site",
    "no person": "a row that does not name its person",
    "rounded name": "a long number that was rounded, so that several persons have one name",
    "absent column": "a column of the schema that the file lacks",
    "empty column": "a column without a single value",
    "unknown column": "a column that the schema does not name",
    "duplicate column": "a column that the file has twice",
    "two parts": "a person in the training part and in the test part",
    "two sites": "a person at two sites",
}
"""Every kind of fault."""

NEVER_SKIPPED = ("duplicate column", "rounded name")
"""Faults after which nobody knows what the other rows mean: such a file is refused whatever
``data.faults`` says."""

HEADER = 1
"""The row in which faults of a whole column stand."""

SHOWN = 3
"""Examples of each kind of fault in a message."""


@dataclass(frozen=True)
class Fault:
    """One violation of the schema, where a spreadsheet shows it: the header is row 1."""

    row: int
    column: str
    kind: str
    found: str
    expected: str

    def __str__(self) -> str:
        where = f"row {self.row}, column {self.column!r}"
        return f"{where}: expected {self.expected}, got {self.found!r}"


@dataclass
class Tally:
    """The outcome of reading one file: rows, faults, and values that were changed, all counted."""

    rows: int = 0
    skipped: int = 0
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: list[Fault] = field(default_factory=list)
    clipped: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)

    def add(self, faults: Iterable[Fault]) -> None:
        """Count ``faults`` and keep the first few of each kind."""
        for fault in faults:
            key = (fault.kind, fault.column)
            self.faults[key] += 1
            if self.faults[key] <= SHOWN:
                self.examples.append(fault)

    def summarise(self) -> str:
        """A line for each kind of fault and column: the count, the kind, examples."""
        lines = ""
        for (kind, column), count in self.faults.items():
            shown = []
            for fault in self.examples:
                if fault.kind == kind and fault.column == column:
                    shown.append(str(fault))
            if count > len(shown):
                shown.append(f"and {count - len(shown)} more")
            lines += f"\n  {count} x {kind} ({KINDS[kind]}): {'; '.join(shown)}"
        return lines

    def notes(self) -> list[str]:
        """The changes made by the schema's own rules, in words."""
        changes = {"clipped to its range": self.clipped, "taken as other": self.others}
        notes = []
        for verb, counts in changes.items():
            for column, count in counts.items():
                notes.append(f"{column}: {count} of {self.rows} values {verb}")
        return notes

    def counts(self) -> list[str]:
        """Counts the faults of each kind and column, without a value of any row."""
        return [f"{count} x {kind} in {column!r}" for (kind, column), count in self.faults.items()]

    def refuse(self, where: str) -> None:
        """Raise DataError if there is a fault."""
        if not self.faults:
            return
        total = sum(self.faults.values())
        faults = "faults" if total > 1 else "fault"
        raise DataError(
            f"{where}: {total} {faults} by the schema.{self.summarise()}\nCorrect the file or the "
            'schema, or leave such rows out with data.faults = "skip". To list every fault, run: '
            f"{command('schema', 'check', where, '--schema', 'SCHEMA.toml')}"
        )


def of_header(schema: Schema, header: Sequence[str], *, labelled: bool = True) -> list[Fault]:
    """The columns that a file has too many, too few or twice."""
    faults = []
    known = (*schema.columns, *schema.roles)
    for name in dict.fromkeys(header):
        if header.count(name) > 1:
            expected = "each column once"
            faults.append(_of_column(name, "duplicate column", name, expected))
        if schema.others == "refuse" and name not in known:
            expected = "a column of the schema"
            faults.append(_of_column(name, "unknown column", name, expected))
    needed = []
    for name, column in schema.columns.items():
        if column.type != "ignored" and column.absent == "refuse":
            needed.append(name)
    if labelled:
        needed += schema.roles
    for name in needed:
        if name not in header:
            value = "no such column"
            faults.append(_of_column(name, "absent column", value, "this column"))
    return faults


def of_empty_columns(schema: Schema, tally: Tally, known: Set[str]) -> list[Fault]:
    """The columns that have no value in any row, except those that a site may lack."""
    faults = []
    for name, column in schema.features.items():
        empty = tally.rows > 0 and tally.missing[name] == tally.rows
        if empty and column.absent == "refuse" and name not in known:
            expected = "at least one value"
            faults.append(_of_column(name, "empty column", "no value", expected))
    return faults


def _of_column(name: str, kind: str, value: str, expected: str) -> Fault:
    return Fault(HEADER, name, kind, value, expected)
