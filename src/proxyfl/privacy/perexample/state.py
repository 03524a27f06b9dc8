"""The state that a model carries from one forward pass to the next.

Memory carries one record into the gradients of others, in the same batch or in later ones, past all
clipping. Models that change anything of themselves in a forward pass are refused by the name of the
layer: weights, buffers, and attributes of its modules (numbers, tensors, lists and dictionaries of
these).

A ``deep`` picture is for models whose own Python runs on records. It follows every reference that
Python's garbage collector knows of, from each module, its hooks and its class: containers, objects
with and without ``__dict__``, modules that are not registered, functions with their closures and
defaults, methods, class attributes, generators; and the global variables that the functions name.
Tensors and arrays are compared by their numbers, so that a write past autograd counts, too. It does
not see files, other processes, thread-local variables, modules that are imported within a function,
variables whose name is made up as a text, the inside of libraries (settings of Python and torch,
the environment), or anything beyond the first ``_MOST`` objects."""

import builtins
import gc
import hashlib
import sys
from collections import deque
from collections.abc import Iterator
from itertools import count
from random import Random
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from proxyfl._setonce import SetOnce
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

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "proxyfl"}
"""Packages whose classes and global variables are no memory of a model's."""

_PLAIN = (str, int, float, bool, complex, bytes, type(None))

_MOST = 50_000
"""Objects that a deep picture has at most."""


class State:
    """A model as it was when this was made. ``deep`` looks at the weights, and at all that the
    model's Python can reach, which tools may fill at their first use."""

    def __init__(self, model: nn.Module, *, deep: bool = False) -> None:
        self._model = model
        self._deep = deep
        self._buffers = {}
        for name, buffer in model.named_buffers():
            self._buffers[name] = (buffer, buffer.clone())
        self._weights = {}
        for name, weight in model.named_parameters() if deep else ():
            self._weights[name] = weight.detach().clone()
        self._on_weights = _kept_on_weights(model) if deep else {}
        self._attributes = _attributes(model, deep)

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
        now = dict(self._model.named_parameters()) if self._deep else {}
        for name, value in self._weights.items():
            if name not in now or not _equal(now[name], value):
                return name
        pictures = _kept_on_weights(self._model) if self._deep else {}
        for name, picture in self._on_weights.items():
            if pictures[name] != picture:
                return name
        return None

    def changed_attribute(self) -> tuple[str, str] | None:
        """The layer and the attribute that is another than before, if any."""
        now = _attributes(self._model, self._deep)
        for place in self._attributes.keys() ^ now.keys():
            return place
        for place, picture in self._attributes.items():
            if now[place] != picture:
                return place
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
        self.check_attributes()

    def check_attributes(self) -> None:
        """Raise ``ModelError`` if the model's Python has another state than it had."""
        attribute = self.changed_attribute()
        if attribute is not None:
            path, name = attribute
            raise ModelError(
                f"The proxy model's {_layer(path)} changes its attribute '{name}', or something "
                "that can be reached from there, in a forward pass or between two steps: what a "
                "model remembers carries one record into the gradients of others. Keep it in a "
                "local variable of forward()."
            )

    def restore_buffers(self) -> None:
        """Put every buffer back to its value."""
        with torch.no_grad():
            for buffer, value in self._buffers.values():
                if not _equal(buffer, value):
                    buffer.copy_(value)


def _kept_on_weights(model: nn.Module) -> dict[str, Any]:
    """A picture of each weight without its numbers: its gradient, whether it is trained, and what
    Python keeps on it."""
    reach = _Reach(model)
    pictures = {}
    for name, weight in model.named_parameters():
        kept = (weight.grad, vars(weight), weight._backward_hooks)
        pictures[name] = (weight.requires_grad, reach.picture(kept))
    return pictures


def _layer(path: str) -> str:
    return f"layer '{path}'" if path else "own code (the model itself)"


def _attributes(model: nn.Module, deep: bool) -> dict[tuple[str, str], Any]:
    """A picture of each attribute of each module, by path and name. It compares equal as long as
    nothing in it changes."""
    reach = _Reach(model)
    pictures: dict[tuple[str, str], Any] = {}
    for path, module in model.named_modules():
        passed_over = set(_OWN)
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm | SpectralNorm):
                passed_over.add(hook.name)  # derived anew in every pass
        for name, value in vars(module).items():
            if name not in passed_over:
                pictures[path, name] = reach.picture(value) if deep else _picture(value)
        if deep:
            for name in _HOOKS:
                pictures[path, name] = reach.picture(getattr(module, name))
            pictures[path, "training"] = module.training
            pictures[path, type(module).__name__] = reach.picture(type(module))
    return pictures


def _picture(value: Any, depth: int = 3) -> Any:
    """A picture that goes three containers deep, and not into objects."""
    if isinstance(value, Tensor):
        return ("tensor", id(value), value._version)
    if isinstance(value, _PLAIN):
        return value if value == value else "nan"
    if depth and isinstance(value, dict):
        items = [(repr(k), _picture(v, depth - 1)) for k, v in value.items()]
        return ("dict", items)
    if depth and isinstance(value, list | tuple | set | frozenset | deque):
        items = [_picture(v, depth - 1) for v in value]
        return (type(value).__name__, len(value), items)
    return ("object", id(value))


class _Reach(SetOnce):
    """Deep pictures of one model at one time. Each object is in them once, and later by number."""

    def __init__(self, model: nn.Module) -> None:
        # These are looked at by themselves.
        self._kept: list[Any] = [*model.modules(), *model.parameters(), *model.buffers()]
        self._numbers = {id(part): number for number, part in enumerate(self._kept)}

    def picture(self, value: Any) -> list[Any]:
        """Everything that can be reached from ``value``, in order."""
        picture: list[Any] = []
        todo = [value]
        while todo:
            each = todo.pop()
            if type(each) in _PLAIN:
                picture.append(repr(each))
                continue
            number = self._numbers.get(id(each))
            if number is not None or len(self._kept) > _MOST:
                picture.append(number)
                continue
            self._numbers[id(each)] = len(self._kept)
            self._kept.append(each)  # no address is given out twice
            content = _content(each)
            parts = _references(each)
            if content is None and not any(map(_tells_something, parts)):
                parts += _pickled(each)
            picture.append((type(each).__name__, content, len(parts)))
            todo += reversed(parts)
        return picture


def _content(value: Any) -> Any:
    """The numbers or letters of an object, which are no references."""
    if isinstance(value, Tensor):
        return _digest(value)
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().tolist())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, Random):
        return value.getstate()
    if isinstance(value, (*_PLAIN, count)):
        return repr(value)
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, value.co_varnames
    try:
        return hashlib.blake2b(memoryview(value).tobytes()).digest()
    except (TypeError, ValueError, NotImplementedError, BufferError):
        return None


def _digest(tensor: Tensor) -> Any:
    if tensor.grad_fn is not None:
        return id(tensor)  # equal numbers may have different gradients
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.device.type == "meta":
        return id(tensor), tensor._version
    values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return tuple(tensor.shape), hashlib.blake2b(values.tobytes()).digest()


def _references(value: Any) -> list[Any]:
    """The objects that ``value`` refers to, without those that belong to libraries."""
    if isinstance(value, ModuleType) or type(value).__name__ == "_abc_data":  # a cache of Python's
        return []
    if isinstance(value, type):
        return gc.get_referents(value) if _is_own(value.__module__) else []
    if isinstance(value, np.ndarray):
        return list(value.flat) if value.dtype.hasobject else []
    if isinstance(value, FunctionType):
        skipped = (id(value.__globals__), id(vars(builtins)))
        parts = [part for part in gc.get_referents(value) if id(part) not in skipped]
        return [*parts, *_globals(value)]
    if isinstance(value, CodeType):
        return list(value.co_consts)
    getattr(value, "__dict__", None)  # Python makes it when it is first asked for
    parts = gc.get_referents(value)
    if isinstance(value, Tensor) and value.is_leaf:
        parts.append(value.grad)
    return parts


def _globals(function: FunctionType) -> Iterator[Any]:
    """The global variables that a function names, its own or those of another module."""
    if not _is_own(function.__module__):
        return
    names = sorted(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        yield value
        if isinstance(value, ModuleType) and _is_own(value.__name__):
            yield from (vars(value).get(each) for each in names)


def _names(code: CodeType) -> set[str]:
    """The names in a piece of code and in the functions within it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _tells_something(part: Any) -> bool:
    """False for an object's class, and for a ``__dict__`` without attributes."""
    return not (isinstance(part, type) or (type(part) is dict and not part))


def _pickled(value: Any) -> list[Any]:
    """What pickle would write of an object that shows nothing of itself, such as a counter."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # whatever an object's own code raises: it cannot be looked into
        return []
    return [reduced] if isinstance(reduced, str) else [*reduced[1:]]


def _is_own(module: Any) -> bool:
    """True for code that is neither Python's nor torch's nor ours."""
    return isinstance(module, str) and module.partition(".")[0] not in _LIBRARIES


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if torch.equal(one, other):
        return True
    if not torch.equal(one.isnan(), other.isnan()):
        return False
    return torch.equal(one.nan_to_num(), other.nan_to_num())
