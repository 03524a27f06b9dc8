"""``proxyfl ledger open`` and ``enter``: begin an account, and bring earlier studies into it."""

from argparse import Namespace
from pathlib import Path

from proxyfl.cli.commands.ledger.actions import about, on_account
from proxyfl.cli.commands.ledger.sum import file_of
from proxyfl.cli.options import Actions, option, print_json, unit
from proxyfl.privacy.guarantee import Unit
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.spending.account import FILE, Account

_OPEN = """\
Begin an account in a folder that has none. What it says cannot be changed later: budgets that grow
protect nobody.
"""

_ENTER = """\
Enter real ledgers. A ledger does not name its records, so what it spent counts for every dataset.
Charges that the account has already are left out.
"""


def add(actions: Actions) -> None:
    """Add the actions to `proxyfl ledger`."""
    on_account(
        actions,
        "open",
        "begin an account",
        _OPEN,
        execute_open,
        option(
            "--delta D",
            "of all totals; 1/(10 n) of the largest dataset, or less",
            float,
            required=True,
        ),
        option(
            "--budget-epsilon E",
            "what any dataset may cost in all, by PLD (default: no limit, only a record)",
            float,
        ),
        unit("what the studies protect (privacy.unit): a record, or a person"),
    )
    on_account(
        actions,
        "enter",
        "enter the ledgers of studies from before the account",
        _ENTER,
        execute_enter,
        option(
            "ledgers LEDGER", "ledger files, or folders of sites", Path, nargs="+"
        ),
    )


def execute_open(args: Namespace) -> int:
    """Begin the account; exit code 0."""
    account = Account.open(
        args.account,
        delta=args.delta,
        budget=args.budget_epsilon,
        unit=Unit(args.unit),
    )
    if args.json:
        print_json(about(account))
        return 0
    limit = "no budget"
    if account.budget is not None:
        limit = f"epsilon {account.budget:g} per {account.unit}"
    print(f"Opened {args.account / FILE}: {limit} at delta {account.delta:g}.")
    print(f'Name it in configs and site.toml: [privacy] account = "{args.account}"')
    return 0


def execute_enter(args: Namespace) -> int:
    """Enter the ledgers; exit code 0."""
    account = Account(args.account)
    found = []
    for given in args.ledgers:
        path = file_of(given)
        new = account.enter_all(Ledger.read(path), study=f"earlier study {given}")
        found.append({"ledger": str(path), "entered": new})
    if args.json:
        print_json({"ledgers": found})
        return 0
    for each in found:
        print(f"{each['ledger']}: {each['entered']} charges entered")
    return 0
