"""File locks between programs on one machine.

A lock belongs to the open file. The operating system lifts it when the last process that has the
file open closes it or ends, however it ends, so no lock outlives its program.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from proxyfl._files import writing
from proxyfl.errors import RunError

FILE = ".lock"
"""The file in a folder by whose lock a process has the folder to itself."""


@contextlib.contextmanager
def locked(path: Path, *, create: bool = False) -> Iterator[int]:
    """The descriptor of the file at ``path``, for reading and writing, once no other program has
    it locked. A new file is its owner's alone. Raises what the operating system refuses."""
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def hold(path: Path, refusal: str, *, note: str = "") -> Iterator[int]:
    """Holds the lock file at ``path``, whose descriptor is given; RunError(``refusal``) if another
    process does. The file has the ``note`` as long as the block lasts."""
    with writing(path.parent):
        file = path.open("a+")
    with file:
        with writing(path):
            if not _take(file.fileno()):
                raise RunError(refusal)
        if note:
            file.truncate(0)
            file.write(note)
            file.flush()
        yield file.fileno()
        if note:
            file.truncate(0)


def _take(descriptor: int) -> bool:
    """Takes the lock, or returns False if another process holds it. Readers of its note share it
    for an instant; they are no holders, and are waited for."""
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(0.001)


def read_note(path: Path) -> str | None:
    """The note of the process that holds the lock file at ``path``; None if no process does."""
    if not path.exists():
        return None
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return file.read()
    return None
