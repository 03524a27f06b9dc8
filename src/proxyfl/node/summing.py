"""A site's part in masked sums: every step of the one proxy, together with the other sites.

``agreement`` decides who adds up with whom and which sum counts; this module trains, charges,
masks, adds up, and keeps what must last. ``Desk`` holds what arrives and what is to be sent;
``SiteSum`` runs the steps of a round.

Guarantees:
    * a batch is charged when it is drawn, and a vector leaves only after the charge and the ballot
      that it is for are on the disk; so a site that restarts in the middle of an attempt has paid
      for it, and takes part in the next one with another batch, noise and key;
    * a vector is in memory only, masked. It is sent again to members that lack it, under the same
      ballot and roster, until the site restarts or the step is over; no other roster ever sees it;
    * below the quorum nothing is drawn, charged or sent; the site says so, and after ``patience``
      seconds it ends with the proxy that it has;
    * private keys are drawn at each start, are never written, and end with the program.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict

import numpy as np
from safetensors.torch import load, save

from proxyfl import params
from proxyfl._setonce import SetOnce
from proxyfl.errors import BudgetExhausted, PrivacyError, ProxyFLError, TransportError
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import Traffic
from proxyfl.federation.masked import MaskedSum, Player, trainer_of
from proxyfl.federation.membership import Presence
from proxyfl.federation.state import pack, unpack
from proxyfl.node import keeping
from proxyfl.node.agreement import (
    Agreement,
    Apply,
    Contribute,
    Proposal,
    Record,
    Roster,
    Snapshot,
    Take,
    Vector,
    View,
)
from proxyfl.node.exchange.auditlog import AuditLog
from proxyfl.node.exchange.courier import Courier
from proxyfl.node.exchange.messages import Header, Hello, Parcel, Summand
from proxyfl.node.exchange.protocol import Exchange, Start
from proxyfl.node.exchange.store import Books
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.manifest import Masked as Terms
from proxyfl.node.reachability import Reachability
from proxyfl.privacy.masks import Attempt, Keys, Words, acquaint, add_up

PAUSE = 0.5
"""The longest wait between two looks at what has arrived."""

NOTICE_SECONDS = 5.0
"""A wait that lasts longer is put on record with its reason."""

COPY_SECONDS = 1.0
"""A site that lacks a vector for so long asks for the proxy that others have made of it."""

HELLO_SECONDS = 1.0
"""The seconds after which a waiting site speaks to everybody again."""

_STEP = 10**9
"""In the number of an attempt, the place of the step within its round."""


class QuorumLost(ProxyFLError):
    """Too few members were there for as long as this site has patience."""


def terms_of(manifest: Manifest) -> Terms:
    """The terms of the federation's masked sums."""
    if manifest.masked is None:
        raise PrivacyError("This federation has no masked sums.")
    return manifest.masked


class Desk(
    SetOnce,
    changing=(
        "_content",
        "_sha256",
        "agreement",
        "batch",
        "digest",
        "federation",
        "names",
        "present",
        "total",
        "version",
    ),
):
    """The desk for masked sums: what arrives and what is to be sent (``protocol.Sums``).

    All of it is guarded by the store's lock."""

    def __init__(self, books: Books, me: str, manifest: Manifest, *, size: int, log: AuditLog):
        self.books = books
        self.log = log
        self.me = me
        self.size = size
        self.keys = Keys(me)
        self.present: Collection[str] = ()
        """The members that this site can reach; ``SiteSum`` keeps it up to date."""
        self.total = 0
        self.batch = 0
        self._content = b""
        self._sha256 = ""
        self.follow(manifest)

    def follow(self, manifest: Manifest) -> None:
        """Take over a version of the manifest."""
        self.names = manifest.names()
        self.version = manifest.version
        self.digest = manifest.digest
        self.federation = manifest.federation
        self.total = terms_of(manifest).steps * manifest.training_rounds

    def open(self, record: Record, content: bytes, manifest: Manifest, start: int) -> None:
        """Begin with what is on the disk."""
        self.agreement: Agreement[Words] = Agreement(
            self.me,
            manifest.names(),
            quorum=terms_of(manifest).quorum,
            colluders=terms_of(manifest).colluders,
            version=manifest.version,
            record=record,
            start=start,
            key=self.keys.public.hex(),
        )
        self.keep(content)

    def keep(self, content: bytes) -> None:
        """The proxy that others may ask for."""
        self._content = content
        self._sha256 = hashlib.sha256(content).hexdigest()

    # What arrives.

    def hear(self, hello: Hello) -> None:
        """Take note of what a hello says."""
        if hello.masked and (hello.version, hello.manifest) == (self.version, self.digest):
            self._hear(hello.sender, hello.masked)

    def _hear(self, name: str, text: str) -> None:
        view = parse_view(text, self.names)
        known = self.agreement.view_of(name)
        if known is not None and (view.start, view.serial) < (known.start, known.serial):
            return
        self.keys.meet(name, bytes.fromhex(view.key))
        self.agreement.hear(name, view)

    def take(self, header: Summand | Parcel, body: bytes | memoryview) -> None:
        """Keep what a member has sent; TransportError if it is of no use."""
        if header.version != self.version:
            raise TransportError(
                f"{header.sender!r} uses version {header.version} of the manifest, this site "
                f"version {self.version}. Both must accept the same."
            )
        if isinstance(header, Parcel):
            snapshot = Snapshot(
                header.step,
                header.ballot,
                header.proxy,
                header.before,
                self._spelled(header.roster),
                bytes(body),
            )
            self.agreement.offer(snapshot)
            return
        self._hear(header.sender, header.masked)
        if header.size != 8 * self.size:
            why = f"its vector has {header.size} bytes; expected {8 * self.size}"
            self.agreement.reject(header.sender, why)
            raise TransportError(
                f"{header.sender!r} sent a vector of {header.size} bytes for step "
                f"{header.step + 1}; expected {8 * self.size}. Compare its manifest and its "
                "release with this site's. It is left out until it starts again."
            )
        if not 0 < header.batch < 2**31:
            raise TransportError(f"{header.sender!r} states a batch of {header.batch}.")
        words = np.frombuffer(bytes(body), dtype="<u8").astype(np.uint64)
        vector = Vector(
            header.step,
            header.ballot,
            self._spelled(header.roster),
            header.base,
            frozenset(self._spelled(header.sees)),
            header.last,
            header.batch,
            words,
        )
        self.agreement.receive(header.sender, vector)

    def _spelled(self, text: str) -> tuple[str, ...]:
        return tuple(sorted(members_of(text, self.names)))

    # What is sent.

    def spell(self) -> str:
        """Spells what a hello says about this site."""
        return spell_view(self.agreement.view(self.present), self.names)

    def owed_to(self) -> set[str]:
        """The peers that lack something which this site has for them."""
        return {name for name in self.names if name != self.me and self._lacks(name)}

    def _lacks(self, name: str) -> bool:
        view = self.agreement.view_of(name)
        if view is None:
            return False
        return self._wants_proxy(view) or bool(self.agreement.own_vectors(view))

    def _wants_proxy(self, view: View) -> bool:
        return view.wants == self.me and view.step <= self.agreement.record.step

    def outgoing(self, peer: str, start: Start) -> list[tuple[Header, bytes]]:
        """The messages for ``peer``, whose headers begin with ``start``."""
        view = self.agreement.view_of(peer)
        messages: list[tuple[Header, bytes]] = []
        if view is None:
            return messages
        if self._wants_proxy(view):
            record = self.agreement.record
            parcel = Parcel(
                *start,
                step=record.step,
                ballot=record.ballot,
                proxy=record.proxy,
                before=record.before,
                roster=spell_members(record.roster, self.names),
                size=len(self._content),
                sha256=self._sha256,
            )
            messages.append((parcel, self._content))
        for vector in self.agreement.own_vectors(view):
            body = vector.words.astype("<u8").tobytes()
            summand = Summand(
                *start,
                step=vector.step,
                ballot=vector.ballot,
                roster=spell_members(vector.roster, self.names),
                base=vector.base,
                sees=spell_members(vector.sees, self.names),
                last=vector.last,
                batch=vector.batch,
                masked=self.spell(),
                size=len(body),
                sha256=hashlib.sha256(body).hexdigest(),
            )
            messages.append((summand, body))
        return messages

    def is_behind(self, peer: str) -> bool:
        """True if ``peer`` may still need this site's proxy."""
        view = self.agreement.view_of(peer)
        return view is None or (view.willing and view.step < self.total)


class SiteSum(
    MaskedSum,
    changing=(
        "_is_trained",
        "_is_used",
        "_loss",
        "_player",
        "_said_at",
        "_waits_since",
        "manifest",
        "taking_part",
    ),
):
    """Trains one site's client in step with the other sites."""

    def __init__(
        self,
        client: Client,
        manifest: Manifest,
        exchange: Exchange,
        courier: Courier,
        reach: Reachability,
        log: AuditLog,
        *,
        patience: float,
        check: Callable[[], None],
    ) -> None:
        """``check`` is called at least once a second while this waits; it raises what ends it."""
        self.client = client
        self.manifest = manifest
        self.exchange = exchange
        self.books = exchange.books
        self.courier = courier
        self.reach = reach
        self.log = log
        self.patience = patience
        self.check = check
        self.desk = Desk(
            self.books, client.name, manifest, size=params.size(client.learner.shared), log=log
        )
        self.taking_part = 0
        """The members on the roster of the last step."""
        self._traffic = Traffic()
        self._player: Player | None = None
        self._loss: float | None = None
        self._is_trained = False
        """True if the player's step was taken, so that its training can go on."""
        self._is_used = False
        """True if the player's batch has left in a vector."""
        self._waits_since = 0.0
        self._said_at = 0.0

    @property
    def agreement(self) -> Agreement[Words]:
        """The decisions."""
        return self.desk.agreement

    @property
    def steps(self) -> int:
        """The steps of a round."""
        return terms_of(self.manifest).steps

    def start(self) -> None:
        """Continue where the store says, with keys of this start."""
        stored = self.books.sums()
        if stored is None:
            content = self._content()
            first = Record(proxy=digest_of(content), roster=tuple(sorted(self.manifest.names())))
            self.books.save_sums(first.line(), proxy=content)
            stored = (first.line(), content)
        record = Record.read(stored[0])
        content = bytes(stored[1])
        self._load(content)
        with self.books.store.reading():
            self.desk.batch = trainer_of(self.client).batch_size
            boot = self.books.stamp().boot
            self.desk.open(record, content, self.manifest, boot)
            self.exchange.sums = self.desk

    @property
    def round(self) -> int:
        """The round that the proxy is in."""
        return self.agreement.record.step // self.steps

    def train(
        self, clients: Sequence[Client], round: int, who: Presence
    ) -> tuple[dict[int, Player], dict[int, Traffic]]:
        """One round; what of it others have done without this site is taken over."""
        allowed = who.steps(self.client.id, self.steps)
        before = dict(self.courier.service.traffic)
        end = (round + 1) * self.steps if allowed else 0
        leaves = self.client.id in who.leaving
        self.agreement.willing = allowed > 0
        player = self._player = None
        self._is_trained = self._is_used = False
        done = 0
        if not allowed:
            player = Player(self.client, round, 0)
        try:
            while self.agreement.record.step < end and done < allowed:
                last = done == allowed - 1 or self.agreement.record.step == end - 1
                self.agreement.is_last = leaves and last
                done += self._advance(round, end)
            player = self._player or player
            if player is not None and self._is_trained:
                player.go_on(self._loss)
            if self.agreement.record.step >= self.desk.total:
                self._await_majority()
        except BudgetExhausted:
            self.agreement.willing = False
            self.courier.say_hello(self._others())
            raise
        finally:
            self.reach.resume("quorum", "vectors")
        after = self.courier.service.traffic
        traffic = Traffic(
            bytes_sent=after["bytes_sent"] - before.get("bytes_sent", 0),
            bytes_received=after["bytes_received"] - before.get("bytes_received", 0),
            messages_sent=after["messages_sent"] - before.get("messages_sent", 0),
            messages_received=after["messages_received"] - before.get("messages_received", 0),
        )
        if player is None:
            player = Player(self.client, round, 0)
        player.steps = done
        return {self.client.id: player}, {self.client.id: traffic}

    def save(self, round: int, learner: str) -> None:
        """Begin the round after ``round``, or the one that the others are in."""
        following = max(round + 1, min(self.round, self.manifest.training_rounds))
        charges = keeping.charges(self.client.ledger)
        self.books.advance(following, learner, charges)

    def follow(self, manifest: Manifest) -> None:
        """Take over a version of the manifest, between two rounds."""
        if manifest.masked != self.manifest.masked:
            raise TransportError(
                f"Version {manifest.version} of the manifest has other terms of masked sums. "
                "Start this site again."
            )
        with self.books.store.reading():
            self.manifest = manifest
            record = self.agreement.record
            # Ballots of this version come after all of the version before.
            self.desk.follow(manifest)
            self.desk.open(record, bytes(self._content()), manifest, self.agreement.start)

    # One step.

    def _advance(self, round: int, end: int) -> int:
        """Take part in attempts until one more sum counts; 1 if this site was part of it."""
        step = self.agreement.record.step
        started = self._waits_since = time.monotonic()
        ours = 0
        while self.agreement.record.step == step:
            self.check()
            self.reach.note(round)
            present = self.reach.able(round)
            with self.books.store.reading():
                before = self.agreement.record, self.agreement.view(present)
                is_new_here = not self.desk.present and bool(present)
                self.desk.present = present
                do = self.agreement.next(time.monotonic(), present)
                if self.agreement.record != before[0]:
                    self.books.save_sums(self.agreement.record.line())
                after = self.agreement.view(present)
            if is_new_here or _news(before[1]) != _news(after):
                self.courier.say_hello(self._others())
            if isinstance(do, Contribute):
                self._contribute(do, round, end)
            elif isinstance(do, Apply):
                ours += self._apply(do)
            elif isinstance(do, Take):
                self._take(do)
            else:
                self._wait(round, started)
        return ours

    def _contribute(self, do: Contribute, round: int, end: int) -> None:
        """Draw, charge, and send a vector. If the attempt is given up meanwhile, the batch serves
        the next one: nothing of it has left."""
        player = self._player
        if player is None:
            self._player = Player(self.client, round, end - do.step)
            self._is_trained = self._is_used = False
            return
        if self._is_trained:
            player.go_on(self._loss)
            self._is_trained = self._is_used = False
            return
        if self._is_used:
            player.draw_again()
            self._is_used = False
            return
        about = self._attempt(do)
        with self.books.store.transaction():
            self.agreement.begin(do)
            charges = keeping.charges(self.client.ledger)
            self.books.save_sums(self.agreement.record.line(), charges=charges)
        self._is_used = True
        words, self._loss = player.contribute(about, self.desk.keys)
        # On record before anybody can have it.
        self.log.add("sent a vector", round=round, step=do.step, ballot=do.ballot)
        with self.books.store.reading():
            vector = Vector(
                do.step,
                do.ballot,
                do.roster,
                self.agreement.record.mark,
                self.agreement.able(self.desk.present),
                self.agreement.is_last,
                self.desk.batch,
                words,
            )
            self.agreement.contributed(do, vector)
        self.taking_part = len(do.roster)
        self._waits_since = time.monotonic()
        self.courier.send_shares(self._others())

    def _attempt(self, do: Contribute) -> Attempt:
        place = do.step % self.steps
        return Attempt(
            self.desk.federation,
            f"{self.desk.digest} {self.agreement.record.mark}",
            do.step // self.steps,
            place * _STEP + do.ballot,
            do.roster,
        )

    def _apply(self, do: Apply[Words]) -> int:
        """Add up, take the step, and keep the proxy; 0 if the sum is garbage."""
        trainer = trainer_of(self.client)
        vectors = do.vectors
        batch = sum(vector.batch for vector in vectors.values())
        about = self._attempt(Contribute(self.agreement.record.step, do.ballot, tuple(vectors)))
        messages = {name: vector.words for name, vector in vectors.items()}
        try:
            limit = trainer.largest_sum(batch, len(vectors))
            total = add_up(messages, about, size=self.desk.size, limit=limit)
        except ProxyFLError as error:
            with self.books.store.reading():
                self.agreement.spoiled()
            self.log.add("spoiled sum", step=self.agreement.record.step, reason=str(error)[:300])
            self.courier.say_hello(self._others())
            return 0
        trainer.advance(total, batch)
        content = self._content()
        with self.books.store.transaction():
            self.agreement.applied(do, digest_of(content))
            self.books.save_sums(self.agreement.record.line(), proxy=content)
            self.desk.keep(content)
        self._is_trained = True
        return 1

    def _take(self, do: Take) -> None:
        """Continue with the proxy that others have."""
        given = do.snapshot
        if digest_of(given.content) != given.proxy:
            self.log.add("refused", reason="a proxy with another hash than it states")
            return
        self._load(given.content)
        with self.books.store.transaction():
            self.agreement.took(do)
            self.books.save_sums(self.agreement.record.line(), proxy=given.content)
            self.desk.keep(given.content)
        # The round's training was for steps that others have taken without this site.
        self._player = None
        self._is_trained = self._is_used = False
        self.log.add("took over a proxy", step=given.step, ballot=do.ballot)

    def _wait(self, round: int, started: float) -> None:
        """Say what is waited for, and wait for a moment."""
        now = time.monotonic()
        able = self.agreement.able(self.desk.present)
        quorum = self.agreement.quorum
        if now - self._said_at > HELLO_SECONDS and now - started > HELLO_SECONDS:
            self._said_at = now
            self.courier.say_hello(self._others())
        if len(able) < quorum:
            if now - started > self.patience:
                raise QuorumLost(self._too_few(round, able))
            if now - started > NOTICE_SECONDS:
                self.reach.wait("quorum", self._too_few(round, able))
        elif now - self._waits_since > NOTICE_SECONDS:
            missing = ", ".join(self.agreement.missing()) or "an agreement on who takes part"
            self.reach.wait(
                "vectors", f"Step {self.agreement.record.step + 1} waits for {missing}."
            )
            if now - self._waits_since > self.patience:
                with self.books.store.reading():
                    self.agreement.abandon()
                self._waits_since = now
        self.exchange.wait(PAUSE)

    def _too_few(self, round: int, able: Roster) -> str:
        absent = sorted(set(self.desk.names) - able)
        rejected = [f"{name}: {why}." for name, why in sorted(self.agreement.rejected.items())]
        return (
            f"Round {round + 1} waits: {len(able)} of at least {self.agreement.quorum} members are "
            f"there (graph.masked.quorum). Missing: {', '.join(absent)}. Nothing is charged or "
            f"sent meanwhile. {' '.join(rejected)}"
        ).rstrip()

    def _await_majority(self) -> None:
        """Wait until more than half of all members have the last step's proxy, so that no other
        can take its place."""
        deadline = time.monotonic() + self.patience
        while not self.agreement.is_settled() and time.monotonic() < deadline:
            self.check()
            step = self.agreement.record.step
            present = self.reach.able(step // self.steps)
            with self.books.store.reading():
                self.desk.present = present
                do = self.agreement.next(time.monotonic(), present)
                if isinstance(do, Contribute):
                    do = None  # there is no further step
            if isinstance(do, Take):
                self._take(do)
            self.courier.say_hello(self._others())
            self.exchange.wait(PAUSE)

    def catch_up(self) -> None:
        """Take over the proxy of members that have finished, if this site was away at the end."""
        deadline = time.monotonic() + self.patience
        while self._is_behind() and time.monotonic() < deadline:
            self.check()
            with self.books.store.reading():
                before = self.agreement.record
                # With nobody on a roster it asks for no promise, and contributes to nothing.
                do = self.agreement.next(time.monotonic(), ())
                if self.agreement.record != before:
                    self.books.save_sums(self.agreement.record.line())
            if isinstance(do, Take):
                self._take(do)
            self.courier.say_hello(self._others())
            self.exchange.wait(PAUSE)

    def _is_behind(self) -> bool:
        """True if a member that has not left has applied more sums than this site."""
        own = self.agreement.record.step
        views = [self.agreement.view_of(name) for name in self._others()]
        return any(view is not None and view.step > own for view in views)

    def _others(self) -> list[str]:
        return [name for name in self.desk.names if name != self.client.name]

    def _content(self) -> bytes:
        """The proxy and its optimizer's state, the same bytes at every site."""
        trainer = trainer_of(self.client)
        state = pack({"model": trainer.model}, {"optimizer": trainer.optimizer})
        ordered = {key: state[key].contiguous() for key in sorted(state)}
        return bytes(save(ordered))

    def _load(self, content: bytes) -> None:
        trainer = trainer_of(self.client)
        unpack(load(content), {"model": trainer.model}, {"optimizer": trainer.optimizer})


def rehearse(client: Client, manifest: Manifest) -> None:
    """Make one vector of a client whose ledger is simulated, for members with made-up keys; raises
    what would stop a real one."""
    members = [Keys(name, seed=name.encode()) for name in manifest.names()]
    acquaint(members)
    roster = tuple(manifest.names())
    about = Attempt(manifest.federation, manifest.digest, 0, 0, roster)
    trainer = trainer_of(client)
    trainer.largest_sum(len(members) * trainer.batch_size, len(members))
    Player(client, 0, 1).contribute(about, members[manifest.position(client.name)])


def digest_of(content: bytes) -> str:
    """The hash by which sites compare proxies."""
    return hashlib.sha256(content).hexdigest()[:32]


def _news(view: View) -> tuple[object, ...]:
    """What others must hear of at once."""
    return (view.promised, view.promised_before, view.proposal, view.wants, view.willing)


def spell_members(names: Collection[str], members: Sequence[str]) -> str:
    """A set of members, by their positions, in hexadecimal digits."""
    return f"{sum(1 << members.index(name) for name in names if name in members):x}"


def members_of(text: str, members: Sequence[str]) -> Roster:
    """The set that ``spell_members`` wrote; TransportError for anything else."""
    try:
        bits = int(text, 16)
    except ValueError as error:
        raise TransportError(f"Expected a set of members, got {text!r:.60}.") from error
    if not 0 <= bits < 1 << len(members):
        raise TransportError(f"Expected a set of {len(members)} members, got {text!r:.60}.")
    return frozenset(name for at, name in enumerate(members) if bits >> at & 1)


def spell_view(view: View, members: Sequence[str]) -> str:
    """A view as text for a header."""
    content = asdict(view)
    content["sees"] = spell_members(view.sees, members)
    content["has"] = [
        [step, ballot, spell_members(names, members)] for step, ballot, names in view.has
    ]
    if view.proposal is not None:
        content["proposal"]["roster"] = spell_members(view.proposal.roster, members)
    return json.dumps(list(content.values()), separators=(",", ":"))


def parse_view(text: str, members: Sequence[str]) -> View:
    """The view that ``spell_view`` wrote; TransportError for anything else."""
    try:
        values = json.loads(text)
        fields = dict(zip(View.__dataclass_fields__, values, strict=True))
        fields["sees"] = members_of(fields["sees"], members)
        fields["has"] = tuple(
            (int(step), int(ballot), members_of(names, members))
            for step, ballot, names in fields["has"][:2]
        )
        proposal = fields["proposal"]
        if proposal is not None:
            roster = tuple(sorted(members_of(proposal["roster"], members)))
            fields["proposal"] = Proposal(
                int(proposal["step"]), int(proposal["ballot"]), roster, str(proposal["adopt"])
            )
        for name in ("start", "serial", "step", "ballot", "promised", "promised_before"):
            if type(fields[name]) is not int or not 0 <= fields[name] < 2**53:
                raise ValueError(name)
        for name in ("proxy", "before", "key", "wants"):
            if not isinstance(fields[name], str):
                raise ValueError(name)
        if len(bytes.fromhex(fields["key"])) != 32 or type(fields["willing"]) is not bool:
            raise ValueError("key")
        return View(**fields)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise TransportError(
            f"Cannot read what a hello says about masked sums: {error}. Compare its release with "
            "this site's."
        ) from error
