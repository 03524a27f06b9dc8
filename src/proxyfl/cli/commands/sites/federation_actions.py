"""The actions of ``proxyfl federation``. What they import takes seconds, and the options need none
of it."""

import dataclasses
import shutil
import tempfile
import time
from argparse import Namespace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proxyfl.cli.commands.sites.founding import found, read_card
from proxyfl.cli.options import print_json
from proxyfl.errors import ProxyFLError
from proxyfl.node import prediction, trial
from proxyfl.node.members import manifest
from proxyfl.node.members.card import spoken
from proxyfl.node.prediction import Outcome
from proxyfl.privacy.guarantee import largest, shown

_PLAIN_ALONE = (
    "alone is plain: three fifths of a site's digits are of one class, and nobody is corrected for "
    "that. Part of the gain is the skew's (docs/joining.md)."
)


def new(args: Namespace) -> int:
    """Make the first version of a manifest."""
    found(args)
    return show(args)


def add(args: Namespace) -> int:
    """Add sites to the manifest."""
    cards = [read_card(path) for path in args.cards]
    old = manifest.read(args.folder)
    manifest.write(
        args.folder, manifest.successor(old, add=cards, joins=args.from_round)
    )
    return show(args)


def remove(args: Namespace) -> int:
    """Remove sites from the manifest."""
    old = manifest.read(args.folder)
    manifest.write(args.folder, manifest.successor(old, remove=args.names))
    return show(args)


def show(args: Namespace) -> int:
    """Print what a manifest says."""
    agreed = manifest.read(args.folder)
    if getattr(args, "json", False):
        print_json({**dataclasses.asdict(agreed), "hash": agreed.digest})
        return 0
    console = Console(highlight=False)
    length = f"{agreed.rounds} rounds"
    if agreed.ends:
        length = f"at most {length} until {agreed.ends}"
    console.print(
        f"{agreed.name}, version {agreed.version}: {len(agreed.members)} members, "
        f"{length}, proxy {agreed.proxy.architecture} for {list(agreed.input.shape)} and "
        f"{len(agreed.input.classes)} classes, {agreed.graph.topology} graph"
    )
    if agreed.schema is not None:
        console.print(
            f"schema {agreed.schema.name}, {agreed.schema.fingerprint}: predicts "
            f"{agreed.schema.label.column!r} from {', '.join(agreed.schema.features)}"
        )
    if agreed.settle:
        averaged = ""
        if agreed.average:
            averaged = f", after each site averages the last {agreed.average:.0%}"
        console.print(
            f"in the last {agreed.settle} rounds proxies only mix{averaged}"
        )
    if agreed.proxy.balance != "none":
        console.print(
            f"uneven classes in the proxy's loss: {agreed.proxy.balance}, by the public shares "
            f"{list(agreed.prevalence)}"
        )
    console.print(f"gain is reported in {agreed.measure}")
    table = Table("member", "address", "from round", "fingerprint of its key")
    for card in agreed.members:
        address = card.address or "dials out only"
        table.add_row(card.name, address, str(card.joins), spoken(card.fingerprint))
    console.print(table)
    console.print(f"hash {agreed.digest}", soft_wrap=True)
    console.print(
        "Each member: compare fingerprints and hash, then `proxyfl node accept`."
    )
    return 0


def try_out(args: Namespace) -> int:
    """Run a whole federation on this machine."""
    started = time.monotonic()
    folder = args.out or Path(tempfile.mkdtemp(prefix="proxyfl-try-"))
    layout = trial.lay_out(
        folder, sites=args.sites, rounds=args.rounds, template=trial.quick_site()
    )
    console = Console(highlight=False, stderr=args.json)
    console.print(
        f"{args.sites} sites in {folder}, one process each, mutual TLS 1.3 on loopback"
    )
    with console.status(
        "The sites train together; each keeps its data and its private model."
    ):
        codes = trial.run(layout)
    failed = [
        place.name for place, code in zip(layout.sites, codes, strict=True) if code
    ]
    if failed:
        raise ProxyFLError(
            f"{', '.join(failed)} failed. See node.log in the folder: {folder}"
        )
    with console.status("Each private model once more, alone, for comparison."):
        outcomes = trial.outcomes(layout)
    _tell(outcomes, layout.manifest.measure, console, as_json=args.json)
    if not args.json:
        console.print(_PLAIN_ALONE)
        console.print(f"{time.monotonic() - started:.0f} s in all")
    if args.out is None:
        shutil.rmtree(folder)
    return 0


def predict(folder: Path, *, as_json: bool) -> int:
    """Simulate a federation from its manifest and site files: what will the sites get?"""
    measure = manifest.read(folder).measure
    console = Console(highlight=False, stderr=as_json)
    with console.status("Simulating the federation in this process."):
        outcomes = prediction.predict(folder)
    _tell(outcomes, measure, console, as_json=as_json)
    return 0


def _tell(
    outcomes: list[Outcome], measure: str, console: Console, *, as_json: bool
) -> None:
    """Print the gains, as a table or as JSON."""
    if as_json:
        print_json([_plain(outcome, measure) for outcome in outcomes])
        return
    table = Table(
        "site", "private model", "examples", "alone", "joined", "gain", "epsilon"
    )
    for outcome in outcomes:
        gain = outcome.gain(measure)
        table.add_row(
            outcome.name,
            outcome.architecture,
            str(outcome.examples),
            _number(outcome.alone),
            _number(outcome.joined),
            "-" if gain is None else f"{100 * gain:+.1f} points",
            shown(outcome.epsilon.best),
        )
    console.print(table)
    worst = largest(outcome.epsilon for outcome in outcomes)
    console.print(f"Largest cost: {worst}.")


def _plain(outcome: Outcome, measure: str) -> dict[str, object]:
    return {
        "site": outcome.name,
        "architecture": outcome.architecture,
        "examples": outcome.examples,
        "alone": outcome.alone,
        "joined": outcome.joined,
        "gain": outcome.gain(measure),
        "epsilon": str(outcome.epsilon),
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


ACTIONS = {
    "new": new,
    "add": add,
    "remove": remove,
    "show": show,
    "try": try_out,
}
"""Every action by its name."""
