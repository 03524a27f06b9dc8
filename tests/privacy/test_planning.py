"""Plans: every option respects the budget, and what cannot be had is refused."""

import numpy as np
import pytest

from proxyfl.errors import ConfigError
from proxyfl.privacy.planning import Option, most_parameters, options
from tests.privacy.alike import pld_epsilon


def test_every_option_fits_and_uses_the_budget() -> None:
    """By the PLD accountant each option costs at most the budget, and not much less."""
    found = options(400, 0.5, 1e-4, rounds=(2,))
    assert {option.batch for option in found} == {4, 12, 40, 120}
    for option in found:
        assert option.steps == option.rounds * (400 // option.batch)
        cost = pld_epsilon(
            sampling_rate=option.batch / 400,
            noise_multiplier=option.noise_multiplier,
            steps=option.steps,
            delta=1e-4,
        )
        assert 0.49 < cost <= 0.5


def test_the_noise_of_the_demo() -> None:
    """The demo's proxy of 650 parameters: sigma sqrt(P) / B alone, less by sqrt(K) averaged."""
    demo = Option(batch=60, rounds=100, steps=200, noise_multiplier=4.0)
    assert demo.ratio(650) == pytest.approx(1.70, abs=0.01)
    assert demo.ratio(650, 8) == pytest.approx(0.60, abs=0.01)


def test_the_largest_proxy_is_the_last_that_is_not_hopeless() -> None:
    """One parameter more than the largest proxy has more noise than sum, under every option."""
    few = Option(batch=40, rounds=2, steps=20, noise_multiplier=2.0)
    many = Option(batch=40, rounds=3, steps=30, noise_multiplier=4.0)
    largest = most_parameters([few, many], 8)
    assert few.in_all(largest, 8) <= 1 < few.in_all(largest + 1, 8)
    assert many.in_all(largest, 8) > 1


def test_hopeless_noise_is_longer_than_gradients_that_all_agree() -> None:
    """Summed over steps and clients, drawn noise is as long as the longest sum at the limit."""
    option = Option(batch=3, rounds=1, steps=5, noise_multiplier=1.0)
    clients = 2
    size = option.largest_proxy(clients)
    generator = np.random.default_rng(0)
    shape = (2000, clients * option.steps, size)
    noise = option.noise_multiplier * generator.standard_normal(shape)
    lengths = np.linalg.norm(noise.sum(axis=1), axis=1)
    longest = clients * option.steps * option.batch
    assert float(np.sqrt((lengths**2).mean())) == pytest.approx(longest, rel=0.02)


@pytest.mark.parametrize(
    ("examples", "epsilon", "delta", "message"),
    [
        (0, 1.0, 1e-3, "examples=0"),
        (100, -1.0, 1e-3, "budget-epsilon=-1"),
        (100, 1.0, 0.02, r"delta <= 1/N = 0\.01"),
    ],
)
def test_what_cannot_be_had(examples: int, epsilon: float, delta: float, message: str) -> None:
    """No examples, no budget, and a delta that one published record would meet are refused."""
    with pytest.raises(ConfigError, match=message):
        options(examples, epsilon, delta)
