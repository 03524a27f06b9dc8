"""A site's standing as another program reads it from the store. Reading changes nothing."""

import contextlib
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from proxyfl.node.exchange import reasons
from proxyfl.node.exchange.messages import parse_weight
from proxyfl.node.exchange.reasons import Kind, Reason
from proxyfl.node.exchange.store import FILE, failure

NOT_STARTED = "not started"
"""The state of a site that has no store yet."""


@dataclass(frozen=True)
class PeerStanding:
    """The last that a site has heard of a peer; releases before 0.2 name no release."""

    round: int = 0
    state: str = "unknown"
    version: int = 0
    release: str = ""
    protocol: str = ""


@dataclass(frozen=True)
class Standing:
    """The rows of a store that matter to an operator. Weights are those of shares: ``in_flight``
    of those sent and not yet settled, ``waiting`` of those that have arrived."""

    round: int = 0
    phase: str = "ready"
    state: str = NOT_STARTED
    weight: float = 1.0
    owed: Mapping[str, int] = field(default_factory=dict)
    oldest_round_owed: int | None = None
    in_flight: float = 0.0
    waiting: float = 0.0
    peers: Mapping[str, PeerStanding] = field(default_factory=dict)
    reasons: Mapping[Kind, Mapping[str, Reason]] = field(default_factory=reasons.none)


def read(folder: Path) -> Standing:
    """The standing of the site in ``folder``, whether it runs or not; RunError if its store cannot
    be read."""
    path = folder / FILE
    if not path.exists():
        return Standing()
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            return _of_store(store)
    except sqlite3.Error as error:
        raise failure("read", path, error) from error


def _of_store(store: sqlite3.Connection) -> Standing:
    why = reasons.read(store)
    if store.execute("select 1 from sqlite_master where name = 'site'").fetchone() is None:
        return Standing(reasons=why)  # the store is being made
    site = store.execute("select round, phase, state, weight from site").fetchone()
    if site is None:
        return Standing(reasons=why)
    round, phase, state, weight = site
    owed = store.execute("select receiver, count(*) from outbox group by receiver").fetchall()
    (oldest,) = store.execute("select min(round) from outbox").fetchone()
    return Standing(
        round,
        phase,
        state,
        float(parse_weight(weight)),
        dict(owed),
        oldest,
        in_flight=_total_weight(store, "outbox"),
        waiting=_total_weight(store, "inbox"),
        peers=_peers(store),
        reasons=why,
    )


def _total_weight(store: sqlite3.Connection, table: str) -> float:
    rows = store.execute(f"select weight from {table}").fetchall()
    return float(sum(parse_weight(text) for (text,) in rows))


def _peers(store: sqlite3.Connection) -> dict[str, PeerStanding]:
    (version,) = store.execute("pragma user_version").fetchone()
    runs = "release, protocol" if version >= 3 else "'', ''"
    rows = store.execute(f"select name, round, state, version, {runs} from peers").fetchall()
    return {name: PeerStanding(*about) for name, *about in rows}
