"""A running site: one round after the other, whoever else is there.

A round is that of ``federation.rounds.run_rounds``; the node supplies the exchange
(``participation``). Guarantees:
    * a round's charge is in the ledger before its first step;
    * a round is trained only if ``network.least_peers`` peers can receive (``reachability``). With
      fewer the site waits, says why, and nothing is charged; if all others have left or finished,
      it ends. It waits as well while all who can receive are more than ``MOST_AHEAD`` rounds
      behind, so that no site runs through its rounds and its budget alone;
    * after a crash the site continues where it was: a round that was released is not trained again;
    * a site whose budget does not cover a whole round takes the steps that it covers, hands its
      mass on, keeps its private model and ends, whatever peers or changed settings say. What
      nobody can take it keeps. Nothing is charged afterwards, however often it is started;
    * a site that its peers have seen further than it knows itself stops before it sends anything,
      and does not start again before `node rejoin` or a manifest without that peer;
    * a request to stop is met between two steps of training. What the unfinished round has
      computed is dropped: nothing of it was released and nothing of it is kept, so neither its
      batches nor its noise can be part of any other release. Its charge stays, and the next start
      trains the round from its beginning, with new batches, new noise and a charge of its own.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from proxyfl import params
from proxyfl._command import command
from proxyfl.errors import BudgetExhausted, ConfigError
from proxyfl.federation.fitted import Fitted
from proxyfl.federation.learners import Mutual, goes_on, warn_of_fault
from proxyfl.federation.membership import Presence
from proxyfl.federation.metrics import Score, evaluate
from proxyfl.federation.prevalence import NOTHING, Meaning
from proxyfl.federation.rounds import ClientRound, run_rounds
from proxyfl.gossip.pushsum import Mass
from proxyfl.node import assembly, keeping, recording
from proxyfl.node.backup import RESTORED_FILE
from proxyfl.node.exchange.auditlog import FILE as AUDIT_FILE
from proxyfl.node.exchange.auditlog import AuditLog
from proxyfl.node.exchange.courier import Courier
from proxyfl.node.exchange.protocol import MOST_UNAPPLIED, Exchange, RestoredError
from proxyfl.node.exchange.reasons import Reasons
from proxyfl.node.exchange.service import Service
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.store import (
    LEAVE_FILE,
    STOP_FILE,
    Books,
    Store,
    hold_folder,
    is_stop_requested,
)
from proxyfl.node.exits import End, StopRequested
from proxyfl.node.members import holdout
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Manifest, notes
from proxyfl.node.members.records import check_records
from proxyfl.node.members.roster import Roster
from proxyfl.node.members.site import Site
from proxyfl.node.members.trust import code_of
from proxyfl.node.members.versions import RELEASE
from proxyfl.node.mixing import Guard, Mixer, Proxy
from proxyfl.node.observe import status
from proxyfl.node.observe.lines import Attention
from proxyfl.node.participation import Ending, Participant
from proxyfl.node.reachability import LASTING_SECONDS, Reachability
from proxyfl.node.summing import QuorumLost, SiteSum
from proxyfl.records.reading import SITE_CLIENT
from proxyfl.records.row import row_of
from proxyfl.transport.files import Folder

FRAME_OVERHEAD = 1 << 16
MEET_SECONDS = 5.0
REJOIN_SECONDS = 20.0
"""The longest wait for peers' answers before a site rejoins."""


@dataclass(frozen=True)
class Rejoined:
    """How a site continues: at ``round``, with ``charged`` rounds put on its ledger, owing a weight
    of ``debt``; the peers in ``silent`` could not be asked."""

    round: int
    charged: int
    debt: float
    silent: tuple[str, ...]


MOST_AHEAD = MOST_UNAPPLIED
"""A site is at most so many rounds ahead of the peers that can receive: no more of its shares would
find room there."""

ASK_SECONDS = 2.0
"""The pause after which a site that waits for its peers asks them again how far they are."""

TRAINING_SECONDS = 1.0
"""A round that ends within this time after a signal is finished and paid for only once."""

LOCK_NOTICE_SECONDS = 5.0
"""A lock on the store that lasts longer is told."""

_WHY_LEFT = {"budget spent": "budget-spent", "asked to leave": "asked"}


class Node:
    """One site at work. Use it as a context manager; ``run`` returns why it ended."""

    def __init__(
        self,
        site: Site,
        folder: Path,
        *,
        seed: int | None = None,
        say: Callable[[str], None] = lambda line: None,
        stopping: threading.Event | None = None,
    ) -> None:
        """``stopping`` is set to ask the site to stop now, also in the middle of a round."""
        self.site = site
        self.folder = folder
        self.say = say
        self.seed = seed
        self.stopping = stopping or threading.Event()
        self._last_step = 0.0
        self._stopped_at: float | None = None
        self._waits_since: float | None = None
        self._asked_at = 0.0
        self._unpaid = (-1, 0, "")
        """A round that waits, the steps that the budget covers in it, and why it is the last."""
        self._is_lock_told = False
        self._stack = contextlib.ExitStack()
        self._tag = self._stack.enter_context(hold_folder(folder))
        try:
            self._assemble(site, folder, seed)
        except BaseException:
            self._stack.close()
            raise

    def _assemble(self, site: Site, folder: Path, seed: int | None) -> None:
        torch.set_num_threads(site.resources.threads)
        self.identity = Identity(folder, site.name)
        self.roster = Roster(folder, self.identity)
        manifest = self.roster.current
        self.data = assembly.load(manifest, site, folder)
        if assembly.is_table(manifest, site):
            remark = check_records(
                folder,
                self.data.train,
                self.data.test,
                read_by=assembly.read_by(manifest, site, folder),
                accept=site.data.changes == "accept",
            )
            if remark:
                self.say(remark)
        self.client = assembly.client(
            manifest,
            site,
            self.data.train,
            ledger=folder / assembly.LEDGER_FILE,
            seed=seed,
            account=self.data.account,
            code=code_of(site, folder),
        )
        self.log = AuditLog(folder / AUDIT_FILE)
        self.metrics = status.metrics_log(folder)
        self._history = status.metrics_reader(folder)
        self.store = Store(folder / STORE_FILE, on_locked=self._note_lock)
        self._stack.callback(self.store.close)
        self.reasons = Reasons(self.store)
        self.books = Books(
            self.store,
            federation=manifest.federation,
            me=site.name,
            version=manifest.version,
            rounds=manifest.rounds,
        )
        shared = self.client.learner.shared
        proxy = Proxy(params.fingerprint(shared), params.size(shared))
        self.mixer = Mixer(self.roster, self.books, proxy)
        self.exchange = Exchange(self.books, self.mixer.admit)
        self.service = Service(self.identity, self.roster, self.exchange, self.log)
        # A vector of a masked sum has 8 bytes for each parameter, a proxy with its optimizer 12.
        self.largest = (4 if manifest.masked is None else 16) * proxy.size + FRAME_OVERHEAD
        self.courier = Courier(
            self.service,
            largest=self.largest,
            heartbeat=site.network.heartbeat,
            timeout=site.network.timeout,
            folder=self._shared_folder(),
        )
        self.service.on_verdict = self._keep_verdict
        self.reach = Reachability(
            self.service,
            self.courier,
            self.reasons,
            folder,
            patience=site.network.patience,
            say=self.say,
        )
        self.mixer.is_silent = lambda name: not self.reach.is_there(name)
        guard = Guard(site.defence.rule, site.defence.radius)
        guard.restore(self.books.defence())
        self.participant = Participant(
            self.client,
            self.exchange,
            self.mixer,
            self.courier,
            self.log,
            folder,
            reach=self.reach,
            patience=site.network.patience,
            guard=guard,
            check=self.check,
        )
        self.sum: SiteSum | None = None
        if manifest.masked is not None:
            self.sum = SiteSum(
                self.client,
                manifest,
                self.exchange,
                self.courier,
                self.reach,
                self.log,
                patience=site.network.patience,
                check=self.check,
            )
        self.ending = Ending(self.participant, self.service)
        for optimizer in self._optimizers():
            optimizer.register_step_post_hook(self._check_between_steps)

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: object) -> None:
        self.courier.stop()
        (self.folder / STOP_FILE).unlink(missing_ok=True)
        self._stack.close()

    def run(self) -> End:
        """Take part until the end; return why it ended.

        Raises RestoredError if a peer has stopped this site, now or at an earlier start."""
        self._check_verdicts()
        check_least_peers(self.site, self.roster.current)
        self._start()
        try:
            self.check()
            self.courier.start()
            self._meet()
            self._confirm_restore()
            if self.books.position().phase == "released" and self.sum is None:
                self._resume_exchange()
            while True:
                end = self._go_on()
                if end is not None:
                    # Also of a site that finished instead: a longer manifest may start it again.
                    (self.folder / LEAVE_FILE).unlink(missing_ok=True)
                    self._conclude_record()
                    return end
        except StopRequested:
            self.ending.stop(hurried=self.stopping.is_set())
            return End.STOPPED

    def _go_on(self) -> End | None:
        """One round, or a moment's wait for the peers that it needs; the end if it has come."""
        self.check()
        self._follow_manifest()
        here = self.books.position()
        if here.state != "active":
            return self._leave()
        agreed = self.roster.current
        if here.round >= agreed.rounds or self.reach.is_over():
            self.ending.finish()
            return End.FINISHED
        if agreed.is_over(time.time()):
            self._await_clock()
            return None
        if self.sum is None:
            self._catch_up()
        round = self.books.position().round
        self.reach.note(round)
        leaves = (self.folder / LEAVE_FILE).exists()
        able = self.reach.able(round)
        least = self.site.network.least_peers
        is_ahead = not leaves and self._is_ahead(round, able)
        if len(able) >= least and not is_ahead:
            self._waits_since = None
            self.reach.resume()
            try:
                self._round(round, leaves=leaves)
            except QuorumLost as lost:
                return self._end_below_quorum(str(lost))
        elif leaves:
            self._withdraw("asked to leave")
        elif len(self.reach.possible()) < least:
            return self._end_alone(round)
        else:
            self._await_peers(round, able)
        return None

    def _is_ahead(self, round: int, able: Sequence[str]) -> bool:
        """True if all who can receive are many rounds behind.

        What they send belongs to rounds that are over here, and what this site sends has to wait
        there: it would pay for rounds that nobody shares."""
        is_free = round >= self.roster.current.training_rounds
        if is_free or self.sum is not None or not self.site.network.least_peers:
            return False
        furthest = max((self.books.peers.known(name).round for name in able), default=round)
        return furthest + MOST_AHEAD < round

    def _await_peers(self, round: int, able: Sequence[str]) -> None:
        """Say that too few peers can receive, or that all are behind; wait for a moment.

        A site whose budget is spent has nothing to wait for but an heir, and rounds that only mix
        cost nothing: neither waits for longer than ``patience``."""
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if self._unpaid[0] != round:
            self._unpaid = (round, *self._allowance(round))
        if now - self._waits_since > LASTING_SECONDS:
            self._say_who_is_missing(round, able)
        if now - self._asked_at > ASK_SECONDS:
            self._asked_at = now
            self.courier.say_hello(able)
        _, steps, reason = self._unpaid
        if reason and not steps:
            self._withdraw(reason)
        elif not steps and now - self._waits_since > self.site.network.patience:
            self.reach.resume()
            self._round(round, leaves=False)
        else:
            self.exchange.wait()

    def check(self) -> None:
        """Raise what ends this site's run: a peer's verdict, a failure, a request to stop."""
        self.service.check_behind()
        if self.stopping.is_set() or is_stop_requested(self.folder, self._tag):
            raise StopRequested("Somebody asked this site to stop.")

    def status(self) -> dict[str, Any]:
        """The status that the page shows."""
        return status.of_folder(
            self.site, self.folder, service=self.service, running=True, is_there=self.reach.is_there
        )

    def begin_again(self, round: int | None = None) -> Rejoined:
        """After a restore from an old backup: answer for what the lost copy has done, and continue
        without mass.

        What was released since the two parted cannot be taken back, so its cost is put on the
        ledger as if every round had been trained in full. Peers that can be reached are asked what
        they have seen; ``round`` says that a copy has released all rounds before it, which is added
        to that."""
        if self.sum is not None:
            raise ConfigError(
                "A copy of this site may have sent vectors in attempts that no ledger here has, "
                "and masked sums cannot tell how many. Bring the newest store and ledger back. If "
                "they are lost, this site cannot go on in this federation."
            )
        last = self.roster.current.rounds
        if round is not None and not 0 <= round <= last:
            raise ConfigError(
                f"Expected a round from 0 to {last}, got {round}. Take the largest that a peer "
                "named; the audit log says which peer that was."
            )
        self.books.start()
        silent = self._ask_around()
        sightings = self.books.sightings_to_answer(round=round)
        if not sightings:
            rejoin = command("node", "rejoin", self.folder, "--round", "N")
            raise ConfigError(
                "No peer has shown this site what it does not remember, so there is nothing to "
                f"answer for. Not reached: {', '.join(silent) or 'nobody'}. Start the site as "
                f"usual; or, if a copy of it is known to have released rounds 0 to N-1: {rejoin}"
            )
        versions = self.roster.versions.values()
        trained = max(agreed.training_rounds for agreed in versions)
        charged = 0
        # A stop in between leaves the charges and not the new beginning: they are then made twice.
        with self.store.transaction():
            for loss in self.books.begin_again(sightings):
                for number in loss.rounds:
                    if number < trained:
                        assembly.record_in_full(self.client, number)
                        charged += 1
                if loss.paid:
                    assembly.record_in_full(self.client, loss.rounds.start, times=loss.paid)
                    charged += loss.paid
        here = self.books.position()
        debt = float(self.books.debt())
        self.log.add("began again", round=here.round, charged=charged, debt=debt, silent=silent)
        self.reasons.clear("verdict")
        (self.folder / RESTORED_FILE).unlink(missing_ok=True)
        return Rejoined(here.round, charged, debt, tuple(silent))

    def _ask_around(self) -> list[str]:
        """Collect what peers have seen of this site; return those that could not be asked."""
        self.exchange.is_rejoining = True
        self.exchange.manifest = self.roster.current.digest
        self.exchange.accepted = self.roster.acceptance
        network = self.site.network
        if network.listen and not network.folder:
            self._listen()
        names = [card.name for card in self.roster.others()]
        self.courier.start()
        self.courier.say_hello(names)
        deadline = time.monotonic() + REJOIN_SECONDS
        while True:
            witnesses = {name for name, _ in self.books.evidence.every()}
            silent = [name for name in names if not self.exchange.is_admitted(name)]
            silent = [name for name in silent if name not in witnesses]
            if not silent or time.monotonic() > deadline:
                return silent
            self.exchange.wait(0.2)

    def _start(self) -> None:
        manifest = self.roster.current
        own = manifest.member(self.site.name)
        weight = Fraction(1) if self.sum is None else Fraction(0)  # nothing is handed on then
        self.books.start(round=own.joins, weight=weight)
        self.exchange.manifest = manifest.digest
        self.exchange.accepted = self.roster.acceptance
        # A version may have been accepted while the site was stopped.
        self._move_key()
        self._write_off()
        self.books.lower_budget(self.site.privacy.budget)
        keeping.check_ledger(self.books.charges(), self.client.ledger)
        here = self.books.position()
        # Said from the first hello on: nobody should train a round for this site any more.
        self.exchange.has_ended = here.phase == "ready" and here.round >= manifest.rounds
        self.reasons.clear("waiting")
        self.reasons.clear("peer")
        if here.state == "active":
            self.reasons.clear("ended")
        done = -1
        if here.learner:
            done = keeping.restore(self.folder, self.client, here.learner)
        self.client.weight = float(here.weight) if self.sum is None else 1.0
        if self.sum is not None:
            self.sum.start()
        mass = self.books.mass()
        if here.phase == "ready" and mass:
            theta = self.mixer.decode_own(mass)
            self.client.receive(done, Mass(theta, float(here.weight)))
        network = self.site.network
        if network.listen and not network.folder:
            self._listen()
        for sentence in self.metrics.faults:
            self.log.add("damage", what=sentence)
        for sentence in (*self.log.faults, *self.metrics.faults):
            self.say(Attention(sentence))
        # A release that a crash kept out of the log is in the store, and so in this line.
        owed = sorted(self.books.owed_to())
        about: dict[str, Any] = {"round": here.round, "phase": here.phase, "owed": owed}
        self.log.add("started", version=manifest.version, release=RELEASE, **about)
        recording.describe(self.folder, manifest, self.site, self.data)
        for note in (*notes(manifest), *holdout.notes(self.folder)):
            self.say(note)

    def _listen(self) -> None:
        from proxyfl.transport.grpc.server import Server

        server = Server(
            self.site.network.listen,
            credentials=self.roster.credentials,
            who=self.service.member,
            answer=self.service.answer,
            follow=self.service.follow,
            largest=self.largest,
            threads=8 + len(self.roster.current.members),
            patience=self.site.network.timeout,
            refused=self.service.note_refusal,
        )
        self._stack.callback(server.stop)

    def _meet(self) -> None:
        """Say hello to all, so that a peer that knows more of this site can say so."""
        names = [card.name for card in self.roster.others()]
        self.courier.say_hello(names)
        seconds = min(MEET_SECONDS, self.site.network.patience)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            if all(self.exchange.is_admitted(name) for name in names):
                return
            self.exchange.wait(0.2)

    def _confirm_restore(self) -> None:
        """Ask every peer that may still take part, if this folder was restored from a backup.

        One that has seen more of this site stops it (``check``). Nothing is trained before."""
        marker = self.folder / RESTORED_FILE
        if not marker.exists():
            return
        while True:
            self.check()
            self._follow_manifest()
            silent = [name for name in self.reach.possible() if not self.exchange.is_admitted(name)]
            if not silent:
                break
            self.reach.wait(
                "restored",
                f"This site was restored from a backup and asks its peers how far they have seen "
                f"it. {', '.join(silent)} did not answer yet. Nothing is trained meanwhile. A "
                "member that will not come back must be removed from the manifest.",
            )
            self.exchange.wait()
        marker.unlink()
        self.reach.resume("restored")
        self.log.add("restored", round=self.books.position().round)
        self.say("restored from a backup; no peer has seen anything that it lacks")

    def _await_clock(self) -> None:
        """Wait for a moment: by this site's clock the federation is over, by most others' not."""
        self.reach.wait(
            "clock",
            f"By this machine's clock the federation ended ({self.roster.current.ends}); by the "
            "clocks of its peers it did not. Nothing is trained until they agree. Set the clock "
            "by NTP.",
        )
        self.exchange.wait()

    def _say_who_is_missing(self, round: int, able: Sequence[str]) -> None:
        obstacles = self.reach.obstacles(round)
        why = [obstacles[name].text for name in sorted(obstacles)]
        if len(able) >= self.site.network.least_peers:
            where = []
            for name in able:
                where.append(f"{name} (round {self.books.peers.known(name).round + 1})")
            self.reach.wait(
                "peers-behind",
                f"Round {round + 1} waits for peers that are more than {MOST_AHEAD} rounds behind: "
                f"{', '.join(where)}. Nothing is charged meanwhile. {' '.join(why)}".rstrip(),
            )
            return
        self.reach.wait(
            "too-few-peers",
            f"Round {round + 1} waits: {len(able)} of at least {self.site.network.least_peers} "
            "peers can receive (network.least_peers). Nothing is charged meanwhile. "
            f"{' '.join(why)}",
        )

    def _end_alone(self, round: int) -> End:
        """End because too few others are left for another round."""
        _, reason = self._allowance(round)
        if reason:
            self._withdraw(reason)
            return self._leave()
        self.ending.await_handovers()
        mixed = self.participant.take_in(self.client.mass())
        if mixed is not None:
            self.client.take(mixed)
        if self.sum is not None:
            self.sum.catch_up()
        text = (
            f"All other members have left or finished, or too few are left for "
            f"network.least_peers = {self.site.network.least_peers}. Ends before round {round + 1} "
            f"of {self.roster.current.rounds}."
        )
        self.reasons.put("ended", "nobody-left", text)
        self.say(text)
        self.ending.finish()
        return End.FINISHED

    def _end_below_quorum(self, lost: str) -> End:
        """End with the proxy that there is: too few members were there for too long."""
        text = (
            f"{lost} That lasted for {self.site.network.patience:g} s (network.patience), so this "
            "site ends with the proxy that it has. When they are back, or a manifest without them "
            f"is accepted, run: {command('node', 'run', self.folder)}"
        )
        self.reasons.put("ended", "below-quorum", text)
        self.say(Attention(text))
        self.ending.finish()
        return End.FINISHED

    def _withdraw(self, reason: str) -> None:
        """Leave without another round: what this site holds is handed on by ``_leave``."""
        self.books.set_state("leaving")
        self.reasons.put("ended", _WHY_LEFT[reason], f"Leaves before another round: {reason}.")

    def _leave(self) -> End:
        """Hand on what this site holds, tell the others, and say what became of its mass."""
        self.ending.drain()
        reason = self.reasons.of("ended")
        code = "asked" if reason is None else reason.code
        weight = float(self.books.position().weight)
        owed = sorted(self.books.owed_to())
        text = "The budget is spent." if code == "budget-spent" else "Left on request."
        if weight:
            text += f" Nobody could take this site's mass: it keeps a weight of {weight:g}."
        if owed:
            text += (
                f" Shares for {', '.join(owed)} were not delivered; to try again: "
                f"{command('node', 'run', self.folder)}"
            )
        self.reasons.put("ended", code, text)
        self.say(text)
        return End.SPENT if code == "budget-spent" else End.LEFT

    def _round(self, round: int, *, leaves: bool) -> None:
        steps, reason = self._allowance(round)
        if leaves:
            reason = "asked to leave"
        if reason:
            self.reasons.put("ended", _WHY_LEFT[reason], f"Leaves after this round: {reason}.")
        left = self.participant.left()
        members = self.roster.current.members
        present = []
        for at, card in enumerate(members):
            if card.name not in left:
                present.append(at)
        me = self.client.id
        leaving = {me: reason} if reason else {}
        who = Presence(tuple(present), len(members), leaving, {me: steps})
        rows = run_rounds(
            [self.client],
            rounds=round + 1,
            start=round,
            exchange=self.sum or self.participant,
            presence=lambda _round: who,
            evaluate=self._evaluate,
            evaluate_now=self._is_judged,
        )
        try:
            for records in rows:
                if self.sum is not None:
                    self._conclude_sums(round)
                self._record(records[0])
        except BudgetExhausted:
            if self.sum is None:
                raise
            # an attempt failed, and the budget does not cover another one
            self._withdraw("budget spent")
            return
        if reason and self.books.position().state == "active":
            # all others have left: there was nobody to hand on to
            self.books.set_state("leaving")

    def _conclude_sums(self, round: int) -> None:
        """Keep what a round of masked sums has given."""
        assert self.sum is not None
        learner = keeping.save(self.folder, self.client, round)
        self.sum.save(round, learner)
        keeping.forget_others(self.folder, learner)
        self.participant.expected = len(self.roster.others())
        self.participant.heard_of = max(0, self.sum.taking_part - 1)

    def _evaluate(
        self, model: torch.nn.Module, client: int, *, last: bool = False, meaning: Meaning = NOTHING
    ) -> Score:
        task = self.roster.current.task
        return evaluate(model, self.data.test, self.site.resources.device, task, meaning)

    def _is_judged(self, round: int) -> bool:
        """Every round; where a model is fitted to be judged, the last and every tenth."""
        if not isinstance(self.client.learner, Fitted):
            return True
        done = round + 1
        is_last = done == self.roster.current.rounds
        return is_last or done % 10 == 0

    def _allowance(self, round: int) -> tuple[int, str]:
        """The steps that the budget covers this round, and why the site must leave, if it must."""
        if round >= self.roster.current.training_rounds:
            return 0, ""
        usual = self.client.steps
        affordable = assembly.affordable_steps(self.client, usual)
        if affordable < usual:
            return affordable, "budget spent"
        return usual, ""

    def _record(self, record: ClientRound) -> None:
        part = self.participant
        row = row_of(self.roster.current.method, record) | {"client": SITE_CLIENT}
        row["heard"] = part.heard_of
        row["asked"] = part.expected
        row["mass_in"] = part.mass_in
        row["mass_out"] = part.mass_out
        row["time"] = round(time.time(), 3)
        self.metrics.append(row)
        agreed = self.roster.current
        line = f"round {record.round + 1} of {agreed.rounds}"
        value = row.get(f"private_{agreed.measure}")
        if value is not None:
            line += f", private {agreed.measure} {value:.3f}"
        missing = part.expected - part.heard_of
        if missing:
            line = Attention(f"{line}; WITHOUT {missing} of {part.expected} senders")
        self.say(line)

    def _conclude_record(self) -> None:
        """Score the end, train the private model alone for comparison, and say what was gained.

        The federation is over for this site: a request to stop leaves out the comparison, and so
        does a model that fails. A site that failed here would be started again and again, which
        its peers see."""
        if not recording.is_concluded(self.folder):
            self.say("scores the final models, and trains the private model alone for comparison")
            self._score_end()
        verdict = recording.verdict(self.folder)
        if verdict is not None:
            self.say(f"{verdict} Next: {command('report', self.folder)}")

    def _score_end(self) -> None:
        try:
            recording.conclude(
                self.folder,
                self.roster.current,
                self.site,
                self.data,
                self.client,
                code_of(self.site, self.folder),
                self.metrics,
                seed=self.seed,
                check=self._check_stop,
            )
        except StopRequested:
            pass
        except Exception as problem:
            if not goes_on(self.client.ledger, problem):
                raise
            warn_of_fault("The end has no score, because a model cannot be evaluated", problem)

    def _check_stop(self) -> None:
        if self.stopping.is_set():
            raise StopRequested("Somebody asked this site to stop.")

    def _resume_exchange(self) -> None:
        """The program stopped after a release: what was trained is kept, the round is finished."""
        here = self.books.position()
        if here.state != "active":
            theta = self.mixer.decode_own(self.books.mass())
            kept = self.participant.withdraw_rest(Mass(theta, float(here.weight)))
            self.client.weight = kept.w
            return
        round = self.books.position().round
        _, mixed = self.participant.finish()
        self.client.weight = 0.0
        if mixed is not None:
            self.client.receive(round, mixed)

    def _catch_up(self) -> None:
        """Continue at the others' round if all who can be reached are ahead of this site."""
        here = self.books.position()
        rounds = []
        for card in self.roster.others():
            peer = self.books.peers.known(card.name)
            if self.exchange.is_admitted(card.name) and peer.state == "active":
                rounds.append(peer.round)
        if rounds and min(rounds) > here.round + 1:
            last = self.roster.current.rounds - 1
            skipped_to = min(*rounds, last)
            self.books.skip_to(skipped_to)
            self.log.add("skipped rounds", first=here.round, last=skipped_to - 1)
            self.say(f"was away: continues at round {skipped_to + 1}")

    def _follow_manifest(self) -> None:
        """Take in a version that the operator accepted meanwhile."""
        if not self.roster.reload():
            return
        manifest = self.roster.current
        acceptance = self.roster.acceptance
        with self.store.reading():  # a hello has all of the new version or nothing
            self.books.version = manifest.version
            self.books.rounds = manifest.rounds
            self.exchange.manifest = manifest.digest
            self.exchange.accepted = acceptance
        self.client.id = manifest.position(self.site.name)
        assembly.follow_tail(self.client, manifest)
        if self.sum is not None:
            self.sum.follow(manifest)
        self._move_key()
        self._write_off()
        members = list(manifest.names())
        self.log.add("manifest", version=manifest.version, members=members)
        for note in notes(manifest):
            self.say(note)
        # Peers on this version wait to hear of it.
        self.courier.say_hello(card.name for card in self.roster.others())

    def _move_key(self) -> None:
        """Put a new key that is in use into its place; the old one is removed."""
        old = self.identity.move()
        if old is not None:
            new = self.identity.fingerprint
            self.log.add("key changed", old=old, new=new)
            self.say(f"its key is {new[:16]}... from now on; the old one is removed")

    def _write_off(self) -> None:
        """Give up what is owed to those who are members no longer."""
        members = set(self.roster.current.names())
        removed = self.books.owed_to() - members
        self.books.write_off(removed)

    def _shared_folder(self) -> Folder | None:
        path = self.site.network.folder
        if not path:
            return None
        return Folder(self.folder / path, largest=2 * self.largest)

    def _optimizers(self) -> Iterator[torch.optim.Optimizer]:
        learner = self.client.learner
        yield learner.trainer.optimizer
        if isinstance(learner, Mutual):
            yield learner.private_optimizer

    def _check_between_steps(self, *_: object) -> None:
        """End the training of a round that a signal has interrupted, unless it ends by itself."""
        now = time.monotonic()
        before, self._last_step = self._last_step, now
        if not self.stopping.is_set():
            return
        if self._stopped_at is None:
            self._stopped_at = now
        if now - min(self._stopped_at, before) > TRAINING_SECONDS:
            raise StopRequested("A signal interrupted the training of this round.")

    def _check_verdicts(self) -> None:
        """Raise RestoredError if a peer has stopped this site and nothing was done about it."""
        members = self.roster.current.names()
        for peer, verdict in self.reasons.every("verdict").items():
            if peer in members:
                self.log.add("does not start", peer=peer, code=verdict.code)
                raise RestoredError(verdict.text)
            self.reasons.clear("verdict", peer=peer)

    def _keep_verdict(self, peer: str, verdict: RestoredError) -> None:
        code = "old-backup" if self.sum is None else "vectors-lost"
        self.reasons.put("verdict", code, str(verdict), peer=peer)

    def _note_lock(self, seconds: float) -> None:
        """Say that another program has locked the store; a request to stop ends the wait."""
        if seconds < LOCK_NOTICE_SECONDS:
            self._is_lock_told = False
        elif not self._is_lock_told:
            self._is_lock_told = True
            text = "Another program has locked the store, perhaps a backup tool: waits for it."
            self.say(Attention(text))
            self.log.add("waiting", code="store-locked", reason=text)
        if self.stopping.is_set():
            raise StopRequested("Somebody asked this site to stop.")


def check_least_peers(site: Site, manifest: Manifest) -> None:
    """Raise ConfigError if the manifest has fewer other members than the site asks for."""
    others = len(manifest.members) - 1
    least = site.network.least_peers
    if others < least:
        raise ConfigError(
            f"network.least_peers is {least}, and the manifest has {others} other members. Add "
            f"members ({command('federation', 'add', 'DIR', 'CARD')}), or lower it in site.toml. "
            "With 0 this site trains alone."
        )
