"""Rules per operation: per-example gradients of its weights, from one backward pass.

A ``Use`` is one operation of the traced graph in which weights met examples. Its rule turns the
operation's inputs and the gradient at its output into terms (``terms``). Layers that fold k rows
per example into the batch, or keep the examples along another axis, need no rules of their own:
``examples_first`` moves the examples to the front, and the k rows become positions of the example.

An operation without a rule is differentiated by itself, example by example (``vmapped``)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from proxyfl.privacy.perexample import convolutions
from proxyfl.privacy.perexample.axes import BATCH, Rows, Times
from proxyfl.privacy.perexample.product import Product
from proxyfl.privacy.perexample.term import Lookup, Materialised, Outer, Term

aten = torch.ops.aten


@dataclass(frozen=True)
class Use:
    """One call of one operation: its inputs by name, where the examples are in each, and the
    gradient at its output.

    ``axes`` mirrors ``inputs``: ``Rows`` for a tensor that carries examples, None otherwise.
    ``records`` rows of the batch make up one of the ``n`` examples."""

    operation: Any
    inputs: dict[str, Any]
    axes: dict[str, Any]
    output: Rows
    gradient: Tensor
    n: int
    records: int = 1

    @cached_property
    def g(self) -> Tensor:
        """The gradient at the output as (n, *its shape for one example)."""
        return examples_first(self.gradient, self.output, self.n)

    @property
    def one_vector_each(self) -> bool:
        """True if the operation maps one vector of each example to another, row by row."""
        return self.output == BATCH and self.gradient.dim() == 2

    def examples_first(self, name: str) -> Tensor:
        """The input ``name`` as (n, *its shape for one example)."""
        return examples_first(self.inputs[name].detach(), self.axes[name], self.n)

    def learns(self, name: str) -> bool:
        """True if the input ``name`` is a weight whose gradient is wanted."""
        value = self.inputs[name]
        return value is not None and value.requires_grad and self.axes[name] is None


def examples_first(tensor: Tensor, rows: Rows, n: int) -> Tensor:
    """``tensor`` as (n, *shape for one example), where that shape has outer * inner along the
    examples' axis."""
    if rows == BATCH:
        return tensor.unsqueeze(1)  # the usual case, at the price of a view
    before = tensor.shape[: rows.axis]
    after = tensor.shape[rows.axis + 1 :]
    parts = tensor.reshape(*before, rows.outer, n, rows.inner, *after)
    moved = parts.movedim(rows.axis + 1, 0)
    return moved.reshape(n, *before, rows.folded, *after)


def linear(use: Use) -> list[Term]:
    """Terms of x W^T + b."""
    bias = use.inputs["bias"] if use.learns("bias") else None
    if use.learns("weight"):
        weight = use.inputs["weight"]
        x = use.inputs["input"]
        if use.one_vector_each and x.dim() == 2:  # the usual case, as it is
            return _outer(weight, x.detach(), use.gradient, bias)
        return _affine(weight, use.examples_first("input"), use.g, bias)
    if bias is not None:
        return [Materialised(bias, _positions(use.g, use.n).sum(1))]
    return []


def _outer(weight: Tensor, a: Tensor, g: Tensor, bias: Tensor | None) -> list[Term]:
    """Terms of a weight (p, d) and a bias (p), ``a`` being (n, d) and ``g`` (n, p)."""
    terms: list[Term] = [Outer(weight, a, g)]
    if bias is not None:
        terms.append(Materialised(bias, g))
    return terms


def _affine(weight: Tensor, a: Tensor, g: Tensor, bias: Tensor | None) -> list[Term]:
    """Terms of a weight (p, d) and a bias (p), ``a`` and ``g`` with the examples first."""
    n = g.shape[0]
    if g.shape[:-1].numel() == n:
        return _outer(weight, a.reshape(n, -1), g.reshape(n, -1), bias)
    g = _positions(g, n)
    terms: list[Term] = [Product(weight, _positions(a, n), g, g.shape[1])]
    if bias is not None:
        terms.append(Materialised(bias, g.sum(1)))
    return terms


def _positions(tensor: Tensor, n: int) -> Tensor:
    """``tensor`` as (n, positions, numbers)."""
    return tensor.reshape(n, -1, tensor.shape[-1])


def matmul(use: Use) -> list[Term]:
    """Terms of x W, the examples on the left."""
    left, right = ("self", "mat2") if "mat2" in use.inputs else ("self", "other")
    if not use.learns(right) or use.inputs[right].dim() != 2:
        return vmapped(use)
    return _transposed(use, left, right)


def addmm(use: Use) -> list[Term]:
    """Terms of b + x W."""
    plain = use.inputs["beta"] == 1 and use.inputs["alpha"] == 1
    if use.axes["mat1"] is None or not plain or use.inputs["self"].dim() != 1:
        return vmapped(use)
    terms: list[Term] = []
    if use.learns("mat2"):
        terms += _transposed(use, "mat1", "mat2")
    if use.learns("self"):
        terms.append(Materialised(use.inputs["self"], _positions(use.g, use.n).sum(1)))
    return terms


def _transposed(use: Use, left: str, right: str) -> list[Term]:
    """A weight (d, p) on the right has the transposed gradient: inputs and gradients change
    places."""
    return _affine(use.inputs[right], use.g, use.examples_first(left), None)


def convolution(use: Use) -> list[Term]:
    """Terms of a convolution in one, two or three dimensions; groups, strides and dilation."""
    terms: list[Term] = []
    if use.learns("weight"):
        images = use.examples_first("input").flatten(0, 1)
        terms.append(convolutions.term(use.inputs, images, use.g))
    if use.learns("bias"):
        gradients = use.g.flatten(3).sum((1, 3))
        terms.append(Materialised(use.inputs["bias"], gradients))
    return terms


def group_norm(use: Use) -> list[Term]:
    """Terms of a GroupNorm: scale and shift per channel."""
    a = use.examples_first("input").flatten(0, 1)
    normal = F.group_norm(a, use.inputs["num_groups"], eps=use.inputs["eps"])
    shape = (*use.g.shape[:3], -1)
    return _scale_and_shift(use, normal.reshape(shape), shape, (1, 3))


def layer_norm(use: Use) -> list[Term]:
    """Terms of a LayerNorm: scale and shift per normalised position."""
    normalized = use.inputs["normalized_shape"]
    a = use.examples_first("input")
    normal = F.layer_norm(a, normalized, eps=use.inputs["eps"])
    shape = (use.n, -1, *normalized)
    return _scale_and_shift(use, normal.reshape(shape), shape, (1,))


def _scale_and_shift(
    use: Use, normal: Tensor, shape: tuple[int, ...], over: tuple[int, ...]
) -> list[Term]:
    g = use.g.reshape(shape)
    terms: list[Term] = []
    if use.learns("weight"):
        terms.append(Materialised(use.inputs["weight"], (normal * g).sum(over)))
    if use.learns("bias"):
        terms.append(Materialised(use.inputs["bias"], g.sum(over)))
    return terms


def embedding(use: Use) -> list[Term]:
    """Terms of an embedding; the padding row learns nothing, as in PyTorch."""
    ids = use.examples_first("indices").reshape(use.n, -1)
    g = _positions(use.g, use.n)
    if use.inputs["padding_idx"] >= 0:
        g = g * (ids != use.inputs["padding_idx"]).unsqueeze(2)
    return [Lookup(use.inputs["weight"], ids, g)]


def vmapped(use: Use) -> list[Term]:
    """Terms of any operation: it is called for each example alone, and differentiated there."""
    leaves, layout = pytree.tree_flatten(use.inputs)
    axes = pytree.tree_flatten(use.axes, is_leaf=lambda v: v is None or isinstance(v, Rows))[0]
    carried = []
    weights = []
    alone = []
    for k, (value, rows) in enumerate(zip(leaves, axes, strict=True)):
        if isinstance(rows, Rows):
            carried.append(k)
        elif isinstance(value, Tensor) and value.requires_grad:
            weights.append(k)
        if isinstance(value, Times):
            value = value.times(use.records)
        alone.append(value)

    def gradients(g_i: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        def forward(*values: Tensor) -> Any:
            filled = list(alone)
            places = (*carried, *weights)
            for k, value in zip(places, (*inputs, *values), strict=True):
                filled[k] = value
            return use.operation(**pytree.tree_unflatten(filled, layout))

        _, pull, *_ = torch.func.vjp(forward, *(leaves[k].detach() for k in weights))
        result: tuple[Tensor, ...] = pull(g_i)
        return result

    inputs = [examples_first(leaves[k].detach(), axes[k], use.n) for k in carried]
    with torch.enable_grad(), quiet_vmap():
        by_weight = torch.func.vmap(gradients, randomness="error")(use.g, *inputs)
    terms: list[Term] = []
    for k, of_weight in zip(weights, by_weight, strict=True):
        terms.append(Materialised(leaves[k], of_weight.detach()))
    return terms


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """An operation without a batching rule is done in a loop: right, and no news to the user."""
    functorch: Any = torch._C._functorch
    functorch._set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_warning_enabled(True)


RULES: dict[Any, Callable[[Use], list[Term]]] = {
    aten.linear.default: linear,
    aten.matmul.default: matmul,
    aten.mm.default: matmul,
    aten.addmm.default: addmm,
    aten.conv1d.default: convolution,
    aten.conv2d.default: convolution,
    aten.conv3d.default: convolution,
    aten.conv1d.padding: convolution,
    aten.conv2d.padding: convolution,
    aten.conv3d.padding: convolution,
    aten.group_norm.default: group_norm,
    aten.layer_norm.default: layer_norm,
    aten.embedding.default: embedding,
}
"""Operations whose per-example norms come out of one backward pass."""
