"""``proxyfl federation``: found one, change it, look at it, try it out."""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from proxyfl.cli.commands import add_json, opening
from proxyfl.cli.commands.sites import founding

if TYPE_CHECKING:
    from proxyfl.cli.commands import Commands
    from proxyfl.node.members.manifest import Manifest
    from proxyfl.node.prediction import Outcome

_PLAIN_ALONE = (
    "alone is plain: three fifths of a site's digits are of one class, and nobody is corrected for "
    "that. Part of the gain is the skew's (docs/joining.md)."
)

_EPILOG = """\
examples:
  proxyfl federation try --sites 4                 the whole of it on this machine, in two minutes
  proxyfl federation new heart --schema schema.toml *.card.toml       a table at each site
  proxyfl federation new scans --classes well,sick --shape 1,28,28 *.card.toml
  proxyfl federation add heart east.card.toml --from-round 10
  proxyfl federation remove heart west             how a site is revoked
  proxyfl federation show heart

The manifest holds no secrets. Each member signs it with `proxyfl node accept`.
"""


def add(commands: "Commands") -> None:
    """Add the command to the parser."""
    parser = opening(
        commands,
        "federation",
        execute,
        description="Make and change the manifest that the members of a federation sign.",
        epilog=_EPILOG,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    new = verbs.add_parser("new", help="collect cards into a manifest")
    founding.add_arguments(new)
    new.set_defaults(verb=_new)
    adding = verbs.add_parser(
        "add", help="a new version of the manifest, with a site added"
    )
    adding.add_argument("folder", type=Path, metavar="DIR")
    adding.add_argument("cards", type=Path, nargs="+", metavar="CARD")
    adding.add_argument(
        "--from-round", type=int, default=0, help="the site's first round"
    )
    adding.set_defaults(verb=_add)
    removing = verbs.add_parser(
        "remove", help="a new version of the manifest, without a site"
    )
    removing.add_argument("folder", type=Path, metavar="DIR")
    removing.add_argument("names", nargs="+", metavar="NAME")
    removing.set_defaults(verb=_remove)
    showing = verbs.add_parser("show", help="what a manifest says")
    showing.add_argument("folder", type=Path, metavar="DIR")
    add_json(showing)
    showing.set_defaults(verb=_show)
    trying = verbs.add_parser(
        "try", help="a whole federation on this machine, for a first look"
    )
    trying.add_argument("--sites", type=int, default=4)
    trying.add_argument("--rounds", type=int, default=30)
    trying.add_argument(
        "--out", type=Path, metavar="DIR", help="keep the sites' folders here"
    )
    add_json(trying)
    trying.set_defaults(verb=_try)


def execute(args: argparse.Namespace) -> int:
    """Do what the verb asks."""
    code: int = args.verb(args)
    return code


def _new(args: argparse.Namespace) -> int:
    founding.found(args)
    return _show(args)


def _add(args: argparse.Namespace) -> int:
    from proxyfl.node.members import manifest

    cards = [founding.read_card(path) for path in args.cards]
    old = manifest.read(args.folder)
    manifest.write(
        args.folder, manifest.successor(old, add=cards, joins=args.from_round)
    )
    return _show(args)


def _remove(args: argparse.Namespace) -> int:
    from proxyfl.node.members import manifest

    old = manifest.read(args.folder)
    manifest.write(args.folder, manifest.successor(old, remove=args.names))
    return _show(args)


def _show(args: argparse.Namespace) -> int:
    import dataclasses

    from proxyfl.node.members import manifest
    from proxyfl.node.members.card import spoken

    agreed = manifest.read(args.folder)
    if getattr(args, "json", False):
        print(json.dumps({**dataclasses.asdict(agreed), "hash": agreed.digest}))
        return 0
    console = Console(highlight=False)
    console.print(
        f"{agreed.name}, version {agreed.version}: {len(agreed.members)} members, "
        f"{_length(agreed)}, proxy {agreed.proxy.architecture} for {list(agreed.input.shape)} and "
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


def _length(agreed: "Manifest") -> str:
    if not agreed.ends:
        return f"{agreed.rounds} rounds"
    return f"at most {agreed.rounds} rounds until {agreed.ends}"


def _try(args: argparse.Namespace) -> int:
    from proxyfl.errors import ProxyFLError
    from proxyfl.node import trial

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
    if args.json:
        print(
            json.dumps(
                [_plain(outcome, layout.manifest.measure) for outcome in outcomes]
            )
        )
    else:
        show_outcomes(console, outcomes, layout.manifest.measure)
        console.print(_PLAIN_ALONE)
        console.print(f"{time.monotonic() - started:.0f} s in all")
    if args.out is None:
        shutil.rmtree(folder)
    return 0


def predict(folder: Path, *, as_json: bool) -> int:
    """Simulate a federation from its manifest and site files: what will the sites get?"""
    from proxyfl.node import prediction
    from proxyfl.node.members import manifest

    measure = manifest.read(folder).measure
    console = Console(highlight=False, stderr=as_json)
    with console.status("Simulating the federation in this process."):
        outcomes = prediction.predict(folder)
    if as_json:
        print(json.dumps([_plain(outcome, measure) for outcome in outcomes]))
    else:
        show_outcomes(console, outcomes, measure)
    return 0


def show_outcomes(
    console: Console, outcomes: "list[Outcome]", measure: str
) -> None:
    """The table of gains."""
    from proxyfl.privacy.guarantee import largest, shown

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


def _plain(outcome: "Outcome", measure: str) -> dict[str, object]:
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
