"""Two neighbouring datasets: the leak at beta > 0, and none at beta = 0."""

import math

import pytest

from benchmarks.neighbours import Trials, leak, lower_bound


def test_one_record_leaks_through_the_private_model() -> None:
    """With beta = 1 the releases differ by more than the ledger's epsilon allows, at 95 %."""
    found = leak(1.0)
    assert found.lower_bound > 2 * found.claimed


def test_without_a_private_teacher_the_same_pair_shows_nothing() -> None:
    """With beta = 0 the same trials stay within the claim."""
    found = leak(0.0)
    assert found.lower_bound <= found.claimed


@pytest.mark.parametrize("mirrored", [False, True])
def test_the_bound_is_that_of_clopper_and_pearson(mirrored: bool) -> None:
    """For 30 of 30 against none, both limits are known in closed form, in either direction."""
    trials = Trials(30, 0, 30) if mirrored else Trials(30, 30, 0)
    limit = 0.0125 ** (1 / 30)
    expected = math.log((limit - 1e-5) / (1 - limit))
    assert lower_bound(trials, delta=1e-5, confidence=0.95) == pytest.approx(expected)


def test_equal_counts_show_nothing() -> None:
    """What happens equally often on both datasets bounds nothing."""
    assert lower_bound(Trials(50, 25, 25), delta=1e-5, confidence=0.95) == 0.0
