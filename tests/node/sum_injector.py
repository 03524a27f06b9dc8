"""The fault injector on six real sites that add up.

    python -m tests.node.sum_injector --seeds 0-9 --out experiments/results/node/sum-schedules.json

Faults, links, clocks, disks and operators are those of ``injector``. One proxy is trained by masked
sums, so nothing has weight. When all faults are over it waits for the end, and checks:

    * every site ends by itself, with the same proxy, to the last bit, after all steps;
    * no site sent two vectors for one ballot, whichever copies of it ran;
    * every ledger covers every vector that left its site, those of copies that were put back or
      cloned included;
    * a site that was put back from a backup, or cloned, and whose ledger lacks a charge, does not
      go on: it is stopped by a peer, and the others end without it;
    * audit logs and ledgers can be read, and no line of a log was lost.

The command takes the options of ``injector``; run again, it goes on with what the file lacks."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from proxyfl.node import assembly, trial
from proxyfl.node.exchange import auditlog
from proxyfl.node.members.manifest import Graph, Masked
from proxyfl.privacy.ledger import Ledger

from . import injector
from .accounting import Balance, Body
from .injector import ENDS, SITES, Fault, Injector, Member, draw, possible_kinds
from .test_sums import record_of, shared_proxy

QUORUM = 4
STEPS = 4
"""Steps of a round: a backup may be made between two vectors of one round."""
TERMS = Masked(1, QUORUM, steps=STEPS, noise_multiplier=60.0, learning_rate=0.05)
ONCE = ("restore", "clone")
"""Faults that may cost the federation a member for good; the quorum bears two."""
STOPPED = "stopped by a peer"


@dataclass
class SumOutcome:
    """What one schedule came to."""

    seed: int
    faults: int
    kinds: dict[str, int]
    seconds: float
    steps: int
    vectors: int
    charges: int
    starts: int
    stopped: int
    slowest_stop: float


class Weightless(Balance):
    """The balance of a federation in which nothing is handed on."""

    def check(self, bodies: Sequence[Body]) -> None:
        """Nothing that is sent has weight."""
        assert not any(body.outbox for body in bodies)

    def replace(self, before: Sequence[Body], after: Sequence[Body]) -> None:
        """Another copy weighs nothing either."""


def draw_sums(seed: int) -> list[Fault]:
    """The schedule of a seed: each kind of fault once, and two more that cost no member."""
    kinds = [kind for kind in possible_kinds() if kind != "manifest"]
    faults = draw(seed, kinds, extra=2)
    seen: Counter[str] = Counter()
    drawn = []
    for fault in faults:
        seen[fault.kind] += 1
        if fault.kind in ONCE and seen[fault.kind] > 1:
            fault = replace(fault, kind="kill", how="")
        if fault.how == "by command":
            # Such a site asks all members first. A clone's, which is gone for good, would have to
            # be removed from the manifest.
            fault = replace(fault, how="")
        drawn.append(fault)
    return drawn


class SumInjector(Injector):
    """Runs one schedule on a federation whose sites add up."""

    command = "tests.node.sum_injector"
    patience = 20.0  # a site below the quorum for longer ends, and its operator runs it again

    def __init__(self, folder: Path, seed: int, faults: Sequence[Fault]) -> None:
        super().__init__(folder, seed, faults)
        self.balance = Weightless(SITES)
        self.sent: dict[str, list[set[tuple[int, int]]]] = {}
        """The vectors that copies of a site had sent before they were replaced, by site."""

    def _agree(self, layout: trial.Layout) -> trial.Layout:
        return trial.accept_everywhere(layout, replace(layout.manifest, graph=Graph(masked=TERMS)))

    def _end_program(self, member: Member) -> None:
        super()._end_program(member)
        self.sent.setdefault(member.name, []).append(vectors_of(member.place))

    def _follow(self, member: Member) -> None:
        """A site that ended below the quorum says what its operator has to do: run it again."""
        if member.exit in ENDS and record_of(member.place).step < self._all_steps():
            self.note(f"{member.name} is run again")
            member.start_at = time.monotonic() + 1.0
        else:
            super()._follow(member)

    def _all_steps(self) -> int:
        return self.versions[-1].rounds * STEPS

    def _rejoin(self, member: Member) -> None:
        """A site that has forgotten what it sent stays stopped."""
        self.note(f"{member.name} has been stopped")
        copies = [label for label in self._copies(member.name) if label.exists()]
        put_back = any(body.name == member.name for body in self.aside)
        assert copies or put_back, f"{member.name} was stopped, and there is no other copy of it"
        member.ended = STOPPED

    def _copies(self, name: str) -> list[Path]:
        return sorted(self.folder.glob(f"clone-*-{name}/{name}"))

    def _judge(self) -> None:
        ended = [member for member in self.members if member.ended != STOPPED]
        assert len(ended) >= QUORUM, "too few are left"
        first = ended[0].place
        for member in self.members:
            steps = Ledger.read(member.place / assembly.LEDGER_FILE).steps
            copies = [*self.sent.get(member.name, []), vectors_of(member.place)]
            copies += [vectors_of(place) for place in self._copies(member.name)]
            broken = auditlog.verify(member.place / auditlog.FILE)
            assert broken is None, f"the audit log of {member.name} breaks at line {broken}"
            if member.ended == STOPPED:
                continue
            left = set().union(*copies)
            assert steps >= len(left), (
                f"the ledger of {member.name} has {steps} steps, and {len(left)} vectors left it"
            )
            assert record_of(member.place).step == self._all_steps(), member.name
            assert torch.equal(shared_proxy(member.place), shared_proxy(first)), member.name
        self.furthest = record_of(first).step

    def _outcome(self) -> SumOutcome:
        ended = [member for member in self.members if member.ended != STOPPED]
        ledgers = [Ledger.read(member.place / assembly.LEDGER_FILE) for member in ended]
        return SumOutcome(
            self.seed,
            len(self.faults),
            dict(Counter(fault.kind for fault in self.faults)),
            round(time.monotonic() - self.started, 1),
            self.furthest,
            sum(len(vectors_of(member.place)) for member in ended),
            sum(ledger.steps for ledger in ledgers),
            sum(member.starts for member in self.members),
            SITES - len(ended),
            round(self.slowest_stop, 1),
        )


def vectors_of(place: Path) -> set[tuple[int, int]]:
    """(step, ballot) of the vectors that a site's log says it was about to send; AssertionError if
    two are of one ballot."""
    found = set()
    entries = []
    with contextlib.suppress(FileNotFoundError):
        entries = auditlog.read(place / auditlog.FILE)
    for entry in entries:
        if entry["event"] == "sent a vector":
            key = (entry["step"], entry["ballot"])
            assert key not in found, f"{place.name} sent two vectors under {key}"
            found.add(key)
    return found


def run(folder: Path, seed: int, *, short: bool = False, verbose: bool = False) -> SumOutcome:
    """Run the schedule of a seed in ``folder``; a ``short`` one has no wrong clock."""
    faults = draw_sums(seed)
    if short:
        faults = [fault for fault in faults if fault.kind != "clock"]
    made = SumInjector(folder, seed, faults)
    made.how = " --short" if short else ""
    made.verbose = verbose
    outcome: SumOutcome = made.run()
    return outcome


if __name__ == "__main__":
    sys.exit(injector.main(run, "0-9"))
