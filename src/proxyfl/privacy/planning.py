"""Settings that fit a budget: batch sizes, noise and rounds, and how large a proxy may be under
that noise.

A step adds noise of norm about sigma C sqrt(P) to a sum of B clipped gradients, whose norm is at
most B C. The ratio

    alone        sigma sqrt(P) / B
    averaged     sigma sqrt(P) / (B sqrt(K))     over the proxies of K clients, whose noise is
                                                 independent

does not depend on C or on the data; the demo runs at 1.7 alone and 0.6 averaged over its eight
clients. A step may well be louder than its sum, since noise adds up more slowly than what steps
agree on. Over T steps of all clients

    in all       sigma sqrt(P) / (B sqrt(K T))

relates the noise to the longest sum that is possible at all: every clipped gradient of full length
and in the same direction. Above one, the noise moves the proxy farther than any data could. We call
such a proxy hopeless. Real gradients disagree, so a proxy below one may still learn nothing.

In a masked sum (``privacy.coalition``) each client adds 1/h of the noise's variance, so all of
these are less by sqrt(h).

Guarantees: every option respects the budget by the PLD accountant (noise is rounded up); what
cannot be had is refused with ConfigError.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from proxyfl import _validate
from proxyfl.errors import ConfigError
from proxyfl.privacy.accounting import Segment, pld_of
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.coalition import Coalition

ROUNDS = (10, 30, 100)
FRACTIONS = (0.01, 0.03, 0.1, 0.3)
"""Batch sizes that are tried, as parts of the examples."""

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
"""Sizes of proxies, in parameters, that are judged."""


@dataclass(frozen=True)
class Option:
    """A setting that fits the budget: rounds of one pass each, over batches of this size."""

    batch: int
    rounds: int
    steps: int
    noise_multiplier: float
    honest: int = 1
    """The number of clients of a masked sum whose noise hides each other's; 1 without one."""
    epsilon_all_others: float | None = None
    """Epsilon if all others collude, where that differs."""

    def ratio(self, parameters: int, clients: int = 1) -> float:
        """A step's noise relative to the longest clipped sum, averaged over ``clients``."""
        return self.noise_multiplier * math.sqrt(parameters / clients / self.honest) / self.batch

    def in_all(self, parameters: int, clients: int = 1) -> float:
        """The whole training's noise relative to the longest sum of all its clipped gradients."""
        return self.ratio(parameters, clients) / math.sqrt(self.steps)

    def largest_proxy(self, clients: int = 1) -> int:
        """The most parameters that are not hopeless here."""
        longest = self.batch / self.noise_multiplier
        return math.floor(clients * self.honest * self.steps * longest**2)


def options(
    examples: int,
    epsilon: float,
    delta: float,
    *,
    rounds: Sequence[int] = ROUNDS,
    coalition: Coalition | None = None,
) -> list[Option]:
    """The settings that fit the budget, by rounds and batch size; rounds of one pass over the
    examples. With a ``coalition`` they are those of a masked sum, and the budget is for it."""
    _validate.whole("examples", examples)
    _validate.number("budget-epsilon", epsilon, above=0)
    _validate.number("delta", delta, above=0, below=1)
    check_small(delta, examples)
    plans = []
    for count in rounds:
        _validate.whole("rounds", count)
        for batch in _batches(examples):
            steps = count * (examples // batch)
            rate = batch / examples
            noise = noise_for(
                epsilon, sampling_rate=rate, steps=steps, delta=delta, coalition=coalition
            )
            honest, all_others = 1, None
            if coalition is not None:
                honest = coalition.honest
                all_others = pld_of([Segment(rate, noise, steps, coalition).alone], delta)
            plans.append(Option(batch, count, steps, noise, honest, all_others))
    return plans


def check_small(delta: float, examples: int) -> None:
    """Raise ConfigError for a delta above 1/N."""
    if delta > 1 / examples:
        raise ConfigError(
            f"Expected delta <= 1/N = {1 / examples:.3g}, got delta={delta}. A program that "
            "publishes one record outright would meet such a guarantee; use 1/(10 N) or less."
        )


def most_parameters(plans: Sequence[Option], clients: int) -> int:
    """The largest proxy that is not hopeless under some option."""
    return max(option.largest_proxy(clients) for option in plans)


def _batches(examples: int) -> list[int]:
    return sorted({max(1, round(fraction * examples)) for fraction in FRACTIONS})
