r"""Agreement on the steps of a masked sum, without a server: who adds up with whom, and which sum
counts.

    step       number of sums that a site has applied. All start at 0 with the manifest's proxy
    ballot     one attempt at a step: version of the manifest * VERSIONS + n. Ballot n = 0 has the
               roster that follows from the step before; n > 0 belongs to the member at position
               (n - 1) mod K, who alone announces its roster
    promise    "I take part in no ballot of this step below this one"

This is Paxos with one instance per step. What is agreed on is the proxy after the step. A site
*accepts* a ballot when it has applied the ballot's sum, or copied the proxy of a site that has. A
ballot that a majority has accepted is *chosen*. A proposer first asks for promises. If a promise
reports a proxy that was accepted already, that proxy is proposed again (``adopt``) and nobody
sends a vector. Otherwise the proposer announces a roster of those who promised, and the ballot is a
new attempt: fresh batch, fresh noise, fresh masks, charged before it is sent.

Guarantees, whatever is lost, repeated, delayed or reordered and whoever restarts when, as long as
members follow the protocol and a roster has more than half of all members:
    * a site contributes at most once to a ballot, and only to later ones afterwards; it signs one
      roster per ballot and refuses another (``Record.contributed`` is durable before a vector
      leaves);
    * two sites that have applied as many sums have the same proxy, except that a site may be ahead
      by one sum that is not chosen yet. Its next contribution cannot be used by others then, and it
      takes over what was chosen;
    * a site that restarts takes part in no ballot that it promised before: its keys are new;
    * a proxy that differs although the ballots are the same raises ``Diverged``.

The module knows neither network nor clock nor tensors: ``Agreement.next`` says what to do.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

from proxyfl._setonce import SetOnce
from proxyfl.errors import ProxyFLError, TransportError
from proxyfl.privacy.masks import MOST_ATTEMPTS

VERSIONS = 10_000
"""Ballots of one version of the manifest."""

Words = TypeVar("Words")
Roster = frozenset[str]


class Diverged(ProxyFLError):
    """This site's proxy is not the one that the others have after the same sums."""


class Exhausted(ProxyFLError):
    """A step has failed too often."""


def mark_of(ballot: int, proxy: str) -> str:
    """A proxy and the ballot under which it was accepted, as text. More than half of all members
    with one mark have chosen it; with one proxy under several ballots they need not have."""
    return f"{ballot}:{proxy}"


@dataclass(frozen=True)
class Record:
    """A site's durable record. ``ballot`` is the one under which ``step`` was reached,
    ``promised`` is for the step that comes next, ``promised_before`` for the one before. ``before``
    is the mark of the proxy before (``mark_of``)."""

    step: int = 0
    ballot: int = 0
    proxy: str = ""
    before: str = ""
    roster: tuple[str, ...] = ()
    promised: int = 0
    promised_before: int = 0
    contributed: int = -1
    sent: int = 0
    """Vectors sent for the step that comes next."""

    @property
    def mark(self) -> str:
        """The proposal that this site has accepted, and its ballot."""
        return mark_of(self.ballot, self.proxy)

    def promised_or(self, first: int) -> int:
        """The present ballot: the one that was promised, or else the step's ``first``."""
        return max(self.promised, first)

    def line(self) -> str:
        """The record as text."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, line: str) -> "Record":
        """The record that ``line`` wrote."""
        content = json.loads(line)
        return cls(**content | {"roster": tuple(content["roster"])})


@dataclass(frozen=True)
class Proposal:
    """A proposer's ballot: asked for (neither roster nor ``adopt``), or announced."""

    step: int
    ballot: int
    roster: tuple[str, ...] = ()
    adopt: str = ""


@dataclass(frozen=True)
class View:
    """A site's statement about itself in each hello and with each vector. ``start`` and ``serial``
    order the views of a site. ``sees`` are the members that it can reach and whose keys it has.
    ``has`` are the vectors that have arrived: step, ballot, and whose."""

    start: int
    serial: int
    step: int
    ballot: int
    proxy: str
    before: str
    promised: int
    promised_before: int
    key: str
    """The site's public key for masks, which is another one after each start."""
    willing: bool = True
    sees: Roster = frozenset()
    has: tuple[tuple[int, int, Roster], ...] = ()
    wants: str = ""
    proposal: Proposal | None = None

    @property
    def mark(self) -> str:
        """The proposal that the site has accepted, and its ballot."""
        return mark_of(self.ballot, self.proxy)


@dataclass(frozen=True)
class Vector(Generic[Words]):
    """A member's masked vector as others know it. ``base`` is the mark of the proxy that it was
    made for. ``last``: the member leaves after this one."""

    step: int
    ballot: int
    roster: tuple[str, ...]
    base: str
    sees: Roster
    last: bool
    batch: int
    words: Words


@dataclass(frozen=True)
class Snapshot:
    """A proxy with its optimizer's state, as one site gives it to another."""

    step: int
    ballot: int
    proxy: str
    before: str
    roster: tuple[str, ...]
    content: bytes


@dataclass(frozen=True)
class Contribute:
    """Send a vector for this ballot: to be charged, made, and handed to ``contributed``."""

    step: int
    ballot: int
    roster: tuple[str, ...]


@dataclass(frozen=True)
class Apply(Generic[Words]):
    """Add up these vectors, and hand the result to ``applied`` or ``spoiled``."""

    ballot: int
    vectors: Mapping[str, Vector[Words]]


@dataclass(frozen=True)
class Take:
    """Continue with this proxy, and hand it to ``took``."""

    snapshot: Snapshot
    ballot: int


Do = Contribute | Apply[Any] | Take | None


class Agreement(
    SetOnce,
    Generic[Words],
    changing=(
        "_asked_at",
        "_earliest",
        "_failed",
        "_keys",
        "_now",
        "_now_seconds",
        "_offers",
        "_proposal",
        "_serial",
        "_vectors",
        "_wants",
        "_wants_since",
        "is_last",
        "record",
        "waits_since",
        "willing",
    ),
):
    """One site's side. ``record`` must be on the disk before anything that follows from it, the
    ``view`` included, is sent."""

    def __init__(
        self,
        me: str,
        members: Sequence[str],
        *,
        quorum: int,
        colluders: int,
        version: int,
        record: Record,
        start: int,
        key: str,
        copy_seconds: float = 1.0,
    ) -> None:
        """A site that lacks a vector for ``copy_seconds`` asks for the proxy that others have. Of
        more than ``colluders`` members that say the same, one follows the protocol."""
        if 2 * quorum <= len(members):
            raise TransportError(
                f"A quorum of {quorum} is not more than half of {len(members)} members: two groups "
                "could go on with two proxies."
            )
        self._copy_seconds = copy_seconds
        self.me = me
        self.quorum = quorum
        self.colluders = colluders
        self.majority = len(members) // 2 + 1
        self.record = record
        self.start = start
        self.key = key
        self.willing = True
        self.is_last = False
        """True if this site's next contribution is its last."""
        self.waits_since = 0.0
        self._serial = 0
        self._members = tuple(members)
        self._first = version * VERSIONS
        self._views: dict[str, View] = {}
        self._claims: dict[tuple[int, str], set[str]] = {}
        self._followed: dict[tuple[int, str], set[str]] = {}
        """Who has gone on from which proxy."""
        self._vectors: dict[tuple[int, int], dict[str, Vector[Words]]] = {}
        self._offers: list[Snapshot] = []
        self._proposal: Proposal | None = None
        self._now: Contribute | None = None
        """The ballot that this start of the program has contributed to."""
        self._failed = -1
        """The last ballot of the present step that cannot succeed any more."""
        self._earliest = -1 if start <= 1 else record.promised_or(self._first)
        """Ballots up to this one may have been promised by an earlier start, with other keys."""
        self._keys: dict[str, str] = {}
        """The keys under which this site's last vector was masked."""
        self._wants = ""
        self._wants_since = 0.0
        self._now_seconds = 0.0
        self._unfit: dict[str, str] = {}
        self._asked_at = 0.0
        self._claim_own()

    # What others say.

    def hear(self, name: str, view: View) -> bool:
        """Take note of a member's view; False if a later one is known."""
        known = self._views.get(name)
        if known is not None and (view.start, view.serial) < (known.start, known.serial):
            return False
        if known is not None and known.start != view.start:
            self._unfit.pop(name, None)
        self._views[name] = view
        self._claims.setdefault((view.step, view.mark), set()).add(name)
        if view.step:
            self._claims.setdefault((view.step - 1, view.before), set()).add(name)
            self._followed.setdefault((view.step - 1, view.before), set()).add(name)
        for marks in (self._claims, self._followed):
            for key in [key for key in marks if key[0] < self.record.step - 1]:
                del marks[key]
        return True

    def receive(self, name: str, vector: Vector[Words]) -> bool:
        """Keep a vector for a step that is not over; False if it is of no use any more."""
        if vector.step < self.record.step:
            return False
        kept = self._vectors.setdefault((vector.step, vector.ballot), {})
        kept.setdefault(name, vector)
        return True

    def offer(self, snapshot: Snapshot) -> None:
        """Keep a proxy that a member has sent."""
        if snapshot.step >= self.record.step and len(self._offers) < len(self._members):
            self._offers.append(snapshot)

    def forget(self, name: str) -> None:
        """A member's keys are others from now on, or it is one no longer."""
        self._views.pop(name, None)

    def reject(self, name: str, why: str) -> None:
        """Leave a member out of rosters until it starts again: what it sent is of no use."""
        self._unfit[name] = why

    @property
    def rejected(self) -> Mapping[str, str]:
        """The members that are left out, and why."""
        return self._unfit

    # What this site says.

    def view(self, present: Collection[str]) -> View:
        """The present state, for all others."""
        record = self.record
        self._serial += 1
        return View(
            start=self.start,
            serial=self._serial,
            step=record.step,
            ballot=record.ballot,
            proxy=record.proxy,
            before=record.before,
            promised=record.promised,
            promised_before=record.promised_before,
            key=self.key,
            willing=self.willing,
            sees=self._seen(present),
            has=self._arrived(),
            wants=self._wants if self._is_urgent() else "",
            proposal=self._proposal,
        )

    def _is_urgent(self) -> bool:
        """True if a proxy should be asked for: a vector that is under way is the shorter way."""
        waited = self._now_seconds - self._wants_since
        return waited >= self._copy_seconds or self._now_ballot() < 0

    def _arrived(self) -> tuple[tuple[int, int, Roster], ...]:
        """The vectors of the latest ballot of this step and of the next."""
        latest: dict[int, int] = {}
        for step, ballot in self._vectors:
            if step >= self.record.step:
                latest[step] = max(ballot, latest.get(step, -1))
        ballots = []
        for key in sorted(latest.items())[:2]:
            ballots.append((*key, frozenset(self._vectors[key])))
        return tuple(ballots)

    def view_of(self, name: str) -> View | None:
        """The last view of a member."""
        return self._views.get(name)

    def _seen(self, present: Collection[str]) -> Roster:
        """The members that could be on a roster with this site."""
        fit = set()
        for name in present:
            view = self._views.get(name)
            if view is not None and view.willing and name not in self._unfit:
                fit.add(name)
        return frozenset(fit & set(self._members))

    def able(self, present: Collection[str]) -> Roster:
        """The members that could take part in an attempt now, with this site. One that sees nobody
        has not begun: it may be asking its peers first whether it is an old copy."""
        others = {name for name in self._seen(present) if self._views[name].sees}
        return frozenset(others | ({self.me} if self.willing else set()))

    # What to do.

    def next(self, now: float, present: Collection[str], *, grace: float = 2.0) -> Do:
        """Returns this site's next action; None if it can only wait.

        ``present`` are the members that can be reached. The record may have changed."""
        before = self._wants
        self._now_seconds = now
        self._learn(present)
        if not self._wants or not before:
            self._wants_since = now
        taken = self._choose_offer()
        if taken is not None:
            return taken
        self._promise()
        complete = self._complete()
        if complete is not None:
            return complete
        self._lead(now, present, grace)
        return self._join(present)

    def _learn(self, present: Collection[str]) -> None:
        """Find out whose proxy this site needs, if it needs another one: that of a member that is
        there, if there is one."""
        record = self.record
        self._wants = ""
        for (step, mark), names in self._claims.items():
            if not self._is_chosen(step, mark) or step < record.step:
                continue
            if step == record.step and mark.endswith(f":{record.proxy}"):
                if len(names) >= self.majority and mark != record.mark:
                    ballot = int(mark.partition(":")[0])
                    if ballot > record.ballot:
                        record = self.record = replace(record, ballot=ballot)
                continue
            if step == record.step and step and mark.startswith(f"{record.ballot}:"):
                raise Diverged(
                    f"After {step} sums under the same ballots this site's proxy is "
                    f"{record.proxy[:12]}, and {', '.join(sorted(names))} have "
                    f"{mark.partition(':')[2][:12]}. One of them computes with another rounding, "
                    "or a member sent different vectors to different sites. This site stops. "
                    "Compare releases, processors and settings with the other members."
                )
            self._wants = self._source(step, present)
        proposal = self._adopting()
        for name in self._there_first(present):
            if self._wants:
                return
            view = self._views[name]
            is_next = view.step == record.step + 1
            follows = proposal is not None and proposal.adopt == view.proxy
            if is_next and (self._may_accept(view.ballot) or follows):
                self._wants = name
            differs = view.step == record.step and view.proxy != record.proxy
            if differs and self._may_replace(view.ballot):
                self._wants = name

    def _may_replace(self, ballot: int) -> bool:
        """True if the last sum may be replaced by that of a later ballot of the same step."""
        return ballot > self.record.ballot and ballot >= self.record.promised_before

    def _source(self, step: int, present: Collection[str]) -> str:
        ahead = []
        for name, view in self._views.items():
            if view.step >= step:
                ahead.append((name in present, view.step, name))
        return max(ahead)[2] if ahead else ""

    def _there_first(self, present: Collection[str]) -> list[str]:
        """Whoever has been heard from; those that can be reached come first."""
        return sorted(self._views, key=lambda name: name not in present)

    def _may_accept(self, ballot: int) -> bool:
        return ballot >= self.record.promised

    def _is_chosen(self, step: int, mark: str) -> bool:
        """True if a majority has said so, or one that follows the protocol has gone on from there:
        the sum that it went on with is complete only if its whole roster had accepted the proxy.

        What a site copies is no evidence of its own, so a liar may be believed by way of a site
        that it has fooled before. That costs the proxy and not privacy: it lets no site send
        anything."""
        if len(self._claims.get((step, mark), ())) >= self.majority:
            return True
        return len(self._followed.get((step, mark), ())) > self.colluders

    def _choose_offer(self) -> Take | None:
        record = self.record
        offers, self._offers = self._offers, []
        for offer in sorted(offers, key=lambda each: (each.step, each.ballot), reverse=True):
            if offer.step == record.step and offer.proxy == record.proxy:
                continue
            chosen = self._is_chosen(offer.step, mark_of(offer.ballot, offer.proxy))
            if chosen and offer.step >= record.step:
                return Take(offer, offer.ballot)
            if offer.step == record.step and self._may_replace(offer.ballot):
                return Take(offer, offer.ballot)
            if offer.step == record.step + 1 and offer.before.endswith(f":{record.proxy}"):
                if self._may_accept(offer.ballot):
                    return Take(offer, offer.ballot)
                proposal = self._adopting()
                if proposal is not None and proposal.adopt == offer.proxy:
                    return Take(offer, proposal.ballot)
            is_after_chosen = self._is_chosen(offer.step - 1, offer.before)
            # A promise of this site is about its own next step: it has none for a later one.
            if is_after_chosen and offer.step - 1 > record.step:
                return Take(offer, offer.ballot)
        return None

    def _proposals(self) -> list[Proposal]:
        """The proposals of others that their ballots belong to, lowest first."""
        proposals = []
        for name, view in self._views.items():
            proposal = view.proposal
            if proposal is not None and self._owner(proposal.ballot) == name:
                proposals.append(proposal)
        return sorted(proposals, key=lambda each: each.ballot)

    def _owner(self, ballot: int) -> str:
        number = ballot - self._first
        if not 0 < number < VERSIONS:
            return ""
        return self._members[(number - 1) % len(self._members)]

    def _adopting(self) -> Proposal | None:
        """The proposal to take over a proxy that this site may follow."""
        mine = [] if self._proposal is None else [self._proposal]
        for proposal in reversed([*self._proposals(), *mine]):
            is_due = proposal.step == self.record.step
            if proposal.adopt and is_due and proposal.ballot >= self.record.promised:
                return proposal
        return None

    def _promise(self) -> None:
        for proposal in self._proposals():
            record = self.record
            if proposal.step == record.step and proposal.ballot > record.promised:
                self.record = replace(record, promised=proposal.ballot)
                self._proposal = None
            if proposal.step == record.step - 1 and proposal.ballot >= record.promised_before:
                ballot = record.ballot
                if proposal.adopt == record.proxy:
                    ballot = max(ballot, proposal.ballot)
                self.record = replace(record, promised_before=proposal.ballot, ballot=ballot)

        self._accept_again()

    def _accept_again(self) -> None:
        """Accept the proxy that this site holds under the latest ballot that others have it by."""
        record = self.record
        for view in self._views.values():
            same = (view.step, view.proxy) == (record.step, record.proxy)
            if same and self._may_replace(view.ballot):
                record = replace(record, ballot=view.ballot, promised_before=view.ballot)
                self.record = record
        self._claim_own()

    def _complete(self) -> Apply[Words] | None:
        """The sum of the ballot that this site has contributed to, if all vectors are there."""
        now = self._now
        record = self.record
        if now is None or (now.step, now.ballot) != (record.step, record.promised_or(self._first)):
            return None
        if now.ballot <= self._failed:
            return None
        vectors = self._vectors.get((now.step, now.ballot), {})
        fitting = {}
        for name, vector in vectors.items():
            if name not in now.roster:
                continue
            if vector.roster != now.roster:
                self._unfit[name] = "its vector was made for another roster"
            if (vector.roster, vector.base) != (now.roster, record.mark):
                self._failed = now.ballot
                return None
            fitting[name] = vector
        return Apply(now.ballot, fitting) if len(fitting) == len(now.roster) else None

    def _lead(self, now: float, present: Collection[str], grace: float) -> None:
        """Ask for promises if the present ballot cannot succeed, and announce a roster."""
        record = self.record
        current = self._ballot_roster()
        able = self.able(present)
        mine = self._proposal
        if mine is not None and (mine.step, mine.ballot) != (record.step, record.promised):
            mine = self._proposal = None
        if mine is not None and not (mine.roster or mine.adopt):
            self._announce(mine, now, able, grace)
            return
        is_given_up = mine is None or mine.ballot <= self._failed
        if mine is not None and not is_given_up and self._is_held(mine.adopt, present):
            # Under another ballot the proxy that is on its way here could not be accepted.
            return
        if current is not None and set(current) <= able and not self._is_stuck(current):
            self.waits_since = now
            return
        if len(able) < self.quorum or self.me not in able:
            self.waits_since = now
            return
        rank = sorted(able, key=self._members.index).index(self.me)
        if now - self.waits_since < grace * rank:
            return
        if record.sent >= MOST_ATTEMPTS:
            raise Exhausted(
                f"Step {record.step + 1} has failed in {record.sent} attempts, each of which is on "
                "the ledger. This site stops before it spends more. Ask the members which of them "
                "leaves in the middle of a step; remove it from the manifest, and start again."
            )
        self._propose(now)

    def _is_held(self, proxy: str, present: Collection[str]) -> bool:
        """True if a member that can be reached has this proxy after one step more."""
        views = [self._views[name] for name in present if name in self._views]
        return any((view.step, view.proxy) == (self.record.step + 1, proxy) for view in views)

    def _ballot_roster(self) -> tuple[str, ...] | None:
        """The roster of the present ballot; None if there is none that can succeed."""
        record = self.record
        ballot = record.promised_or(self._first)
        if ballot <= self._failed or ballot < self._first:
            return None
        if ballot == self._first:
            return record.roster if record.roster else None
        if self._proposal is not None and self._proposal.ballot == ballot:
            return self._proposal.roster or None
        for proposal in self._proposals():
            if (proposal.step, proposal.ballot) == (record.step, ballot):
                # Not announced yet: its proposer is waited for as if it were alone on it.
                if proposal.adopt:
                    return tuple(sorted({self.me, self._owner(ballot)}))
                return proposal.roster or tuple(sorted({self.me, self._owner(ballot)}))
        return None

    def _is_stuck(self, roster: Collection[str]) -> bool:
        """True if the ballot cannot succeed: a member of it has moved on or begun again."""
        record = self.record
        ballot = record.promised_or(self._first)
        if self.me in roster and not self._may_contribute(ballot) and self._now_ballot() != ballot:
            return True
        for name in roster:
            view = self._views.get(name)
            if view is None:
                continue
            if self._now_ballot() == ballot and view.key != self._keys.get(name, view.key):
                return True
            if view.step != record.step:
                continue
            if view.promised > ballot or view.mark != record.mark:
                return True
        return False

    def _now_ballot(self) -> int:
        now = self._now
        return -1 if now is None or now.step != self.record.step else now.ballot

    def _may_contribute(self, ballot: int) -> bool:
        """True unless this site has contributed to this ballot or a later one, or has promised it
        with keys that it no longer has."""
        return ballot > max(self.record.contributed, self._earliest)

    def _propose(self, now: float) -> None:
        record = self.record
        highest = max(record.promised, self._failed, self._first)
        for view in self._views.values():
            if view.step == record.step:
                highest = max(highest, view.promised)
        number = highest - self._first + 1
        own = self._members.index(self.me)
        while (number - 1) % len(self._members) != own:
            number += 1
        if number >= VERSIONS:
            raise Exhausted(
                f"Step {record.step + 1} has had {VERSIONS} ballots without a sum. This site "
                "stops. Ask the members which of them leaves in the middle of a step."
            )
        ballot = self._first + number
        self.record = replace(record, promised=ballot)
        self._proposal = Proposal(record.step, ballot)
        self._asked_at = now

    def _announce(self, mine: Proposal, now: float, able: Roster, grace: float) -> None:
        """Fix the roster of this site's ballot, or the proxy that was accepted before."""
        record = self.record
        promised = {self.me}
        accepted: list[View] = []
        for name, view in self._views.items():
            if view.step == record.step and view.promised == mine.ballot:
                promised.add(name)
            if view.step == record.step + 1 and view.promised_before == mine.ballot:
                promised.add(name)
                accepted.append(view)
        if len(promised) < self.majority:
            if now - self._asked_at > 5 * grace:
                self._failed = mine.ballot
                self._proposal = None
                self.waits_since = now
            return
        if accepted:
            highest = max(accepted, key=lambda view: view.ballot)
            self._proposal = replace(mine, adopt=highest.proxy)
            return
        if not able <= promised and now - self._asked_at < grace:
            return
        roster = {name for name in promised & able if self._stands_where_i_do(name)}
        roster = self._clique(roster)
        if len(roster) >= self.quorum and self.me in roster:
            self._proposal = replace(mine, roster=tuple(sorted(roster)))
        elif now - self._asked_at > 5 * grace:
            self._failed = mine.ballot
            self._proposal = None
            self.waits_since = now

    def _stands_where_i_do(self, name: str) -> bool:
        view = self._views.get(name)
        record = self.record
        return name == self.me or (
            view is not None and (view.step, view.mark) == (record.step, record.mark)
        )

    def _clique(self, names: set[str]) -> set[str]:
        """Members of ``names`` that can all reach each other, found by leaving out the one that
        reaches the fewest."""
        names = set(names)
        while names:
            missing = {}
            for name in names:
                sees = names if name == self.me else self._views[name].sees
                missing[name] = sum(
                    other not in (name, self.me) and other not in sees for other in names
                )
                if name != self.me and self.me not in sees:
                    missing[name] += 1
            worst = max(sorted(missing), key=lambda name: missing[name])
            if not missing[worst]:
                break
            names.discard(worst)
        return names

    def _join(self, present: Collection[str]) -> Contribute | None:
        """Contribute to the present ballot, if its roster is known and everybody is there."""
        record = self.record
        ballot = record.promised_or(self._first)
        roster = self._announced(ballot)
        if roster is None or self.me not in roster or len(roster) < self.quorum:
            return None
        if ballot <= self._failed or not self._may_contribute(ballot):
            return None
        if not set(roster) <= self.able(present) or self._is_stuck(roster):
            return None
        if record.sent >= MOST_ATTEMPTS:
            return None
        return Contribute(record.step, ballot, tuple(sorted(roster)))

    def _announced(self, ballot: int) -> tuple[str, ...] | None:
        record = self.record
        if ballot == self._first:
            return (
                record.roster
                if record.promised < self._first or record.promised == ballot
                else None
            )
        every = self._proposals()
        if self._proposal is not None:
            every.append(self._proposal)
        for proposal in every:
            if (proposal.step, proposal.ballot) == (record.step, ballot):
                return proposal.roster or None
        return None

    # What was done.

    def begin(self, attempt: Contribute) -> None:
        """Put on record that a vector is about to leave for ``attempt``. Save the record first."""
        record = self.record
        if attempt.step != record.step or not self._may_contribute(attempt.ballot):
            raise TransportError(
                f"A second vector for ballot {attempt.ballot} of step {attempt.step}."
            )
        if attempt.ballot < record.promised:
            raise TransportError(f"Ballot {attempt.ballot} was superseded by {record.promised}.")
        self.record = replace(
            record,
            contributed=attempt.ballot,
            promised=max(record.promised, attempt.ballot),
            sent=record.sent + 1,
        )

    def contributed(self, attempt: Contribute, vector: Vector[Words]) -> None:
        """This site's own vector has been made."""
        self._now = attempt
        self._keys = {name: self._views[name].key for name in attempt.roster if name != self.me}
        self._vectors.setdefault((attempt.step, attempt.ballot), {})[self.me] = vector

    def own_vectors(self, view: View) -> list[Vector[Words]]:
        """The vectors of this site that the member with this ``view`` lacks: of its step, and of
        the next if this site is ahead."""
        arrived = {(step, ballot): names for step, ballot, names in view.has}
        lacking = []
        for (step, ballot), vectors in self._vectors.items():
            is_due = view.step <= step <= view.step + 1
            is_there = self.me in arrived.get((step, ballot), ())
            if is_due and not is_there and self.me in vectors and not self._is_over(step, ballot):
                lacking.append(vectors[self.me])
        return lacking

    def _is_over(self, step: int, ballot: int) -> bool:
        """True if nobody can use this site's vector of a ballot any more."""
        record = self.record
        return step == record.step and ballot < record.promised

    def spoiled(self) -> None:
        """The sum of the present ballot was garbage: another attempt is needed."""
        assert self._now is not None
        self._failed = self._now.ballot

    def abandon(self) -> None:
        """Wait for the present ballot no longer."""
        self._failed = max(self._failed, self.record.promised_or(self._first))

    def applied(self, action: Apply[Words], proxy: str) -> None:
        """The sum of a ballot was applied and gave ``proxy``."""
        roster = set(action.vectors)
        joining = set(self._members)
        for vector in action.vectors.values():
            joining &= vector.sees | roster
        leaving = {name for name, vector in action.vectors.items() if vector.last}
        following = tuple(sorted((roster | joining) - leaving))
        record = self.record
        self._move(record.step + 1, action.ballot, proxy, record.mark, following)

    def took(self, action: Take) -> None:
        """A proxy was taken over."""
        given = action.snapshot
        self._move(given.step, action.ballot, given.proxy, given.before, given.roster)

    def _move(
        self, step: int, ballot: int, proxy: str, before: str, roster: tuple[str, ...]
    ) -> None:
        old = self.record
        promised_before = max(ballot, old.promised if step == old.step + 1 else 0)
        same = step == old.step
        self.record = Record(
            step,
            ballot,
            proxy,
            before,
            roster,
            promised=old.promised if same else 0,
            promised_before=promised_before,
            contributed=old.contributed if same else -1,
            sent=old.sent if same else 0,
        )
        # Vectors of the step before may be asked for by members that lack one.
        self._vectors = {key: kept for key, kept in self._vectors.items() if key[0] >= step - 1}
        self._proposal = None
        self._offers = []
        if not same:
            self._failed = -1
            self._earliest = -1
        else:
            self._forget_own()
        self._claim_own()

    def _claim_own(self) -> None:
        record = self.record
        for names in self._claims.values():
            names.discard(self.me)
        self._claims.setdefault((record.step, record.mark), set()).add(self.me)
        if record.step:
            self._claims.setdefault((record.step - 1, record.before), set()).add(self.me)

    def _forget_own(self) -> None:
        """This site's vector was made for a proxy that was given up: nobody can use it."""
        if self._now is not None:
            self._vectors.get((self._now.step, self._now.ballot), {}).pop(self.me, None)
        self._now = None

    def is_settled(self) -> bool:
        """True if the last sum that this site has applied is chosen: more than half have it."""
        return not self.record.step or self._is_chosen(self.record.step, self.record.mark)

    def missing(self) -> list[str]:
        """The members whose vectors the present ballot lacks."""
        now = self._now
        if now is None or now.step != self.record.step:
            return []
        have = self._vectors.get((now.step, now.ballot), {})
        return [name for name in now.roster if name not in have]
