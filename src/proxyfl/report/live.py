"""The report's page, served while the run is under way: `proxyfl run --live`, `proxyfl watch RUN`.

Guarantees:
    * reads the run's folder and nothing else, and only answers GET and HEAD; whoever looks changes
      nothing;
    * on loopback unless another address is asked for; then every request needs the token that is in
      the address;
    * a request that was meant for another host name is refused, so no web page can read it through
      a name of its own;
    * keeps no memory of its readers: a page that was paused, or lost the connection, shows all of
      the run when it asks again.

A run without it imports nothing of it.
"""

import contextlib
import hmac
import ipaddress
import json
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from proxyfl._files import Document
from proxyfl._validate import whole
from proxyfl.errors import ConfigError, ProxyFLError
from proxyfl.records import folder
from proxyfl.records.reading import read
from proxyfl.records.row import Row
from proxyfl.report import page
from proxyfl.report.document import document

POLL_SECONDS = 1.0
"""The shortest time between two answers to a page. It asks again at once; the server holds the
answer back, so that the end of the run is heard when it comes and not a second later."""

HOLD_SECONDS = 5.0
"""The time that a question waits for an answer when there is no news."""

LOOPBACK = "127.0.0.1"
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
    content = document([run], live={"cursor": cursor})
    return page.page(content, title=f"ProxyFL live: {run.name}")


def news(path: Path, since: str) -> Document:
    """The document that the page is to show now; None in its place if it shows that already."""
    done = over(path)  # asked before reading, so that what is said to be all is all
    rows, cursor = recorded(path)
    content = None
    if done or cursor != since:
        content = document([read(path, rows)])
    return {"cursor": cursor, "done": done, "document": content}


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


class LiveServer(ThreadingHTTPServer):
    """Serves one run's folder. ``url`` is what to open; use it as a context manager, or ``close``
    it."""

    daemon_threads = True

    def __init__(
        self,
        path: Path,
        *,
        host: str = LOOPBACK,
        port: int = 0,
    ) -> None:
        folder.existing(path)
        page.plotly_script()  # complain now if it is missing, not when the page is opened
        whole("port", port, at_least=0)
        self.path = path
        self.asked = 0.0
        self.done_told = False
        self.closing = threading.Event()
        self._quiet_until = 0.0
        self.token = None if is_loopback(host) else secrets.token_urlsafe(24)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"Cannot serve the live page on host {host!r}, port {port}: {error}. "
                "Choose another with --port (0 takes a free one) or --host."
            ) from error
        self._thread = threading.Thread(
            target=self.serve_forever,
            name="proxyfl-live",
            daemon=True,
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The page's address, with its token if there is one."""
        host, port = self.server_address[:2]
        name = str(host)
        if name in ("0.0.0.0", "::"):
            name = socket.gethostname()
        if ":" in name:
            name = f"[{name}]"
        token = f"?token={self.token}" if self.token else ""
        return f"http://{name}:{port}/{token}"

    def news(self, since: str) -> Document:
        """The news for a page, at a pace that leaves the machine to the run."""
        started = time.monotonic()
        if started < self._quiet_until and not over(self.path):
            return {"cursor": since, "done": False, "document": None}
        found = news(self.path, since)
        ended = time.monotonic()
        self._quiet_until = ended + PACE * (ended - started)
        return found

    def close(self) -> None:
        """Stop serving. Questions that wait for news go unanswered."""
        self.closing.set()
        self.shutdown()
        self.server_close()
        self._thread.join(5)

    def __exit__(self, *_: object) -> None:
        self.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is no news."""


def is_loopback(host: str) -> bool:
    """True if only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "proxyfl", ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer with the page, or with what is new."""
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if not self._allowed(query):
            return
        with self._errors():
            if parts.path == "/":
                self._send(live_page(self.server.path), "text/html; charset=utf-8")
            elif parts.path == "/data.json":
                self.server.asked = time.monotonic()
                since = query.get("since", [""])[-1]
                if "wait" in query:
                    await_news(self.server.path, since, self.server.closing)
                if self.server.closing.is_set():
                    return
                more = self.server.news(since)
                text = json.dumps(more, separators=(",", ":"))
                self._send(text, "application/json")
                self.server.done_told = more["done"]
            else:
                self.send_error(HTTPStatus.NOT_FOUND, "There is / and /data.json")

    do_HEAD = do_GET  # noqa: N815  # the name that http.server looks for

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the run, and the token is in the address."""

    def _allowed(self, query: dict[str, list[str]]) -> bool:
        if self.server.token is not None:
            given = query.get("token", [""])[-1]
            if hmac.compare_digest(given.encode(), self.server.token.encode()):
                return True
            self.send_error(
                HTTPStatus.FORBIDDEN,
                "Use the address with its token, as printed where this was started",
            )
            return False
        host = urlsplit("//" + self.headers.get("Host", "")).hostname or ""
        if is_loopback(host):
            return True
        self.send_error(HTTPStatus.FORBIDDEN, "This page is for this machine only")
        return False

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """A folder that is gone or being rewritten is the reader's to hear about; it must not
        disturb the run."""
        try:
            yield
        except (ProxyFLError, OSError, ValueError) as error:
            self.send_error(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "The run cannot be read just now",
                str(error),
            )

    def _send(self, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(HTTPStatus.OK)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "X-Frame-Options": "DENY",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
