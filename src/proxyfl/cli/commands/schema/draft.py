"""``proxyfl schema draft``: a first version of a schema."""

import argparse
import sys
from pathlib import Path

from proxyfl.cli.commands.schema.dialects import add_dialect, dialect
from proxyfl.data.tables.draft import draft


def add(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the action to `proxyfl schema`."""
    parser = actions.add_parser(
        "draft",
        help="print a first version from a file's header and types",
        description="Print a first version of a schema. It asks for ranges and lists instead of "
        "taking them from the records.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a table")
    parser.add_argument(
        "--label", metavar="COLUMN", help="the column to be predicted"
    )
    parser.add_argument(
        "--site", metavar="COLUMN", help="the column that names the institution"
    )
    parser.add_argument(
        "--person", metavar="COLUMN", help="the column that names the individual"
    )
    parser.add_argument(
        "--from-data",
        action="store_true",
        help="take ranges and lists from the records: a look at the data that no epsilon covers",
    )
    add_dialect(parser)
    parser.set_defaults(run=execute)


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
