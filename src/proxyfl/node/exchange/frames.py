"""Frames as the store holds them: small ones in its rows, large ones as files that a row names.

SQLite writes a large blob to its log and once more to its file; a file is written once. Guarantee:
whatever a committed row names is on the disk, whole. A file is synced before the transaction that
names it commits, and removed only after the transaction that forgets it has.
"""

import mmap
import os
import secrets
from collections.abc import Collection
from pathlib import Path

from proxyfl._files import sync_folder
from proxyfl.errors import RunError

FOLDER = "frames"
LARGEST_IN_A_ROW = 1 << 16
MARK = b"\0file:"


class Frames:
    """The files of one store; without a folder, every frame lies in its row."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def put(self, frame: bytes | memoryview) -> bytes | memoryview:
        """The value of the row for ``frame``. Call it within the transaction of that row."""
        if self._folder is None or len(frame) <= LARGEST_IN_A_ROW:
            return frame
        name = secrets.token_hex(16)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        try:
            with (self._folder / name).open("xb", buffering=0) as file:
                rest = memoryview(frame)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            sync_folder(self._folder)
        except OSError as error:
            raise RunError(
                f"Cannot write a frame of {len(frame)} bytes to {self._folder}: {error.strerror}. "
                "Make room on the disk, then start the site again."
            ) from error
        return MARK + name.encode()

    def read(self, held: bytes) -> bytes | memoryview:
        """The frame for which a row holds ``held``. A large one is mapped, not copied."""
        if not held.startswith(MARK):
            return held
        if self._folder is None:
            raise RunError("A store in memory names no files.")
        path = self._folder / held[len(MARK) :].decode()
        try:
            with path.open("rb") as file:
                return memoryview(
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                )
        except (OSError, ValueError) as error:
            raise RunError(
                f"The store names {path}, which cannot be read: {error}. Bring back the whole of "
                "the site's folder from one backup."
            ) from error

    def sweep(self, held: Collection[bytes]) -> None:
        """Remove the files that no row names."""
        if self._folder is None or not self._folder.exists():
            return
        named = {each[len(MARK) :].decode() for each in held}
        for path in self._folder.iterdir():
            if path.name not in named:
                path.unlink()
