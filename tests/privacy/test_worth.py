"""What joining is expected to be worth: the arithmetic of the rule, and noise within the budget."""

import dataclasses
import math

import mpmath
import pytest

from proxyfl.errors import ConfigError
from proxyfl.privacy.accounting import Segment, epsilon_of
from proxyfl.privacy.worth import (
    FASTEST,
    MORE_ROUNDS,
    ROUNDS,
    RULE,
    Facts,
    advise_columns,
    gaussian_dp,
    needed,
    noise_ratio,
    own_error,
    proxy_error,
    settings_for,
    step_for,
    worth,
)

HEART = Facts(clients=4, examples=184, parameters=50, epsilon=1.0, delta=4e-4)
RARE = Facts(29, 300, 26, 1.0, 1e-4, score=0.75, prevalence=0.05)


def changed(facts: Facts, **changes: float | None) -> Facts:
    """The facts with some of them changed."""
    return dataclasses.replace(facts, **changes)


def test_the_noise_keeps_the_budget() -> None:
    """All steps together cost at most epsilon, by the PLD accountant."""
    settings = settings_for(HEART)
    steps = Segment(1.0, settings.noise_multiplier, settings.rounds)
    assert epsilon_of([steps], HEART.delta, "pld") <= HEART.epsilon


def test_the_formulas_by_hand() -> None:
    """r_a, r_p and the gain of a site with 20 % cases, computed from the module's equations."""
    facts = changed(HEART, prevalence=0.2)
    settings = settings_for(facts)
    mu = math.sqrt(settings.rounds) / settings.noise_multiplier
    d0 = math.sqrt(2) * 0.8416212  # the normal quantile of 0.8
    own = RULE.own * (25 / (184 * 0.16 * d0**2)) ** RULE.power * 0.75
    noise = RULE.noise * (25**RULE.width * 2 / (mu * 736 * 0.16 * d0)) ** (2 * RULE.power)
    assert own_error(facts) == pytest.approx(own, rel=1e-5)
    assert proxy_error(facts) == pytest.approx(noise, rel=2e-3)

    def auroc(r: float) -> float:
        return (1 + math.erf(d0 / math.sqrt(2 * (1 + r)) / math.sqrt(2))) / 2

    together = 1 / (1 / own + 1 / noise)
    gain = RULE.reach * (auroc(together) - auroc(own))
    found = worth(facts)
    assert found.gain == pytest.approx(100 * gain, rel=5e-3)
    spread = RULE.spread * math.sqrt(gain * (0.8 - auroc(together)))
    assert found.low == pytest.approx(100 * (gain - spread), abs=0.02)
    assert found.share == pytest.approx(found.gain / found.most)


def test_the_budget_as_gaussian_dp() -> None:
    """One release with noise 1 / mu spends epsilon exactly, by the PLD accountant."""
    mu = gaussian_dp(1.0, 1e-4)
    assert epsilon_of([Segment(1.0, 1 / mu, 1)], 1e-4, "pld") == pytest.approx(1.0, rel=2e-3)


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 19.0, 200.0, 708.0, 710.0, 1e5, 1e9])
def test_a_budget_of_any_size_is_a_gaussian_one(epsilon: float) -> None:
    """A manifest of many rounds asks for an epsilon whose exponential no float holds. The ratio
    satisfies the mechanism's equation, computed by mpmath, on both sides of it."""
    mu = gaussian_dp(epsilon, 1e-5)
    with mpmath.workdps(60):
        spent = []
        for each in (mpmath.mpf(mu) * (1 - mpmath.mpf("1e-6")), mu * (1 + mpmath.mpf("1e-6"))):
            a, b = each / 2 - epsilon / each, each / 2 + epsilon / each
            tail = mpmath.erfc(b / mpmath.sqrt(2)) / 2
            spent.append(mpmath.erfc(-a / mpmath.sqrt(2)) / 2 - mpmath.exp(epsilon) * tail)
        assert spent[0] < mpmath.mpf("1e-5") < spent[1]
    assert gaussian_dp(math.inf, 1e-5) == math.inf


def test_the_score_cancels_in_the_ratio() -> None:
    """What a site compares at home is r_p / r_a, whatever the literature's score."""
    for score in (0.6, 0.9):
        facts = changed(RARE, score=score)
        ratio = noise_ratio(
            clients=29,
            honest=1,
            width=13,
            mu=gaussian_dp(1.0, 1e-4),
            total=29 * 300,
            prevalence=0.05,
            examples=300,
            own_prevalence=0.05,
        )
        assert ratio == pytest.approx(proxy_error(facts) / own_error(facts))


def test_cases_are_the_currency() -> None:
    """With the same examples, a rare outcome leaves a smaller share of what pooling gives."""
    shares = [worth(changed(RARE, prevalence=p)).share for p in (0.5, 0.2, 0.05, 0.01)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[0] / 2


def test_a_masked_sum_gains_more() -> None:
    """The noise of h members is enough, and the step grows as its noise shrinks."""
    masked = changed(RARE, colluders=14)
    assert worth(masked).share > worth(RARE).share
    assert proxy_error(masked) == pytest.approx(proxy_error(RARE) / 15**RULE.power)
    wide = changed(HEART, parameters=500)
    slower = settings_for(wide).learning_rate
    assert settings_for(changed(wide, colluders=2)).learning_rate == pytest.approx(
        slower * math.sqrt(2), rel=0.05
    )
    assert settings_for(masked).settle == 1


def test_a_known_score_of_ones_own_counts() -> None:
    """A site whose own model is nearly as good as the best gains next to nothing; r_a is such that
    the stated score comes out."""
    good = worth(changed(HEART, alone=0.795))
    poor = worth(changed(HEART, alone=0.65))
    assert good.alone == pytest.approx(0.795)
    assert poor.alone == pytest.approx(0.65)
    assert good.gain < 0.5 < poor.gain
    assert not good.join
    assert worth(changed(HEART, alone=0.85)).gain == 0


def test_a_small_site_gains_more_than_a_large_one() -> None:
    """The same proxy is worth more to the site that has less."""
    small = worth(RARE, examples=100)
    large = worth(RARE, examples=2000)
    assert small.alone < large.alone
    assert small.gain > large.gain


def test_joining_counts_as_more_than_ones_own() -> None:
    """With next to no noise as many examples, with very much as one's own."""
    quiet = worth(changed(HEART, epsilon=20.0, parameters=2))
    loud = worth(changed(HEART, parameters=10**7))
    assert quiet.counts_as > 10 * 184
    assert loud.counts_as == pytest.approx(184, rel=0.01)


def test_classes_that_a_site_lacks_are_worth_joining_for() -> None:
    """With two of ten classes, most of what pooling gives is the other eight, and the noise takes
    a smaller part of it."""
    all_seen = Facts(8, 1000, 650, 1.0, 1e-4, classes=10, score=0.98)
    two_seen = changed(all_seen, seen=2)
    assert worth(two_seen).most > worth(all_seen).most + 35
    assert worth(two_seen).share > worth(all_seen).share


def test_more_of_everything_good_is_worth_more() -> None:
    """A larger epsilon, more sites or fewer parameters never lower the share."""
    share = worth(HEART).share
    for better in ({"epsilon": 3.0}, {"clients": 16}, {"parameters": 20}):
        assert worth(changed(HEART, **better)).share > share


def test_two_sites_cannot_do_this() -> None:
    """Two sites with thirty columns at epsilon 1 are told not to join, and what would be enough
    is enough."""
    two = Facts(2, 230, 62, 1.0, 4e-4, score=0.82, prevalence=0.35)
    assert not worth(two).join
    found = needed(two)
    assert found.sites is not None
    assert found.epsilon is not None
    assert worth(changed(two, clients=found.sites)).join
    assert not worth(changed(two, clients=found.sites - 1)).join
    assert worth(changed(two, epsilon=found.epsilon)).join


def test_the_step_is_short_for_weak_signals_of_narrow_proxies() -> None:
    """Half as long below an AUROC of 0.78 or 10 % cases, unless the proxy is wide."""
    narrow = changed(HEART, parameters=40)
    assert step_for(narrow) == 0.1
    assert step_for(changed(narrow, score=0.77)) == 0.05
    assert step_for(changed(narrow, prevalence=0.09)) == 0.05
    assert step_for(changed(narrow, prevalence=0.91)) == 0.05
    assert step_for(changed(narrow, score=0.77, parameters=42)) == 0.1
    rare = settings_for(changed(narrow, prevalence=0.05)).learning_rate
    assert rare == pytest.approx(settings_for(narrow).learning_rate / 2, rel=0.05)


def test_fewer_columns_are_advised_where_noise_takes_much() -> None:
    """The advice has both shares; a federation that loses little to noise is not bothered."""
    advice = advise_columns(changed(HEART, parameters=120))
    assert advice is not None
    assert "with 60 parameters" in advice
    assert advise_columns(changed(HEART, parameters=10, clients=60)) is None


def test_a_large_proxy_is_not_worth_it() -> None:
    """The paper's MLP between eight sites of 1000 images at epsilon 1: do not join."""
    found = worth(Facts(8, 1000, 199_210, 1.0, 1e-4, classes=10))
    assert not found.join
    assert found.share < 0.01


def test_a_run_that_may_well_lose_is_not_advised() -> None:
    """A gain of a point in the mean is not enough: five runs in six must gain half a point."""
    found = worth(changed(RARE, clients=6))
    assert found.gain > 1
    assert found.low < 0.5
    assert not found.join


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clients": 1}, "clients"),
        ({"examples": 0}, "examples"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.5}, "delta <= 1/N"),
        ({"score": 0.5}, "score"),
        ({"seen": 3}, "1 to 2 classes"),
        ({"prevalence": 0.0}, "prevalence"),
        ({"alone": 1.0}, "alone"),
        ({"colluders": 0}, "colluders"),
        ({"colluders": 4}, "fewer colluders"),
    ],
)
def test_facts_that_cannot_be(wrong: dict[str, float], message: str) -> None:
    """Each is refused by name."""
    with pytest.raises(ConfigError, match=message):
        changed(HEART, **wrong)


def test_steps_of_the_settings() -> None:
    """The noise is for as many steps as the settings have."""
    assert settings_for(HEART).rounds == ROUNDS


def test_a_masked_sum_with_room_takes_more_steps_for_a_rare_outcome() -> None:
    """Where so many sites share the noise that the learning rate is at its limit even so. Gossip, a
    usual outcome and a few sites take the usual number. The noise is that of all steps."""
    gusto = Facts(121, 270, 64, 1.0, 2.2e-4, score=0.82, prevalence=0.07, colluders=60)
    settings = settings_for(gusto)
    assert (settings.rounds, settings.learning_rate) == (MORE_ROUNDS, FASTEST)
    steps = [Segment(1.0, settings.noise_multiplier, MORE_ROUNDS)]
    assert epsilon_of(steps, gusto.delta, "pld") == pytest.approx(1.0, rel=0.01)
    assert settings_for(changed(gusto, colluders=None)).rounds == ROUNDS
    assert settings_for(changed(gusto, prevalence=0.3)).rounds == ROUNDS
    assert settings_for(changed(gusto, clients=6, colluders=3)).rounds == ROUNDS
