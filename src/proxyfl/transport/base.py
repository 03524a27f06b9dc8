"""The interface that moves frames between clients. docs/about/transports.md states the contract;
tests/transport/contract.py tests it."""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from proxyfl.errors import PeerTimeout, TransportError

T = TypeVar("T")

_SHORTEST, _LONGEST = 5e-5, 2e-3
"""Seconds between two looks: soon at first, seldom when a peer takes its time."""


class Transport(Protocol):
    """Moves bytes from one client to another and knows nothing of models.

    One object serves all clients that its process runs, from any of their threads. Guarantees:
        * a frame arrives whole, unchanged and once, matched by (sender, receiver, round) whatever
          the order of arrival;
        * ``send`` does not wait until the receiver asks, so all may send first and receive after;
        * ``receive`` ends by ``timeout``: with the frame, or with PeerTimeout, which names sender,
          receiver and round;
        * nothing is replaced: a second frame under a key whose first was not yet received is a
          TransportError;
        * after ``close``, sending and receiving raise TransportError; closing again does nothing.
    """

    def send(self, frame: bytes, *, sender: int, receiver: int, round: int) -> None:
        """Hand ``frame`` over for ``receiver``."""
        ...

    def receive(self, *, sender: int, receiver: int, round: int, timeout: float) -> bytes:
        """The frame that ``sender`` sent to ``receiver`` in ``round``; waits for it up to
        ``timeout`` seconds."""
        ...

    def close(self) -> None:
        """Give back what the transport holds. Frames not yet received are lost."""
        ...


def until(look: Callable[[], T | None], timeout: float) -> T | None:
    """Polls ``look`` until it returns a value; None after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    pause = _SHORTEST
    while True:
        value = look()
        if value is not None or time.monotonic() >= deadline:
            return value
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


def check_open(closed: bool) -> None:
    """Raise TransportError if ``closed``."""
    if closed:
        raise TransportError("This transport is closed. Open a new one to send or receive.")


def silent(
    *, sender: int, receiver: int, round: int, timeout: float, where: str = ""
) -> PeerTimeout:
    """The error of a peer that sent nothing, in one wording for all transports."""
    return PeerTimeout(
        f"Client {sender} sent nothing to client {receiver} for round {round} within {timeout:g} "
        f"s. "
        f"Check that client {sender} is running and in the same round, or allow more time.{where}"
    )


def duplicate_send(*, sender: int, receiver: int, round: int) -> TransportError:
    """The error of a refused second send, in one wording for all transports."""
    return TransportError(
        f"Client {sender} already sent client {receiver} a frame for round {round} that was not "
        f"yet received. "
        "Expected one frame per sender, receiver and round."
    )
