"""Faster arithmetic for models that are trained without DP.

A processor with bfloat16 instructions multiplies such numbers about twice as fast, and a
convolution is little else: a step of CNN2 then takes little more than half its time (``make
bench``). Weights, optimizer and loss stay in float32 (torch's autocast).

It is never used under DP-SGD: there, eight bits of mantissa would be between an example's gradient
and its norm, and the bound on the norm is the guarantee."""

from types import MethodType

import torch
from torch import Tensor, nn

from proxyfl.errors import ModelError


def computing_in(precision: str, model: nn.Module) -> nn.Module:
    """``model``, which from now on computes its logits in ``precision`` and returns them in
    float32.

    The model stays the object it is, so what is saved of it has the same names. A deep copy runs
    its own weights."""
    if precision == "float32":
        return model
    if "forward" in vars(model) and not _is_lowered(model):
        raise ModelError(
            f"The forward of {type(model).__name__} was set on the object; a deep copy would run "
            'the original\'s weights. Define forward in the class, or use precision="float32".'
        )
    # A bound method is copied with its object, unlike a function that remembers it.
    model.forward = MethodType(_lowered, model)
    return model


def _lowered(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        logits: Tensor = type(model).forward(model, x)
    return logits.float()


def _is_lowered(model: nn.Module) -> bool:
    return getattr(vars(model)["forward"], "__func__", None) is _lowered
