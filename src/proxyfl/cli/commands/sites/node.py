"""``proxyfl node``: one site of a real federation."""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from proxyfl.cli.commands import add_json, opening

if TYPE_CHECKING:
    from proxyfl.cli.commands import Commands

_EPILOG = """\
examples:
  proxyfl node init north --address north.example.org:7443 --data patients.csv
  proxyfl node card north > north.card.toml        for whoever keeps the manifest
  proxyfl node accept north manifest.toml          sign the manifest for this site
  proxyfl preflight north                          is everything in order?
  proxyfl node run north
  proxyfl node status north --json

A site's folder holds its keys, its settings (site.toml), its store, its privacy ledger and its
audit log. Nothing of it leaves the site but the card and the proxies. docs/node.md is a tutorial.
"""

Execute = Callable[[argparse.Namespace], int]


def execute(args: argparse.Namespace) -> int:
    """Do what the verb asks."""
    code: int = args.verb(args)
    return code


def add(commands: "Commands") -> None:
    """Add the command to the parser."""
    parser = opening(
        commands,
        "node",
        execute,
        description="Set up, run and look after one site of a real federation.",
        epilog=_EPILOG,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    init = _verb(
        verbs, "init", "make a site's folder: keys, certificate, settings", _init
    )
    init.add_argument("--name", help="the site's name (default: the folder's)")
    init.add_argument(
        "--address",
        default="",
        metavar="HOST:PORT",
        help="where peers reach this site; without it, the site can only dial out",
    )
    init.add_argument(
        "--data",
        default="data.npz",
        metavar="SOURCE",
        help="this site's examples: a file in its folder, or a dataset of `proxyfl data`",
    )
    init.add_argument(
        "--status-port",
        type=int,
        default=7480,
        metavar="PORT",
        help="of the status page, on this machine only (default: 7480)",
    )
    _verb(verbs, "card", "print the card that the others need", _card)
    certificate = _verb(
        verbs, "certificate", "renew, or have your own authority sign", _certificate
    )
    certificate.add_argument(
        "--request", action="store_true", help="print a signing request"
    )
    certificate.add_argument(
        "--install", type=Path, metavar="PEM", help="the signed certificate"
    )
    certificate.add_argument(
        "--authority", type=Path, metavar="PEM", help="whoever signed it"
    )
    accept = _verb(verbs, "accept", "sign a manifest for this site", _accept)
    accept.add_argument("manifest", type=Path, metavar="MANIFEST")
    run = _verb(verbs, "run", "take part until the end", _run)
    run.add_argument(
        "--simulated-seed",
        type=int,
        metavar="N",
        help="for tests only: seeded noise, which protects nobody; the ledger says so",
    )
    run.add_argument(
        "--no-status-page", action="store_true", help="serve no status page"
    )
    status = _verb(verbs, "status", "how far the site is, and with whom", _status)
    add_json(status)
    _verb(verbs, "stop", "ask a running site to stop after its round", _stop)
    _verb(
        verbs, "leave", "hand the site's mass on and leave the federation", _leave
    )
    rejoin = _verb(
        verbs, "rejoin", "continue after a restore from an old backup", _rejoin
    )
    rejoin.add_argument(
        "--round", type=int, required=True, help="the round that a peer named"
    )
    export = _verb(verbs, "export", "the private model, for use elsewhere", _export)
    export.add_argument(
        "out", type=Path, metavar="OUT", help="a new folder for the files"
    )


def _verb(
    verbs: "Commands",
    name: str,
    summary: str,
    execute: Execute,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name, help=summary, description=f"{summary.capitalize()}."
    )
    parser.add_argument(
        "folder", type=Path, metavar="SITE", help="the site's folder"
    )
    parser.set_defaults(verb=execute)
    return parser


def _init(args: argparse.Namespace) -> int:
    from proxyfl._files import write_text
    from proxyfl.node.members import site
    from proxyfl.node.members.card import check_address, spoken
    from proxyfl.node.members.identity import Identity

    name = args.name or args.folder.name
    check_address(name, args.address)
    identity = Identity.create(args.folder, name)
    port = args.address.rpartition(":")[2]
    settings = site.Site(
        name,
        data=site.Data(args.data),
        network=site.Network(
            listen=f"0.0.0.0:{port}" if port else "", status_port=args.status_port
        ),
    )
    write_text(args.folder / site.FILE, site.to_toml(settings))
    card_file = args.folder / f"{name}.card.toml"
    _write_card(card_file, identity, args.address)
    console = Console(highlight=False)
    console.print(
        f"Made {args.folder}: keys (they never leave it), {site.FILE}, a card."
    )
    console.print(f"Send the card {card_file} to whoever keeps the manifest.")
    console.print("Compare this fingerprint by telephone:")
    console.print(f"  {spoken(identity.fingerprint)}")
    return 0


def _card(args: argparse.Namespace) -> int:
    from proxyfl.node.members import site

    settings, folder = site.read(args.folder)
    print((folder / f"{settings.name}.card.toml").read_text(), end="")
    return 0


def _certificate(args: argparse.Namespace) -> int:
    from proxyfl.errors import ConfigError
    from proxyfl.node.members import site
    from proxyfl.node.members.identity import Identity

    settings, folder = site.read(args.folder)
    identity = Identity(folder, settings.name)
    if args.request:
        print(identity.signing_request().decode(), end="")
        return 0
    if args.install is None:
        identity.renew()
    elif args.authority is None:
        raise ConfigError(
            "Name the authority's certificate as well: --authority PEM."
        )
    else:
        identity.install(args.install.read_bytes(), args.authority.read_bytes())
        card = folder / f"{settings.name}.card.toml"
        address = "" if not card.exists() else _address(card)
        _write_card(card, identity, address)
        print(f"Send the new card to the others: {card}")
    print(
        f"The TLS certificate is valid until {identity.expires():%Y-%m-%d}. Peers need no word."
    )
    return 0


def _accept(args: argparse.Namespace) -> int:
    from proxyfl.node.members import manifest, roster, site
    from proxyfl.node.members.identity import Identity

    settings, folder = site.read(args.folder)
    agreed = manifest.read(args.manifest)
    roster.accept(folder, Identity(folder, settings.name), agreed)
    print(
        f"{settings.name} accepts version {agreed.version} of {agreed.name!r} with "
        f"{len(agreed.members)} members.\nhash {agreed.digest}"
    )
    return 0


def _run(args: argparse.Namespace) -> int:
    from proxyfl.node.members import site
    from proxyfl.node.observe.status import StatusServer
    from proxyfl.node.supervisor import Node
    from proxyfl.report.site import page

    settings, folder = site.read(args.folder)
    say = _say(settings.name)
    if args.simulated_seed is not None:
        say(
            "SIMULATED noise: for tests only. What this site shares is protected by nothing."
        )
    with Node(settings, folder, seed=args.simulated_seed, say=say) as node:
        _stop_on_signals(node.stopping, say)
        if args.no_status_page:
            ended = node.run()
        else:
            with StatusServer(
                node.status, port=settings.network.status_port, page=page
            ) as server:
                say(f"status page: {server.url}")
                ended = node.run()
    say(ended)
    return 0


def _status(args: argparse.Namespace) -> int:
    from proxyfl.node.members import site
    from proxyfl.node.observe import status

    settings, folder = site.read(args.folder)
    found = status.of_folder(settings, folder)
    if args.json:
        print(json.dumps(found))
        return 0
    _show_status(found)
    return 0


def _stop(args: argparse.Namespace) -> int:
    from proxyfl.node import supervisor
    from proxyfl.node.members import site

    _, folder = site.read(args.folder)
    (folder / supervisor.STOP_FILE).touch()
    print("The site stops when its round is over.")
    return 0


def _leave(args: argparse.Namespace) -> int:
    from proxyfl.node import supervisor
    from proxyfl.node.exchange import store
    from proxyfl.node.members import site

    settings, folder = site.read(args.folder)
    (folder / supervisor.LEAVE_FILE).touch()
    if store.is_running(folder):
        print("The site hands its mass on at the end of its round, and leaves.")
        return 0
    with supervisor.Node(settings, folder, say=_say(settings.name)) as node:
        print(node.run())
    return 0


def _rejoin(args: argparse.Namespace) -> int:
    from proxyfl.node import supervisor
    from proxyfl.node.members import site

    settings, folder = site.read(args.folder)
    with supervisor.Node(settings, folder, say=_say(settings.name)) as node:
        charged = node.begin_again(args.round)
    print(
        f"{settings.name} continues at round {args.round + 1} without mass; {charged} rounds that "
        "it does not remember were charged to its ledger. Start it with `proxyfl node run`."
    )
    return 0


def _export(args: argparse.Namespace) -> int:
    from proxyfl.node import export
    from proxyfl.node.members import site

    settings, folder = site.read(args.folder)
    for path in export.export(settings, folder, args.out):
        print(path)
    return 0


def _write_card(path: Path, identity: Any, address: str) -> None:
    from proxyfl import _settings
    from proxyfl._files import write_text

    write_text(path, _settings.to_toml(identity.card(address)))


def _address(card: Path) -> str:
    import tomllib

    return str(tomllib.loads(card.read_text())["address"])


def _say(name: str) -> Callable[[str], None]:
    return lambda line: print(f"{name}: {line}", flush=True)


def _stop_on_signals(stopping: threading.Event, say: Callable[[str], None]) -> None:
    """The first signal ends the site after its round, the second at once."""

    def stop(number: int, frame: object) -> None:
        if stopping.is_set():
            sys.exit(130)
        stopping.set()
        say("stops when its round is over; once more to stop now")

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)


def _show_status(found: dict[str, Any]) -> None:
    from rich.table import Table

    console = Console(highlight=False)
    state = "running" if found["running"] else "not running"
    console.print(
        f"{found['name']} of {found['federation']}: {state}, {found['state']}, round "
        f"{found['round']} of {found['rounds']}, weight {found['weight']:.4g}"
    )
    console.print(found["privacy"]["sentence"])
    table = Table("peer", "state", "round", "owed to it", "last contact")
    for peer in found["peers"]:
        ago = peer["seconds_since_contact"]
        shown = "never" if ago is None else f"{ago:.0f} s ago"
        table.add_row(
            peer["name"],
            peer["state"],
            str(peer["round"]),
            str(peer["owed"]),
            shown,
        )
    console.print(table)
