"""Scores against the truth at every threshold: the areas and trade-offs that follow from it.

One sort of the scores gives everything here. scikit-learn computes the same and checks its input
anew for every curve, which takes most of its time with many classes; the tests hold each value to
scikit-learn's.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_ROUNDING = 1e-12
"""A rate that equals the one asked for but for rounding counts."""


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
        weights: "Array | None" = None,
    ) -> "Curve":
        """The curve of some scores, of which ``positive`` belong to positives; equal scores share a
        threshold. With ``weights`` (samples, scores), a curve for each sample, in which a score
        counts as often as its weight says."""
        import numpy as np

        order = np.argsort(-scores, kind="stable")
        changes = np.flatnonzero(np.diff(scores[order]))
        ends = np.append(changes, len(order) - 1)
        if weights is None:
            positives = np.cumsum(positive[order], dtype=float)[ends]
            return cls(positives, ends + 1 - positives)
        drawn = weights[:, order]
        everyone = np.cumsum(drawn, axis=-1)
        positives = np.cumsum(drawn * positive[order], axis=-1)
        negatives = everyone - positives
        return cls(positives[:, ends], negatives[:, ends])

    def auroc(self) -> "Array":
        """The area under true against false positives, by trapezoids."""
        import numpy as np

        steps = np.diff(self.negatives, prepend=0)
        heights = self.positives - np.diff(self.positives, prepend=0) / 2
        pairs = self.positives[..., -1] * self.negatives[..., -1]
        found: Array = (steps * heights).sum(-1) / pairs
        return found

    def average_precision(self) -> "Array":
        """The precision at each threshold, weighted by the positives that the threshold adds."""
        import numpy as np

        said = self.positives + self.negatives
        precision = np.divide(
            self.positives, said, out=np.zeros_like(said), where=said > 0
        )
        steps = np.diff(self.positives, prepend=0)
        area = (steps * precision).sum(-1)
        found: Array = area / self.positives[..., -1]
        return found

    def sensitivity_at(self, specificity: float) -> "Array":
        """The largest share of positives found while at least ``specificity`` of the negatives are
        told right."""
        import numpy as np

        allowed = _rates(self.negatives) <= 1 - specificity + _ROUNDING
        rates = np.where(allowed, _rates(self.positives), 0.0)
        found: Array = rates.max(-1)
        return found

    def specificity_at(self, sensitivity: float) -> "Array":
        """The largest share of negatives told right while at least ``sensitivity`` (above 0) of the
        positives are found."""
        import numpy as np

        enough = _rates(self.positives) >= sensitivity - _ROUNDING
        rates = np.where(enough, _rates(self.negatives), 1.0)
        found: Array = 1 - rates.min(-1)
        return found


def _rates(counts: "Array") -> "Array":
    found: Array = counts / counts[..., -1:]
    return found
