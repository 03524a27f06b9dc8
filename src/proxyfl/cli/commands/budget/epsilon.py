"""``proxyfl epsilon``: what a training costs in privacy, or what a target epsilon allows."""

import math
import warnings
from argparse import Namespace
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from proxyfl.cli.commands.budget.solving import Answer, solve
from proxyfl.cli.options import JSON, OneOf, option, print_json, unit
from proxyfl.cli.terminal.spinner import spinner
from proxyfl.privacy.accounting import AccountingWarning
from proxyfl.privacy.guarantee import WEAK, Epsilon, shown, upward

DESCRIPTION = """\
Say what a training costs in privacy: epsilon of DP-SGD with Poisson batches, by two accountants.
RDP is the paper's, PLD the tighter one; both are upper bounds. Leave out --noise, or both --epochs
and --steps, and give --target-epsilon: then the missing one is solved for, and the answer respects
the target.

With --examples and --batch the sampling rate is B/N. Then N is public, and epsilon compares
datasets of N records each (zero-out). With --sampling-rate nothing follows from the number of
records, and epsilon compares a dataset with one that has one record more (add-or-remove).

Epsilon is per record. A person with several records is promised less; --records-per-person prints
it. With --unit group (privacy.unit in a config) persons are drawn and clipped, N, B and Q count
persons, and epsilon is per person, however many records they have.

Epsilon is end-to-end if beta (learning.beta) is 0. Above 0, give --beta: epsilon is the same number
and only conditional, because the proxy then learns from a private model without DP.

An epoch is floor(N/B) steps, or floor(1/Q). The noise is a multiple of the clipping norm, so the
clipping norm itself is not asked for.
"""

EPILOG = """\
examples:
  proxyfl epsilon --examples 2338 --batch 32 --epochs 30 --noise 1.4 --delta 1e-5
  proxyfl epsilon --examples 1000 --batch 50 --steps 600 --target-epsilon 4    how much noise?
  proxyfl epsilon --examples 1000 --batch 50 --noise 2 --target-epsilon 4      how many steps?
  proxyfl epsilon --sampling-rate 0.05 --steps 600 --noise 2 --delta 1e-5      without N
  proxyfl epsilon --examples 1000 --batch 50 --steps 600 --noise 2 --records-per-person 4
"""


OPTIONS = (
    OneOf(
        (
            option(
                "--examples N",
                "the client's training examples, or those declared",
                int,
            ),
            option(
                "--sampling-rate Q",
                "the probability that a step draws a record, if it does not follow from N",
                float,
            ),
        ),
        required=True,
    ),
    option("--batch B", "the expected batch size, with --examples", int),
    OneOf(
        (
            option("--epochs E", "train for E * floor(N/B) steps", int),
            option("--steps S", "train for S steps", int),
        )
    ),
    option("--noise SIGMA", "the noise multiplier", float),
    option("--delta D", "the guarantee's delta (default: 1/N)", float),
    option("--target-epsilon E", "solve for what was left out", float),
    option(
        "--beta",
        "weight of the private model in the proxy's loss, on which the guarantee's kind "
        "depends",
        float,
        0.0,
    ),
    option(
        "--records-per-person K",
        "also say what it costs a person who has up to K records",
        int,
    ),
    unit(
        "what is drawn, clipped and protected: a record, or a group, which is a person with "
        "all of theirs"
    ),
    JSON,
)


def execute(args: Namespace) -> int:
    """Compute and print; exit code 0."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AccountingWarning)
        with spinner("Computing", quiet=args.json):
            answer = solve(args)
    notes = _notes(answer)
    for warning in caught:
        # One sentence each, however often it was said while solving.
        said = str(warning.message)
        if issubclass(warning.category, AccountingWarning) and said not in notes:
            notes.append(said)
    if args.json:
        print_json(_document(args, answer, notes))
    else:
        _show(args, answer, notes, Console(highlight=False))
    return 0


def _notes(answer: Answer) -> list[str]:
    notes = []
    epsilon = answer.epsilon
    examples = answer.sampling.examples
    if examples is not None and epsilon.delta > 1 / examples:
        notes.append(
            f"Warning: delta={epsilon.delta:.3g} is above 1/N = {1 / examples:.3g}. A "
            "program that publishes one example outright would meet such a guarantee. Choose a "
            "smaller delta."
        )
    if answer.solved == "steps" and answer.segment.steps == 0:
        notes.append(
            "Not even one step fits. Use more noise, a smaller batch or a larger target."
        )
    if epsilon.weak:
        notes.append(
            f"Frankly: an epsilon of {shown(epsilon.best, 0)} is a weak guarantee; above "
            f"{WEAK:.0f} it rules out very little. More noise, smaller batches or fewer steps make "
            "it stronger."
        )
    return notes


def _meaning(epsilon: Epsilon) -> str:
    factor = f"e^{shown(epsilon.best, 1)}"
    if not epsilon.weak:
        factor = f"{upward(math.exp(epsilon.best), 3):.3g}"
    return (
        f"Whether or not any one {epsilon.unit} had an effect changes the probability of anything "
        f"an observer might conclude by at most a factor of {factor}, up to an additional "
        f"probability of {epsilon.delta:.3g}."
    )


def _document(
    args: Namespace, answer: Answer, notes: list[str]
) -> dict[str, object]:
    document: dict[str, object] = asdict(answer.epsilon) | {
        "examples": answer.sampling.examples,
        "batch": args.batch,
        "sampling_rate": answer.segment.sampling_rate,
        "noise": answer.segment.noise_multiplier,
        "steps": answer.segment.steps,
        "epochs": answer.epochs,
        "notes": notes,
    }
    if answer.person is not None:
        records = args.records_per_person
        document["person"] = {"records": records, "pld": answer.person}
    if answer.solutions:
        document["solved"] = {"for": answer.solved, **answer.solutions}
    return document


def _show(
    args: Namespace, answer: Answer, notes: list[str], console: Console
) -> None:
    if answer.solutions:
        console.print(_solutions(answer))
    segment = answer.segment
    epsilon = answer.epsilon
    table = Table(
        "accountant",
        f"epsilon per {epsilon.unit} ({epsilon.kind}) at delta {epsilon.delta:.3g}",
    )
    table.add_row("RDP", shown(epsilon.rdp))
    table.add_row("PLD", shown(epsilon.pld))
    console.print(table)
    if answer.person is not None:
        console.print(
            f"For a person with {args.records_per_person} records, drawn one by one: epsilon "
            f"{shown(answer.person)} (PLD) at the same delta."
        )
    console.print(
        f"{segment.steps} steps ({answer.epochs:.4g} epochs), sampling rate "
        f"{segment.sampling_rate:.4g}, noise multiplier {segment.noise_multiplier:g}."
    )
    for sentence in (
        _meaning(epsilon),
        epsilon.kind.sentence,
        epsilon.relation.sentence,
        epsilon.unit.sentence,
        *notes,
    ):
        console.print(sentence)


def _solutions(answer: Answer) -> Table:
    table = Table("accountant", f"{answer.solved} within the target")
    for accountant, value in answer.solutions.items():
        text = f"{value:g}"
        if answer.solved == "steps":
            text = (
                f"{value:.0f} ({value / answer.sampling.steps_per_pass:.4g} epochs)"
            )
        table.add_row(accountant.upper(), text)
    return table
