"""``proxyfl ledger list`` and ``show``: what was spent on each dataset, by whom, what is left."""

import math
from argparse import Namespace
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl.cli.commands.ledger.actions import about, on_account
from proxyfl.cli.options import Actions, Document, option, print_json
from proxyfl.cli.terminal.spinner import spinner
from proxyfl.privacy.guarantee import shown
from proxyfl.privacy.spending.account import Account
from proxyfl.privacy.spending.standing import (
    Release,
    Standing,
    standing,
    standings,
)

IDS = {
    "persons": "persons, as the data name them",
    "rows": "rows of a file, since the data name no persons: a file of another name counts as "
    "other people",
    "unknown": "unknown: entered from a ledger, counts for every dataset",
}

_LIST = """\
One line for each dataset. Exit code 1 if more than the budget is spent on one of them.
"""

_SHOW = """\
Every release that counts for a dataset: its own, and those of datasets that share records with it.
Exit code 1 if more than the budget is spent.
"""


def add(actions: Actions) -> None:
    """Add the actions to `proxyfl ledger`."""
    on_account(
        actions,
        "list",
        "every dataset of an account: what was spent, what is left",
        _LIST,
        execute_list,
    )
    on_account(
        actions,
        "show",
        "one dataset: which release spent what, and when",
        _SHOW,
        execute_show,
        option(
            "dataset DATASET",
            "the beginning of its fingerprint (may be left out if there is one dataset)",
            str,
            "",
            nargs="?",
        ),
    )


def execute_list(args: Namespace) -> int:
    """Print the datasets; 1 if a budget is exceeded."""
    with spinner("Adding up", quiet=args.json):
        account = Account(args.account)
        found = standings(account)
        document = about(account) | {"datasets": [_dataset(one) for one in found]}
    if args.json:
        print_json(document)
    else:
        _show_list(account, found, Console(highlight=False))
    return 1 if any(one.exceeded for one in found) else 0


def execute_show(args: Namespace) -> int:
    """Print one dataset's releases; 1 if its budget is exceeded."""
    with spinner("Adding up", quiet=args.json):
        account = Account(args.account)
        one = standing(account, args.dataset)
        document = about(account) | _dataset(one)
        document["releases"] = [_release(each) for each in one.releases()]
        document["simulations"] = [_release(each) for each in one.rehearsals()]
        document["steps_left"] = one.steps_left()
    if args.json:
        print_json(document)
    else:
        _show_one(one, document["steps_left"], Console(highlight=False))
    return 1 if one.exceeded else 0


def _dataset(one: Standing) -> Document:
    return {
        "dataset": one.dataset,
        "ids": one.ids,
        "size": one.size,
        "spent": asdict(one.spent),
        "left": one.left,
        "exceeded": one.exceeded,
        "studies": len(one.releases()),
    }


def _release(release: Release) -> Document:
    first, last = release.entries[0], release.entries[-1]
    return {
        "study": first.study,
        "client": first.client,
        "ledger": first.ledger,
        "dataset": first.dataset,
        "mechanism": first.mechanism,
        "begun": first.date,
        "last": last.date,
        "rounds": len(release.entries),
        "steps": release.steps,
        "simulation": first.simulated,
        "epsilon": asdict(release.epsilon),
    }


def _show_list(account: Account, found: list[Standing], console: Console) -> None:
    if not found:
        console.print("Nothing was charged to this account yet.")
        return
    title = f"spent per {account.unit} at delta {account.delta:g}"
    table = Table("dataset", "ids", "releases", title, "left")
    for one in found:
        size = "" if one.size is None else f"{one.size} "
        left = "no budget" if one.left is None else _rounded_down(one.left)
        table.add_row(
            one.dataset,
            f"{size}{one.ids}",
            str(len(one.releases())),
            shown(one.spent.best),
            "EXCEEDED" if one.exceeded else left,
        )
    console.print(table)
    _explain(account, console)


def _show_one(one: Standing, steps: int | None, console: Console) -> None:
    console.print(f"Dataset {one.dataset}. Its ids are {IDS[one.ids]}.")
    title = f"epsilon per {one.account.unit} at delta {one.account.delta:g}"
    table = Table("release", "client", "mechanism", "when", "steps", title)
    for release in one.releases():
        table.add_row(*_row(release))
    table.add_section()
    table.add_row("together", *[""] * 4, shown(one.spent.best))
    console.print(table)
    for release in one.rehearsals():
        about = f"{release.first.study} ({release.first.client})"
        console.print(
            f"Not counted, a simulation: {escape(about)}, {release.steps} steps."
        )
    console.print(one.spent.kind.sentence)
    console.print(one.spent.relation.sentence)
    _explain(one.account, console)
    if one.exceeded:
        console.print("More than the budget is spent. Release nothing more.")
    elif steps is not None:
        console.print(f"{steps} more steps of the last setting fit the budget.")


def _rounded_down(left: float) -> str:
    """The rest of a budget to a thousandth, never more than there is."""
    return f"{math.floor(1000 * left) / 1000:.3f}"


def _row(release: Release) -> list[str]:
    first, last = release.entries[0].date[:10], release.entries[-1].date[:10]
    return [
        escape(release.first.study),
        escape(release.first.client),
        release.first.mechanism,
        first if first == last else f"{first} to {last}",
        str(release.steps),
        shown(release.epsilon.best),
    ]


def _explain(account: Account, console: Console) -> None:
    console.print(account.unit.sentence)
    if account.budget is not None:
        console.print(f"The budget of every dataset is epsilon {account.budget:g}.")
    console.print(
        "Charges are composed, not added. Simulations count for nothing. The same people under "
        "other ids, or in another account, cannot be seen here."
    )
