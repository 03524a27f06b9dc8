"""A model's trainable parameters as one flat vector, and back.

What travels between clients is this vector and nothing else: names, shapes and order are agreed
beforehand and checked by ``fingerprint``."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from proxyfl._files import short_hash
from proxyfl.errors import ModelError


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that learn, each once, in the order of ``named_parameters``."""
    return [p for p in model.parameters() if p.requires_grad]


def names(model: nn.Module) -> list[str]:
    """The names of the parameters that learn, in the same order."""
    return [name for name, p in model.named_parameters() if p.requires_grad]


def size(model: nn.Module) -> int:
    """The length of the flat vector."""
    return sum(p.numel() for p in trainable(model))


def flatten(model: nn.Module) -> Tensor:
    """A copy of the trainable parameters, end to end."""
    parts = [p.detach().reshape(-1) for p in trainable(model)]
    return torch.cat(parts) if parts else torch.empty(0)


@torch.no_grad()
def load_flat(model: nn.Module, flat: Tensor) -> None:
    """Write ``flat`` into the trainable parameters, in place."""
    expected = size(model)
    if flat.numel() != expected:
        raise ModelError(
            f"Expected {expected} parameters for {type(model).__name__}, got {flat.numel()}. "
            "Both must be of the same architecture."
        )
    parts = split(model, flat)
    for parameter, part in zip(trainable(model), parts, strict=True):
        parameter.copy_(part)


def split(model: nn.Module, flat: Tensor) -> list[Tensor]:
    """Views of ``flat``, one per trainable parameter and of its shape."""
    parameters = trainable(model)
    sizes = [parameter.numel() for parameter in parameters]
    views = []
    for part, parameter in zip(torch.split(flat, sizes), parameters, strict=True):
        views.append(part.view(parameter.shape))
    return views


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """``model`` in evaluation mode for a while; it is left in the mode it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def fingerprint(model: nn.Module) -> str:
    """A short hash of the names, shapes and types of the trainable parameters: equal means
    exchangeable."""
    layout = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            shape = tuple(parameter.shape)
            layout.append((name, shape, str(parameter.dtype)))
    return short_hash(repr(layout).encode())
