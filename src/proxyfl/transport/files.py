"""Frames as files in a folder that someone synchronises: SFTP, a share, a USB stick.

    FOLDER/for-NAME/SLOT.message

Guarantees:
    * a file appears under its name whole or not at all, so a synchronisation in between copies no
      half of one;
    * a slot holds one message, the latest: what nobody collects does not pile up;
    * what is collected is put aside first, so that a newer message in the same slot is not removed
      with it, and what was put aside when the program ended is collected again;
    * ``waiting`` reads no file larger than ``largest``; a file that cannot be read is left alone,
      and so is whatever is no plain file: whoever can write to the folder could put a link or a
      pipe there that never ends.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from proxyfl._files import write_bytes
from proxyfl.errors import TransportError

_SUFFIX = ".message"
_ASIDE = ".taken"


class Folder:
    """One end of the exchange by files."""

    def __init__(self, path: Path, *, largest: int) -> None:
        self.path = path
        self._largest = largest

    def put(self, message: bytes, receiver: str, slot: str) -> Path:
        """Leave ``message`` for ``receiver``, in place of the last one in this slot."""
        path = self._path(receiver, slot)
        write_bytes(path, message)
        return path

    def holds(self, receiver: str, slot: str) -> bool:
        """True if what was left in this slot still lies there."""
        return self._path(receiver, slot).exists()

    def waiting(self, receiver: str) -> Iterator[tuple[Path, bytes]]:
        """The files for ``receiver``, oldest first; remove each file when done with it."""
        inbox = self._inbox(receiver)
        if not inbox.is_dir():
            return
        files = []
        for path in inbox.iterdir():
            if path.suffix in (_SUFFIX, _ASIDE):
                files.append(path)
        for path in sorted(files, key=_age):
            try:
                message = _plain(path, self._largest)
                if message is None:
                    continue
                # What lies there now may be newer than what was read: read what is put aside.
                aside = path.replace(path.with_suffix(_ASIDE))
                message = _plain(aside, self._largest)
            except OSError:
                continue
            if message is not None:
                yield aside, message

    def _path(self, receiver: str, slot: str) -> Path:
        return self._inbox(receiver) / f"{slot}{_SUFFIX}"

    def _inbox(self, receiver: str) -> Path:
        if not receiver or "/" in receiver or receiver.startswith("."):
            raise TransportError(f"Expected a site's name, got {receiver!r:.60}.")
        return self.path / f"for-{receiver}"


def _plain(path: Path, largest: int) -> bytes | None:
    """The content of a plain file; None if it is something else, or larger than ``largest``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = file.read(largest + 1)
    return content if len(content) <= largest else None


def _age(path: Path) -> tuple[float, str]:
    try:
        return path.lstat().st_mtime, path.name
    except OSError:
        return 0.0, path.name
