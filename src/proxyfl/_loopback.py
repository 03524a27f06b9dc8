"""Read-only pages over HTTP, on this machine unless the server has a token.

Guarantees:
    * only GET and HEAD are answered;
    * every request needs the server's token, if it has one; without one, a request that was meant
      for another host name is refused, so no web page can read the answer through a name of its
      own;
    * no answer is stored by a browser, shown in another page's frame or guessed to be another type.
"""

import hmac
import ipaddress
import socket
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from proxyfl.errors import ProxyFLError

LOOPBACK = "127.0.0.1"

HTML = "text/html; charset=utf-8"
JSON = "application/json"

Query = dict[str, list[str]]

_POLL_SECONDS = 0.1
"""The longest time that closing a server takes."""


def is_loopback(host: str) -> bool:
    """True if only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Server(ThreadingHTTPServer):
    """Serves in the background from the moment it is made; use it as a context manager, or
    ``close`` it. OSError or OverflowError if it cannot listen at ``host`` and ``port``."""

    daemon_threads = True

    def __init__(
        self,
        handler: type["Handler"],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        token: str | None = None,
    ) -> None:
        self.token = token
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_SECONDS,), name="proxyfl-page", daemon=True
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

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()
        self._thread.join(5)

    def __exit__(self, *_: object) -> None:
        self.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is no news."""


class Handler(BaseHTTPRequestHandler):
    """Checks a request and hands it to ``answer``, which a server's own handler has."""

    server: Server
    server_version, sys_version = "proxyfl", ""
    timeout = 30

    unavailable = "Not just now"
    """Said when ``answer`` fails by one of the ``failures``, with the reason."""
    failures: tuple[type[Exception], ...] = (ProxyFLError, OSError, ValueError)
    extra_headers: ClassVar[Mapping[str, str]] = {}
    """Sent with every answer, next to those that all servers send."""

    def answer(self, path: str, query: Query) -> None:
        """Send what is at ``path``, or that nothing is."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer a request that is allowed."""
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if not self._is_allowed(query):
            return
        try:
            self.answer(parts.path, query)
        except self.failures as error:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, self.unavailable, str(error))

    do_HEAD = do_GET  # noqa: N815  # the name that http.server looks for

    def send_text(self, text: str, kind: str) -> None:
        """Send ``text`` as the content type ``kind``."""
        content = text.encode()
        self.send_response(HTTPStatus.OK)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            **self.extra_headers,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def send_missing(self, offer: str) -> None:
        """Say that nothing is at this path, and the ``offer``: what is where."""
        self.send_error(HTTPStatus.NOT_FOUND, offer)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the run, and the token is in the address."""

    def _is_allowed(self, query: Query) -> bool:
        token = self.server.token
        if token is not None:
            offered = query.get("token", [""])[-1]
            if hmac.compare_digest(offered.encode(), token.encode()):
                return True
            self.send_error(
                HTTPStatus.FORBIDDEN,
                "Use the address with its token, as printed where this was started",
            )
            return False
        host = urlsplit("//" + self.headers.get("Host", "")).hostname or ""
        if is_loopback(host):
            return True
        # Another name for this address in a browser is somebody else's page asking.
        self.send_error(HTTPStatus.FORBIDDEN, "This page is for this machine only")
        return False
