"""Max-pooling over windows of 2 x 2, several times as quick as torch's on a CPU.

torch compares number by number where the channels come first or are few. Here whole rows are
compared at a time: the two columns of every window, then its two rows. Which number of a window
was the largest is found afterwards, for the backward pass alone, which is torch's own.

Guarantees, for whatever numbers: values, gradients and, where numbers of a window are equal, the
choice of the one that gets the gradient (the first, row by row) are those of ``F.max_pool2d``, bit
for bit. Where there is a number that is none, or another kind of pooling, torch's own is used.
"""

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FEW_CHANNELS = 16
"""From here on torch's own is quicker, where the channels come last in memory."""

Sides = int | tuple[int, ...] | list[int]


def max_pool2d(
    x: Tensor,
    kernel_size: Sides,
    stride: Sides | None = None,
    padding: Sides = 0,
    dilation: Sides = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """``F.max_pool2d``, by way of ``_Pool`` where that is quicker."""
    is_2x2 = _both(kernel_size, 2) and (not stride or _both(stride, 2))
    is_plain = _both(padding, 0) and _both(dilation, 1) and not ceil_mode
    if is_2x2 and is_plain and _gains(x):
        pooled: Tensor = _Pool.apply(x)  # type: ignore[no-untyped-call]  # torch leaves it so
        return pooled
    return F.max_pool2d(x, kernel_size, stride or None, padding, dilation, ceil_mode)


def with_quick_pooling(model: nn.Module) -> nn.Module:
    """``model``, whose 2 x 2 max-pooling layers run here from now on. It stays the object it is."""
    for layer in model.modules():
        own_forward = "forward" in vars(layer)
        if type(layer) is nn.MaxPool2d and not layer.return_indices and not own_forward:
            # a bound method is copied with its object
            layer.forward = MethodType(_forward, layer)  # type: ignore[method-assign]
    return model


def _forward(layer: nn.MaxPool2d, x: Tensor) -> Tensor:
    return max_pool2d(
        x, layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode
    )


def _both(value: Sides, wanted: int) -> bool:
    return value == wanted if isinstance(value, int) else all(side == wanted for side in value)


def _gains(x: Tensor) -> bool:
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or x.dim() != 4:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:  # vmap wants rules of its own
        return False
    count, channels, height, width = x.shape
    if not count or not channels or min(height, width) < 2:
        return False
    return channels < _FEW_CHANNELS or x.stride(1) != 1


class _Pool(torch.autograd.Function):
    """The maxima of 2 x 2 windows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        left, right = _columns(x)
        of_rows = torch.maximum(left, right)
        result = torch.maximum(of_rows[..., 0::2, :], of_rows[..., 1::2, :])
        ctx.save_for_backward(x, of_rows)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, of_rows = ctx.saved_tensors
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        sides = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        gradient: Tensor = backward(gradients[0], x, *sides, _places(x, of_rows))
        return gradient


def _columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """The left and the right numbers of all windows."""
    height, width = (side // 2 * 2 for side in x.shape[2:])
    return x[..., :height, 0:width:2], x[..., :height, 1:width:2]


def _places(x: Tensor, of_rows: Tensor) -> Tensor:
    """The place in its image of the largest number of each window, as torch counts it."""
    if not _is_ordered(of_rows):
        indices: Tensor = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])[1]
        return indices
    left, right = _columns(x)
    is_right = right > left
    is_lower = of_rows[..., 1::2, :] > of_rows[..., 0::2, :]
    # of the row that has it; torch.where is several times slower
    upper, lower = is_right[..., 0::2, :], is_right[..., 1::2, :]
    shift = ((upper ^ lower) & is_lower) ^ upper
    rows, columns = of_rows.shape[2] // 2, of_rows.shape[3]
    width = x.shape[3]
    first = torch.arange(0, 2 * rows * width, 2 * width).view(-1, 1)
    corner = first + torch.arange(0, 2 * columns, 2)
    # narrow numbers are quicker; a side has fewer than 2^31
    places = is_lower.to(torch.int32).mul_(width).add_(shift.to(torch.int32))
    return places.to(torch.int64).add_(corner)


def _is_ordered(numbers: Tensor) -> bool:
    """False if one of them is no number; perhaps also for infinite ones."""
    return bool(numbers.sum().isfinite())
