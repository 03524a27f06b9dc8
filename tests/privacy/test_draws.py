"""What a model draws for itself: secret under real noise, the seed's under simulated noise."""

import pytest
import torch
from torch import nn

from proxyfl.data.examples import InMemory
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.perexample.draws import fresh_state, model_draws
from proxyfl.seeds import Seeded, System
from proxyfl.settings import DP


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


@pytest.mark.parametrize("real", [True, False])
def test_a_step_draws_by_its_noise(real: bool) -> None:
    """Two equal steps with dropout under one seed: their losses are equal in a simulation only."""
    x, y = torch.ones(30, 6), torch.arange(30) % 3
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3))
        private = DPSGD(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            InMemory(x, y),
            dp=DP(clip_norm=1.0, noise_multiplier=1.0),
            classes=3,
            batch_size=30,
            ledger=Ledger("a", delta=1e-5, kind=Kind.END_TO_END, simulated=not real),
            batches=System() if real else Seeded(0, "batches"),
            noise=System() if real else Seeded(0, "noise"),
        )
        private.begin_round(0, 1)
        torch.manual_seed(3)
        losses.append(private.step(private.draw()))
    assert (losses[0] == losses[1]) is not real
