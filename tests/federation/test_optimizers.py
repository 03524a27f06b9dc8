"""The optimizers of a federation: torch's own numbers, without torch's compiler."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from proxyfl.federation import optimizers

OPTIONS = {
    "Adam": {"lr": 0.01, "weight_decay": 0.1},
    "SGD": {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9},
}


def steps(kind: type, options: dict[str, float], *, restored: bool) -> list[torch.Tensor]:
    """The weights after five steps with made-up gradients; ``restored`` from its state midway."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))]
    optimizer = kind(weights, fused=True, **options)
    for number in range(5):
        optimizer.zero_grad()
        assert all(weight.grad is None for weight in weights)
        for weight in weights:
            weight.grad = torch.full_like(weight, 0.1 * (number + 1))
        optimizer.step()
        if restored and number == 2:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = kind(weights, fused=True, **options)
            optimizer.load_state_dict(state)
    return [weight.detach() for weight in weights]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("restored", [False, True])
def test_they_give_torchs_own_numbers(name: str, restored: bool) -> None:
    """Each step and each restored state equals torch's own, to the last bit."""
    own = steps(getattr(optimizers, name), OPTIONS[name], restored=restored)
    theirs = steps(getattr(torch.optim, name), OPTIONS[name], restored=restored)
    assert all(map(torch.equal, own, theirs))


@pytest.mark.parametrize("name", OPTIONS)
def test_hooks_run_after_each_step(name: str) -> None:
    """A schedule that hangs on the steps is called once a step, also in a copy."""
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = getattr(optimizers, name)([weight], **OPTIONS[name])
    copy.deepcopy(optimizer).step()
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.step()
    optimizer.step()
    assert calls == [1, 1]


def test_training_loads_no_compiler() -> None:
    """A DP step and a plain one run without torch's compiler, which takes seconds to load."""
    code = """
import sys
import torch
from proxyfl import DPSGD, models
from proxyfl.data.examples import InMemory
from proxyfl.federation.trainers import descend, optimizer_over
from proxyfl.settings import DP, Optimizer
model = models.build("mlp", shape=(1, 8, 8), classes=10, seed=0)
adam = optimizer_over(Optimizer(), model)
descend(adam, model(torch.zeros(2, 1, 8, 8)).sum())
adam.load_state_dict(adam.state_dict())
examples = InMemory(torch.randn(20, 1, 8, 8), torch.arange(20) % 10)
DPSGD(model, adam, examples, dp=DP(), classes=10, batch_size=5).train(1)
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
