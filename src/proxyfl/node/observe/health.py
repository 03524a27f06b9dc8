"""Is a site healthy? One quick answer for Docker, systemd and monitoring; nothing is changed.

Healthy is a site that runs, answers, and has nothing that only its operator can repair; also one
whose part is over. A site that waits for its peers is healthy: to start it again would not help.

The module needs neither PyTorch nor the site's keys.
"""

import json
import time
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl._command import command
from proxyfl.errors import ConfigError
from proxyfl.node.exchange import standing
from proxyfl.node.exchange.store import is_running
from proxyfl.node.members.site import Site

LEAST_FREE_BYTES = 64 << 20
ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class Health:
    """A verdict: one line, and what is wrong."""

    healthy: bool
    state: str
    """`running`, `over`, `stopped`, `silent`: it runs and does not answer, or `unknown`: its files
    cannot be read."""
    line: str
    problems: tuple[str, ...] = ()


def check(site: Site, folder: Path) -> Health:
    """The site's health now, within a few seconds."""
    if not is_running(folder):
        return _describe_stopped(site, folder)
    try:
        answer = _ask(site)
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ConnectionRefusedError):
            line = f"{site.name}: running; it serves no status page, so nothing more is known"
            return Health(True, "running", line)
        line = f"{site.name}: running, and its status page does not answer: {reason}"
        return Health(False, "silent", line, (str(reason),))
    return _running(site, answer)


def _ask(site: Site) -> dict[str, Any]:
    port = site.network.status_port
    if port == 0:
        raise urllib.error.URLError(ConnectionRefusedError("no fixed port"))
    with urllib.request.urlopen(
        f"http://127.0.0.1:{port}/status.json", timeout=ANSWER_SECONDS
    ) as answer:
        document: dict[str, Any] = json.load(answer)
    if document.get("name") != site.name:
        raise ValueError(f"another program answers on port {port}")
    return document


def _running(site: Site, status: dict[str, Any]) -> Health:
    problems = []
    ends = status.get("certificate_ends")
    if ends is not None and ends < time.time():
        problems.append("its TLS certificate has ended")
    free = status.get("free_bytes")
    if free is not None and free < LEAST_FREE_BYTES:
        problems.append(f"only {free >> 20} MB of disk are free")
    for peer, verdict in status.get("stopped_by", {}).items():
        problems.append(_stopped_by(peer, verdict.get("code", "old-backup")))
    line = f"{site.name}: running, round {status['round']} of {status['rounds']}"
    waiting = status.get("waiting_for")
    if waiting is not None:
        line += f", waits ({waiting['code']})"
    if problems:
        line += f"; {', '.join(problems)}"
    return Health(not problems, "running", line, tuple(problems))


def _stopped_by(peer: str, code: str) -> str:
    must = "it must rejoin" if code == "old-backup" else "it needs its newest store and ledger"
    return f"stopped by {peer}: {must}"


def _describe_stopped(site: Site, folder: Path) -> Health:
    here = standing.read(folder)
    for peer, verdict in here.reasons["verdict"].items():
        line = f"{site.name}: {_stopped_by(peer, verdict.code)}"
        return Health(False, "stopped", line, (f"stopped by {peer}",))
    ended = here.reasons["ended"].get("")
    if ended is not None:
        return Health(True, "over", f"{site.name}: its part is over ({ended.code})")
    rounds = _rounds(folder)
    if here.state not in ("active", standing.NOT_STARTED):
        return Health(True, "over", f"{site.name}: has left the federation")
    if rounds is not None and here.round >= rounds:
        return Health(True, "over", f"{site.name}: finished all {rounds} rounds")
    line = f"{site.name}: does not run. Run: {command('node', 'run', folder)}"
    return Health(False, "stopped", line, ("does not run",))


def _rounds(folder: Path) -> int | None:
    """The rounds that the manifest in force states; reading all of it would take seconds."""
    versions = sorted((folder / "manifests").glob("*.toml"))
    if not versions:
        return None
    try:
        rounds = tomllib.loads(versions[-1].read_text(encoding="utf-8")).get("rounds")
    except ValueError as error:
        raise ConfigError(f"{versions[-1]} is not valid TOML: {error}.") from error
    return rounds if isinstance(rounds, int) else None
