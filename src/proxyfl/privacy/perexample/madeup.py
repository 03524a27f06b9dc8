"""Inputs that no client's data had a part in: all trials and recordings are made on these."""

import math

import torch
from torch import Tensor, nn

from proxyfl import params


def made_up(
    model: nn.Module,
    shape: tuple[int, ...],
    n: int,
    *,
    salt: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``n`` inputs of ``shape``, all different; another ``salt`` gives others.

    Whole numbers, small enough for every table of the model, where it starts with an embedding or
    ``dtype`` holds whole numbers; waves of height ``salt`` otherwise."""
    parameters = params.trainable(model)
    device = parameters[0].device
    count = n * math.prod(shape)
    numbers = torch.arange(count, device=device).view(n, *shape)
    floating = dtype is None or dtype.is_floating_point
    if floating and not _starts_with_a_table(model):
        waves = torch.sin(numbers * 0.7 * salt + 0.1) * salt
        return waves.to(dtype or parameters[0].dtype)
    tables = []
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            tables.append(module.num_embeddings)
    mixed = numbers * 7 + numbers // 5 + int(10 * salt)
    ids = mixed % min(tables, default=2)
    return ids if dtype is None else ids.to(dtype)


def _starts_with_a_table(model: nn.Module) -> bool:
    for module in model.modules():
        if params.trainable(module) and not list(module.children()):
            return isinstance(module, nn.Embedding)
    return False
