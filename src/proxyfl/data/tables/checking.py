"""Every violation of a schema in some files, with row and column, all of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxyfl.data.tables.encoding import encode, header_faults
from proxyfl.data.tables.faults import Fault, Tally
from proxyfl.data.tables.loading import empty_columns
from proxyfl.data.tables.reading import Dialect, Part, read
from proxyfl.data.tables.schema import Schema


@dataclass
class Checked:
    """One file compared with the schema."""

    path: Path
    faults: list[Fault] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


def _elsewhere(
    first_site: dict[str, str], schema: Schema, path: Path, part: Part
) -> list[Fault]:
    """The rows of persons whom another site has too, whatever else is wrong with them;
    ``first_site`` is where each person was seen first."""
    found: list[Fault] = []
    column = schema.person
    if column is None or column not in part.columns:
        return found
    sites = part.columns.get(schema.site or "") or [path.stem] * len(part.rows)
    for text, place, row in zip(
        part.columns[column], sites, part.rows.tolist(), strict=True
    ):
        person, site = text.strip(), place.strip()
        if not person or not site:
            continue  # each a fault of its own
        first = first_site.setdefault(person, site)
        if first != site:
            expected = f"a person of {site!r} alone, who is at {first!r} too"
            found.append(Fault(row, column, "two sites", person, expected))
    return found


def check(
    paths: Sequence[Path],
    schema: Schema,
    dialect: Dialect | None = None,
    *,
    labelled: bool = True,
) -> list[Checked]:
    """Compare files with the schema, and with each other where persons are named."""
    first_site: dict[str, str] = {}
    return [_check(path, schema, dialect, first_site, labelled) for path in paths]


def _check(
    path: Path,
    schema: Schema,
    dialect: Dialect | None,
    first_site: dict[str, str],
    labelled: bool,
) -> Checked:
    found = Checked(path)
    in_header: list[Fault] = []
    for number, part in enumerate(read(path, dialect)):
        if number == 0:
            in_header = header_faults(schema, part.header, labelled=labelled)
        _, faults = encode(schema, part, found.tally, labelled=labelled)
        found.faults += faults
        if labelled:
            found.faults += _elsewhere(first_site, schema, path, part)
    of_columns = [
        *in_header,
        *empty_columns(schema, found.tally, {f.column for f in in_header}),
    ]
    found.faults = sorted([*of_columns, *found.faults], key=lambda fault: fault.row)
    found.tally.add(found.faults)
    return found
