"""What a person with several records is promised, against a computation by hand."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.persons import person_epsilon
from tests.privacy.alike import pld_epsilon


def one_step_epsilon(noise: float, rate: float, records: int, delta: float) -> float:
    """Epsilon of one step by numerical integration of both hockey-stick divergences."""
    at = np.linspace(-12 * noise, records + 12 * noise, 400_001)
    width = at[1] - at[0]
    without = stats.norm.pdf(at, 0, noise)
    drawn = stats.binom.pmf(np.arange(records + 1), records, rate)
    parts = [chance * stats.norm.pdf(at, j, noise) for j, chance in enumerate(drawn)]
    present = np.sum(parts, axis=0)

    def excess(epsilon: float) -> float:
        factor = math.exp(epsilon)
        removed = np.maximum(present - factor * without, 0).sum() * width
        added = np.maximum(without - factor * present, 0).sum() * width
        return float(max(removed, added) - delta)

    return float(optimize.brentq(excess, 0, 60))


@pytest.mark.parametrize(
    ("noise", "rate", "records"), [(1.0, 0.1, 2), (2.0, 0.5, 4), (0.8, 1.0, 3)]
)
def test_one_step_equals_the_integral(noise: float, rate: float, records: int) -> None:
    """One step's epsilon is that of the mixture of Gaussians, and never below it."""
    exact = one_step_epsilon(noise, rate, records, 1e-4)
    found = person_epsilon(Segment(rate, noise, 1), records, 1e-4)
    assert exact - 1e-6 <= found <= exact + 0.01


def test_without_sampling_a_person_is_a_larger_step() -> None:
    """If everyone is drawn, k records under noise sigma are one under sigma / k."""
    found = person_epsilon(Segment(1.0, 6.0, 4), 3, 1e-5)
    alike = pld_epsilon(sampling_rate=1.0, noise_multiplier=2.0, steps=4, delta=1e-5)
    assert found == pytest.approx(alike, rel=2e-3)


def test_more_records_cost_more() -> None:
    """Epsilon grows with the records, faster than in proportion, and no step costs nothing."""
    segment = Segment(0.2, 4.0, 10)
    found = [person_epsilon(segment, records, 1e-5) for records in (1, 2, 4)]
    assert found[0] == pld_epsilon(sampling_rate=0.2, noise_multiplier=4.0, steps=10, delta=1e-5)
    assert found[1] > 2 * found[0]
    assert found[2] > 2 * found[1]
    assert person_epsilon(Segment(0.2, 4.0, 0), 4, 1e-5) == 0
