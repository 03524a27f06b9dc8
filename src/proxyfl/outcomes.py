r"""A model's outputs for tasks other than classification: what they say, and how right they were.

    regression       MAE and RMSE as parts of the public range, R^2
    multilabel       AUROC, average precision and Brier score as means over the findings that the
                     test set tells apart, log-loss summed over all of them
    time-to-event    Harrell's C, AUROC over time, integrated Brier score, up to the horizon

For a time to an event, hazards h_k = sigmoid(output k) give the survival at the end of interval k,

    S_k = prod_{j <= k} (1 - h_j)

and a record's risk is minus its expected time until the event, up to the horizon: the area under
its survival curve. A record that is followed beyond the horizon counts as followed up to it.

    C           of the pairs of which one is known to have had the event first, the share in which
                it had the higher risk; equal risks count half (Harrell et al. 1982)
    AUROC(t)    of an event by t against being free of it after t, by 1 - S(t). Cases weigh 1/G(T-)
                and controls alike (Uno et al. 2007). The mean over the ends of the intervals,
                each by how much the estimated survival falls up to it from the end before
    Brier(t)    squared error of S(t) for all whose state at t is known, weighted by 1/G(T-) or
                1/G(t) (Graf et al. 1999); the integral over [0, horizon] by trapezoids between the
                ends of the intervals, with 0 at time 0, divided by the horizon

G is the Kaplan-Meier estimate of staying under observation, from the test set itself. On bootstrap
samples G stays as it is. A censoring at t is taken to happen after the events at t.

``calibration`` and ``Survival.risk_groups`` are what a page draws of a last score: what was
predicted against what came, for groups of examples that the model takes for alike.

``weighted`` gives every measure for each column of weights (the examples' multiplicities in one
sample), so that a value and its bootstrap interval are the same arithmetic.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from proxyfl import measures
from proxyfl.measures import Curve, Predictions
from proxyfl.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, TIME_TO_EVENT, Task

Array = NDArray[np.float64]
Counts = NDArray[Any]

LEAST = 0.05
"""The smallest G that weighs: beyond it single records would decide."""

_ROWS = 2**22
"""Pairs that are compared at a time: 32 MB."""

THIRDS = ("lowest risk", "middle", "highest risk")
"""The groups whose survival curves are drawn."""

EVERYBODY = "all of them"
"""The one group of few examples."""

FEWEST = 10
"""The fewest examples of a group of which a survival curve is estimated."""


class Outcomes(Protocol):
    """Outputs and true values of some examples."""

    def __len__(self) -> int:
        """The number of examples."""
        ...

    @property
    def outputs(self) -> Array:
        """The model's outputs, one row or value per example."""
        ...

    def taken(self, rows: NDArray[Any]) -> Self:
        """Those of some of the examples."""
        ...

    def weighted(self, weights: Counts) -> dict[str, Array]:
        """Every measure of the task, for each column of ``weights``; NaN where it is undefined."""
        ...

    def calibration(self) -> list[tuple[float, float, int]]:
        """(mean prediction, mean of what came, examples) of examples with like predictions."""
        ...


def measured(outcomes: Outcomes, weights: Counts) -> dict[str, Array]:
    """``weighted``; nothing is defined for a model whose outputs are no numbers."""
    if np.isfinite(outcomes.outputs).all():
        return outcomes.weighted(weights)
    nothing = np.full(weights.shape[1], np.nan)
    kind = {Values: REGRESSION, Findings: MULTILABEL, Survival: TIME_TO_EVENT}[type(outcomes)]
    return dict.fromkeys(measures.of(kind), nothing)


@dataclass(frozen=True)
class Values:
    """Outputs and values of a regression, both from -1 to 1 over the range ``low`` to ``high``."""

    said: Array
    true: Array
    low: float = -1.0
    high: float = 1.0

    @property
    def outputs(self) -> Array:
        return self.said

    def __len__(self) -> int:
        return len(self.true)

    def taken(self, rows: NDArray[Any]) -> "Values":
        """Those of some of the examples."""
        return replace(self, said=self.said[rows], true=self.true[rows])

    def weighted(self, weights: Counts) -> dict[str, Array]:
        """MAE and RMSE in parts of the range, and R squared: none where all values are equal."""
        w = weights.astype(float)
        total = w.sum(0)
        # a prediction beyond the range is its nearest end, as ``value_of`` gives it out
        errors = (self.said - self.true) / 2
        mean = self.true @ w / total
        squares = (errors**2) @ w
        spread = (self.true**2) @ w - total * mean**2
        with np.errstate(invalid="ignore", divide="ignore"):
            r2 = 1 - 4 * squares / spread
        r2[spread <= 1e-12 * total] = np.nan
        return {"r2": r2, "mae": np.abs(errors) @ w / total, "rmse": np.sqrt(squares / total)}

    def calibration(self) -> list[tuple[float, float, int]]:
        """Tenths of the examples, from the lowest predictions to the highest, in the value's own
        unit. Equal predictions are in one group."""
        edges = np.quantile(self.said, np.linspace(0, 1, 11)[1:-1])
        return _means(np.searchsorted(edges, self.said), self._in_unit(self.said), self.truth)

    @property
    def truth(self) -> Array:
        """The true values in their own unit, within the range."""
        return self._in_unit(self.true)

    def _in_unit(self, scaled: Array) -> Array:
        return self.low + (scaled + 1) / 2 * (self.high - self.low)


@dataclass(frozen=True)
class Findings:
    """Logits and findings, 0 or 1: one column for each finding."""

    logits: Array
    true: Array

    @property
    def outputs(self) -> Array:
        return self.logits

    def __len__(self) -> int:
        return len(self.true)

    def taken(self, rows: NDArray[Any]) -> "Findings":
        """Those of some of the examples."""
        return Findings(self.logits[rows], self.true[rows])

    def weighted(self, weights: Counts) -> dict[str, Array]:
        """Means over findings; a finding that all or none have is left out of the areas."""
        from scipy.special import expit

        w = weights.astype(float)
        total = w.sum(0)
        areas: dict[str, list[Array]] = {name: [] for name in measures.AREAS}
        with np.errstate(invalid="ignore", divide="ignore"):
            for scores, positive in zip(self.logits.T, self.true.T > 0.5, strict=True):
                curve = Curve.of(scores, positive, weights)
                known = (curve.positives[:, -1] > 0) & (curve.negatives[:, -1] > 0)
                for name in measures.AREAS:
                    value = measures.CURVES[name](curve)
                    areas[name].append(np.where(known, value, np.nan))
        means = {name: _mean_of_known(np.stack(values)) for name, values in areas.items()}
        squares = ((expit(self.logits) - self.true) ** 2).mean(1)
        losses = (np.logaddexp(0, self.logits) - self.true * self.logits).sum(1)
        return means | {"brier": squares @ w / total, "log_loss": losses @ w / total}

    def calibration(self) -> list[tuple[float, float, int]]:
        """For each tenth of the probabilities, over all findings together."""
        from scipy.special import expit

        said = expit(self.logits).ravel()
        tenth = np.minimum((said * 10).astype(int), 9)
        return _means(tenth, said, self.true.ravel())


@dataclass(frozen=True)
class Survival:
    """Survival at the ends of the intervals, for each example, and its time and event."""

    survival: Array
    time: Array
    event: NDArray[np.bool_]
    ends: Array

    @property
    def outputs(self) -> Array:
        return self.survival

    @classmethod
    def of(cls, survival: Array, time: Array, event: NDArray[np.bool_], task: Task) -> "Survival":
        """Cut at the horizon: what comes later is being followed up to it."""
        beyond = time > task.horizon
        return cls(
            survival,
            np.where(beyond, task.horizon, time),
            event & ~beyond,
            np.array(task.intervals),
        )

    def __len__(self) -> int:
        return len(self.time)

    def taken(self, rows: NDArray[Any]) -> "Survival":
        """Those of some of the examples, who have a G of their own."""
        return Survival(self.survival[rows], self.time[rows], self.event[rows], self.ends)

    @cached_property
    def risk(self) -> Array:
        """Minus the expected time until the event, up to the horizon."""
        before = np.concatenate([np.ones((len(self.survival), 1)), self.survival[:, :-1]], axis=1)
        widths = np.diff(self.ends, prepend=0.0)
        area: Array = ((before + self.survival) / 2 * widths).sum(1)
        return -area

    @cached_property
    def observed(self) -> "Steps":
        """G: the share still under observation, by time."""
        return kaplan_meier(self.time, ~self.event & self._is_censored)

    @property
    def _is_censored(self) -> NDArray[np.bool_]:
        # the end of the study at the horizon takes nobody out of it
        inside: NDArray[np.bool_] = self.time < self.ends[-1]
        return inside

    def weighted(self, weights: Counts) -> dict[str, Array]:
        """The three measures; see the module's docstring."""
        w = weights.astype(float)
        return {
            "c_index": self._concordance(w),
            "time_auroc": self._auroc(w),
            "integrated_brier": self._brier(w),
        }

    def _concordance(self, w: Array) -> Array:
        right = np.zeros(w.shape[1])
        pairs = np.zeros(w.shape[1])
        firsts = np.flatnonzero(self.event)
        at_once = max(1, _ROWS // max(1, len(self.time)))
        for start in range(0, len(firsts), at_once):
            first = firsts[start : start + at_once]
            own_time = self.time[first, None]
            later = self.time > own_time
            later |= (self.time == own_time) & ~self.event  # censored at t: after the events at t
            higher = (self.risk[first, None] > self.risk) + 0.5 * (
                self.risk[first, None] == self.risk
            )
            mine = w[first]
            right += (mine * ((later * higher) @ w)).sum(0)
            pairs += (mine * (later @ w)).sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            concordance: Array = right / pairs
        return concordance

    def _auroc(self, w: Array) -> Array:
        before = np.maximum(self.observed.before(self.time), LEAST)
        overall = kaplan_meier(self.time, self.event)
        falls = -np.diff(overall.at(self.ends), prepend=1.0)
        total = np.zeros(w.shape[1])
        counted = np.zeros(w.shape[1])
        for k, end in enumerate(self.ends):
            case = self.event & (self.time <= end)
            # whoever is free of the event at the horizon was followed up to it
            control = (self.time > end) | ((self.time == end) & ~self.event)
            if not (case.any() and control.any()) or falls[k] <= 0:
                continue
            known = case | control
            weight = np.where(case, 1 / before, 1.0)[known, None] * w[known]
            curve = Curve.of(-self.survival[known, k], case[known], weight)
            with np.errstate(invalid="ignore", divide="ignore"):
                area = curve.auroc()
            defined = (curve.positives[:, -1] > 0) & (curve.negatives[:, -1] > 0)
            total += np.where(defined, area, 0.0) * falls[k]
            counted += defined * falls[k]
        with np.errstate(invalid="ignore", divide="ignore"):
            auroc: Array = total / counted
        return auroc

    def _brier(self, w: Array) -> Array:
        before = np.maximum(self.observed.before(self.time), LEAST)
        at_ends = np.maximum(self.observed.at(self.ends), LEAST)
        scores = [np.zeros(w.shape[1])]
        for k, end in enumerate(self.ends):
            case = self.event & (self.time <= end)
            free = (self.time > end) | ((self.time == end) & ~self.event)
            said = self.survival[:, k]
            each = np.where(case, said**2 / before, 0.0)
            each = np.where(free, (1 - said) ** 2 / at_ends[k], each)
            scores.append(each @ w / w.sum(0))
        times = np.append(0.0, self.ends)
        brier: Array = np.trapezoid(np.stack(scores), times, axis=0) / self.ends[-1]
        return brier

    def calibration(self) -> list[tuple[float, float, int]]:
        """Nothing: where follow-up ends early, what came is not known. See ``risk_groups``."""
        return []

    def risk_groups(self) -> list["RiskGroup"]:
        """Thirds of the examples by the risk that the model gives them: what it predicted, and what
        came. Equal risks are in one group. A group of fewer than ``FEWEST`` examples is left out;
        too few for three groups are one, ``EVERYBODY``."""
        edges = np.quantile(self.risk, [1 / 3, 2 / 3])
        names: tuple[str, ...] = THIRDS
        if len(self) < len(THIRDS) * FEWEST:
            edges, names = np.array([]), (EVERYBODY,)
        third = np.searchsorted(edges, self.risk)
        groups = []
        for number, name in enumerate(names):
            here = third == number
            if here.sum() < FEWEST:
                continue
            time, event = self.time[here], self.event[here]
            observed = kaplan_meier(time, event).at(self.ends)
            low, high = survival_interval(time, event, self.ends)
            predicted = self.survival[here].mean(0)
            points: list[tuple[float, ...]] = [(0.0, 1.0, 1.0, 1.0, 1.0)]
            rows = zip(self.ends, predicted, observed, low, high, strict=True)
            for row in rows:
                points.append(tuple(map(float, row)))
            groups.append(RiskGroup(name, int(here.sum()), int(event.sum()), points))
        return groups

    def curves(self) -> list[tuple[float, float, float]]:
        """(time, mean predicted survival, Kaplan-Meier's) at 0 and at the ends of the intervals."""
        overall = kaplan_meier(self.time, self.event).at(self.ends)
        means = self.survival.mean(0)
        points = [(0.0, 1.0, 1.0)]
        for end, said, true in zip(self.ends, means, overall, strict=True):
            points.append((float(end), float(said), float(true)))
        return points


@dataclass(frozen=True)
class RiskGroup:
    """Test examples that a model takes for alike, and their survival up to the horizon."""

    name: str
    examples: int
    events: int
    points: list[tuple[float, ...]]
    """(time, mean predicted survival, Kaplan-Meier's, and the ends of its 95 % interval) at 0 and
    at the ends of the intervals."""


@dataclass(frozen=True)
class Steps:
    """A falling step function: ``values`` from each of ``times`` on, 1 before."""

    times: Array
    values: Array

    def at(self, when: Array) -> Array:
        """The value at some times, steps at these times taken."""
        return self._look_up(np.searchsorted(self.times, when, side="right"))

    def before(self, when: Array) -> Array:
        """The value just before some times."""
        return self._look_up(np.searchsorted(self.times, when, side="left"))

    def _look_up(self, places: NDArray[np.int64]) -> Array:
        values: Array = np.append(1.0, self.values)[places]
        return values


def kaplan_meier(time: Array, event: NDArray[np.bool_]) -> Steps:
    """The Kaplan-Meier estimate of being free of ``event``."""
    times, place = np.unique(time, return_inverse=True)
    events = np.bincount(place, weights=event, minlength=len(times))
    leaving = np.bincount(place, minlength=len(times))
    at_risk = len(time) - np.append(0, np.cumsum(leaving)[:-1])
    return Steps(times, np.cumprod(1 - events / at_risk))


def survival_interval(time: Array, event: NDArray[np.bool_], when: Array) -> tuple[Array, Array]:
    """The ends of the 95 % interval of ``kaplan_meier`` at some times.

    Greenwood's variance on the scale of log(-log S), so that the ends lie within [0, 1]
    (Kalbfleisch and Prentice 2002, section 1.4). Before the first event, and after the last person
    has had it, there is no variance: both ends are the estimate."""
    times, place = np.unique(time, return_inverse=True)
    events = np.bincount(place, weights=event, minlength=len(times))
    leaving = np.bincount(place, minlength=len(times))
    at_risk = len(time) - np.append(0, np.cumsum(leaving)[:-1])
    remaining = np.maximum(at_risk - events, 1)
    variance = np.append(0.0, np.cumsum(events / (at_risk * remaining)))
    here = variance[np.searchsorted(times, when, side="right")]
    survival = kaplan_meier(time, event).at(when)
    inside = (survival > 0) & (survival < 1)
    log = np.log(np.where(inside, survival, 0.5))
    width = _NORMAL_95 * np.sqrt(here) / -log
    low = np.where(inside, np.exp(log * np.exp(width)), survival)
    high = np.where(inside, np.exp(log * np.exp(-width)), survival)
    return low, high


_NORMAL_95 = 1.959963984540054


def survival_of(logits: Array) -> Array:
    """The survival at the end of each interval, from the logits of the hazards."""
    # 1 - sigmoid(z) = sigmoid(-z), whose logarithm is -log(1 + exp(z))
    with np.errstate(invalid="ignore"):  # of a model that diverged
        survival: Array = np.exp(-np.logaddexp(0, logits.astype(float)).cumsum(1))
    return survival


def value_of(outputs: Array, task: Task) -> Array:
    """The value of a regression that outputs stand for, clipped to the public range."""
    low, high = task.range
    within = np.clip(outputs.astype(float), -1, 1)
    value: Array = low + (within + 1) / 2 * (high - low)
    return value


def predictions(outputs: NDArray[Any], labels: NDArray[Any], task: Task) -> Predictions | Outcomes:
    """Returns a model's predictions for examples with these labels."""
    if task.kind == CLASSIFICATION:
        return Predictions(outputs, labels)
    if task.kind == REGRESSION:
        low, high = task.range
        true = 2 * (np.clip(labels.astype(float), low, high) - low) / (high - low) - 1
        return Values(np.clip(outputs[:, 0].astype(float), -1, 1), true, low, high)
    if task.kind == MULTILABEL:
        return Findings(outputs.astype(float), labels.astype(float))
    assert task.kind == TIME_TO_EVENT
    time = labels[:, 0].astype(float)
    return Survival.of(survival_of(outputs), time, labels[:, 1] > 0.5, task)


def _means(group: NDArray[Any], said: Array, true: Array) -> list[tuple[float, float, int]]:
    """The mean prediction, the mean of what came and the size of each group, in order."""
    means = []
    for number in np.unique(group):
        here = group == number
        means.append((float(said[here].mean()), float(true[here].mean()), int(here.sum())))
    return means


def _mean_of_known(values: Array) -> Array:
    """The mean over findings (rows) that a sample tells apart; NaN where it tells none."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        mean: Array = np.where(known, values, 0.0).sum(0) / known.sum(0)
    return mean
