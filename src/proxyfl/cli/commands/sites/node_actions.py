"""The actions of ``proxyfl node``. What they import takes seconds, and the options need none of
it."""

import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proxyfl import _settings
from proxyfl._files import write_text
from proxyfl.cli.commands.sites.founding import read_card
from proxyfl.cli.options import Document, print_json
from proxyfl.errors import ConfigError
from proxyfl.node import export as exporting
from proxyfl.node.exchange import store
from proxyfl.node.members import manifest, roster, site
from proxyfl.node.members.card import check_address, spoken
from proxyfl.node.members.identity import Identity
from proxyfl.node.observe import status as statuses
from proxyfl.node.observe.status import StatusServer
from proxyfl.node.supervisor import LEAVE_FILE, STOP_FILE, Node
from proxyfl.report.site import page as site_page


def init(args: Namespace) -> int:
    """Make a site's folder: keys, settings, a card."""
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


def card(args: Namespace) -> int:
    """Print the site's card."""
    settings, folder = site.read(args.folder)
    print((folder / f"{settings.name}.card.toml").read_text(), end="")
    return 0


def certificate(args: Namespace) -> int:
    """Renew the certificate, or have another authority sign it."""
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
        address = read_card(card).address if card.exists() else ""
        _write_card(card, identity, address)
        print(f"Send the new card to the others: {card}")
    print(
        f"The TLS certificate is valid until {identity.expires():%Y-%m-%d}. Peers need no word."
    )
    return 0


def accept(args: Namespace) -> int:
    """Sign a manifest for this site."""
    settings, folder = site.read(args.folder)
    agreed = manifest.read(args.manifest)
    roster.accept(folder, Identity(folder, settings.name), agreed)
    print(
        f"{settings.name} accepts version {agreed.version} of {agreed.name!r} with "
        f"{len(agreed.members)} members.\nhash {agreed.digest}"
    )
    return 0


def run(args: Namespace) -> int:
    """Take part until the end, or until a signal."""
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
                node.status, port=settings.network.status_port, page=site_page
            ) as server:
                say(f"status page: {server.url}")
                ended = node.run()
    say(ended)
    return 0


def status(args: Namespace) -> int:
    """Print how far the site is."""
    settings, folder = site.read(args.folder)
    found = statuses.of_folder(settings, folder)
    if args.json:
        print_json(found)
    else:
        _show_status(found)
    return 0


def stop(args: Namespace) -> int:
    """Ask a running site to stop after its round."""
    _, folder = site.read(args.folder)
    (folder / STOP_FILE).touch()
    print("The site stops when its round is over.")
    return 0


def leave(args: Namespace) -> int:
    """Hand the site's mass on and leave."""
    settings, folder = site.read(args.folder)
    (folder / LEAVE_FILE).touch()
    if store.is_running(folder):
        print("The site hands its mass on at the end of its round, and leaves.")
        return 0
    with Node(settings, folder, say=_say(settings.name)) as node:
        print(node.run())
    return 0


def rejoin(args: Namespace) -> int:
    """Continue after a restore from an old backup."""
    settings, folder = site.read(args.folder)
    with Node(settings, folder, say=_say(settings.name)) as node:
        charged = node.begin_again(args.round)
    print(
        f"{settings.name} continues at round {args.round + 1} without mass; {charged} rounds that "
        "it does not remember were charged to its ledger. Start it with `proxyfl node run`."
    )
    return 0


def export(args: Namespace) -> int:
    """Write the private model for use elsewhere."""
    settings, folder = site.read(args.folder)
    for path in exporting.export(settings, folder, args.out):
        print(path)
    return 0


ACTIONS = {
    "init": init,
    "card": card,
    "certificate": certificate,
    "accept": accept,
    "run": run,
    "status": status,
    "stop": stop,
    "leave": leave,
    "rejoin": rejoin,
    "export": export,
}
"""Every action by its name."""


def _write_card(path: Path, identity: Identity, address: str) -> None:
    write_text(path, _settings.to_toml(identity.card(address)))


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


def _show_status(found: Document) -> None:
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
