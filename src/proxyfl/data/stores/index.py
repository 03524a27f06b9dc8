"""A store's two lists: ``index.csv``, a row for each example, and ``store.json``, which says what
the examples are and which shards hold them, each with its checksum.

    STORE/
      store.json      shape, type, classes, how it was made, shards with SHA-256, faults skipped
      index.csv       label, site, person, part, file, x, y of each example, in order; record, a
                      fingerprint of what it was made from, if these are features of something
      000000.npy ...  the examples, some 32 MB a file
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from proxyfl import _files
from proxyfl.errors import DataError

FORMAT = 1
HEAD = "store.json"
INDEX = "index.csv"
PARTS = ("train", "test")
READ_BYTES = 2**20
BYTES = {"uint8": 1, "float32": 4}
"""The types that examples can have: pixels and features."""


@dataclass(frozen=True)
class Entry:
    """The entry of one example. An empty field is not known."""

    label: str
    site: str = ""
    person: str = ""
    part: str = ""
    file: str = ""
    x: str = ""
    y: str = ""
    record: str = ""
    """The fingerprint (``data.holdout``) of the record that these features are of, where no person
    is named: so that features are held out as their images are, whatever the last bits are."""


@dataclass(frozen=True)
class Shard:
    """One file of examples."""

    file: str
    examples: int
    sha256: str


@dataclass(frozen=True)
class Content:
    """A description of a store's examples: their shape, their type, and how they were made."""

    shape: tuple[int, ...]
    dtype: str
    classes: tuple[str, ...]
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def row_bytes(self) -> int:
        """The size of one example."""
        return BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Head:
    """All of ``store.json``."""

    content: Content
    shards: tuple[Shard, ...]
    index_sha256: str
    skipped: Mapping[str, int] = field(default_factory=dict)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def index_text(entries: Iterable[Entry]) -> str:
    """The entries as CSV; the column ``record`` only where there is one."""
    entries = list(entries)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    names = [each.name for each in fields(Entry)]
    if not any(entry.record for entry in entries):
        names.remove("record")
    values = attrgetter(*names)
    rows.writerow(names)
    for entry in entries:
        rows.writerow(values(entry))
    return text.getvalue()


def read_index(folder: Path, head: Head) -> list[Entry]:
    """The entries of a store, if its index is the one that was written."""
    path = folder / INDEX
    text = _files.read_text(path, "index", error=DataError)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != head.index_sha256:
        raise DataError(
            f"{path}: its SHA-256 is {digest}, expected {head.index_sha256}: it was changed after "
            "the store was made. Restore it, or make the store again."
        )
    rows = csv.DictReader(io.StringIO(text))
    entries = [Entry(**row) for row in rows]
    expected = sum(shard.examples for shard in head.shards)
    if len(entries) != expected:
        raise DataError(
            f"{path}: {len(entries)} examples, but {HEAD} says that its shards hold "
            f"{expected}: one was changed. Restore it, or make the store again."
        )
    return entries


def head_json(head: Head) -> dict[str, Any]:
    """``store.json`` as a document."""
    return {"format": FORMAT, **asdict(head)}


def read_head(folder: Path) -> Head:
    """Reads ``store.json``."""
    path = folder / HEAD
    head = _files.read_json(path, "store", error=DataError)
    try:
        if head["format"] != FORMAT:
            raise DataError(
                f"{path}: expected a store of format {FORMAT}, got {head['format']!r}. Read it "
                "with the version of proxyfl that made it, or make it again."
            )
        shards = []
        for each in head["shards"]:
            shards.append(_shard(each))
        content = _content(head["content"])
        digest = head["index_sha256"]
        return Head(content, tuple(shards), digest, head["skipped"])
    except (KeyError, TypeError, ValueError) as problem:
        raise DataError(
            f"{path}: not the head of a store: {type(problem).__name__}: {problem}."
        ) from problem


def _content(entry: Mapping[str, Any]) -> Content:
    shape = tuple(entry["shape"])
    if not all(isinstance(side, int) and side > 0 for side in shape):
        raise ValueError(f"examples of shape {shape}")
    if entry["dtype"] not in BYTES:
        raise ValueError(f"examples of type {entry['dtype']!r}")
    classes = tuple(entry["classes"])
    return Content(shape, entry["dtype"], classes, entry["made"])


def _shard(entry: Mapping[str, Any]) -> Shard:
    shard = Shard(**entry)
    if Path(shard.file).name != shard.file:
        raise ValueError(f"a shard outside of the store: {shard.file!r}")
    if not isinstance(shard.examples, int) or shard.examples < 0:
        raise ValueError(f"a shard of {shard.examples!r} examples")
    return shard


def plan_digest(content: Content, entries: Sequence[Entry]) -> str:
    """What an interrupted store must agree with to be continued."""
    described = json.dumps(asdict(content), sort_keys=True)
    described += index_text(entries)
    return hashlib.sha256(described.encode()).hexdigest()
