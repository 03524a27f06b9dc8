"""The examples' axis in a tensor, and sizes that grow with their number."""

from dataclasses import dataclass
from typing import overload


@dataclass(frozen=True)
class Rows:
    """Along ``axis`` lie outer * n * inner entries; entry (o, i, k) belongs to example i alone.

    A plain batch is ``Rows(0)``; k patches per example folded into the batch are ``Rows(0,
    inner=k)``; a time-major sequence is ``Rows(1)``, flattened it is ``Rows(0, outer=time)``."""

    axis: int
    outer: int = 1
    inner: int = 1

    @property
    def folded(self) -> int:
        """Entries per example along the axis."""
        return self.outer * self.inner

    def at(self, axis: int) -> "Rows":
        """The same along another axis."""
        return Rows(axis, self.outer, self.inner)


BATCH = Rows(0)
"""A plain batch, one entry per example."""


@dataclass(frozen=True)
class Times:
    """A size that is ``factor`` times the number of examples."""

    factor: int

    def times(self, n: int) -> int:
        """The size for n examples."""
        return self.factor * n


@overload
def together(rows: Rows, records: int) -> Rows: ...


@overload
def together(rows: None, records: int) -> None: ...


def together(rows: Rows | None, records: int) -> Rows | None:
    """``rows`` where ``records`` consecutive examples count as one: their entries are folded into
    it. None, which carries no examples, stays None."""
    if rows is None or records == 1:
        return rows
    return Rows(rows.axis, rows.outer, rows.inner * records)
