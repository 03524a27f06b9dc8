"""The weight of a convolution: its inputs overlap, and are unfolded into windows.

Each window is one position of ``product.Product``. Windows are a view of the padded images, formed
in pieces; the summed gradient is left to the backend's own kernel. Where channels are in groups, a
per-example gradient is small, and is formed and kept.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.privacy.perexample.product import Product
from proxyfl.privacy.perexample.term import Materialised, Term, by_example

_WIDE = 32
"""Output channels from which on a CPU is quicker with the channels last in memory: it multiplies
whole vectors of them, and pools them likewise."""


def conv2d(x: Tensor, weight: Tensor, *others: Any) -> Tensor:
    """``aten.conv2d``, with the channels last in memory where there are many. The numbers are the
    same up to rounding, and what follows keeps the layout."""
    if x.device.type == "cpu" and x.dim() == 4 and weight.shape[0] >= _WIDE:
        x = _channels_last(x)
    result: Tensor = torch.ops.aten.conv2d.default(x, weight, *others)
    return result


def _channels_last(x: Tensor) -> Tensor:
    _, channels, height, width = x.shape
    if channels == 1 and x.is_contiguous():
        # both layouts are the same numbers in the same order; the strides decide
        return x.as_strided(x.shape, (height * width, 1, width, 1))
    return x.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Geometry:
    """A convolution's settings, one number per dimension; padding as ``F.pad`` takes it."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int

    def windows(self, padded: Tensor, out: torch.Size) -> Tensor:
        """A view of padded inputs as (images, channels, *kernel, *out)."""
        images, channels, *_ = padded.shape
        image, channel, *spatial = padded.stride()
        inner = map(operator.mul, spatial, self.dilation)
        outer = map(operator.mul, spatial, self.stride)
        sizes = (images, channels, *self.kernel, *out)
        strides = (image, channel, *inner, *outer)
        return padded.as_strided(sizes, strides)


def term(inputs: Mapping[str, Any], images: Tensor, g: Tensor) -> Term:
    """The gradients of ``inputs["weight"]``; ``inputs`` are all that the operation was given.

    ``images`` is (n * m, channels, ...) and ``g`` (n, m, p, *out): m images per example."""
    weight = inputs["weight"]
    geometry = _geometry(inputs)
    padded = images
    if any(geometry.padding):
        padded = F.pad(images, geometry.padding)
    form = _grouped if geometry.groups > 1 else _ungrouped
    return form(weight, geometry, padded, g)


def _geometry(inputs: Mapping[str, Any]) -> Geometry:
    kernel = tuple(inputs["weight"].shape[2:])

    def each(name: str) -> tuple[int, ...]:
        value = tuple(inputs[name])
        return value * len(kernel) if len(value) == 1 else value

    dilation = each("dilation")
    padding: list[int] = []
    for d, k in reversed(list(enumerate(kernel))):
        if inputs["padding"] == "valid":
            padding += [0, 0]
        elif inputs["padding"] == "same":
            total = dilation[d] * (k - 1)
            before = total // 2
            padding += [before, total - before]
        else:
            padding += [each("padding")[d]] * 2
    return Geometry(
        kernel=kernel,
        stride=each("stride"),
        dilation=dilation,
        padding=tuple(padding),
        groups=inputs["groups"],
    )


def _ungrouped(weight: Tensor, geometry: Geometry, padded: Tensor, g: Tensor) -> Term:
    n, m, p = g.shape[:3]
    out = g.shape[3:]
    places = out.numel()

    channels = padded.shape[1]
    is_last = m == 1 and padded.dim() == 4 and channels > 1 and padded.stride(1) == 1

    def unfold(i: int, j: int) -> Tensor:
        images = padded[i * m : j * m]
        if is_last:  # whole rows of channels are copied
            rows = geometry.windows(images, out).permute(0, 4, 5, 2, 3, 1)
            return rows.reshape(len(images), places, -1).transpose(1, 2)
        windows = geometry.windows(images, out)
        flat = windows.reshape(len(images), -1, places)
        if m == 1:
            return flat
        by_example = flat.view(j - i, m, -1, places)
        return by_example.transpose(1, 2).flatten(2)

    def outputs(i: int, j: int) -> Tensor:
        by_image = g[i:j].flatten(3)
        by_channel = by_image.transpose(1, 2)
        return by_channel.reshape(j - i, p, -1)

    def contract(c: Tensor) -> Tensor:
        scaled = g * by_example(c, g)
        by_image = scaled.flatten(0, 1)
        return _weight_gradient(weight, geometry, padded, by_image)

    def arrange(gradients: Tensor) -> Tensor:
        by_kernel = gradients.view(*gradients.shape[:-1], p, *geometry.kernel, channels)
        return by_kernel.movedim(-1, -3)

    return Product(
        weight,
        padded,
        g,
        positions=m * places,
        unfold=unfold,
        outputs=outputs,
        contract=contract,
        examples=n,
        arrange=arrange if is_last else None,
    )


def _weight_gradient(weight: Tensor, geometry: Geometry, padded: Tensor, g: Tensor) -> Tensor:
    """The ordinary, summed weight gradient, by the backend's own kernel."""
    none = [0] * len(geometry.kernel)
    result: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        g,
        padded,
        weight.detach(),
        None,
        list(geometry.stride),
        none,
        list(geometry.dilation),
        False,
        none,
        geometry.groups,
        [False, True, False],
    )
    return result[1]


def _grouped(weight: Tensor, geometry: Geometry, padded: Tensor, g: Tensor) -> Term:
    """Groups see only their own channels, so a per-example gradient is small."""
    n, m = g.shape[:2]
    out = g.shape[3:]
    places = out.numel()
    rows = n * m * geometry.groups
    windows = geometry.windows(padded, out)
    inputs = windows.reshape(rows, -1, places)
    at_outputs = g.reshape(rows, -1, places)
    gradients = torch.bmm(at_outputs, inputs.transpose(1, 2))
    by_image = gradients.view(n, m, *weight.shape)
    return Materialised(weight, by_image.sum(1))
