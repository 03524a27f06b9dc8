"""Optimizers are undone from what a peer sees."""

import pytest
import torch
from torch import Tensor

from proxyfl.audit.observe import Mechanism, Seen
from proxyfl.audit.undo import noisy_sums
from proxyfl.simulation.config import Optimizer

ROUNDS = 60
SIZE = 400
DIVISOR = 50
NOISE = 4.0


def trained(settings: Optimizer, steps: int) -> tuple[Seen, Tensor]:
    """Rounds of a real optimizer on drawn sums, as a peer sees them, and the sums themselves."""
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
        total = torch.zeros(SIZE)
        for _ in range(steps):
            drawn = NOISE * torch.randn(SIZE, generator=generator)
            theta.grad = drawn / DIVISOR
            optimizer.step()
            total += drawn
        seen.releases.append(theta.detach().clone())
        truth.append(total)
    return seen, torch.stack(truth)


def undone(settings: Optimizer, steps: int) -> tuple[Tensor, Tensor]:
    """What a peer makes of the rounds, and the truth."""
    seen, truth = trained(settings, steps)
    mechanism = Mechanism(0.3, NOISE, 1.0, DIVISOR, settings)
    return torch.stack(list(noisy_sums(seen, mechanism))), truth


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_with_one_step_a_round_is_undone_exactly(momentum: float) -> None:
    """Momentum and weight decay hide nothing from who sees every step."""
    found, truth = undone(Optimizer("sgd", 0.5, momentum=momentum), steps=1)
    assert torch.allclose(found, truth, atol=2e-3)


@pytest.mark.parametrize(
    ("settings", "steps", "least"),
    [
        (Optimizer("sgd", 0.5), 3, 0.999),
        (Optimizer("sgd", 0.5, momentum=0.9), 2, 0.85),
        (Optimizer("adam", 0.1), 1, 0.85),
        (Optimizer("adam", 0.1), 2, 0.85),
    ],
)
def test_a_peer_recovers_most_of_the_sums(
    settings: Optimizer, steps: int, least: float
) -> None:
    """After a few rounds what is recovered is strongly correlated with the true sums."""
    found, truth = undone(settings, steps)
    late = slice(ROUNDS // 3, None)
    both = torch.stack([found[late].flatten(), truth[late].flatten()])
    assert float(torch.corrcoef(both)[0, 1]) > least
