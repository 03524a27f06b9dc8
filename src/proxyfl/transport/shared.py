"""Processes of one machine hand frames to each other through files in shared memory.

A frame is a file in a folder that all of them see, on a file system in memory where there is one
(/dev/shm). It appears whole or not at all, is matched by its name, and survives the death of
whoever wrote it. Nothing is pickled."""

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from proxyfl.errors import TransportError
from proxyfl.transport import base


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder in memory where possible, gone when the block ends; those of processes that were
    killed go as well."""
    memory = Path("/dev/shm")
    parent = (
        memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    )
    for left_behind in parent.glob("proxyfl-*-*"):
        owner = left_behind.name.split("-")[1]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(left_behind, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=f"proxyfl-{os.getpid()}-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


class SharedTransport:
    """A Transport between processes that were given the same folder, which is made if need be."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._closed = False

    def send(self, frame: bytes, *, sender: int, receiver: int, round: int) -> None:
        """Hand ``frame`` over for ``receiver``."""
        base.check_open(self._closed)
        path = self._path(sender, receiver, round)
        scratch = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            scratch.write_bytes(frame)
            os.link(scratch, path)  # unlike a rename, refuses to replace
        except FileExistsError as error:
            raise base.duplicate_send(sender=sender, receiver=receiver, round=round) from error
        except OSError as error:
            raise TransportError(
                f"Client {sender} cannot put {len(frame)} bytes for client {receiver} into shared "
                f"memory: "
                f"{error.strerror or error}. Use fewer workers, or make more of it available."
            ) from error
        finally:
            scratch.unlink(missing_ok=True)

    def receive(self, *, sender: int, receiver: int, round: int, timeout: float) -> bytes:
        """The frame for this key; waits for it up to ``timeout`` seconds."""
        path = self._path(sender, receiver, round)

        def look() -> bytes | None:
            base.check_open(self._closed)
            try:
                frame = path.read_bytes()
                path.unlink()
            except FileNotFoundError:  # not yet, or another thread was first
                return None
            return frame

        frame = base.until(look, timeout)
        if frame is None:
            raise base.silent(sender=sender, receiver=receiver, round=round, timeout=timeout)
        return frame

    def close(self) -> None:
        """End the waiting of others with a TransportError. The folder belongs to the process that
        made it."""
        self._closed = True

    def _path(self, sender: int, receiver: int, round: int) -> Path:
        return self._folder / f"{round}-{sender}-{receiver}"
