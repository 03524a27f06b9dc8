"""Writes a store, shard by shard, on several threads, in constant memory.

Guarantees:
    * the store is the same, byte for byte, however many threads write it and however often the
      program is stopped and called again with the same arguments;
    * at most one example for each thread is in memory, and what its reader holds;
    * ``store.json`` appears last: a folder without it is no store;
    * one process writes to a folder at a time.

What was written before an interruption is read back and compared with its checksum. Threads are
enough to use all cores: decoding, scaling, hashing and writing do not hold Python's lock.
"""

import errno
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from proxyfl import _files, _lock
from proxyfl.data.stores import index
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import Content, Entry, Head, Shard
from proxyfl.errors import DataError

SHARD_BYTES = 2**25
CHUNK_BYTES = 2**16
"""What is hashed and then written at once: little enough to be in the processor's cache still."""
JOURNAL = "unfinished.jsonl"

Array = npt.NDArray[Any]
Fault = tuple[str, str]
"""A kind, and what was found."""
Read = Callable[[int, Sequence[Entry]], Iterator[Array | Fault]]
"""Gives, for each of some entries in order, its example or the fault that stands in its place; the
number is that of the first entry. An example is written before the next one is asked for, so a
reader may use its memory again."""
Advance = Callable[[int], None]
Draw = Callable[[Head, Sequence[Entry]], object]


@dataclass(frozen=True)
class Written:
    """A finished shard: which of its entries were left out, and why."""

    number: int
    shard: Shard
    missing: tuple[int, ...]
    faults: tuple[Fault, ...]


def write_store(
    folder: Path,
    content: Content,
    entries: Sequence[Entry],
    read: Read,
    faults: Faults,
    *,
    workers: int = 1,
    advance: Advance = lambda count: None,
    draw: Draw = lambda head, entries: None,
) -> Head:
    """Write the examples that ``read`` makes of ``entries``; continue if they were begun.

    ``advance`` is told how many entries are done. ``draw`` adds to the folder what is to be seen of
    the store, once all examples are there and before it counts as finished."""
    with _files.writing(folder, error=DataError):
        folder.mkdir(parents=True, exist_ok=True)
        refusal = f"{folder}: another process is writing a store there. Wait for it."
        with _lock.hold(folder / _lock.FILE, refusal):
            _check_unfinished(folder)
            head = _write(folder, content, entries, read, faults, workers, advance, draw)
            (folder / _lock.FILE).unlink()
            return head


def _check_unfinished(folder: Path) -> None:
    """Refuse a store that is finished. One that was stopped on its last step still has its list of
    shards, and is finished again."""
    finished = (folder / index.HEAD).exists()
    if finished and not (folder / JOURNAL).exists():
        raise DataError(f"{folder} is a finished store already. Give another folder, or remove it.")


def _write(
    folder: Path,
    content: Content,
    entries: Sequence[Entry],
    read: Read,
    faults: Faults,
    workers: int,
    advance: Advance,
    draw: Draw,
) -> Head:
    size = max(1, SHARD_BYTES // content.row_bytes)
    slices = []
    for start in range(0, len(entries), size):
        slices.append(entries[start : start + size])
    journal = _Journal(folder, index.plan_digest(content, entries))
    done = journal.finished()
    for number, written in done.items():
        _refuse(faults, written)
        advance(len(slices[number]))
    missing = [i for i in range(len(slices)) if i not in done]
    make = _maker(folder, content, read, size, advance)
    for written in _made(make, slices, missing, workers):
        # refuse before the journal knows of it: the next call must meet it again
        _refuse(faults, written)
        journal.append(written)
        done[written.number] = written
    return _finish(folder, content, slices, done, faults, draw)


Make = Callable[[int, Sequence[Entry]], Written]


def _made(
    make: Make, slices: Sequence[Sequence[Entry]], missing: Sequence[int], workers: int
) -> Iterator[Written]:
    """The missing shards, as they are finished."""
    pool = ThreadPoolExecutor(workers)
    try:
        waiting: list[Future[Written]] = []
        for number in missing:
            waiting.append(pool.submit(make, number, slices[number]))
        for future in as_completed(waiting):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _maker(folder: Path, content: Content, read: Read, size: int, advance: Advance) -> Make:
    """The function that writes one shard."""

    def make(number: int, entries: Sequence[Entry]) -> Written:
        missing: list[int] = []
        faults: list[Fault] = []

        def first() -> Iterator[Array]:
            for place, image in enumerate(read(number * size, entries)):
                if isinstance(image, tuple):
                    missing.append(place)
                    faults.append(image)
                else:
                    yield image
                advance(1)

        def again() -> Iterator[Array]:
            for image in read(number * size, entries):
                if not isinstance(image, tuple):
                    yield image

        path = folder / f"{number:06d}.npy"
        shard = _save(path, content, len(entries), first())
        if missing:
            # its head promised examples that did not come
            shard = _save(path, content, len(entries) - len(missing), again())
        return Written(number, shard, tuple(missing), tuple(faults))

    return make


def _save(path: Path, content: Content, count: int, examples: Iterator[Array]) -> Shard:
    """Write a ``.npy`` file of ``count`` examples, each as it comes; its checksum is taken on the
    way."""
    head = _npy_head(content, count)
    digest = hashlib.sha256(head)
    with _files.whole(path) as scratch, scratch.open("wb") as file:
        _reserve(file, len(head) + count * content.row_bytes)
        file.write(head)
        for example in examples:
            values = np.ascontiguousarray(example, dtype=content.dtype)
            if values.shape != content.shape:
                raise DataError(
                    f"{path}: expected examples of shape {content.shape}, got {values.shape}. "
                    "Bring all examples into one shape."
                )
            row = values.data.cast("B")
            for start in range(0, len(row), CHUNK_BYTES):
                chunk = row[start : start + CHUNK_BYTES]
                digest.update(chunk)
                file.write(chunk)
    return Shard(path.name, count, digest.hexdigest())


def _npy_head(content: Content, count: int) -> bytes:
    """What stands before ``count`` examples in a ``.npy`` file."""
    head = io.BytesIO()
    dtype = np.dtype(content.dtype)
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (count, *content.shape),
    }
    np.lib.format.write_array_header_1_0(head, described)
    return head.getvalue()


def _reserve(file: BinaryIO, size: int) -> None:
    """Have the file's room found at once, where the file system can: a third of the time that
    writing takes, and a full disk is known before the first example is read."""
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except (AttributeError, OSError) as problem:
        full = isinstance(problem, OSError) and problem.errno == errno.ENOSPC
        if full:
            raise


def _refuse(faults: Faults, written: Written) -> None:
    for kind, what in written.faults:
        faults.report(kind, what)


class _Journal:
    """The finished shards of a store that is not finished, one line each."""

    def __init__(self, folder: Path, plan: str) -> None:
        self.folder = folder
        self.path = folder / JOURNAL
        self.plan = plan

    def finished(self) -> dict[int, Written]:
        """The shards that are there and whole."""
        finished = {}
        for written in self._read_notes():
            path = self.folder / written.shard.file
            if path.exists() and index.sha256(path) == written.shard.sha256:
                finished[written.number] = written
        # Written anew: a line that was cut off must not spoil the next one.
        lines = [{"plan": self.plan}, *map(asdict, finished.values())]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        _files.write_text(self.path, text)
        return finished

    def append(self, written: Written) -> None:
        """Note a shard, after its file is on disk."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(written)) + "\n")

    def _read_notes(self) -> list[Written]:
        if not self.path.exists():
            return []
        text = _files.read_text(self.path, "list of shards", error=DataError)
        # what comes after the last line's end was cut off
        complete = text.split("\n")[:-1]
        try:
            lines = [json.loads(line) for line in complete]
            plan = lines[0]["plan"] if lines else None
            noted = [_from_json(line) for line in lines[1:]]
        except (ValueError, KeyError, TypeError) as problem:
            raise DataError(
                f"{self.path}: not the list of a store's shards ({type(problem).__name__}: "
                f"{problem}). Remove it, and all shards are written again."
            ) from problem
        if plan != self.plan:
            raise DataError(
                f"{self.folder} holds a store that was begun with other settings or other files. "
                "Give the same command to continue it, or another folder."
            )
        return noted


def _from_json(line: dict[str, Any]) -> Written:
    number = line["number"]
    shard = Shard(**line["shard"])
    missing = tuple(line["missing"])
    faults = tuple((kind, what) for kind, what in line["faults"])
    return Written(number, shard, missing, faults)


def _finish(
    folder: Path,
    content: Content,
    slices: Sequence[Sequence[Entry]],
    done: dict[int, Written],
    faults: Faults,
    draw: Draw,
) -> Head:
    """Write the index and the head, once every shard is there."""
    kept: list[Entry] = []
    shards: list[Shard] = []
    for number, entries in enumerate(slices):
        written = done[number]
        shards.append(written.shard)
        missing = set(written.missing)
        for place, entry in enumerate(entries):
            if place not in missing:
                kept.append(entry)
    if not kept:
        raise DataError(
            f"{folder}: nothing to store: no example was left. Check what was skipped, and why."
        )
    text = index.index_text(kept)
    digest = hashlib.sha256(text.encode()).hexdigest()
    skipped = dict(sorted(faults.counts.items()))
    head = Head(content, tuple(shards), digest, skipped)
    draw(head, kept)
    _files.write_text(folder / index.INDEX, text)
    _files.write_json(folder / index.HEAD, index.head_json(head))
    (folder / JOURNAL).unlink()
    return head
