"""The in-process transport keeps the contract."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxyfl.errors import TransportError
from proxyfl.transport.base import Transport
from proxyfl.transport.memory import MemoryTransport

from .contract import Part, TransportContract


class TestMemory(TransportContract):
    """One transport, one thread per client."""

    def group(self, parts: Sequence[Part]) -> list[Any]:
        transport: Transport = MemoryTransport()
        try:
            with ThreadPoolExecutor(len(parts)) as threads:
                return [
                    future.result()
                    for future in [threads.submit(part, transport) for part in parts]
                ]
        finally:
            transport.close()


def test_close_wakes_who_waits() -> None:
    """A receive that is waiting when the transport closes ends at once with TransportError, not
    with a timeout."""
    transport = MemoryTransport()
    waiting = threading.Timer(0.1, transport.close)
    waiting.start()
    with pytest.raises(TransportError, match="closed") as caught:
        transport.receive(sender=0, receiver=1, round=0, timeout=60)
    waiting.join()
    assert type(caught.value) is TransportError


def test_one_thread_can_play_all_clients() -> None:
    """Without threads, what was sent is there to be received, even with no time to wait."""
    transport = MemoryTransport()
    transport.send(b"a", sender=0, receiver=1, round=0)
    assert transport.receive(sender=0, receiver=1, round=0, timeout=0) == b"a"
    transport.send(b"b", sender=0, receiver=1, round=0)
    assert transport.receive(sender=0, receiver=1, round=0, timeout=0) == b"b"


def test_a_sent_frame_does_not_change() -> None:
    """A buffer that its sender writes to after sending arrives as it was when sent."""
    transport, frame = MemoryTransport(), bytearray(b"before")
    transport.send(frame, sender=0, receiver=1, round=0)
    frame[:] = b"after!"
    assert transport.receive(sender=0, receiver=1, round=0, timeout=0) == b"before"
