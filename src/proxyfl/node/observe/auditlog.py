"""The site's audit log: who connected, what was released, what was refused. It only grows.

One JSON object a line, each with the hash of the line before it, so that a line that was changed or
taken out later shows (``verify``). What repeats, such as a peer that floods the site with bad
messages, is counted and not written a thousand times.

Guarantee: a flood of one event of one peer costs at most one line every ``QUIET_SECONDS``; the
next line says how many were left out.
"""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxyfl.errors import RunError

FILE = "audit.jsonl"
QUIET_SECONDS = 10.0

_FLOODING = (
    "refused",
    "unreachable",
    "dialled in",
    "restored from an old backup",
)
"""What a peer can bring about as often as it likes."""


class AuditLog:
    """Appends to one file. Use it from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], float] = {}
        self._left_out: Counter[tuple[str, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self._last = _last_hash(path)

    def add(self, event: str, *, peer: str = "", **about: Any) -> None:
        """Put ``event`` on record, and count it."""
        key = (event, peer)
        now = time.monotonic()  # a clock that is set back must not silence the log
        with self._lock:
            self.counts[event] += 1
            quiet_until = self._written.get(key, -QUIET_SECONDS) + QUIET_SECONDS
            if event in _FLOODING and now < quiet_until:
                self._left_out[key] += 1
                return
            self._written[key] = now
            entry: dict[str, Any] = {"time": round(time.time(), 3), "event": event}
            if peer:
                entry["peer"] = peer
            entry |= about
            if left_out := self._left_out.pop(key, 0):
                entry["left_out_before"] = left_out
            self._write(entry)

    def _write(self, entry: Mapping[str, Any]) -> None:
        line, self._last = _sealed(entry, self._last)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise RunError(
                f"Cannot write the audit log {self._path}: {error.strerror}."
            ) from error


def read(path: Path) -> list[dict[str, Any]]:
    """The entries, oldest first; an unfinished last line is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def verify(path: Path) -> int | None:
    """The number of the first line that does not follow from the one before; None if all do."""
    last = ""
    for number, entry in enumerate(read(path), start=1):
        claimed = entry.pop("sha256", "")
        _, last = _sealed(entry, last)
        if claimed != last:
            return number
    return None


def _sealed(entry: Mapping[str, Any], last: str) -> tuple[str, str]:
    text = json.dumps(entry, sort_keys=True)
    digest = hashlib.sha256((last + text).encode()).hexdigest()
    return json.dumps({**entry, "sha256": digest}, sort_keys=True), digest


def _last_hash(path: Path) -> str:
    entries = read(path)
    return str(entries[-1]["sha256"]) if entries else ""
