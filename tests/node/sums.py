"""A simulated network of sites that agree on masked sums: it drops, delays, repeats and reorders;
sites restart at any moment and lose all but their record. A schedule is a seed."""

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from proxyfl.node.agreement import (
    Agreement,
    Apply,
    Contribute,
    Record,
    Snapshot,
    Take,
    Vector,
    View,
)

FIRST = "start"


@dataclass
class Disk:
    """What survives a restart, and what the world has seen of the site."""

    record: Record
    starts: int = 0
    charges: int = 0
    sent: dict[tuple[int, int], tuple[tuple[str, ...], str]] = field(default_factory=dict)
    """(step, ballot) -> the roster and the key under which a vector has left."""


class Site:
    """One site, with a hash in the place of a proxy."""

    def __init__(self, name: str, world: "World") -> None:
        self.name = name
        self.world = world
        self.disk = Disk(Record(proxy=FIRST, roster=tuple(world.names)))
        self.boot()

    def boot(self) -> None:
        """Start the program: all but the disk is new."""
        self.disk.starts += 1
        self.agreement: Agreement[str] = Agreement(
            self.name,
            self.world.names,
            quorum=self.world.quorum,
            colluders=self.world.colluders,
            version=1,
            record=self.disk.record,
            start=self.disk.starts,
            key=f"{self.name}{self.disk.starts}",
        )

    def save(self) -> None:
        """Write the record, before anything that follows from it is sent."""
        self.disk.record = self.agreement.record

    def present(self) -> list[str]:
        return [each for each in self.world.names if self.world.linked(self.name, each)]

    def act(self) -> None:
        """Do what the agreement asks for; the power may go at any moment."""
        do = self.agreement.next(self.world.now, self.present())
        self.save()
        if isinstance(do, Contribute):
            self.contribute(do)
        elif isinstance(do, Apply):
            self.apply(do)
        elif isinstance(do, Take):
            self.agreement.took(do)
            self.save()

    def contribute(self, do: Contribute) -> None:
        agreement = self.agreement
        self.disk.charges += 1
        if self.world.fails():
            return self.boot()
        agreement.begin(do)
        self.save()
        if self.world.fails():
            return self.boot()
        key = (do.step, do.ballot)
        assert key not in self.disk.sent, f"{self.name} sends twice under {key}"
        self.disk.sent[key] = (do.roster, agreement.key)
        words = f"{self.name}-{len(self.disk.sent)}-{self.disk.starts}"
        vector = Vector(
            do.step,
            do.ballot,
            do.roster,
            agreement.record.mark,
            agreement.able(self.present()),
            False,
            1,
            words,
        )
        agreement.contributed(do, vector)
        return None

    def apply(self, do: Apply[str]) -> None:
        record = self.agreement.record
        text = f"{record.proxy} {sorted(each.words for each in do.vectors.values())}"
        proxy = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.agreement.applied(do, proxy)
        self.world.note_sum(record.step, do)
        if self.world.fails():
            return self.boot()
        self.save()
        return None

    def say(self, other: str) -> None:
        """Send what the other site lacks: a view, a vector, a proxy."""
        self.save()
        agreement = self.agreement
        self.world.post(self.name, other, agreement.view(self.present()))
        view = agreement.view_of(other)
        if view is not None:
            for vector in agreement.own_vectors(view):
                self.world.post(self.name, other, vector)
        if view is not None and view.wants == self.name:
            record = agreement.record
            snapshot = Snapshot(
                record.step, record.ballot, record.proxy, record.before, record.roster, b""
            )
            self.world.post(self.name, other, snapshot)


class World:
    """Sites and the messages between them, driven by one random generator."""

    def __init__(self, seed: int, *, sites: int, quorum: int, faults: float = 1.0) -> None:
        self.random = random.Random(seed)
        self.names = [f"s{i}" for i in range(sites)]
        self.quorum = quorum
        self.colluders = 1
        self.now = 0.0
        self.faults = faults
        self.cut: set[frozenset[str]] = set()
        self.down: set[str] = set()
        self.flying: list[tuple[str, str, Any]] = []
        self.sums: dict[tuple[int, int], set[str]] = {}
        self.bases: dict[int, str] = {}
        """Step -> the proxy to which a complete sum was added."""
        self.chosen: dict[int, str] = {}
        """Step -> the proxy that more than half held under one ballot."""
        self.sites = {name: Site(name, self) for name in self.names}

    def linked(self, one: str, other: str) -> bool:
        return one != other and not (
            {one, other} & self.down or frozenset((one, other)) in self.cut
        )

    def fails(self) -> bool:
        return self.random.random() < 0.03 * self.faults

    def post(self, sender: str, receiver: str, message: Any) -> None:
        if self.linked(sender, receiver):
            self.flying.append((sender, receiver, message))

    def note_sum(self, step: int, do: Apply[str]) -> None:
        """A sum is complete only over vectors of one roster, each of which left once."""
        rosters = {vector.roster for vector in do.vectors.values()}
        assert len(rosters) == 1
        assert set(do.vectors) == set(*rosters)
        assert len(do.vectors) >= self.quorum
        self.sums.setdefault((step, do.ballot), set()).update(
            each.words for each in do.vectors.values()
        )
        assert len(self.sums[(step, do.ballot)]) == len(do.vectors), "a ballot with two sums"
        (base,) = {vector.base.partition(":")[2] for vector in do.vectors.values()}
        assert self.bases.setdefault(step, base) == base, f"step {step} goes on from two proxies"

    def deliver(self) -> None:
        if not self.flying:
            return
        at = self.random.randrange(len(self.flying))
        sender, receiver, message = self.flying[at]
        if self.random.random() > 0.15 * self.faults:  # else it comes again later
            self.flying.pop(at)
        if self.random.random() < 0.1 * self.faults or receiver in self.down:
            return
        agreement = self.sites[receiver].agreement
        if isinstance(message, View):
            agreement.hear(sender, message)
        elif isinstance(message, Vector):
            agreement.receive(sender, message)
        else:
            agreement.offer(message)

    def event(self) -> None:
        """One event, whatever it is."""
        self.now += 0.05 * self.random.random()
        site = self.sites[self.random.choice(self.names)]
        chance = self.random.random()
        if chance < 0.6:
            self.deliver()
        elif chance < 0.8:
            if site.name not in self.down:
                site.act()
        elif chance < 0.97:
            if site.name not in self.down:
                site.say(self.random.choice([each for each in self.names if each != site.name]))
        elif self.random.random() < self.faults:
            self.fault(site)
        if len(self.flying) > 200:
            self.flying = self.flying[-100:]

    def fault(self, site: Site) -> None:
        kind = self.random.randrange(5)
        if kind == 0:
            site.boot()
        elif kind == 1:
            self.down ^= {site.name}
            site.boot()
        elif kind == 2:
            self.cut.add(frozenset(self.random.sample(self.names, 2)))
        elif kind == 3:
            self.cut.clear()
        else:
            self.down.clear()

    def heal(self, events: int) -> None:
        """Nothing fails any more."""
        self.faults = 0.0
        self.cut.clear()
        self.down.clear()
        for _ in range(events):
            self.event()

    def lose(self, names: Collection[str]) -> list[Site]:
        """Nothing fails any more, but these are down for good; the sites that are left."""
        self.faults = 0.0
        self.cut.clear()
        self.down = set(names)
        return [site for name, site in self.sites.items() if name not in names]

    def check(self) -> None:
        """What must hold at every moment."""
        for name, site in self.sites.items():
            assert site.disk.charges >= len(site.disk.sent), f"{name}: a charge is missing"
        self.check_chosen()

    def check_chosen(self) -> None:
        """No step has two proxies that more than half of all sites have accepted."""
        majority = len(self.names) // 2 + 1
        held: dict[tuple[int, str], int] = {}
        for site in self.sites.values():
            record = site.disk.record
            marks = [(record.step, record.mark)]
            if record.step:
                marks.append((record.step - 1, record.before))
            for key in marks:
                held[key] = held.get(key, 0) + 1
        for (step, mark), count in held.items():
            if count >= majority:
                proxy = mark.partition(":")[2]
                known = self.chosen.setdefault(step, proxy)
                assert known == proxy, f"step {step} has two proxies: {known}, {proxy}"
                assert self.bases.get(step, proxy) == proxy

    @property
    def steps(self) -> list[int]:
        return [site.disk.record.step for site in self.sites.values()]

    def proxies(self, step: int) -> set[str]:
        """The proxies that sites hold at ``step``."""
        records = [site.disk.record for site in self.sites.values()]
        return {record.proxy for record in records if record.step == step}
