"""``proxyfl schema draft``: a first version of a schema."""

import argparse
import sys
from pathlib import Path

from proxyfl.cli.commands.schema.dialects import DIALECT, dialect
from proxyfl.cli.options import flag, option
from proxyfl.data.tables.draft import draft

SUMMARY = "print a first version from a file's header and types"

DESCRIPTION = """\
Print a first version of a schema. It asks for ranges and lists instead of taking them from the
records.
"""


OPTIONS = (
    option("file FILE", "a table", Path),
    option("--label COLUMN", "the column to be predicted"),
    option("--site COLUMN", "the column that names the institution"),
    option("--person COLUMN", "the column that names the individual"),
    flag(
        "--from-data",
        "take ranges and lists from the records: a look at the data that no epsilon covers",
    ),
    *DIALECT,
)


def execute(args: argparse.Namespace) -> int:
    """Print a draft; with --from-data, say on stderr what that means."""
    text = draft(
        args.file,
        label=args.label,
        site=args.site,
        person=args.person,
        dialect=dialect(args),
        from_data=args.from_data,
    )
    if args.from_data:
        print(
            "proxyfl: ranges and lists were taken from the records: a look at the data that no "
            "epsilon covers.",
            file=sys.stderr,
        )
    print(text, end="")
    return 0
