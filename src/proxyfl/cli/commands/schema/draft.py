"""``proxyfl schema draft``: a first version of a schema."""

import argparse
import sys
from pathlib import Path

from proxyfl.cli.commands.schema.dialects import add_dialect, dialect
from proxyfl.cli.options import Actions, add_action, flag, option
from proxyfl.data.tables.draft import draft

DESCRIPTION = """\
Print a first version of a schema. It asks for ranges and lists instead of taking them from the
records.
"""


def add(actions: Actions) -> None:
    """Add the action to `proxyfl schema`."""
    parser = add_action(
        actions,
        "draft",
        "print a first version from a file's header and types",
        DESCRIPTION,
        execute=execute,
    )
    option(parser, "file FILE", "a table", Path)
    option(parser, "--label COLUMN", "the column to be predicted")
    option(parser, "--site COLUMN", "the column that names the institution")
    option(parser, "--person COLUMN", "the column that names the individual")
    flag(
        parser,
        "--from-data",
        "take ranges and lists from the records: a look at the data that no epsilon covers",
    )
    add_dialect(parser)


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
