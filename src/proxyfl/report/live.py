"""The report's page, served while the run is under way: `proxyfl run --live`, `proxyfl watch RUN`.

Guarantees:
    * reads the run's folder and nothing else, and only answers GET and HEAD; looking changes
      nothing;
    * on loopback unless another address is asked for; then every request needs the token that is in
      the address;
    * a request that was meant for another host name is refused, so no web page can read it through
      a name of its own;
    * keeps no memory of its readers: a page that was paused, or lost the connection, shows all of
      the run when it asks again.

A run without it imports nothing of it.
"""

import datetime
import json
import math
import secrets
import threading
import time
import zlib
from pathlib import Path

from proxyfl import _loopback
from proxyfl._files import Document
from proxyfl._loopback import LOOPBACK, is_loopback
from proxyfl._validate import whole
from proxyfl.errors import ConfigError
from proxyfl.records import folder
from proxyfl.records.reading import read
from proxyfl.records.row import Row
from proxyfl.records.run import Run
from proxyfl.report import page
from proxyfl.report.document import document

POLL_SECONDS = 1.0
"""The shortest time between two answers to a page. It asks again at once; the server holds the
answer back, so that the end of the run is heard when it comes and not a second later."""

HOLD_SECONDS = 5.0
"""The time that a question waits for an answer when there is no news."""

PACE = 20.0
"""A page is told news at most so often that telling takes this many times less than waiting."""

_SEEN = 4096
"""The number of bytes at the end that are compared: a run that was resumed may have cut them off
and written others."""


def recorded(path: Path) -> tuple[list[Row], str]:
    """The complete rounds in ``metrics.jsonl``, and a mark that changes with them. A round counts
    once the lines of all who were present are there."""
    rows: list[Row] = []
    waiting: list[Row] = []
    size = end = 0
    with (path / "metrics.jsonl").open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            waiting.append(json.loads(line))
            size += len(line)
            if len(waiting) == waiting[0].get("present", len(waiting)):
                rows += waiting
                waiting = []
                end = size
        file.seek(max(0, end - _SEEN))
        seen = file.read(min(end, _SEEN))
    return rows, f"{end}-{zlib.crc32(seen):08x}"


def over(path: Path) -> bool:
    """True if the run has stopped: its summary is written last. A resumed run writes metrics after
    an older summary."""
    try:
        summed_up = (path / "summary.json").stat().st_mtime_ns
        return summed_up >= (path / "metrics.jsonl").stat().st_mtime_ns
    except FileNotFoundError:
        return False


def live_page(path: Path) -> str:
    """The page as of now; it asks for the rest by itself."""
    rows, cursor = recorded(path)
    run = read(path, rows)
    content = document([run], live={"cursor": cursor, "pace": pace(run)})
    return page.page(content, title=f"ProxyFL live: {run.name}")


def news(path: Path, since: str) -> Document:
    """The document that the page is to show now; None in its place if it shows that already."""
    done = over(path)  # asked before reading, so that what is said to be all is all
    rows, cursor = recorded(path)
    content = None
    if done or cursor != since:
        run = read(path, rows)
        content = document([run], live={"cursor": cursor, "pace": pace(run)})
    return {"cursor": cursor, "done": done, "document": content}


def pace(run: Run) -> Document:
    """The progress of a run, over all its methods: the share of rounds done, the method under way,
    and the seconds that the rest would take at the pace so far (None before the first round)."""
    done = sum(min(rounds, run.rounds) for rounds in run.progress.values())
    total = run.rounds * len(run.methods)
    started = [name for name, rounds in run.progress.items() if rounds > 0]
    number = list(run.methods).index(started[-1]) + 1 if started else 1
    left = None
    spent = run.environment.get("started")
    if done and spent is not None:
        begun = datetime.datetime.fromisoformat(str(spent))
        now = datetime.datetime.now(begun.tzinfo)
        left = max(0.0, (now - begun).total_seconds()) * (total - done) / done
    return {
        "share": done / total if total else 1.0,
        "method": number,
        "methods": len(run.methods),
        "words": None if left is None else duration(left),
    }


def duration(seconds: float) -> str:
    """Seconds as people say them: 52 s, 3 min, 2 h 10 min."""
    if seconds < 99:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def await_news(path: Path, since: str, closing: threading.Event) -> None:
    """Return when the run is over, when there is news but not too soon, when it has been long
    enough, or on closing."""
    asked = time.monotonic()
    known, _, _ = since.partition("-")
    while not over(path):
        waited = time.monotonic() - asked
        if waited > HOLD_SECONDS or closing.wait(0.1):
            return
        size = (path / "metrics.jsonl").stat().st_size
        if waited > POLL_SECONDS and str(size) != known:
            return


class LiveServer(_loopback.Server):
    """Serves one run's folder. ``url`` is what to open; use it as a context manager, or ``close``
    it."""

    def __init__(self, path: Path, *, host: str = LOOPBACK, port: int = 0) -> None:
        folder.existing(path)
        whole("port", port, at_least=0)
        self.path = path
        self.asked = 0.0
        self.done_told = False
        self.closing = threading.Event()
        self._quiet_until = 0.0
        token = None if is_loopback(host) else secrets.token_urlsafe(24)
        try:
            super().__init__(_Handler, host=host, port=port, token=token)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"Cannot serve the live page on host {host!r}, port {port}: {error}. "
                "Choose another with --port (0 takes a free one) or --host."
            ) from error

    def news(self, since: str) -> Document:
        """The news for a page, at a pace that leaves the machine to the run."""
        started = time.monotonic()
        if started < self._quiet_until and not over(self.path):
            return {"cursor": since, "done": False, "document": None}
        content = news(self.path, since)
        ended = time.monotonic()
        self._quiet_until = ended + PACE * (ended - started)
        return content

    def close(self) -> None:
        """Stop serving. Questions that wait for news go unanswered."""
        self.closing.set()
        super().close()


class _Handler(_loopback.Handler):
    server: LiveServer
    unavailable = "The run cannot be read just now"

    def answer(self, path: str, query: _loopback.Query) -> None:
        """Answer with the page, or with what is new."""
        if path == "/":
            self.send_text(live_page(self.server.path), _loopback.HTML)
        elif path == "/data.json":
            self.server.asked = time.monotonic()
            since = query.get("since", [""])[-1]
            if "wait" in query:
                await_news(self.server.path, since, self.server.closing)
            if self.server.closing.is_set():
                return
            content = self.server.news(since)
            self.send_text(json.dumps(content, separators=(",", ":")), _loopback.JSON)
            self.server.done_told = content["done"]
        else:
            self.send_missing("There is / and /data.json")
