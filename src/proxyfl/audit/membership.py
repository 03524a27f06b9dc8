r"""Membership inference by likelihood ratio, after Carlini et al. 2022 (arXiv 2112.03570).

Each shadow federation in turn is the target, and the others are what the attacker trained for
comparison. For a record, let the answers of those that had it have the mean a and those that did
not the mean b, with the standard deviations s and t over all records (there are too few federations
for each record's own). The target's answer x gets the score

    log N(x; a, s) - log N(x; b, t)

A record is called a member if its score exceeds a threshold. Over all thresholds this gives the
true-positive rate for every false-positive rate.

A rate below 1 / (number of non-members) cannot be told from none. All federations' scores are
counted together, so they are not independent, and the rates have no confidence interval here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from proxyfl.audit.shadows import TARGETS, Shadow
from proxyfl.errors import ConfigError

Array = npt.NDArray[np.float64]

FEWEST_SHADOWS = 8
_POINTS = 61
_LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Curve:
    """The attack on one target: scores of members and of non-members, sorted downwards."""

    members: Array
    others: Array

    def true_positives(self, false_positives: float) -> float:
        """The share of members above the lowest threshold that at most this share of others pass.

        A member that ties with the first other that may not pass does not count.
        """
        allowed = math.floor(false_positives * len(self.others) + 1e-9)
        if allowed >= len(self.others):
            return 1.0
        return float((self.members > self.others[allowed]).mean())

    @property
    def area(self) -> float:
        """The probability that a member scores higher than another, ties counted by half."""
        ordered = np.sort(self.others)
        below = np.searchsorted(ordered, self.members, side="left")
        at_most = np.searchsorted(ordered, self.members, side="right")
        return float((below + at_most).mean() / 2 / len(ordered))


def attack(shadows: Sequence[Shadow]) -> dict[str, Curve]:
    """The curve of each target."""
    if len(shadows) < FEWEST_SHADOWS:
        raise ConfigError(
            f"Expected at least {FEWEST_SHADOWS} shadow federations, got {len(shadows)}."
        )
    members = np.array([shadow.members for shadow in shadows])
    found = {}
    for name in TARGETS:
        answers = np.array([shadow.answers[name] for shadow in shadows])
        scores = likelihood_ratios(answers, members)
        known = np.isfinite(scores)
        found[name] = Curve(
            -np.sort(-scores[members & known]), -np.sort(-scores[~members & known])
        )
    return found


def likelihood_ratios(answers: Array, members: npt.NDArray[np.bool_]) -> Array:
    """Each federation's scores (federations, records), by all the others.

    NaN where a record was in all the others or in none of them.
    """
    scores = np.full(answers.shape, np.nan)
    for target in range(len(answers)):
        rest = np.arange(len(answers)) != target
        inside = _fit(answers[rest], members[rest])
        outside = _fit(answers[rest], ~members[rest])
        x = answers[target]
        scores[target] = _log_normal(x, *inside) - _log_normal(x, *outside)
    return scores


def _fit(answers: Array, chosen: npt.NDArray[np.bool_]) -> tuple[Array, float]:
    """Each record's mean over the chosen federations, and the spread around it over all records."""
    counts = chosen.sum(axis=0)
    sums = np.where(chosen, answers, 0.0).sum(axis=0)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    apart = np.where(chosen, answers - means, 0.0)
    freedom = max(1, int(np.maximum(counts - 1, 0).sum()))
    spread = math.sqrt(float((apart**2).sum()) / freedom)
    return means, max(_LEAST_SPREAD, spread)


def _log_normal(x: Array, mean: Array, spread: float) -> Array:
    found: Array = -(((x - mean) / spread) ** 2) / 2 - math.log(spread)
    return found


def as_dict(
    curves: dict[str, Curve], *, federations: int, client: int
) -> dict[str, Any]:
    """Plain data, for JSON: the rates that are quoted, and the curve at rates for log axes."""
    targets = []
    curve = []
    for name, found in curves.items():
        targets.append(
            {
                "target": name,
                "tpr_at_0.001": found.true_positives(0.001),
                "tpr_at_0.01": found.true_positives(0.01),
                "auc": found.area,
                "members": len(found.members),
                "non_members": len(found.others),
            }
        )
        least = 1 / len(found.others)
        for rate in np.geomspace(least, 1.0, _POINTS).tolist():
            point = {"fpr": rate, "tpr": found.true_positives(rate)}
            curve.append({"target": name, **point})
    return {
        "attack": "likelihood ratio with shadow federations",
        "federations": federations,
        "client": client,
        "targets": targets,
        "roc": curve,
    }
