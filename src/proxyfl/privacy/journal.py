"""The ledger's file: JSON lines that only grow, each sealed to all before it.

Every line carries a check value over its own content and the previous line's. Whatever happens to
the file other than the loss of its end (an edited number, a lost or repeated line) breaks the
chain, and a file with a broken chain is refused. The check finds accidents; it is no signature.

Two programs may hold the same file. ``append`` locks it and compares every byte with what the
caller has read or written before it adds a line. So of two programs one is stopped, also if both
write at the same instant. Where several programs may write in turn, ``extend`` reads, decides and
writes under one lock.

The end can be lost in one way that is harmless: the program dies in the middle of a write and
leaves part of a line, without its line break. ``append`` had not returned then, so nothing had been
done on the strength of that line. ``read`` reports such a rest, and the next ``append`` cuts it
off. A last line that is whole but for its line break counts."""

import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from proxyfl._files import sync_folder
from proxyfl.errors import PrivacyError, RunError

Entry = dict[str, Any]


class End(NamedTuple):
    """The end of the file, as far as it is valid."""

    size: int
    check: str
    seen: int
    """A checksum of all bytes of the file, an unfinished line included."""
    terminated: bool = True
    torn: int = 0
    """The number of bytes of an unfinished line that follow."""


def create(path: Path, header: Entry, *, durable: bool) -> End:
    """Start a file with its ``header``, which is there whole or not at all; refuse to touch a file
    that exists."""
    line, check = _sealed(header, "")
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with scratch.open("wb") as file:
                _write(file.fileno(), line, durable)
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
        line, check = _add(descriptor, entry, end, durable)
    return End(end.size + len(line), check, zlib.crc32(before + line))


def extend(
    path: Path,
    decide: Callable[[Entry, list[Entry]], Entry | None],
    *,
    durable: bool,
) -> None:
    """Add the entry that ``decide`` makes of the header and all entries; nothing for None.

    For files of several writers: the file is locked from before it is read until the entry is in
    it, so nobody else's line comes between. If ``decide`` raises, nothing is written."""
    with locked(path) as descriptor:
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        header, entries, end = _understood(path, content)
        entry = decide(header, entries)
        if entry is not None:
            _add(descriptor, entry, end, durable)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """The file, opened and locked against other writers."""
    try:
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # closing the file gives it free
            if not os.path.samestat(os.fstat(descriptor), path.stat()):
                raise PrivacyError(
                    f"The file {path} was replaced by another while it was in use. Put the right "
                    "one in its place."
                )
            yield descriptor
        finally:
            os.close(descriptor)
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


def _add(
    descriptor: int, entry: Entry, end: End, durable: bool
) -> tuple[bytes, str]:
    """Write ``entry`` after ``end``, in place of an unfinished line; what was written, and its
    check."""
    line, check = _sealed(entry, end.check)
    if not end.terminated:
        line = b"\n" + line
    os.ftruncate(descriptor, end.size)
    os.lseek(descriptor, end.size, os.SEEK_SET)
    try:
        _write(descriptor, line, durable)
    except OSError:
        os.ftruncate(descriptor, end.size)
        raise
    return line, check


def read(path: Path) -> tuple[Entry, list[Entry], End]:
    """The header, the entries, and where the file ends. Refuses all damage but an unfinished last
    line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(
            f"Cannot read the ledger {path}: {error.strerror}."
        ) from error
    return _understood(path, data)


def _understood(path: Path, data: bytes) -> tuple[Entry, list[Entry], End]:
    """What ``read`` gives, from the content of the file at ``path``."""
    lines = data.split(b"\n")
    rest = lines.pop()
    entries: list[Entry] = []
    check = ""
    for number, line in enumerate(lines, start=1):
        entry, check = _opened(line, check) or (None, check)
        if entry is None:
            raise PrivacyError(
                f"Line {number} of the ledger {path} is damaged or out of place, so what was "
                "spent is not known. Restore the file from a backup; do not edit it."
            )
        entries.append(entry)
    size = len(data) - len(rest)
    seen = zlib.crc32(data)
    end = End(size, check, seen, torn=len(rest))
    whole = _parsed(rest)
    if whole is not None:
        opened = _opened(rest, check)
        if opened is None:
            raise PrivacyError(
                f"The last line of the ledger {path} is damaged or out of place. Restore a backup."
            )
        entries.append(opened[0])
        end = End(len(data), opened[1], seen, terminated=False)
    if not entries:
        raise PrivacyError(
            f"The ledger {path} has no complete first line. A ledger is created whole, so it was "
            "damaged later, and what was spent is not known. Restore it from a backup."
        )
    return entries[0], entries[1:], end


def _sealed(entry: Entry, previous: str) -> tuple[bytes, str]:
    check = _check(entry, previous)
    return json.dumps({**entry, "check": check}).encode() + b"\n", check


def _opened(line: bytes, previous: str) -> tuple[Entry, str] | None:
    entry = _parsed(line)
    if entry is None:
        return None
    check = entry.pop("check", None)
    if check != _check(entry, previous):
        return None
    return entry, check


def _parsed(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except ValueError:  # also what bytes that are no text raise
        return None
    return entry if isinstance(entry, dict) else None


def _check(entry: Entry, previous: str) -> str:
    return f"{zlib.crc32((previous + json.dumps(entry)).encode()):08x}"


def _write(descriptor: int, data: bytes, durable: bool) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
    if durable:
        os.fsync(descriptor)
