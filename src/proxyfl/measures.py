"""The measures by which a model is judged: the one list, which rows, tables and pages follow.

A measure is one entry of ``MEASURES``. Its name is the second half of a row's key
(``private_accuracy``), its title is what a reader sees. This module imports neither torch nor
NumPy, so that reading a run stays quick; a measure's arithmetic imports what it needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
        """How many classes the model tells apart."""
        return int(self.logits.shape[1])

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

    def gain(self, joined: float, alone: float) -> float:
        """How much better ``joined`` is than ``alone``: positive is better for every measure."""
        return joined - alone if self.higher_is_better else alone - joined


def accuracy(predictions: Predictions) -> float | None:
    """The share of examples classified correctly."""
    total = int(predictions.confusion.sum())
    return float(predictions.confusion.trace()) / total if total else None


def per_class(predictions: Predictions) -> list[float | None]:
    """Accuracy within each true class; None for a class without test examples."""
    totals = predictions.confusion.sum(1).tolist()
    right = predictions.confusion.diagonal().tolist()
    return [hits / total if total else None for hits, total in zip(right, totals, strict=True)]


def macro_accuracy(predictions: Predictions) -> float | None:
    """The mean of the classes' accuracies (paper, appendix): every class counts the same."""
    seen = [value for value in per_class(predictions) if value is not None]
    return sum(seen) / len(seen) if seen else None


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("accuracy", "accuracy", accuracy),
        Measure("macro_accuracy", "macro-accuracy", macro_accuracy),
    )
}
"""Every measure that is recorded, in the order in which tables show them."""
