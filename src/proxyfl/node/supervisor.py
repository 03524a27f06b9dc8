"""A running site: one round after the other, whoever else is there.

A round is that of ``federation.rounds.run_rounds``; the node supplies the exchange
(``participation``). Guarantees:
    * a round's charge is in the ledger before its first step;
    * after a crash the site continues where it was: a round that was released is not trained again;
    * a site whose budget does not cover a whole round takes the steps that it covers, hands its
      mass on and keeps its private model, whatever peers or changed settings say;
    * a site that its peers have seen further than it knows itself stops before it sends anything.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from proxyfl import params
from proxyfl.errors import ConfigError
from proxyfl.federation.home.fitted import Fitted
from proxyfl.federation.membership import Presence
from proxyfl.federation.metrics import Score, evaluate
from proxyfl.federation.rounds import ClientRound, run_rounds
from proxyfl.gossip.pushsum import Mass
from proxyfl.node import assembly, keeping
from proxyfl.node.defence import Guard
from proxyfl.node.ending import Ending
from proxyfl.node.exchange.books import Books
from proxyfl.node.exchange.courier import Courier
from proxyfl.node.exchange.protocol import Exchange
from proxyfl.node.exchange.service import Service
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.store import Store, locked
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.roster import Roster
from proxyfl.node.members.site import Site
from proxyfl.node.mixing import Mixer, Proxy
from proxyfl.node.observe import status
from proxyfl.node.observe.auditlog import FILE as AUDIT_FILE
from proxyfl.node.observe.auditlog import AuditLog
from proxyfl.node.participation import Participant
from proxyfl.records.row import row_of
from proxyfl.transport.files import Folder
from proxyfl.transport.memory import MemoryTransport

STOP_FILE = "stop.request"
LEAVE_FILE = "leave.request"
FRAME_OVERHEAD = 1 << 16
MEET_SECONDS = 5.0


class Node:
    """One site at work. Use it as a context manager; ``run`` returns why it ended."""

    def __init__(
        self,
        site: Site,
        folder: Path,
        *,
        seed: int | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.site = site
        self.folder = folder
        self.say = say
        self.seed = seed
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(locked(folder))
        torch.set_num_threads(site.resources.threads)
        self.identity = Identity(folder, site.name)
        self.roster = Roster(folder, self.identity)
        manifest = self.roster.current
        self.data = assembly.load(manifest, site, folder)
        self.client = assembly.client(
            manifest,
            site,
            self.data.train,
            ledger=folder / assembly.LEDGER_FILE,
            seed=seed,
            account=self.data.account,
        )
        self.log = AuditLog(folder / AUDIT_FILE)
        self.store = Store(folder / STORE_FILE)
        self._stack.callback(self.store.close)
        self.books = Books(
            self.store,
            federation=manifest.federation,
            me=site.name,
            version=manifest.version,
            rounds=manifest.rounds,
        )
        shared = self.client.learner.shared
        proxy = Proxy(params.fingerprint(shared), params.size(shared))
        self.mixer = Mixer(self.roster, site.name, proxy)
        self.exchange = Exchange(self.books, self.mixer.check)
        self.service = Service(self.identity, self.roster, self.exchange, self.log)
        self.largest = 4 * proxy.size + FRAME_OVERHEAD
        self.courier = Courier(
            self.service,
            largest=self.largest,
            heartbeat=site.network.heartbeat,
            timeout=site.network.timeout,
            folder=self._shared_folder(),
        )
        rule = site.defence
        guard = Guard(rule.rule, rule.radius, rule.most_weight)
        self.participant = Participant(
            self.client,
            self.exchange,
            self.mixer,
            self.courier,
            self.log,
            folder,
            patience=site.network.patience,
            guard=guard,
        )
        self.stopping = threading.Event()
        self.ending = Ending(self.participant, self.service, self.stopping)

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: object) -> None:
        self.courier.stop()
        self._stack.close()

    def run(self) -> str:
        """Take part until the end; return why it ended: finished, left, or stopped."""
        self._start()
        self.courier.start()
        self._meet()
        if self.books.position().phase == "released":
            self._resume_exchange()
        while True:
            self.service.check_behind()
            self._follow_manifest()
            here = self.books.position()
            if here.state != "active":
                self.ending.drain()
                (self.folder / LEAVE_FILE).unlink(missing_ok=True)
                return "left"
            agreed = self.roster.current
            is_over = agreed.is_over(time.time())
            if is_over or here.round >= agreed.rounds:
                self.ending.finish()
                return "finished"
            if self._asked(STOP_FILE) or self.stopping.is_set():
                self.participant.await_settlement()
                self.log.add("stopped", round=here.round)
                return "stopped"
            self._catch_up()
            self._round(self.books.position().round)

    def status(self) -> dict[str, Any]:
        """The status that the page shows."""
        return status.of_folder(
            self.site, self.folder, service=self.service, running=True
        )

    def begin_again(self, round: int) -> int:
        """After a restore from an old backup: charge the rounds that were forgotten, and continue
        without mass. Returns how many rounds were charged.

        What was released since the backup cannot be taken back, so its cost is put on the ledger as
        if every round had been trained in full. A site that has begun again before charges from
        that round on: the peer that stops it now has seen more of the time before."""
        last = self.roster.current.rounds
        if not 0 <= round <= last:
            raise ConfigError(
                f"Expected a round from 0 to {last}, got {round}. Take the largest that a peer "
                "named; the audit log says which peer that was."
            )
        self.books.start()
        here = self.books.position()
        rejoined = self.books.stamp().epoch > 0
        first = here.since if rejoined else here.round
        forgotten = range(first, round)
        for number in forgotten:
            assembly.charge_in_full(self.client, number)
        self.books.begin_again(round=round)
        self.log.add("began again", round=round, charged=len(forgotten))
        return len(forgotten)

    def _start(self) -> None:
        manifest = self.roster.current
        own = manifest.member(self.site.name)
        self.books.start(round=own.joins)
        self.exchange.manifest = manifest.digest
        self.exchange.accepted = self.roster.acceptance
        # A version may have been accepted while the site was stopped.
        self._write_off()
        keeping.check_budget(self.store, self.site.privacy.budget)
        keeping.check_ledger(self.store, self.client.ledger)
        here = self.books.position()
        done = -1
        if here.learner:
            done = keeping.restore(self.folder, self.client, here.learner)
        self.client.weight = float(here.weight)
        mass = self.books.mass()
        if here.phase == "ready" and mass:
            theta = self.mixer.kept(mass)
            self.client.receive(done, Mass(theta, float(here.weight)))
        network = self.site.network
        if network.listen and not network.folder:
            self._listen()
        self.log.add("started", round=here.round, version=manifest.version)

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
            refused=self.service.refused,
        )
        self._stack.callback(server.stop)

    def _meet(self) -> None:
        """Say hello to all, so that a peer that knows more of this site can say so."""
        names = [card.name for card in self.roster.others()]
        self.courier.say_hello(names)
        seconds = min(MEET_SECONDS, self.site.network.patience)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.service.check_behind()
            if all(self.exchange.admitted(name) for name in names):
                return
            self.exchange.wait(0.2)

    def _round(self, round: int) -> None:
        steps, reason = self._allowance(round)
        if self._asked(LEAVE_FILE):
            reason = "asked to leave"
        left = self.participant.left()
        members = self.roster.current.members
        present = []
        for at, card in enumerate(members):
            if card.name not in left:
                present.append(at)
        me = self.client.id
        leaving = {me: reason} if reason else {}
        who = Presence(tuple(present), len(members), leaving, {me: steps})
        # the round loop wants one; the participant moves the mass
        transport = MemoryTransport()
        rows = run_rounds(
            [self.client],
            rounds=round + 1,
            start=round,
            exchange=self.participant,
            transport=transport,
            presence=lambda _round: who,
            evaluate=self._evaluate,
            evaluate_now=self._is_judged,
        )
        for records in rows:
            self._record(records[0])

    def _evaluate(
        self, model: torch.nn.Module, client: int, *, last: bool = False
    ) -> Score:
        return evaluate(model, self.data.test, self.site.resources.device)

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
        row = row_of("proxyfl", record)
        row["heard"] = part.heard_of
        row["asked"] = part.expected
        row["mass_in"] = part.mass_in
        row["mass_out"] = part.mass_out
        row["time"] = round(time.time(), 3)
        metrics = self.folder / status.METRICS_FILE
        with metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        agreed = self.roster.current
        line = f"round {record.round + 1} of {agreed.rounds}"
        value = row.get(f"private_{agreed.measure}")
        if value is not None:
            line += f", private {agreed.measure} {value:.3f}"
        missing = part.expected - part.heard_of
        if missing:
            line += f"; WITHOUT {missing} of {part.expected} senders"
        self.say(line)

    def _resume_exchange(self) -> None:
        """The program stopped after a release: what was trained is kept, the round is finished."""
        if self.books.position().state != "active":
            self.books.conclude([], b"")
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
            if self.exchange.admitted(card.name) and peer.state == "active":
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
        self._write_off()
        members = list(manifest.names())
        self.log.add("manifest", version=manifest.version, members=members)

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

    def _asked(self, file: str) -> bool:
        path = self.folder / file
        found = path.exists()
        if found and file == STOP_FILE:
            path.unlink()
        return found
