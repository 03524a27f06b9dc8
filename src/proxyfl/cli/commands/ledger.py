"""``proxyfl ledger``: what releases about the same data cost together, and what is left."""

import math
from argparse import Namespace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl._terminal.spinner import spinner
from proxyfl.cli.options import JSON, Action, Document, Execute, Option, option, print_json, unit
from proxyfl.errors import ConfigError
from proxyfl.privacy.account import FILE, IDS, Account, Release, Standing, standing, standings
from proxyfl.privacy.guarantee import Unit, shown
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.together import Together, added_up
from proxyfl.settings import EVERY, populations

DESCRIPTION = """\
An institution takes part in more than one study. Each study has a ledger of its own. Together they
reveal more about the same people than any one of them: the cost is that of all charges composed by
the accountants, which is less than their epsilons added.

An account is a folder in which an institution keeps this, one account for all of its studies:
  1. open it once, with the epsilon that any population may cost in all;
  2. name it in every config (privacy.account) and site.toml ([privacy] account): each round's
     charge is then entered before its first step, and refused where the budget is spent;
  3. name the people whom a study is about (privacy.population), such as cardiology: studies of one
     population count together. A study that names none counts for all, and all count for it;
  4. look at it with list and show.

Charges are counted by these public names, never by who is in the data: otherwise the round in which
a site leaves would tell. People of one population who are in another as well cannot be seen here.
"""

EPILOG = """\
examples:
  proxyfl ledger open accounts --delta 1e-6 --budget-epsilon 5 --unit group
  proxyfl ledger list accounts                     every population: spent, left
  proxyfl ledger show accounts cardiology          who spent what, when
  proxyfl ledger enter accounts north/ledger.jsonl --population cardiology
  proxyfl ledger sum north/ledger.jsonl old-study/ledger.jsonl --budget-epsilon 5
"""


def about(account: Account) -> Document:
    """An account's facts as plain data."""
    return {
        "account": str(account.folder),
        "unit": str(account.unit),
        "delta": account.delta,
        "budget": account.budget,
    }


_SUM = """\
Add up the ledgers of several studies on the same records: every charge of every ledger, composed by
the accountants at one delta, not epsilons added. With --budget-epsilon, say what is left, as steps
of the last ledger's last setting; exit code 1 if more than the budget is spent.

That the ledgers are about the same records is yours to know: a ledger does not name them. In
an account studies name the population that they are about (`proxyfl ledger open --help`).
"""

SITE_LEDGER = "ledger.jsonl"


def execute_sum(args: Namespace) -> int:
    """Print the account; 1 if more than the budget is spent."""
    paths = [file_of(path) for path in args.ledgers]
    _check_distinct(paths)
    with spinner("Adding up", quiet=args.json):
        account = added_up([Ledger.read(path) for path in paths], args.delta)
        document = _document(account, paths, args.budget_epsilon)
    if args.json:
        print_json(document)
    else:
        _show(document, account, Console(highlight=False))
    return 1 if document.get("exceeded") else 0


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


def _document(account: Together, paths: list[Path], budget: float | None) -> Document:
    studies = []
    for path, ledger in zip(paths, account.ledgers, strict=True):
        about = {"ledger": str(path), "client": ledger.client, "steps": ledger.steps}
        studies.append(about | account.alone(ledger).document() | {"simulation": ledger.simulated})
    document: Document = {"studies": studies, "total": account.total.document()}
    document["simulation"] = account.simulated
    if budget is None:
        return document
    document["budget"] = budget
    document["exceeded"] = account.total.best > budget
    charges = account.ledgers[-1].charges
    if charges:
        document["steps_left"] = account.steps_left(budget, charges[-1].segment)
    return document


def _show(document: Document, account: Together, console: Console) -> None:
    table = Table("ledger", "client", "steps", f"epsilon at delta {account.delta:.3g}", "kind")
    for study in document["studies"]:
        cost = shown(min(study["pld"], study["rdp"]))
        steps = str(study["steps"])
        table.add_row(escape(study["ledger"]), escape(study["client"]), steps, cost, study["kind"])
    total = account.total
    table.add_section()
    table.add_row("together", "", "", shown(total.best), str(total.kind))
    console.print(table)
    console.print(total.kind.sentence)
    console.print(total.relation.sentence)
    console.print(total.unit.sentence)
    for sentence in total.sentences:
        console.print(sentence)
    if account.simulated:
        console.print("Some of these are simulations, whose noise can be recomputed.")
    if "budget" in document:
        console.print(_left(document))


def _left(document: Document) -> str:
    if document["exceeded"]:
        return f"More than the budget of {document['budget']:g} is spent. Release nothing more."
    left = document.get("steps_left")
    if left is None:
        return f"Within the budget of {document['budget']:g}."
    return (
        f"Within the budget of {document['budget']:g}: {left} more steps of the last ledger's last "
        "setting fit."
    )


_OPEN = """\
Begin an account in a folder that has none. What it says cannot be changed later: budgets that grow
protect nobody.
"""

_ENTER = """\
Enter real ledgers. A ledger does not say whom it is about: name the population, or what it spent
counts for every one. Charges that the account has already are left out.
"""


def execute_open(args: Namespace) -> int:
    """Begin the account; exit code 0."""
    account = Account.open(
        args.account, delta=args.delta, budget=args.budget_epsilon, unit=Unit(args.unit)
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
    entries = []
    for given in args.ledgers:
        path = file_of(given)
        new = account.enter_all(
            Ledger.read(path),
            study=f"earlier study {given}",
            populations=populations(args.population),
        )
        entries.append({"ledger": str(path), "entered": new})
    if args.json:
        print_json({"ledgers": entries})
        return 0
    for each in entries:
        print(f"{each['ledger']}: {each['entered']} charges entered")
    return 0


_LIST = """\
One line for each population. Exit code 1 if more than the budget is spent on one of them.
"""

_ALL = " It stands for all: studies that name no population are held to this."

_SHOW = """\
Every release that counts for a population: those that name it, and those that name none.
Exit code 1 if more than the budget is spent.
"""


def execute_list(args: Namespace) -> int:
    """Print the populations; 1 if a budget is exceeded."""
    with spinner("Adding up", quiet=args.json):
        account = Account(args.account)
        all_standings = standings(account)
        document = about(account) | {"populations": [_population(one) for one in all_standings]}
    if args.json:
        print_json(document)
    else:
        _show_list(account, all_standings, Console(highlight=False))
    return 1 if any(one.exceeded for one in all_standings) else 0


def execute_show(args: Namespace) -> int:
    """Print one population's releases; 1 if its budget is exceeded."""
    with spinner("Adding up", quiet=args.json):
        account = Account(args.account)
        one = standing(account, args.population)
        document = about(account) | _population(one)
        document["releases"] = [_release(each) for each in one.releases()]
        document["simulations"] = [_release(each) for each in one.rehearsals()]
        document["steps_left"] = one.steps_left()
    if args.json:
        print_json(document)
    else:
        _show_one(one, document["steps_left"], Console(highlight=False))
    return 1 if one.exceeded else 0


def _population(one: Standing) -> Document:
    return {
        "population": one.population,
        "spent": one.spent.document(),
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
        "populations": list(first.populations),
        "mechanism": first.mechanism,
        "begun": first.date,
        "last": last.date,
        "rounds": len(release.entries),
        "steps": release.steps,
        "simulation": first.simulated,
        "epsilon": release.epsilon.document(),
    }


def _show_list(account: Account, all_standings: list[Standing], console: Console) -> None:
    if not all_standings:
        console.print("Nothing was charged to this account yet.")
        return
    title = f"spent per {account.unit} at delta {account.delta:g}"
    table = Table("population", "releases", title, "left")
    for one in all_standings:
        left = "no budget" if one.left is None else _round_down(one.left)
        table.add_row(
            escape(one.population),
            str(len(one.releases())),
            shown(one.spent.best),
            "EXCEEDED" if one.exceeded else left,
        )
    console.print(table)
    _explain(account, console)


def _show_one(one: Standing, steps: int | None, console: Console) -> None:
    console.print(f"Population {escape(one.population)}.{_ALL if one.population == EVERY else ''}")
    title = f"epsilon per {one.account.unit} at delta {one.account.delta:g}"
    table = Table("release", "client", "mechanism", "when", "steps", title)
    for release in one.releases():
        table.add_row(*_row(release))
    table.add_section()
    table.add_row("together", *[""] * 4, shown(one.spent.best))
    console.print(table)
    for release in one.rehearsals():
        about = f"{release.first.study} ({release.first.client})"
        console.print(f"Not counted, a simulation: {escape(about)}, {release.steps} steps.")
    console.print(one.spent.kind.sentence)
    console.print(one.spent.relation.sentence)
    for sentence in one.spent.sentences:
        console.print(sentence)
    _explain(one.account, console)
    if one.exceeded:
        console.print("More than the budget is spent. Release nothing more.")
    elif steps is not None:
        console.print(f"{steps} more steps of the last setting fit the budget.")


def _round_down(left: float) -> str:
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
        console.print(f"The budget of every population is epsilon {account.budget:g}.")
    console.print(
        "Charges are composed, not added up. Simulations are not counted. The account cannot see "
        "who is in two populations, or in another account as well."
    )
    if account.keeps_ids:
        console.print(
            f"{account.folder / IDS} holds hashes of ids that an earlier release used for "
            "counting. No release reads it any more: delete it. What was spent then counts for "
            "every population."
        )


def _on_account(
    name: str, summary: str, description: str, execute: Execute, *options: Option
) -> Action:
    """An action whose first argument is the account's folder."""
    account = option("account ACCOUNT", "its folder", Path)
    return Action(name, summary, (account, *options, JSON), execute, description)


_SUM_OPTIONS = (
    option("ledgers LEDGER", "ledger files, or folders of sites", Path, nargs="+"),
    option("--delta D", "of the total (default: the ledgers' smallest)", float),
    option("--budget-epsilon E", "what all studies may cost together", float),
    JSON,
)

ACTIONS = (
    _on_account(
        "open",
        "begin an account",
        _OPEN,
        execute_open,
        option(
            "--delta D",
            "of all totals; 1/(10 n) of the largest population, or less",
            float,
            required=True,
        ),
        option(
            "--budget-epsilon E",
            "what any population may cost in all, by PLD (default: no limit, only a record)",
            float,
        ),
        unit("what the studies protect (privacy.unit): a record, or a person"),
    ),
    _on_account(
        "enter",
        "enter the ledgers of studies from before the account",
        _ENTER,
        execute_enter,
        option("ledgers LEDGER", "ledger files, or folders of sites", Path, nargs="+"),
        option(
            "--population NAME",
            "the people whom these ledgers are about; several joined by + (default: every one)",
        ),
    ),
    _on_account(
        "list", "every population of an account: what was spent, what is left", _LIST, execute_list
    ),
    _on_account(
        "show",
        "one population: which release spent what, and when",
        _SHOW,
        execute_show,
        option(
            "population NAME",
            "its name, or the beginning of it (may be left out if there is one population)",
            str,
            "",
            nargs="?",
        ),
    ),
    Action("sum", "add up ledgers, without an account", _SUM_OPTIONS, execute_sum, _SUM),
)
