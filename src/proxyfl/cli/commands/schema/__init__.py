"""``proxyfl schema``: draft a table's public schema, compare files with it, estimate ranges."""

import argparse

from proxyfl.cli.commands.schema import check, draft, ranges
from proxyfl.cli.options import add_action, add_actions

DESCRIPTION = """\
A schema says what the columns of a table mean. All sites agree on one before anybody looks at a
record.
"""

EPILOG = """\
examples:
  proxyfl schema draft north.csv --label died --person patient > schema.toml
  proxyfl schema check sites/*.csv --schema schema.toml
  proxyfl schema ranges north.csv --within age=0:130 --epsilon 0.2 --ledger north.jsonl
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = add_actions(parser)
    for name, module in {"draft": draft, "check": check, "ranges": ranges}.items():
        add_action(
            actions,
            name,
            module.SUMMARY,
            module.OPTIONS,
            module.DESCRIPTION,
            execute=module.execute,
        )
