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
from collections.abc import Callable, Iterable, Sequence
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
from proxyfl.node.exchange import auditlog, reasons, standing
from proxyfl.node.exchange.standing import PeerStanding, Standing
from proxyfl.node.members import manifest
from proxyfl.node.members import site as sites
from proxyfl.node.members.identity import TLS_FILE
from proxyfl.node.members.site import Site
from proxyfl.node.members.study import METHOD as METHOD
from proxyfl.node.members.study import METHODS as METHODS
from proxyfl.node.members.versions import RELEASE, SPOKEN
from proxyfl.node.observe import prometheus, verdict
from proxyfl.privacy.guarantee import Epsilon
from proxyfl.records import reading, row
from proxyfl.records.reading import METRICS_FILE as METRICS_FILE
from proxyfl.records.reading import SITE_METRICS

if TYPE_CHECKING:
    from proxyfl.node.exchange.service import Service

Status = dict[str, Any]

_HEARD = ("connected", "stored", "delivered", "returned")
"""Events of the audit log that a message from the peer has brought about."""
_ENDS = ("finished", "left", "stopped")
"""Events that name the peers which were heard from a moment ago."""


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
            answer = _ask(site)
            return answer if "verdict" in answer else verdict.judge(answer)
    agreed = manifest.read_accepted(folder, site.name)
    here = standing.read(folder)
    if history is None:
        history = rows(folder)
    alone = rows(folder, "alone") if here.round >= agreed.rounds or here.reasons["ended"] else []
    ago = _contacts(folder, agreed.names(), service)
    spent = row.epsilon(history[-1]) if history else None
    budget = site.privacy.budget
    document = {
        "name": site.name,
        "folder": str(folder.resolve()),
        "federation": agreed.name,
        "version": agreed.version,
        "hash": agreed.digest,
        "release": RELEASE,
        "protocol": SPOKEN,
        "running": running,
        "rounds": agreed.rounds,
        "settle": agreed.settle,
        "measure": agreed.measure,
        "chance": _chance(agreed.measure, history),
        "alone": row.score(alone[-1], "private", agreed.measure) if alone else None,
        **_document(here),
        "state": _state(here, agreed.rounds),
        "time": time.time(),
        "started": None if service is None else service.started,
        "ends": manifest.moment("ends", agreed.ends) if agreed.ends else None,
        "certificate_ends": _certificate_end(folder),
        "oldest_share": _release_time(here.oldest_round_owed, history),
        "free_bytes": shutil.disk_usage(folder).free,
        "peers": [
            _peer(card.name, here, agreed.rounds, ago.get(card.name), service, is_there)
            for card in agreed.members
            if card.name != site.name
        ],
        "privacy": {
            "epsilon": None if spent is None else spent.best,
            "budget": budget,
            "epsilon_all_others": None if spent is None else spent.against_all,
            "delta": None if spent is None else spent.delta,
            "kind": None if spent is None else str(spent.kind),
            "unit": None if spent is None else str(spent.unit),
            "against": [] if spent is None else list(spent.sentences),
            "sentence": "Nothing was spent yet." if spent is None else _spent(spent),
        },
        "events": {} if service is None else dict(service.log.counts),
        "traffic": {} if service is None else dict(service.traffic),
        "history": [_point(each, agreed.measure) for each in history],
    }
    return verdict.judge(document)


def peers_of(folder: Path) -> Status:
    """Reads what the site in ``folder`` knows of its peers from its store; nobody is asked."""
    site, _ = sites.read(folder)
    agreed = manifest.read_accepted(folder, site.name)
    here = standing.read(folder)
    others = [name for name in agreed.names() if name != site.name]
    ago = _contacts(folder, others, None)
    return {
        "site": site.name,
        "federation": agreed.name,
        "version": agreed.version,
        "peers": [_peer(name, here, agreed.rounds, ago.get(name), None, None) for name in others],
    }


def notices(status: Status) -> list[str]:
    """The verdict's alarms as lines of a terminal, then why the site's part is over, if it is."""
    lines = [alarm.line for alarm in verdict.alarms(status)]
    ended = status["ended_because"]
    if ended is not None and ended["code"] != "below-quorum":
        lines.append(f"Ended ({ended['code']}): {ended['text']}")
    return lines


def _chance(measure: str, history: Sequence[row.Row]) -> float | None:
    """The score of somebody who knows nothing of an example: half of all pairs for an AUROC; the
    largest class for an accuracy. None where it is not known."""
    if measure.endswith("auroc"):
        return 0.5
    if measure not in ("accuracy", "macro_accuracy"):
        return None
    for each in reversed(history):
        counts = each.get("confusion", {}).get("private")
        if counts:
            totals = [sum(line) for line in counts]
            if measure == "macro_accuracy":
                return 1 / len(totals)
            return max(totals) / sum(totals) if sum(totals) else None
    return None


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


def _ask(site: Site) -> Status:
    address = f"http://{LOOPBACK}:{site.network.status_port}/status.json"
    with urllib.request.urlopen(address, timeout=2) as answer:
        status: Status = json.load(answer)
    if status.get("name") != site.name:
        raise ValueError("another site answers on this port")
    return status


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


def _state(known: Standing | PeerStanding, rounds: int) -> str:
    """The state of a site or of a peer, which has finished once no round is left to do."""
    return "finished" if known.state == "active" and known.round >= rounds else known.state


def _contacts(folder: Path, names: Iterable[str], service: "Service | None") -> dict[str, float]:
    """The seconds since each peer was heard from, for those that were.

    A site that does not run has them from its audit log: its peers were heard from at least then.
    """
    if service is not None:
        return {name: service.silence(name) for name in names if name in service.contact}
    now = time.time()
    seen: dict[str, float] = {}
    for entry in auditlog.read(folder / auditlog.FILE):
        heard = entry.get("heard", []) if entry["event"] in _ENDS else []
        if entry["event"] in _HEARD:
            heard = [entry["peer"]]
        seen |= dict.fromkeys(heard, entry["time"])
    return {name: max(0.0, now - seen[name]) for name in names if name in seen}


def _peer(
    name: str,
    here: Standing,
    rounds: int,
    ago: float | None,
    service: "Service | None",
    is_there: Callable[[str], bool] | None,
) -> Status:
    known = here.peers.get(name, PeerStanding())
    reason = here.reasons["peer"].get(name)
    return {
        "name": name,
        **asdict(known),
        "state": _state(known, rounds),
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
        self, status: Callable[[], Status], *, port: int, page: Callable[..., str]
    ) -> None:
        """``page`` draws a status (``proxyfl.report.site``), ``with_details`` or without."""
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
        elif path == "/details":
            self.send_text(self.server.page(status, with_details=True), _loopback.HTML)
        elif path == "/status.json":
            self.send_text(json.dumps(finite(status), allow_nan=False), _loopback.JSON)
        elif path == "/metrics":
            self.send_text(prometheus.exposition(status), prometheus.CONTENT_TYPE)
        else:
            self.send_missing("There is /, /details, /status.json and /metrics")
