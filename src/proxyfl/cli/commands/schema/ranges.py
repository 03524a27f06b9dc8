"""``proxyfl schema ranges``: plausible ranges with differential privacy, on the ledger."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from proxyfl import seeds
from proxyfl.cli.commands.schema.dialects import DIALECT, dialect
from proxyfl.cli.options import option, repeated
from proxyfl.data.tables.measured import first_of_each, numbers
from proxyfl.errors import ConfigError
from proxyfl.privacy import quantiles
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.guarantee import Kind, Unit
from proxyfl.privacy.ledger import Ledger

SUMMARY = "estimate plausible ranges with DP and charge the ledger"

DESCRIPTION = """\
Estimate two quantiles of each column with differential privacy, by a binary search that asks noisy
questions. The cost is on the ledger before the first is asked.
"""


OPTIONS = (
    option("file FILE", "a table", Path),
    repeated(
        "--within COLUMN=LOW:HIGH",
        "a column and public bounds to search in",
        required=True,
    ),
    option("--epsilon", "what the estimates may cost", float, required=True),
    option("--ledger FILE", "the site's ledger, or a new one", Path, required=True),
    option("--delta", "of a new ledger", float, 1e-5),
    option("--person COLUMN", "count one row of each person"),
    option("--quantiles P", "which quantiles", float, (0.02, 0.98), nargs=2),
    *DIALECT,
)


def execute(args: Namespace) -> int:
    """Print the estimated range of each column, and what all of it cost."""
    bounds = dict(_bounds(text) for text in args.within)
    asked = quantiles.queries(len(bounds), len(args.quantiles))
    columns = _columns(args, list(bounds))
    ledger = _ledger(args)
    sigma = noise_for(
        args.epsilon, sampling_rate=1.0, steps=asked, delta=ledger.delta
    )
    found = quantiles.estimate(
        columns,
        list(bounds.values()),
        args.quantiles,
        noise_multiplier=sigma,
        ledger=ledger,
        source=seeds.System(),
    )
    for name, (low, high) in zip(bounds, found, strict=True):
        print(f'[columns."{name}"]\nrange = [{low:g}, {high:g}]\n')
    print(
        f"# {asked} questions with noise {sigma:g} cost epsilon {args.epsilon:g} at "
        f"delta={ledger.delta:g}; on the ledger {args.ledger}: {ledger.epsilon()}."
    )
    return 0


def _ledger(args: Namespace) -> Ledger:
    """The ledger to charge: per person where one row of each person is counted."""
    unit = Unit.RECORD if args.person is None else Unit.GROUP
    if not args.ledger.exists():
        return Ledger(
            args.file.stem,
            delta=args.delta,
            kind=Kind.END_TO_END,
            simulated=False,
            unit=unit,
            path=args.ledger,
        )
    found = Ledger.read(args.ledger)
    if found.unit is not unit:
        raise ConfigError(
            f"The ledger {args.ledger} is per {found.unit}, and these questions are per {unit}. "
            "Give another ledger, or --person where each person has one row that counts."
        )
    return found


def _columns(args: Namespace, names: list[str]) -> list[npt.NDArray[np.float64]]:
    found, persons = numbers(args.file, names, dialect(args), person=args.person)
    if args.person is None:
        return found
    first = first_of_each(persons)
    return [values[first] for values in found]


def _bounds(text: str) -> tuple[str, tuple[float, float]]:
    name, _, bounds = text.rpartition("=")
    low, _, high = bounds.partition(":")
    try:
        return name, (float(low), float(high))
    except ValueError:
        raise ConfigError(
            f"Expected --within COLUMN=LOW:HIGH, such as age=0:130, got {text!r}."
        ) from None
