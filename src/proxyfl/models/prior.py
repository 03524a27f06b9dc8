"""A model that starts from publicly known class shares."""

import math
from collections.abc import Sequence

import torch
from torch import nn


def set_prior(model: nn.Module, shares: Sequence[float]) -> bool:
    """Set the bias of the last linear layer to the log of ``shares``, so that training begins at
    the known prevalence; whether the model has such a layer."""
    for layer in reversed(list(model.modules())):
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            if layer.out_features != len(shares):
                return False
            logs = list(map(math.log, shares))
            with torch.no_grad():
                layer.bias.copy_(layer.bias.new_tensor(logs))
            return True
    return False
