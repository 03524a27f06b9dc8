"""Square norms of rows that are upper bounds in the arithmetic used.

A sum of m squares in any order is wrong by at most m u of itself, u being the unit roundoff of its
type (Higham 2002, section 3.1). Sums are taken in blocks, blocks are added up in float64, and the
bound is added, with what squares lose to underflow.

Guarantee: what is returned for a row is at least its square norm, and depends on that row alone."""

from functools import lru_cache

import torch
from torch import Tensor

BLOCK = 1024
"""Squares added up in the weight's own type before float64 takes over."""

WIDE_EPS = torch.finfo(torch.float64).eps
"""Twice the unit roundoff of float64."""


def square_norms_of(blocks: list[Tensor]) -> list[Tensor]:
    """``upper_square_norms`` of each matrix (n, d); those of narrow ones are raised in one go."""
    narrow = [block for block in blocks if block.shape[1] < BLOCK]
    if len(narrow) < 2:
        return list(map(upper_square_norms, blocks))
    kinds = tuple((block.dtype, block.shape[1]) for block in narrow)
    factors, least = _allowances(kinds, narrow[0].device)
    # stacking types of different width takes the widest: no digit is lost
    stacked = torch.stack(list(map(_row_norms, narrow)))
    norms = stacked.double()
    squares = torch.addcmul(least, norms, norms * factors)
    raised = iter(squares.unbind())
    of_blocks = []
    for block in blocks:
        is_narrow = block.shape[1] < BLOCK
        of_blocks.append(next(raised) if is_narrow else upper_square_norms(block))
    return of_blocks


def upper_square_norms(gradients: Tensor) -> Tensor:
    """For each row of (n, ...) at least the sum of its squares, and at most (1 + (BLOCK + 2) u) of
    it; float64."""
    flat = gradients.reshape(gradients.shape[0], -1)
    numbers = flat.shape[1]
    whole = numbers // BLOCK * BLOCK
    if whole == 0:
        return _raised(_row_norms(flat), numbers)
    blocks = flat[:, :whole].view(len(flat), -1, BLOCK)
    norms = torch.linalg.vector_norm(blocks, dim=2)
    squares = _raised(norms, BLOCK).sum(1)
    if whole < numbers:
        rest = _row_norms(flat[:, whole:])
        squares += _raised(rest, numbers - whole)
    return squares.mul_(1 + numbers * WIDE_EPS)


def _raised(norms: Tensor, numbers: int) -> Tensor:
    """Norms of at most ``BLOCK`` numbers each, squared and made larger by what they may have
    lost."""
    kind = (norms.dtype, numbers)
    factors, least = _allowances((kind,), norms.device)
    wide = norms.double()
    return torch.addcmul(least[0], wide, wide * factors[0])


def _row_norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms


@lru_cache(maxsize=1024)
def _allowances(
    kinds: tuple[tuple[torch.dtype, int], ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """For each kind of row, its type and how many numbers it has: the loss of its sum of squares to
    rounding, as a factor, and to underflow, squares below the smallest normal number. (k, 1)."""
    factors = []
    least = []
    for dtype, numbers in kinds:
        limits = torch.finfo(dtype)
        factors.append([1 + (numbers + 4) * limits.eps])
        least.append([numbers * limits.tiny])
    return (
        torch.tensor(factors, dtype=torch.float64, device=device),
        torch.tensor(least, dtype=torch.float64, device=device),
    )


def column_lengths(columns: Tensor) -> Tensor:
    """The length of each column of (n, d, t), with what squares lose to underflow; float64."""
    tiny = torch.finfo(columns.dtype).tiny
    least = columns.shape[1] * tiny
    norms = torch.linalg.vector_norm(columns, dim=1)
    squares: Tensor = norms.double().square_()
    return squares.add_(least).sqrt_()


def roundoff(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2
