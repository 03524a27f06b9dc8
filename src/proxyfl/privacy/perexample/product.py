r"""A weight that multiplies several positions of an example: its gradient, and the norm of it.

    G_i = sum_t g_it a_it^T            a_it: input, g_it: gradient of the loss at the output

where t runs over the example's *positions*: the words of a sequence, the pixels of a convolution's
output, the patches that were folded into the batch. Two ways lead to its norm:

    * *Gram*: |G_i|^2 = sum_ts (a_it . a_is) (g_it . g_is), which never forms G_i;
    * *direct*: form G_i, and keep it if memory allows, since the clipped sum is then only sum_i c_i
      G_i.

``Product`` takes the cheaper one. Gram: Goodfellow 2015 (arXiv:1510.01799v2) for t = 1, Li et al.
2022 (arXiv:2110.05679v6, section 4) for sequences; the choice per layer: Bu et al. 2022
(arXiv:2205.10683v4).

Norms are upper bounds (``term``) because Gram matrices are float64, and what the sum of t products
in the weight's own type can lose, (t + 3) u sum_t |g_it| |a_it|, is added; twice that where G_i is
formed for its norm and added up in another order. Where that is not small, because the products
cancel, what is added up is the G_i whose norm was taken.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from proxyfl.privacy.perexample.norms import WIDE_EPS, column_lengths, roundoff, upper_square_norms
from proxyfl.privacy.perexample.term import (
    add_weighted_rows,
    by_example,
    without,
    write_weighted_rows,
)

KEPT_AT_MOST = 2**26
"""Numbers (of per-example gradients of one weight) kept in memory; above it they are formed twice,
in pieces."""

PIECE = 2**22
"""Numbers of unfolded input formed at a time, so that they stay near the cache."""

TRAFFIC = 8
"""Writing and reading one number of G_i costs about as much as this many multiplications."""

SMALL = 1e-3
"""The share of a norm that a bound on its rounding may reach before the gradient is formed."""


@dataclass
class Product:
    """A weight (p, d) that multiplies: ``a`` is (n, t, d), ``g`` is (n, t, p).

    A convolution's inputs overlap and are unfolded in pieces: ``unfold(i, j)`` gives those of
    examples i to j as (j - i, d, t), ``outputs(i, j)`` the output gradients as (j - i, p, t), and
    ``contract(c)`` the ordinary, summed weight gradient with example i weighted by c_i. Where
    ``unfold`` has the d numbers in another order than the weight, ``arrange`` gives gradients
    (..., p d) as (..., *the weight's shape)."""

    parameter: Tensor
    a: Tensor
    g: Tensor
    positions: int
    unfold: Callable[[int, int], Tensor] | None = None
    outputs: Callable[[int, int], Tensor] | None = None
    contract: Callable[[Tensor], Tensor] | None = None
    examples: int = 0
    arrange: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        self.examples = self.examples or len(self.g)
        self._formed: Tensor | None = None
        self._dropped: Tensor | None = None

    @cached_property
    def _shape(self) -> tuple[int, int]:
        p = self.parameter.shape[0]
        return self.parameter.numel() // p, p

    @property
    def prefers_gram(self) -> bool:
        """True if t^2 (d + p) multiplications are fewer than the traffic of forming d p numbers."""
        d, p = self._shape
        return self.positions**2 * (d + p) < TRAFFIC * d * p

    @cached_property
    def _kept(self) -> Tensor | None:
        d, p = self._shape
        if self.examples * d * p > KEPT_AT_MOST:
            return None
        return _joined(list(self._pieces()))

    def _inputs(self, i: int, j: int) -> Tensor:
        """The inputs of examples i to j as (j - i, d, t)."""
        if self.unfold is not None:
            return self.unfold(i, j)
        return self.a[i:j].transpose(1, 2)

    def _output_gradients(self, i: int, j: int) -> Tensor:
        """The output gradients of examples i to j as (j - i, p, t)."""
        if self.outputs is not None:
            return self.outputs(i, j)
        return self.g[i:j].transpose(1, 2)

    def _ranges(self, numbers: int) -> Iterator[tuple[int, int]]:
        """Examples i to j of which each has so many ``numbers``, a piece at a time."""
        step = max(1, PIECE // max(1, numbers))
        for i in range(0, self.examples, step):
            yield i, min(self.examples, i + step)

    def _formed_ranges(self) -> Iterator[tuple[int, int]]:
        """The ranges in which gradients are formed."""
        d, p = self._shape
        return self._ranges(max(d * self.positions, d * p))

    def _pieces(self) -> Iterator[Tensor]:
        for i, j in self._formed_ranges():
            a = self._inputs(i, j)
            g = self._output_gradients(i, j)
            piece = self._multiply(a, g)
            if self._dropped is not None:
                piece = without(piece, self._dropped[i:j])
            yield piece

    @property
    def _by_input(self) -> bool:
        """True if gradients are formed as (d, p): quicker where positions outnumber inputs."""
        return self.positions > self._shape[0]

    def _multiply(self, a: Tensor, g: Tensor) -> Tensor:
        """The gradients of some examples, as (examples, p, d) or ``_by_input``."""
        if self._by_input:
            return torch.bmm(a, g.transpose(1, 2))
        return torch.bmm(g, a.transpose(1, 2))

    def _weight_shaped(self, formed: Tensor) -> Tensor:
        """Formed gradients (..., numbers) as (..., *the weight's shape)."""
        d, p = self._shape
        others = formed.shape[:-1]
        if self._by_input:
            formed = formed.view(*others, d, p).transpose(-1, -2).reshape(*others, -1)
        if self.arrange is not None:
            return self.arrange(formed)
        return formed.view(*others, *self.parameter.shape)

    def blocks(self) -> tuple[Tensor, ...]:
        return ()

    def square_norms(self, squares: Sequence[Tensor] = ()) -> Tensor:
        if self.prefers_gram:
            return self._gram_or_formed()
        if self._is_contracted:
            return self._contracted_or_formed()
        return self._formed_square_norms()

    def _formed_square_norms(self) -> Tensor:
        if self._kept is not None:
            return upper_square_norms(self._kept)
        squares = map(upper_square_norms, self._pieces())
        return torch.cat(list(squares))

    @property
    def _is_contracted(self) -> bool:
        """True if the gradients are too many to keep, and the backend can add them up."""
        return self._kept is None and self.contract is not None

    def _contracted_or_formed(self) -> Tensor:
        """Gradients are formed for their norms, and added up by the backend in another order: two
        sums of t products differ by at most twice what one can lose. Each example decides for
        itself whether that is small."""
        squares = []
        lengths = []
        for i, j in self._formed_ranges():
            a = self._inputs(i, j)
            g = self._output_gradients(i, j)
            gradients = self._multiply(a, g)
            products = column_lengths(a) * column_lengths(g)
            squares.append(upper_square_norms(gradients))
            lengths.append(products.sum(1))
        square = torch.cat(squares)
        norm = square.sqrt()
        # a tenth more for the rounding of the lengths themselves, enough up to d = 10^5
        longest = 1.1 * torch.cat(lengths)
        u = roundoff(self.parameter.dtype)
        bound = 2 * (self.positions + 4) * u * longest
        formed = ~(bound <= SMALL * norm)
        self._formed = formed if bool(formed.any()) else None
        raised = (norm + bound).square_()
        return torch.where(formed, square, raised)

    def _gram_or_formed(self) -> Tensor:
        """Each example decides for itself: what another one is must not change its norm."""
        bounds = []
        close = []
        d, _ = self._shape
        for i, j in self._ranges(d * self.positions):
            bound, is_close = self._gram(i, j)
            bounds.append(bound)
            close.append(is_close)
        squares = torch.cat(bounds)
        formed = ~torch.cat(close)
        if not bool(formed.any()):
            return squares
        self._formed = formed
        return torch.where(formed, self._formed_square_norms(), squares)

    def _gram(self, i: int, j: int) -> tuple[Tensor, Tensor]:
        """Upper bounds for examples i to j, and whether each is close to the norm."""
        a = self._inputs(i, j).double()
        g = self._output_gradients(i, j).double()
        gram_a = torch.bmm(a.transpose(1, 2), a)
        gram_g = torch.bmm(g.transpose(1, 2), g)
        squares_a = gram_a.diagonal(dim1=1, dim2=2)
        squares_g = gram_g.diagonal(dim1=1, dim2=2)
        # sum_t |g_t| |a_t|, which |G| reaches if nothing cancels
        longest = (squares_a * squares_g).sqrt().sum(1)
        total = (gram_a * gram_g).sum((1, 2))
        squares = total.clamp(min=0)
        d, p = self._shape
        t = self.positions
        u = roundoff(self.parameter.dtype)
        double = (d + p + t**2) * WIDE_EPS * longest.square()
        bound = (t + 3) * u * longest
        bound_is_small = bound <= SMALL * squares.sqrt()
        double_is_small = double <= SMALL * squares
        upper = (squares + double).sqrt() + bound
        return upper.square(), bound_is_small & double_is_small

    def weighted_sum(self, c: Tensor, out: Tensor) -> None:
        if self._dropped is not None or not self._contracts:
            self._add_formed(c, out)
        elif self._formed is None:
            self._contract(c, out)
        else:
            of_formed = torch.where(self._formed, c, 0)
            of_others = torch.where(self._formed, 0, c)
            self._contract(of_others, out)
            rest = torch.empty_like(out)
            self._add_formed(of_formed, rest)
            out.add_(rest)

    @property
    def _contracts(self) -> bool:
        """True if norms leave room for sums of the t products in another order."""
        if self.contract is None:
            return self.prefers_gram
        return self.prefers_gram or self._is_contracted

    def _add_formed(self, c: Tensor, out: Tensor) -> None:
        total = out.view(-1)
        in_place = self.arrange is None and not self._by_input
        if not in_place:
            total = torch.empty_like(total)
        kept = self._kept
        if kept is not None:
            write_weighted_rows(kept.flatten(1), c, total)
        else:
            self._add_pieces(c, total)
        if not in_place:
            out.copy_(self._weight_shaped(total))

    def _contract(self, c: Tensor, out: Tensor) -> None:
        if self.contract is not None and out.dtype == self.g.dtype:
            out.copy_(self.contract(c))
            return
        if self.contract is not None:
            self._contract_unfolded(c, out)
            return
        scaled = self.g * by_example(c, self.g)
        gradients = scaled.flatten(0, 1).T
        inputs = self.a.flatten(0, 1)
        torch.mm(gradients.to(out.dtype), inputs.to(out.dtype), out=out)

    def _contract_unfolded(self, c: Tensor, out: Tensor) -> None:
        """sum_i c_i G_i as one product over all positions of all examples, in the type of ``out``:
        the backend's own kernel is in the weight's type."""
        d, p = self._shape
        total = out.new_zeros(p, d)
        for i, j in self._ranges(d * self.positions):
            a = self._inputs(i, j).transpose(1, 2).reshape(-1, d)
            g = self._output_gradients(i, j)
            scaled = (g * by_example(c[i:j], g)).transpose(0, 1).reshape(p, -1)
            total.addmm_(scaled.to(out.dtype), a.to(out.dtype))
        if self.arrange is None:
            out.copy_(total.view(out.shape))
        else:
            out.copy_(self.arrange(total.view(-1)))

    def _add_pieces(self, c: Tensor, out: Tensor) -> None:
        """The same pieces whose norms were taken, formed again."""
        out.zero_()
        start = 0
        for piece in self._pieces():
            end = start + len(piece)
            add_weighted_rows(piece.flatten(1), c[start:end], out)
            start = end

    def per_example(self) -> Tensor:
        formed = torch.cat(list(self._pieces()))
        return self._weight_shaped(formed.flatten(1))

    def drop(self, examples: Tensor) -> None:
        self._dropped = examples
        self.__dict__.pop("_kept", None)


def _joined(pieces: list[Tensor]) -> Tensor:
    """``pieces`` as one; a single one is not copied."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
