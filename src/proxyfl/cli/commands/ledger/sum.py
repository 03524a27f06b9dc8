"""``proxyfl ledger sum``: what the ledgers of several studies cost together, and what is left."""

import argparse
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl.cli.options import (
    JSON,
    Actions,
    Document,
    add_action,
    option,
    print_json,
)
from proxyfl.cli.terminal.spinner import spinner
from proxyfl.errors import ConfigError
from proxyfl.privacy.guarantee import shown
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.statements.together import Together, added_up

DESCRIPTION = """\
Add up the ledgers of several studies on the same records: every charge of every ledger, composed by
the accountants at one delta, not epsilons added. With --budget-epsilon, say what is left, as steps
of the last ledger's last setting; exit code 1 if more than the budget is spent.

That the ledgers are about the same records is yours to know: a ledger does not name them. An
account (proxyfl ledger open) knows.
"""

SITE_LEDGER = "ledger.jsonl"


OPTIONS = (
    option("ledgers LEDGER", "ledger files, or folders of sites", Path, nargs="+"),
    option("--delta D", "of the total (default: the ledgers' smallest)", float),
    option("--budget-epsilon E", "what all studies may cost together", float),
    JSON,
)


def add(actions: Actions) -> None:
    """Add the action to `proxyfl ledger`."""
    summary = "add up ledgers, without an account"
    add_action(actions, "sum", summary, OPTIONS, DESCRIPTION, execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print the account; 1 if more than the budget is spent."""
    paths = [file_of(path) for path in args.ledgers]
    _check_distinct(paths)
    with spinner("Adding up", quiet=args.json):
        account = added_up([Ledger.read(path) for path in paths], args.delta)
        found = _document(account, paths, args.budget_epsilon)
    if args.json:
        print_json(found)
    else:
        _show(found, account, Console(highlight=False))
    return 1 if found.get("exceeded") else 0


def file_of(path: Path) -> Path:
    """The ledger's file that is meant: a file, or the one in a site's folder."""
    if (path / SITE_LEDGER).is_file():
        return path / SITE_LEDGER
    if path.is_dir():
        raise ConfigError(
            f"{path} is a folder without {SITE_LEDGER}. Expected a ledger's file or a site's "
            "folder; a run has one file for each method and client, in its folder ledger/METHOD."
        )
    return path


def _check_distinct(paths: list[Path]) -> None:
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise ConfigError(f"Expected each ledger once, got {path} twice.")
        seen.add(path.resolve())


def _document(
    account: Together, paths: list[Path], budget: float | None
) -> Document:
    studies = []
    for path, ledger in zip(paths, account.ledgers, strict=True):
        about = {
            "ledger": str(path),
            "client": ledger.client,
            "steps": ledger.steps,
        }
        studies.append(
            about | asdict(account.alone(ledger)) | {"simulation": ledger.simulated}
        )
    found: Document = {"studies": studies, "total": asdict(account.total)}
    found["simulation"] = account.simulated
    if budget is None:
        return found
    found["budget"] = budget
    found["exceeded"] = account.total.best > budget
    charges = account.ledgers[-1].charges
    if charges:
        found["steps_left"] = account.steps_left(budget, charges[-1].segment)
    return found


def _show(found: Document, account: Together, console: Console) -> None:
    table = Table(
        "ledger", "client", "steps", f"epsilon at delta {account.delta:.3g}", "kind"
    )
    for study in found["studies"]:
        cost = shown(min(study["pld"], study["rdp"]))
        steps = str(study["steps"])
        table.add_row(
            escape(study["ledger"]),
            escape(study["client"]),
            steps,
            cost,
            study["kind"],
        )
    total = account.total
    table.add_section()
    table.add_row("together", "", "", shown(total.best), str(total.kind))
    console.print(table)
    console.print(total.kind.sentence)
    console.print(total.relation.sentence)
    console.print(total.unit.sentence)
    if account.simulated:
        console.print(
            "Some of these are simulations, whose noise can be recomputed."
        )
    if "budget" in found:
        console.print(_left(found))


def _left(found: Document) -> str:
    if found["exceeded"]:
        return f"More than the budget of {found['budget']:g} is spent. Release nothing more."
    left = found.get("steps_left")
    if left is None:
        return f"Within the budget of {found['budget']:g}."
    return (
        f"Within the budget of {found['budget']:g}: {left} more steps of the last ledger's last "
        "setting fit."
    )
