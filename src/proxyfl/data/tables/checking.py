"""Every violation of a schema in some files, with row and column, all of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxyfl.data.tables.encoding import encode
from proxyfl.data.tables.faults import Fault, Tally, of_empty_columns, of_header
from proxyfl.data.tables.reading import Dialect, Part, read
from proxyfl.data.tables.schema import Schema, canonical


@dataclass
class Checked:
    """One file compared with the schema."""

    path: Path
    faults: list[Fault] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


def _elsewhere(first_site: dict[str, str], schema: Schema, path: Path, part: Part) -> list[Fault]:
    """The rows of persons whom another site has too, whatever else is wrong with them;
    ``first_site`` is where each person was seen first."""
    faults: list[Fault] = []
    column = schema.person
    if column is None or column not in part.columns:
        return faults
    rows = part.rows.tolist()
    persons = map(canonical, part.columns[column])
    places = part.columns.get(schema.site or "") or [path.stem] * len(rows)
    sites = map(canonical, places)
    for row, person, site in zip(rows, persons, sites, strict=True):
        if not person or not site:
            continue  # each a fault of its own
        first = first_site.setdefault(person, site)
        if first != site:
            expected = f"a person of {site!r} alone, who is at {first!r} too"
            faults.append(Fault(row, column, "two sites", person, expected))
    return faults


def check(
    paths: Sequence[Path], schema: Schema, dialect: Dialect | None = None, *, labelled: bool = True
) -> list[Checked]:
    """Compare files with the schema, and with each other where persons are named."""
    first_site: dict[str, str] = {}
    return [_check(path, schema, dialect, first_site, labelled) for path in paths]


def _check(
    path: Path, schema: Schema, dialect: Dialect | None, first_site: dict[str, str], labelled: bool
) -> Checked:
    checked = Checked(path)
    faults: list[Fault] = []
    of_rows: list[Fault] = []
    for number, part in enumerate(read(path, dialect)):
        if number == 0:
            faults = of_header(schema, part.header, labelled=labelled)
        _, in_part = encode(schema, part, checked.tally, labelled=labelled)
        of_rows += in_part
        if labelled:
            of_rows += _elsewhere(first_site, schema, path, part)
    known = {fault.column for fault in faults}
    faults += of_empty_columns(schema, checked.tally, known)
    faults += of_rows
    checked.faults = sorted(faults, key=lambda fault: fault.row)
    checked.tally.add(checked.faults)
    return checked
