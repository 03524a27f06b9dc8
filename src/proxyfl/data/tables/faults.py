"""Everything that can be wrong with a table: each kind of fault has a name, a place and a count.

Nothing here is silent. A file with faults is refused, or the rows with faults are left out by an
explicit choice (``data.faults = "skip"``), and the tally says how many and why.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

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
    "absent column": "a column of the schema that the file lacks",
    "empty column": "a column without a single value",
    "unknown column": "a column that the schema does not name",
    "duplicate column": "a column that the file has twice",
    "two parts": "a person in the training part and in the test part",
    "two sites": "a person at two sites",
}
"""Every kind of fault."""

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

    def lines(self) -> list[str]:
        """One line per kind of fault and column: the count, the kind, examples."""
        found = []
        for (kind, column), count in self.faults.items():
            mine = [
                f for f in self.examples if (f.kind, f.column) == (kind, column)
            ]
            examples = "; ".join(str(fault) for fault in mine)
            more = f"; and {count - len(mine)} more" if count > len(mine) else ""
            found.append(f"{count} x {kind} ({KINDS[kind]}): {examples}{more}")
        return found

    def notes(self) -> list[str]:
        """The changes made by the schema's own rules, in words."""
        found = []
        for verb, counts in (
            ("clipped to its range", self.clipped),
            ("taken as other", self.others),
        ):
            for column, count in counts.items():
                found.append(f"{column}: {count} of {self.rows} values {verb}")
        return found

    def counts(self) -> list[str]:
        """How many faults of each kind and column there are, without a value of any row."""
        return [
            f"{count} x {kind} in {column!r}"
            for (kind, column), count in self.faults.items()
        ]

    def refuse(self, where: str) -> None:
        """Raise DataError if there is a fault."""
        if not self.faults:
            return
        total = sum(self.faults.values())
        listed = "".join(f"\n  {line}" for line in self.lines())
        raise DataError(
            f"{where}: {total} fault{'s' if total > 1 else ''} by the schema.{listed}\n"
            "Mend the file or the schema (`proxyfl schema check` lists every fault), or leave such "
            'rows out with data.faults = "skip".'
        )
