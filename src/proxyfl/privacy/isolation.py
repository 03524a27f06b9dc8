"""A DP step's own settings of torch, whatever other code has set for the whole process.

torch keeps some settings for all code at once: whether gradients are computed, the type in which
numbers are multiplied, the type of new tensors, and modes and hooks that see or change every
operation. A private model, an estimator or a library may change them and leave them changed, for
one record and not for another. Under such a setting every record's gradient is another: autocast
has eight bits between a gradient and its norm, without gradients the sum is zero, and a hook of
saved tensors changes what the backward pass reads. Where anomalies are looked for, a gradient that
is not finite raises, where it should contribute nothing. So a step runs under settings of its own,
and leaves those that it found.

Guarantee: within ``isolated`` gradients are computed, in the precision of the tensors that they are
computed from, new tensors are float32 ones, and no mode or hook of other code sees an operation,
whatever was set before.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers
import torch.overrides
import torch.utils._python_dispatch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

_PRECISIONS = {
    "cpu": (("generic", "all"), *(("mkldnn", part) for part in ("all", "matmul", "conv", "rnn"))),
    "cuda": (("generic", "all"), *(("cuda", part) for part in ("all", "matmul", "conv", "rnn"))),
}
"""The places in which torch keeps the precision of products, each before those that inherit it."""


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """torch's settings for a DP step on ``device``; afterwards they are as they were."""
    with ExitStack() as settings:
        _leave_modes(settings)
        if torch.is_inference_mode_enabled():
            settings.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            settings.enter_context(torch.enable_grad())
        for kind in {"cpu", device.type}:
            if torch.is_autocast_enabled(kind):
                settings.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_dtype() is not torch.float32:
            settings.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
        if torch.is_anomaly_enabled():
            detect = torch.autograd.set_detect_anomaly
            settings.callback(detect, True, torch.is_anomaly_check_nan_enabled())
            detect(False)
        _set_hooks_aside(settings)
        _multiply_exactly(settings, device)
        yield


@contextmanager
def modes_contained() -> Iterator[None]:
    """Takes away the modes that code within it has left on torch's stacks: they would change what
    is released, stored or received afterwards."""
    functions = torch._C._len_torch_function_stack()
    operations = torch._C._len_torch_dispatch_stack()
    try:
        yield
    finally:
        while torch._C._len_torch_function_stack() > functions:
            torch.overrides._pop_mode()  # type: ignore[no-untyped-call]  # torch leaves it so
        while torch._C._len_torch_dispatch_stack() > operations:
            torch.utils._python_dispatch._pop_mode()


def _leave_modes(settings: ExitStack) -> None:
    """Takes modes off torch's stacks, and keeps hooks away from saved tensors."""
    while torch._C._len_torch_function_stack():
        settings.enter_context(torch.overrides._pop_mode_temporarily())
    while torch._C._len_torch_dispatch_stack():
        settings.enter_context(torch.utils._python_dispatch._pop_mode_temporarily())
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        settings.enter_context(saved_tensors_hooks(_same, _same))  # the innermost pair counts


def _set_hooks_aside(settings: ExitStack) -> None:
    """Empties torch's lists of hooks for all modules and all optimizers of the process."""
    every: tuple[dict[int, Any], ...] = (
        modules._global_forward_pre_hooks,
        modules._global_forward_hooks,
        modules._global_backward_pre_hooks,
        modules._global_backward_hooks,
        optimizers._global_optimizer_pre_hooks,
        optimizers._global_optimizer_post_hooks,
    )
    for hooks in every:
        if hooks:
            settings.callback(hooks.update, dict(hooks))
            hooks.clear()


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _multiply_exactly(settings: ExitStack, device: torch.device) -> None:
    """Products of float32 numbers are computed in float32."""
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        # Since 2.9 torch has a precision for each kind of product, and its older question raises
        # an error if other code has set them apart.
        for place in _PRECISIONS.get(device.type, _PRECISIONS["cpu"]):
            precision = torch._C._get_fp32_precision_getter(*place)
            if precision not in ("ieee", "none"):
                settings.callback(torch._C._set_fp32_precision_setter, *place, precision)
                torch._C._set_fp32_precision_setter(*place, "ieee")
        return
    if torch.get_float32_matmul_precision() != "highest":
        settings.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
    convolutions = torch.backends.cudnn
    if device.type == "cuda" and convolutions.allow_tf32:
        settings.callback(setattr, convolutions, "allow_tf32", True)
        convolutions.allow_tf32 = False
