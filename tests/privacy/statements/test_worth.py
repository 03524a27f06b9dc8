"""What joining is expected to be worth: the arithmetic of the rule, and noise within the budget."""

import dataclasses
import math

import pytest

from proxyfl.errors import ConfigError
from proxyfl.privacy.accounting import Segment, epsilon_of
from proxyfl.privacy.statements.worth import Facts, settings_for, worth

HEART = Facts(clients=4, examples=184, parameters=50, epsilon=1.0, delta=4e-4)


def test_the_noise_keeps_the_budget() -> None:
    """All steps together cost at most epsilon, by the PLD accountant."""
    settings = settings_for(HEART)
    steps = Segment(1.0, settings.noise_multiplier, settings.rounds)
    assert epsilon_of([steps], HEART.delta, "pld") <= HEART.epsilon


def test_the_share_is_the_formula() -> None:
    """share = 1 - rho / (K - 1), rho = sigma_1^2 P (C - 1) / (C n)."""
    found = worth(HEART)
    once = found.settings.noise_multiplier / math.sqrt(found.settings.rounds)
    rho = once**2 * 25 / 184
    assert found.rho == pytest.approx(rho)
    assert found.share == pytest.approx(1 - rho / 3)
    assert found.counts_as == pytest.approx(4 * 184 / (1 + rho))


def test_more_of_everything_good_is_worth_more() -> None:
    """A larger epsilon, more sites or fewer parameters never lower the share."""
    share = worth(HEART).share
    for better in ({"epsilon": 3.0}, {"clients": 16}, {"parameters": 20}):
        assert worth(dataclasses.replace(HEART, **better)).share > share


def test_a_large_proxy_is_not_worth_it() -> None:
    """The paper's MLP between eight sites of 1000 images at epsilon 1: do not join."""
    facts = Facts(8, 1000, 199_210, 1.0, 1e-4, classes=10)
    found = worth(facts)
    assert not found.join
    assert found.share < 0
    assert found.largest_proxy(facts) < 199_210


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clients": 1}, "clients"),
        ({"examples": 0}, "examples"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.5}, "delta <= 1/N"),
    ],
)
def test_facts_that_cannot_be(wrong: dict[str, float], message: str) -> None:
    """Each is refused by name."""
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(HEART, **wrong)
