"""The random numbers that a model draws for itself while it trains: dropout, noise layers.

Layers draw from torch's global generator. Whoever knows its seed knows every mask; then one record
more shifts the masks of all that follow it in the batch, and moves the sum by more than C. Under
real noise the masks must be secret as well: then each record's mask is an independent draw, whoever
else is in the batch, and for given masks the sum's sensitivity is C.

Under simulated noise nothing is hidden, and the masks stay those of the seed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_HEAD = 24
"""Bytes before the Mersenne twister's words in torch's generator state: the seed, how many words
are left, whether it is seeded, and the next word's place."""

_WORDS = 624


@contextmanager
def model_draws(*, simulated: bool) -> Iterator[None]:
    """Within it, layers draw from the operating system's entropy if ``simulated`` is false.

    Afterwards the global generators are as they were. On the CPU all 19,968 bits of the generator's
    state are fresh (a seed alone would be 32), so 624 words are as random as the system's own; an
    accelerator's generator gets a seed of 63 bits."""
    if simulated:
        yield
        return
    with torch.random.fork_rng(devices=_accelerators()):
        torch.default_generator.set_state(fresh_state())
        for device in _accelerators():
            torch.cuda.default_generators[device].manual_seed(
                int.from_bytes(os.urandom(8)) >> 1
            )
        yield


def fresh_state() -> Tensor:
    """A state for torch's CPU generator with every word from the operating system."""
    words = torch.frombuffer(bytearray(os.urandom(4 * _WORDS)), dtype=torch.int32)
    unsigned = words.to(torch.int64) & 0xFFFFFFFF
    state = torch.Generator().manual_seed(0).get_state()
    state[_HEAD : _HEAD + 8 * _WORDS] = unsigned.view(torch.uint8)
    return state


def _accelerators() -> list[int]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return []
    return list(range(torch.cuda.device_count()))
