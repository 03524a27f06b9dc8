"""A site's progress: read from its folder, served on loopback as a page, as JSON, for Prometheus.

Reading changes nothing and needs none of the site's keys. The server listens on this
machine alone and answers GET; it has no way to change anything.
"""

import contextlib
import json
import shutil
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cryptography import x509

from proxyfl import _journal, _loopback
from proxyfl._files import finite
from proxyfl._journal import CRC32
from proxyfl._loopback import LOOPBACK
from proxyfl.errors import ConfigError, ProxyFLError
from proxyfl.node.exchange import reasons, standing
from proxyfl.node.exchange.auditlog import CLOCK_SECONDS
from proxyfl.node.exchange.standing import PeerStanding, Standing
from proxyfl.node.members import manifest
from proxyfl.node.members import site as sites
from proxyfl.node.members.identity import TLS_FILE
from proxyfl.node.members.site import Site
from proxyfl.node.members.study import METHOD as METHOD
from proxyfl.node.members.study import METHODS as METHODS
from proxyfl.node.members.versions import RELEASE, SPOKEN
from proxyfl.node.observe import prometheus
from proxyfl.privacy.guarantee import Epsilon
from proxyfl.records import reading, row
from proxyfl.records.reading import METRICS_FILE as METRICS_FILE
from proxyfl.records.reading import SITE_METRICS

if TYPE_CHECKING:
    from proxyfl.node.exchange.service import Service

SOON_DAYS = 14
"""A certificate that ends so soon was not renewed as it should be."""
LOW_BYTES = 1 << 30

Status = dict[str, Any]


def rows(folder: Path, method: str = "") -> list[row.Row]:
    """The site's rounds so far, or its row ``alone``."""
    return reading.site_rows(folder, (method,) if method else METHODS)


def metrics_reader(folder: Path) -> _journal.Reader:
    """The site's rounds for somebody who asks again and again."""
    return _journal.Reader(folder / METRICS_FILE, CRC32)


def metrics_log(folder: Path) -> _journal.Log:
    """The file of the site's rounds, to be written. Lines of earlier releases have no check."""
    return _journal.Log(folder / METRICS_FILE, CRC32, name=SITE_METRICS, unsealed=True)


def of_folder(
    site: Site,
    folder: Path,
    *,
    service: "Service | None" = None,
    running: bool = False,
    is_there: Callable[[str], bool] | None = None,
    history: Sequence[row.Row] | None = None,
) -> Status:
    """A site's standing. A running site's own answer is asked for first.

    The site itself says by ``is_there`` which peers answer, and gives its ``history``."""
    if service is None:
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            return _asked(site)
    agreed = manifest.read_accepted(folder, site.name)
    here = standing.read(folder)
    if history is None:
        history = rows(folder)
    spent = row.epsilon(history[-1]) if history else None
    budget = site.privacy.budget
    return {
        "name": site.name,
        "federation": agreed.name,
        "version": agreed.version,
        "hash": agreed.digest,
        "release": RELEASE,
        "protocol": SPOKEN,
        "running": running,
        "rounds": agreed.rounds,
        "measure": agreed.measure,
        **_document(here),
        "time": time.time(),
        "started": None if service is None else service.started,
        "ends": manifest.moment("ends", agreed.ends) if agreed.ends else None,
        "certificate_ends": _certificate_end(folder),
        "oldest_share": _release_time(here.oldest_round_owed, history),
        "free_bytes": shutil.disk_usage(folder).free,
        "peers": [
            _peer(card.name, here, service, is_there)
            for card in agreed.members
            if card.name != site.name
        ],
        "privacy": {
            "epsilon": None if spent is None else spent.best,
            "budget": budget,
            "epsilon_all_others": None if spent is None else spent.against_all,
            "sentence": "Nothing was spent yet." if spent is None else _spent(spent),
        },
        "events": {} if service is None else dict(service.log.counts),
        "traffic": {} if service is None else dict(service.traffic),
        "history": [_point(each, agreed.measure) for each in history],
    }


def peers_of(folder: Path) -> Status:
    """What the site in ``folder`` knows of its peers, as its store has it: nobody is asked."""
    site, _ = sites.read(folder)
    agreed = manifest.read_accepted(folder, site.name)
    here = standing.read(folder)
    others = [name for name in agreed.names() if name != site.name]
    return {
        "site": site.name,
        "federation": agreed.name,
        "version": agreed.version,
        "peers": [_peer(name, here, None, None) for name in others],
    }


def notices(status: Status) -> list[str]:
    """Sentences about what somebody should look at: who stopped the site, what it waits for, why
    it ended, clocks that differ, a certificate that ends, a disk that fills up."""
    sentences = []
    for peer, verdict in status["stopped_by"].items():
        sentences.append(f"Stopped by {peer} ({verdict['code']}): {verdict['text']}")
    for key, verb in (("waiting_for", "Waits"), ("ended_because", "Ended")):
        reason = status[key]
        if reason is not None:
            sentences.append(f"{verb} ({reason['code']}): {reason['text']}")
    for peer in status["peers"]:
        skew = peer["clock_skew"]
        if skew is not None and abs(skew) > CLOCK_SECONDS:
            order = "ahead of" if skew > 0 else "behind"
            sentences.append(
                f"The clock of {peer['name']} is {abs(skew):.0f} s {order} this site's. Set both "
                "by NTP."
            )
    ends = status["certificate_ends"]
    if ends is not None and ends - status["time"] < SOON_DAYS * 86400:
        days = max(0.0, ends - status["time"]) / 86400
        sentences.append(f"The TLS certificate ends in {days:.0f} days and was not renewed.")
    if status["free_bytes"] < LOW_BYTES:
        sentences.append(f"Only {status['free_bytes'] >> 20} MB are free on the site's disk.")
    return sentences


def _release_time(round: int | None, history: Sequence[row.Row]) -> float | None:
    """About when ``round`` was released, in seconds since 1970: at the end of the round before it,
    or for the first at its own."""
    times = [each["time"] for each in history if each["round"] < (round or 1) and "time" in each]
    return None if round is None or not times else float(times[-1])


def _certificate_end(folder: Path) -> float | None:
    """The end of the TLS certificate, in seconds since 1970; None if it cannot be read."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / TLS_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return certificate.not_valid_after_utc.timestamp()


def _asked(site: Site) -> Status:
    address = f"http://{LOOPBACK}:{site.network.status_port}/status.json"
    with urllib.request.urlopen(address, timeout=2) as answer:
        found: Status = json.load(answer)
    if found.get("name") != site.name:
        raise ValueError("another site answers on this port")
    return found


def _document(here: Standing) -> Status:
    return {
        "round": here.round,
        "phase": here.phase,
        "state": here.state,
        "weight": here.weight,
        "owed": dict(here.owed),
        "oldest_round_owed": here.oldest_round_owed,
        "in_flight": here.in_flight,
        "waiting": here.waiting,
        "known_peers": {name: list(astuple(peer)) for name, peer in here.peers.items()},
        "held_up": {name: asdict(reason) for name, reason in here.reasons["peer"].items()},
        **reasons.documents(here.reasons),
    }


def _peer(
    name: str, here: Standing, service: "Service | None", is_there: Callable[[str], bool] | None
) -> Status:
    known = here.peers.get(name, PeerStanding())
    reason = here.reasons["peer"].get(name)
    ago = None
    if service is not None and name in service.contact:
        ago = service.silence(name)
    return {
        "name": name,
        **asdict(known),
        "owed": here.owed.get(name, 0),
        "held_up": None if reason is None else asdict(reason),
        "seconds_since_contact": ago,
        "reachable": None if is_there is None else is_there(name),
        "clock_skew": None if service is None else service.skew(name),
    }


def _spent(spent: Epsilon) -> str:
    """The cost so far, and against whom it holds."""
    return " ".join([f"Spent: {spent}.", *spent.sentences])


def _point(each: row.Row, measure: str) -> Status:
    spent = row.epsilon(each)
    return {
        "round": each["round"],
        "time": each.get("time"),
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


class StatusServer(_loopback.Server):
    """Serves one site's status on loopback. Use it as a context manager."""

    def __init__(
        self, status: Callable[[], Status], *, port: int, page: Callable[[Status], str]
    ) -> None:
        """``page`` draws a status (``proxyfl.report.site``)."""
        self.status = status
        self.page = page
        try:
            super().__init__(_Handler, port=port)
        except OSError as error:
            raise ConfigError(
                f"Cannot serve the status page on port {port}: {error.strerror}. Set "
                "network.status_port to another, or to 0 for a free one."
            ) from error


class _Handler(_loopback.Handler):
    server: StatusServer
    failures = (ProxyFLError, OSError, sqlite3.Error)
    extra_headers = MappingProxyType(
        {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    )

    def answer(self, path: str, query: _loopback.Query) -> None:
        """Answer with the page, the JSON document, or the numbers for Prometheus."""
        status = self.server.status()
        if path == "/":
            self.send_text(self.server.page(status), _loopback.HTML)
        elif path == "/status.json":
            self.send_text(json.dumps(finite(status), allow_nan=False), _loopback.JSON)
        elif path == "/metrics":
            self.send_text(prometheus.exposition(status), prometheus.CONTENT_TYPE)
        else:
            self.send_missing("There is /, /status.json and /metrics")
