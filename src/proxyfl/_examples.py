"""The interface of data to training, whatever holds them.

The protocol stands at the bottom because ``privacy`` and ``data``, which do not know each other,
both speak it. The kinds of examples are in ``proxyfl.data.examples``.
"""

from typing import Protocol

from torch import Tensor

Shape = tuple[int, ...]
"""The sizes of one example's input."""


class Examples(Protocol):
    """Labelled examples, numbered from 0. Labels are in memory; inputs are fetched row by row.

    An implementation guarantees:
        * ``take(rows)`` gives float32 inputs (len(rows), *shape), in the order of ``rows``, and the
          same values whenever it is asked for the same rows;
        * the length, the labels and the groups never change;
        * it can be pickled. What is read from a file is pickled as the file's path.
    """

    def __len__(self) -> int:
        """The number of examples."""
        ...

    @property
    def labels(self) -> Tensor:
        """The class of each example: int64, on the CPU."""
        ...

    @property
    def groups(self) -> Tensor | None:
        """The person whom each example is about, as int64 on the CPU; None where nobody knows."""
        ...

    @property
    def shape(self) -> Shape:
        """The shape of one example's input."""
        ...

    def take(self, rows: Tensor) -> Tensor:
        """The inputs of ``rows``, an int64 vector."""
        ...
