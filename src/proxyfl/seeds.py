"""Sources of randomness: a stated seed in simulation, the operating system everywhere else.

A stream is named by what it is for and by whom: ``stream(seed, "noise", client)``. Streams with
different names are independent (the seed and the name go through SHA-256), so a client draws the
same values whether it shares a process with others or not, and drawing more from one stream moves
no other.

Guarantees:
    * nothing in this package draws from global random state without setting it from a stream;
    * ``System`` never repeats and cannot be seeded; whatever it drew cannot be recomputed. Every
      draw begins with fresh bytes of the operating system and the time, so that none is repeated
      when a machine is set back with its memory (a resumed snapshot, a clone);
    * ``Seeded`` says of itself that it is a simulation (``simulated``), and records carry that on:
      noise that can be recomputed from a seed protects nobody.
"""

import hashlib
import os
import ssl
import struct
import time
from typing import TYPE_CHECKING, Protocol

from proxyfl._setonce import SetOnce

# deriving a seed needs neither, and whoever only reads runs does not wait
if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


def derive(seed: int, name: str, *index: int) -> int:
    """A 63-bit seed for the stream ``name`` (and client, round ...) below ``seed``."""
    text = repr((int(seed), name, *map(int, index)))
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def stream(seed: int, name: str, *index: int) -> "torch.Generator":
    """A torch generator for the stream ``name``."""
    import torch

    own = derive(seed, name, *index)
    return torch.Generator().manual_seed(own)


def numpy_stream(seed: int, name: str, *index: int) -> "np.random.Generator":
    """A NumPy generator for the stream ``name``."""
    import numpy as np

    return np.random.default_rng(derive(seed, name, *index))


def seed_global(seed: int) -> None:
    """Set the global generators, from which layers such as dropout draw.

    ``torch.manual_seed`` does the same at a millisecond a call: it also formats a stack trace for
    every kind of accelerator that is not in use."""
    import torch

    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.cuda.manual_seed_all(seed)


class Randomness(Protocol):
    """A source of uniform numbers for privacy-relevant draws."""

    @property
    def simulated(self) -> bool:
        """True if the values can be recomputed by anybody who knows a seed."""
        ...

    def bits(self, n: int) -> "NDArray[np.uint64]":
        """``n`` uniform 64-bit numbers."""
        ...

    def uniform(self, n: int) -> "Tensor":
        """``n`` float64 values, uniform on [0, 1)."""
        ...

    def state(self) -> "Tensor | None":
        """The state that ``restore`` continues from; None where there is nothing to restore."""
        ...

    def restore(self, state: "Tensor | None") -> None:
        """Continue from ``state``."""
        ...


class Seeded(SetOnce):
    """Reproducible randomness, for simulations and tests only."""

    def __init__(self, seed: int, name: str, *index: int) -> None:
        self._generator = stream(seed, name, *index)

    @property
    def simulated(self) -> bool:
        return True

    def bits(self, n: int) -> "NDArray[np.uint64]":
        import numpy as np
        import torch

        halves = torch.randint(0, 2**32, (2 * n,), generator=self._generator, dtype=torch.int64)
        return halves.to(torch.uint32).numpy().view(np.uint64)

    def uniform(self, n: int) -> "Tensor":
        import torch

        return torch.rand(n, generator=self._generator, dtype=torch.float64)

    def normal(self, n: int) -> "Tensor":
        """``n`` float32 values, standard normal. Real noise is drawn from ``bits``, exactly."""
        import torch

        return torch.randn(n, generator=self._generator)

    def state(self) -> "Tensor | None":
        return self._generator.get_state()

    def restore(self, state: "Tensor | None") -> None:
        if state is not None:
            self._generator.set_state(state)


_MOST_FRESH = 64


def fresh_bytes(count: int) -> bytes:
    """Up to 64 random bytes from the operating system, mixed with the clocks.

    A machine that is set back with its memory has its operating system's generator set back as
    well; the clocks, which count nanoseconds, then tell the two apart."""
    clocks = struct.pack("<3q", time.time_ns(), time.monotonic_ns(), time.perf_counter_ns())
    return hashlib.blake2b(os.urandom(_MOST_FRESH) + clocks, digest_size=count).digest()


class System(SetOnce):
    """A cryptographic generator (OpenSSL's, seeded by the operating system). No seed, no state, no
    repetition, also not in forked processes or after a machine was set back with its memory."""

    @property
    def simulated(self) -> bool:
        return False

    def bits(self, n: int) -> "NDArray[np.uint64]":
        import numpy as np

        # OpenSSL keeps its state in this process's memory, which a snapshot repeats.
        ssl.RAND_add(fresh_bytes(32), 0.0)
        drawn = ssl.RAND_bytes(8 * n)
        return np.frombuffer(drawn, dtype=np.uint64)

    def uniform(self, n: int) -> "Tensor":
        import numpy as np
        import torch

        # The upper 53 bits of 64 random ones, scaled to [0, 1): every value exactly representable.
        upper = self.bits(n) >> np.uint64(11)
        return torch.from_numpy(upper.astype(np.float64) * 2.0**-53)

    def state(self) -> "Tensor | None":
        return None

    def restore(self, state: "Tensor | None") -> None:
        """Does nothing: every draw is fresh."""
