"""``proxyfl plan``: which batch, noise and rounds fit a budget, and which proxies it rules out."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Column, Table

from proxyfl._terminal.spinner import spinner
from proxyfl._validate import whole
from proxyfl.cli.commands.epsilon import coalition_of
from proxyfl.cli.options import COALITION, JSON, Document, option, print_json, unit
from proxyfl.errors import ConfigError
from proxyfl.privacy.coalition import ALL_OTHERS
from proxyfl.privacy.guarantee import WEAK, Unit, shown
from proxyfl.privacy.planning import ROUNDS, SIZES, Option, most_parameters, options

DESCRIPTION = """\
Say which batch sizes, noise and rounds fit a privacy budget, by the PLD accountant, and how loud a
step's noise is beside the longest sum of clipped gradients: sigma sqrt(P) / B for a proxy of P
parameters, and less by sqrt(K) in the average over K clients. A round is one pass over the
examples, floor(N/B) steps. The budget is per record; where persons are the unit (privacy.unit =
"group"), count persons in N and B, and it is per person. Exit code 1 if a proxy of P parameters is
hopeless under every option.

With --colluders and --quorum the plan is for a masked sum (method proxysum): the noise is less by
sqrt(h), h = K_MIN - T, the budget holds against up to T colluding members, and a column says what
epsilon is if all others collude.
"""

EPILOG = """\
examples:
  proxyfl plan --examples 1000 --budget-epsilon 3 --delta 1e-4
  proxyfl plan --examples 1000 --budget-epsilon 3 --delta 1e-4 --parameters 650 --clients 8
  proxyfl plan --examples 1000 --budget-epsilon 1 --delta 1e-4 --rounds 20 50 --json
  proxyfl plan --examples 1000 --budget-epsilon 1 --delta 1e-4 --clients 8 --colluders 4 --quorum 8
"""

_BAR = 24


OPTIONS = (
    option("--examples N", "the client's training examples", int, required=True),
    option("--budget-epsilon E", "what may be spent", float, required=True),
    option("--delta D", "at most 1/N; 1/(10 N) or less", float, required=True),
    option("--parameters P", "the proxy's parameters", int),
    option("--clients K", "clients that average", int, 1),
    option("--rounds R", "rounds to try", int, ROUNDS, nargs="+"),
    *COALITION,
    unit("what N counts and the budget is for: records, or groups (persons)"),
    JSON,
)


def execute(args: Namespace) -> int:
    """Print what fits; 1 if the proxy is hopeless under all of it."""
    whole("clients", args.clients)
    if args.parameters is not None:
        whole("parameters", args.parameters)
    coalition = coalition_of(args)
    if coalition is not None and coalition.quorum > args.clients:
        raise ConfigError(
            f"Expected a quorum of at most the {args.clients} clients, got --quorum "
            f"{coalition.quorum}. Raise --clients, or lower --quorum."
        )
    with spinner("Planning", quiet=args.json):
        choices = options(
            args.examples, args.budget_epsilon, args.delta, rounds=args.rounds, coalition=coalition
        )
    largest = most_parameters(choices, args.clients)
    hopeless = args.parameters is not None and args.parameters > largest
    notes = _notes(args, largest, hopeless)
    if args.json:
        print_json(_document(args, choices, largest, notes))
    else:
        _show(args, choices, largest, notes, Console(highlight=False))
    return 1 if hopeless else 0


def _notes(args: Namespace, largest: int, hopeless: bool) -> list[str]:
    notes = [Unit(args.unit).sentence]
    notes += [
        f"At this budget a proxy of more than {largest:,} parameters is hopeless whichever option "
        f"is taken: over all steps of {args.clients} clients the noise is longer than all "
        "clipped gradients together could be if they agreed. A smaller one may fail, too: real "
        "gradients disagree."
    ]
    if hopeless:
        notes.append(
            f"Refused: {args.parameters:,} parameters cannot be had. Take a smaller proxy, more "
            "examples, fewer rounds or a larger budget."
        )
    coalition = coalition_of(args)
    notes.append(ALL_OTHERS if coalition is None else coalition.sentence)
    if args.budget_epsilon > WEAK:
        notes.append(f"An epsilon above {WEAK:g} rules out very little.")
    return notes


def _document(
    args: Namespace, choices: Sequence[Option], largest: int, notes: list[str]
) -> Document:
    rows = []
    for fit in choices:
        row = asdict(fit) | {"largest_proxy": fit.largest_proxy(args.clients)}
        if args.parameters is not None:
            row["noise_alone"] = fit.ratio(args.parameters)
            row["noise_averaged"] = fit.ratio(args.parameters, args.clients)
            row["noise_in_all"] = fit.in_all(args.parameters, args.clients)
        rows.append(row)
    return {
        "examples": args.examples,
        "epsilon": args.budget_epsilon,
        "delta": args.delta,
        "relation": "zero-out",
        "unit": args.unit,
        "parameters": args.parameters,
        "clients": args.clients,
        "colluders": "all others" if args.colluders is None else args.colluders,
        "quorum": args.quorum,
        "options": rows,
        "largest_proxy": largest,
        "hopeless": [size for size in SIZES if size > largest],
        "notes": notes,
    }


def _show(
    args: Namespace, choices: Sequence[Option], largest: int, notes: list[str], console: Console
) -> None:
    columns: list[str | Column] = ["rounds", "batch", "steps", "noise", "largest proxy"]
    if args.colluders is not None:
        columns.append("if all others collude")
    if args.parameters is not None:
        columns += ["alone", "averaged", Column("", no_wrap=True, min_width=8)]
    table = Table(*columns)
    for fit in choices:
        row = [f"{fit.rounds}", f"{fit.batch}", f"{fit.steps}"]
        row += [f"{fit.noise_multiplier:g}", f"{fit.largest_proxy(args.clients):,}"]
        if fit.epsilon_all_others is not None:
            row.append(shown(fit.epsilon_all_others))
        if args.parameters is not None:
            averaged = fit.ratio(args.parameters, args.clients)
            row += [f"{fit.ratio(args.parameters):.3g}", f"{averaged:.3g}", bar(averaged, 8)]
        table.add_row(*row)
    console.print(table)
    console.print(
        "Noise of the whole training, compared with the longest sum (full bar), best option:"
    )
    for size in SIZES:
        ratio = min(fit.in_all(size, args.clients) for fit in choices)
        verdict = "hopeless" if size > largest else ""
        console.print(f"{size:>12,} parameters  {bar(ratio)}  {ratio:8.2f}  {verdict}".rstrip())
    for note in notes:
        console.print(note)


def bar(ratio: float, width: int = _BAR) -> str:
    """The longest sum (full) beside the noise (light), to scale."""
    full = round(width / (1 + ratio))
    return "█" * full + "░" * (width - full)
