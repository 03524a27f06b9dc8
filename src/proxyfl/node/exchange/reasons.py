"""Why a site waits, which peers are held up, and why a site ended: the one place where this stands.

    kind      peer        meaning
    waiting   (none)      this site trains no round now
    peer      its name    this peer cannot receive now, and no round waits for it in full
    verdict   its name    this peer has stopped the site for good; it stays until `node rejoin`
    ended     (none)      why this site's part is over

Terminal, audit log, status page and metrics all read it. A reason has a stable code for programs
(``CODES``) and a sentence for people that says what to do.

Guarantees:
    * a reason is in the store before ``put`` returns, so it can be read while the site runs and
      after it has stopped, however it stopped;
    * ``put`` says whether the reason is news, so that what repeats is said once.
"""

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from proxyfl.node.exchange.store import Store

Kind = Literal["waiting", "peer", "verdict", "ended"]
Cleared = dict[str, str]

CODES = {
    # waiting
    "too-few-peers": "fewer peers than `network.least_peers` can receive",
    "peers-behind": "all peers that can receive are more than 4 rounds behind",
    "shares": "a round waits for the shares of peers",
    "quorum": "fewer members than `graph.masked.quorum` are there; nothing is charged or sent",
    "vectors": "a step of a masked sum waits for the vectors of members",
    "ending": "all rounds are done; the site stays until its peers have what they need",
    "restored": "the site was restored from a backup and asks its peers first",
    "clock": "by this site's clock the federation is over, by most others' it is not",
    "store-locked": "another program holds the lock of the store",
    # peer
    "never-heard": "not heard from since this site started",
    "unreachable": "does not answer, or was not heard from for a while",
    "refuses": "refuses the messages of this site",
    "old-backup": "its store is older than what was seen of it: it must rejoin",
    "vectors-lost": "its store may lack vectors of masked sums: bring its newest store and "
    "ledger back",
    "other-manifest": "has another manifest under the same version number",
    "manifest-behind": "has not accepted the version of the manifest that is in force here, or "
    "uses a key that it has replaced",
    "manifest-ahead": "uses a version of the manifest that is not accepted here",
    "restarts": "starts again and again, at least three times within ten minutes",
    "stopped": "was stopped by its operator before its last round",
    "joins-later": "takes part from a later round on",
    "finished": "has finished its last round",
    "left": "has left the federation",
    # ended
    "budget-spent": "the privacy budget does not cover another round",
    "asked": "its operator asked it to leave",
    "below-quorum": "fewer members than the quorum of masked sums were there for too long",
    "nobody-left": "all other members have left or finished",
}
"""Every code and its meaning; docs/reference/exit-codes.md lists them."""

_TABLE = """
create table if not exists reasons (
    kind text not null,
    peer text not null,
    code text not null,
    text text not null,
    since real not null,
    primary key (kind, peer)
) without rowid
"""


@dataclass(frozen=True)
class Reason:
    """One reason. ``since`` is in seconds since 1970."""

    code: str
    text: str
    since: float


class Reasons:
    """A site's reasons, over its store. Use it from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        with store.transaction() as run:
            run.execute(_TABLE)

    def put(self, kind: Kind, code: str, text: str, *, peer: str = "") -> bool:
        """Put a reason on record; True if there was none, or one with another code.

        The time of the first of several with one code stays, and a new text replaces the old."""
        assert code in CODES, code
        known = self.of(kind, peer)
        if known is not None and (known.code, known.text) == (code, text):
            return False
        is_news = known is None or known.code != code
        since = time.time() if known is None or is_news else known.since
        with self._store.transaction() as run:
            run.execute(
                "insert or replace into reasons values (?,?,?,?,?)", (kind, peer, code, text, since)
            )
        return is_news

    def clear(self, kind: Kind, *, peer: str | None = None) -> bool:
        """Take a reason off the record, or with no ``peer`` all of the kind; True if one was."""
        known = self.every(kind)
        if not (known if peer is None else peer in known):
            return False
        with self._store.transaction() as run:
            if peer is None:
                run.execute("delete from reasons where kind = ?", (kind,))
            else:
                run.execute("delete from reasons where kind = ? and peer = ?", (kind, peer))
        return True

    def replace_peers(self, held_up: Mapping[str, tuple[str, str]]) -> tuple[list[str], Cleared]:
        """Put all peers' reasons on record in one step, as (code, text) by name.

        Returns the peers whose code is new, and by peer the codes that no longer hold."""
        known = {name: (why.code, why.text) for name, why in self.every("peer").items()}
        if known == dict(held_up):
            return [], {}
        news = []
        cleared = {}
        for name, (code, _) in known.items():
            if name not in held_up or held_up[name][0] != code:
                cleared[name] = code
        with self._store.transaction():
            for name in cleared:
                self.clear("peer", peer=name)
            for name, (code, text) in held_up.items():
                if self.put("peer", code, text, peer=name):
                    news.append(name)
        return news, cleared

    def of(self, kind: Kind, peer: str = "") -> Reason | None:
        """The reason on record, if there is one."""
        return self.every(kind).get(peer)

    def every(self, kind: Kind) -> dict[str, Reason]:
        """The reasons of a kind, by peer."""
        with self._store.reading() as run:
            return read(run)[kind]


def none() -> dict[Kind, dict[str, Reason]]:
    """The reasons of a site that has none."""
    return {"waiting": {}, "peer": {}, "verdict": {}, "ended": {}}


def read(store: sqlite3.Connection) -> dict[Kind, dict[str, Reason]]:
    """All reasons in an open store, by kind and peer; none in one of an earlier release."""
    reasons = none()
    if store.execute("select 1 from sqlite_master where name = 'reasons'").fetchone() is None:
        return reasons
    for kind, peer, *rest in store.execute("select kind, peer, code, text, since from reasons"):
        reasons[kind][peer] = Reason(*rest)
    return reasons


def documents(reasons: Mapping[Kind, Mapping[str, Reason]]) -> dict[str, Any]:
    """The reasons as plain data: ``waiting`` and ``ended`` or None, ``stopped_by`` by peer."""
    waiting = reasons["waiting"].get("")
    ended = reasons["ended"].get("")
    stopped_by = {peer: asdict(reason) for peer, reason in reasons["verdict"].items()}
    return {
        "waiting_for": None if waiting is None else asdict(waiting),
        "ended_because": None if ended is None else asdict(ended),
        "stopped_by": stopped_by,
    }
