"""Who is held out for the test: decided for each person or record by itself.

    i is in the test part   iff   BLAKE2b(key; name of i) < share * 2^64

The name is the person's, where the data name persons; all records of a person are on one side. It
is a fingerprint of the record's own inputs where they do not.

The label is no part of it. Columns in bins leave many records with equal inputs; were those of one
class held out and those of the other trained on, a model would learn the opposite of what it is
tested on.

Guarantees:
    * a side depends on the name, the share and the key: not on any other person or record, nor on
      their number or order. One more person or record changes nobody else's side, so holding out
      keeps neighbouring datasets neighbours (docs/privacy/promise.md);
    * equal names are on one side, and so are records with equal inputs, whatever their labels;
    * a test part has ``share`` of the names on average, never exactly. Parts that are balanced by
      class, or of a fixed size, would let one record move others.

At a real site the key is the site's secret (``node.members.holdout``). A simulation derives it from
its seed. Published datasets whose files are fixed by a checksum are divided by place instead
(``published_rows``): their length is a constant, so a place is a name.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxyfl._validate import number
from proxyfl.data.examples import Examples, chunks
from proxyfl.errors import DataError
from proxyfl.seeds import derive, numpy_stream

Mask = npt.NDArray[np.bool_]
Key = Callable[[], bytes]
"""Gives the key. It is called only where a test part has to be drawn."""

_PURPOSE = b"proxyfl hold out"
_DIGEST = 16
"""Bytes of a record's fingerprint."""


def seeded_key(seed: int) -> Key:
    """The key of a simulation, which everybody who knows the seed can make."""
    return lambda: derive(seed, "split").to_bytes(8, "big")


KEY_OF_SEED_0 = seeded_key(0)


def held_out(names: Sequence[str], share: float, key: bytes) -> Mask:
    """True for each name that is in the test part."""
    number("test_fraction", share, above=0, below=1, error=DataError)
    base = hashlib.blake2b(key=key, digest_size=8, person=_PURPOSE)
    digests = bytearray()
    for name in names:
        one = base.copy()
        one.update(name.encode())
        digests += one.digest()
    values = np.frombuffer(bytes(digests), dtype=">u8")
    return values < np.uint64(int(share * 2**64))


def fingerprints(examples: Examples) -> list[str]:
    """A hash of each record's inputs."""
    return [hashlib.blake2b(row, digest_size=_DIGEST).hexdigest() for row in _rows(examples)]


def divide(
    what: str, names: Sequence[str], share: float, key: bytes, *, unit: str
) -> tuple[Tensor, Tensor]:
    """The training and the test rows of examples with these names, each sorted.

    DataError if one of the two is empty; ``unit`` says what a name stands for."""
    is_test = torch.from_numpy(held_out(names, share, key))
    train = (~is_test).nonzero().view(-1)
    test = is_test.nonzero().view(-1)
    check_sides(what, len(train), len(test), len(set(names)), share, unit=unit)
    return train, test


def check_sides(what: str, train: int, test: int, count: int, share: float, *, unit: str) -> None:
    """Raise DataError if nothing is left to train on or to test on."""
    if train and test:
        return
    empty, change = ("test", "Raise") if train else ("training", "Lower")
    raise DataError(
        f"{what}: the {empty} part is empty. Each of {count} {unit} is held out with probability "
        f"{share:g}, by itself, and all fell on one side. {change} data.test_fraction, or give a "
        "test part of your own (docs/guides/data.md, Test data)."
    )


def published_rows(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """The training and the test rows of a published file, by place and seed alone.

    Only for files of which every copy is the same: ``count`` is then a constant, and the row is the
    record's name."""
    number("test_fraction", share, above=0, below=1, error=DataError)
    tests = min(max(round(share * count), 1), count - 1)
    order = torch.from_numpy(numpy_stream(seed, "split").permutation(count))
    is_test = torch.zeros(count, dtype=torch.bool)
    is_test[order[:tests]] = True
    return (~is_test).nonzero().view(-1), is_test.nonzero().view(-1)


def _rows(examples: Examples) -> Iterator[memoryview]:
    """The bytes of each example's inputs."""
    for inputs in chunks(examples):
        values = np.ascontiguousarray(inputs.cpu().numpy() + 0.0, dtype="<f4")  # no -0.0
        size = values[0].nbytes
        content = values.data.cast("B")
        for start in range(0, len(content), size):
            yield content[start : start + size]
