"""Clients of one process hand frames to each other through a dictionary."""

import threading
import time

from proxyfl.transport import base


class MemoryTransport:
    """A Transport for clients that share a process, each in its own thread or all in one."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, int, int], bytes] = {}
        self._changed = threading.Condition()
        self._closed = False

    def send(self, frame: bytes, *, sender: int, receiver: int, round: int) -> None:
        """Hand ``frame`` over for ``receiver``."""
        key = (sender, receiver, round)
        with self._changed:
            base.check_open(self._closed)
            if key in self._frames:
                raise base.duplicate_send(sender=sender, receiver=receiver, round=round)
            # A bytearray could still be changed by the sender; bytes(b) of bytes is the same
            # object, without a copy.
            self._frames[key] = bytes(frame)
            self._changed.notify_all()

    def receive(self, *, sender: int, receiver: int, round: int, timeout: float) -> bytes:
        """The frame for this key; waits for it up to ``timeout`` seconds."""
        key = (sender, receiver, round)
        deadline = time.monotonic() + timeout
        with self._changed:
            base.check_open(self._closed)
            while key not in self._frames:
                if (
                    not self._changed.wait(max(deadline - time.monotonic(), 0.0))
                    and key not in self._frames
                ):
                    raise base.silent(
                        sender=sender, receiver=receiver, round=round, timeout=timeout
                    )
                base.check_open(self._closed)
            return self._frames.pop(key)

    def close(self) -> None:
        """Drop what was not received and wake those who wait, with a TransportError."""
        with self._changed:
            self._closed = True
            self._frames.clear()
            self._changed.notify_all()
