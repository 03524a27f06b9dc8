"""A model's predictions on a test set, judged by every measure of ``proxyfl.measures``."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from proxyfl._examples import Examples
from proxyfl.data.examples import chunks
from proxyfl.measures import MEASURES, Predictions

CHUNK = 1000
"""Examples evaluated at a time: keeps a convolution's activations small."""


@dataclass(frozen=True)
class Score:
    """How good a model is: each measure's value (None where it is not defined), and the counts.

    ``confusion[i, j]`` counts the examples of class i that were taken for class j."""

    confusion: Tensor
    values: Mapping[str, float | None]

    @property
    def accuracy(self) -> float:
        """The share of examples classified correctly; 0 without examples."""
        return self.values["accuracy"] or 0.0

    @property
    def macro_accuracy(self) -> float:
        """The mean of the classes' accuracies: every class counts the same."""
        return self.values["macro_accuracy"] or 0.0


def judge(predictions: Predictions) -> Score:
    """The score of some predictions."""
    values = {name: measure.compute(predictions) for name, measure in MEASURES.items()}
    return Score(torch.from_numpy(predictions.confusion), values)


@torch.no_grad()
def evaluate(model: nn.Module, examples: Examples, device: str = "cpu") -> Score:
    """The score of ``model``, which is on ``device`` and is left in the mode it was in."""
    was_training = model.training
    model.eval()
    logits = [model(part.to(device)).float().cpu() for part in chunks(examples, CHUNK)]
    model.train(was_training)
    return judge(Predictions(torch.cat(logits).numpy(), examples.labels.numpy()))
