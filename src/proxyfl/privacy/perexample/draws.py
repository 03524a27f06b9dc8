"""The random numbers that a model draws for itself while it trains: dropout, noise layers.

Layers draw from torch's global generator. Somebody who knows its seed knows every mask; then one
record more shifts the masks of all that follow it in the batch, and moves the sum by more than C.
Under real noise the masks must be secret as well: then each record's mask is an independent draw,
whoever else is in the batch, and for given masks the sum's sensitivity is C.

Under simulated noise nothing is hidden, and the masks stay those of the seed."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

import torch
from torch import Tensor

_HEAD = 24
"""Bytes before the Mersenne twister's words in torch's generator state: the seed, how many words
are left, whether it is seeded, and the next word's place."""

_WORDS = 624

_generators_in_use = RLock()
"""The global generators belong to the process, not to a thread. Who puts them into another state
keeps the other threads' steps and checks waiting: a mask must not come from a state that somebody
else has just put back."""


@contextmanager
def model_draws(*, simulated: bool) -> Iterator[None]:
    """Within it, layers draw from the operating system's entropy if ``simulated`` is false.

    Afterwards the global generators are as they were. On the CPU all 19,968 bits of the generator's
    state are fresh (a seed alone would be 32), so 624 words are as random as the system's own; an
    accelerator's generator gets a seed of 63 bits."""
    if simulated:
        with _generators_in_use:
            yield
        return
    with _generators_in_use, torch.random.fork_rng(devices=_accelerators()):
        cpu, *accelerators = _generators()
        cpu.set_state(fresh_state())
        for generator in accelerators:
            generator.manual_seed(int.from_bytes(os.urandom(8)) >> 1)
        yield


@contextmanager
def same_draws() -> Iterator[Callable[[], bool]]:
    """Within it, layers draw the same numbers every time; what it gives tells whether any were
    drawn. Afterwards the global generators are as they were."""
    with _generators_in_use, torch.random.fork_rng(devices=_accelerators()):
        generators = _generators()
        for generator in generators:
            generator.manual_seed(0)
        before = [generator.get_state() for generator in generators]

        def drew() -> bool:
            now = [generator.get_state() for generator in generators]
            return not all(map(torch.equal, before, now))

        yield drew


def fresh_state() -> Tensor:
    """A state for torch's CPU generator with every word from the operating system."""
    words = torch.frombuffer(bytearray(os.urandom(4 * _WORDS)), dtype=torch.int32)
    unsigned = words.to(torch.int64) & 0xFFFFFFFF
    state = torch.Generator().manual_seed(0).get_state()
    state[_HEAD : _HEAD + 8 * _WORDS] = unsigned.view(torch.uint8)
    return state


def _generators() -> list[torch.Generator]:
    """The CPU's global generator, then each accelerator's."""
    devices = [torch.cuda.default_generators[device] for device in _accelerators()]
    return [torch.default_generator, *devices]


def _accelerators() -> list[int]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return []
    return list(range(torch.cuda.device_count()))
