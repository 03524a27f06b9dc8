"""``proxyfl epsilon``: what a training costs in privacy, or how much noise or how many steps a
target allows."""

import argparse
import json
import math
import warnings
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from proxyfl import _validate
from proxyfl.cli.terminal.spinner import waiting
from proxyfl.errors import ConfigError
from proxyfl.privacy import accounting
from proxyfl.privacy.accounting import AccountingWarning, Segment
from proxyfl.privacy.calibration import noise_for, steps_for
from proxyfl.privacy.guarantee import WEAK, Epsilon, kind_of, shown, upward

DESCRIPTION = """\
Say what a training costs in privacy: epsilon of DP-SGD with Poisson batches, by two accountants. RDP is the paper's,
PLD the tighter one; both are upper bounds. Leave out --noise, or both --epochs and --steps, and give --target-epsilon:
then the missing one is solved for, and the answer respects the target.

An epoch is floor(examples / batch) steps. The noise is a multiple of the clipping norm, which therefore does not enter.
"""

EPILOG = """\
examples:
  proxyfl epsilon --examples 2338 --batch 32 --epochs 30 --noise 1.4 --delta 1e-5
  proxyfl epsilon --examples 1000 --batch 50 --steps 600 --target-epsilon 4    how much noise?
  proxyfl epsilon --examples 1000 --batch 50 --noise 2 --target-epsilon 4      how many steps?
"""


@dataclass(frozen=True)
class Answer:
    """One setting and its cost. If something was solved for, ``solutions`` says what each
    accountant allows, and the setting is PLD's."""

    examples: int
    batch: int
    segment: Segment
    epsilon: Epsilon
    solved: str
    solutions: dict[str, float]

    @property
    def epochs(self) -> float:
        return self.segment.steps / (self.examples // self.batch)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the program."""
    parser = commands.add_parser(
        "epsilon",
        help="what a training costs in privacy, or which noise or how many steps a target epsilon "
        "allows",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--examples", type=int, required=True, metavar="N", help="the client's training examples"
    )
    parser.add_argument(
        "--batch", type=int, required=True, metavar="B", help="the expected batch size"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, metavar="E", help="train for E * floor(N/B) steps")
    length.add_argument("--steps", type=int, metavar="S", help="train for S steps")
    parser.add_argument("--noise", type=float, metavar="SIGMA", help="the noise multiplier")
    parser.add_argument(
        "--delta", type=float, metavar="D", help="the guarantee's delta (default: 1/N)"
    )
    parser.add_argument(
        "--target-epsilon", type=float, metavar="E", help="solve for what was left out"
    )
    beta_help = "weight of the private model in the proxy's loss, which sets the guarantee's kind (default: 0)"
    parser.add_argument("--beta", type=float, default=0.0, help=beta_help)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compute and print; exit code 0."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AccountingWarning)
        with waiting("Computing", quiet=arguments.json):
            answer = solve(arguments)
    # One sentence each, however often it was said while solving.
    said = dict.fromkeys(
        str(w.message) for w in caught if issubclass(w.category, AccountingWarning)
    )
    notes = [*_notes(answer), *said]
    if arguments.json:
        print(json.dumps(_document(answer, notes), indent=2))
    else:
        _show(answer, notes, Console(highlight=False))
    return 0


def solve(arguments: argparse.Namespace) -> Answer:
    """The answer to what was asked; ConfigError if that cannot be answered."""
    examples = _validate.whole("examples", arguments.examples)
    batch = _validate.whole("batch", arguments.batch)
    if batch > examples:
        raise ConfigError(f"Expected batch <= examples, got batch={batch} and examples={examples}.")
    rate, delta = batch / examples, _delta(arguments)
    # One of these three is None, which _unknown makes sure of.
    steps, noise, target = _steps(arguments), arguments.noise, arguments.target_epsilon
    beta = _validate.number("beta", arguments.beta, at_least=0, at_most=1)
    solved = _unknown(steps, noise, target)
    given = {"sampling_rate": rate, "delta": delta}
    solutions: dict[str, float] = {}
    if solved == "noise":
        solutions = {
            a: noise_for(target, steps=steps, accountant=a, **given) for a in ("rdp", "pld")
        }
        noise = solutions["pld"]
    elif solved == "steps":
        solutions = {
            a: steps_for(target, noise_multiplier=noise, accountant=a, **given)
            for a in ("rdp", "pld")
        }
        steps = int(solutions["pld"])
    segment = Segment(rate, noise, steps)
    kind = kind_of(dp=True, teacher_weight=beta)
    return Answer(
        examples, batch, segment, accounting.epsilon([segment], delta, kind), solved, solutions
    )


def _delta(arguments: argparse.Namespace) -> float:
    # For a single example 1/N would be 1, which is no guarantee at all.
    default = 1 / max(arguments.examples, 2)
    return _validate.number(
        "delta", default if arguments.delta is None else arguments.delta, above=0, below=1
    )


def _steps(arguments: argparse.Namespace) -> Any:
    if arguments.epochs is not None:
        return _validate.whole("epochs", arguments.epochs, at_least=0) * (
            arguments.examples // arguments.batch
        )
    return (
        None if arguments.steps is None else _validate.whole("steps", arguments.steps, at_least=0)
    )


def _unknown(steps: int | None, noise: float | None, target: float | None) -> str:
    """Which of the three is to be computed: the one that is missing."""
    missing = [
        name
        for name, value in (("noise", noise), ("steps", steps), ("epsilon", target))
        if value is None
    ]
    if len(missing) != 1:
        raise ConfigError(
            "Give exactly two of these three, and the third is computed: --noise; --epochs or "
            "--steps; "
            f"--target-epsilon. Got {3 - len(missing)}"
            + (f", missing {', '.join(missing)}." if missing else ".")
        )
    return missing[0]


def _notes(answer: Answer) -> list[str]:
    notes = []
    epsilon = answer.epsilon
    if epsilon.delta > 1 / answer.examples:
        notes.append(
            f"Warning: delta={epsilon.delta:.3g} is above 1/N = {1 / answer.examples:.3g}. A "
            f"program that "
            "publishes one example outright would meet such a guarantee. Choose a smaller delta."
        )
    if answer.solved == "steps" and answer.segment.steps == 0:
        notes.append("Not even one step fits. Use more noise, a smaller batch or a larger target.")
    if epsilon.weak:
        notes.append(
            f"Frankly: an epsilon of {shown(epsilon.best, 0)} is a weak guarantee; above {WEAK:.0f} it "
            f"rules out very "
            "little. More noise, smaller batches or fewer steps make it stronger."
        )
    return notes


def _meaning(epsilon: Epsilon) -> str:
    factor = f"e^{shown(epsilon.best, 1)}"
    if not epsilon.weak:
        factor = f"{upward(math.exp(epsilon.best), 3):.3g}"
    return (
        "Whether or not any one example had an effect changes the probability of anything an "
        f"observer might conclude by at most a factor of {factor}, up to an additional "
        f"probability of {epsilon.delta:.3g}."
    )


def _document(answer: Answer, notes: list[str]) -> dict[str, object]:
    document: dict[str, object] = {
        "rdp": answer.epsilon.rdp,
        "pld": answer.epsilon.pld,
        "kind": str(answer.epsilon.kind),
        "relation": str(answer.epsilon.relation),
        "delta": answer.epsilon.delta,
        "examples": answer.examples,
        "batch": answer.batch,
        "sampling_rate": answer.segment.sampling_rate,
        "noise": answer.segment.noise_multiplier,
        "steps": answer.segment.steps,
        "epochs": answer.epochs,
        "notes": notes,
    }
    return document | (
        {"solved": {"for": answer.solved, **answer.solutions}} if answer.solutions else {}
    )


def _show(answer: Answer, notes: list[str], console: Console) -> None:
    segment, epsilon = answer.segment, answer.epsilon
    if answer.solutions:
        per_epoch = answer.examples // answer.batch
        table = Table("accountant", f"{answer.solved} within the target")
        for accountant, value in answer.solutions.items():
            text = (
                f"{value:g}"
                if answer.solved == "noise"
                else f"{value:.0f} ({value / per_epoch:.4g} epochs)"
            )
            table.add_row(accountant.upper(), text)
        console.print(table)
    table = Table("accountant", f"epsilon ({epsilon.kind}) at delta {epsilon.delta:.3g}")
    for accountant in ("rdp", "pld"):
        table.add_row(accountant.upper(), shown(getattr(epsilon, accountant)))
    console.print(table)
    console.print(
        f"{segment.steps} steps ({answer.epochs:.4g} epochs), sampling rate "
        f"{segment.sampling_rate:.4g}, "
        f"noise multiplier {segment.noise_multiplier:g}."
    )
    for sentence in (_meaning(epsilon), epsilon.kind.sentence, epsilon.relation.sentence, *notes):
        console.print(sentence)
