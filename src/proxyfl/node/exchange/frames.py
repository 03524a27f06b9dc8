"""Frames as the store holds them: small ones in its rows, large ones as files that a row names.

SQLite writes a large blob to its log and once more to its file; a file is written once, while its
frame arrives, and read by a map, so that no frame is in memory as a whole. Guarantee: whatever a
committed row names is on the disk, whole. A file is synced before the transaction that names it
commits, and removed only after the transaction that forgets it has.
"""

import contextlib
import hashlib
import mmap
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from proxyfl._files import sync_folder
from proxyfl.errors import RunError, TransportError

FOLDER = "frames"
LARGEST_IN_A_ROW = 1 << 16
MARK = b"\0file:"


class Mapped(mmap.mmap):
    """A file's content that knows its file; ``named`` once a row may name it."""

    path: Path
    named: bool


@dataclass(frozen=True)
class Arrived:
    """A frame that was received, and the SHA-256 of what was."""

    frame: bytes | memoryview
    sha256: str


class Frames:
    """The files of one store; without a folder, every frame lies in its row."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._arriving: set[str] = set()

    def put(self, frame: bytes | memoryview) -> bytes | memoryview:
        """The value of the row for ``frame``. Call it within the transaction of that row.

        A frame that lies in a file here already is named, not copied."""
        if self._folder is None or len(frame) <= LARGEST_IN_A_ROW:
            return frame
        mapped = frame.obj if isinstance(frame, memoryview) else None
        if isinstance(mapped, Mapped) and mapped.path.parent == self._folder:
            mapped.named = True
            return MARK + mapped.path.name.encode()
        name = secrets.token_hex(16)
        self._write(self._folder / name, [frame])
        return MARK + name.encode()

    @contextlib.contextmanager
    def receiving(self, pieces: Iterable[bytes | memoryview], size: int) -> Iterator[Arrived]:
        """The frame of ``size`` bytes that ``pieces`` bring; a large one is on the disk.

        TransportError if they bring more or less. A file that no ``put`` has named when the block
        ends is removed."""
        digest = hashlib.sha256()
        counted = _counted(pieces, size, digest.update)
        if self._folder is None or size <= LARGEST_IN_A_ROW:
            yield Arrived(b"".join(counted), digest.hexdigest())
            return
        path = self._folder / secrets.token_hex(16)
        self._arriving.add(path.name)
        named = False
        try:
            self._write(path, counted)
            mapped = _mapped(path)
            try:
                yield Arrived(memoryview(mapped), digest.hexdigest())
            finally:
                named = mapped.named
        finally:
            self._arriving.discard(path.name)
            if not named:
                path.unlink(missing_ok=True)

    def read(self, held: bytes) -> bytes | memoryview:
        """The frame for which a row holds ``held``. A large one is mapped, not copied."""
        if not held.startswith(MARK):
            return held
        if self._folder is None:
            raise RunError("A store in memory names no files.")
        path = self._folder / file_name(held)
        try:
            return memoryview(_mapped(path))
        except (OSError, ValueError) as error:
            raise RunError(
                f"The store names {path}, which cannot be read: {error}. Bring back the whole of "
                "the site's folder from one backup."
            ) from error

    def sweep(self, named: Collection[str]) -> None:
        """Remove the files that are not among ``named`` and not about to be named."""
        if self._folder is None or not self._folder.exists():
            return
        # In this order: a name is noted in ``_arriving`` before its file is there to be listed.
        present = list(self._folder.iterdir())
        needed = {*named, *self._arriving}
        for path in present:
            if path.name not in needed and not path.is_dir():
                path.unlink(missing_ok=True)

    def _write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """A new file that is on the disk when this returns."""
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with path.open("xb", buffering=0) as file:
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            sync_folder(path.parent)
        except OSError as error:
            raise RunError(
                f"Cannot write a frame to {path.parent}: {error.strerror}. Make room on the disk, "
                "then start the site again."
            ) from error


def file_name(held: bytes) -> str:
    """The name of the file for which a row holds ``held``."""
    return held[len(MARK) :].decode()


def _counted(
    pieces: Iterable[bytes | memoryview], size: int, look: Callable[[bytes | memoryview], None]
) -> Iterator[bytes | memoryview]:
    """The pieces, each shown to ``look``; TransportError unless they have ``size`` bytes."""
    found = 0
    for piece in pieces:
        found += len(piece)
        if found > size:
            break
        look(piece)
        yield piece
    if found != size:
        raise TransportError(f"A message announces a body of {size} bytes and has {found} or more.")


def _mapped(path: Path) -> Mapped:
    with path.open("rb") as file:
        mapped = Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.path = path
    mapped.named = False
    return mapped
