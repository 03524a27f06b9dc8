"""What a model draws for itself: secret under real noise, the seed's under simulated noise."""

import pytest
import torch
from torch import nn

from proxyfl.privacy.draws import fresh_state, model_draws


def mask(*, simulated: bool) -> torch.Tensor:
    """A dropout mask under a known seed."""
    torch.manual_seed(7)
    with model_draws(simulated=simulated):
        return nn.functional.dropout(torch.ones(200), 0.5) > 0


def test_real_noise_hides_the_masks() -> None:
    """With real noise a known seed gives another mask every time, and goes on undisturbed."""
    assert not torch.equal(mask(simulated=False), mask(simulated=False))
    torch.manual_seed(7)
    expected = torch.rand(3)
    mask(simulated=False)
    assert torch.equal(torch.rand(3), expected)


def test_simulated_noise_repeats_the_masks() -> None:
    """With simulated noise the mask is that of the seed."""
    assert torch.equal(mask(simulated=True), mask(simulated=True))


def test_the_words_lie_where_they_are_written() -> None:
    """The first of the twister's words after seeding is the seed itself."""
    state = torch.Generator().manual_seed(12345).get_state()
    assert int(state[24:32].view(torch.int64)) == 12345


def test_every_word_of_the_state_is_fresh() -> None:
    """Two fresh states share next to none of their words, and the generator takes them."""
    first, second = (fresh_state()[24 : 24 + 8 * 624].view(torch.int64) for _ in range(2))
    assert int((first == second).sum()) < 3
    assert int(first.min()) >= 0
    assert int(first.max()) < 2**32
    generator = torch.Generator()
    generator.set_state(fresh_state())
    drawn = torch.rand(100_000, generator=generator)
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.01)
