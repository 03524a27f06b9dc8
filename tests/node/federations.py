"""Federations for tests: real sites on loopback, in threads of this process or in processes."""

import multiprocessing
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from torch import Tensor

from proxyfl import params
from proxyfl._files import write_text
from proxyfl.federation.modelfile import load_model
from proxyfl.node import assembly, trial
from proxyfl.node.exchange.messages import parse_weight
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.store import Store
from proxyfl.node.members import site as sites
from proxyfl.node.members.site import Learning, Network, Privacy, Site
from proxyfl.node.supervisor import Node
from proxyfl.node.trial import Layout
from proxyfl.privacy.accounting import Segment, pld_of
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Epsilon
from proxyfl.simulation import federation
from proxyfl.simulation import run as runner
from tests.waiting import PATIENCE

SEED = 3

PRELOADED = [
    "torch._dynamo",
    "proxyfl.cli.main",
    "proxyfl.node.supervisor",
    "proxyfl.cli.commands.node",
]


def quick(patience: float = 30.0, **network: object) -> Site:
    """Settings for tests: two small steps a round, short waits."""
    settings = Network(patience=patience, heartbeat=1.0, timeout=10.0)
    return replace(
        Site("template"),
        learning=Learning(batch_size=20, steps_per_round=2),
        privacy=Privacy(budget=5.0),
        network=replace(settings, **network),  # type: ignore[arg-type]  # a test's own words
    )


def change(place: Path, edit: Callable[[Site], Site]) -> None:
    """Rewrite a site's settings."""
    settings, folder = sites.read(place)
    write_text(folder / sites.FILE, sites.to_toml(edit(settings)))


def afford(place: Path, steps: int) -> float:
    """Set a site's budget so that it covers ``steps`` steps and no more; return it."""
    change(place, lambda site: assembly.with_budget(site, None))
    settings, folder = sites.read(place)
    with Node(settings, folder, seed=SEED) as node:
        trainer = node.client.learner.trainer
        assert isinstance(trainer, DPSGD)
        costs = []
        for count in (steps, steps + 1):
            segment = Segment(trainer.sampling_rate, trainer.noise_multiplier, count)
            costs.append(pld_of([segment], node.client.ledger.delta))
    budget = sum(costs) / 2
    change(place, lambda site: assembly.with_budget(site, budget))
    return budget


@dataclass
class Running:
    """Nodes in threads, by name; ``ended`` has how each ended, or what it raised. With ``hold``
    each pauses after so many rounds until ``go`` is set; it answers its peers meanwhile."""

    hold: int | None = None
    go: threading.Event = field(default_factory=threading.Event)
    nodes: dict[str, Node] = field(default_factory=dict)
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    ended: dict[str, object] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)

    def start(self, place: Path, seed: int | None = SEED, *, rounds: int | None = None) -> None:
        """Run the site in ``place``: to its end, or for a number of rounds and no further."""
        settings, folder = sites.read(place)
        said = self.said[settings.name] = []

        def say(line: str) -> None:
            said.append(line)
            done = [line for line in said if re.match(r"round \d+ of", line)]
            if line not in done:
                return
            if len(done) == self.hold:
                self.go.wait(PATIENCE)
            if len(done) == rounds:
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

    def go_on(self, hold: int) -> None:
        """Let those who pause go on, to pause again after ``hold`` rounds."""
        before, self.go = self.go, threading.Event()
        self.hold = hold
        before.set()

    def join(self, names: Sequence[str] | None = None) -> None:
        """Wait until all have ended."""
        deadline = time.monotonic() + PATIENCE
        for name in names or list(self.threads):
            self.threads[name].join(max(0.0, deadline - time.monotonic()))
            assert not self.threads[name].is_alive(), f"{name} still runs"


@dataclass(frozen=True)
class Predicted:
    """One site of a simulated federation: its final models and scores, on its own test part."""

    name: str
    proxy: Tensor
    alone: float | None
    joined: float | None
    epsilon: Epsilon


def predicted(
    folder: Path, *, seed: int = SEED, trust: Sequence[str] = (), workers: int = 1
) -> list[Predicted]:
    """What `proxyfl run --federation` gives for the sites of ``folder``."""
    config = federation.config_of(folder, trust=trust, overrides=[f"seed={seed}"])
    with tempfile.TemporaryDirectory() as below:
        out = Path(below) / "run"
        run = runner.run(config, out=out, workers=workers)
        method = run.methods[-1]
        sites = []
        for client, about in enumerate(run.described):
            file = out / "models" / method / f"{client:03d}-proxy.safetensors"
            model, _ = load_model(file, trust=trust)
            spent = run.spent(method, client)
            assert spent is not None
            last = {row["method"]: row for row in run.rows if row["client"] == client}
            measure = f"private_own_{config.measure}"
            sites.append(
                Predicted(
                    about["name"],
                    params.flatten(model),
                    last["alone"].get(measure),
                    last[method].get(measure),
                    spent,
                )
            )
    return sites


def _run_command(words: Sequence[str], log: Path) -> None:
    from proxyfl.cli.main import main

    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(main(words))


def forked_command(*words: str, log: Path) -> multiprocessing.process.BaseProcess:
    """`proxyfl` with these words in a process of its own, forked from one that has loaded the
    libraries: it starts at once and shares their pages."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run_command, args=(words, log))
    process.start()
    return process


def forked(place: Path, *arguments: str) -> multiprocessing.process.BaseProcess:
    """`proxyfl node run` in such a process."""
    words = ("node", "run", str(place), "--no-status-page", *arguments)
    return forked_command(*words, log=place / "node.log")


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
            thread.join(PATIENCE)


def total_weight(layout: Layout) -> Fraction:
    """The exact sum of weights over sites, inboxes and what is on its way, less debts."""
    stores = {place.name: Store(place / STORE_FILE) for place in layout.sites}
    total = Fraction(0)
    for store in stores.values():
        run = store.connection.execute
        weight, debt = run("select weight, debt from site").fetchone()
        total += parse_weight(weight) - parse_weight(debt)
        for (weight,) in run("select weight from inbox").fetchall():
            total += parse_weight(weight)
    for name, store in stores.items():
        rows = store.connection.execute("select receiver, round, weight from outbox").fetchall()
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
    "afford",
    "change",
    "forked",
    "forked_command",
    "predicted",
    "quick",
    "running",
    "total_weight",
    "trial",
]
