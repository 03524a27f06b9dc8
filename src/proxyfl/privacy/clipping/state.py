"""The state that a model carries from one forward pass to the next.

Memory carries one record into the gradients of others, in the same batch or in later ones, past all
clipping. Models that change anything of themselves in a forward pass are refused by the name of the
layer: weights, buffers, and attributes of its modules (numbers, tensors, lists and dictionaries of
these). What their Python keeps elsewhere, in a global variable or a file, is not seen here."""

from collections import deque
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from proxyfl.errors import ModelError

_OWN = {
    "training",
    "_parameters",
    "_buffers",
    "_modules",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
}
"""Attributes that torch itself keeps on a module. Parameters and buffers are looked at by
themselves."""


class State:
    """A model as it was when this was made. ``deep`` looks at the weights, and into objects and
    generators as well, which tools may fill at their first use."""

    def __init__(self, model: nn.Module, *, deep: bool = False) -> None:
        self._model = model
        self._deep = deep
        self._buffers = {}
        for name, buffer in model.named_buffers():
            self._buffers[name] = (buffer, buffer.clone())
        self._weights = {}
        for name, weight in model.named_parameters() if deep else ():
            self._weights[name] = weight.detach().clone()
        self._attributes = {}
        for path, module in model.named_modules():
            self._attributes[path] = _attributes(module, deep)

    def changed_buffer(self) -> str | None:
        """The name of a buffer that has been written to, if any."""
        now = dict(self._model.named_buffers())
        if now.keys() != self._buffers.keys():
            return next(iter(now.keys() ^ self._buffers.keys()))
        for name, (buffer, value) in self._buffers.items():
            if now[name] is not buffer or not _equal(buffer, value):
                return name
        return None

    def changed_weight(self) -> str | None:
        """The name of a weight that has been written to, if any was looked at."""
        now = dict(self._model.named_parameters())
        for name, value in self._weights.items():
            if name not in now or not _equal(now[name], value):
                return name
        return None

    def changed_attribute(self) -> tuple[str, str] | None:
        """The layer and the attribute that is another than before, if any."""
        for path, module in self._model.named_modules():
            before = self._attributes.get(path, {})
            now = _attributes(module, self._deep)
            for name in now.keys() ^ before.keys():
                return path, name
            for name, value in now.items():
                if value != before[name]:
                    return path, name
        return None

    def check(self, *, buffers: bool = True) -> None:
        """Raise ``ModelError`` if the model is no longer as it was."""
        weight = self.changed_weight()
        if weight is not None:
            raise ModelError(
                f"The proxy model changes its weight '{weight}' in a forward pass: it would carry "
                "one record into the gradients of others. Compute what you need from the weight, "
                "and leave the weight as it is."
            )
        written = self.changed_buffer() if buffers else None
        if written is not None:
            path, _, name = written.rpartition(".")
            raise ModelError(
                f"The proxy model's {_layer(path)} changes its buffer '{name}' in a forward pass: "
                "it would carry one record into the gradients of others. Use a layer without "
                "running statistics (track_running_stats=False, nn.GroupNorm), or compute the "
                "buffer once, in the constructor."
            )
        attribute = self.changed_attribute()
        if attribute is not None:
            path, name = attribute
            raise ModelError(
                f"The proxy model's {_layer(path)} changes its attribute '{name}' in a forward "
                "pass: what a model remembers carries one record into the gradients of others. "
                "Keep it in a local variable of forward()."
            )

    def restore_buffers(self) -> None:
        """Put every buffer back to its value."""
        with torch.no_grad():
            for buffer, value in self._buffers.values():
                if not _equal(buffer, value):
                    buffer.copy_(value)


def _layer(path: str) -> str:
    return f"layer '{path}'" if path else "own code (the model itself)"


def _attributes(module: nn.Module, deep: bool) -> dict[str, Any]:
    """A picture of a module's attributes that compares equal as long as none of them changes."""
    passed_over = set(_OWN)
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm):
            passed_over.add(hook.name)  # derived anew in every pass
    found = {}
    for name, value in vars(module).items():
        if name not in passed_over:
            found[name] = _picture(value, deep)
    return found


def _picture(value: Any, deep: bool, depth: int = 3) -> Any:
    if isinstance(value, Tensor):
        return ("tensor", id(value), value._version)
    if isinstance(value, str | int | float | bool | complex | bytes | type(None)):
        return value if value == value else "nan"
    if depth and isinstance(value, dict):
        items = [(repr(k), _picture(v, deep, depth - 1)) for k, v in value.items()]
        return ("dict", items)
    if depth and isinstance(value, list | tuple | set | frozenset | deque):
        items = [_picture(v, deep, depth - 1) for v in value]
        return (type(value).__name__, len(value), items)
    if deep and depth:
        return ("object", id(value), _inside(value, depth))
    return ("object", id(value))


def _inside(value: Any, depth: int) -> Any:
    """The content of an object: an array's numbers, a generator's place, or its attributes."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().tolist())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, Random):
        return value.getstate()
    if isinstance(value, type) or callable(value):
        return None
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    return _picture(dict(attributes), True, depth - 1)


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if torch.equal(one, other):
        return True
    if not torch.equal(one.isnan(), other.isnan()):
        return False
    return torch.equal(one.nan_to_num(), other.nan_to_num())
