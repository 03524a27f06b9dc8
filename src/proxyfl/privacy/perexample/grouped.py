r"""Groups of records as the unit that is clipped: all records of one person count as one example.

    g_j = sum_i g_ji / k_j        the mean over the k_j records of group j, then clipped to C

The clipper knows sequences: an example has *positions*, whose gradients add up before the norm is
taken. A group's records become positions of one example. So its norm comes out of the same
backward pass, and nothing runs person by person.

All groups of a pass need the same number of rows. Groups are taken together with others of about
their size (up to the next power of two), and the rows that a group lacks are filled with copies of
its first record, of weight zero: less than half of the rows are such copies.

Guarantees:
    * group j's gradient depends on its own records alone, since that of a row does
      (``proof``) and rows are added up within the group;
    * a copy contributes exactly zero: its loss is multiplied by zero, and so is every gradient that
      comes from it. Where that product is not a number, the copied record's own gradient is not
      finite either, and the whole group contributes nothing;
    * a group of one record is clipped as that record is without groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from proxyfl.privacy.perexample.term import Materialised, Term, by_example


@dataclass(frozen=True)
class Groups:
    """Rows in groups of ``records`` consecutive ones, and the weight of each row in its group."""

    records: int
    weights: Tensor

    def added_up(self, values: Tensor) -> Tensor:
        """For (groups * records, ...) the weighted sum over each group: (groups, ...)."""
        weights = self.weights.to(values.dtype)
        scaled = values * by_example(weights, values)
        by_group = scaled.view(-1, self.records, *values.shape[1:])
        return by_group.sum(1)

    def terms(self, terms: list[Term]) -> list[Term]:
        """The groups' gradients from those of the rows."""
        totals: list[Term] = []
        for term in terms:
            total = self.added_up(term.per_example())
            totals.append(Materialised(term.parameter, total))
        return totals


@dataclass(frozen=True)
class Piece:
    """The rows of a batch that are computed in one pass, None for all of them, and the groups that
    they form."""

    rows: Tensor | slice | None = None
    groups: Groups | None = None


def pieces(records: int, sizes: Tensor | None, at_once: int | None) -> Iterator[Piece]:
    """A batch of ``records`` rows in pieces of at most ``at_once`` rows, but one group at least.

    ``sizes`` says how many consecutive rows each group has; for None every row is by itself."""
    if sizes is None or bool((sizes == 1).all()):
        step = at_once or records
        if step >= records:
            yield Piece()
            return
        for start in range(0, records, step):
            yield Piece(slice(start, start + step))
        return
    starts = sizes.cumsum(0) - sizes
    widths = _next_power_of_two(sizes)
    for width in sorted(set(widths.tolist())):
        chosen = (widths == width).nonzero().view(-1)
        step = max(1, (at_once or records * width) // width)
        for part in chosen.split(step):
            yield _filled_up(starts[part], sizes[part], width)


def _filled_up(starts: Tensor, sizes: Tensor, width: int) -> Piece:
    """Groups of up to ``width`` records as equally many rows each."""
    place = torch.arange(width, device=sizes.device)
    present = place < sizes.unsqueeze(1)
    rows = starts.unsqueeze(1) + torch.where(present, place, 0)
    weights = present / sizes.double().unsqueeze(1)
    return Piece(rows.view(-1), Groups(width, weights.view(-1)))


def _next_power_of_two(sizes: Tensor) -> Tensor:
    """The smallest power of two that is at least as large, for whole numbers from 1 to 2^52."""
    exponents = torch.frexp(sizes.double() - 0.5).exponent
    return torch.ldexp(torch.ones_like(sizes).double(), exponents).long()
