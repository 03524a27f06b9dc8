"""``proxyfl schema``: draft a table's public schema, compare files with it, estimate ranges."""

import argparse

from proxyfl.cli.commands.schema import check, draft, ranges

_EPILOG = """\
examples:
  proxyfl schema draft north.csv --label died --person patient > schema.toml
  proxyfl schema check sites/*.csv --schema schema.toml
  proxyfl schema ranges north.csv --within age=0:130 --epsilon 0.2 --ledger north.jsonl
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the program."""
    parser = commands.add_parser(
        "schema",
        help="draft a table's schema, check files against it, estimate ranges with DP",
        description="A schema says what the columns of a table mean. All sites agree on one before "
        "anybody looks at a record.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        title="actions", metavar="ACTION", required=True
    )
    draft.add(actions)
    check.add(actions)
    ranges.add(actions)
