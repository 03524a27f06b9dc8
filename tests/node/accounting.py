"""Where a federation's weight is, exactly, read from the sites' stores while they stand still.

A *body* is one store of a site. Usually a site has one; while a clone of it runs it has two, and a
store that was replaced by a backup is a body no longer. Nothing here goes through the code that is
under test, but for the spelling of a weight.
"""

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from proxyfl.node.exchange.messages import parse_weight
from proxyfl.node.exchange.store import FILE


class Key(NamedTuple):
    """A share that was decided on: its sender, version, round and content."""

    sender: str
    version: int
    round: int
    sha256: str


@dataclass(frozen=True)
class Sent:
    """A share in an outbox."""

    key: Key
    receiver: str
    weight: Fraction


@dataclass(frozen=True)
class Body:
    """The content of one store. A site that never started has none of it and its whole weight."""

    name: str
    own: Fraction = Fraction(1)
    inbox: Fraction = Fraction(0)
    debt: Fraction = Fraction(0)
    """The weight that the site owes for a lost copy of itself: it takes so much of what it receives
    out of the federation again."""
    owed_at_once: Fraction = Fraction(0)
    """The weight of all shares that the site owed as soon as it had stored them: they were meant
    for the site as it was before it last began again, or for another copy of it, which may have
    stored them too and given them away."""
    doubtful: tuple[tuple[Key, Fraction], ...] = ()
    """Shares of which the store does not tell whether the site owed them at once."""
    outbox: tuple[Sent, ...] = ()
    written_off: tuple[tuple[str, int, Fraction], ...] = ()
    verdicts: frozenset[tuple[Key, str]] = frozenset()
    """Each decision of this site, with its outcome."""
    round: int = 0
    released: int = 0
    """The first round that this site has not released."""
    clock: int = 0
    seen: frozenset[tuple[str, int]] = frozenset()
    """(peer, the first round that it has not been seen to release)."""

    def has_stored(self, key: Key) -> bool:
        """True if this body's verdict on a share is "stored"."""
        return (key, "stored") in self.verdicts

    def has_decided(self, key: Key) -> bool:
        """True if this body has a verdict on a share."""
        return any(known == key for known, _ in self.verdicts)

    def without_mass(self) -> "Body":
        """The same site without what it holds and sends; it owes what it owes."""
        return replace(self, own=Fraction(0), inbox=Fraction(0), outbox=())


def read(name: str, folder: Path) -> Body:
    """The body in ``folder``, from a copy: what a crash at this instant would leave."""
    if not (folder / FILE).exists():
        return Body(name)
    with tempfile.TemporaryDirectory() as scratch:
        for suffix in ("", "-wal"):
            source = folder / f"{FILE}{suffix}"
            if source.exists():
                shutil.copy(source, Path(scratch) / source.name)
        connection = sqlite3.connect(Path(scratch) / FILE)
        try:
            return _body(name, connection)
        finally:
            connection.close()


_MEANT_FOR_OTHERS = """
select sender, version, verdicts.round, sha256, verdicts.weight,
    coalesce(meant.lost, 0) and meant.number > chapter and not exists (
        select 1 from chapters as later
        where not later.lost and later.number > chapter and later.number < meant.number
    ) as doubtful
from verdicts
left join chapters as now on now.number = verdicts.chapter
left join chapters as meant on meant.tag = meant_for
where outcome = 'stored' and case
    when meant_for = '' then 0
    when meant_for = '0' then now.epoch > 0
    when meant.tag is null or meant.number > verdicts.chapter then 1
    else meant.epoch < now.epoch
end
"""
"""Shares that were stored in an epoch for which they were not meant. A sender of protocol 2.0 says
'', one that has seen nothing of the receiver says '0'. A chapter that has a later number was not
known when the share was stored; but if it is of another copy and was learnt of in the very chapter
in which the share was stored, the store does not tell which came first."""


def _body(name: str, connection: sqlite3.Connection) -> Body:
    run = connection.execute
    tables = {table for (table,) in run("select name from sqlite_master where type = 'table'")}
    row = None
    if "site" in tables:
        row = run("select weight, debt, round, phase, clock from site").fetchone()
    if row is None:
        return Body(name)
    weight, debt, round, phase, clock = row
    outbox = []
    for receiver, version, number, sha256, part in run(
        "select receiver, version, round, sha256, weight from outbox"
    ):
        outbox.append(Sent(Key(name, version, number, sha256), receiver, parse_weight(part)))
    verdicts = set()
    for sender, version, number, sha256, outcome in run(
        "select sender, version, round, sha256, outcome from verdicts"
    ):
        verdicts.add((Key(sender, version, number, sha256), outcome))
    inbox = [parse_weight(part) for (part,) in run("select weight from inbox")]
    owed = []
    doubtful = []
    for sender, version, number, sha256, part, is_doubtful in run(_MEANT_FOR_OTHERS):
        if is_doubtful:
            doubtful.append((Key(sender, version, number, sha256), parse_weight(part)))
        else:
            owed.append(parse_weight(part))
    written_off = []
    for receiver, number, part in run("select receiver, round, weight from written_off"):
        written_off.append((receiver, number, parse_weight(part)))
    return Body(
        name,
        own=parse_weight(weight),
        debt=parse_weight(debt),
        inbox=sum(inbox, Fraction(0)),
        owed_at_once=sum(owed, Fraction(0)),
        doubtful=tuple(doubtful),
        outbox=tuple(outbox),
        written_off=tuple(written_off),
        verdicts=frozenset(verdicts),
        round=round,
        released=round + (phase == "released"),
        clock=clock,
        seen=frozenset(run("select name, round from peers").fetchall()),
    )


def total(bodies: Iterable[Body]) -> Fraction:
    """The weight in all bodies: held, received, under way, and given up on record, less debts."""
    bodies = list(bodies)
    weight = Fraction(0)
    for body in bodies:
        weight += body.own + body.inbox - body.debt
        weight += sum((sent.weight for sent in under_way(body, bodies)), Fraction(0))
        for receiver, round, part in body.written_off:
            if not _stored_round(bodies, receiver, body.name, round):
                weight += part
    return weight


def under_way(body: Body, bodies: Iterable[Body]) -> list[Sent]:
    """The shares in a body's outbox that no body of their receiver has stored."""
    bodies = list(bodies)
    shares = []
    for sent in body.outbox:
        receivers = [other for other in bodies if other.name == sent.receiver]
        if not any(other.has_stored(sent.key) for other in receivers):
            shares.append(sent)
    return shares


def _stored_round(bodies: Iterable[Body], receiver: str, sender: str, round: int) -> bool:
    for body in bodies:
        if body.name != receiver:
            continue
        for key, outcome in body.verdicts:
            if (key.sender, key.round, outcome) == (sender, round, "stored"):
                return True
    return False


class Balance:
    """The weight that a federation must have in all: what it began with, changed only by what
    operators did to stores, each time by exactly what the replaced store held.

    ``check`` compares it with the stores. A share that the forgotten store had sent may arrive
    afterwards, and a verdict of it as well: both are followed (``_late``). So is a share that was
    meant for the forgotten store and reaches the one that began again: by the protocol it counts
    for nothing, since the forgotten store may have given it away already."""

    def __init__(self, sites: int) -> None:
        self.weight = Fraction(sites)
        self._sent: list[Sent] = []
        self._resurrected: list[Sent] = []
        self._copies: Counter[Sent] = Counter()
        """Shares that a site and its clone both have in their outboxes: refused, each copy returns;
        stored, one of them counts."""
        self._owed_at_once = Fraction(0)
        self._settled: Counter[tuple[str, Key, Fraction]] = Counter()
        """The doubtful shares that the balance has taken into account."""
        self._checked: list[Body] = []

    def replace(self, before: list[Body], after: list[Body]) -> None:
        """Bodies were put aside, put back, added, or began again, all others standing still."""
        self._late(before)
        change = total(after) - total(before)
        for body in before:
            if any(body is other for other in after):
                continue
            stayed = [other for other in after if other.name == body.name]
            known = {sent.key for other in stayed for sent in other.outbox}
            for sent in under_way(body, before):
                if sent.key not in known:
                    self._sent.append(sent)
            for other in after:
                for sent in under_way(other, after):
                    if sent.receiver == body.name and body.has_stored(sent.key):
                        self._resurrected.append(sent)
        self.weight += change
        self._owed_at_once = _owed_at_once(after)
        self._settled = _doubtful(after)
        self._copies = Counter(sent for body in after for sent in under_way(body, after))
        self._checked = after

    def check(self, bodies: list[Body]) -> None:
        """Fail unless the stores hold exactly the expected weight."""
        self._late(bodies)
        weight = total(bodies)
        self._settle(bodies, self.weight - weight)
        before = "\n".join(describe(self._checked))
        after = "\n".join(describe(bodies))
        assert weight == self.weight, (
            f"the stores hold {weight} ({float(weight):.6f}), expected {self.weight} "
            f"({float(self.weight):.6f})\nbefore:\n{before}\nnow:\n{after}"
        )
        self._checked = bodies

    def _settle(self, bodies: list[Body], missing: Fraction) -> None:
        """Count new doubtful shares as owed if that explains what is missing."""
        new = list((_doubtful(bodies) - self._settled).elements())
        for count in range(len(new) + 1):
            for owed in combinations(new, count):
                if missing == sum((weight for _, _, weight in owed), Fraction(0)):
                    self.weight -= missing
                    self._settled = _doubtful(bodies)
                    return

    def _late(self, bodies: list[Body]) -> None:
        """Follow what forgotten stores had sent before: shares that arrive after all count, and
        shares that they had taken and that nobody sends again are gone."""
        owed = _owed_at_once(bodies)
        self.weight -= owed - self._owed_at_once
        self._owed_at_once = owed
        for sent, copies in list(self._copies.items()):
            if any(body.name == sent.receiver and body.has_stored(sent.key) for body in bodies):
                self.weight -= (copies - 1) * sent.weight
                del self._copies[sent]
        for sent in list(self._sent):
            receivers = [body for body in bodies if body.name == sent.receiver]
            if any(body.has_stored(sent.key) for body in receivers):
                self.weight += sent.weight
                self._sent.remove(sent)
        for sent in list(self._resurrected):
            senders = [body for body in bodies if body.name == sent.key.sender]
            owed = any(sent in body.outbox for body in senders)
            about = (sent.receiver, sent.key.round, sent.weight)
            given_up = any(about in body.written_off for body in senders)
            receivers = [body for body in bodies if body.name == sent.receiver]
            decided = any(body.has_decided(sent.key) for body in receivers)
            if decided or given_up:
                self._resurrected.remove(sent)
            elif not owed:
                self.weight -= sent.weight
                self._resurrected.remove(sent)


def describe(bodies: Iterable[Body]) -> list[str]:
    """Where the weight is, a line for each body: for people who look for a share that is lost."""
    lines = []
    for body in bodies:
        sent = [f"{sent.receiver} {sent.key.round}: {sent.weight}" for sent in body.outbox]
        refused = [
            f"{key.sender} {key.round}" for key, outcome in body.verdicts if outcome == "refused"
        ]
        lines.append(
            f"  {body.name} in round {body.round}: own {body.own}, inbox {body.inbox}, "
            f"debt {body.debt}, owed at once {body.owed_at_once}, doubtful "
            f"{[(key.sender, key.round, str(part)) for key, part in body.doubtful]}, sent {sent}, "
            f"written off {list(body.written_off)}, refused {sorted(refused)}"
        )
    return lines


def _doubtful(bodies: Iterable[Body]) -> Counter[tuple[str, Key, Fraction]]:
    return Counter((body.name, *share) for body in bodies for share in body.doubtful)


def _owed_at_once(bodies: Iterable[Body]) -> Fraction:
    return sum((body.owed_at_once for body in bodies), Fraction(0))


def releases(name: str, bodies: Iterable[Body]) -> set[Key]:
    """The distinct shares of a site that its peers have stored, in any of their stores, ever."""
    keys = set()
    for body in bodies:
        for key, outcome in body.verdicts:
            if key.sender == name and outcome == "stored":
                keys.add(key)
    return keys
