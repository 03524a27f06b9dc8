"""Fully connected models. They flatten whatever comes, so they fit every shape."""

import math

from torch import nn

from proxyfl._examples import Shape


def _layers(
    shape: Shape,
    classes: int,
    *hidden: int,
) -> nn.Sequential:
    model = nn.Sequential(nn.Flatten())
    width = math.prod(shape)
    for units in hidden:
        model.append(nn.Linear(width, units))
        model.append(nn.ReLU())
        width = units
    return model.append(nn.Linear(width, classes))


def linear(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression: the fewest parameters, so the least noise under DP."""
    return _layers(shape, classes)


def mlp(shape: Shape, classes: int) -> nn.Module:
    """The paper's MLP (appendix): two hidden layers of 200 units, ReLU."""
    return _layers(shape, classes, 200, 200)


def tabular(shape: Shape, classes: int) -> nn.Module:
    """For tables: two hidden layers of 64 units, ReLU. No normalisation: its statistics would have
    to be accounted."""
    return _layers(shape, classes, 64, 64)
