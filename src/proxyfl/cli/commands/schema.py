"""``proxyfl schema``: draft a table's public schema, compare files with it, estimate ranges."""

import itertools
import sys
import textwrap
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from proxyfl import seeds
from proxyfl.cli.options import JSON, Action, Document, flag, option, print_json, repeatable
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.checking import Checked, check
from proxyfl.data.tables.draft import draft
from proxyfl.data.tables.faults import SHOWN
from proxyfl.data.tables.measured import first_of_each, numbers
from proxyfl.data.tables.mending import IN_THE_FILE, Group, grouped
from proxyfl.data.tables.reading import DECIMALS, SEPARATORS, Dialect
from proxyfl.errors import ConfigError
from proxyfl.privacy import quantiles
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.guarantee import Kind, Unit
from proxyfl.privacy.ledger import Ledger

DESCRIPTION = """\
A schema says what the columns of a table mean. All sites agree on one before anybody looks at a
record.
"""

EPILOG = """\
examples:
  proxyfl schema draft north.csv --label died --person patient > schema.toml
  proxyfl schema draft sites/*.csv --label days --event died > schema.toml
  proxyfl schema draft north.csv --label hba1c --value > schema.toml
  proxyfl schema check sites/*.csv --schema schema.toml
  proxyfl schema ranges north.csv --within age=0:130 --epsilon 0.2 --ledger north.jsonl
"""


DIALECT = (
    option("--separator", "auto recognises it", str, "auto", choices=("auto", *SEPARATORS)),
    option("--decimal", "auto recognises it", str, "auto", choices=("auto", *DECIMALS)),
    option("--encoding NAME", "auto recognises it", str, "auto"),
)


def dialect(args: Namespace) -> Dialect:
    """The dialect that the options ask for."""
    return Dialect(args.separator, args.decimal, args.encoding)


OUTCOME = (
    option("--label COLUMN", "the column to be predicted; with --event, the time"),
    option(
        "--event COLUMN", "of a time to an event: whether it came (yes) or follow-up ended (no)"
    ),
    repeatable("--finding COLUMN", "in the place of a label: a yes/no column", default=[]),
    flag("--value", "the label is a number to be predicted, not a class"),
)
"""What is to be predicted: a class, a value, the time to an event, or several findings."""


_DRAFT = """\
Print a first version of a schema. It asks for ranges and lists instead of taking them from the
records.
"""

_DRAFT_OPTIONS = (
    option("files FILE", "tables, one per site: columns of all of them", Path, nargs="+"),
    *OUTCOME,
    option("--site COLUMN", "the column that names the institution"),
    option("--person COLUMN", "the column that names the individual"),
    repeatable(
        "--prevalence CLASS=SHARE",
        "a class and its share as published, for every class in their order",
        default=[],
    ),
    flag(
        "--from-data",
        "take ranges and lists from the records: a look at the data that no epsilon covers",
    ),
    *DIALECT,
)


def execute_draft(args: Namespace) -> int:
    """Print a draft; with --from-data, say on stderr what that means."""
    text = draft(
        args.files,
        label=args.label,
        site=args.site,
        person=args.person,
        dialect=dialect(args),
        from_data=args.from_data,
        prevalence=args.prevalence,
        event=args.event,
        findings=args.finding,
        is_value=args.value,
    )
    if args.from_data:
        print(
            "proxyfl: ranges and lists were taken from the records: a look at the data that no "
            "epsilon covers.",
            file=sys.stderr,
        )
    print(text, end="")
    return 0


_CHECK = """\
Compare files with a schema. Faults are shown by column and value, with the lines of the schema that
would mend them; --rows lists each. Rows are numbered as a spreadsheet does: the header is row 1.
"""

_CHECK_OPTIONS = (
    option("files FILE", "tables, one per site", Path, nargs="+"),
    option("--schema FILE", "schema.toml", Path, required=True),
    flag("--unlabelled", "the files need no label, site and person"),
    flag("--rows", "one line for each fault"),
    JSON,
    *DIALECT,
)


def execute_check(args: Namespace) -> int:
    """Print the faults by column and value, each with what mends it; 0 if there is none."""
    schema = schemas.read(args.schema)
    checked = check(args.files, schema, dialect(args), labelled=not args.unlabelled)
    if args.json:
        print_json(
            {
                "schema": schema.fingerprint,
                "notes": schema.notes,
                "files": [_as_json(file, schema) for file in checked],
            }
        )
    else:
        for file in checked:
            _show(file, schema, args.schema, rows=args.rows)
        for note in schema.notes:
            print(f"{args.schema}: note: {note}")
        print(f"schema {schema.name}, fingerprint {schema.fingerprint}")
    return 1 if any(file.faults for file in checked) else 0


def _as_json(file: Checked, schema: schemas.Schema) -> Document:
    return {
        "file": str(file.path),
        "rows": file.tally.rows,
        "faults": [vars(fault) for fault in file.faults],
        "groups": [asdict(group) for group in grouped(file.faults, schema)],
        "clipped": dict(file.tally.clipped),
        "missing": dict(file.tally.missing),
        "other": dict(file.tally.others),
    }


def _show(file: Checked, schema: schemas.Schema, path: Path, *, rows: bool) -> None:
    for note in file.tally.notes():
        print(f"{file.path}: note: {note}")
    groups = grouped(file.faults, schema)
    columns = len({group.column for group in groups})
    where = f" in {columns} column{'s' if columns > 1 else ''}" if groups else ""
    faults = "fault" if len(file.faults) == 1 else "faults"
    print(f"{file.path}: {file.tally.rows} rows, {len(file.faults)} {faults}{where}")
    if rows:
        for fault in file.faults:
            print(f"{file.path}: {fault.kind}: {fault}")
        return
    for group in groups:
        _show_group(group, path)


def _show_group(group: Group, path: Path) -> None:
    """A column's faults of one kind, in a few lines however many there are."""
    values = [
        f"{value!r}{f' {count} times' if count > 1 else ''}"
        for value, count in itertools.islice(group.values.items(), SHOWN)
    ]
    others = len(group.values) - len(values)
    if others:
        values.append(f"{others} other value{'s' if others > 1 else ''}")
    rows = ", ".join(map(str, group.rows))
    more = group.count - len(group.rows)
    of_rows = f"{'rows' if group.count > 1 else 'row'} {rows}{f' and {more} more' if more else ''}"
    print(f"\n  {group.column or 'rows'}: {group.kind}: {', '.join(values)} ({of_rows})")
    print(f"    expected {group.expected}")
    advice = IN_THE_FILE.get(group.kind)
    if advice is not None and (not group.remedies or group.kind == "unit"):
        print(f"    {advice}")
    if group.remedies:
        print(f"    Or in {path}," if group.kind == "unit" else f"    In {path},")
    for remedy in group.remedies:
        print(f"    {remedy.condition}:")
        print(textwrap.indent(remedy.toml, " " * 6))


_RANGES = """\
Estimate two quantiles of each column with differential privacy, by a binary search that asks noisy
questions. The cost is on the ledger before the first is asked.
"""

_RANGES_OPTIONS = (
    option("file FILE", "a table", Path),
    repeatable(
        "--within COLUMN=LOW:HIGH", "a column and public bounds to search in", required=True
    ),
    option("--epsilon", "what the estimates may cost", float, required=True),
    option("--ledger FILE", "the site's ledger, or a new one", Path, required=True),
    option("--delta", "of a new ledger", float, 1e-5),
    option("--person COLUMN", "count one row of each person"),
    option("--quantiles P", "which quantiles", float, (0.02, 0.98), nargs=2),
    *DIALECT,
)


def execute_ranges(args: Namespace) -> int:
    """Print the estimated range of each column, and what all of it cost."""
    bounds = dict(_bounds(text) for text in args.within)
    asked = quantiles.queries(len(bounds), len(args.quantiles))
    columns = _columns(args, list(bounds))
    ledger = _ledger(args)
    sigma = noise_for(args.epsilon, sampling_rate=1.0, steps=asked, delta=ledger.delta)
    ranges = quantiles.estimate(
        columns,
        list(bounds.values()),
        args.quantiles,
        noise_multiplier=sigma,
        ledger=ledger,
        source=seeds.System(),
    )
    for name, (low, high) in zip(bounds, ranges, strict=True):
        print(f'[columns."{name}"]\nrange = [{low:g}, {high:g}]\n')
    print(
        f"# {asked} questions with noise {sigma:g} cost epsilon {args.epsilon:g} at "
        f"delta={ledger.delta:g}; on the ledger {args.ledger}: {ledger.epsilon()}."
    )
    return 0


def _ledger(args: Namespace) -> Ledger:
    """The ledger to charge: per person where one row of each person is counted."""
    unit = Unit.RECORD if args.person is None else Unit.GROUP
    if not args.ledger.exists():
        return Ledger(
            args.file.stem,
            delta=args.delta,
            kind=Kind.END_TO_END,
            simulated=False,
            unit=unit,
            path=args.ledger,
        )
    ledger = Ledger.read(args.ledger)
    if ledger.unit is not unit:
        raise ConfigError(
            f"The ledger {args.ledger} is per {ledger.unit}, and these questions are per {unit}. "
            "Give another ledger, or --person where each person has one row that counts."
        )
    return ledger


def _columns(args: Namespace, names: list[str]) -> list[npt.NDArray[np.float64]]:
    columns, persons = numbers(args.file, names, dialect(args), person=args.person)
    if args.person is None:
        return columns
    first = first_of_each(persons)
    return [values[first] for values in columns]


def _bounds(text: str) -> tuple[str, tuple[float, float]]:
    name, _, bounds = text.rpartition("=")
    low, _, high = bounds.partition(":")
    try:
        return name, (float(low), float(high))
    except ValueError:
        raise ConfigError(
            f"Expected --within COLUMN=LOW:HIGH, such as age=0:130, got {text!r}."
        ) from None


ACTIONS = (
    Action(
        "draft",
        "print a first version from the files' headers and types",
        _DRAFT_OPTIONS,
        execute_draft,
        _DRAFT,
    ),
    Action(
        "check",
        "name every violation with row and column, all of them at once",
        _CHECK_OPTIONS,
        execute_check,
        _CHECK,
    ),
    Action(
        "ranges",
        "estimate plausible ranges with DP and charge the ledger",
        _RANGES_OPTIONS,
        execute_ranges,
        _RANGES,
    ),
)
