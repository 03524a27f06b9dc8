r"""Per-example gradients of one layer from what a single backward pass leaves behind.

A layer that multiplies its input by a weight has, for example i, the weight gradient

    G_i = sum_t g_it a_it^T      a_it: input, g_it: gradient of the loss at the output, t: position

(t runs over a sequence, or over the pixels of a convolution's output). Two ways lead to its norm:

    * *Gram*: |G_i|^2 = sum_ts (a_it . a_is) (g_it . g_is), which never forms G_i;
    * *direct*: form G_i, and keep it if memory allows, since the clipped sum is then only sum_i c_i
      G_i.

``Product`` takes the cheaper one for each layer. Gram: Goodfellow 2015 (arXiv:1510.01799v2) for t =
1, Li et al. 2022 (arXiv:2110.05679v6, section 4) for sequences; the choice per layer: Bu et al.
2022 (arXiv:2205.10683v4).

A ``Term`` is one use of one parameter. Guarantee: ``square_norms()[i]`` and the i-th summand of
``weighted_sum(c, out)`` depend on example i alone, provided that a_i and g_i do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KEPT_AT_MOST = 2**26
"""Numbers (of per-example gradients of one parameter) kept in memory; above it they are formed
twice, in pieces."""

PIECE = 2**22
"""Numbers of unfolded input formed at a time, so that they stay near the cache."""

TRAFFIC = 8
"""Writing and reading one number of G_i costs about as much as this many multiplications."""


class Term(Protocol):
    """One use of one parameter in the forward pass, for every example of the batch."""

    parameter: Tensor

    def square_norms(self) -> Tensor:
        """|G_i|^2 for each example i."""
        ...

    def weighted_sum(self, c: Tensor, out: Tensor) -> None:
        """Write sum_i c_i G_i into ``out``, which has the parameter's shape."""
        ...

    def per_example(self) -> Tensor:
        """G_i for each example i, materialised: needed where a parameter is used more than once."""
        ...


@dataclass
class Materialised:
    """A term whose per-example gradients are at hand."""

    parameter: Tensor
    gradients: Tensor

    def square_norms(self) -> Tensor:
        return _row_norms(self.gradients).square()

    def weighted_sum(self, c: Tensor, out: Tensor) -> None:
        torch.mv(self.gradients.flatten(1).T, c, out=out.view(-1))

    def per_example(self) -> Tensor:
        return self.gradients


@dataclass
class Product:
    """A weight that multiplies: Linear and convolutions. ``a`` is (n, t, d) or (n, d), ``g`` alike
    with p for d.

    ``unfold(i, j)`` gives the inputs of examples i to j as (j - i, d, t); None means that ``a``
    holds them already."""

    parameter: Tensor
    a: Tensor
    g: Tensor
    positions: int
    unfold: Callable[[int, int], Tensor] | None = None
    contract: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def _shape(self) -> tuple[int, int]:
        p = self.parameter.shape[0]
        return self.parameter.numel() // p, p

    @property
    def prefers_gram(self) -> bool:
        """Whether t^2 (d + p) multiplications are fewer than the traffic of forming d p numbers."""
        d, p = self._shape
        return self.positions**2 * (d + p) < TRAFFIC * d * p

    @cached_property
    def _kept(self) -> Tensor | None:
        d, p = self._shape
        if self.prefers_gram or len(self.g) * d * p > KEPT_AT_MOST:
            return None
        return torch.cat(list(self._pieces()))

    def _inputs(self, i: int, j: int) -> Tensor:
        """The inputs of examples i to j as (j - i, d, t)."""
        return (
            self.unfold(i, j)
            if self.unfold
            else self.a[i:j].reshape(j - i, self.positions, -1).transpose(1, 2)
        )

    def _output_gradients(self, i: int, j: int) -> Tensor:
        """The output gradients of examples i to j as (j - i, p, t)."""
        if self.unfold:
            return self.g[i:j].flatten(2)
        return self.g[i:j].reshape(j - i, self.positions, -1).transpose(1, 2)

    def _ranges(self, numbers: int) -> list[tuple[int, int]]:
        n, step = len(self.g), max(1, PIECE // max(1, numbers))
        return [(i, min(n, i + step)) for i in range(0, n, step)]

    def _pieces(self) -> Any:
        d, p = self._shape
        for i, j in self._ranges(max(d * self.positions, d * p)):
            yield torch.bmm(self._output_gradients(i, j), self._inputs(i, j).transpose(1, 2))

    def square_norms(self) -> Tensor:
        if self.positions == 1 and self.unfold is None:
            return (_row_norms(self.a) * _row_norms(self.g)).square_()
        if self.prefers_gram:
            return torch.cat(
                [self._gram(i, j) for i, j in self._ranges(self._shape[0] * self.positions)]
            )
        if self._kept is not None:
            return _row_norms(self._kept).square()
        return torch.cat([_row_norms(piece).square() for piece in self._pieces()])

    def _gram(self, i: int, j: int) -> Tensor:
        a, g = self._inputs(i, j), self._output_gradients(i, j)
        gram = torch.bmm(a.transpose(1, 2), a).mul_(torch.bmm(g.transpose(1, 2), g))
        return gram.sum((1, 2)).clamp_(
            min=0
        )  # rounding can leave a tiny negative number where terms cancel

    def weighted_sum(self, c: Tensor, out: Tensor) -> None:
        if self._kept is not None:
            torch.mv(self._kept.flatten(1).T, c, out=out.view(-1))
            return
        scaled = self.g * c.view(-1, *[1] * (self.g.dim() - 1))
        if self.contract:
            out.copy_(self.contract(scaled))
        else:
            torch.mm(scaled.flatten(0, -2).T, self.a.flatten(0, -2), out=out)

    def per_example(self) -> Tensor:
        return torch.cat(list(self._pieces())).view(-1, *self.parameter.shape)


@dataclass
class Lookup:
    """An embedding: ``ids`` (n, t) pick rows of the weight, ``g`` is (n, t, d)."""

    parameter: Tensor
    ids: Tensor
    g: Tensor

    def square_norms(self) -> Tensor:
        same = self.ids.unsqueeze(2) == self.ids.unsqueeze(1)
        return (torch.bmm(self.g, self.g.transpose(1, 2)) * same).sum((1, 2)).clamp_(min=0)

    def weighted_sum(self, c: Tensor, out: Tensor) -> None:
        rows = (self.g * c.view(-1, 1, 1)).flatten(0, 1)
        out.zero_().index_add_(0, self.ids.flatten(), rows)

    def per_example(self) -> Tensor:
        n, t = self.ids.shape
        gradients = self.g.new_zeros(n, *self.parameter.shape)
        example = torch.arange(n, device=self.ids.device).unsqueeze(1).expand(n, t)
        return gradients.index_put_((example, self.ids), self.g, accumulate=True)


def linear(layer: nn.Linear, a: Tensor, g: Tensor) -> list[Term]:
    """Terms of a fully connected layer, on single vectors or on sequences of them."""
    a, g = (v.unsqueeze(1) if v.dim() == 1 else v for v in (a, g))
    positions = g[0, ..., 0].numel() if len(g) else 1
    terms: list[Term] = []
    if layer.weight.requires_grad:
        terms.append(Product(layer.weight, a, g, positions))
    if layer.bias is not None and layer.bias.requires_grad:
        terms.append(Materialised(layer.bias, g.flatten(1, -2).sum(1) if g.dim() > 2 else g))
    return terms


def convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, a: Tensor, g: Tensor) -> list[Term]:
    """Terms of a convolution in one, two or three dimensions; groups, strides, dilation and every
    padding mode."""
    terms: list[Term] = []
    if layer.weight.requires_grad:
        terms.append(_grouped(layer, a, g) if layer.groups > 1 else _ungrouped(layer, a, g))
    if layer.bias is not None and layer.bias.requires_grad:
        terms.append(Materialised(layer.bias, g.flatten(2).sum(2)))
    return terms


def _padded(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, a: Tensor) -> Tensor:
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padding = (
        layer._reversed_padding_repeated_twice
    )  # (before, after) from the last dimension, "same" worked out
    return F.pad(a, padding, mode=mode) if any(padding) else a


def _windows(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, a: Tensor, out: torch.Size) -> Tensor:
    """A view of padded inputs as (n, channels, *kernel, *out)."""
    n, channels, *_ = a.shape
    spatial = a.stride()[2:]
    inner = [s * d for s, d in zip(spatial, layer.dilation, strict=True)]
    outer = [s * d for s, d in zip(spatial, layer.stride, strict=True)]
    return a.as_strided(
        (n, channels, *layer.kernel_size, *out), (a.stride(0), a.stride(1), *inner, *outer)
    )


def _ungrouped(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, a: Tensor, g: Tensor) -> Product:
    padded, out = _padded(layer, a), g.shape[2:]

    def unfold(i: int, j: int) -> Tensor:
        return _windows(layer, padded[i:j], out).reshape(j - i, -1, out.numel())

    def contract(scaled: Tensor) -> Tensor:
        return _weight_gradient(layer, padded, scaled)

    return Product(layer.weight, a, g, out.numel(), unfold, contract)


def _weight_gradient(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, padded: Tensor, g: Tensor) -> Tensor:
    """The ordinary, summed weight gradient, by the backend's own kernel."""
    none, dims = [0] * len(layer.stride), list(layer.stride)
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        g,
        padded,
        layer.weight,
        None,
        dims,
        none,
        list(layer.dilation),
        False,
        none,
        layer.groups,
        [False, True, False],
    )
    return result[1]


def _grouped(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, a: Tensor, g: Tensor) -> Term:
    """Groups see only their own channels, so a per-example gradient is small: it is formed and
    kept."""
    padded, out, n = _padded(layer, a), g.shape[2:], len(g)
    windows = _windows(layer, padded, out).reshape(n * layer.groups, -1, out.numel())
    gradients = torch.bmm(g.reshape(n * layer.groups, -1, out.numel()), windows.transpose(1, 2))
    return Materialised(layer.weight, gradients.view(n, *layer.weight.shape))


def group_norm(layer: nn.GroupNorm, a: Tensor, g: Tensor) -> list[Term]:
    """Terms of a GroupNorm: scale and shift per channel."""
    return _scale_and_shift(
        layer, F.group_norm(a, layer.num_groups, eps=layer.eps).flatten(2), g.flatten(2), 2
    )


def layer_norm(layer: nn.LayerNorm, a: Tensor, g: Tensor) -> list[Term]:
    """Terms of a LayerNorm: scale and shift per normalised position."""
    normal = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    shape = (len(a), -1, *layer.normalized_shape)
    return _scale_and_shift(layer, normal.reshape(shape), g.reshape(shape), 1)


def _scale_and_shift(
    layer: nn.GroupNorm | nn.LayerNorm, normal: Tensor, g: Tensor, over: int
) -> list[Term]:
    terms: list[Term] = []
    if layer.weight is not None and layer.weight.requires_grad:
        terms.append(Materialised(layer.weight, (normal * g).sum(over)))
    if layer.bias is not None and layer.bias.requires_grad:
        terms.append(Materialised(layer.bias, g.sum(over)))
    return terms


def embedding(layer: nn.Embedding, a: Tensor, g: Tensor) -> list[Term]:
    """Terms of an embedding; the padding row learns nothing, as in PyTorch."""
    if not layer.weight.requires_grad:
        return []
    ids, g = a.reshape(len(a), -1), g.reshape(len(a), -1, g.shape[-1])
    if layer.padding_idx is not None:
        g = g * (ids != layer.padding_idx).unsqueeze(2)
    return [Lookup(layer.weight, ids, g)]


def _row_norms(gradients: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(gradients.flatten(1), dim=1)
    return norms


RULES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], list[Term]]] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.GroupNorm: group_norm,
    nn.LayerNorm: layer_norm,
    nn.Embedding: embedding,
}
"""Layers whose per-example norms come out of one backward pass. Exact types: a subclass may do
anything."""
