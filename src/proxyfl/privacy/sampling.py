"""Poisson sampling: which examples take part in a step, and at which rate.

An example is here what the promise is about (``guarantee.Unit``): a record, or a person with all of
their records. Where persons are the unit, every number of examples is a number of persons.

Every accountant in this package assumes exactly this sampling, so no other is offered: a shuffled
epoch of fixed-size batches looks similar and has a different, larger cost.

Where the rate comes from decides which datasets an epsilon compares. The accountants compare two
trainings at *one* rate. If the rate is B/n with the client's own n, one record more changes
everybody's rate: for n = B = 100, noise 4 and 50 steps the accountants say 6.45 at delta 1/1000
where at least 16.8 holds between the datasets of 100 and 101 records. So B/n promises less:

    sampling_rate given                  add-or-remove: the rate does not follow from the data
    examples declared, rate B/declared   add-or-remove: the declared number is a public constant
    neither, rate B/n                    zero-out: n is public

A declared number is one that was written down, not counted again at each start. One that is the
true number to the last digit tells that number once, to anybody who learns of it: declare a rounded
one.

The divisor of the noisy sum is ``batch_size`` in all three, which does not follow from the data.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxyfl import _validate
from proxyfl.errors import ConfigError
from proxyfl.privacy.guarantee import Relation, Unit
from proxyfl.settings import DP

if TYPE_CHECKING:
    from torch import Tensor

    from proxyfl.seeds import Randomness


@dataclass(frozen=True)
class Sampling:
    """The way batches are drawn. ``batch_size`` is the divisor of a step's sum, and the size of a
    batch on average if the client has ``batch_size / rate`` examples.

    ``examples`` is the public number of examples that the rate follows from; None where the rate
    was given. ``declared`` says that this number was declared, and not counted."""

    rate: float
    batch_size: int
    examples: int | None
    declared: bool = False

    @property
    def relation(self) -> Relation:
        """The two datasets that an epsilon for this sampling compares."""
        if self.examples is None or self.declared:
            return Relation.ADD_OR_REMOVE
        return Relation.ZERO_OUT

    @property
    def steps_per_pass(self) -> int:
        """The steps that draw each example once on average, rounded down, at least one."""
        if self.examples is None:
            return max(1, math.floor(1 / self.rate))
        return max(1, self.examples // self.batch_size)

    def default_delta(self) -> float:
        """1/n for the public n; ConfigError where there is none."""
        if self.examples is None:
            raise ConfigError(
                "With privacy.sampling_rate, privacy.delta must be set: its default 1/n would "
                "follow from the data. Use 1/(10 n) for a rounded n, or less."
            )
        return 1 / max(2, self.examples)


def sampling_for(batch_size: int, examples: int, dp: DP | None = None) -> Sampling:
    """The sampling of a client with ``examples`` records, or persons where ``dp`` protects those.

    With ``dp.sampling_rate`` nothing follows from ``examples``. With ``dp.examples`` that public
    number stands in its place; it may be rounded."""
    dp = dp or DP()
    _validate.whole("batch_size", batch_size)
    if dp.sampling_rate is not None:
        return Sampling(dp.sampling_rate, batch_size, None)
    public = dp.examples or examples
    if batch_size > public:
        what = "the declared" if dp.declared else "the client's"
        raise ConfigError(
            f"Expected a batch_size of at most {what} {public} {Unit(dp.unit).plural}, got "
            f"batch_size={batch_size}."
        )
    return Sampling(batch_size / public, batch_size, public, dp.declared)


def cautious_delta(examples: int) -> float:
    """1/(10 n), rounded down to a power of ten: the delta of a real site that states none.

    At 1/n a program that publishes one record at random would pass for private."""
    digits = len(str(10 * _validate.whole("examples", examples) - 1))
    return float(f"1e-{digits}")


def public_number(examples: int) -> int | None:
    """A number to declare for ``examples`` examples: rounded down to two digits, to one below 100.

    None below 10, where one record more would show in any rounding."""
    _validate.whole("examples", examples, at_least=0)
    if examples < 10:
        return None
    unit = int("1" + max(1, len(str(examples)) - 2) * "0")
    return examples - examples % unit


def poisson(examples: int, rate: float, source: "Randomness") -> "Tensor":
    """The sorted int64 indices of one batch drawn from ``range(examples)``.

    Guarantees: each example is in the batch with probability ``rate``, whatever happens to any
    other example and whatever was drawn before. The batch may be empty, and an empty batch is a
    step like any other: its noise is added and its cost is charged, because that it was empty says
    something about the data."""
    import torch

    _validate.whole("examples", examples)
    _validate.number("sampling_rate", rate, above=0, at_most=1)
    # uniform() never returns 1, so that a rate of 1 takes everyone.
    return torch.nonzero(source.uniform(examples) < rate).view(-1)
