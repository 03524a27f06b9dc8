"""Solving for noise and steps: the target is respected, and nothing is given away."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.errors import ConfigError
from proxyfl.privacy.accounting import Segment, epsilon_of
from proxyfl.privacy.calibration import _smallest, most, noise_for, steps_for
from proxyfl.settings import ACCOUNTANTS


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize(
    ("target", "rate", "steps", "delta"),
    [(1.5, 0.05, 300, 1e-4), (1.0, 1.0, 20, 1e-5), (60.0, 0.25, 400, 1e-3)],
)
def test_noise_is_the_smallest(
    accountant: str, target: float, rate: float, steps: int, delta: float
) -> None:
    """The noise found keeps within the target; a thousandth less would not."""
    noise = noise_for(target, sampling_rate=rate, steps=steps, delta=delta, accountant=accountant)
    assert epsilon_of([Segment(rate, noise, steps)], delta, accountant) <= target
    assert epsilon_of([Segment(rate, noise * (1 - 1e-3), steps)], delta, accountant) > target


@settings(max_examples=8)
@given(target=st.floats(0.5, 20.0), rate=st.floats(0.01, 1.0), steps=st.integers(1, 2000))
def test_noise_by_rdp_anywhere(target: float, rate: float, steps: int) -> None:
    """Over a wide range of settings the noise found is within the target and tight, and has four
    digits."""
    noise = noise_for(target, sampling_rate=rate, steps=steps, delta=1e-5, accountant="rdp")
    assert epsilon_of([Segment(rate, noise, steps)], 1e-5, "rdp") <= target
    assert epsilon_of([Segment(rate, noise * (1 - 1e-3), steps)], 1e-5, "rdp") > target
    assert float(f"{noise:.4g}") == noise


def test_the_papers_noise() -> None:
    """Asked for the paper's first epsilon, RDP answers with the paper's noise, and PLD with
    less."""
    setting = {"sampling_rate": 32 / 2338, "steps": 2190, "delta": 1e-5}
    assert noise_for(2.3773, accountant="rdp", **setting) == 1.4
    assert noise_for(2.3773, **setting) < 1.33


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_steps_are_the_most(accountant: str) -> None:
    """The number of steps found keeps within the target; one more would not."""
    steps = steps_for(
        4.0, sampling_rate=0.05, noise_multiplier=2.0, delta=1e-3, accountant=accountant
    )
    assert steps > 1000
    assert epsilon_of([Segment(0.05, 2.0, steps)], 1e-3, accountant) <= 4.0
    assert epsilon_of([Segment(0.05, 2.0, steps + 1)], 1e-3, accountant) > 4.0


def test_no_step_fits() -> None:
    """Where one step already costs too much, the answer is 0."""
    assert steps_for(0.5, sampling_rate=1.0, noise_multiplier=1.0, delta=1e-5) == 0


def test_one_step_fits() -> None:
    """Where exactly one step fits, the answer is 1."""
    one, two = (epsilon_of([Segment(0.5, 2.0, n)], 1e-5, "pld") for n in (1, 2))
    assert steps_for((one + two) / 2, sampling_rate=0.5, noise_multiplier=2.0, delta=1e-5) == 1


def test_unbounded_steps_are_an_error() -> None:
    """So much noise that the number of steps has no practical limit is an error, not a number."""
    with pytest.raises(ConfigError, match=r"no limit"):
        steps_for(50.0, sampling_rate=1e-6, noise_multiplier=100.0, delta=1e-5, accountant="rdp")


def test_pointless_target_is_an_error() -> None:
    """A target that needs no noise is an error that says so."""
    with pytest.raises(ConfigError, match="protects nobody"):
        noise_for(1e9, sampling_rate=0.1, steps=1, delta=1e-5, accountant="rdp")


def test_impossible_target_is_an_error() -> None:
    """A target that the paper's orders cannot prove is an error that names the other accountant."""
    with pytest.raises(ConfigError, match="pld accountant"):
        noise_for(1e-3, sampling_rate=0.5, steps=100, delta=1e-9, accountant="rdp")


@pytest.mark.parametrize(
    ("change", "found"),
    [({"epsilon": 0.0}, "epsilon=0"), ({"steps": 0}, "steps=0"), ({"accountant": "x"}, "'x'")],
)
def test_bad_values_are_named(change: dict[str, object], found: str) -> None:
    """A value out of range is refused by name."""
    setting = {
        "epsilon": 1.0,
        "steps": 10,
        "sampling_rate": 0.1,
        "delta": 1e-5,
        "accountant": "rdp",
    } | change
    with pytest.raises(ConfigError, match=found):
        noise_for(**setting)  # type: ignore[arg-type]


@given(threshold=st.floats(0.02, 500.0), error=st.floats(-0.01, 0.01))
def test_rounding_ends_at_the_smallest(threshold: float, error: float) -> None:
    """From a start on either side, rounding finds the smallest four-digit number that fits."""
    found = _smallest(threshold * (1 + error), lambda noise: noise >= threshold)
    assert threshold <= found < threshold * (1 + 1e-3)
    assert float(f"{found:.4g}") == found


@given(low=st.integers(0, 50), span=st.integers(0, 50), data=st.data())
def test_most_finds_the_last_that_fits(low: int, span: int, data: st.DataObject) -> None:
    """The search ends at the threshold, wherever in the range that is."""
    threshold = data.draw(st.integers(low, low + span))
    assert most(lambda n: n <= threshold, low, low + span) == threshold
