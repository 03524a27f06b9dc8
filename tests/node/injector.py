"""A fault injector: six real sites, and a schedule of faults that a seed draws.

The sites are processes that run `proxyfl node run` over mutual TLS on loopback. The injector plays
everything around them: the network (``links``), the disk, the clock, the service manager that
starts a failed site again, and the operator who restores a backup, accepts a manifest and follows
what a stopped site says. When all faults are over it waits for the end, and checks:

    * every site ends by itself, within ``END_SECONDS``;
    * the weights in all stores add up exactly (``accounting``), at the end and in between, whenever
      the injector makes all sites stand still;
    * in the end there is no more weight, less debts, than sites;
    * a site that was put back from a backup which lacks a release that peers saw is told so;
    * every ledger has at least the steps of what peers have stored from the site;
    * after the last fault every site is taken in again: a peer stores a share of it, and it stores
      a peer's;
    * audit logs, metrics and ledgers can be read, and no line of a log was lost.

Run one schedule again, or several:

    python -m tests.node.injector --seed 7
    python -m tests.node.injector --seeds 0-29 --out experiments/results/node/schedules.json

The file grows with every schedule that holds; run again, the command goes on with those that are
not in it.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import multiprocessing.process
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proxyfl.errors import RunError
from proxyfl.node import assembly, trial
from proxyfl.node.exchange import auditlog
from proxyfl.node.exits import STOPPED_BY_PEER, End, exit_code
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import roster
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.site import Site
from proxyfl.node.observe import status
from proxyfl.privacy.ledger import Ledger

from . import accounting
from .accounting import Balance, Body
from .federations import change, forked_command, quick
from .links import LOOPBACK, Links, Pair, State

SITES = 6
ROUNDS = 5000
"""More than any schedule reaches: the last version of the manifest says where it ends."""
LAST_ROUNDS = 12
"""Rounds that are left when all faults are over, if all sites are in the same round."""
STEPS = 2
"""Steps of a site in one round."""
START_SECONDS = 240.0
END_SECONDS = 480.0
FAULT_SECONDS = 20.0
"""Faults begin within these seconds."""
MOST_STARTS = 60
DISK_BYTES = 16 << 20
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
BALLAST = "ballast"
REJOIN = re.compile(r"`proxyfl (node rejoin [^`]*)`")
"""The command that a stopped site asks for."""
RECORDED = re.compile(r": round \d+ of ")
"""What a site says at the end of a round."""

ENDS = {exit_code(end): str(end) for end in (End.FINISHED, End.LEFT, End.SPENT)}
"""The exit codes after which a service manager does not start a site again."""

KINDS = (
    "kill",
    "terminate",
    "hang",
    "cut",
    "clock",
    "disk",
    "restore",
    "clone",
    "manifest",
    "loop",
)


@dataclass(frozen=True)
class Fault:
    """One fault: it begins ``at`` seconds, or when its victim is free, and lasts ``seconds``."""

    at: float
    kind: str
    victim: int
    seconds: float
    how: str = ""
    other: int = 0
    delays: tuple[float, ...] = ()

    def __str__(self) -> str:
        about = f" {self.how}" if self.how else ""
        if self.kind == "cut":
            about += f" to {trial.name_of(self.other)}"
        victim = trial.name_of(self.victim)
        return f"{self.at:5.1f} s: {self.kind}{about} at {victim}, {self.seconds:.1f} s"


def draw(
    seed: int, kinds: Sequence[str] = KINDS, *, extra: int = 2, span: float = FAULT_SECONDS
) -> list[Fault]:
    """The schedule of a seed: each of ``kinds`` once, and ``extra`` more; in order of time. They
    begin within ``span`` seconds."""
    generator = random.Random(seed)
    often = [kind for kind in kinds if kind not in ("manifest", "clock")]
    chosen = [*kinds, *generator.choices(often, k=extra)]
    faults = []
    for kind in chosen:
        at = generator.uniform(0, span)
        victim, other = generator.sample(range(SITES), 2)
        seconds = generator.uniform(1, 6)
        how = ""
        delays = tuple(generator.uniform(0, 4) for _ in range(SITES))
        if kind == "cut":
            how = generator.choice(["refuses", "is silent", "is slow", "refuses one way"])
        elif kind == "clock":
            how = generator.choice(["+400d", "-400d", "+30m", "-2h"])
            seconds += 3
        elif kind == "restore":
            how = generator.choice(["", "unwitnessed", "by command"])
        elif kind == "clone":
            how = generator.choice(["on the same port", "elsewhere"])
        elif kind == "manifest":
            how = generator.choice(["extend", "remove", "join"])
        elif kind == "loop":
            delays = tuple(generator.choice([0.1, 0.4, 0.8, 1.5]) for _ in range(4))
        faults.append(Fault(at, kind, victim, seconds, how, other, delays))
    return sorted(faults, key=lambda fault: fault.at)


def draw_short(seed: int) -> list[Fault]:
    """Nine faults within a few seconds; no wrong clock, since a program under one starts slowly."""
    kinds = [kind for kind in KINDS if kind != "clock"]
    return draw(seed, kinds, extra=0, span=6.0)


class Program:
    """A process of a site: forked, or started under another clock."""

    def __init__(
        self, process: multiprocessing.process.BaseProcess | subprocess.Popen[bytes]
    ) -> None:
        self._process = process
        self.pid = int(process.pid or 0)
        self.since = time.monotonic()

    @property
    def code(self) -> int | None:
        """The exit code; None while the process runs."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll()
        return self._process.exitcode

    def signal(self, number: int) -> None:
        """Send a signal, if the process is still there."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait."""
        self.signal(signal.SIGKILL)
        if isinstance(self._process, subprocess.Popen):
            self._process.wait()
        else:
            self._process.join()

    def is_still(self) -> bool:
        """True if every thread of the process is stopped, or the process has ended."""
        if self.code is not None:
            return True
        try:
            threads = list(Path(f"/proc/{self.pid}/task").iterdir())
            states = [(t / "stat").read_text().rpartition(")")[2].split()[0] for t in threads]
        except OSError:
            return True
        return all(state in "TtZX" for state in states)


@dataclass
class Member:
    """One site as its operator and its service manager see it."""

    name: str
    place: Path
    log: Path
    program: Program | None = None
    command: Program | None = None
    """An operator's command that runs instead of the site."""
    start_at: float | None = None
    """When the service manager starts it (again)."""
    fault: Fault | None = None
    """The fault that has hold of it."""
    hung: bool = False
    asked_to_stop: float | None = None
    wrong_clock: Path | None = None
    """The file that says how wrong its clock is."""
    changes: int = 0
    """The changes of its store before the program was last started."""
    ended: str = ""
    exit: int | None = None
    """The exit code of the last program that ended by itself."""
    removed: bool = False
    starts: int = 0
    rejoins: int = 0
    rejoins_due: int = 0
    """How often it must have been told so, after a backup that lacks a release that peers saw."""
    version: int = 1
    """How many versions of the manifest its operator has accepted."""
    before: Body | None = None
    """Its store before it began again."""
    marks: int = 0
    """The length of the log when the program was last started."""

    @property
    def said(self) -> str:
        """What the program has said since its last start."""
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[self.marks :].decode(errors="replace")


@dataclass
class Outcome:
    """What one schedule came to."""

    seed: int
    faults: int
    kinds: dict[str, int]
    seconds: float
    rounds: int
    starts: int
    rejoins: int
    weight: str
    lost: str
    stopped_clones: int
    slowest_stop: float


@functools.cache
def can_mount() -> bool:
    """True if this process may mount a small disk for each site."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as scratch:
        if subprocess.run(_mount(Path(scratch)), capture_output=True).returncode:
            return False
        subprocess.run(["umount", scratch], check=True)
    return True


def _mount(place: Path) -> list[str]:
    size = f"size={DISK_BYTES},mode=0700"
    return ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)]


def possible_kinds() -> tuple[str, ...]:
    """The kinds of faults that this machine can have."""
    return tuple(kind for kind in KINDS if kind != "clock" or FAKETIME.exists())


class Injector:
    """Runs one schedule on a federation in ``folder``."""

    command = "tests.node.injector"
    """What repeats a schedule."""
    patience = 3.0
    """The seconds that a site waits for others."""

    def __init__(self, folder: Path, seed: int, faults: Sequence[Fault]) -> None:
        self.folder = folder
        self.seed = seed
        self.faults = list(faults)
        self.generator = random.Random(seed + 1_000_000)
        self.events: list[str] = []
        self.started = time.monotonic()
        self.balance = Balance(SITES)
        self.aside: list[Body] = []
        """Stores that were replaced, and those of clones: peers' evidence is in them as well."""
        self.clones: dict[str, tuple[Member, float]] = {}
        self.todo: list[tuple[float, Callable[[], None]]] = []
        """(when, what), for the tick loop."""
        self.copies = 0
        self.slowest_stop = 0.0
        self.stopped_clones = 0
        self.how = ""
        """The options that draw this schedule, other than its seed."""
        self.verbose = False
        self.furthest = 0
        self.members: list[Member] = []
        self.latecomer: Member | None = None
        """The site that joins later, until it does."""
        self.versions: list[manifests.Manifest] = []
        self.stack = contextlib.ExitStack()

    # --- the federation

    def lay_out(self) -> None:
        """Make six sites behind relays, each on a small disk where possible."""
        ports = trial.free_ports(2 * SITES)
        names = [trial.name_of(at) for at in range(SITES)]
        if can_mount():
            for name in names:
                place = self.folder / name
                place.mkdir()
                subprocess.run(_mount(place), check=True)
                self.stack.callback(subprocess.run, ["umount", "-l", str(place)], check=True)
        template = quick(patience=self.patience, heartbeat=0.5, timeout=4.0)
        layout = trial.lay_out(
            self.folder,
            sites=SITES,
            rounds=ROUNDS,
            template=template,
            addresses=[f"{LOOPBACK}:{port}" for port in ports[:SITES]],
        )
        logs = self.folder / "logs"
        logs.mkdir()
        behind = {}
        layout = self._agree(layout)
        for at, place in enumerate(layout.sites):
            listen = f"{LOOPBACK}:{ports[SITES + at]}"
            change(place, lambda site, listen=listen: _listening(site, listen))  # type: ignore[misc]
            behind[place.name] = (ports[at], ports[SITES + at])
            self.members.append(Member(place.name, place, logs / f"{place.name}.log"))
        first = layout.manifest
        joining = [fault.victim for fault in self.faults if fault.how == "join"]
        if joining:
            self.latecomer = self.members[joining[0]]
            self.card = first.member(self.latecomer.name)
            shutil.rmtree(self.latecomer.place / roster.FOLDER)
            present = [card for card in first.members if card != self.card]
            places = [place for place in layout.sites if place.name != self.latecomer.name]
            first = replace(first, members=tuple(present))
            trial.accept_everywhere(replace(layout, sites=tuple(places)), first)
        self.versions.append(first)
        self.links = self.stack.enter_context(Links(behind))

    def _agree(self, layout: trial.Layout) -> trial.Layout:
        """The layout with the terms that its members exchange by."""
        return layout

    def run(self) -> Any:
        """Run the schedule to its end; AssertionError says what did not hold, and how to repeat
        it."""
        try:
            self.lay_out()
            self._play()
            return self._outcome()
        except AssertionError as error:
            report = self.report(str(error))
            for member in self.members if can_mount() else ():
                shutil.copytree(member.place, self.folder / "failed" / member.name)
            raise AssertionError(report) from error
        finally:
            self._clean_up()

    def report(self, reason: str) -> str:
        """What failed, the schedule, what happened, and the end of each site's log."""
        if not self.members:
            return reason
        lines = [
            reason,
            f"repeat: python -m {self.command} --seed {self.seed}{self.how}",
            "schedule:",
            *(f"  {fault}" for fault in self.faults),
            "what happened:",
            *(f"  {event}" for event in self.events),
        ]
        for member in self.members:
            text = member.log.read_text(errors="replace") if member.log.exists() else ""
            lines += [f"--- {member.log}", *text.splitlines()[-25:]]
        return "\n".join(lines)

    def note(self, text: str) -> None:
        """Put on record what happens."""
        self.events.append(f"{time.monotonic() - self.started:6.1f} s  {text}")
        if self.verbose:
            print(self.events[-1], flush=True)

    def _play(self) -> None:
        for member in self.members:
            if member is not self.latecomer:
                self._start(member)
        self._until(self._all_at_work, START_SECONDS, "all sites are at work")
        self.began = time.monotonic()
        self.note(f"all at work; {len(self.faults)} faults")
        waiting = list(self.faults)

        def over() -> bool:
            now = time.monotonic() - self.began
            for fault in list(waiting):
                if fault.at > now:
                    break
                if self._begin(fault):
                    waiting.remove(fault)
            idle = not waiting and not self.todo and not self.clones and not self._held()
            return idle and all(self._takes_part(m) for m in self.members if not m.ended)

        self._until(over, START_SECONDS + 10 * FAULT_SECONDS, "all faults are over")
        self._heal()
        self._until(self._all_taken_in, END_SECONDS, "every site is taken in again")
        self._set_end()
        self._until(self._all_ended, END_SECONDS, "every site ends")
        self._judge()

    def _all_at_work(self) -> bool:
        return all(
            len(status.rows(member.place)) >= 1
            for member in self.members
            if member is not self.latecomer
        )

    def _held(self) -> bool:
        return any(m.fault is not None or m.command is not None for m in self.members)

    def _all_ended(self) -> bool:
        return all(member.ended for member in self.members)

    def _until(self, true: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self._tick()
            if true():
                return
            if time.monotonic() > deadline:
                states = {m.name: m.ended or _standing(m) for m in self.members}
                raise AssertionError(f"not within {seconds:.0f} s: {what}; {states}")
            time.sleep(0.03)

    # --- what a service manager and an operator do

    def _start(self, member: Member) -> None:
        member.starts += 1
        assert member.starts <= MOST_STARTS, f"{member.name} was started {member.starts} times"
        member.start_at = None
        member.marks = member.log.stat().st_size if member.log.exists() else 0
        member.hung = False
        member.asked_to_stop = None
        member.changes = accounting.read(member.name, member.place).clock
        words = ("node", "run", str(member.place), "--no-status-page")
        if member.wrong_clock is None:
            member.program = Program(forked_command(*words, log=member.log))
        else:
            settings = {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(member.wrong_clock),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
            with member.log.open("ab") as log:
                started = subprocess.Popen(
                    [sys.executable, "-m", "proxyfl.cli.main", *words],
                    env={**os.environ, **settings},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            member.program = Program(started)
        self.links.own(member.program.pid, member.name)

    def _tick(self) -> None:
        now = time.monotonic()
        for when, action in list(self.todo):
            if now >= when:
                self.todo.remove((when, action))
                action()
        for member in self.members:
            if member.command is not None and member.command.code is not None:
                self._after_command(member)
            elif member.program is not None and member.program.code is not None:
                self._after_exit(member)
            if member.start_at is not None and now >= member.start_at:
                self._start(member)
        for name, (clone, until) in list(self.clones.items()):
            self._watch_clone(name, clone, until)

    def _after_exit(self, member: Member) -> None:
        """A site's program has ended: by itself, or by what the injector did."""
        assert member.program is not None
        code = member.exit = member.program.code
        member.program = None
        if member.asked_to_stop is not None:
            taken = time.monotonic() - member.asked_to_stop
            self.slowest_stop = max(self.slowest_stop, taken)
            self.note(f"{member.name} stopped after {taken:.1f} s, exit {code}")
        else:
            self.note(f"{member.name} ended, exit {code}: {_last_line(member)}")
        if member.fault is None or member.fault.kind == "disk":
            self._follow(member)

    def _follow(self, member: Member) -> None:
        """Do what a service manager and an operator do about a site that has ended."""
        if member.removed:
            member.ended = "removed"
        elif member.exit == STOPPED_BY_PEER:
            self._rejoin(member)
        elif member.exit in ENDS:
            member.ended = ENDS[member.exit]
        else:
            member.start_at = time.monotonic() + 1.0

    def _rejoin(self, member: Member) -> None:
        """Run the command that the stopped site asks for."""
        member.rejoins += 1
        assert member.rejoins <= 10, f"{member.name} was told to rejoin {member.rejoins} times"
        asked = REJOIN.search(member.said)
        assert asked, f"{member.name} was stopped by a peer and does not say what to do"
        self.note(f"{member.name} is told to rejoin")
        member.before = accounting.read(member.name, member.place)
        words = shlex.split(asked[1])
        member.marks = member.log.stat().st_size
        member.command = Program(forked_command(*words, log=member.log))
        self.links.own(member.command.pid, member.name)

    def _after_command(self, member: Member) -> None:
        assert member.command is not None
        assert member.before is not None
        code = member.command.code
        member.command = None
        self.note(f"{member.name} rejoins, exit {code}: {_last_line(member)}")
        if code != 0 and member.fault is not None:  # a full disk
            member.start_at = time.monotonic() + 1.0
            return
        assert code == 0, f"{member.name} cannot rejoin: {member.said}"
        with self._standing_still(check=False) as bodies:
            began = bodies[member.name]
            before = {**bodies, member.name: member.before}
            after = {**bodies, member.name: began.without_mass()}
            self.balance.replace(list(before.values()), list(after.values()))
            self.balance.check(list(bodies.values()))
        self.aside.append(member.before)
        member.start_at = time.monotonic()

    def _release(self, member: Member) -> None:
        """A fault lets go of its victim."""
        member.fault = None
        if member.program is None and member.start_at is None:
            self._follow(member)

    def _accept(self, member: Member, version: int) -> None:
        """Accept all versions up to ``version`` that the site does not have; later, if it cannot
        now."""
        try:
            for manifest in self.versions[:version]:
                if manifest.version <= _accepted(member) or member.name not in manifest.names():
                    continue
                roster.accept(member.place, Identity(member.place, member.name), manifest)
                self.note(f"{member.name} accepts version {manifest.version}")
            member.version = version
        except (OSError, RunError) as error:
            self.note(f"{member.name} cannot accept: {error}")
            self._later(1.0, lambda: self._accept(member, version))

    def _is_at_work(self, member: Member) -> bool:
        """True if the program has begun: each start is a change of the store."""
        if member.program is None:
            return False
        return accounting.read(member.name, member.place).clock > member.changes

    def _takes_part(self, member: Member) -> bool:
        """True if the program has recorded two rounds since its start.

        One may be the round that was released before; the site then has begun another, and so
        knows which round the others are in. Otherwise a site that is slow to start could meet the
        others when they have finished, with nobody left to take it in."""
        return member.program is not None and len(RECORDED.findall(member.said)) >= 2

    def _when_at_work(self, member: Member, action: Callable[[], None]) -> None:
        """Do something once the site has begun, or has ended."""
        if member.program is None or self._is_at_work(member):
            action()
        else:
            self._later(0.3, lambda: self._when_at_work(member, action))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self.todo.append((time.monotonic() + seconds, action))

    # --- what happens to a site

    def _begin(self, fault: Fault) -> bool:
        """Begin a fault; False if its victim is not free for it now."""
        if fault.kind == "cut":
            return self._cut(fault)
        if fault.kind == "manifest":
            return self._change_manifest(fault)
        victims = [member for member in self.members if not member.removed and not member.ended]
        victims = [member for member in victims if member is not self.latecomer]
        member = self.members[fault.victim]
        if member not in victims:
            member = victims[fault.victim % len(victims)]
        if member.fault is not None or member.program is None or member.program.code is not None:
            return False
        member.fault = fault
        self.note(f"{fault.kind} {fault.how} at {member.name}".replace("  ", " "))
        getattr(self, f"_{fault.kind}")(fault, member)
        return True

    def _kill(self, fault: Fault, member: Member) -> None:
        self._end_program(member)
        self._start_later(member, fault.seconds)

    def _start_later(self, member: Member, seconds: float) -> None:
        def start() -> None:
            member.start_at = time.monotonic()
            self._release(member)

        self._later(seconds, start)

    def _end_program(self, member: Member) -> None:
        if member.program is not None:
            member.program.kill()
            member.program = None
            member.hung = False

    def _terminate(self, fault: Fault, member: Member) -> None:
        assert member.program is not None
        member.asked_to_stop = time.monotonic()
        member.program.signal(signal.SIGTERM)

        def look() -> None:
            if member.program is None:
                self._start_later(member, fault.seconds)
                return
            assert member.asked_to_stop is not None
            waited = time.monotonic() - member.asked_to_stop
            assert waited < 90, f"{member.name} does not stop on SIGTERM"
            self._later(0.1, look)

        look()

    def _hang(self, fault: Fault, member: Member) -> None:
        assert member.program is not None
        member.hung = True
        member.program.signal(signal.SIGSTOP)

        def wake() -> None:
            member.hung = False
            if member.program is not None:
                member.program.signal(signal.SIGCONT)
            self._release(member)

        self._later(fault.seconds, wake)

    def _cut(self, fault: Fault) -> bool:
        name, other = (self.members[at].name for at in (fault.victim, fault.other))
        pairs: list[Pair] = [(name, other), (other, name)]
        state = fault.how
        if state == "refuses one way":
            pairs, state = pairs[:1], "refuses"
        self.note(f"the link of {name} and {other} {fault.how}")
        self.links.set(_state(state), pairs)

        def heal() -> None:
            self.note(f"the link of {name} and {other} works")
            self.links.set("works", pairs)

        self._later(2 * fault.seconds, heal)
        return True

    def _clock(self, fault: Fault, member: Member) -> None:
        self._end_program(member)
        clock = self.folder / f"clock-{member.name}-{member.starts}"
        clock.write_text(fault.how + "\n")
        member.wrong_clock = clock
        self._start(member)

        def correct() -> None:
            self.note(f"the clock of {member.name} is right")
            clock.write_text("+0\n")
            member.wrong_clock = None
            self._release(member)

        self._when_at_work(member, lambda: self._later(fault.seconds, correct))

    def _disk(self, fault: Fault, member: Member) -> None:
        """The disk is full, or nearly; a site that ends on it is started again and again."""
        assert member.program is not None
        spare = self.generator.choice([0, 4096, 20_000, 60_000])
        ballast = member.place / BALLAST
        program = member.program
        if can_mount():
            _fill(ballast, spare)
        else:
            limits = (spare, resource.RLIM_INFINITY)
            resource.prlimit(program.pid, resource.RLIMIT_FSIZE, limits)

        def make_room() -> None:
            self.note(f"{member.name} has room again")
            ballast.unlink(missing_ok=True)
            if program.code is None and not can_mount():
                limits = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                resource.prlimit(program.pid, resource.RLIMIT_FSIZE, limits)
            member.fault = None

        self._later(fault.seconds, make_room)

    def _restore(self, fault: Fault, member: Member) -> None:
        """A copy of the folder is made now, and put back later.

        With "unwitnessed" one peer hears nothing of the site between the two, and the site then
        reaches nobody but that peer: for a while nobody can tell that it has forgotten. With "by
        command" the copy is made and brought back as the runbook says."""
        by_command = fault.how == "by command"
        backup = self._back_up(member) if by_command else self._copy(member, "backup")
        name, other = member.name, self.members[fault.other].name
        others = [m.name for m in self.members if m.name not in (name, other)]
        ignorant = [(name, other), (other, name)]
        witnesses = [pair for peer in others for pair in ((name, peer), (peer, name))]
        unwitnessed = fault.how == "unwitnessed"
        if unwitnessed:
            self.links.set("refuses", ignorant)

        def put_back() -> None:
            self._end_program(member)
            self.links.drop(name)
            with self._standing_still() as bodies:
                lost = bodies[name]
                _empty(member.place)
                if by_command:
                    self._wait_for("node", "restore", str(backup), str(member.place))
                    shutil.copy(backup.parent / "data.npz", member.place)
                else:
                    shutil.copytree(backup, member.place, dirs_exist_ok=True)
                old = accounting.read(name, member.place)
                after = {**bodies, name: old}
                self.balance.replace(list(bodies.values()), list(after.values()))
                seen = [
                    round for body in after.values() for peer, round in body.seen if peer == name
                ]
                if max(seen) > old.released:
                    member.rejoins_due = member.rejoins + 1
            self.aside.append(lost)
            self.note(
                f"{name} is put back from round {lost.round} to {old.round}, clock {lost.clock} "
                f"to {old.clock}, weight {float(lost.own):.4f} to {float(old.own):.4f}"
            )
            self._accept(member, member.version)
            if unwitnessed:
                self.links.set("refuses", witnesses)
                self.links.set("works", ignorant)
                self._later(fault.seconds + 5, meet_again)
            member.start_at = time.monotonic()
            self._release(member)

        def meet_again() -> None:
            self.note(f"{name} can be reached by all")
            self.links.set("works", witnesses)

        self._later(fault.seconds + 2 * unwitnessed, put_back)

    def _clone(self, fault: Fault, member: Member) -> None:
        """A copy of the folder is made, and started while the site runs."""
        place = self._copy(member, "clone")
        if fault.how == "elsewhere":
            listen = f"{LOOPBACK}:{trial.free_ports(1)[0]}"
            change(place, lambda site: _listening(site, listen))

        def start() -> None:
            clone = Member(member.name, place, self.folder / "logs" / f"{place.parent.name}.log")
            with self._standing_still() as bodies:
                after = [*bodies.values(), accounting.read(member.name, place)]
                self.balance.replace(list(bodies.values()), after)
            self.clones[place.parent.name] = (clone, time.monotonic() + START_SECONDS)
            self._start(clone)

        self._later(fault.delays[0] / 2, start)

    def _watch_clone(self, label: str, clone: Member, until: float) -> None:
        """A clone must be stopped by its peers, or else the original: not both run on."""
        original = next(member for member in self.members if member.name == clone.name)
        assert clone.program is not None
        code = clone.program.code
        is_over = time.monotonic() > until
        if code is None and original.program is not None and not is_over:
            return
        self.note(f"{label}: exit {code}: {_last_line(clone)}")
        stopped = code is not None or original.program is None
        assert stopped, f"{label} and {original.name} have both run for long, and nobody objects"
        self.stopped_clones += code is not None
        clone.program.kill()
        with self._standing_still() as bodies:
            gone = bodies[label]
            after = [body for body in bodies.values() if body is not gone]
            self.balance.replace(list(bodies.values()), after)
        self.aside.append(gone)
        del self.clones[label]
        self._release(original)

    def _loop(self, fault: Fault, member: Member) -> None:
        """The site is killed while it starts, several times."""
        delays = list(fault.delays)

        def again() -> None:
            self._end_program(member)
            if not delays:
                member.start_at = time.monotonic()
                self._release(member)
                return
            self._start(member)
            self._later(delays.pop(), again)

        again()

    def _change_manifest(self, fault: Fault) -> bool:
        """A new version, which each member accepts when it comes to it."""
        victim = self.members[fault.victim]
        last = self.versions[-1]
        if fault.how == "join":
            assert self.latecomer is not None
            joins = max(self._rounds()) + 5
            new = manifests.successor(last, add=[self.card], joins=joins)
        elif fault.how == "remove":
            new = manifests.successor(last, remove=[victim.name])
        else:
            new = replace(manifests.successor(last), rounds=last.rounds + 1)
        self.note(f"version {new.version} of the manifest: {fault.how} {victim.name}")
        self._publish(new, fault.delays)
        if fault.how == "join":
            self._later(fault.delays[fault.victim] + 0.1, self._welcome)
        if fault.how == "remove":
            victim.removed = True
            self._later(max(fault.delays) + 3.0, lambda: self._dismiss(victim))
        return True

    def _publish(self, new: manifests.Manifest, delays: Sequence[float]) -> None:
        self.versions.append(new)
        number = len(self.versions)
        for member, delay in zip(self.members, delays, strict=True):
            if member.name in new.names():
                self._later(delay, lambda member=member: self._accept(member, number))  # type: ignore[misc]

    def _welcome(self) -> None:
        assert self.latecomer is not None
        latecomer, self.latecomer = self.latecomer, None
        self._start(latecomer)

    def _dismiss(self, member: Member) -> None:
        """The operator of a removed site ends it."""
        if member.fault is not None:
            self._later(0.5, lambda: self._dismiss(member))
        elif member.program is None:
            member.start_at = None
            member.ended = "removed"
        else:
            member.asked_to_stop = time.monotonic()
            member.program.signal(signal.SIGTERM)

    def _heal(self) -> None:
        """All faults are over. What sites store of each other under a new version of the manifest
        was sent since."""
        self.links.heal()
        last = self.versions[-1]
        healed = replace(manifests.successor(last), rounds=last.rounds + 1)
        self.note(f"all faults are over; version {healed.version} is to reach all")
        self._publish(healed, [self.generator.uniform(0, 2) for _ in self.members])

    def _all_taken_in(self) -> bool:
        """True if every site has stored a share that was sent since the faults, and a peer has
        stored one of it."""
        healed = self.versions[-1].version
        bodies = [accounting.read(member.name, member.place) for member in self.members]
        for member, body in zip(self.members, bodies, strict=True):
            if member.removed:
                continue
            stored = [key.version for key, outcome in body.verdicts if outcome == "stored"]
            taken = [key.version for key in accounting.releases(member.name, bodies)]
            if healed not in stored or healed not in taken:
                return False
        return True

    def _set_end(self) -> None:
        """A last version of the manifest says where the federation ends."""
        with self._standing_still() as bodies:
            rounds_now = []
            for member in self.members:
                # One that is gone for good need not be caught up with.
                if not member.removed and not member.ended:
                    rounds_now.append(bodies[member.name].round)
        # A site that is behind has the time to catch up, also on a busy machine.
        lag = max(rounds_now) - min(rounds_now)
        rounds = max(rounds_now) + LAST_ROUNDS + 2 * lag
        last = replace(manifests.successor(self.versions[-1]), rounds=rounds)
        self.note(f"every site is taken in again; the last version ends at round {rounds}")
        self._publish(last, [self.generator.uniform(0, 2) for _ in self.members])

    # --- all sites stand still

    @contextlib.contextmanager
    def _standing_still(self, *, check: bool = True) -> Iterator[dict[str, Body]]:
        """The stores of all sites and clones, while no program runs."""
        places = {member.name: member.place for member in self.members}
        places |= {label: clone.place for label, (clone, _) in self.clones.items()}
        watched = [*self.members, *(clone for clone, _ in self.clones.values())]
        programs = []
        for member in watched:
            for program in (member.program, member.command):
                if program is not None:
                    programs.append((member, program))
        try:
            for _, program in programs:
                program.signal(signal.SIGSTOP)
            deadline = time.monotonic() + 20
            while not all(program.is_still() for _, program in programs):
                assert time.monotonic() < deadline, "a site does not stand still"
                time.sleep(0.005)
            bodies = {}
            for label, place in places.items():
                bodies[label] = accounting.read(place.name, place)
            for member in self.members:
                if member.command is not None and member.before is not None:
                    bodies[member.name] = member.before  # until its command is done
            if check:
                self.balance.check(list(bodies.values()))
            yield bodies
        finally:
            for member, program in programs:
                if not member.hung:
                    program.signal(signal.SIGCONT)

    def _rounds(self) -> list[int]:
        return [accounting.read(member.name, member.place).round for member in self.members]

    def _copy(self, member: Member, kind: str) -> Path:
        """Copy a site's folder as it is at one instant."""
        assert member.program is not None
        self.copies += 1
        target = self.folder / f"{kind}-{self.copies}-{member.name}" / member.name
        member.program.signal(signal.SIGSTOP)
        while not member.program.is_still():
            time.sleep(0.005)
        shutil.copytree(member.place, target)
        member.program.signal(signal.SIGCONT)
        return target

    def _back_up(self, member: Member) -> Path:
        """A backup of a running site by the command for it; the records beside it."""
        self.copies += 1
        folder = self.folder / f"backup-{self.copies}-{member.name}"
        folder.mkdir()
        shutil.copy(member.place / "data.npz", folder)
        file = folder / "site.tar"
        self._wait_for("node", "backup", str(member.place), str(file))
        return file

    def _wait_for(self, *words: str) -> None:
        """Run an operator's command, which must succeed."""
        log = self.folder / "logs" / "commands.log"
        program = Program(forked_command(*words, log=log))
        deadline = time.monotonic() + 60
        while program.code is None:
            assert time.monotonic() < deadline, f"{words} takes too long"
            time.sleep(0.02)
        assert program.code == 0, f"{words}: {log.read_text()[-500:]}"

    # --- the end

    def _judge(self) -> None:
        with self._standing_still() as bodies:
            everything = [*bodies.values(), *self.aside]
        if all(member.rejoins >= member.rejoins_due for member in self.members):
            most = f"{self.balance.weight} is more than {SITES} sites began with"
            assert self.balance.weight <= SITES, most
        for member in self.members:
            told = member.rejoins >= member.rejoins_due
            # A site that was removed first can be told nothing any more.
            assert told or member.removed, (
                f"{member.name} was put back from a backup, and nobody has told it"
            )
            held = accounting.releases(member.name, everything)
            steps = Ledger.read(member.place / assembly.LEDGER_FILE).steps
            assert steps >= STEPS * len(held) or not told, (
                f"the ledger of {member.name} has {steps} steps; peers have stored {len(held)} "
                f"releases of {STEPS} steps: {sorted(held)}"
            )
            broken = auditlog.verify(member.place / auditlog.FILE)
            assert broken is None, f"the audit log of {member.name} breaks at line {broken}"
            status.rows(member.place)
        self.furthest = max(body.round for body in bodies.values())

    def _outcome(self) -> Any:
        return Outcome(
            self.seed,
            len(self.faults),
            dict(Counter(fault.kind for fault in self.faults)),
            round(time.monotonic() - self.started, 1),
            self.furthest,
            sum(member.starts for member in self.members),
            sum(member.rejoins for member in self.members),
            str(self.balance.weight),
            str(SITES - self.balance.weight),
            self.stopped_clones,
            round(self.slowest_stop, 1),
        )

    def _clean_up(self) -> None:
        for member in [*self.members, *(clone for clone, _ in self.clones.values())]:
            for program in (member.program, member.command):
                if program is not None:
                    program.kill()
        self.stack.close()


def run(folder: Path, seed: int, *, short: bool = False, verbose: bool = False) -> Outcome:
    """Run the schedule of a seed in ``folder``, or its ``short`` one."""
    faults = draw_short(seed) if short else draw(seed, possible_kinds())
    injector = Injector(folder, seed, faults)
    injector.how = " --short" if short else ""
    injector.verbose = verbose
    return injector.run()


def _listening(site: Site, address: str) -> Site:
    return replace(site, network=replace(site.network, listen=address))


def _last_line(member: Member) -> str:
    lines = member.said.strip().splitlines()
    return lines[-1][:300] if lines else ""


def _standing(member: Member) -> str:
    return "not running" if member.program is None else f"running: {_last_line(member)}"


def _accepted(member: Member) -> int:
    """The newest version that a site has accepted."""
    files = (member.place / roster.FOLDER).glob("*.toml")
    return max((int(path.stem) for path in files), default=0)


def _state(word: str) -> State:
    states: dict[str, State] = {
        "refuses": "refuses",
        "is silent": "is silent",
        "is slow": "is slow",
    }
    return states[word]


def _fill(ballast: Path, spare: int) -> None:
    """Fill the disk that ``ballast`` is on, but for ``spare`` bytes."""
    with ballast.open("wb", buffering=0) as file:
        size = 0
        with contextlib.suppress(OSError):
            while True:
                size += file.write(bytes(4096))
        file.truncate(max(0, size - spare))


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def main(run: Callable[..., Any] = run, seeds: str = "0-29") -> int:
    """Run schedules from the command line."""
    parser = argparse.ArgumentParser(description="Run schedules of faults on six real sites.")
    parser.add_argument("--seed", type=int, help="one schedule")
    parser.add_argument("--short", action="store_true", help="the short schedule of each seed")
    parser.add_argument("--seeds", default=seeds, help="several, such as 0-29")
    parser.add_argument(
        "--out", type=Path, help="write outcomes as JSON; seeds that the file has are not run"
    )
    parser.add_argument("--verbose", action="store_true", help="say what happens when it does")
    parser.add_argument("--keep", type=Path, help="keep the sites' folders here")
    args = parser.parse_args()
    first, _, last = args.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1) if args.seed is None else [args.seed]
    outcomes: list[dict[str, Any]] = []
    if args.out is not None and args.out.exists():
        outcomes = json.loads(args.out.read_text())
    done = {outcome["seed"] for outcome in outcomes}
    failed = []
    for seed in sorted(set(seeds) - done):
        folder = Path(tempfile.mkdtemp(prefix=f"proxyfl-faults-{seed}-", dir=args.keep))
        try:
            outcome = run(folder, seed, short=args.short, verbose=args.verbose)
            outcomes.append(dataclasses.asdict(outcome))
            print(json.dumps(outcomes[-1]), flush=True)
            if args.out is not None:
                outcomes.sort(key=lambda outcome: int(outcome["seed"]))
                args.out.write_text(json.dumps(outcomes, indent=1) + "\n")
        except AssertionError as error:
            failed.append(seed)
            print(f"seed {seed} FAILED: {error}", flush=True)
        if args.keep is None:
            shutil.rmtree(folder)
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
