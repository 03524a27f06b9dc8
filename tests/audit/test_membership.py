"""Membership inference by likelihood ratio: it finds what is there and nothing where nothing is."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from proxyfl.audit.membership import as_dict, attack, likelihood_ratios
from proxyfl.audit.shadows import TARGETS, Shadow, confidences
from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError
from proxyfl.measures import Curve


def made(shift: float, federations: int = 24, records: int = 200) -> list[Shadow]:
    """Federations whose answers about members are higher by ``shift`` standard deviations."""
    generator = np.random.default_rng(3)
    difficulty = 3 * generator.standard_normal(records)
    found = []
    for number in range(federations):
        members = generator.random(records) < 0.5
        answers = difficulty + shift * members + generator.standard_normal(records)
        row = tuple(answers.tolist())
        found.append(Shadow(number, tuple(members.tolist()), dict.fromkeys(TARGETS, row)))
    return found


def test_a_shift_is_found_as_far_as_it_can_be() -> None:
    """The curve comes close to that of two normal distributions a known distance apart."""
    curve = attack(made(2.0))["private model"]
    for rate in (0.01, 0.1):
        best = stats.norm.sf(stats.norm.isf(rate) - 2.0)
        assert 0.75 * best < curve.sensitivity_at(1 - rate) < 1.15 * best
    assert curve.auroc() == pytest.approx(stats.norm.cdf(2.0 / 2**0.5), abs=0.02)


def test_where_nothing_differs_nothing_is_found() -> None:
    """Members who leave no trace are recognised as often as others are mistaken for them."""
    curve = attack(made(0.0))["proxy with DP"]
    assert curve.auroc() == pytest.approx(0.5, abs=0.03)
    assert curve.sensitivity_at(1 - 0.01) < 0.03


def test_a_target_is_not_compared_with_itself() -> None:
    """A federation's own membership does not enter its scores."""
    shadows = made(1.0, federations=8, records=30)
    answers = np.array([shadow.answers[TARGETS[0]] for shadow in shadows])
    members = np.array([shadow.members for shadow in shadows])
    before = likelihood_ratios(answers, members)[0]
    members[0] = ~members[0]
    after = likelihood_ratios(answers, members)[0]
    assert np.array_equal(before, after, equal_nan=True)


def test_rates_on_a_curve_by_hand() -> None:
    """True positives are counted above the threshold that the allowed others may pass."""
    curve = Curve.of(np.array([9.0, 5.0, 3.0, 1.0, 6.0, 4.0, 2.0, 0.0]), np.arange(8) < 4)
    assert curve.sensitivity_at(1 - 0.0) == 0.25
    assert curve.sensitivity_at(1 - 0.25) == 0.5
    assert curve.sensitivity_at(1 - 0.5) == 0.75
    assert curve.sensitivity_at(1 - 1.0) == 1.0
    assert curve.auroc() == pytest.approx(10 / 16)


def test_the_document_says_how_many_scores_there_were() -> None:
    """Rates come with the numbers of members and non-members behind them."""
    found = as_dict(attack(made(1.0)), federations=24, client=0)
    for row in found["targets"]:
        assert row["members"] + row["non_members"] == 24 * 200
    rates = [row["tpr"] for row in found["roc"] if row["target"] == TARGETS[0]]
    assert rates == sorted(rates)
    assert rates[-1] == 1.0


def test_too_few_federations_are_refused() -> None:
    """The message names how many are needed."""
    with pytest.raises(ConfigError, match="at least 8 shadow federations, got 2"):
        attack(made(1.0, federations=2))


def test_an_answer_is_the_logit_of_the_own_label() -> None:
    """log(p / (1 - p)), also where p is so close to 1 that 1 - p would vanish."""
    model = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [2.0], [200.0]]))
    records = InMemory(torch.ones(2, 1), torch.tensor([1, 2]))
    first, second = confidences(model, records)
    assert first == pytest.approx(-198.0, abs=1e-3)
    assert second == pytest.approx(198.0 - np.log1p(np.exp(-1.0)), abs=1e-3)
