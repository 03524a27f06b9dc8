"""All that a learner's next round depends on, as one flat dict of tensors: nothing in it needs
pickle to be stored."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

State = dict[str, Tensor]

Parts = tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]
"""Models and optimizers, each by its name in a state."""

_NONE: Mapping[str, Any] = MappingProxyType({})


def pack(
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer] = _NONE,
    *,
    streams: Mapping[str, Tensor | None] = _NONE,
) -> State:
    """Copies of everything, under names such as "proxy/0.weight", "proxy optimizer/1/exp_avg",
    "streams/noise"."""
    state: State = {}
    for name, model in models.items():
        for key, value in model.state_dict().items():
            state[f"{name}/{key}"] = _copy(value)
    for name, optimizer in optimizers.items():
        for index, slots in optimizer.state_dict()["state"].items():
            for key, value in slots.items():
                state[f"{name}/{index}/{key}"] = _copy(torch.as_tensor(value))
    for key, stream in streams.items():
        if stream is not None:
            state[f"streams/{key}"] = stream.clone()
    return state


def unpack(
    state: State,
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer] = _NONE,
) -> dict[str, Tensor | None]:
    """Put a state back into models and optimizers; return the random streams' states."""
    for name, model in models.items():
        model.load_state_dict(below(state, f"{name}/"))
    for name, optimizer in optimizers.items():
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in below(state, f"{name}/").items():
            index, _, slot = key.partition("/")
            slots.setdefault(int(index), {})[slot] = value
        optimizer.load_state_dict(optimizer.state_dict() | {"state": slots})
        _lay_out(optimizer)
    return dict(below(state, "streams/"))


def _copy(value: Tensor) -> Tensor:
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Give each slot its parameter's memory layout: a fused optimizer walks both in step and does
    not look."""
    for parameter, slots in optimizer.state.items():
        for key, value in slots.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                slots[key] = torch.empty_like(parameter).copy_(value).detach()


def below(tensors: Mapping[str, Tensor], prefix: str) -> State:
    """The tensors whose names begin with ``prefix``, which is taken off."""
    state = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            state[name.removeprefix(prefix)] = tensor
    return state
