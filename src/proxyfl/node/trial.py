"""`proxyfl federation try`: a whole federation on one machine, for a first look.

Real keys, real certificates, real sockets, one process per site; the data are scikit-learn's
handwritten digits, divided so that most of a site's examples are of one class, and every site has
a private model of another architecture.
"""

import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from proxyfl._files import write_text
from proxyfl._validate import whole
from proxyfl.data import Dataset, load, partition
from proxyfl.node import assembly, prediction
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import roster, site
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Input, Manifest, Proxy
from proxyfl.node.members.site import Model, Network, Site
from proxyfl.node.observe import status
from proxyfl.node.prediction import Outcome
from proxyfl.records import row
from proxyfl.seeds import numpy_stream

ARCHITECTURES = ("mlp", "tabular", "cnn1", "linear")
NAMES = ("north", "south", "east", "west")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Layout:
    """The folders of a trial's sites."""

    folder: Path
    manifest: Manifest
    sites: tuple[Path, ...]


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
) -> Layout:
    """Make the folders of a federation: data, keys, settings, and a manifest that all accept.

    ``addresses`` are on loopback unless given; ``joins`` says from which round on a site takes
    part, if not from the first."""
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
    template = template or Site("template")
    for at, place in enumerate(folders):
        identity = Identity.create(place, name_of(at))
        card = identity.card(addresses[at])
        cards.append(replace(card, joins=joins.get(at, 0)))
        chosen = torch.from_numpy(parts[at])
        _write_data(place / "data.npz", dataset, chosen)
        network = replace(
            template.network,
            listen=addresses[at],
            status_port=ports[at],
        )
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
    return agreed_by_all(Layout(folder, manifest, tuple(folders)), manifest)


def agreed_by_all(layout: Layout, manifest: Manifest) -> Layout:
    """The same sites under another first manifest, which all accept."""
    manifests.write(layout.folder, manifest)
    for place in layout.sites:
        shutil.rmtree(place / roster.FOLDER, ignore_errors=True)
        roster.accept(place, Identity(place, place.name), manifest)
    return replace(layout, manifest=manifest)


def quick_site(patience: float = 60.0) -> Site:
    """Settings for a trial: short waits, and a budget that the rounds do not exhaust."""
    return replace(
        Site("template"),
        network=Network(patience=patience, heartbeat=2.0, timeout=20.0),
    )


def command(place: Path, *arguments: str) -> list[str]:
    """The command that runs the site in ``place``."""
    program = [sys.executable, "-m", "proxyfl.cli.main"]
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


def run(layout: Layout, *arguments: str) -> list[int]:
    """Run all sites to their end; return their exit codes. Nobody is left running."""
    running = start(layout.sites, *arguments)
    try:
        return [process.wait() for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()


def outcomes(layout: Layout) -> list[Outcome]:
    """Each site's score in a finished trial, beside its score alone."""
    found = []
    for place in layout.sites:
        settings, _ = site.read(place)
        own = assembly.load(layout.manifest, settings, place)
        last = status.rows(place)[-1]
        outcome = prediction.outcome(
            layout.manifest,
            settings,
            own,
            joined=row.score(last, "private", layout.manifest.measure),
            epsilon=row.epsilon(last),
            seed=None,
        )
        found.append(outcome)
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            opened = stack.enter_context(closing(socket.socket()))
            opened.bind((LOOPBACK, 0))
            found.append(int(opened.getsockname()[1]))
    return found


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
