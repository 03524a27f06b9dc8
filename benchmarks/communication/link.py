"""An emulated network card for every client.

On one machine the ranks share cores and memory instead of a network. A ``Link`` gives each a card
that is emulated by waiting: it carries one message at a time in each direction. Waiting needs no
core, so many ranks on few cores show what as many machines would, as long as the link is the slower
part."""

import math
import struct
import threading
import time
from dataclasses import dataclass

from benchmarks.checks import within
from proxyfl.transport.base import Transport

_STAMP = struct.Struct("<d")


@dataclass(frozen=True)
class Link:
    """``latency`` in seconds, ``bandwidth`` in bytes per second and direction."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        within("latency", self.latency, 0, math.inf, closed="low")
        within("bandwidth", self.bandwidth, 0, math.inf)


class Paced:
    """A transport behind an emulated card. Clocks must agree: for ranks of one machine."""

    def __init__(self, transport: Transport, link: Link) -> None:
        self._transport = transport
        self._link = link
        self._up = 0.0
        self._down = 0.0
        self._turn = threading.Lock()

    def send(self, frame: bytes, *, sender: int, receiver: int, round: int) -> None:
        """Hand ``frame`` over; it leaves when the card has sent what was before it."""
        with self._turn:
            leaves = max(time.monotonic(), self._up)
            self._up = leaves + len(frame) / self._link.bandwidth
        stamped = _STAMP.pack(leaves + self._link.latency) + frame
        self._transport.send(stamped, sender=sender, receiver=receiver, round=round)

    def receive(self, *, sender: int, receiver: int, round: int, timeout: float) -> bytes:
        """The frame, once the card has received it whole and what came before it."""
        stamped = self._transport.receive(
            sender=sender, receiver=receiver, round=round, timeout=timeout
        )
        (begins,) = _STAMP.unpack_from(stamped)
        frame = stamped[_STAMP.size :]
        with self._turn:
            self._down = max(begins, self._down) + len(frame) / self._link.bandwidth
            arrives = self._down
        time.sleep(max(0.0, arrives - time.monotonic()))
        return frame

    def close(self) -> None:
        """Close what is below."""
        self._transport.close()
