"""Lower bounds on epsilon from guesses: against jax-privacy, and against what they promise."""

import math

import numpy as np
import pytest

from proxyfl.audit.bounds import Guesses, best, ceiling, f_dp, gaussian_mu, ideal, steinke
from proxyfl.errors import ConfigError

GOLDEN = [
    (Guesses(600, 60, 45), 1e-05, 0.5791, 0.8233),
    (Guesses(600, 60, 45), 0.001, 0.0000, 0.5209),
    (Guesses(600, 100, 80), 1e-05, 0.9566, 1.5120),
    (Guesses(600, 100, 80), 0.001, 0.5710, 1.0049),
    (Guesses(2000, 200, 160), 1e-05, 1.0834, 1.5733),
    (Guesses(2000, 200, 160), 0.001, 0.0000, 1.0488),
    (Guesses(600, 10, 10), 1e-05, 1.0299, 1.2927),
    (Guesses(600, 10, 10), 0.001, 0.0000, 0.8488),
    (Guesses(100, 100, 40), 1e-05, 0.0000, 0.0000),
    (Guesses(100, 100, 40), 0.001, 0.0000, 0.0000),
]
"""Guesses, delta, and the two bounds at 95 % by jax-privacy 2.0.0 (``auditing._epsilon_one_run``
and ``_epsilon_one_run_fdp``), which is too large to be a dependency of the tests."""


@pytest.mark.parametrize(("guesses", "delta", "by_point", "by_curve"), GOLDEN)
def test_both_bounds_equal_jax_privacys(
    guesses: Guesses, delta: float, by_point: float, by_curve: float
) -> None:
    """Both bounds agree with jax-privacy's implementation of the two papers."""
    assert steinke(guesses, delta=delta, confidence=0.95) == pytest.approx(by_point, abs=1e-4)
    assert f_dp(guesses, delta=delta, confidence=0.95) == pytest.approx(by_curve, abs=1e-4)


def test_a_perfect_record_reaches_the_ceiling_and_no_more() -> None:
    """Steinke's bound of r right guesses of r is the epsilon with p^r = 0.05, for a tiny delta."""
    found = steinke(Guesses(40, 40, 40), delta=1e-12, confidence=0.95)
    assert found == pytest.approx(ceiling(40, confidence=0.95), abs=1e-3)
    p = 1 / (1 + math.exp(-found))
    assert p**40 == pytest.approx(0.05, abs=1e-3)


def test_coin_flips_show_nothing() -> None:
    """Guesses that are right half of the time contradict no epsilon."""
    assert steinke(Guesses(400, 200, 100), delta=1e-5, confidence=0.95) == 0
    assert f_dp(Guesses(400, 200, 100), delta=1e-5, confidence=0.95) == 0


def test_the_gaussian_curve_is_the_mechanisms() -> None:
    """mu inverts the Gaussian mechanism's delta(epsilon) (Balle and Wang), like dp-accounting."""
    from dp_accounting import get_sigma_gaussian

    for epsilon, delta in ((0.5, 1e-5), (3.0, 1e-5), (8.0, 1e-3)):
        sigma = get_sigma_gaussian(epsilon, delta)
        assert gaussian_mu(epsilon, delta) == pytest.approx(1 / sigma, rel=1e-4)


def test_an_honest_mechanism_is_not_accused() -> None:
    """Over 200 audits of a Gaussian mechanism the 95 % bound exceeds epsilon at most as often."""
    epsilon = 1.0
    delta = 1e-5
    distance = gaussian_mu(epsilon, delta)
    generator = np.random.default_rng(3)
    accused = 0
    for _ in range(200):
        took_part = generator.random(300) < 0.5
        scores = generator.standard_normal(300) + distance * took_part
        found, _ = best(scores, took_part, delta=delta, confidence=0.95)
        accused += found > epsilon
    assert accused <= 10 + 3 * math.sqrt(200 * 0.05 * 0.95)


def test_the_ideal_attacker_shows_a_part_of_epsilon() -> None:
    """At 600 canaries an ideal attacker shows about 1.2 of epsilon 3 by f-DP, less by Steinke."""
    by_curve = ideal(3.0, 600, delta=1e-5, confidence=0.95, trials=10)
    by_point = ideal(3.0, 600, delta=1e-5, confidence=0.95, trials=10, bound=steinke)
    assert 0.9 < by_curve < 1.6
    assert by_point < by_curve


def test_impossible_counts_are_refused() -> None:
    """More right guesses than guesses is an error that names the numbers."""
    with pytest.raises(ConfigError, match="3, 2 and 10"):
        Guesses(10, 2, 3)
