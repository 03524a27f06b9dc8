"""What the actions of `proxyfl ledger` on an account have in common."""

import argparse
from pathlib import Path

from proxyfl.cli.options import Actions, Execute, add_action, add_json, option


def on_account(
    actions: Actions, name: str, summary: str, description: str, execute: Execute
) -> argparse.ArgumentParser:
    """Add an action whose first argument is the account's folder."""
    parser = add_action(actions, name, summary, description, execute=execute)
    option(parser, "account ACCOUNT", "its folder", Path)
    add_json(parser)
    return parser
