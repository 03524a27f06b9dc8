"""One use of one weight, for every example of the batch: its gradients, and bounds on their norms.

Guarantees of every ``Term``:
    * ``square_norms()[i]`` and the i-th summand of ``weighted_sum(c, out)`` depend on example i
      alone, provided that what the term was made of does;
    * ``square_norms()[i]`` is at least |G_i|^2 for the G_i that ``weighted_sum`` adds up, rounding
      included, and so is their sum over all terms (``total_square_norms``). Most terms leave it to
      that function to square their rows, all in a few operations: the bound on each row is that of
      ``norms``, in whatever company it is squared."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from proxyfl.privacy.perexample.norms import WIDE_EPS, square_norms_of


class Term(Protocol):
    """One use of one weight in the forward pass, for every example of the batch."""

    parameter: Tensor

    def blocks(self) -> tuple[Tensor, ...]:
        """The matrices (n, d) from whose rows' square norms the term's own follow."""
        ...

    def square_norms(self, squares: Sequence[Tensor]) -> Tensor:
        """|G_i|^2 for each example i or a little more, never less; float64. ``squares`` are upper
        square norms of the rows of ``blocks``."""
        ...

    def weighted_sum(self, c: Tensor, out: Tensor) -> None:
        """Write sum_i c_i G_i into ``out``, which has the weight's shape; added up in the type of
        ``out``, which may be wider than the weight's."""
        ...

    def per_example(self) -> Tensor:
        """G_i for each example i, materialised: needed where a weight is used more than once."""
        ...

    def drop(self, examples: Tensor) -> None:
        """Put zeros for G_i where ``examples[i]`` is true, whatever it is (not a number, infinite).
        The others' stay as they are."""
        ...


@dataclass
class Materialised:
    """A term whose per-example gradients are known."""

    parameter: Tensor
    gradients: Tensor

    def blocks(self) -> tuple[Tensor, ...]:
        return (self._rows,)

    @property
    def _rows(self) -> Tensor:
        gradients = self.gradients
        if gradients.dim() == 2:
            return gradients
        return gradients.reshape(len(gradients), -1)

    def square_norms(self, squares: Sequence[Tensor]) -> Tensor:
        return squares[0]

    def weighted_sum(self, c: Tensor, out: Tensor) -> None:
        write_weighted_rows(self._rows, c, out.view(-1))

    def per_example(self) -> Tensor:
        return self.gradients

    def drop(self, examples: Tensor) -> None:
        self.gradients = without(self.gradients, examples)


@dataclass
class Outer:
    """A weight (p, d) that multiplies one position: ``a`` is (n, d), ``g`` is (n, p), and
    |g a^T| = |g| |a|."""

    parameter: Tensor
    a: Tensor
    g: Tensor

    def blocks(self) -> tuple[Tensor, ...]:
        return (self.a, self.g)

    def square_norms(self, squares: Sequence[Tensor]) -> Tensor:
        return squares[0] * squares[1]

    def weighted_sum(self, c: Tensor, out: Tensor) -> None:
        scaled = self.g * c.unsqueeze(1)
        gradients = scaled.t().to(out.dtype)
        inputs = self.a.to(out.dtype)
        torch.mm(gradients, inputs, out=out)

    def per_example(self) -> Tensor:
        return self.g.unsqueeze(2) * self.a.unsqueeze(1)

    def drop(self, examples: Tensor) -> None:
        self.a = without(self.a, examples)
        self.g = without(self.g, examples)


@dataclass
class Lookup:
    """An embedding: ``ids`` (n, t) pick rows of the weight, ``g`` is (n, t, d).

    Where an example picks a row more than once, the gradients of all its picks are added up at the
    first one; so the norm is taken of what is summed."""

    parameter: Tensor
    ids: Tensor
    g: Tensor

    @cached_property
    def _gathered(self) -> Tensor:
        ids = self.ids
        same = ids.unsqueeze(2) == ids.unsqueeze(1)
        first = same.to(torch.uint8).argmax(2)
        index = first.unsqueeze(2).expand_as(self.g)
        gathered = torch.zeros_like(self.g)
        return gathered.scatter_add_(1, index, self.g)

    def blocks(self) -> tuple[Tensor, ...]:
        return (self._gathered.flatten(1),)

    def square_norms(self, squares: Sequence[Tensor]) -> Tensor:
        return squares[0]

    def weighted_sum(self, c: Tensor, out: Tensor) -> None:
        scaled = self._gathered * by_example(c, self._gathered)
        rows = scaled.flatten(0, 1).to(out.dtype)
        out.zero_().index_add_(0, self.ids.flatten(), rows)

    def per_example(self) -> Tensor:
        ids = self.ids
        gradients = self.g.new_zeros(len(ids), *self.parameter.shape)
        examples = torch.arange(len(ids), device=ids.device)
        example = examples.unsqueeze(1).expand_as(ids)
        return gradients.index_put_((example, ids), self.g, accumulate=True)

    def drop(self, examples: Tensor) -> None:
        self.g = without(self.g, examples)
        self.__dict__.pop("_gathered", None)


NEAR = 2**17
"""Numbers that are converted at a time: they stay in the cache until they are multiplied."""


def write_weighted_rows(rows: Tensor, c: Tensor, out: Tensor) -> None:
    """Write sum_i c_i rows_i into the vector ``out``, added up in its type."""
    if rows.dtype == out.dtype:
        torch.mv(rows.t(), c.to(out.dtype), out=out)
    else:
        out.zero_()
        add_weighted_rows(rows, c, out)


def add_weighted_rows(rows: Tensor, c: Tensor, out: Tensor) -> None:
    """Add sum_i c_i rows_i to the vector ``out``, in its type."""
    weights = c.to(out.dtype)
    columns = rows.shape[1] if rows.dtype == out.dtype else max(1, NEAR // max(1, len(rows)))
    for start in range(0, rows.shape[1], max(1, columns)):
        part = rows[:, start : start + columns].to(out.dtype)
        out[start : start + columns].addmv_(part.t(), weights)


def without(gradients: Tensor, examples: Tensor) -> Tensor:
    """``gradients`` (n, ...) with zeros in the rows where ``examples`` is true."""
    return gradients.masked_fill(by_example(examples, gradients), 0)


def by_example(values: Tensor, like: Tensor) -> Tensor:
    """One value per example, with as many dimensions as ``like`` (n, ...)."""
    others = like.dim() - 1
    return values.view(-1, *[1] * others)


def total_square_norms(terms: Sequence[Term], losses: Tensor) -> Tensor:
    """The sum of the terms' square norms, or a little more, for each example, which has one of the
    ``losses``; float64.

    A block that several terms share, as a weight and its bias do, is squared once. What the sum
    itself can lose, a unit roundoff of it for each term, is added."""
    blocks = [term.blocks() for term in terms]
    distinct = {id(block): block for block in chain(*blocks)}
    norms = square_norms_of(list(distinct.values()))
    squares = dict(zip(distinct, norms, strict=True))
    total = torch.zeros_like(losses, dtype=torch.float64)
    for term, own in zip(terms, blocks, strict=True):
        of_own = [squares[id(block)] for block in own]
        total += term.square_norms(of_own)
    return total.mul_(1 + len(terms) * WIDE_EPS)
