"""The ledger's file: sealed JSON lines (``_journal``) after a header, compared byte by byte.

A ledger with a broken chain is refused: what was spent is then not known.

Two programs may hold the same file. ``append`` locks it and compares every byte with what the
caller has read or written before it adds a line. So of two programs one is stopped, also if both
write at the same instant. Where several programs may write in turn, ``extend`` reads, decides and
writes under one lock.

An unfinished last line, left by a program that died in the middle of a write, counts for nothing:
``append`` had not returned, so nothing had been done on the strength of it. ``read`` reports such a
rest, and the next ``append`` cuts it off. A last record that is complete counts, whatever became of
its line break."""

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proxyfl import _journal, _lock
from proxyfl._files import sync_folder
from proxyfl._journal import CRC32, Entry
from proxyfl._journal import End as End
from proxyfl.errors import PrivacyError, RunError


def create(path: Path, header: Entry, *, durable: bool) -> End:
    """Start a file with its ``header``, which is there whole or not at all; refuse to touch a file
    that exists."""
    line, check = CRC32.line(header, "")
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with scratch.open("wb") as file:
                _journal.write(file.fileno(), line, durable)
            os.link(scratch, path)  # unlike a rename, refuses to replace
        finally:
            scratch.unlink(missing_ok=True)
        if durable:
            sync_folder(path.parent)
    except FileExistsError:
        raise PrivacyError(
            f"The ledger {path} exists already, and a new one would forget what was spent. "
            "Continue it with Ledger.read(path), or choose another folder."
        ) from None
    except OSError as error:
        raise RunError(
            f"Cannot write the ledger {path}: {error.strerror}. Nothing was spent."
        ) from error
    return End(len(line), check, zlib.crc32(line))


def append(path: Path, entry: Entry, end: End, *, durable: bool) -> End:
    """Add ``entry`` after ``end`` and return the new end. When this returns, the line is in the
    file, and no other program's line is in its place.

    With ``durable`` it is on the disk, as far as the operating system can tell. If it cannot be
    written, what was written of it is taken back, and RunError says why."""
    with locked(path) as descriptor:
        before = _unchanged(descriptor, path, end)[: end.size]
        line, check = _journal.add(descriptor, entry, end, CRC32, durable=durable)
    return End(end.size + len(line), check, zlib.crc32(before + line))


def extend(
    path: Path, decide: Callable[[Entry, list[Entry]], Entry | None], *, durable: bool
) -> None:
    """Add the entry that ``decide`` makes of the header and all entries; nothing for None.

    For files of several writers: the file is locked from before it is read until the entry is in
    it, so nobody else's line comes between. If ``decide`` raises, nothing is written."""
    with locked(path) as descriptor:
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        header, entries, end = _checked(path, content)
        entry = decide(header, entries)
        if entry is not None:
            _journal.add(descriptor, entry, end, CRC32, durable=durable)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """The file, opened and locked against other writers."""
    try:
        with _lock.locked(path) as descriptor:
            if not os.path.samestat(os.fstat(descriptor), path.stat()):
                raise PrivacyError(
                    f"The file {path} was replaced by another while it was in use. Put the right "
                    "one in its place."
                )
            yield descriptor
    except OSError as error:
        raise RunError(
            f"Cannot write the ledger {path}: {error.strerror}. Nothing was spent."
        ) from error


def _unchanged(descriptor: int, path: Path, end: End) -> bytes:
    """The content of the locked file, which must be what ``end`` was taken from."""
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    expected = end.size + end.torn
    if len(content) == expected and zlib.crc32(content) == end.seen:
        return content
    raise PrivacyError(
        f"The ledger {path} has {len(content)} bytes that are not the {expected} expected: "
        "something else writes to it. Stop the other program, then continue with "
        "Ledger.read(path)."
    )


def read(path: Path) -> tuple[Entry, list[Entry], End]:
    """The header, the entries, and where the file ends. Refuses all damage but an unfinished last
    line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(
            f"Cannot read the ledger {path}: {error.strerror}. Check the name."
        ) from error
    return _checked(path, data)


def _checked(path: Path, data: bytes) -> tuple[Entry, list[Entry], End]:
    """What ``read`` gives, from the content of the file at ``path``."""
    entries, end, damaged = _journal.parse(data, CRC32)
    if damaged:
        raise PrivacyError(
            f"Line {damaged[0]} of the ledger {path} is damaged or out of place, so what was "
            "spent is not known. Restore the file from a backup; do not edit it."
        )
    if not entries:
        raise PrivacyError(
            f"The ledger {path} has no complete first line. A ledger is created whole, so it was "
            "damaged later, and what was spent is not known. Restore it from a backup."
        )
    return entries[0], entries[1:], end
