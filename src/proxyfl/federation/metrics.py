"""How good a model is on a test set: counts of (true class, predicted class), and what follows from
them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

CHUNK = 1000
"""Examples evaluated at a time: keeps a convolution's activations small."""


@dataclass(frozen=True)
class Score:
    """``confusion[i, j]`` counts the examples of class i that were taken for class j."""

    confusion: Tensor

    @property
    def accuracy(self) -> float:
        """The share of examples classified correctly."""
        return float(self.confusion.diagonal().sum()) / max(1, int(self.confusion.sum()))

    @property
    def per_class(self) -> list[float | None]:
        """Accuracy within each true class; None for a class without test examples."""
        totals = self.confusion.sum(1).tolist()
        return [
            c / t if t else None
            for c, t in zip(self.confusion.diagonal().tolist(), totals, strict=True)
        ]

    @property
    def macro_accuracy(self) -> float:
        """The mean of the classes' accuracies (paper, appendix): a large class counts no more than
        a small one."""
        seen = [a for a in self.per_class if a is not None]
        return sum(seen) / max(1, len(seen))


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor, classes: int) -> Score:
    """The score of ``model``, which is left in the mode it was in."""
    was_training = model.training
    model.eval()
    predicted = torch.cat([model(part).argmax(1) for part in torch.split(x, CHUNK)])
    model.train(was_training)
    counts = torch.bincount(y * classes + predicted, minlength=classes * classes)
    return Score(counts.view(classes, classes).cpu())
