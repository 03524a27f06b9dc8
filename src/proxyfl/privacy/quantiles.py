r"""Quantiles of a column with differential privacy: a binary search that asks noisy questions.

To find the quantile p of values within public bounds [low, high], ask at the middle t

    f(t) = (1 - p) #{x <= t} - p #{x > t},     f(t) + N(0, sigma^2) < 0 ?

and continue in the upper half if so, else in the lower. f is zero at the quantile, so the number of
records is not needed. The middle of the last interval is the estimate.

Guarantee: ``queries`` questions cost what the ledger was charged for them. Proof: a record that is
added, removed or replaced by one without a value changes f(t) by at most max(p, 1 - p) < 1,
whatever t is. So each answer is a Gaussian mechanism of sensitivity 1 with noise multiplier sigma.
Which t comes next depends on earlier answers and on nothing else of the data, so the search is an
adaptive composition of such mechanisms: what the accountants add up for steps with sampling rate 1.
The comparison with zero and the estimate are post-processing: real noise is rounded down to a grid
that has 0 on it, so that floor(f + N) < 0 exactly if f + N < 0.

A value outside the bounds counts as the nearer bound. A missing value (NaN) counts nowhere.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from proxyfl._validate import number, whole
from proxyfl.errors import ConfigError, PrivacyError
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.noise import add_noise, clip_norm_for
from proxyfl.seeds import Randomness

Floats = npt.NDArray[np.float64]

HALVINGS = 8
"""Questions for one quantile: they narrow the bounds to a 256th."""

ROUND = 0
"""The round under which the ledger records the questions: they come before training."""


def queries(columns: int, quantiles: int, halvings: int = HALVINGS) -> int:
    """The number of questions that find so many quantiles of so many columns."""
    return whole("columns", columns) * whole("quantiles", quantiles) * whole("halvings", halvings)


def estimate(
    columns: Sequence[Floats],
    bounds: Sequence[tuple[float, float]],
    quantiles: Sequence[float],
    *,
    noise_multiplier: float,
    ledger: Ledger,
    source: Randomness,
    halvings: int = HALVINGS,
) -> list[list[float]]:
    """The ``quantiles`` of each column, searched within its bounds, in ascending order.

    Each array has one value per protected record: one per person, if a person has several rows.
    The cost of all questions is on the ledger before the first is asked."""
    if source.simulated != ledger.simulated:
        raise PrivacyError(
            "Expected a simulated ledger for seeded noise and a real ledger for real noise, got "
            f"ledger.simulated={ledger.simulated}. Use seeds.System with a real ledger."
        )
    for quantile in quantiles:
        _check_sensitivity(quantile, noise_multiplier, source)
    for low, high in bounds:
        if not number("low", low) < number("high", high):
            raise ConfigError(
                f"Expected bounds from low to high, got [{low:g}, {high:g}]. Swap them."
            )
    asked = queries(len(columns), len(quantiles), halvings)
    ledger.charge(ROUND, asked, 1.0, noise_multiplier)

    def is_negative(answer: float) -> bool:
        """With noise: one authorised step a question."""
        ledger.take(1.0, noise_multiplier)
        noisy = torch.tensor([answer], dtype=torch.float64)
        add_noise(noisy, noise_multiplier=noise_multiplier, clip_norm=1.0, source=source)
        return bool(noisy.item() < 0)

    estimates = []
    for values, within in zip(columns, bounds, strict=True):
        present = np.clip(values[~np.isnan(values)], *within)
        of_column = []
        for quantile in quantiles:
            middle = _search(present, quantile, within, is_negative, halvings)
            of_column.append(middle)
        estimates.append(sorted(of_column))
    return estimates


def _search(
    values: Floats,
    quantile: float,
    bounds: tuple[float, float],
    is_negative: Callable[[float], bool],
    halvings: int,
) -> float:
    """The middle of what is left of ``bounds`` after so many questions."""
    low, high = bounds
    for _ in range(halvings):
        middle = (low + high) / 2
        below = int((values <= middle).sum())
        above = len(values) - below
        if is_negative((1 - quantile) * below - quantile * above):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _check_sensitivity(quantile: float, noise_multiplier: float, source: Randomness) -> None:
    """Real noise rounds an answer to a grid; what a record changes must leave room for that."""
    number("quantile", quantile, above=0, below=1)
    room = clip_norm_for(source, 1.0, noise_multiplier=noise_multiplier, size=1)
    if max(quantile, 1 - quantile) > room:
        raise ConfigError(
            f"Expected a quantile further from 0 and 1, got {quantile}: one record could change an "
            "answer by more than the noise is made for."
        )
