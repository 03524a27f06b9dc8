"""The shared-memory transport keeps the contract, between real processes."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from proxyfl.transport.shared import SharedTransport, shared_folder

from .contract import PATIENCE, Part, TransportContract


def host(part: Part, folder: Path) -> Any:
    """One process that hosts one client."""
    transport = SharedTransport(folder)
    try:
        return part(transport)
    finally:
        transport.close()


class TestSharedBetweenThreads(TransportContract):
    """One transport object per client, in threads."""

    def group(self, parts: Sequence[Part]) -> list[Any]:
        with shared_folder() as folder, ThreadPoolExecutor(len(parts)) as threads:
            return [
                future.result() for future in [threads.submit(host, part, folder) for part in parts]
            ]


def test_frames_cross_between_processes() -> None:
    """What one process sends another receives whole, and the folder is gone afterwards."""
    with shared_folder() as folder:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as other:
            sent = other.submit(_send, folder, b"x" * 3_000_000)
            got = SharedTransport(folder).receive(sender=1, receiver=0, round=4, timeout=PATIENCE)
            sent.result()
        assert got == b"x" * 3_000_000
        assert list(folder.iterdir()) == []
    assert not folder.exists()


def _send(folder: Path, frame: bytes) -> None:
    SharedTransport(folder).send(frame, sender=1, receiver=0, round=4)
