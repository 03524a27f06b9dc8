"""What the actions of `proxyfl ledger` on an account have in common."""

from pathlib import Path

from proxyfl.cli.options import (
    JSON,
    Actions,
    Document,
    Execute,
    Option,
    add_action,
    option,
)
from proxyfl.privacy.spending.account import Account


def on_account(
    actions: Actions,
    name: str,
    summary: str,
    description: str,
    execute: Execute,
    *options: Option,
) -> None:
    """Add an action whose first argument is the account's folder."""
    account = option("account ACCOUNT", "its folder", Path)
    every = (account, *options, JSON)
    add_action(actions, name, summary, every, description, execute=execute)


def about(account: Account) -> Document:
    """What an account says of itself, as plain data."""
    return {
        "account": str(account.folder),
        "unit": str(account.unit),
        "delta": account.delta,
        "budget": account.budget,
    }
