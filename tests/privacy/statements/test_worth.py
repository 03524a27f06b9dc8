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
    """The module's formulas, by hand for four hospitals: no class is missing, so that
    share = REACH / (1 + rho / 3)."""
    found = worth(HEART)
    once = found.settings.noise_multiplier / math.sqrt(found.settings.rounds)
    rho = once**2 * 25 / 184
    x = 25 / 184
    assert found.rho == pytest.approx(rho)
    assert found.most == pytest.approx(100 * 5 * 0.2 * x / (1 + x / 2) * 0.75)
    assert found.share == pytest.approx(0.85 / (1 + rho / 3))
    assert found.gain == pytest.approx(found.share * found.most)


def test_joining_counts_as_something_between_alone_and_pooled() -> None:
    """As K n examples with next to no noise, as n with very much."""
    quiet = worth(dataclasses.replace(HEART, parameters=1, epsilon=20.0))
    loud = worth(dataclasses.replace(HEART, parameters=10**7))
    assert quiet.counts_as == pytest.approx(4 * 184, rel=0.01)
    assert loud.counts_as == pytest.approx(184, rel=0.01)


def test_classes_that_a_site_lacks_are_worth_joining_for() -> None:
    """With two of ten classes, most of what pooling gives is the other eight, and the noise takes
    a smaller part of it."""
    all_seen = Facts(8, 1000, 650, 1.0, 1e-4, classes=10, score=0.98)
    two_seen = dataclasses.replace(all_seen, seen=2)
    assert worth(two_seen).most == pytest.approx(worth(all_seen).most + 48 * 0.8)
    assert worth(two_seen).share > worth(all_seen).share


def test_the_largest_proxy_is_the_last_that_recovers_half() -> None:
    """One parameter more, and the share is below a half."""
    largest = worth(HEART).largest_proxy
    fits = dataclasses.replace(HEART, parameters=largest)
    too_many = dataclasses.replace(HEART, parameters=largest + 1)
    assert worth(fits).share >= 0.5 > worth(too_many).share


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
    assert found.share < 0.01
    assert found.largest_proxy < 199_210


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clients": 1}, "clients"),
        ({"examples": 0}, "examples"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.5}, "delta <= 1/N"),
        ({"score": 0.5}, "score"),
        ({"seen": 3}, "1 to 2 classes"),
    ],
)
def test_facts_that_cannot_be(wrong: dict[str, float], message: str) -> None:
    """Each is refused by name."""
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(HEART, **wrong)
