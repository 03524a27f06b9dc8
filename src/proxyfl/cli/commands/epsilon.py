"""``proxyfl epsilon``: what a training costs in privacy, or what a target epsilon allows.

What ``proxyfl epsilon`` computes: of noise, steps and epsilon the one that was left out.
"""

import math
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from proxyfl._terminal.spinner import spinner
from proxyfl._validate import number, whole
from proxyfl.cli.options import COALITION, JSON, OneOf, option, print_json, unit
from proxyfl.errors import ConfigError
from proxyfl.privacy import accounting
from proxyfl.privacy.accounting import AccountingWarning, Segment
from proxyfl.privacy.calibration import noise_for, steps_for
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.guarantee import WEAK, Epsilon, Unit, kind_of, shown, upward
from proxyfl.privacy.persons import person_epsilon
from proxyfl.privacy.sampling import Sampling, sampling_for


@dataclass(frozen=True)
class Answer:
    """One setting and its cost.

    If something was solved for, ``solutions`` says what each accountant allows, and the setting is
    PLD's."""

    sampling: Sampling
    segment: Segment
    epsilon: Epsilon
    solved: str
    solutions: dict[str, float]
    person: float | None
    """Epsilon by PLD of a person with several records, if it was asked for."""

    @property
    def epochs(self) -> float:
        """Epochs in the training."""
        return self.segment.steps / self.sampling.steps_per_pass


def solve(args: Namespace) -> Answer:
    """The answer to what was asked; ConfigError if that cannot be answered."""
    sampling = _sampling(args)
    delta = sampling.default_delta() if args.delta is None else args.delta
    number("delta", delta, above=0, below=1)
    kind = kind_of(dp=True, teacher_weight=args.beta)
    noise, steps = args.noise, _steps(args, sampling.steps_per_pass)
    solved = _missing({"noise": noise, "steps": steps, "epsilon": args.target_epsilon})
    coalition = coalition_of(args)
    solutions: dict[str, float] = {}
    if solved != "epsilon":
        allowed: Callable[..., float] = partial(noise_for, steps=steps or 0)
        if solved == "steps":
            allowed = partial(steps_for, noise_multiplier=noise)
        for accountant in ("rdp", "pld"):
            solutions[accountant] = allowed(
                args.target_epsilon,
                sampling_rate=sampling.rate,
                delta=delta,
                accountant=accountant,
                coalition=coalition,
            )
    if solved == "noise":
        noise = solutions["pld"]
    if solved == "steps":
        steps = int(solutions["pld"])
    segment = Segment(sampling.rate, noise, steps or 0, coalition)
    unit = Unit(args.unit)
    epsilon = accounting.epsilon([segment], delta, kind, sampling.relation, unit)
    person = None
    if args.records_per_person is not None:
        if unit is Unit.GROUP:
            raise ConfigError(
                "With --unit group epsilon is per person, however many records they have: leave "
                "--records-per-person out."
            )
        person = person_epsilon(segment, args.records_per_person, delta)
    return Answer(sampling, segment, epsilon, solved, solutions, person)


def coalition_of(args: Namespace) -> Coalition | None:
    """The terms of a masked sum, if --colluders and --quorum give them; both or neither."""
    if args.colluders is None and args.quorum is None:
        return None
    if args.colluders is None or args.quorum is None:
        missing = "--colluders" if args.colluders is None else "--quorum"
        raise ConfigError(
            f"Expected --colluders and --quorum together, missing {missing}. Both are terms of a "
            "masked sum; leave both out for noise of the client's own."
        )
    return Coalition(args.colluders, args.quorum)


def _sampling(args: Namespace) -> Sampling:
    """The source of the sampling rate; ConfigError unless that is said once."""
    if args.sampling_rate is not None:
        if args.batch is not None:
            raise ConfigError(
                f"Expected --sampling-rate alone, got --batch {args.batch} besides. The batch size "
                "does not enter: leave it out, or give --examples and --batch."
            )
        if args.delta is None:
            raise ConfigError(
                "With --sampling-rate, --delta must be given: its default 1/N would follow from "
                "the data. Use 1/(10 N) for a rounded N, or less."
            )
        # The batch size divides the sum, which costs nothing.
        rate = number("sampling_rate", args.sampling_rate, above=0, at_most=1)
        return Sampling(rate, 1, None)
    if args.batch is None:
        raise ConfigError("Expected --batch with --examples, got none. The sampling rate is B/N.")
    examples = whole("examples", args.examples)
    batch = whole("batch", args.batch)
    if batch > examples:
        raise ConfigError(
            f"Expected batch <= examples, got batch={batch} and examples={examples}. Lower --batch."
        )
    return sampling_for(batch, examples)


def _steps(args: Namespace, epoch: int) -> int | None:
    if args.epochs is not None:
        return whole("epochs", args.epochs) * epoch
    if args.steps is not None:
        return whole("steps", args.steps)
    return None


def _missing(given: dict[str, float | None]) -> str:
    """The one of the three to compute: the one that is missing."""
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 1:
        return missing[0]
    got = f"Got {3 - len(missing)}"
    if missing:
        got += f", missing {', '.join(missing)}"
    raise ConfigError(
        "Give exactly two of these three, and the third is computed: --noise; --epochs or --steps; "
        f"--target-epsilon. {got}."
    )


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

With --colluders and --quorum the step is one of a masked sum (method proxysum), SIGMA is the noise
multiplier of the sum, and there are two epsilons: against up to T colluding members of a roster of
at least K_MIN, and if all others collude. Without, the noise is the client's own, and the one
epsilon holds against all others together.

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
  proxyfl epsilon --examples 1000 --batch 50 --steps 600 --noise 8 --colluders 4 --quorum 8
"""


OPTIONS = (
    OneOf(
        (
            option("--examples N", "the client's training examples, or those declared", int),
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
        "weight of the private model in the proxy's loss, on which the guarantee's kind depends",
        float,
        0.0,
    ),
    option(
        "--records-per-person K", "also say what it costs a person who has up to K records", int
    ),
    *COALITION,
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
        text = str(warning.message)
        if issubclass(warning.category, AccountingWarning) and text not in notes:
            notes.append(text)
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
        notes.append("Not even one step fits. Use more noise, a smaller batch or a larger target.")
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


def _document(args: Namespace, answer: Answer, notes: list[str]) -> dict[str, object]:
    document: dict[str, object] = answer.epsilon.document() | {
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


def _show(args: Namespace, answer: Answer, notes: list[str], console: Console) -> None:
    if answer.solutions:
        console.print(_solutions(answer))
    segment = answer.segment
    epsilon = answer.epsilon
    table = Table(
        "accountant", f"epsilon per {epsilon.unit} ({epsilon.kind}) at delta {epsilon.delta:.3g}"
    )
    table.add_row("RDP", shown(epsilon.rdp))
    table.add_row("PLD", shown(epsilon.pld))
    if epsilon.coalition is not None:
        table.add_row("if all others collude", shown(epsilon.against_all))
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
        *epsilon.sentences,
        *notes,
    ):
        console.print(sentence)


def _solutions(answer: Answer) -> Table:
    table = Table("accountant", f"{answer.solved} within the target")
    for accountant, value in answer.solutions.items():
        text = f"{value:g}"
        if answer.solved == "steps":
            text = f"{value:.0f} ({value / answer.sampling.steps_per_pass:.4g} epochs)"
        table.add_row(accountant.upper(), text)
    return table
