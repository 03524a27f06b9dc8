"""Fully connected models. They flatten whatever comes, so they fit every shape."""

import math

from torch import nn


def _layers(
    shape: tuple[int, ...], hidden: tuple[int, ...], classes: int
) -> nn.Sequential:
    model = nn.Sequential(nn.Flatten())
    width = math.prod(shape)
    for units in hidden:
        model.extend([nn.Linear(width, units), nn.ReLU()])
        width = units
    return model.append(nn.Linear(width, classes))


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression: the fewest parameters, so the least noise under DP."""
    return _layers(shape, (), classes)


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's MLP (appendix): two hidden layers of 200 units, ReLU."""
    return _layers(shape, (200, 200), classes)


def tabular(shape: tuple[int, ...], classes: int) -> nn.Module:
    """For tables: two hidden layers of 64 units, ReLU. No normalisation: its statistics would have
    to be accounted."""
    return _layers(shape, (64, 64), classes)
