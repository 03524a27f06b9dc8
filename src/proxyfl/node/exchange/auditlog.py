"""The site's audit log: who connected, what was released, what was refused. It only grows.

One JSON object a line, each with the hash of the line before it (``_journal``), so that a line that
was changed or taken out later shows (``verify``). What repeats, such as a peer that floods the site
with bad messages, is counted and not written a thousand times.

Guarantees:
    * an event that a peer can bring about as often as it likes costs at most one line for each
      peer every ``QUIET_SECONDS``; the next line says how many were left out;
    * the log never keeps a site from starting: an unfinished last line is cut off, and what was
      wrong with the file is its next entry;
    * a file of ``LARGEST`` bytes is put aside as ``audit-0001.jsonl`` and so on. The chain goes
      through all files, also if something else moves them;
    * a clock that jumps is on record: the order of entries is that of the file, whatever their
      times say.
"""

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from proxyfl import _journal
from proxyfl._journal import SHA256

FILE = "audit.jsonl"
QUIET_SECONDS = 10.0
LARGEST = 16 << 20

CLOCK_SECONDS = 30.0
"""Clocks that differ by more need somebody's attention."""

_NAME = "audit log"
_FLOODING = (
    "refused",
    "unreachable",
    "dialled in",
    "restored from an old backup",
    "second copy",
    "claim without proof",
    "clock differs",
)
"""What a peer can bring about as often as it likes."""


class AuditLog:
    """Appends to one file. Use it from any thread."""

    def __init__(self, path: Path, *, largest: int = LARGEST) -> None:
        self._log = _journal.Log(path, SHA256, name=_NAME, largest=largest)
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], float] = {}
        self._left_out: Counter[tuple[str, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self._clock = (0.0, 0.0)
        """What the wall clock, and one that nobody sets, showed last."""
        self.faults = self._log.faults
        """What was wrong with the file when it was opened, in sentences."""
        self._open(self._log.last)

    def _open(self, last: dict[str, Any] | None) -> None:
        for sentence in self.faults:
            self.add("damage", what=sentence)
        if last is not None and isinstance(last.get("time"), int | float):
            ahead = last["time"] - time.time()
            if ahead > CLOCK_SECONDS:
                self.add("clock jumped", seconds=-round(ahead))

    def add(self, event: str, *, peer: str = "", **about: Any) -> bool:
        """Put ``event`` on record, and count it; False if it was counted only, since the like was
        recorded a moment ago."""
        key = (event, peer)
        now = time.monotonic()  # a clock that is set back must not silence the log
        with self._lock:
            self.counts[event] += 1
            quiet_until = self._written.get(key, -QUIET_SECONDS) + QUIET_SECONDS
            if event in _FLOODING and now < quiet_until:
                self._left_out[key] += 1
                return False
            self._note_clock()
            entry: dict[str, Any] = {"time": round(time.time(), 3), "event": event}
            if peer:
                entry["peer"] = peer
            entry |= about
            left_out = self._left_out[key]
            if left_out:
                entry["left_out_before"] = left_out
            self._log.append(entry)
            self._written[key] = now
            del self._left_out[key]
            return True

    def _note_clock(self) -> None:
        """Put on record that the wall clock was set since the last entry."""
        now = _uptime()
        wall = time.time()
        wall_before, before = self._clock
        self._clock = (wall, now)
        jump = (wall - wall_before) - (now - before)
        if before and abs(jump) > CLOCK_SECONDS:
            self.counts["clock jumped"] += 1
            entry = {"time": round(wall, 3), "event": "clock jumped", "seconds": round(jump)}
            self._log.append(entry)


def _uptime() -> float:
    """A clock that nobody sets and that goes on while the machine sleeps, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def read(path: Path) -> list[dict[str, Any]]:
    """The entries, oldest first; an unfinished last line is left out."""
    return _journal.read(path, SHA256, name=_NAME).entries


def verify(path: Path) -> int | None:
    """The number of the first line that does not follow from the one before; None if all do."""
    damaged = _journal.read(path, SHA256, name=_NAME).damaged
    return damaged[0] if damaged else None


def faults(path: Path) -> list[str]:
    """Lists the log's faults, in sentences: damaged lines, and files that do not continue the
    one before. Files that were moved away are not missed."""
    sentences: list[str] = []
    before = ""
    for file in [*_journal.earlier(path), path]:
        content = _journal.read(file, SHA256, name=_NAME)
        if not content.entries:
            continue
        sentences += _journal.describe_faults(content, file)
        if before and content.entries[0].get(_journal.AFTER) != before:
            sentences.append(f"{file.name} does not continue the file before it.")
        before = content.end.check
    return sentences
