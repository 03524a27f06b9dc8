"""``proxyfl ledger``: what several studies on the same records cost together, and what is left."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl._files import finite
from proxyfl.cli.commands import add_json, opening
from proxyfl.cli.terminal.spinner import spinner
from proxyfl.errors import ConfigError
from proxyfl.privacy.guarantee import Epsilon, shown
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.statements.account import Account, opened

if TYPE_CHECKING:
    from proxyfl.cli.commands import Commands

DESCRIPTION = """\
Add up the ledgers of several studies on the same records: every charge of every ledger, composed by
the accountants at one delta, not epsilons added. With --budget-epsilon, say what is left, as steps
of the last ledger's last setting; exit code 1 if more than the budget is spent.

That the ledgers are about the same records is yours to know: a ledger does not name them.
"""

EPILOG = """\
examples:
  proxyfl ledger north/ledger.jsonl old-study/ledger.jsonl
  proxyfl ledger runs/a/ledger/proxyfl/000.jsonl runs/b/ledger/proxyfl/000.jsonl --delta 1e-5
  proxyfl ledger north old-study --budget-epsilon 5 --json      folders of sites
"""

_SITE_LEDGER = "ledger.jsonl"


def add(commands: "Commands") -> None:
    """Add the command to the program."""
    parser = opening(
        commands, "ledger", execute, description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument(
        "ledgers",
        type=Path,
        nargs="+",
        metavar="LEDGER",
        help="ledger files, or folders of sites",
    )
    parser.add_argument(
        "--delta",
        type=float,
        metavar="D",
        help="of the total (default: the ledgers' smallest)",
    )
    parser.add_argument(
        "--budget-epsilon",
        type=float,
        metavar="E",
        help="what all studies may cost together",
    )
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Print the account; 1 if more than the budget is spent."""
    paths = [_file(path) for path in args.ledgers]
    _check_distinct(paths)
    with spinner("Adding up", quiet=args.json):
        account = opened([Ledger.read(path) for path in paths], args.delta)
        found = _document(account, paths, args.budget_epsilon)
    if args.json:
        print(json.dumps(finite(found), indent=2))
    else:
        _show(found, account, Console(highlight=False))
    return 1 if found.get("exceeded") else 0


def _file(path: Path) -> Path:
    if (path / _SITE_LEDGER).is_file():
        return path / _SITE_LEDGER
    if path.is_dir():
        raise ConfigError(
            f"{path} is a folder without {_SITE_LEDGER}. Expected a ledger's file or a site's "
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
    account: Account, paths: list[Path], budget: float | None
) -> dict[str, Any]:
    studies = []
    for path, ledger in zip(paths, account.ledgers, strict=True):
        about = {
            "ledger": str(path),
            "client": ledger.client,
            "steps": ledger.steps,
        }
        studies.append(
            about | _said(account.alone(ledger)) | {"simulation": ledger.simulated}
        )
    found: dict[str, Any] = {"studies": studies, "total": _said(account.total)}
    found["simulation"] = account.simulated
    if budget is None:
        return found
    found["budget"] = budget
    found["exceeded"] = account.total.best > budget
    charges = account.ledgers[-1].charges
    if charges:
        found["steps_left"] = account.steps_left(budget, charges[-1].segment)
    return found


def _said(epsilon: Epsilon) -> dict[str, Any]:
    return {
        "pld": epsilon.pld,
        "rdp": epsilon.rdp,
        "delta": epsilon.delta,
        "kind": str(epsilon.kind),
        "relation": str(epsilon.relation),
    }


def _show(found: dict[str, Any], account: Account, console: Console) -> None:
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
    if account.simulated:
        console.print(
            "Some of these are simulations, whose noise can be recomputed."
        )
    if "budget" in found:
        console.print(_left(found))


def _left(found: dict[str, Any]) -> str:
    if found["exceeded"]:
        return f"More than the budget of {found['budget']:g} is spent. Release nothing more."
    left = found.get("steps_left")
    if left is None:
        return f"Within the budget of {found['budget']:g}."
    return (
        f"Within the budget of {found['budget']:g}: {left} more steps of the last ledger's last "
        "setting fit."
    )
