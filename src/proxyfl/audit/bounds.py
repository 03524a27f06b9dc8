r"""Lower bounds on epsilon from guesses about who took part, in one run.

An auditor plants m canaries, each by a fair coin of its own, watches what is released, and guesses
for r of the m canaries whether they took part (abstaining on the others); v guesses are right. If
the release were (epsilon, delta)-DP, v could not be large too often. The largest epsilon that the
guesses contradict at the stated confidence is a lower bound on the true one.

    steinke    Steinke, Nasr, Jagielski 2023 (arXiv 2305.08846v1, Theorem 5.2): with
               p = e^epsilon / (1 + e^epsilon) and W ~ Binomial(r, p),
               P[V >= v] <= P[W >= v] + 2 m delta max_i (P[W >= v - i] - P[W >= v]) / i

    f_dp       Mahloujifar, Melis, Chaudhuri 2024 (arXiv 2410.22235, Algorithm 3): the same
               question asked of a whole trade-off curve f, here the Gaussian mechanism's that is
               (epsilon, delta)-DP. A recursion over the number of right guesses bounds how much
               probability can lie on v or more of them; it uses more of what a curve says than
               one point (epsilon, delta) of it, so its bounds are larger.

Guarantees:
    * ``steinke`` holds for every (epsilon, delta)-DP mechanism, ``f_dp`` for every mechanism whose
      trade-off curve lies on or above the Gaussian one: with probability ``confidence`` over the
      coins and the run the bound is at most the true epsilon;
    * the threshold for abstaining must not depend on the coins; ``best`` pays for trying several
      (Bonferroni);
    * r guesses can never show more than ``ceiling``: the epsilon at which even a perfect record
      would have been luck with probability 1 - confidence.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from proxyfl._validate import number, whole
from proxyfl.errors import ConfigError

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_LARGEST = 100.0
"""No audit distinguishes epsilons beyond this one."""

_THRESHOLDS = 12
"""The numbers of guesses that ``best`` tries."""


@dataclass(frozen=True)
class Guesses:
    """The outcome of one audit: ``canaries`` planted by coin, ``made`` guesses, ``right`` ones."""

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        whole("canaries", self.canaries)
        if not 0 <= self.right <= self.made <= self.canaries:
            raise ConfigError(
                "Expected 0 <= right guesses <= guesses <= canaries, got "
                f"{self.right}, {self.made} and {self.canaries}."
            )


def steinke(guesses: Guesses, *, delta: float, confidence: float) -> float:
    """The largest epsilon that the guesses contradict, whatever the mechanism."""

    def contradiction(epsilon: float) -> float:
        return (1 - confidence) - _chance(guesses, epsilon, delta)

    return _largest(contradiction, delta, confidence)


@lru_cache(maxsize=4096)
def f_dp(guesses: Guesses, *, delta: float, confidence: float) -> float:
    """The largest epsilon that the guesses contradict, for Gaussian trade-off curves."""
    if guesses.right == 0:
        return 0.0

    def contradiction(epsilon: float) -> float:
        return _excess(guesses, gaussian_mu(epsilon, delta), 1 - confidence)

    return _largest(contradiction, delta, confidence)


def ceiling(made: int, *, confidence: float) -> float:
    """The epsilon that ``made`` guesses, all of them right, would show for delta = 0."""
    whole("guesses", made)
    chance = (1 - confidence) ** (1 / made)
    return max(0.0, math.log(chance / (1 - chance)))


def best(
    scores: Array,
    took_part: Mask,
    *,
    delta: float,
    confidence: float,
    bound: Callable[..., float] = f_dp,
) -> tuple[float, Guesses]:
    """The best bound over several numbers of guesses, and the guesses that gave it.

    A score is larger the more the release looks as if the canary took part. Guessing "took part"
    for the k highest and "did not" for the k lowest scores depends on the scores alone, not on the
    coins. Each of the values of k is tried at its share of the error.
    """
    ranked = took_part[np.argsort(-scores, kind="stable")]
    count = len(ranked)
    strict = 1 - (1 - confidence) / _THRESHOLDS
    largest = 0.0
    behind_it = Guesses(count, 0, 0)
    for half in _halves(count):
        highest = ranked[:half]
        lowest = ranked[count - half :]
        right = int(highest.sum()) + int((~lowest).sum())
        guesses = Guesses(count, 2 * half, right)
        value = bound(guesses, delta=delta, confidence=strict)
        if value > largest:
            largest = value
            behind_it = guesses
    return largest, behind_it


def ideal(
    epsilon: float,
    canaries: int,
    *,
    delta: float,
    confidence: float,
    bound: Callable[..., float] = f_dp,
    trials: int = 100,
) -> float:
    """The bound that the best possible attacker on the Gaussian mechanism reaches, on average over
    ``trials``.

    Each canary is its own coordinate: a score is N(1, s^2) if it took part and N(-1, s^2) if not,
    with s such that one canary's curve is that of (``epsilon``, ``delta``).
    """
    distance = gaussian_mu(epsilon, delta)
    generator = np.random.default_rng(0)
    reached = []
    for _ in range(trials):
        took_part = generator.random(canaries) < 0.5
        scores = generator.standard_normal(canaries) + distance * took_part
        value, _ = best(scores, took_part, delta=delta, confidence=confidence, bound=bound)
        reached.append(value)
    return float(np.mean(reached))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu at which the Gaussian mechanism (sensitivity 1, noise 1/mu) is (epsilon, delta)-DP.

    delta(mu) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) (Balle and Wang 2018).
    """
    number("delta", delta, above=0, below=1)

    def gap(mu: float) -> float:
        centre = -epsilon / mu
        first = special.ndtr(centre + mu / 2)
        second = math.exp(epsilon + special.log_ndtr(centre - mu / 2))
        return float(first - second) - delta

    high = 1.0
    while gap(high) < 0:
        high *= 2
    return float(optimize.brentq(gap, 1e-9, high, xtol=1e-10))


def _chance(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Steinke et al., Thm 5.2: the chance of so many right guesses under (epsilon, delta)-DP."""
    right = guesses.right
    p = 1 / (1 + math.exp(-epsilon))
    W = stats.binom(guesses.made, p)
    beta = float(W.sf(right - 1))
    shifts = np.arange(1, right + 1)
    gained = W.sf(right - shifts - 1) - beta
    alpha = float(np.max(gained / shifts, initial=0.0))
    return min(1.0, beta + 2 * guesses.canaries * delta * alpha)


def _excess(guesses: Guesses, mu: float, error: float) -> float:
    """Positive if a curve G_mu cannot give as many right guesses with probability ``error``.

    ``right`` and ``wrong`` are the probabilities that a guess among the first i right ones is
    right or wrong, in parts of all canaries. Under G_mu, right mass r needs wrong mass of at least
    Phi(Phi^-1(r) - mu); what that adds for i right guesses raises r for the others.
    """
    made = guesses.made
    canaries = guesses.canaries
    right = error * guesses.right / canaries
    wrong = error * (made - guesses.right) / canaries
    for i in range(guesses.right - 1, -1, -1):
        needed = float(special.ndtr(special.ndtri(right) - mu))
        if needed <= wrong:
            break
        added = i / (made - i) * (needed - wrong)
        right = min(1.0, right + added)
        wrong = needed
    return right + wrong - made / canaries


def _largest(contradiction: Callable[[float], float], delta: float, confidence: float) -> float:
    """The root of a function that falls in epsilon; 0 if even epsilon 0 is not contradiction."""
    number("delta", delta, above=0, below=1)
    number("confidence", confidence, above=0, below=1)
    low = 1e-6
    if contradiction(low) <= 0:
        return 0.0
    high = 1.0
    while contradiction(high) > 0:
        low = high
        high *= 2
        if high > _LARGEST:
            return _LARGEST
    return float(optimize.brentq(contradiction, low, high, xtol=1e-6))


def _halves(canaries: int) -> list[int]:
    """Numbers of guesses on each side, from a few to half of the canaries, evenly in logarithms."""
    most = canaries // 2
    if most < 1:
        return []
    spread = np.geomspace(min(5, most), most, _THRESHOLDS)
    return sorted(set(map(round, spread.tolist())))
