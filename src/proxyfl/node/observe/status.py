"""A site's progress: read from its folder, served on loopback as a page, as JSON, for Prometheus.

Reading changes nothing and needs none of the site's keys. The server listens on this
machine alone and answers GET; it has no way to change anything.
"""

import contextlib
import json
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from proxyfl.errors import ConfigError, ProxyFLError
from proxyfl.node.members import manifest
from proxyfl.node.members.site import Site
from proxyfl.records import row

if TYPE_CHECKING:
    from proxyfl.node.exchange.service import Service

LOOPBACK = "127.0.0.1"
METRICS_FILE = "metrics.jsonl"
STORE_FILE = "store.sqlite"

Status = dict[str, Any]


def rows(folder: Path) -> list[row.Row]:
    """The site's rounds so far; an unfinished last line is left out."""
    path = folder / METRICS_FILE
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def of_folder(
    site: Site,
    folder: Path,
    *,
    service: "Service | None" = None,
    running: bool = False,
) -> Status:
    """A site's standing. A running site's own answer is asked for first."""
    if service is None:
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            return _asked(site)
    versions = sorted((folder / "manifests").glob("*.toml"))
    if not versions:
        raise ConfigError(
            f"{site.name} has accepted no manifest yet: proxyfl node accept."
        )
    agreed = manifest.read(versions[-1])
    found = _standing(folder)
    history = rows(folder)
    spent = row.epsilon(history[-1]) if history else None
    budget = site.privacy.budget
    return {
        "name": site.name,
        "federation": agreed.name,
        "version": agreed.version,
        "hash": agreed.digest,
        "running": running,
        "rounds": agreed.rounds,
        "measure": agreed.measure,
        **found,
        "peers": [
            _peer(card.name, found, service)
            for card in agreed.members
            if card.name != site.name
        ],
        "privacy": {
            "epsilon": None if spent is None else spent.best,
            "budget": budget,
            "sentence": "Nothing was spent yet."
            if spent is None
            else f"Spent: {spent}",
        },
        "events": {} if service is None else dict(service.log.counts),
        "traffic": {} if service is None else dict(service.traffic),
        "history": [_point(each, agreed.measure) for each in history],
    }


def _asked(site: Site) -> Status:
    address = f"http://{LOOPBACK}:{site.network.status_port}/status.json"
    with urllib.request.urlopen(address, timeout=2) as answer:
        found: Status = json.load(answer)
    if found.get("name") != site.name:
        raise ValueError("another site answers on this port")
    return found


def _standing(folder: Path) -> Status:
    path = folder / STORE_FILE
    empty: Status = {
        "round": 0,
        "phase": "ready",
        "state": "not started",
        "weight": 1.0,
    }
    empty |= {"owed": {}, "known_peers": {}, "waiting": 0.0, "in_flight": 0.0}
    if not path.exists():
        return empty
    with contextlib.closing(
        sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    ) as store:
        site_row = store.execute(
            "select round, phase, state, weight from site"
        ).fetchone()
        if site_row is None:
            return empty
        owed = store.execute(
            "select receiver, count(*) from outbox group by receiver"
        ).fetchall()
        flying = store.execute("select weight from outbox").fetchall()
        waiting = store.execute("select weight from inbox").fetchall()
        peers = store.execute(
            "select name, round, state, version from peers"
        ).fetchall()
    round, phase, state, weight = site_row
    return {
        "round": round,
        "phase": phase,
        "state": state,
        "weight": _weight(weight),
        "owed": dict(owed),
        "known_peers": {
            name: (at, how, version) for name, at, how, version in peers
        },
        "in_flight": sum(_weight(text) for (text,) in flying),
        "waiting": sum(_weight(text) for (text,) in waiting),
    }


def _weight(text: str) -> float:
    over, _, under = text.partition("/")
    return int(over, 16) / int(under, 16)


def _peer(name: str, found: Status, service: "Service | None") -> Status:
    round, state, version = found["known_peers"].get(name, (0, "unknown", 0))
    ago = None
    if service is not None and name in service.contact:
        ago = service.silence(name)
    return {
        "name": name,
        "round": round,
        "state": state,
        "version": version,
        "owed": found["owed"].get(name, 0),
        "seconds_since_contact": ago,
    }


def _point(each: row.Row, measure: str) -> Status:
    spent = row.epsilon(each)
    return {
        "round": each["round"],
        "private": row.score(each, "private", measure),
        "proxy": row.score(each, "proxy", measure),
        "received": row.score(each, "received", measure),
        "epsilon": spent.best,
        "weight": each["weight"],
        "mass_in": each.get("mass_in"),
        "mass_out": each.get("mass_out"),
        "heard": each.get("heard"),
        "asked": each.get("asked"),
        "bytes_sent": each["bytes_sent"],
        "bytes_received": each["bytes_received"],
    }


def prometheus(status: Status) -> str:
    """The status in Prometheus's text format."""
    last = status["history"][-1] if status["history"] else {}
    values = {
        "round": status["round"],
        "rounds": status["rounds"],
        "weight": status["weight"],
        "weight_in_flight": status["in_flight"],
        "weight_waiting": status["waiting"],
        "epsilon": status["privacy"]["epsilon"],
        "budget": status["privacy"]["budget"],
        "private_measure": last.get("private"),
    }
    lines = []
    for name, value in values.items():
        if value is not None:
            lines += [f"# TYPE proxyfl_{name} gauge", f"proxyfl_{name} {value}"]
    lines.append("# TYPE proxyfl_peer_seconds_since_contact gauge")
    for peer in status["peers"]:
        ago = peer["seconds_since_contact"]
        if ago is not None:
            label = f'{{peer="{peer["name"]}"}}'
            lines.append(f"proxyfl_peer_seconds_since_contact{label} {ago:.1f}")
    lines.append("# TYPE proxyfl_events_total counter")
    for event, count in sorted(status["events"].items()):
        lines.append(f'proxyfl_events_total{{event="{event}"}} {count}')
    lines.append("# TYPE proxyfl_traffic_total counter")
    for kind, count in sorted(status["traffic"].items()):
        lines.append(f'proxyfl_traffic_total{{kind="{kind}"}} {count}')
    return "\n".join(lines) + "\n"


class StatusServer(ThreadingHTTPServer):
    """Serves one site's status on loopback. Use it as a context manager."""

    daemon_threads = True

    def __init__(
        self,
        status: Callable[[], Status],
        *,
        port: int,
        page: Callable[[Status], str],
    ) -> None:
        """``page`` draws a status (``proxyfl.report.site``)."""
        self.status = status
        self.page = page
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"Cannot serve the status page on port {port}: {error.strerror}. Set "
                "network.status_port to another, or to 0 for a free one."
            ) from error
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(5)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer
    server_version = "proxyfl"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer with the page, the JSON document, or the numbers for Prometheus."""
        host = urlsplit("//" + self.headers.get("Host", "")).hostname
        if host not in (LOOPBACK, "localhost"):
            # Another name for this address in a browser is somebody else's page asking.
            self.send_error(
                HTTPStatus.FORBIDDEN, "This page is for this machine only"
            )
            return
        try:
            found = self.server.status()
        except (ProxyFLError, OSError, sqlite3.Error) as error:
            self.send_error(
                HTTPStatus.SERVICE_UNAVAILABLE, "Not just now", str(error)
            )
            return
        path = urlsplit(self.path).path
        if path == "/":
            self._send(self.server.page(found), "text/html; charset=utf-8")
        elif path == "/status.json":
            self._send(json.dumps(found), "application/json")
        elif path == "/metrics":
            self._send(prometheus(found), "text/plain; version=0.0.4")
        else:
            self.send_error(
                HTTPStatus.NOT_FOUND, "There is /, /status.json and /metrics"
            )

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the rounds."""

    def _send(self, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'",
        )
        self.end_headers()
        self.wfile.write(content)
