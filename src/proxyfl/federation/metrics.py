"""A model's predictions on a test set, judged by every measure of ``proxyfl.measures``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxyfl import outcomes, params
from proxyfl._examples import Examples
from proxyfl.data.examples import chunks
from proxyfl.federation.prevalence import NOTHING, Meaning
from proxyfl.measures import (
    MEASURES,
    Interval,
    Predictions,
    calibration,
    interval,
    known,
    resample,
    roc,
    samples,
)
from proxyfl.measures import of as measures_of
from proxyfl.outcomes import Outcomes, RiskGroup, Survival
from proxyfl.tasks import CLASSIFICATION, Task

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
    measure on every bootstrap sample (``proxyfl.measures``). Tasks other than classification have
    no confusion counts and no ROC curve, and the calibration of ``outcomes``; a time to an event
    has survival curves instead, of all examples and of thirds by predicted risk.
    ``probabilities`` is what they are for (``prevalence.Meaning``), where a balance has moved
    them."""

    confusion: Tensor | None
    values: Mapping[str, float | None]
    own: "Score | None" = None
    calibration: Sequence[tuple[float, float, int]] = ()
    roc: Sequence[tuple[float, float]] = ()
    survival: Sequence[tuple[float, float, float]] = ()
    risk_groups: Sequence[RiskGroup] = ()
    intervals: Mapping[str, Interval | None] = field(default_factory=dict)
    resampled: Sequence[float | None] = ()
    probabilities: str = ""

    @property
    def accuracy(self) -> float:
        """The share of examples classified correctly; 0 without examples."""
        return self.values["accuracy"] or 0.0

    @property
    def macro_accuracy(self) -> float:
        """The mean of the classes' accuracies: every class counts the same."""
        return self.values["macro_accuracy"] or 0.0


def judge(predictions: Predictions | Outcomes) -> Score:
    """The score of some predictions."""
    if not isinstance(predictions, Predictions):
        return Score(None, _values(predictions))
    values = {}
    for name in measures_of(CLASSIFICATION):
        values[name] = MEASURES[name].compute(predictions)
    return Score(torch.from_numpy(predictions.confusion), values)


def _values(outputs: Outcomes) -> dict[str, float | None]:
    """Every measure of another task; None where the outputs of a model that diverged are no
    numbers, or where a measure is not defined."""
    once = np.ones((len(outputs), 1), dtype=np.float32)
    values = {}
    for name, value in outcomes.measured(outputs, once).items():
        (values[name],) = known(np.where(np.isfinite(value), value, np.nan))
    return values


def evaluate(
    model: nn.Module,
    examples: Examples,
    device: str = "cpu",
    task: Task | None = None,
    meaning: Meaning = NOTHING,
) -> Score:
    """The score of ``model``, which is on ``device`` and is left in the mode it was in."""
    score = judge(predict(model, examples, device, task, meaning))
    return replace(score, probabilities=str(meaning))


@torch.no_grad()
def predict(
    model: nn.Module,
    examples: Examples,
    device: str = "cpu",
    task: Task | None = None,
    meaning: Meaning = NOTHING,
) -> Predictions | Outcomes:
    """The outputs of ``model`` for all examples; it is left in the mode it was in. Without a task
    they are the logits of classes, whose probabilities are those of ``meaning``."""
    most = CHUNK_BYTES // (4 * math.prod(examples.shape))
    size = max(1, min(CHUNK, most))
    logits = []
    with params.evaluating(model):
        for part in chunks(examples, size):
            # a copy: a model that works in place must not change the examples
            logits.append(model(part.to(device, copy=True)).float().cpu())
    outputs = torch.cat(logits).numpy()
    labels = examples.labels.numpy()
    predictions = outcomes.predictions(outputs, labels, task or Task())
    if isinstance(predictions, Predictions) and meaning.offsets:
        return replace(predictions, offsets=meaning.offsets)
    return predictions


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
    task: Task = field(default_factory=Task)

    def __call__(
        self, model: nn.Module, client: int, *, last: bool = False, meaning: Meaning = NOTHING
    ) -> Score:
        """The score of ``model`` of ``client``; ``last`` if the client's last. Probabilities are
        those of ``meaning``."""
        predictions = predict(model, self.examples, self.device, self.task, meaning)
        groups = self.examples.groups
        persons = None if groups is None else groups.numpy()
        score = replace(self._score(predictions, persons, last), probabilities=str(meaning))
        if self.site is None:
            return score
        mine = (self.site == client).numpy()
        of_mine = None if persons is None else persons[mine]
        own = self._score(predictions.taken(mine), of_mine, last)
        return replace(score, own=replace(own, probabilities=str(meaning)))

    def _score(
        self, predictions: Predictions | Outcomes, persons: NDArray[np.int64] | None, last: bool
    ) -> Score:
        score = judge(predictions)
        if not last:
            return score
        if not isinstance(predictions, Predictions):
            return self._last(score, predictions, persons)
        values = resample(predictions, persons, times=RESAMPLED, seed=self.seed)
        return replace(
            score,
            calibration=calibration(predictions),
            roc=roc(predictions),
            intervals={name: interval(of_samples) for name, of_samples in values.items()},
            resampled=values.get(self.measure, ()),
        )

    def _last(
        self, score: Score, predictions: Outcomes, persons: NDArray[np.int64] | None
    ) -> Score:
        """A last score of another task, with intervals and what is drawn of it."""
        if not len(predictions):
            return score
        if np.isfinite(predictions.outputs).all():
            score = replace(score, calibration=predictions.calibration())
            if isinstance(predictions, Survival):
                curves = predictions.curves()
                score = replace(score, survival=curves, risk_groups=predictions.risk_groups())
        if persons is None:
            persons = np.arange(len(predictions))
        values: dict[str, list[float | None]] = {}
        for weights in samples(persons, RESAMPLED, self.seed):
            for name, of_samples in outcomes.measured(predictions, weights).items():
                values.setdefault(name, []).extend(known(of_samples))
        return replace(
            score,
            intervals={name: interval(of_samples) for name, of_samples in values.items()},
            resampled=values.get(self.measure, ()),
        )
