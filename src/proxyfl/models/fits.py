r"""Estimators that a site fits for tasks other than classification.

    regression       ridge regression, boosted regression trees
    multilabel       logistic regression, boosted trees: one model for each finding
    time-to-event    logistic regression on person-periods with a baseline for each interval
                     (proportional hazards in discrete time), boosted trees on person-periods with
                     the interval as a column

They go by the names that classes have, ``logistic`` (the linear one of each task) and ``trees``,
with the same penalties. ``Fits`` has what a site's choice needs: the candidates, a regression on
top of the proxy, and each example's loss out of fold.

Guarantees: those of ``models.estimators``; and every fit depends on the site's own examples, the
proxy's outputs and the seed alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxyfl.errors import ModelError
from proxyfl.losses import Hazards, objective_of
from proxyfl.models.estimators import (
    LOGISTIC,
    MANY,
    PENALTIES,
    SMALL_TREES,
    Array,
    Trees,
    tables_of,
)
from proxyfl.tasks import MULTILABEL, REGRESSION, Task

Fit = Callable[[Array, Array, int], nn.Module]
"""(inputs, targets, seed) -> a module that gives the task's outputs."""


@dataclass(frozen=True)
class OutcomeCandidate:
    """One estimator of a task, with its settings."""

    name: str
    fit: Fit


class Fits(Protocol):
    """The fitting and judging of a task's models at a site."""

    def targets(self, labels: Tensor) -> Array:
        """The examples' labels as the estimators and ``losses`` take them."""
        ...

    def strata(self, labels: Tensor) -> NDArray[np.int64]:
        """The groups that folds keep in proportion."""
        ...

    def candidates(self, spec: str) -> list[OutcomeCandidate]:
        """The estimators that ``spec`` names; ModelError for one that the task has not."""
        ...

    def residual(self, x: Array, y: Array, penalty: float, offset: Array) -> nn.Module:
        """A regression on top of given outputs."""
        ...

    def losses(self, outputs: Array, y: Array) -> Array:
        """The loss of each example after a fit of one scale and of each output's shift."""
        ...


def fits_of(task: Task) -> Fits:
    """The fits of a task that is no classification."""
    if task.kind == REGRESSION:
        return _OfValues(task)
    return _OfEvents(task)


def _parse(spec: str, task: Task) -> list[str]:
    names = [part.strip() for part in spec.split("|")]
    for name in names:
        if name not in (LOGISTIC, "trees"):
            raise ModelError(
                f"The estimator {name!r} is a classifier, and the task is {task.kind}, which has "
                f"{LOGISTIC} (its linear model) and trees. Name one of these, or an architecture "
                "of `proxyfl models`."
            )
    return names


@dataclass(frozen=True)
class _OfValues:
    """Ridge regression and regression trees of values scaled to -1 to 1."""

    task: Task

    def targets(self, labels: Tensor) -> Array:
        objective = objective_of(self.task)
        scaled: Array = objective.targets(labels, 1).double().numpy()
        return scaled[:, None]

    def strata(self, labels: Tensor) -> NDArray[np.int64]:
        return np.zeros(len(labels), dtype=np.int64)

    def candidates(self, spec: str) -> list[OutcomeCandidate]:
        candidates = []
        for name in _parse(spec, self.task):
            if name == "trees":
                candidates.append(OutcomeCandidate("trees", _value_trees))
            else:
                candidates.extend(_ridge_candidate(penalty) for penalty in PENALTIES)
        return candidates

    def residual(self, x: Array, y: Array, penalty: float, offset: Array) -> nn.Module:
        return _as_linear(*ridge_fit(x, (y - offset)[:, 0], penalty))

    def losses(self, outputs: Array, y: Array) -> Array:
        said, true = outputs[:, 0], y[:, 0]
        centred = said - said.mean()
        spread = float(centred @ centred)
        # a scale below zero would turn a model's opinion around
        scale = max(0.0, float(centred @ (true - true.mean())) / spread) if spread > 1e-12 else 0.0
        errors: Array = true - true.mean() - scale * centred
        return errors**2


@dataclass(frozen=True)
class _OfEvents:
    """Logistic regressions and trees of events: findings, or those of person-periods.

    Targets have two columns for each output: whether the example is judged by it (at risk), and
    whether its event came. Findings are judged by every example."""

    task: Task

    def targets(self, labels: Tensor) -> Array:
        if self.task.kind == MULTILABEL:
            events = labels.double().numpy()
            return np.concatenate([np.ones_like(events), events], axis=1)
        at_risk, happens = Hazards(self.task.intervals).intervals_of(labels)
        return torch.cat([at_risk, happens], dim=1).double().numpy()

    def strata(self, labels: Tensor) -> NDArray[np.int64]:
        if self.task.kind == MULTILABEL:
            return np.zeros(len(labels), dtype=np.int64)
        strata: NDArray[np.int64] = (labels[:, 1] > 0.5).long().numpy()
        return strata

    def candidates(self, spec: str) -> list[OutcomeCandidate]:
        candidates = []
        shared = self.task.kind != MULTILABEL
        for name in _parse(spec, self.task):
            if name == "trees":
                trees = _person_period_trees if shared else _trees_of_each
                candidates.append(OutcomeCandidate("trees", trees))
            else:
                candidates.extend(_event_candidate(penalty, shared=shared) for penalty in PENALTIES)
        return candidates

    def residual(self, x: Array, y: Array, penalty: float, offset: Array) -> nn.Module:
        return _logistic(x, y, penalty, offset, shared=self.task.kind != MULTILABEL)

    def losses(self, outputs: Array, y: Array) -> Array:
        from scipy import optimize

        at_risk, events = np.split(y, 2, axis=1)
        centred = outputs - outputs.mean(0)
        z = centred / max(float(centred.std()), 1e-9)

        def penalized_loss(theta: Array) -> tuple[float, Array]:
            fitted = theta[0] * z + theta[1:]
            error = at_risk * (_sigmoid(fitted) - events)
            value = (at_risk * (np.logaddexp(0, fitted) - events * fitted)).sum() / len(z)
            gradient = np.concatenate([[(error * z).sum()], error.sum(0)]) / len(z)
            gradient[1:] += 2e-4 * theta[1:]
            return float(value + 1e-4 * (theta[1:] ** 2).sum()), gradient

        start = np.zeros(1 + z.shape[1])
        start[0] = 1.0
        limits: list[tuple[float | None, None]] = [(None, None)] * len(start)
        limits[0] = (0.0, None)
        theta = optimize.minimize(
            penalized_loss, start, jac=True, method="L-BFGS-B", bounds=limits
        ).x
        fitted = theta[0] * z + theta[1:]
        each: Array = (at_risk * (np.logaddexp(0, fitted) - events * fitted)).sum(1)
        return each


def ridge_fit(x: Array, y: Array, penalty: float) -> tuple[Array, Array]:
    """Weights (1, inputs) and intercept (1,) of least squares with penalty / 2 |w|^2 on half the
    squared errors; the intercept has none."""
    centre = x.mean(0)
    shifted = x - centre
    gram = shifted.T @ shifted + penalty * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, shifted.T @ (y - y.mean()))
    return weights[None], np.array([y.mean() - centre @ weights])


def events_fit(
    x: Array, at_risk: Array, events: Array, penalty: float, offset: Array | None = None
) -> tuple[Array, Array]:
    """Weights (inputs,) and a baseline for each interval of a logistic regression on
    person-periods: the least sum of losses, with penalty / 2 |w|^2 and a trace of one on the
    baselines, so that an interval without events has one, too."""
    from scipy import optimize

    width = x.shape[1]
    base = np.zeros_like(events) if offset is None else offset

    def loss(theta: Array) -> tuple[float, Array]:
        w, b = theta[:width], theta[width:]
        z = (x @ w)[:, None] + b + base
        error = at_risk * (_sigmoid(z) - events)
        value = (at_risk * (np.logaddexp(0, z) - events * z)).sum()
        value += penalty / 2 * (w @ w) + _TRACE / 2 * (b @ b)
        gradient = np.concatenate([x.T @ error.sum(1) + penalty * w, error.sum(0) + _TRACE * b])
        # per example, so that the search stops at the same accuracy whatever their number
        return float(value) / len(x), gradient / len(x)

    start = np.zeros(width + events.shape[1])
    if offset is None:
        share = (events.sum(0) + 0.5) / (at_risk.sum(0) + 1)
        start[width:] = np.log(share / (1 - share))
    solution = optimize.minimize(loss, start, jac=True, method="L-BFGS-B").x
    return solution[:width], solution[width:]


_TRACE = 1e-2


def _sigmoid(z: Array) -> Array:
    from scipy.special import expit

    probabilities: Array = expit(z)
    return probabilities


def _ridge_candidate(penalty: float) -> OutcomeCandidate:
    def fit(x: Array, y: Array, seed: int) -> nn.Module:
        return _as_linear(*ridge_fit(x, y[:, 0], penalty))

    return OutcomeCandidate(f"ridge, penalty {penalty:g}", fit)


def _event_candidate(penalty: float, *, shared: bool) -> OutcomeCandidate:
    def fit(x: Array, y: Array, seed: int) -> nn.Module:
        return _logistic(x, y, penalty, None, shared=shared)

    name = "hazards" if shared else LOGISTIC
    return OutcomeCandidate(f"{name}, penalty {penalty:g}", fit)


def _logistic(
    x: Array, y: Array, penalty: float, offset: Array | None, *, shared: bool
) -> nn.Module:
    """Logistic regression of the events: with the same weights for all intervals, or ``not
    shared``, with each finding's own."""
    at_risk, events = np.split(y, 2, axis=1)
    if shared:
        w, b = events_fit(x, at_risk, events, penalty, offset)
        return _as_linear(np.tile(w, (len(b), 1)), b)
    rows = []
    intercepts = []
    for k in range(events.shape[1]):
        one = slice(k, k + 1)
        base = None if offset is None else offset[:, one]
        w, b = events_fit(x, at_risk[:, one], events[:, one], penalty, base)
        rows.append(w)
        intercepts.append(float(b[0]))
    return _as_linear(np.stack(rows), np.array(intercepts))


def _as_linear(weights: Array, intercepts: Array) -> nn.Module:
    model = nn.Linear(weights.shape[1], weights.shape[0])
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(weights))
        model.bias.copy_(torch.from_numpy(intercepts))
    return model.requires_grad_(False)


def _settings(rows: int, seed: int) -> dict[str, Any]:
    small: dict[str, Any] = SMALL_TREES if rows < MANY else {}
    return small | {"random_state": seed % 2**32}


def _value_trees(x: Array, y: Array, seed: int) -> nn.Module:
    from sklearn.ensemble import HistGradientBoostingRegressor

    fitted = HistGradientBoostingRegressor(**_settings(len(x), seed)).fit(x, y[:, 0])
    return tables_of(fitted, [0], 1)


def _binary_trees(x: Array, y: Array, seed: int) -> Trees:
    """Trees whose one output is the log odds of the event; of events that all or none have, a
    constant."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    if y.min() == y.max():
        share = (y.sum() + 0.5) / (len(y) + 1)
        return _constant(float(np.log(share / (1 - share))))
    fitted = HistGradientBoostingClassifier(**_settings(len(x), seed)).fit(x, y.astype(int))
    return tables_of(fitted, [0], 1)


def _constant(value: float) -> Trees:
    """One leaf."""
    zero = torch.zeros(1, dtype=torch.int64)
    nothing = torch.zeros(1, dtype=torch.float64)
    return Trees(
        feature=zero,
        threshold=nothing,
        left=zero.clone(),
        right=zero.clone(),
        value=nothing.clone(),
        root=zero.clone(),
        output=zero.clone(),
        depth=torch.tensor(1),
        baseline=torch.tensor([value], dtype=torch.float64),
    )


def _trees_of_each(x: Array, y: Array, seed: int) -> nn.Module:
    _, events = np.split(y, 2, axis=1)
    return Stacked([_binary_trees(x, column, seed) for column in events.T])


def _person_period_trees(x: Array, y: Array, seed: int) -> nn.Module:
    at_risk, events = np.split(y, 2, axis=1)
    person, interval = np.nonzero(at_risk)
    rows = np.concatenate([x[person], interval[:, None]], axis=1)
    trees = _binary_trees(rows, events[person, interval], seed)
    return PersonPeriod(trees, events.shape[1])


class Stacked(nn.Module):
    """Trees with one output each, beside each other."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=1)


class PersonPeriod(nn.Module):
    """Trees that see an interval's number as the last column, asked for every interval."""

    def __init__(self, trees: nn.Module, intervals: int) -> None:
        super().__init__()
        self.trees = trees
        self.register_buffer("intervals", torch.tensor(intervals))

    def forward(self, x: Tensor) -> Tensor:
        inputs = x.flatten(1)
        outputs = []
        for interval in range(int(self.get_buffer("intervals"))):
            column = torch.full_like(inputs[:, :1], interval)
            outputs.append(self.trees(torch.cat([inputs, column], dim=1)))
        return torch.cat(outputs, dim=1)
