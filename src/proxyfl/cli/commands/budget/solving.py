"""What ``proxyfl epsilon`` computes: of noise, steps and epsilon the one that was left out."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from proxyfl._validate import number, whole
from proxyfl.errors import ConfigError
from proxyfl.privacy import accounting
from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.calibration import noise_for, steps_for
from proxyfl.privacy.guarantee import Epsilon, Unit, kind_of
from proxyfl.privacy.sampling import Sampling, sampling_for
from proxyfl.privacy.statements.persons import person_epsilon


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
    solved = _missing(
        {"noise": noise, "steps": steps, "epsilon": args.target_epsilon}
    )
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
            )
    if solved == "noise":
        noise = solutions["pld"]
    if solved == "steps":
        steps = int(solutions["pld"])
    segment = Segment(sampling.rate, noise, steps or 0)
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
        return sampling_for(1, 1, sampling_rate=args.sampling_rate)
    if args.batch is None:
        raise ConfigError(
            "Expected --batch with --examples, got none. The sampling rate is B/N."
        )
    examples = whole("examples", args.examples)
    batch = whole("batch", args.batch)
    if batch > examples:
        raise ConfigError(
            f"Expected batch <= examples, got batch={batch} and examples={examples}."
        )
    return sampling_for(batch, examples)


def _steps(args: Namespace, epoch: int) -> int | None:
    if args.epochs is not None:
        return whole("epochs", args.epochs, at_least=0) * epoch
    if args.steps is not None:
        return whole("steps", args.steps, at_least=0)
    return None


def _missing(given: dict[str, float | None]) -> str:
    """The one of the three to compute: the one that is missing."""
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 1:
        return missing[0]
    found = f"Got {3 - len(missing)}"
    if missing:
        found += f", missing {', '.join(missing)}"
    raise ConfigError(
        "Give exactly two of these three, and the third is computed: --noise; --epochs or --steps; "
        f"--target-epsilon. {found}."
    )
