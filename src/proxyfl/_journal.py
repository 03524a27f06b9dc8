"""Append-only files of JSON lines, each sealed to all before it: ledger, audit log, metrics.

Every line carries a check value over its own content and the previous line's check value. Whatever
happens to a file other than the loss of its end (an edited number, a lost or repeated line) breaks
the chain. The check finds accidents; it is not a signature.

The end can be lost in one way that is harmless: the program dies in the middle of a write and
leaves part of a line. The write had not returned then, so nothing had been done on the strength of
that line. The next write cuts the unfinished rest off. A last record that is complete counts,
whatever became of its line break.

Guarantees:
    * when ``append`` returns, the entry is in the file (``durable``: on the disk, as far as the
      operating system can tell); when it raises, what was written of it is taken back;
    * ``parse`` changes nothing and raises nothing, whatever the bytes are;
    * a ``Log`` whose file is moved away, cut to nothing or grown too large goes on in a new file
      whose first line names the last check of the file before: the chain runs through all of them.
"""

import hashlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from proxyfl._files import sync_folder
from proxyfl._lock import locked
from proxyfl.errors import RunError

Entry = dict[str, Any]

AFTER = "after"
"""The key by which the first line of a file names the last check of the file before it."""


class Seal(NamedTuple):
    """The key of a line's check value, and how it follows from the entry and the previous one."""

    key: str
    check: Callable[[Entry, str], str]
    sort_keys: bool = False

    def line(self, entry: Entry, previous: str) -> tuple[bytes, str]:
        """The line for ``entry``, and its check."""
        check = self.check(entry, previous)
        text = json.dumps({**entry, self.key: check}, sort_keys=self.sort_keys)
        return text.encode() + b"\n", check


def _crc32(entry: Entry, previous: str) -> str:
    return f"{zlib.crc32((previous + json.dumps(entry)).encode()):08x}"


def _sha256(entry: Entry, previous: str) -> str:
    text = json.dumps(entry, sort_keys=True)
    return hashlib.sha256((previous + text).encode()).hexdigest()


CRC32 = Seal("check", _crc32)
"""For files whose lines accidents alone change: ledgers and metrics."""

SHA256 = Seal("sha256", _sha256, sort_keys=True)
"""For the audit log: somebody who knows the last hash knows the whole of the log."""


class End(NamedTuple):
    """The end of a file, as far as it is valid."""

    size: int
    check: str
    seen: int
    """A checksum of all bytes of the file, an unfinished line included."""
    terminated: bool = True
    torn: int = 0
    """The number of bytes of an unfinished line that follow."""


class Content(NamedTuple):
    """A file's entries, where it ends, and the numbers of the lines that do not follow."""

    entries: list[Entry]
    end: End
    damaged: tuple[int, ...]


def parse(data: bytes, seal: Seal, *, unsealed: bool = False) -> Content:
    """The content of a file. Lines that can be read are entries also if they are damaged.

    With ``unsealed`` lines before the first sealed one need no check: earlier releases wrote
    none."""
    lines = data.split(b"\n")
    rest = lines.pop()
    entries: list[Entry] = []
    damaged: list[int] = []
    check = ""
    sealed = not unsealed
    for number, line in enumerate(lines, start=1):
        entry = _decode(line)
        if entry is None:
            damaged.append(number)
            continue
        sealed = sealed or seal.key in entry
        fits, check = _open(entry, seal, check, sealed=sealed, first=number == 1)
        if not fits:
            damaged.append(number)
        entries.append(entry)
    size = len(data) - len(rest)
    seen = zlib.crc32(data)
    entry, used = _decode_start(rest)
    if entry is None:
        return Content(entries, End(size, check, seen, torn=len(rest)), tuple(damaged))
    sealed = sealed or seal.key in entry
    fits, check = _open(entry, seal, check, sealed=sealed, first=not lines)
    if not fits:
        damaged.append(len(lines) + 1)
    entries.append(entry)
    end = End(size + used, check, seen, terminated=False, torn=len(rest) - used)
    return Content(entries, end, tuple(damaged))


def add(descriptor: int, entry: Entry, end: End, seal: Seal, *, durable: bool) -> tuple[bytes, str]:
    """Write ``entry`` after ``end``, in place of an unfinished line; what was written, and its
    check. If it cannot be written, the file keeps the length that it had up to ``end``."""
    line, check = seal.line(entry, end.check)
    if not end.terminated:
        line = b"\n" + line
    os.ftruncate(descriptor, end.size)
    os.lseek(descriptor, end.size, os.SEEK_SET)
    try:
        write(descriptor, line, durable)
    except OSError:
        os.ftruncate(descriptor, end.size)
        raise
    return line, check


def write(descriptor: int, data: bytes, durable: bool) -> None:
    """Write all of ``data``; with ``durable``, wait for the disk."""
    while data:
        data = data[os.write(descriptor, data) :]
    if durable:
        os.fsync(descriptor)


class Log:
    """A file that one program writes and anybody reads. Use it from any thread.

    ``faults`` says in sentences what was wrong with the file when it was opened; ``last`` is the
    last entry of that time. Opening changes nothing."""

    def __init__(
        self, path: Path, seal: Seal, *, name: str, unsealed: bool = False, largest: int = 0
    ) -> None:
        """``name`` is what messages call the file; one that has grown to ``largest`` bytes is put
        aside (0: never)."""
        self.path = path
        self.name = name
        self._seal = seal
        self._unsealed = unsealed
        self._largest = largest
        self._lock = threading.Lock()
        content = parse(_content_of(path, name), seal, unsealed=unsealed)
        self.faults = tuple(describe_faults(content, path))
        self.last = content.entries[-1] if content.entries else None
        self._end = content.end
        self._place = (0, 0, -1)
        """Device, inode and size of the file as this program left it."""
        self._before = "" if content.entries else _last_check(path, seal)

    def append(self, entry: Entry) -> None:
        """Add ``entry``; when this returns, it is on the disk. RunError if it cannot be written."""
        try:
            with self._lock, self._open() as descriptor:
                if self._largest and self._end.size >= self._largest:
                    self._put_aside()
                else:
                    self._add(descriptor, entry)
                    return
            self.append(entry)
        except OSError as error:
            raise RunError(
                f"Cannot write the {self.name} {self.path}: {error.strerror}. Make room on the "
                "disk, or let this user write there, and start the site again."
            ) from error

    @contextmanager
    def _open(self) -> Iterator[int]:
        """The file, locked; ``_end`` is where it ends, whatever happened to it meanwhile."""
        with locked(self.path, create=True) as descriptor:
            if _place_of(descriptor) != self._place:
                data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
                content = parse(data, self._seal, unsealed=self._unsealed)
                if not content.entries and self._end.check:
                    self._before = self._end.check
                self._end = content.end
            yield descriptor

    def _add(self, descriptor: int, entry: Entry) -> None:
        end = self._end
        first = end.size == 0
        if first and self._before:
            entry = {**entry, AFTER: self._before}
            end = end._replace(check=self._before)
        self._place = (0, 0, -1)  # until it is known what became of the file
        line, check = add(descriptor, entry, end, self._seal, durable=True)
        if first:
            sync_folder(self.path.parent)
        self._end = End(end.size + len(line), check, 0)
        self._place = _place_of(descriptor)

    def _put_aside(self) -> None:
        number = 1
        while (aside := _path_of(self.path, number)).exists():
            number += 1
        self.path.rename(aside)
        sync_folder(self.path.parent)


def describe_faults(content: Content, path: Path) -> Iterator[str]:
    """Lists the faults of a file, in sentences."""
    if content.end.torn:
        yield (
            f"{path.name} ends in an unfinished line of {content.end.torn} bytes, as a full disk "
            "or a power cut leaves it: the next entry replaces it."
        )
    if content.damaged:
        more = "" if len(content.damaged) == 1 else f", the first of {len(content.damaged)}"
        yield (
            f"Line {content.damaged[0]} of {path.name}{more}, is damaged or out of place. What "
            "comes after it is sealed again."
        )


def _path_of(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number:04d}{path.suffix}")


class Reader:
    """Reads a file that grows, each time only what is new, and checks no seals: ``Log`` did when
    it was opened. Use it from any thread."""

    def __init__(self, path: Path, seal: Seal) -> None:
        self._path = path
        self._seal = seal
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._place = (0, 0)
        """Inode of the file, and how many of its bytes were read: whole lines."""

    def entries(self) -> list[Entry]:
        """The entries so far; an unfinished last line is left out."""
        with self._lock:
            return self._read_new()

    def _read_new(self) -> list[Entry]:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                inode, start = self._place
                if inode != status.st_ino or status.st_size < start:
                    self._entries, start = [], 0
                file.seek(start)
                data = file.read()
        except FileNotFoundError:
            self._entries, self._place = [], (0, 0)
            return []
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.split(b"\n")[:-1]:
            entry = _decode(line)
            if entry is not None:
                entry.pop(self._seal.key, None)
                self._entries.append(entry)
        self._place = (status.st_ino, start + len(whole))
        return list(self._entries)


def read(path: Path, seal: Seal, *, name: str, unsealed: bool = False) -> Content:
    """The content of the file at ``path``; that of an empty one if there is none."""
    return parse(_content_of(path, name), seal, unsealed=unsealed)


def earlier(path: Path) -> list[Path]:
    """The files next to ``path`` that hold what was put aside, by this program or by logrotate: in
    the order in which they were last written. Compressed ones cannot be read and are left out."""
    written: dict[Path, int] = {}
    for pattern in (f"{path.stem}-*{path.suffix}", f"{path.name}.*", f"{path.name}-*"):
        for file in path.parent.glob(pattern):
            if file.is_file():
                written[file] = file.stat().st_mtime_ns
    return sorted(written, key=lambda file: (written[file], file.name))


def _last_check(path: Path, seal: Seal) -> str:
    """The last check of what was put aside last; empty if nothing was."""
    for file in reversed(earlier(path)):
        content = parse(file.read_bytes(), seal)
        if content.entries:
            return content.end.check
    return ""


def _content_of(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RunError(f"Cannot read the {name} {path}: {error.strerror}.") from error


def _place_of(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size


def _open(
    entry: Entry, seal: Seal, previous: str, *, sealed: bool, first: bool
) -> tuple[bool, str]:
    """Take the check out of ``entry``: True if it follows from ``previous``, and the check to go
    on with."""
    claimed = entry.pop(seal.key, None)
    if claimed is None and not sealed:
        return True, previous
    if first and isinstance(entry.get(AFTER), str):
        previous = entry[AFTER]
    if not isinstance(claimed, str):
        return False, previous
    return claimed == seal.check(entry, previous), claimed


def _decode(line: bytes) -> Entry | None:
    """The record that ``line`` is; None if it is something else."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # ValueError is also what bytes that are no text raise
        return None
    return entry if isinstance(entry, dict) else None


def _decode_start(rest: bytes) -> tuple[Entry | None, int]:
    """The record with which ``rest`` begins, and its length; (None, 0) if it is not complete."""
    text = rest.decode("ascii", errors="replace")  # one character for each byte
    try:
        entry, used = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None, 0
    return (entry, used) if isinstance(entry, dict) else (None, 0)
