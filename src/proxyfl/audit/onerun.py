r"""One run, without measuring the noise: guess each coin, abstain where in doubt, count.

The score of a canary is its log-odds of having been planted, as the best linear estimate of all
coins together gives them. With U_t the canaries' clipped gradients, r_t the weight with which round
t shows them, A = q^2 sum_t r_t^2 U_t U_t' / s_t^2, and coins of mean 1/2 and variance 1/4
(``evidence``),

    x = (A + 4 I)^-1 q sum_t r_t U_t (Y_t - q r_t U_t' 1/2) / s_t^2   estimate of coin - 1/2
    rho_i = 1 - 4 ((A + 4 I)^-1)_ii                                   how much of coin i it shows
    score_i = 4 x_i / (1 - rho_i)

A score uses what peers see and no coin. Guesses and bounds are those of ``bounds``.
"""

from dataclasses import dataclass

import numpy as np

from proxyfl.audit import bounds
from proxyfl.audit.bounds import Array, Guesses
from proxyfl.audit.evidence import Evidence
from proxyfl.audit.observe import Observation


@dataclass(frozen=True)
class OneRun:
    """The result of guessing in one run.

    ``by_curve`` and ``by_point`` are the bounds by f-DP and by Steinke et al.; ``guesses`` those
    behind the first. ``ideal`` is what the best possible attacker shows on average with as many
    canaries if the claim is exact; ``ceiling`` is what perfect guesses would show.
    """

    by_curve: float
    by_point: float
    guesses: Guesses
    ideal: float
    ceiling: float


def scores(evidence: Evidence, sampling_rate: float) -> Array:
    """The log-odds of every canary, from the evidence alone."""
    information = sampling_rate**2 * evidence.gram
    identity = np.eye(len(information))
    spread = np.linalg.inv(information + 4 * identity)
    if_by_half = sampling_rate * evidence.gram.sum(axis=1) / 2
    estimate = spread @ (sampling_rate * (evidence.matched - if_by_half))
    unknown = 4 * np.diag(spread)
    log_odds: Array = 4 * estimate / unknown
    return log_odds


def guess(evidence: Evidence, observation: Observation, *, confidence: float) -> OneRun:
    """Guess, compare with the coins, and bound."""
    canaries = observation.canaries
    planted = canaries.planted[: len(canaries)].numpy()
    log_odds = scores(evidence, observation.mechanism.sampling_rate)
    delta = observation.claimed.delta
    by_curve, guesses = bounds.best(log_odds, planted, delta=delta, confidence=confidence)
    by_point, _ = bounds.best(
        log_odds, planted, delta=delta, confidence=confidence, bound=bounds.steinke
    )
    ideal = bounds.ideal(
        observation.claimed.best, len(canaries), delta=delta, confidence=confidence
    )
    return OneRun(
        by_curve=by_curve,
        by_point=by_point,
        guesses=guesses,
        ideal=ideal,
        ceiling=bounds.ceiling(len(canaries), confidence=confidence),
    )
