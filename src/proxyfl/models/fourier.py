r"""Logistic regression on random waves: a proxy that sees interactions and stays linear in what it
learns.

    features = LENGTH sqrt(2 / WAVES) cos(F x + b),   F ~ N(0, BANDWIDTH^2 / d),   b ~ U(0, 2 pi)

for d inputs (Rahimi and Recht 2007: random features of a Gaussian kernel). F and b are public
numbers that never change: they are drawn from a seed of their own, the same for everybody.

Guarantees: only the last layer learns and travels; the features of an example have a length of
LENGTH on average, whatever the example, so that clipping treats all alike.
"""

import math

import torch
from torch import Tensor, nn

from proxyfl._examples import Shape

WAVES = 256
LENGTH = 2.0
BANDWIDTH = 3.4
"""How quickly the waves change. With about this, one category more or less matters and a row that
differs in half of its columns is a stranger."""

_SEED = 2007


class Fourier(nn.Module):
    """A linear layer on fixed random waves of the inputs."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(_SEED)
        normal = torch.randn(inputs, WAVES, generator=draw)
        uniform = torch.rand(WAVES, generator=draw)
        frequencies = normal * BANDWIDTH / inputs**0.5
        phases = uniform * 2 * math.pi
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("phases", phases)
        self.last = nn.Linear(WAVES, classes)

    def forward(self, x: Tensor) -> Tensor:
        angles = x.flatten(1) @ self.get_buffer("frequencies")
        waves = torch.cos(angles + self.get_buffer("phases"))
        height = LENGTH * math.sqrt(2 / WAVES)
        logits: Tensor = self.last(waves * height)
        return logits


def fourier(shape: Shape, classes: int) -> nn.Module:
    """Logistic regression on 256 random waves of the inputs."""
    return Fourier(math.prod(shape), classes)
