"""Every measure on bootstrap samples of persons, and the intervals that follow.

A sample is a list of multiplicities: how often each example was drawn. A measure of the sample is
the measure of the examples with these weights, so all samples share one sort of the scores. That
makes 200 samples of eight measures about as quick as a few calls of scikit-learn; the tests hold
each value to ``proxyfl.measures`` on the rows drawn.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from proxyfl.curves import Curve
from proxyfl.measures import AREAS, CURVES, MEASURES, Predictions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Interval = tuple[float, float]

_TAIL = (1 - 0.95) / 2
"""The share of values on either side of the middle 95 %."""

_CELLS = 2**21
"""Multiplicities that are held at a time: 16 MB."""


def resampled(
    predictions: Predictions,
    persons: "NDArray[np.int64] | None",
    *,
    times: int,
    seed: int,
) -> dict[str, list[float | None]]:
    """Every measure on ``times`` bootstrap samples of persons (of examples, where nobody knows who
    is who); None where it is not defined.

    Equal persons, ``times`` and ``seed`` give the same samples for every model. So the difference
    of two models' lists, place by place, is a sample of their difference."""
    import numpy as np

    if not len(predictions.labels):
        return {}
    if persons is None:
        persons = np.arange(len(predictions.labels))
    found: dict[str, list[float | None]] = {}
    for weights in _samples(persons, times, seed):
        by_weights = weighted(predictions, weights)
        for name in MEASURES:
            if name in by_weights:
                values = _known(by_weights[name])
            else:
                values = _one_by_one(name, predictions, weights)
            found.setdefault(name, []).extend(values)
    return found


def _known(values: "Array") -> list[float | None]:
    import numpy as np

    return [None if np.isnan(value) else float(value) for value in values]


def _one_by_one(
    name: str,
    predictions: Predictions,
    weights: "Array",
) -> list[float | None]:
    """A measure that somebody added to the list, on the rows of each sample."""
    import numpy as np

    rows = np.arange(len(predictions.labels))
    found = []
    for drawn in weights:
        sample = predictions.taken(np.repeat(rows, drawn.astype(int)))
        found.append(MEASURES[name].compute(sample))
    return found


def interval(values: Iterable[float | None]) -> Interval | None:
    """The middle 95 % of bootstrap values; None where there are none."""
    defined = sorted(value for value in values if value is not None)
    if not defined:
        return None
    return _quantile(defined, _TAIL), _quantile(defined, 1 - _TAIL)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """NumPy's quantile, to the last bit. Whoever reads runs does not wait for NumPy."""
    place = share * (len(ordered) - 1)
    before = int(place)
    part = place - before
    low = ordered[before]
    high = ordered[min(before + 1, len(ordered) - 1)]
    if part >= 0.5:
        return high - (high - low) * (1 - part)
    return low + (high - low) * part


def weighted(predictions: Predictions, weights: "Array") -> dict[str, "Array"]:
    """Every measure, for each row of ``weights``: the examples' multiplicities in one sample. NaN
    where a measure is not defined."""
    import numpy as np

    labels = predictions.labels
    right = predictions.logits.argmax(1) == labels
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {"accuracy": _mean(weights, right)}
        by_class = []
        for label in range(predictions.classes):
            here = labels == label
            by_class.append(_mean(weights[:, here], right[here]))
        found["macro_accuracy"] = _over_classes(by_class)
        if not predictions.finite:  # a model that diverged
            nothing = np.full(len(weights), np.nan)
            of_probabilities = (*CURVES, "brier", "log_loss")
            return found | dict.fromkeys(of_probabilities, nothing)
        found |= _of_curves(predictions, weights)
        found["brier"] = _mean(weights, predictions.squares)
        found["log_loss"] = _mean(weights, predictions.losses)
    return found


def _samples(
    persons: "NDArray[np.int64]",
    times: int,
    seed: int,
) -> Iterator["Array"]:
    """Blocks of multiplicities (samples, examples): a person's examples are drawn together."""
    import numpy as np

    names, number_of = np.unique(persons, return_inverse=True)
    generator = np.random.default_rng(seed)
    at_once = max(1, _CELLS // len(persons))
    for start in range(0, times, at_once):
        samples = min(at_once, times - start)
        block = np.empty((samples, len(persons)))
        for row in block:
            drawn = generator.integers(len(names), size=len(names))
            counts = np.bincount(drawn, minlength=len(names))
            row[:] = counts[number_of]
        yield block


def _of_curves(predictions: Predictions, weights: "Array") -> dict[str, "Array"]:
    """The measures of curves: of class 1 with two classes, else the mean of each against the
    rest; the two trade-offs with two classes only."""
    import numpy as np

    two = predictions.classes == 2
    found: dict[str, list[Array]] = {name: [] for name in CURVES}
    labels = [1] if two else range(predictions.classes)
    for label in labels:
        scores = predictions.probabilities[:, label]
        curve = Curve.of(scores, predictions.labels == label, weights)
        some_positives = curve.positives[:, -1] > 0
        some_negatives = curve.negatives[:, -1] > 0
        both = some_positives & some_negatives
        for name, compute in CURVES.items():
            defined = both if two or name in AREAS else np.zeros_like(both)
            values = np.where(defined, compute(curve), np.nan)
            found[name].append(values)
    return {name: _over_classes(values) for name, values in found.items()}


def _mean(weights: "Array", values: "NDArray[Any]") -> "Array":
    """The weighted mean in each sample; NaN without examples."""
    sums = weights @ values.astype(float)
    found: Array = sums / weights.sum(1)
    return found


def _over_classes(values: "list[Array]") -> "Array":
    """The mean over the classes that a sample has; NaN where it has none."""
    import numpy as np

    stacked = np.stack(values)
    known = ~np.isnan(stacked)
    total = np.where(known, stacked, 0.0).sum(0)
    found: Array = total / known.sum(0)
    return found
