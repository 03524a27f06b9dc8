"""Federations for tests: real sites on loopback, in threads of this process or in processes."""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from proxyfl._files import write_text
from proxyfl.node import trial
from proxyfl.node.exchange.messages import parse_weight
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.store import Store
from proxyfl.node.members import site as sites
from proxyfl.node.members.site import Learning, Network, Site
from proxyfl.node.supervisor import Node
from proxyfl.node.trial import Layout
from tests.waiting import PATIENCE

SEED = 3

PRELOADED = [
    "torch._dynamo",
    "proxyfl.cli.main",
    "proxyfl.node.supervisor",
    "proxyfl.cli.commands.sites",
]


def quick(patience: float = 30.0, **network: object) -> Site:
    """Settings for tests: two small steps a round, short waits."""
    settings = Network(patience=patience, heartbeat=1.0, timeout=10.0)
    return replace(
        Site("template"),
        learning=Learning(batch_size=20, steps_per_round=2),
        network=replace(settings, **network),  # type: ignore[arg-type]  # a test's own words
    )


def change(place: Path, edit: Callable[[Site], Site]) -> None:
    """Rewrite a site's settings."""
    settings, folder = sites.read(place)
    write_text(folder / sites.FILE, sites.to_toml(edit(settings)))


@dataclass
class Running:
    """Nodes in threads, by name; ``ended`` has how each ended, or what it raised. With ``hold``
    each pauses after so many rounds until ``go`` is set; it answers its peers meanwhile."""

    hold: int | None = None
    go: threading.Event = field(default_factory=threading.Event)
    nodes: dict[str, Node] = field(default_factory=dict)
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    ended: dict[str, object] = field(default_factory=dict)

    def start(
        self, place: Path, seed: int | None = SEED, *, rounds: int | None = None
    ) -> None:
        """Run the site in ``place``: to its end, or for a number of rounds and no further."""
        settings, folder = sites.read(place)
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            if len(said) == self.hold:
                self.go.wait(PATIENCE)
            if len(said) == rounds:
                node.stopping.set()

        node = Node(settings, folder, seed=seed, say=say)
        self.nodes[settings.name] = node

        def work() -> None:
            try:
                with node:
                    self.ended[settings.name] = node.run()
            except BaseException as error:
                self.ended[settings.name] = error

        thread = threading.Thread(target=work, name=f"node-{settings.name}")
        self.threads[settings.name] = thread
        thread.start()

    def join(self, names: Sequence[str] | None = None) -> None:
        """Wait until all have ended."""
        deadline = time.monotonic() + PATIENCE
        for name in names or list(self.threads):
            self.threads[name].join(max(0.0, deadline - time.monotonic()))
            assert not self.threads[name].is_alive(), f"{name} still runs"


def _run_command(place: Path, arguments: Sequence[str]) -> None:
    from proxyfl.cli.main import main

    with (place / "node.log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    words = ["node", "run", str(place), "--no-status-page", *arguments]
    sys.exit(main(words))


def forked(place: Path, *arguments: str) -> multiprocessing.process.BaseProcess:
    """`proxyfl node run` in a process of its own, forked from one that has loaded the libraries:
    it starts at once and shares their pages."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run_command, args=(place, arguments))
    process.start()
    return process


@contextmanager
def running(
    layout: Layout, only: Sequence[str] | None = None, *, hold: int | None = None
) -> Iterator[Running]:
    """All sites of a layout, or some of them, at work; none is left behind."""
    made = Running(hold=hold)
    try:
        for place in layout.sites:
            if only is None or place.name in only:
                made.start(place)
        yield made
    finally:
        made.go.set()
        for node in made.nodes.values():
            node.stopping.set()
            node.participant.patience = 0.0
            node.exchange.notify()
        for thread in made.threads.values():
            thread.join(30)


def total_weight(layout: Layout) -> Fraction:
    """The exact sum of weights over sites, inboxes and what is on its way."""
    stores = {place.name: Store(place / STORE_FILE) for place in layout.sites}
    total = Fraction(0)
    for store in stores.values():
        run = store.connection.execute
        total += parse_weight(run("select weight from site").fetchone()[0])
        for (weight,) in run("select weight from inbox").fetchall():
            total += parse_weight(weight)
    for name, store in stores.items():
        rows = store.connection.execute(
            "select receiver, round, weight from outbox"
        ).fetchall()
        for receiver, round, weight in rows:
            stored = stores[receiver].connection.execute(
                "select 1 from verdicts where sender=? and round=? and outcome='stored'",
                (name, round),
            )
            if stored.fetchone() is None:
                total += parse_weight(weight)
    for store in stores.values():
        store.close()
    return total


__all__ = [
    "SEED",
    "Running",
    "change",
    "forked",
    "quick",
    "running",
    "total_weight",
    "trial",
]
