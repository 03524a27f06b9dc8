"""The measures by which a model is judged: the one list, which rows, tables and pages follow.

A measure is one entry of ``MEASURES``. Its name is the second half of a row's key
(``private_accuracy``), its title is what a reader sees. This module imports neither torch nor
NumPy, so that reading a run stays quick; a measure's arithmetic imports what it needs.
docs/reference/measures.md defines each one. A model that has diverged, whose logits are not finite,
has an accuracy and nothing else.

With two classes, class 1 is the positive one. With more, AUROC and average precision are means over
classes, each against the rest; classes that the test set lacks are left out.

``Curve`` has the scores against the truth at every threshold; one sort gives the areas and
trade-offs. scikit-learn computes the same and checks its input again for every curve, which takes
most of its time with many classes; the tests hold each value to scikit-learn's.

``resample`` has every measure on bootstrap samples of persons, and ``interval`` what follows. A
sample is a list of multiplicities: how often each example was drawn. A measure of the sample is the
measure of the examples with these weights, so all samples share one sort of the scores and one pass
over the multiplicities. The tests hold each value to the measure of the rows drawn.

Other tasks than classification have measures of their own (``of``), and some in common with it.
Their arithmetic is in ``proxyfl.outcomes``: a task's ``Outcomes`` give every measure for any
weights of the examples, of which the value is the one with weights of 1.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from proxyfl.errors import ConfigError
from proxyfl.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, TIME_TO_EVENT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Counts = NDArray[np.float32]

_ROUNDING = 1e-12
"""A rate that equals the one asked for up to rounding counts."""


@dataclass(frozen=True)
class Curve:
    """The positives and the negatives that score at least as high as each threshold, from the
    highest score to the lowest, along the last axis. Where there are not some of both, values mean
    nothing."""

    positives: "Array"
    negatives: "Array"

    @classmethod
    def of(
        cls,
        scores: "NDArray[Any]",
        positive: "NDArray[np.bool_]",
        weights: "NDArray[Any] | None" = None,
    ) -> "Curve":
        """Returns the curve of some scores, of which ``positive`` belong to positives; equal scores
        share a threshold.

        With ``weights`` (scores, samples) it has a curve for each sample, in which a score counts
        as often as its weight says. These leave out thresholds that no area or trade-off depends
        on: those that add negatives only and are followed by one that does the same."""
        import numpy as np

        order = np.argsort(-scores, kind="stable")
        changes = np.flatnonzero(np.diff(scores[order]))
        ends = np.append(changes, len(order) - 1)
        if weights is None:
            positives = np.cumsum(positive[order], dtype=float)[ends]
            return cls(positives, ends + 1 - positives)
        places = np.flatnonzero(positive[order])
        of_places = np.searchsorted(places, ends, side="right")  # positives up to each threshold
        adds = np.diff(of_places, prepend=0) > 0
        kept = adds | np.append(adds[1:], True)
        everyone = _sums(weights, order, ends[kept] + 1)
        positives = _sums(weights, order[places], of_places[kept])
        return cls(positives, everyone - positives)

    def auroc(self) -> "Array":
        """The area under true against false positives, by trapezoids."""
        import numpy as np

        steps = np.diff(self.negatives, prepend=0)
        heights = self.positives - np.diff(self.positives, prepend=0) / 2
        pairs = self.positives[..., -1] * self.negatives[..., -1]
        area: Array = (steps * heights).sum(-1) / pairs
        return area

    def average_precision(self) -> "Array":
        """The precision at each threshold, weighted by the positives that the threshold adds."""
        import numpy as np

        said = self.positives + self.negatives
        precision = np.divide(self.positives, said, out=np.zeros_like(said), where=said > 0)
        steps = np.diff(self.positives, prepend=0)
        area = (steps * precision).sum(-1)
        mean_precision: Array = area / self.positives[..., -1]
        return mean_precision

    def sensitivity_at(self, specificity: float) -> "Array":
        """The largest share of positives found while at least ``specificity`` of the negatives are
        told right."""
        import numpy as np

        allowed = _rates(self.negatives) <= 1 - specificity + _ROUNDING
        rates = np.where(allowed, _rates(self.positives), 0.0)
        sensitivity: Array = rates.max(-1)
        return sensitivity

    def specificity_at(self, sensitivity: float) -> "Array":
        """The largest share of negatives told right while at least ``sensitivity`` (above 0) of the
        positives are found."""
        import numpy as np

        enough = _rates(self.positives) >= sensitivity - _ROUNDING
        rates = np.where(enough, _rates(self.negatives), 1.0)
        best: Array = 1 - rates.min(-1)
        return best


def _sums(weights: "NDArray[Any]", rows: "NDArray[np.int64]", ends: "NDArray[np.int64]") -> "Array":
    """Returns the sums of the weights of the first ``ends`` rows (samples, ends)."""
    import numpy as np
    from scipy.sparse import csr_array

    # a product with a sparse matrix: the rows are added where they lie, without a sorted copy
    ones = np.ones(len(rows), dtype=weights.dtype)
    parts = csr_array((ones, rows, np.append(0, ends)), (len(ends), len(weights))) @ weights
    sums: Array = np.cumsum(parts.T, axis=1, dtype=float)
    return sums


def _rates(counts: "Array") -> "Array":
    rates: Array = counts / counts[..., -1:]
    return rates


@dataclass(frozen=True)
class Predictions:
    """A model's logits, one row per example, and the true classes.

    ``offsets`` are added to the logits for probabilities, and not for decisions: they put a public
    prevalence back (``federation.prevalence``)."""

    logits: "NDArray[Any]"
    labels: "NDArray[np.int64]"
    offsets: tuple[float, ...] = ()

    @property
    def classes(self) -> int:
        """The number of classes that the model tells apart."""
        return int(self.logits.shape[1])

    @cached_property
    def probabilities(self) -> "NDArray[np.float64]":
        """The softmax of the logits: one row of probabilities per example."""
        from scipy.special import softmax

        probabilities: NDArray[np.float64] = softmax(self._stable_logits, axis=1)
        return probabilities

    @property
    def _stable_logits(self) -> "NDArray[np.float64]":
        import numpy as np

        logits: NDArray[np.float64] = self.logits.astype(float)
        return logits + np.array(self.offsets) if self.offsets else logits

    def taken(self, rows: "NDArray[Any]") -> "Predictions":
        """The predictions for some of the examples; a row may be taken more than once."""
        return Predictions(self.logits[rows], self.labels[rows], self.offsets)

    @cached_property
    def finite(self) -> bool:
        """There are examples, and the model gave each a number for every class."""
        import numpy as np

        return bool(len(self.labels) and np.isfinite(self.logits).all())

    def curve(self, label: int) -> Curve | None:
        """``label`` against the rest, by its probability; None where the test set lacks either."""
        is_label = self.labels == label
        if not self.finite or is_label.all() or not is_label.any():
            return None
        known = self._curves
        if label not in known:
            scores = self.probabilities[:, label]
            known[label] = Curve.of(scores, is_label)
        return known[label]

    @cached_property
    def _curves(self) -> dict[int, Curve]:
        return {}

    @cached_property
    def squares(self) -> "NDArray[np.float64]":
        """Each example's squared error: of class 1's probability with two classes, else summed
        over the classes."""
        import numpy as np

        right = np.eye(self.classes)[self.labels]
        squares: NDArray[np.float64] = (self.probabilities - right) ** 2
        return squares[:, 1] if self.classes == 2 else squares.sum(1)

    @cached_property
    def losses(self) -> "NDArray[np.float64]":
        """Minus the logarithm of each example's true class's probability."""
        from scipy.special import logsumexp

        logits = self._stable_logits
        rows = range(len(self.labels))
        true = logits[rows, self.labels]
        losses: NDArray[np.float64] = logsumexp(logits, axis=1) - true
        return losses

    @cached_property
    def confusion(self) -> "NDArray[np.int64]":
        """``confusion[i, j]`` counts the examples of class i that were taken for class j."""
        import numpy as np

        predicted = self.logits.argmax(1)
        counts = np.bincount(
            self.labels * self.classes + predicted, minlength=self.classes * self.classes
        )
        return counts.reshape(self.classes, self.classes)


@dataclass(frozen=True)
class Measure:
    """One way to judge predictions. ``compute`` gives None where the measure is not defined."""

    name: str
    title: str
    compute: Callable[[Predictions], float | None]
    higher_is_better: bool = True
    tasks: tuple[str, ...] = (CLASSIFICATION,)
    """The kinds of task that have the measure; ``compute`` is for classification."""

    def gain(self, joined: float, alone: float) -> float:
        """The advantage of ``joined`` over ``alone``: positive is better for every measure."""
        return joined - alone if self.higher_is_better else alone - joined


def accuracy(predictions: Predictions) -> float | None:
    """The share of examples classified correctly."""
    total = int(predictions.confusion.sum())
    return float(predictions.confusion.trace()) / total if total else None


def per_class(predictions: Predictions) -> list[float | None]:
    """Accuracy within each true class; None for a class without test examples."""
    totals = predictions.confusion.sum(1).tolist()
    right = predictions.confusion.diagonal().tolist()
    shares = []
    for hits, total in zip(right, totals, strict=True):
        shares.append(hits / total if total else None)
    return shares


def macro_accuracy(predictions: Predictions) -> float | None:
    """The mean of the classes' accuracies (paper, appendix): every class counts the same."""
    seen = [value for value in per_class(predictions) if value is not None]
    return sum(seen) / len(seen) if seen else None


CURVES: dict[str, Callable[[Curve], Any]] = {
    "auroc": Curve.auroc,
    "average_precision": Curve.average_precision,
    "sensitivity_at_90_specificity": lambda curve: curve.sensitivity_at(0.9),
    "specificity_at_90_sensitivity": lambda curve: curve.specificity_at(0.9),
}
"""The measures that follow from a curve."""

AREAS = ("auroc", "average_precision")
"""Those of them that more than two classes have."""


def _measure_of_curve(name: str, title: str) -> Measure:
    """A measure of class 1 against class 0, or the mean of each class against the rest."""

    def compute(predictions: Predictions) -> float | None:
        two = predictions.classes == 2
        if not two and name not in AREAS:
            return None
        areas = []
        labels = [1] if two else range(predictions.classes)
        for label in labels:
            curve = predictions.curve(label)
            if curve is not None:
                areas.append(float(CURVES[name](curve)))
        return sum(areas) / len(areas) if areas else None

    kinds = (CLASSIFICATION, MULTILABEL) if name in AREAS else (CLASSIFICATION,)
    return Measure(name, title, compute, tasks=kinds)


def _of_task(name: str, title: str, task: str, *, higher_is_better: bool = False) -> Measure:
    """A measure of another task, which ``proxyfl.outcomes`` computes."""
    return Measure(name, title, lambda _: None, higher_is_better, (task,))


def brier(predictions: Predictions) -> float | None:
    """The mean squared error of the probabilities: of class 1 with two classes, else summed over
    the classes."""
    if not predictions.finite:
        return None
    return float(predictions.squares.mean())


def log_loss(predictions: Predictions) -> float | None:
    """Minus the mean logarithm of the true class's probability."""
    if not predictions.finite:
        return None
    return float(predictions.losses.mean())


def calibration(predictions: Predictions) -> list[tuple[float, float, int]]:
    """The calibration curve of class 1, or of the predicted class if there are more than two.

    For each tenth of [0, 1] that has examples: the mean probability, the share that came true, and
    the number of examples. Nothing of a model that has diverged."""
    import numpy as np

    if not predictions.finite:
        return []
    probabilities = predictions.probabilities
    if predictions.classes == 2:
        said = probabilities[:, 1]
        true = predictions.labels == 1
    else:
        said = probabilities.max(1)
        true = probabilities.argmax(1) == predictions.labels
    tenth = np.minimum((said * 10).astype(int), 9)
    curve = []
    for number in range(10):
        here = tenth == number
        if here.any():
            mean = float(said[here].mean())
            share = float(true[here].mean())
            curve.append((mean, share, int(here.sum())))
    return curve


def roc(predictions: Predictions, points: int = 100) -> list[tuple[float, float]]:
    """The ROC curve of class 1 of two: (false-positive rate, true-positive rate), from (0, 0) to
    (1, 1), thinned out to about ``points``. Nothing where there is no such curve."""
    import numpy as np

    curve = predictions.curve(1) if predictions.classes == 2 else None
    if curve is None:
        return []
    false = curve.negatives / curve.negatives[-1]
    true = curve.positives / curve.positives[-1]
    kept = np.unique(np.linspace(0, len(false) - 1, points).round().astype(int))
    points_of_curve = [(0.0, 0.0)]
    for place in kept:
        points_of_curve.append((round(float(false[place]), 4), round(float(true[place]), 4)))
    return points_of_curve


def majority_rate(labels: "NDArray[np.int64]") -> float:
    """The accuracy of always saying the commonest class."""
    import numpy as np

    return float(np.bincount(labels).max() / len(labels))


def default_measure(labels: "NDArray[np.int64]", classes: int) -> str:
    """The measure of a run that names none: accuracy where the classes are even, else AUROC for two
    classes and macro-accuracy for more.

    The classes are even if the commonest is at most ten points above its fair share."""
    if majority_rate(labels) <= 1 / classes + 0.1:
        return "accuracy"
    return "auroc" if classes == 2 else "macro_accuracy"


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("accuracy", "accuracy", accuracy),
        Measure("macro_accuracy", "macro-accuracy", macro_accuracy),
        _measure_of_curve("auroc", "AUROC"),
        _measure_of_curve("average_precision", "average precision"),
        _measure_of_curve("sensitivity_at_90_specificity", "sensitivity at 90 % specificity"),
        _measure_of_curve("specificity_at_90_sensitivity", "specificity at 90 % sensitivity"),
        Measure("brier", "Brier score", brier, False, (CLASSIFICATION, MULTILABEL)),
        Measure("log_loss", "log-loss", log_loss, False, (CLASSIFICATION, MULTILABEL)),
        _of_task("r2", "R squared", REGRESSION, higher_is_better=True),
        _of_task("mae", "mean absolute error / range", REGRESSION),
        _of_task("rmse", "root mean squared error / range", REGRESSION),
        _of_task("c_index", "C-index", TIME_TO_EVENT, higher_is_better=True),
        _of_task("time_auroc", "AUROC over time", TIME_TO_EVENT, higher_is_better=True),
        _of_task("integrated_brier", "integrated Brier score", TIME_TO_EVENT),
    )
}
"""Every measure that is recorded, in the order in which tables show them."""


def of(task: str) -> tuple[str, ...]:
    """The measures of a kind of task."""
    return tuple(name for name, measure in MEASURES.items() if task in measure.tasks)


def measure_for(name: str, task: str) -> str:
    """The measure called ``name``; ConfigError if the kind of task does not have it."""
    if name not in of(task):
        raise ConfigError(
            f"measure={name!r} is none of the task {task}, which has: {', '.join(of(task))}."
        )
    return name


DEFAULTS = {MULTILABEL: "auroc", REGRESSION: "r2", TIME_TO_EVENT: "c_index"}
"""The measure of a run that names none, for tasks other than classification."""

OWN = "own_"
"""Before a measure's name: the same measure on the test part of a client's own site."""


def names() -> list[str]:
    """Every name of a score: the measures, and each of them on a client's own test part."""
    return [*MEASURES, *(f"{OWN}{name}" for name in MEASURES)]


def named(name: str) -> Measure | None:
    """The measure of this name; None for one that this release does not know."""
    measure = MEASURES.get(name.removeprefix(OWN))
    if measure is None or not name.startswith(OWN):
        return measure
    return replace(measure, name=name, title=f"{measure.title}, own test part")


def better_by(name: str, joined: float | None, alone: float | None) -> float | None:
    """The advantage of the first score; None without two. In a measure of another release, more
    is better."""
    if joined is None or alone is None:
        return None
    known = named(name)
    return joined - alone if known is None else known.gain(joined, alone)


def is_lower_better(name: str) -> bool:
    """True for a measure of which less is better."""
    known = named(name)
    return known is not None and not known.higher_is_better


def title_of(name: str) -> str:
    """A measure as readers see it; the name of one that this release does not know."""
    measure = named(name)
    return name if measure is None else measure.title


Interval = tuple[float, float]

_TAIL = (1 - 0.95) / 2
"""The share of values on either side of the middle 95 %."""

_CELLS = 2**21
"""Multiplicities that are held at a time: 16 MB."""

_NEAR = 256
"""Examples whose multiplicities are converted at a time."""


def resample(
    predictions: Predictions, persons: "NDArray[np.int64] | None", *, times: int, seed: int
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
    by_measure: dict[str, list[float | None]] = {}
    for weights in samples(persons, times, seed):
        by_weights = weighted(predictions, weights)
        for name in of(CLASSIFICATION):
            if name in by_weights:
                values = known(by_weights[name])
            else:
                values = _one_by_one(name, predictions, weights)
            by_measure.setdefault(name, []).extend(values)
    return by_measure


def known(values: "Array") -> list[float | None]:
    """Values as plain numbers, None for NaN."""
    import numpy as np

    return [None if np.isnan(value) else float(value) for value in values]


def _one_by_one(name: str, predictions: Predictions, weights: "Counts") -> list[float | None]:
    """A measure that somebody added to the list, on the rows of each sample."""
    import numpy as np

    rows = np.arange(len(predictions.labels))
    values = []
    for drawn in weights.T:
        sample = predictions.taken(np.repeat(rows, drawn.astype(int)))
        values.append(MEASURES[name].compute(sample))
    return values


def interval(values: Iterable[float | None]) -> Interval | None:
    """The middle 95 % of bootstrap values; None where there are none."""
    defined = sorted(value for value in values if value is not None)
    if not defined:
        return None
    return _quantile(defined, _TAIL), _quantile(defined, 1 - _TAIL)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """NumPy's quantile, to the last bit. A program that only reads runs does not wait for NumPy."""
    place = share * (len(ordered) - 1)
    before = int(place)
    part = place - before
    low = ordered[before]
    high = ordered[min(before + 1, len(ordered) - 1)]
    if part >= 0.5:
        return high - (high - low) * (1 - part)
    return low + (high - low) * part


def weighted(predictions: Predictions, weights: "Counts") -> dict[str, "Array"]:
    """Returns every measure, for each column of ``weights``: the examples' multiplicities in one
    sample. NaN where a measure is not defined."""
    import numpy as np

    labels = predictions.labels
    right = predictions.logits.argmax(1) == labels
    here = labels == np.arange(predictions.classes)[:, None]
    rows = [np.ones(len(labels)), right, *here, *(here & right)]
    if predictions.finite:
        rows += [predictions.squares, predictions.losses]
    with np.errstate(invalid="ignore", divide="ignore"):
        sums = _weighted_sums(np.stack(rows), weights)
        count = sums[0]
        classes = slice(2, 2 + predictions.classes)
        of_class = sums[classes.stop : classes.stop + predictions.classes] / sums[classes]
        by_measure = {"accuracy": sums[1] / count, "macro_accuracy": _over_classes(of_class)}
        if not predictions.finite:  # a model that diverged
            nothing = np.full(weights.shape[1], np.nan)
            of_probabilities = (*CURVES, "brier", "log_loss")
            return by_measure | dict.fromkeys(of_probabilities, nothing)
        by_measure |= _of_curves(predictions, weights)
        by_measure["brier"], by_measure["log_loss"] = sums[-2] / count, sums[-1] / count
    return by_measure


def _weighted_sums(rows: "NDArray[Any]", weights: "Counts") -> "Array":
    """rows (values, examples) times weights (examples, samples), in float64; weights are converted
    a piece at a time, which stays in the cache."""
    import numpy as np

    sums = np.zeros((len(rows), weights.shape[1]))
    for start in range(0, len(weights), _NEAR):
        part = slice(start, start + _NEAR)
        sums += rows[:, part] @ weights[part].astype(float)
    return sums


def samples(persons: "NDArray[np.int64]", times: int, seed: int) -> Iterator["Counts"]:
    """Blocks of multiplicities (examples, samples): a person's examples are drawn together."""
    import numpy as np

    names, number_of = np.unique(persons, return_inverse=True)
    generator = np.random.default_rng(seed)
    at_once = max(1, _CELLS // len(persons))
    for start in range(0, times, at_once):
        samples = min(at_once, times - start)
        counts = np.empty((len(names), samples), dtype=np.float32)  # whole numbers, small: exact
        for sample in range(samples):
            drawn = generator.integers(len(names), size=len(names))
            counts[:, sample] = np.bincount(drawn, minlength=len(names))
        yield counts[number_of]


def _of_curves(predictions: Predictions, weights: "Counts") -> dict[str, "Array"]:
    """The measures of curves: of class 1 with two classes, else the mean of each against the
    rest; the two trade-offs with two classes only."""
    import numpy as np

    two = predictions.classes == 2
    labels = [1] if two else range(predictions.classes)
    by_curve: dict[str, list[Array]] = {name: [] for name in CURVES}
    for label in labels:
        scores = predictions.probabilities[:, label]
        curve = Curve.of(scores, predictions.labels == label, weights)
        defined = (curve.positives[:, -1] > 0) & (curve.negatives[:, -1] > 0)
        for name, compute in CURVES.items():
            values = np.full(len(defined), np.nan)
            if two or name in AREAS:
                values = np.where(defined, compute(curve), np.nan)
            by_curve[name].append(values)
    return {name: _over_classes(np.stack(values)) for name, values in by_curve.items()}


def _over_classes(values: "Array") -> "Array":
    """The mean over the classes (rows) that a sample has; NaN where it has none."""
    import numpy as np

    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(0)
    mean: Array = total / known.sum(0)
    return mean
