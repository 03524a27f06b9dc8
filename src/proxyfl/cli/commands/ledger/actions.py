"""What the actions of `proxyfl ledger` on an account have in common."""

import argparse
from collections.abc import Callable
from pathlib import Path


def add_action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    execute: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
) -> argparse.ArgumentParser:
    """Add an action whose first argument is the account's folder."""
    parser = actions.add_parser(name, help=help, description=description)
    parser.add_argument("account", type=Path, metavar="ACCOUNT", help="its folder")
    parser.set_defaults(run=execute)
    return parser
