r"""Step by step, after Nasr et al. 2023 (arXiv 2302.07956): measure the steps, then compose them.

Peers see every round, so the audit measures what noise and what share of a record the steps really
had, bounds both at the stated confidence, and composes as many steps by PLD:

    share    a = q s, from the noisy sums along the sum of the records' clipped gradients: s is 1 if
             a record adds its clipped gradient and q is the rate at which it is drawn
    noise    sigma, from the part of the noisy sums that no record's gradient can explain
    bound    epsilon of the steps (q, noise multiplier q sigma_upper / a_lower)

Assumptions, beyond those of ``observe``: the noise is Gaussian, it is the same in all directions,
and what a record adds is in proportion to its clipped gradient. Not assumed, but measured: that the
noise is new in every round and the client's own. What earlier rounds or other clients' releases
explain of it is no noise to a peer, so only the unexplained part counts; a tenth of it or more is
irregular by itself. (Noise that is the same in every round hides the mean of the records, but not
which of them were drawn; the bound would miss it.)

Guarantees:
    * for a mechanism that is as claimed, the noise bound falls below the stated noise, and so the
      epsilon rises above the claim, with probability at most 1 - confidence. The error is split
      between share (half), noise and repetition (a quarter each);
    * more noise than claimed, a smaller share, or errors of the inversion lower the bound.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
from scipy import stats

from proxyfl._validate import number
from proxyfl.audit.bounds import Array
from proxyfl.audit.evidence import Evidence
from proxyfl.audit.observe import Observation
from proxyfl.errors import ConfigError
from proxyfl.privacy.accounting import AccountingWarning, Segment, pld_of

FEWEST_ROUNDS = 5

_LEAST_NOISE = 0.2
"""Less noise than this is taken for this much: its epsilon is beyond what can be composed."""

_MATERIAL = 0.1
"""So much of a round's noise must be explained by other releases before it is called irregular."""

_IRREGULAR = 1e-3
"""The probability with which the steadiness of the noise is doubted without reason."""


@dataclass(frozen=True)
class Steps:
    """The result of looking at each step.

    ``noise_at_most`` is an upper bound, at the stated confidence, of the noise multiplier that the
    steps had in effect; ``noise_estimate`` is the same without the margins. Infinite: no trace.
    ``share`` (of a record's clipped gradient that a step adds on average) and ``noise`` are
    measured, in units of the clip norm. ``explained`` is the largest part of a round's noise that
    earlier rounds or other clients explain. ``steady`` is False where the noise differs from round
    to round by more than chance; None where the optimizer hides that.
    """

    noise_at_most: float
    noise_estimate: float
    share: float
    noise: float
    explained: float
    steady: bool | None

    @property
    def regular(self) -> bool:
        """True if the noise may be what was accounted for: steady, new and the client's own."""
        return self.steady is not False and self.explained < _MATERIAL


def measure(evidence: Evidence, observation: Observation, *, confidence: float) -> Steps:
    """Measure and bound; ``epsilon`` composes."""
    number("confidence", confidence, above=0, below=1)
    rounds = len(evidence.along)
    if rounds < FEWEST_ROUNDS:
        raise ConfigError(
            f"Expected at least {FEWEST_ROUNDS} rounds in which the audited client takes part, "
            f"got {rounds}. Raise rounds."
        )
    error = 1 - confidence
    explained = _explain(evidence, error / 4)
    own = np.maximum(1 - explained, 1e-9)
    weights = 1 / (evidence.variances * own)
    share, margin = _share(evidence, weights, error / 2)
    noise, widest = _noise(evidence, weights, error / 4)
    return Steps(
        noise_at_most=_multiplier(share - margin, widest, observation),
        noise_estimate=_multiplier(share, noise, observation),
        share=share,
        noise=noise,
        explained=float(explained.max()),
        steady=_steady(evidence, observation),
    )


def _share(evidence: Evidence, weights: Array, error: float) -> tuple[float, float]:
    """The mean share and the margin below it, by a t interval over rounds."""
    rounds = len(weights)
    total = float(weights @ evidence.lengths)
    share = float(weights @ evidence.along) / total
    apart = weights * (evidence.along - share * evidence.lengths)
    variance = float(apart @ apart) * rounds / (rounds - 1)
    spread = math.sqrt(variance) / total
    quantile = float(stats.t.isf(error, rounds - 1))
    return share, quantile * spread


def _noise(evidence: Evidence, weights: Array, error: float) -> tuple[float, float]:
    """The noise of a step: its harmonic mean over the rounds, and an upper bound of that."""
    freedoms = evidence.freedoms
    # An estimated variance's inverse is too large by f / (f - 2) on average.
    unbiased = weights * np.maximum(freedoms - 2, 1) / freedoms
    noise = 1 / math.sqrt(float(unbiased.mean()))
    total = float(freedoms.sum())
    quantile = float(stats.chi2.ppf(error, total))
    return noise, noise * math.sqrt(total / quantile)


def _explain(evidence: Evidence, error: float) -> Array:
    """For each round the part of its noise that an earlier round or another client explains.

    A correlation counts if it is larger than any of all that are looked at would be by chance, and
    then with the lower end of its interval (Fisher's z).
    """
    rounds = len(evidence.residuals)
    rows = list(map(_unit, evidence.residuals))
    others = sum(map(len, evidence.peers))
    looked_at = rounds * (rounds - 1) / 2 + others
    reach = float(stats.norm.isf(error / (2 * looked_at)))
    shares = np.zeros(rounds)
    for i, row in enumerate(rows):
        largest = 0.0
        beside = map(_unit, evidence.peers[i].values())
        for other in (*rows[:i], *beside):
            largest = max(largest, abs(float(row @ other)))
        z = math.atanh(min(1 - 1e-9, largest))
        freedom = max(1.0, evidence.freedoms[i] - 3)
        low = z - reach / math.sqrt(freedom)
        shares[i] = math.tanh(max(0.0, low)) ** 2
    return shares


def _unit(vector: np.ndarray) -> Array:
    wide: Array = vector.astype(np.float64)
    return wide / max(float(np.linalg.norm(wide)), 1e-30)


def _steady(evidence: Evidence, observation: Observation) -> bool | None:
    """True if all rounds have the same noise, by Bartlett's test; None where Adam hides it."""
    if observation.mechanism.optimizer.name != "sgd":
        return None
    freedoms = evidence.freedoms
    variances = evidence.variances
    pooled = float(freedoms @ variances) / float(freedoms.sum())
    statistic = float(freedoms @ np.log(pooled / variances))
    chance = stats.chi2.sf(statistic, len(freedoms) - 1)
    return bool(chance > _IRREGULAR)


def _multiplier(share: float, noise: float, observation: Observation) -> float:
    """The noise multiplier of a record that is drawn at the stated rate and adds this share."""
    if share <= 0:
        return math.inf
    return observation.mechanism.sampling_rate * noise / share


def epsilon(noise_multiplier: float, observation: Observation) -> float:
    """Epsilon of the audited steps at the stated rate and this noise, by PLD."""
    if math.isinf(noise_multiplier):
        return 0.0
    rate = observation.mechanism.sampling_rate
    noise = max(_LEAST_NOISE, noise_multiplier)
    segment = Segment(rate, noise, sum(observation.audited.steps))
    with warnings.catch_warnings():
        # Where PLD cannot be computed RDP stands in: far above any claim either way.
        warnings.simplefilter("ignore", AccountingWarning)
        return pld_of([segment], observation.claimed.delta)
