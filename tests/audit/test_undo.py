"""Optimizers are undone from what a peer sees."""

import pytest
import torch
from torch import Tensor

from proxyfl.audit.observe import Mechanism, Seen
from proxyfl.audit.undo import undo
from proxyfl.simulation.config import Optimizer

ROUNDS = 60
SIZE = 400
DIVISOR = 50
NOISE = 4.0


def trained(settings: Optimizer, steps: int) -> tuple[Seen, Tensor]:
    """Rounds of a real optimizer on drawn sums, as a peer sees them, and the sums of each step."""
    generator = torch.Generator().manual_seed(1)
    theta = torch.nn.Parameter(torch.randn(SIZE, generator=generator))
    options = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    optimizer: torch.optim.Optimizer = torch.optim.Adam([theta], **options)
    if settings.name == "sgd":
        optimizer = torch.optim.SGD([theta], momentum=settings.momentum, **options)
    seen = Seen()
    truth = []
    for number in range(ROUNDS):
        seen.rounds.append(number)
        seen.steps.append(steps)
        seen.starts.append(theta.detach().clone())
        for _ in range(steps):
            drawn = NOISE * torch.randn(SIZE, generator=generator)
            theta.grad = drawn / DIVISOR
            optimizer.step()
            truth.append(drawn)
        seen.releases.append(theta.detach().clone())
    return seen, torch.stack(truth)


def undone(settings: Optimizer, steps: int) -> tuple[Tensor, Tensor]:
    """What a peer makes of the rounds, and the truth behind it: the same sum of true steps."""
    seen, truth = trained(settings, steps)
    mechanism = Mechanism(0.3, NOISE, 1.0, DIVISOR, settings)
    found = undo(seen, mechanism)
    return found.sums, found.weights.float() @ truth


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 3])
def test_sgd_is_undone_exactly(momentum: float, steps: int) -> None:
    """Momentum and weight decay hide nothing from who sees every round."""
    settings = Optimizer("sgd", 0.5, momentum=momentum, weight_decay=1e-4)
    found, truth = undone(settings, steps)
    assert torch.allclose(found, truth, atol=2e-2)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_adam_hides_almost_nothing(steps: int) -> None:
    """A mean that all steps share is seen as in the true gradients; the first rounds are worst."""
    settings = Optimizer("adam", 0.1)
    found, truth = undone(settings, steps)
    late = slice(ROUNDS // 3, None)
    assert correlation(found[late], truth[late]) > 0.98
    seen, _ = trained(settings, steps)
    reach = undo(seen, Mechanism(0.3, NOISE, 1.0, DIVISOR, settings)).response
    weights = reach.sum(dim=1).float()
    assert correlation(weights @ found, weights @ truth) > 0.98


@pytest.mark.parametrize(
    "settings", [Optimizer("sgd", 0.5, momentum=0.9), Optimizer("adam", 0.1)], ids=["sgd", "adam"]
)
def test_the_noise_is_white_and_of_one_step(settings: Optimizer) -> None:
    """Rounds that overlap through momentum are independent once undone."""
    found, _ = undone(settings, steps=2)
    assert float(found[10:].std()) == pytest.approx(NOISE, rel=0.05)
    assert abs(correlation(found[10:-1], found[11:])) < 0.05


def correlation(one: Tensor, other: Tensor) -> float:
    """Pearson's, over all entries."""
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])
