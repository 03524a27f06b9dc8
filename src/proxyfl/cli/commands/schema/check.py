"""``proxyfl schema check``: every violation of a schema, with row and column."""

import argparse
from pathlib import Path

from proxyfl.cli.commands.schema.dialects import DIALECT, dialect
from proxyfl.cli.options import (
    JSON,
    Document,
    flag,
    option,
    print_json,
)
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.checking import Checked, check
from proxyfl.data.tables.faults import KINDS

SUMMARY = "name every violation with row and column, all of them at once"

DESCRIPTION = """\
Compare files with a schema. Rows are numbered as a spreadsheet does: the header is row 1.
"""


OPTIONS = (
    option("files FILE", "tables, one per site", Path, nargs="+"),
    option("--schema FILE", "schema.toml", Path, required=True),
    flag("--unlabelled", "the files need no label, site and person"),
    JSON,
    *DIALECT,
)


def execute(args: argparse.Namespace) -> int:
    """Print every fault; 0 if there is none, else 1."""
    schema = schemas.read(args.schema)
    found = check(args.files, schema, dialect(args), labelled=not args.unlabelled)
    if args.json:
        print_json(
            {
                "schema": schema.fingerprint,
                "files": [_as_json(f) for f in found],
            }
        )
    else:
        for file in found:
            _show(file)
        print(f"schema {schema.name}, fingerprint {schema.fingerprint}")
    return 1 if any(file.faults for file in found) else 0


def _as_json(file: Checked) -> Document:
    return {
        "file": str(file.path),
        "rows": file.tally.rows,
        "faults": [vars(fault) for fault in file.faults],
        "clipped": dict(file.tally.clipped),
        "missing": dict(file.tally.missing),
        "other": dict(file.tally.others),
    }


def _show(file: Checked) -> None:
    for fault in file.faults:
        print(f"{file.path}: {fault.kind}: {fault}")
    for note in file.tally.notes():
        print(f"{file.path}: note: {note}")
    counts: dict[str, int] = {}
    for fault in file.faults:
        counts[fault.kind] = counts.get(fault.kind, 0) + 1
    print(f"{file.path}: {file.tally.rows} rows, {len(file.faults)} faults")
    for kind, count in counts.items():
        print(f"  {count} x {kind}: {KINDS[kind]}")
