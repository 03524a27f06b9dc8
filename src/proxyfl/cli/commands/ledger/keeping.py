"""``proxyfl ledger open`` and ``enter``: begin an account, and bring earlier studies into it."""

import argparse
import json
from pathlib import Path

from proxyfl.cli.commands import add_json
from proxyfl.cli.commands.ledger.actions import add_action
from proxyfl.cli.commands.ledger.sum import file_of
from proxyfl.privacy.guarantee import Unit
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.spending.account import FILE, Account


def add(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the actions to `proxyfl ledger`."""
    parser = add_action(
        actions,
        "open",
        execute_open,
        help="begin an account",
        description="Begin an account in a folder that has none. What it says cannot be changed "
        "later: budgets that grow protect nobody.",
    )
    parser.add_argument(
        "--delta",
        type=float,
        required=True,
        metavar="D",
        help="of all totals; 1/(10 n) of the largest dataset, or less",
    )
    parser.add_argument(
        "--budget-epsilon",
        type=float,
        metavar="E",
        help="what any dataset may cost in all, by PLD (default: no limit, only a record)",
    )
    parser.add_argument(
        "--unit",
        choices=[str(unit) for unit in Unit],
        default=str(Unit.RECORD),
        help="what the studies protect (privacy.unit): a record, or a person (default: record)",
    )
    add_json(parser)
    parser = add_action(
        actions,
        "enter",
        execute_enter,
        help="enter the ledgers of studies from before the account",
        description="Enter real ledgers. A ledger does not name its records, so what it spent "
        "counts for every dataset. Charges that the account has already are left out.",
    )
    parser.add_argument(
        "ledgers",
        type=Path,
        nargs="+",
        metavar="LEDGER",
        help="ledger files, or folders of sites",
    )
    add_json(parser)


def execute_open(args: argparse.Namespace) -> int:
    """Begin the account; exit code 0."""
    account = Account.open(
        args.account,
        delta=args.delta,
        budget=args.budget_epsilon,
        unit=Unit(args.unit),
    )
    if args.json:
        about = {
            "account": str(account.path),
            "unit": str(account.unit),
            "delta": account.delta,
            "budget": account.budget,
        }
        print(json.dumps(about, indent=2))
        return 0
    limit = "no budget"
    if account.budget is not None:
        limit = f"epsilon {account.budget:g} per {account.unit}"
    print(f"Opened {args.account / FILE}: {limit} at delta {account.delta:g}.")
    print(f'Name it in configs and site.toml: [privacy] account = "{args.account}"')
    return 0


def execute_enter(args: argparse.Namespace) -> int:
    """Enter the ledgers; exit code 0."""
    account = Account(args.account)
    found = []
    for given in args.ledgers:
        path = file_of(given)
        new = account.enter_all(Ledger.read(path), study=f"earlier study {given}")
        found.append({"ledger": str(path), "entered": new})
    if args.json:
        print(json.dumps({"ledgers": found}, indent=2))
        return 0
    for each in found:
        print(f"{each['ledger']}: {each['entered']} charges entered")
    return 0
