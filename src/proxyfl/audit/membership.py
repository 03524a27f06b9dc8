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
from typing import Any

import numpy as np

from proxyfl.audit.bounds import Array, Mask
from proxyfl.audit.shadows import TARGETS, Shadow
from proxyfl.errors import ConfigError
from proxyfl.measures import Curve

FEWEST_SHADOWS = 8
_POINTS = 61
_LEAST_SPREAD = 1e-6


def attack(shadows: Sequence[Shadow]) -> dict[str, Curve]:
    """The curve of each target: members are its positives."""
    if len(shadows) < FEWEST_SHADOWS:
        raise ConfigError(
            f"Expected at least {FEWEST_SHADOWS} shadow federations, got {len(shadows)}. Raise "
            "--shadows."
        )
    members = np.array([shadow.members for shadow in shadows])
    curves = {}
    for name in TARGETS:
        answers = np.array([shadow.answers[name] for shadow in shadows])
        scores = likelihood_ratios(answers, members)
        known = np.isfinite(scores)
        curves[name] = Curve.of(scores[known], members[known])
    return curves


def likelihood_ratios(answers: Array, members: Mask) -> Array:
    """Each federation's scores (federations, records), by all the others.

    NaN where a record was in all the others or in none of them.
    """
    scores = np.full(answers.shape, np.nan)
    for target in range(len(answers)):
        rest = np.arange(len(answers)) != target
        inside = _fit(answers[rest], members[rest])
        outside = _fit(answers[rest], ~members[rest])
        x = answers[target]
        if_member = _log_normal(x, *inside)
        if_not = _log_normal(x, *outside)
        scores[target] = if_member - if_not
    return scores


def _fit(answers: Array, chosen: Mask) -> tuple[Array, float]:
    """Each record's mean over the chosen federations, and the spread around it over all records."""
    counts = chosen.sum(axis=0)
    sums = np.where(chosen, answers, 0.0).sum(axis=0)
    of_known = sums / np.maximum(counts, 1)
    means = np.where(counts > 0, of_known, np.nan)
    apart = np.where(chosen, answers - means, 0.0)
    squares = float((apart**2).sum())
    free = np.maximum(counts - 1, 0)
    freedom = max(1, int(free.sum()))
    spread = math.sqrt(squares / freedom)
    return means, max(_LEAST_SPREAD, spread)


def _log_normal(x: Array, mean: Array, spread: float) -> Array:
    standard = (x - mean) / spread
    log_density: Array = -(standard**2) / 2 - math.log(spread)
    return log_density


def as_dict(curves: dict[str, Curve], *, federations: int, client: int) -> dict[str, Any]:
    """Plain data, for JSON: the rates that are quoted, and the curve at rates for log axes."""
    targets = []
    curve = []
    for name, roc in curves.items():
        non_members = int(roc.negatives[-1])
        targets.append(
            {
                "target": name,
                "tpr_at_0.001": float(roc.sensitivity_at(1 - 0.001)),
                "tpr_at_0.01": float(roc.sensitivity_at(1 - 0.01)),
                "auc": float(roc.auroc()),
                "members": int(roc.positives[-1]),
                "non_members": non_members,
            }
        )
        least = 1 / non_members
        for rate in np.geomspace(least, 1.0, _POINTS).tolist():
            share = float(roc.sensitivity_at(1 - rate))
            curve.append({"target": name, "fpr": rate, "tpr": share})
    return {
        "attack": "likelihood ratio with shadow federations",
        "federations": federations,
        "client": client,
        "targets": targets,
        "roc": curve,
    }
