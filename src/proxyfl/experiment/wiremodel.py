r"""How long an exchange takes: a model of the wire, and its fit to measured times.

A message of S bytes costs its sender and its receiver a + b S seconds of processor each (encode, copy, decode, add),
and S / B seconds of either's link, which carries one message at a time each way; L seconds pass on the way.

    gossip   every client sends one message and receives one            T = L + x
    hub      n - 1 messages come in one after the other, then n - 1 go  T = 2 L + (n - 1) x,  x = max(S / B, a + b S)
             out; the last client to be served waits for all of them        + (n - 1) x  (the mean client: half of that)

Where several clients share cores, the processor's part is divided among C cores: with n clients of which m messages are
sent in all, at least m (2 a + 2 b S) / C seconds pass. That is what a laptop measures; on a network every client has its
own processor. Bytes are exact and need no model.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from proxyfl.federation.methods import METHODS

Pattern = Literal["gossip", "hub"]


@dataclass(frozen=True)
class Wire:
    """Seconds per message ``a`` and per byte ``b`` of processor; ``latency`` in seconds, ``bandwidth`` in bytes/s.

    ``cores`` is how many processors all clients share; None: each has its own. ``hub_bandwidth`` is the hub's link,
    where it is better than the others'.
    """

    a: float
    b: float
    latency: float = 0.0
    bandwidth: float = float("inf")
    cores: int | None = None
    hub_bandwidth: float | None = None


def pattern(method: str) -> Pattern:
    """How the models of ``method`` travel."""
    return "hub" if METHODS[method].exchange == "mean" else "gossip"
