"""The task of a study as a value: classes, a number, several findings, or the time to an event.

    classification   one of several classes            one logit for each class
    regression       a number within a public range    one output, -1 to 1 over the range
    multilabel       several yes/no findings           one logit for each finding
    time-to-event    a time, and whether the event     one logit for each interval: the hazard, the
                     came or the follow-up ended       probability of the event within the interval
                                                       for whoever has reached it

A task knows its outputs, and which facts of classification hold for it. ``losses.objective_of`` has
its loss, ``measures.of`` its measures, ``models.fits`` the estimators that a site fits, and
``outcomes`` what a model's outputs say. Its targets are the labels of examples:

    classification   the number of the class, int64 (n,)
    regression       the value in its own unit, float32 (n,)
    multilabel       0 or 1 for each finding, float32 (n, findings)
    time-to-event    time and event, float32 (n, 2): event 1 at its time, or 0 at the end of the
                     follow-up

Everything in a task is public: ranges and interval ends are agreed on before anybody looks at a
record. This module imports no torch, so that settings may name a task.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from proxyfl._validate import choice, number
from proxyfl.errors import ConfigError

CLASSIFICATION = "classification"
REGRESSION = "regression"
MULTILABEL = "multilabel"
TIME_TO_EVENT = "time-to-event"

KINDS = {
    CLASSIFICATION: "one of several classes",
    REGRESSION: "a number within a public range",
    MULTILABEL: "several yes/no findings",
    TIME_TO_EVENT: "the time until an event, which may be beyond the follow-up",
}
"""Every kind of task."""

LOSSES = ("squared", "huber")
"""The losses of a regression."""


@dataclass(frozen=True)
class Task:
    """The task of a model; see the module's docstring. Fields of another kind are refused."""

    kind: str = CLASSIFICATION
    """One of ``KINDS``."""
    names: tuple[str, ...] = ()
    """The classes, the findings, or the name of the one value."""
    range: tuple[float, ...] = ()
    """The public range of a regression's value, [low, high]."""
    loss: str = "squared"
    """The loss of a regression: squared, or huber (linear beyond a tenth of the range)."""
    intervals: tuple[float, ...] = ()
    """The ends of the intervals of a time, rising; the last one is the horizon."""
    unit: str = ""
    """The unit of a value or a time."""

    def __post_init__(self) -> None:
        choice("task", self.kind, KINDS)
        choice("loss", self.loss, LOSSES)
        self._check_fields()
        if self.kind == REGRESSION:
            check_range("range", self.range)
        if self.kind == TIME_TO_EVENT:
            _check_intervals(self.intervals)
        if self.kind == MULTILABEL and (
            not self.names or len(set(self.names)) != len(self.names) or "" in self.names
        ):
            raise ConfigError(
                f"Expected one or more distinct names of findings, got {list(self.names)}."
            )

    def _check_fields(self) -> None:
        """Refuse what belongs to another kind of task."""
        other = {
            "range": self.range and self.kind != REGRESSION,
            "loss": self.loss != "squared" and self.kind != REGRESSION,
            "intervals": self.intervals and self.kind != TIME_TO_EVENT,
        }
        for name, wrong in other.items():
            if wrong:
                raise ConfigError(f"A task of the kind {self.kind} has no {name}. Leave it out.")

    @property
    def is_classification(self) -> bool:
        """True if examples have one of several classes: only then are there class counts, a
        balance, a prevalence, confusion counts and partitions by class."""
        return self.kind == CLASSIFICATION

    @property
    def outputs(self) -> int:
        """The number of a model's outputs."""
        if self.kind == REGRESSION:
            return 1
        if self.kind == TIME_TO_EVENT:
            return len(self.intervals)
        return len(self.names)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The name of each output: a class, a finding, the value, or an interval."""
        if self.kind != TIME_TO_EVENT:
            return self.names or ("value",)
        starts = (0.0, *self.intervals)
        ends = zip(starts, self.intervals, strict=False)
        unit = f" {self.unit}" if self.unit else ""
        return tuple(f"{low:g} to {high:g}{unit}" for low, high in ends)

    @property
    def headings(self) -> tuple[str, ...]:
        """The heading of each predicted number: the probability of a class or a finding, the
        value, or the probability to be free of the event at the end of an interval."""
        if self.kind != TIME_TO_EVENT:
            return self.output_names
        unit = f" {self.unit}" if self.unit else ""
        return tuple(f"free at {end:g}{unit}" for end in self.intervals)

    @property
    def horizon(self) -> float:
        """The end of the last interval: nothing is learnt of what comes later."""
        return self.intervals[-1]

    def described(self) -> str:
        """The task in words."""
        if self.kind == CLASSIFICATION:
            return f"classes {', '.join(self.names)}"
        if self.kind == REGRESSION:
            low, high = self.range
            unit = f" {self.unit}" if self.unit else ""
            return f"a number from {low:g} to {high:g}{unit} ({self.loss} loss)"
        if self.kind == MULTILABEL:
            return f"findings {', '.join(self.names)}"
        ends = ", ".join(f"{end:g}" for end in self.intervals)
        unit = f" {self.unit}" if self.unit else ""
        return f"time to an event, in intervals that end at {ends}{unit}"


def classification(names: Sequence[str]) -> Task:
    """The task of telling these classes apart."""
    return Task(names=tuple(names))


def check_range(what: str, ends: Sequence[float]) -> None:
    """Raise ConfigError unless ``ends`` are two finite numbers, the lower one first."""
    for end in ends:
        number(what, end)
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise ConfigError(
            f"Expected {what} = [low, high] with low below high, which everybody knows without "
            f"looking at a record, got {list(ends)}."
        )


def _check_intervals(ends: Sequence[float]) -> None:
    for end in ends:
        number("intervals", end, above=0)
    if not ends or any(low >= high for low, high in itertools.pairwise(ends)):
        raise ConfigError(
            "Expected intervals = [end, end, ...], rising ends above 0 of which the last is the "
            f"horizon, got {list(ends)}."
        )
    if len(ends) > MOST_INTERVALS:
        raise ConfigError(
            f"Expected at most {MOST_INTERVALS} intervals, got {len(ends)}. Each has a parameter "
            "that needs noise; five to twenty are usual."
        )


MOST_INTERVALS = 100
"""The most intervals of a time."""
