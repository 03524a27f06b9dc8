"""A model's predictions on a test set, judged by every measure of ``proxyfl.measures``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxyfl import params
from proxyfl._examples import Examples
from proxyfl.data.examples import chunks
from proxyfl.measures import MEASURES, Interval, Predictions, calibration, interval, resampled, roc

CHUNK = 1000
"""Examples evaluated at a time: keeps a convolution's activations small."""
CHUNK_BYTES = 2**27
"""Inputs that are in memory at once, where that is fewer: a test part need not fit into it."""

RESAMPLED = 200
"""Bootstrap samples behind an interval."""


@dataclass(frozen=True)
class Score:
    """A model's score: each measure's value (None where it is not defined), and the counts.

    ``confusion[i, j]`` counts the examples of class i that were taken for class j. ``own`` is the
    score on the client's own test part, where there is one. A last score also has a calibration
    curve, with two classes a ROC curve, each measure's 95 % interval over persons, and the run's
    measure on every bootstrap sample (``proxyfl.measures``)."""

    confusion: Tensor
    values: Mapping[str, float | None]
    own: "Score | None" = None
    calibration: Sequence[tuple[float, float, int]] = ()
    roc: Sequence[tuple[float, float]] = ()
    intervals: Mapping[str, Interval | None] = field(default_factory=dict)
    resampled: Sequence[float | None] = ()

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
    values = {}
    for name, measure in MEASURES.items():
        values[name] = measure.compute(predictions)
    return Score(torch.from_numpy(predictions.confusion), values)


def evaluate(model: nn.Module, examples: Examples, device: str = "cpu") -> Score:
    """The score of ``model``, which is on ``device`` and is left in the mode it was in."""
    return judge(predict(model, examples, device))


@torch.no_grad()
def predict(model: nn.Module, examples: Examples, device: str = "cpu") -> Predictions:
    """The logits of ``model`` for all examples; it is left in the mode it was in."""
    most = CHUNK_BYTES // (4 * math.prod(examples.shape))
    size = max(1, min(CHUNK, most))
    logits = []
    with params.evaluating(model):
        for part in chunks(examples, size):
            # a copy: a model that works in place must not change the examples
            logits.append(model(part.to(device, copy=True)).float().cpu())
    return Predictions(torch.cat(logits).numpy(), examples.labels.numpy())


@dataclass(frozen=True)
class Judge:
    """Scores a run's models: on the common test set and on the test part of each client's own site.

    ``site`` is the site of each test example, client i's site being i; None where nobody knows.
    ``measure`` is the run's, on which a last score is resampled."""

    examples: Examples
    measure: str
    seed: int
    site: Tensor | None = None
    device: str = "cpu"

    def __call__(self, model: nn.Module, client: int, *, last: bool = False) -> Score:
        """The score of ``model`` of ``client``; ``last`` if the client's last."""
        predictions = predict(model, self.examples, self.device)
        groups = self.examples.groups
        persons = None if groups is None else groups.numpy()
        score = self._score(predictions, persons, last)
        if self.site is None:
            return score
        mine = (self.site == client).numpy()
        of_mine = None if persons is None else persons[mine]
        own = self._score(predictions.taken(mine), of_mine, last)
        return replace(score, own=own)

    def _score(
        self, predictions: Predictions, persons: NDArray[np.int64] | None, last: bool
    ) -> Score:
        score = judge(predictions)
        if not last:
            return score
        values = resampled(predictions, persons, times=RESAMPLED, seed=self.seed)
        return replace(
            score,
            calibration=calibration(predictions),
            roc=roc(predictions),
            intervals={name: interval(found) for name, found in values.items()},
            resampled=values.get(self.measure, ()),
        )
