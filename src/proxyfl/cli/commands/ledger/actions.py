"""What the actions of `proxyfl ledger` on an account have in common."""

import argparse
from pathlib import Path
from typing import Any

from proxyfl.cli.options import Actions, Execute, add_action, add_json, option
from proxyfl.privacy.spending.account import Account


def on_account(
    actions: Actions, name: str, summary: str, description: str, execute: Execute
) -> argparse.ArgumentParser:
    """Add an action whose first argument is the account's folder."""
    parser = add_action(actions, name, summary, description, execute=execute)
    option(parser, "account ACCOUNT", "its folder", Path)
    add_json(parser)
    return parser


def about(account: Account) -> dict[str, Any]:
    """What an account says of itself, as plain data."""
    return {
        "account": str(account.folder),
        "unit": str(account.unit),
        "delta": account.delta,
        "budget": account.budget,
    }
