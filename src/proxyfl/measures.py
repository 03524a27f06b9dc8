"""The measures by which a model is judged: the one list, which rows, tables and pages follow.

A measure is one entry of ``MEASURES``. Its name is the second half of a row's key
(``private_accuracy``), its title is what a reader sees. This module imports neither torch nor
NumPy, so that reading a run stays quick; a measure's arithmetic imports what it needs.
docs/measures.md defines each one. A model that has diverged, whose logits are not finite, has an
accuracy and nothing else.

With two classes, class 1 is the positive one. With more, AUROC and average precision are means over
classes, each against the rest; classes that the test set lacks are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from proxyfl.curves import Curve

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Predictions:
    """A model's logits, one row per example, and the true classes."""

    logits: "NDArray[Any]"
    labels: "NDArray[np.int64]"

    @property
    def classes(self) -> int:
        """The number of classes that the model tells apart."""
        return int(self.logits.shape[1])

    @cached_property
    def probabilities(self) -> "NDArray[np.float64]":
        """The softmax of the logits: one row of probabilities per example."""
        from scipy.special import softmax

        logits = self.logits.astype(float)
        found: NDArray[np.float64] = softmax(logits, axis=1)
        return found

    def taken(self, rows: "NDArray[Any]") -> "Predictions":
        """The predictions for some of the examples; a row may be taken more than once."""
        return Predictions(self.logits[rows], self.labels[rows])

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

        logits = self.logits.astype(float)
        rows = range(len(self.labels))
        true = logits[rows, self.labels]
        found: NDArray[np.float64] = logsumexp(logits, axis=1) - true
        return found

    @cached_property
    def confusion(self) -> "NDArray[np.int64]":
        """``confusion[i, j]`` counts the examples of class i that were taken for class j."""
        import numpy as np

        predicted = self.logits.argmax(1)
        counts = np.bincount(
            self.labels * self.classes + predicted,
            minlength=self.classes * self.classes,
        )
        return counts.reshape(self.classes, self.classes)


@dataclass(frozen=True)
class Measure:
    """One way to judge predictions. ``compute`` gives None where the measure is not defined."""

    name: str
    title: str
    compute: Callable[[Predictions], float | None]
    higher_is_better: bool = True

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
        found = []
        labels = [1] if two else range(predictions.classes)
        for label in labels:
            curve = predictions.curve(label)
            if curve is not None:
                found.append(float(CURVES[name](curve)))
        return sum(found) / len(found) if found else None

    return Measure(name, title, compute)


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
        _measure_of_curve(
            "sensitivity_at_90_specificity", "sensitivity at 90 % specificity"
        ),
        _measure_of_curve(
            "specificity_at_90_sensitivity", "specificity at 90 % sensitivity"
        ),
        Measure("brier", "Brier score", brier, higher_is_better=False),
        Measure("log_loss", "log-loss", log_loss, higher_is_better=False),
    )
}
"""Every measure that is recorded, in the order in which tables show them."""

OWN = "own_"
"""Before a measure's name: the same measure on the test part of a client's own site."""


def names() -> list[str]:
    """Every name of a score: the measures, and each of them on a client's own test part."""
    return [*MEASURES, *(f"{OWN}{name}" for name in MEASURES)]


def named(name: str) -> Measure | None:
    """The measure of this name; None for one that this release does not know."""
    found = MEASURES.get(name.removeprefix(OWN))
    if found is None or not name.startswith(OWN):
        return found
    return replace(found, name=name, title=f"{found.title}, own test part")


def better_by(
    name: str,
    joined: float | None,
    alone: float | None,
) -> float | None:
    """The advantage of the first score; None without two. In a measure of another release, more
    is better."""
    if joined is None or alone is None:
        return None
    known = named(name)
    return joined - alone if known is None else known.gain(joined, alone)


def title_of(name: str) -> str:
    """A measure as readers see it; the name of one that this release does not know."""
    found = named(name)
    return name if found is None else found.title
