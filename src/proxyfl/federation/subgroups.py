"""How well models do in groups of test persons, and what joining changes in each.

Definitions:
    * the measure of a group is that of its own test examples; its 95 % interval is over bootstrap
      samples of the group's persons, on which the model alone and the joined one are both judged;
    * a group is **judged** if it has at least ``LEAST`` test persons of each class (of each
      finding and without it, with and without an event by the horizon; of a number, twice
      ``LEAST`` persons);
    * a group **falls** if joining makes its measure worse, and the interval of the change excludes
      zero.

Guarantees:
    * nothing is computed of a group that is not judged, and its reason says why;
    * what comes out is about the site's own patients and has no noise. It is not covered by any
      epsilon and belongs to people who may see the records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxyfl import measures, outcomes
from proxyfl.federation.metrics import judge
from proxyfl.measures import Interval, Predictions, interval, known, samples, weighted
from proxyfl.outcomes import Outcomes
from proxyfl.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, Task

LEAST = 5
"""The fewest test persons of a class in a group that is judged."""

RESAMPLED = 1000
"""Bootstrap samples behind an interval."""

Said = Predictions | Outcomes
"""A model's outputs for the test examples, with what was true."""


@dataclass(frozen=True)
class Score:
    """A measure of one model in one group."""

    value: float | None
    interval: Interval | None


@dataclass(frozen=True)
class Subgroup:
    """One group: its test persons, and the measure of the model alone, of the joined one, and
    their difference (positive is better for every measure)."""

    name: str
    persons: int
    examples: int
    joined: Score | None = None
    alone: Score | None = None
    gain: Score | None = None
    reason: str = ""
    """Why the group is not judged."""

    @property
    def falls(self) -> bool:
        """True if joining makes the measure worse by more than its interval."""
        return (
            self.gain is not None and self.gain.interval is not None and self.gain.interval[1] < 0
        )


def judge_groups(
    joined: Said,
    alone: Said | None,
    group: Sequence[str],
    persons: NDArray[np.int64] | None,
    labels: NDArray[np.generic],
    *,
    measure: str,
    task: Task,
    seed: int,
) -> list[Subgroup]:
    """Judges both models in each group of test examples; groups come sorted by their names.

    ``group``, ``persons`` and ``labels`` have an entry for each example; without ``persons`` each
    example is a person."""
    everyone = np.arange(len(labels)) if persons is None else persons
    names = np.array(group)
    groups = []
    for name in sorted(set(group)):
        rows = np.flatnonzero(names == name)
        own = everyone[rows]
        count = len(np.unique(own))
        reason = _too_few(own, labels[rows], task)
        if reason:
            groups.append(Subgroup(name, count, len(rows), reason=reason))
            continue
        with_joining = _sampled(joined.taken(rows), own, measure, seed)
        without = None if alone is None else _sampled(alone.taken(rows), own, measure, seed)
        groups.append(
            Subgroup(
                name,
                count,
                len(rows),
                joined=_score(*with_joining),
                alone=None if without is None else _score(*without),
                gain=None if without is None else _gain(measure, with_joining, without),
            )
        )
    return groups


Sampled = tuple[float | None, list[float | None]]
"""A measure, and its value on each bootstrap sample."""


def _sampled(said: Said, persons: NDArray[np.int64], measure: str, seed: int) -> Sampled:
    values: list[float | None] = []
    for weights in samples(persons, RESAMPLED, seed):
        by_name: Mapping[str, NDArray[np.float64]]
        if isinstance(said, Predictions):
            by_name = weighted(said, weights)
        else:
            by_name = outcomes.measured(said, weights)
        values += known(by_name[measure])
    return judge(said).values[measure], values


def _score(value: float | None, values: Sequence[float | None]) -> Score:
    return Score(value, interval(values))


def _gain(measure: str, joined: Sampled, alone: Sampled) -> Score:
    gains = [
        measures.better_by(measure, ours, theirs)
        for ours, theirs in zip(joined[1], alone[1], strict=True)
    ]
    return Score(measures.better_by(measure, joined[0], alone[0]), interval(gains))


def _too_few(persons: NDArray[np.int64], labels: NDArray[np.generic], task: Task) -> str:
    """Why a group is not judged; empty if it is."""
    if task.kind == REGRESSION:
        count = len(np.unique(persons))
        return "" if count >= 2 * LEAST else f"{count} test persons, fewer than {2 * LEAST}"
    for what, here in _sides(labels, task):
        count = len(np.unique(persons[here]))
        if count < LEAST:
            return f"{count} test persons {what}, fewer than {LEAST}"
    return ""


def _sides(labels: NDArray[np.generic], task: Task) -> list[tuple[str, NDArray[np.bool_]]]:
    """The classes of which a group needs persons, in words, and the examples that are of each."""
    if task.kind == CLASSIFICATION:
        return [(f"with {name}", labels == number) for number, name in enumerate(task.names)]
    if task.kind == MULTILABEL:
        sides = []
        for name, column in zip(task.names, labels.astype(float).T, strict=True):
            sides += [(f"with {name}", column > 0.5), (f"without {name}", column <= 0.5)]
        return sides
    times, events = labels.astype(float).T
    had = (events > 0.5) & (times <= task.horizon)
    return [("with an event", had), ("without an event", ~had)]
