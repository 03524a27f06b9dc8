"""`proxyfl federation try`: a whole federation on one machine, for a first look.

Real keys, real certificates, real sockets, one process per site; the data are scikit-learn's
handwritten digits, divided so that most of a site's examples are of one class, and every site has
a private model of another architecture.
"""

import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from proxyfl._files import write_text
from proxyfl._validate import whole
from proxyfl.data import Dataset, partition
from proxyfl.data.sources import load
from proxyfl.errors import RunError
from proxyfl.measures import MEASURES
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import roster, site
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Input, Manifest, Proxy
from proxyfl.node.members.site import Network, Privacy, Site
from proxyfl.privacy.guarantee import Epsilon
from proxyfl.records import reading, row
from proxyfl.records.reading import SITE_CLIENT
from proxyfl.seeds import numpy_stream
from proxyfl.settings import Model, Optimizer

ARCHITECTURES = ("mlp", "tabular", "cnn1", "linear")
NAMES = ("north", "south", "east", "west")
LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.2
_PORTS = range(10_000, 30_000)
_PORTS_TRIED = itertools.count()


@dataclass(frozen=True)
class Layout:
    """The folders of a trial's sites."""

    folder: Path
    manifest: Manifest
    sites: tuple[Path, ...]


@dataclass(frozen=True)
class Outcome:
    """One site's scores, in the manifest's measure."""

    name: str
    architecture: str
    examples: int
    alone: float | None
    joined: float | None
    epsilon: Epsilon

    def gain(self, measure: str) -> float | None:
        """The gain from joining; None where the measure is not defined."""
        if self.alone is None or self.joined is None:
            return None
        return MEASURES[measure].gain(self.joined, self.alone)


@dataclass(frozen=True)
class Progress:
    """The progress of one site of a running trial. ``scores`` and ``spent`` are those of its
    rounds; ``outcome`` is there once the site has compared itself with training alone."""

    name: str
    architecture: str
    examples: int
    rounds: int
    scores: tuple[float, ...]
    spent: tuple[float, ...]
    messages: int
    bytes_sent: int
    status_port: int
    outcome: Outcome | None


def name_of(at: int) -> str:
    """The name of a trial's site."""
    return NAMES[at] if at < len(NAMES) else f"site-{at}"


def lay_out(
    folder: Path,
    *,
    sites: int = 4,
    rounds: int = 30,
    seed: int = 0,
    template: Site | None = None,
    skew: float = 0.6,
    addresses: Sequence[str] = (),
    joins: Mapping[int, int] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Layout:
    """Make the folders of a federation: data, keys, settings, and a manifest that all accept.

    ``addresses`` are on loopback unless given; ``joins`` says from which round on a site takes
    part, if not from the first. ``say`` is told each step."""
    whole("sites", sites, at_least=2)
    dataset = load("digits", seed=seed)
    parts = partition.majority(
        dataset.train.labels.numpy(),
        clients=sites,
        p_major=skew,
        generator=numpy_stream(seed, "partition"),
    )
    ports = free_ports(2 * sites)
    addresses = addresses or [f"{LOOPBACK}:{port}" for port in ports[sites:]]
    folders = [folder / name_of(at) for at in range(sites)]
    cards = []
    joins = joins or {}
    template = template or quick_site()
    for at, place in enumerate(folders):
        say(f"{name_of(at)}: gets a key, a certificate and a part of the digits")
        identity = Identity.create(place, name_of(at))
        card = identity.card(addresses[at])
        cards.append(replace(card, joins=joins.get(at, 0)))
        chosen = torch.from_numpy(parts[at])
        _write_data(place / "data.npz", dataset, chosen)
        network = replace(template.network, listen=addresses[at], status_port=ports[at])
        settings = replace(
            template,
            name=name_of(at),
            model=Model(ARCHITECTURES[at % len(ARCHITECTURES)]),
            network=network,
        )
        write_text(place / site.FILE, site.to_toml(settings))
    manifest = Manifest(
        "trial",
        rounds=rounds,
        input=Input(dataset.shape, dataset.class_names),
        proxy=Proxy("linear", seed),
        members=tuple(cards),
    )
    say("All sites sign the manifest")
    return accept_everywhere(Layout(folder, manifest, tuple(folders)), manifest)


def accept_everywhere(layout: Layout, manifest: Manifest) -> Layout:
    """The same sites under another first manifest, which all accept."""
    manifests.write(layout.folder, manifest)
    for place in layout.sites:
        shutil.rmtree(place / roster.FOLDER, ignore_errors=True)
        settings, _ = site.read(place)
        roster.accept(place, Identity(place, place.name), manifest, settings.trust)
    return replace(layout, manifest=manifest)


def quick_site(patience: float = 60.0) -> Site:
    """Settings for a trial on public data: short waits, a budget that the rounds leave unspent, and
    steps large enough that a model trained alone learns in so few rounds."""
    return replace(
        Site("template"),
        private_optimizer=Optimizer(learning_rate=0.01),
        proxy_optimizer=Optimizer(learning_rate=0.05),
        network=Network(patience=patience, heartbeat=2.0, timeout=20.0),
        privacy=Privacy(budget=5.0),
    )


def command(place: Path, *arguments: str) -> list[str]:
    """The command that runs the site in ``place``."""
    program = [sys.executable, "-m", "proxyfl"]
    return [*program, "node", "run", str(place), *arguments]


def start(places: Sequence[Path], *arguments: str) -> list[subprocess.Popen[bytes]]:
    """Run each site in a process of its own; what it says goes to its node.log."""
    running = []
    for place in places:
        with (place / "node.log").open("ab") as log:
            process = subprocess.Popen(
                command(place, *arguments), stdout=log, stderr=subprocess.STDOUT
            )
        running.append(process)
    return running


def run(layout: Layout, *arguments: str, watch: Callable[[], None] | None = None) -> list[int]:
    """Run all sites to their end; return their exit codes. Nobody is left running. ``watch`` is
    called several times a second meanwhile."""
    running = start(layout.sites, *arguments)
    try:
        while watch is not None and any(process.poll() is None for process in running):
            watch()
            time.sleep(_POLL_SECONDS)
        return [process.wait() for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()


def outcomes(layout: Layout) -> list[Outcome]:
    """Each site's score in a finished trial, and its score alone, as it recorded them."""
    return [_outcome(layout, place) for place in layout.sites]


def _outcome(layout: Layout, place: Path) -> Outcome:
    settings, _ = site.read(place)
    run = reading.read(place)
    spent = run.spent(layout.manifest.method, SITE_CLIENT)
    if spent is None:
        raise RunError(f"{settings.name} has recorded no round. See {place / 'node.log'}.")
    return Outcome(
        name=settings.name,
        architecture=settings.model.architecture,
        examples=run.described[SITE_CLIENT]["examples"],
        alone=run.kept("alone", SITE_CLIENT),
        joined=run.kept(layout.manifest.method, SITE_CLIENT),
        epsilon=spent,
    )


def progress(layout: Layout) -> list[Progress]:
    """Reads from its folder how far each site is now."""
    return [_progress(layout, place) for place in layout.sites]


def _progress(layout: Layout, place: Path) -> Progress:
    settings, _ = site.read(place)
    rows = reading.site_rows(place, (layout.manifest.method,))
    scores = [row.score(each, "private", layout.manifest.measure) for each in rows]
    with np.load(place / "data.npz") as data:
        examples = len(data["y_train"])
    return Progress(
        name=settings.name,
        architecture=settings.model.architecture,
        examples=examples,
        rounds=len(rows),
        scores=tuple(score for score in scores if score is not None),
        spent=tuple(row.epsilon(each).best for each in rows),
        messages=sum(each["messages_sent"] for each in rows),
        bytes_sent=sum(each["bytes_sent"] for each in rows),
        status_port=settings.network.status_port,
        outcome=_outcome(layout, place) if (place / "summary.json").is_file() else None,
    )


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on now.

    They are below the ports that systems give to outgoing connections, so no connection takes one
    before its site starts. Each process begins to look at a place of its own and returns no port
    twice, so processes that call this at the same time get different ports."""
    ports: list[int] = []
    for _ in _PORTS:
        port = _PORTS[(os.getpid() * 97 + next(_PORTS_TRIED)) % len(_PORTS)]
        if _is_free(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RunError(f"Fewer than {count} ports of {_PORTS[0]} to {_PORTS[-1]} are free.")


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _write_data(path: Path, dataset: Dataset, chosen: torch.Tensor) -> None:
    every = torch.arange(len(dataset.test))
    names = np.array(dataset.class_names)
    np.savez(
        path,
        x_train=dataset.train.take(chosen).numpy(),
        y_train=names[dataset.train.labels[chosen].numpy()],
        x_test=dataset.test.take(every).numpy(),
        y_test=names[dataset.test.labels.numpy()],
    )
