"""``proxyfl node``: one site of a real federation.

Actions that train import what trains, which takes seconds.
"""

import contextlib
import dataclasses
import datetime
import sys
import threading
from argparse import Namespace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proxyfl._command import command
from proxyfl._files import write_text
from proxyfl._validate import whole
from proxyfl.cli.commands.federation import read_card
from proxyfl.cli.options import (
    JSON,
    Action,
    Document,
    Execute,
    Option,
    flag,
    option,
    print_answer,
    print_json,
)
from proxyfl.cli.signals import StopSignals
from proxyfl.errors import ConfigError, InputError, PrivacyError, ProxyFLError, RunError
from proxyfl.node.exchange import store
from proxyfl.node.exchange.auditlog import FILE as AUDIT_FILE
from proxyfl.node.exchange.auditlog import AuditLog
from proxyfl.node.exchange.protocol import RestoredError
from proxyfl.node.exits import STOPPED_BY_PEER, End, StopRequested, describe, exit_code
from proxyfl.node.members import holdout, manifest, roster, site
from proxyfl.node.members.identity import Identity, card_file, card_text, check_address, spoken
from proxyfl.node.members.trust import code_names, describe_code
from proxyfl.node.observe import status as statuses
from proxyfl.node.observe.lines import FORMATS, Attention, Lines
from proxyfl.node.observe.status import StatusServer
from proxyfl.node.observe.verdict import duration
from proxyfl.settings import Learning

DESCRIPTION = """\
Set up, run and look after one site of a real federation.
"""

EPILOG = """\
examples:
  proxyfl node init north --address north.example.org:7443 --data patients.csv
  proxyfl node card north > north.card.toml        for the keeper of the manifest
  proxyfl node accept north manifest.toml          sign the manifest for this site
  proxyfl preflight north                          is everything in order?
  proxyfl node run north
  proxyfl node status north --json
  proxyfl node stop north                          after its round; run continues
  proxyfl node leave north                         for good: hands its mass on
  proxyfl node export north north-model            the private model, and the certificate
  proxyfl node certificate north                   renew the TLS certificate
  proxyfl node certificate north --request > north.csr     for your own authority to sign
  proxyfl node certificate north --install signed.pem --authority authority.pem
  proxyfl node rotate-key north                    a new key; the old one signs its card
  proxyfl node card north --next > north.card.toml         the new key's card, for the keeper
  proxyfl node backup north north.tar              one consistent copy, also while it runs
  proxyfl node restore north.tar north             on a new machine, or after a lost disk
  proxyfl node health north                        for Docker, systemd and monitoring
  proxyfl node rejoin north                        after a restore from an old backup
  proxyfl node redraw north                        a new test part, if its key is lost

A site's folder holds its keys, its settings (site.toml), its store, its privacy ledger and its
audit log. Only the card, the signed manifest and signed messages, which carry the proxies, leave
the site. docs/start/three-sites.md is a tutorial.
"""

RUN_EPILOG = f"""\
SIGTERM and Ctrl-C stop the site within 5 seconds, also in the middle of a round; the next run
continues. A second one ends it at once.

{describe()}"""


def init(args: Namespace) -> int:
    """Make a site's folder: keys, settings, a card."""
    from proxyfl.node import proposal
    from proxyfl.privacy.sampling import public_number

    name = args.name or args.folder.name
    check_address(name, args.address)
    if args.examples is not None:
        whole("--examples", args.examples)
    identity = Identity.create(args.folder, name)
    holdout.create(args.folder)
    port = args.address.rpartition(":")[2]
    records, remark = proposal.locate(args.data, args.folder)
    source = proposal.state_form(site.Data(source=records), args.folder)
    examples = args.examples
    if examples is None:
        counted = proposal.count_examples(source, args.folder)
        examples = None if counted is None else public_number(counted)
    learning = Learning()
    if examples is not None:
        learning = dataclasses.replace(learning, batch_size=min(learning.batch_size, examples))
    settings = site.Site(
        name,
        data=source,
        learning=learning,
        privacy=proposal.privacy(examples),
        network=site.Network(
            listen=f"0.0.0.0:{port}" if port else "", status_port=args.status_port
        ),
    )
    write_text(args.folder / site.FILE, site.to_toml(settings))
    card_path = args.folder / card_file(name)
    _write_card(card_path, identity, args.address)
    document = {
        "site": name,
        "folder": str(args.folder),
        "settings": str(args.folder / site.FILE),
        "card": str(card_path),
        "fingerprint": identity.fingerprint,
        "budget": settings.privacy.budget,
        "delta": settings.privacy.delta,
        "examples": settings.privacy.examples,
    }
    text = (
        f"Made {args.folder}: keys (they never leave it), {site.FILE}, a card.\n"
        f"{remark}{_describe_declared(settings.privacy)}\n"
        f"Send the card {card_path} to the keeper of the manifest.\n"
        f"Compare this fingerprint by telephone:\n  {spoken(identity.fingerprint)}"
    )
    print_answer(args, document, text)
    return 0


def card(args: Namespace) -> int:
    """Print the site's card."""
    settings, folder = site.read(args.folder)
    home = folder
    if args.next:
        home = _waiting(folder, Identity(folder, settings.name)).folder
    path = home / card_file(settings.name)
    if not path.is_file():
        raise ConfigError(
            f"No card {path}: this folder has no keys yet. To make a site with its keys, run: "
            f"{command('node', 'init', 'NAME')}"
        )
    own = read_card(path)
    if args.json:
        print_json({**dataclasses.asdict(own), "fingerprint": own.fingerprint})
    else:
        print(path.read_text(), end="")
    return 0


def rotate_key(args: Namespace) -> int:
    """Make a new key, and the card by which the others come to know it."""
    settings, folder = site.read(args.folder)
    identity = Identity(folder, settings.name)
    waiting = identity.rotate(_address(folder, settings.name))
    path = waiting.folder / card_file(settings.name)
    document = {
        "site": settings.name,
        "folder": str(waiting.folder),
        "card": str(path),
        "fingerprint": waiting.fingerprint,
    }
    text = (
        f"A new key waits in {waiting.folder}; {settings.name} uses its present key until it has "
        "accepted a manifest that lists the new one.\n"
        f"Send this card to the keeper of the manifest: {path}\n"
        f"The keeper runs: {command('federation', 'replace-card', 'DIR', path.name)}\n"
        f"Then each member, this site too: {command('node', 'accept', 'SITE', 'manifest.toml')}\n"
        "The present key has signed the card, so nobody needs to compare fingerprints. The new "
        f"key's:\n  {spoken(waiting.fingerprint)}"
    )
    print_answer(args, document, text)
    return 0


def certificate(args: Namespace) -> int:
    """Renew the certificate, or have another authority sign it."""
    settings, folder = site.read(args.folder)
    present = Identity(folder, settings.name)
    identity = _waiting(folder, present) if args.next else present
    if args.request:
        request = identity.signing_request().decode()
        print_answer(args, {"site": settings.name, "request": request}, request.rstrip("\n"))
        return 0
    if args.install is None:
        identity.renew()
    elif args.authority is None:
        raise ConfigError("Name the authority's certificate as well: --authority PEM.")
    else:
        identity.install(args.install.read_bytes(), args.authority.read_bytes())
    path = identity.folder / card_file(settings.name)
    before = path.read_bytes() if path.exists() else b""
    if not args.next:
        _write_card(path, identity, read_card(path).address if path.exists() else "")
    elif args.install is not None:
        write_text(path, card_text(present.endorse(identity, read_card(path).address)))
    changed = path.read_bytes() != before
    document = {
        "site": settings.name,
        "expires": f"{identity.expires():%Y-%m-%d}",
        "card": str(path),
        "card_changed": changed,
    }
    text = f"The TLS certificate is valid until {document['expires']}.\n"
    if changed:
        text += f"Send the new card to the keeper of the manifest: {path}"
    else:
        text += "The card is the same: there is nothing to send to the peers."
    print_answer(args, document, text)
    return 0


def accept(args: Namespace) -> int:
    """Sign a manifest for this site."""
    settings, folder = site.read(args.folder)
    agreed = manifest.read(args.manifest)
    described = describe_code(agreed)
    if described and not args.json:
        print(described, flush=True)
    identity = Identity(folder, settings.name)
    changed = roster.find_changed_keys(folder, agreed)
    roster.accept(folder, identity, agreed, settings.trust)
    lines = [
        f"{name} has a new key, which its old key signed for. The old one is refused now."
        for name in changed
    ]
    lines += [
        f"{settings.name} accepts version {agreed.version} of {agreed.name!r} with "
        f"{len(agreed.members)} members.",
        f"hash {agreed.digest}",
    ]
    has_new_key = identity.take(agreed.member(settings.name).public_key)
    if has_new_key:
        lines.append(_move_key(folder, identity))
    notes = list(manifest.notes(agreed))
    document = {
        "site": settings.name,
        "federation": agreed.name,
        "version": agreed.version,
        "hash": agreed.digest,
        "members": [member.name for member in agreed.members],
        "changed_keys": list(changed),
        "own_key_changed": has_new_key,
        "code": code_names(agreed),
        "notes": notes,
    }
    print_answer(args, document, "\n".join([*lines, *(f"note: {note}" for note in notes)]))
    return 0


def run(args: Namespace) -> int:
    """Take part until the end, or until a signal."""
    settings, folder = site.read(args.folder)
    say = Lines(settings.name, format=args.log_format)
    if args.simulated_seed is not None:
        warning = "SIMULATED noise: for tests only. What this site shares is protected by nothing."
        say(Attention(warning))
    port = None if args.no_status_page else settings.network.status_port
    try:
        return _take_part(settings, folder, say, seed=args.simulated_seed, status_port=port)
    except ProxyFLError as error:
        say.say(str(error), "error")
        return 2 if isinstance(error, InputError) else 1


def _take_part(
    settings: site.Site,
    folder: Path,
    say: Lines,
    *,
    seed: int | None = None,
    status_port: int | None = None,
) -> int:
    """Run the site to its end; return the exit code."""
    from proxyfl.node.supervisor import Node
    from proxyfl.report.site import page as site_page

    stopping = threading.Event()
    signals = StopSignals(stopping, say)
    try:
        with (
            signals,
            Node(settings, folder, seed=seed, say=say, stopping=stopping) as node,
            contextlib.ExitStack() as stack,
        ):
            if status_port is not None:
                server = StatusServer(node.status, port=status_port, page=site_page)
                stack.enter_context(server)
                say(f"status page: {server.url}")
            end = node.run()
    except RestoredError as error:
        say.say(str(error), "error")
        return STOPPED_BY_PEER
    except StopRequested:  # before it had begun
        end = End.STOPPED
    say(end)
    return signals.exit_code if end is End.STOPPED else exit_code(end)


def status(args: Namespace) -> int:
    """Print how far the site is."""
    settings, folder = site.read(args.folder)
    document = statuses.of_folder(settings, folder)
    if args.json:
        print_json(document)
    else:
        _show_status(document)
    return 0


def stop(args: Namespace) -> int:
    """Ask a running site to stop after its round."""
    settings, folder = site.read(args.folder)
    text = f"{settings.name} stops when its training round is over, or at once if it waits."
    was_running = store.request_stop(folder)
    if not was_running:
        text = f"{settings.name} is not running. Nothing was stopped or changed."
    print_answer(args, {"site": settings.name, "was_running": was_running}, text)
    return 0


def leave(args: Namespace) -> int:
    """Hand the site's mass on and leave."""
    settings, folder = site.read(args.folder)
    (folder / store.LEAVE_FILE).touch()
    document = {"site": settings.name, "was_running": store.is_running(folder), "left": False}
    if document["was_running"]:
        text = f"{settings.name} hands its mass on at the end of its round, and leaves."
        print_answer(args, document, text)
        return 0
    with _lines_apart(args):
        print(
            f"{settings.name} is not running. It starts now, hands its mass on and leaves. If this "
            f"is interrupted, the next `{command('node', 'run', args.folder)}` leaves."
        )
        try:
            code = _take_part(settings, folder, Lines(settings.name))
        except RunError:  # a full disk: the next run goes on with it
            raise
        except (InputError, PrivacyError):
            _stay(settings.name, folder)
            raise
        if code == STOPPED_BY_PEER:
            _stay(settings.name, folder)
    document["left"] = code == exit_code(End.LEFT)
    if args.json:
        print_json(document)
    return 0 if document["left"] else code


def _lines_apart(args: Namespace) -> contextlib.AbstractContextManager[object]:
    """The lines of a site that an action starts go to stderr where stdout is for JSON."""
    if args.json:
        return contextlib.redirect_stdout(sys.stderr)
    return contextlib.nullcontext()


def _stay(name: str, folder: Path) -> None:
    """Take back a request to leave that could not be met: it must not surprise a later run."""
    (folder / store.LEAVE_FILE).unlink(missing_ok=True)
    print(f"{name} could not be started, so it has not left. Its next run does not leave either.")


def rejoin(args: Namespace) -> int:
    """Continue after a restore from an old backup."""
    from proxyfl.node import assembly
    from proxyfl.node.supervisor import Node

    settings, folder = site.read(args.folder)
    with _lines_apart(args), Node(settings, folder, say=Lines(settings.name)) as node:
        print(
            f"Each round of a lost copy is charged as {assembly.describe_round(node.client)}. If "
            "that copy ran with less noise, a larger batch or more steps, press Ctrl-C, put its "
            f"settings into {args.folder / site.FILE}, and run this again.\n"
            f"{settings.name} asks its peers what they have seen of it.",
            flush=True,
        )
        rejoined = node.begin_again(args.round)
        spent = node.client.ledger.epsilon()
    document = {
        "site": settings.name,
        "round": rejoined.round + 1,
        "charged_rounds": rejoined.charged,
        "spent": str(spent),
        "weight_owed": rejoined.debt,
        "not_reached": list(rejoined.silent),
    }
    lines = [
        f"{settings.name} continues at round {rejoined.round + 1} without mass; {rejoined.charged} "
        f"rounds that it does not remember were charged to its ledger. Spent: {spent}"
    ]
    if rejoined.debt:
        lines.append(
            f"A copy of it has given away a weight of {rejoined.debt:g} that counts for nothing: "
            "what it receives makes up for that first."
        )
    if rejoined.silent:
        lines.append(
            f"Not reached: {', '.join(rejoined.silent)}. A peer that has seen more of this site "
            "stops it when they meet; then rejoin once more."
        )
    lines.append(f"Start it: {command('node', 'run', args.folder)}")
    print_answer(args, document, "\n".join(lines))
    return 0


def redraw(args: Namespace) -> int:
    """Draw a new test part."""
    _, folder = site.read(args.folder)
    with store.hold_folder(folder):
        holdout.redraw(folder)
        AuditLog(folder / AUDIT_FILE).add("test part drawn again")
    path, notes = folder / holdout.FILE, list(holdout.notes(folder))
    lines = [f"{path} now draws another test part. Back it up with the folder."]
    lines += [f"{note}. The privacy guarantee stays as it was." for note in notes]
    print_answer(args, {"key": str(path), "notes": notes}, "\n".join(lines))
    return 0


def export(args: Namespace) -> int:
    """Write the private model for use elsewhere."""
    from proxyfl.node import export as exporting

    settings, folder = site.read(args.folder)
    paths = [str(path) for path in exporting.export(settings, folder, args.out)]
    print_answer(args, {"site": settings.name, "files": paths}, "\n".join(paths))
    return 0


def _address(folder: Path, name: str) -> str:
    """The address on a site's card; without one, that of the manifest that it has accepted."""
    path = folder / card_file(name)
    accepted = sorted((folder / roster.FOLDER).glob("*.toml"))
    if path.exists() or not accepted:
        return read_card(path).address
    return manifest.read(accepted[-1]).member(name).address


def _waiting(folder: Path, identity: Identity) -> Identity:
    """The identity that waits to replace a site's."""
    if identity.next is None:
        raise ConfigError(
            f"No new key is waiting. To make one: {command('node', 'rotate-key', folder)}"
        )
    return identity.next


def _describe_declared(privacy: site.Privacy) -> str:
    """A sentence on what the new site's privacy settings say, and what is left to decide."""
    settled = f"{site.FILE}, [privacy]: a budget of epsilon {privacy.budget:g}"
    if privacy.examples is None:
        return (
            f"{settled}. Declare there, rounded, how many examples the site trains on (examples = "
            "...): until then their true number is public. Preflight proposes a number."
        )
    return (
        f"{settled} at delta {privacy.delta:g}, for a declared number of {privacy.examples} "
        "examples, which is public. Read these before you sign a manifest."
    )


def _write_card(path: Path, identity: Identity, address: str) -> None:
    """Write a site's card; the proof that its key follows from an earlier one stays on it."""
    card = identity.card(address)
    if path.exists():
        known = read_card(path)
        if (known.public_key, known.certificate) == (card.public_key, card.certificate):
            card = dataclasses.replace(card, previous=known.previous, proof=known.proof)
    write_text(path, card_text(card))


def _move_key(folder: Path, identity: Identity) -> str:
    """Put a site's new key into its place, unless a program that runs the site does that."""
    key = f"{identity.fingerprint[:16]}..."
    if store.is_running(folder):
        return f"The running site changes to its new key {key} at once."
    with store.hold_folder(folder):
        identity.move()
    return f"This site's key is {key} from now on; the old one is removed."


def _show_status(document: Document) -> None:
    console = Console(highlight=False)
    console.print(document["verdict"], soft_wrap=True, markup=False)
    state = "running" if document["running"] else "not running"
    console.print(
        f"{document['name']} of {document['federation']}: {state}, {document['state']}, round "
        f"{document['round']} of {document['rounds']}, weight {document['weight']:.4g}"
    )
    console.print(document["privacy"]["sentence"])
    console.print(f"release {document['release']}, protocol {document['protocol']}")
    for sentence in statuses.notices(document):
        console.print(sentence, soft_wrap=True, markup=False)
    table = Table("peer", "state", "round", "owed to it", "last contact", "held up", "release")
    for peer in document["peers"]:
        ago = peer["seconds_since_contact"]
        shown = "never" if ago is None else f"{duration(ago)} ago"
        why = "" if peer["held_up"] is None else peer["held_up"]["code"]
        cells = (peer["name"], peer["state"], str(peer["round"]), str(peer["owed"]), shown, why)
        table.add_row(*cells, peer["release"] or "unknown")
    console.print(table)


def backup(args: Namespace) -> int:
    """Write one copy of the site to a file, also while it runs."""
    from proxyfl.node.backup import backup

    settings, folder = site.read(args.folder)
    contents = backup(settings, folder, args.file)
    size = args.file.stat().st_size
    document = {
        "site": contents.site,
        "round": contents.round + 1,
        "file": str(args.file),
        "bytes": size,
        "files": contents.files,
        "records_not_in_it": settings.data.source,
        "account_not_in_it": settings.privacy.account or None,
    }
    lines = [
        f"{settings.name}, round {contents.round + 1}: {len(contents.files)} files, "
        f"{size / 1e6:.1f} MB, in {args.file}. Its keys and its private model are in there: keep "
        "it as you keep the site's folder.",
        f"Not in it: the records ({settings.data.source}).",
    ]
    if settings.privacy.account:
        account = settings.privacy.account
        lines.append(f"Not in it: the account {account}. Back it up with the others.")
    print_answer(args, document, "\n".join(lines))
    return 0


def restore(args: Namespace) -> int:
    """Bring a site back from a backup, as a new folder."""
    from proxyfl.node.backup import restore

    contents = restore(args.file, args.folder)
    made = datetime.datetime.fromtimestamp(contents.time, datetime.UTC)
    settings, _ = site.read(args.folder)
    document = {
        "site": contents.site,
        "folder": str(args.folder),
        "made": f"{made:%Y-%m-%dT%H:%M:%SZ}",
        "round": contents.round + 1,
        "records": settings.data.source,
    }
    text = (
        f"{contents.site} is in {args.folder} again as it was on {made:%Y-%m-%d %H:%M} UTC, in "
        f"round {contents.round + 1}. Make sure that no other copy of it runs.\n"
        f"Put its records back: {settings.data.source}. Then run:\n"
        f"  {command('preflight', args.folder)}\n"
        f"  {command('node', 'run', args.folder)}\n"
        "It first asks all of its peers. If one has seen it further than the backup knows, it "
        "stops and says how to rejoin."
    )
    print_answer(args, document, text)
    return 0


def health(args: Namespace) -> int:
    """Say in one line whether the site is healthy; exit code 0 if it is, 1 if not, also where its
    files cannot be read: Docker knows no other code."""
    from proxyfl.node.observe import health

    try:
        settings, folder = site.read(args.folder)
        verdict = health.check(settings, folder)
    except ProxyFLError as error:
        verdict = health.Health(False, "unknown", str(error), (str(error),))
    if args.json:
        print_json(dataclasses.asdict(verdict))
    else:
        print(verdict.line)
    return 0 if verdict.healthy else 1


def _on_site(
    name: str, execute: Execute, summary: str, *options: Option, epilog: str = ""
) -> Action:
    """An action whose first argument is the site's folder."""
    folder = option("folder SITE", "the site's folder", Path)
    return Action(name, summary, (folder, *options), execute, epilog=epilog)


_RESTORED = (
    option("file FILE", "what backup wrote", Path),
    option("folder SITE", "a new folder for the site", Path),
    JSON,
)

ACTIONS = (
    _on_site(
        "init",
        init,
        "make a site's folder: keys, certificate, settings",
        option("--name", "the site's name (default: the folder's)"),
        option(
            "--address HOST:PORT",
            "where peers reach this site; without it, the site can only dial out",
            str,
            "",
        ),
        option(
            "--data SOURCE",
            "this site's examples: a file in its folder, or a dataset of `proxyfl data`",
            str,
            "data.npz",
        ),
        option(
            "--examples N",
            "declared, public number of examples that the site trains on (default: the data's "
            "own, rounded down, if they are there)",
            int,
        ),
        option("--status-port PORT", "of the status page, on this machine only", int, 7480),
        JSON,
    ),
    _on_site(
        "card",
        card,
        "print the card that the others need",
        flag("--next", "the card of the new key that waits, signed by the present one"),
        JSON,
    ),
    _on_site(
        "rotate-key",
        rotate_key,
        "make a new key, which replaces this site's once a manifest lists it",
        JSON,
    ),
    _on_site(
        "certificate",
        certificate,
        "renew, or have your own authority sign",
        flag("--request", "print a signing request"),
        option("--install PEM", "the signed certificate", Path),
        option("--authority PEM", "the authority that signed it", Path),
        flag("--next", "for the new key that waits, not for the present one"),
        JSON,
    ),
    _on_site(
        "accept",
        accept,
        "sign a manifest for this site",
        option("manifest MANIFEST", "its file or folder", Path),
        JSON,
    ),
    _on_site(
        "run",
        run,
        "take part until the end",
        option(
            "--simulated-seed N",
            "for tests only: seeded noise, which protects nobody; the ledger says so",
            int,
        ),
        flag("--no-status-page", "serve no status page"),
        option("--log-format", "of the lines: text or json", str, "text", choices=FORMATS),
        epilog=RUN_EPILOG,
    ),
    _on_site("status", status, "how far the site is, and with whom", JSON),
    _on_site(
        "stop",
        stop,
        "ask a running site to stop after its round; one that does not run is left alone",
        JSON,
    ),
    _on_site(
        "leave",
        leave,
        "hand the site's mass on and leave the federation, now or at its next run",
        JSON,
    ),
    _on_site(
        "rejoin",
        rejoin,
        "continue after a restore from an old backup",
        option(
            "--round N",
            "a copy of this site has released the rounds before N (default: what peers say)",
            int,
        ),
        JSON,
    ),
    _on_site(
        "backup",
        backup,
        "write one copy of the site to a file, also while it runs",
        option("file FILE", "a new file; it holds the site's keys", Path),
        JSON,
    ),
    Action("restore", "bring a site back from a backup, as a new folder", _RESTORED, restore),
    _on_site("health", health, "one line and exit code 0 if the site is healthy, 1 if not", JSON),
    _on_site(
        "redraw", redraw, "draw a new test part, if the key that drew the old one is lost", JSON
    ),
    _on_site(
        "export",
        export,
        "the private model, for use elsewhere",
        option("out OUT", "a new folder for the files", Path),
        JSON,
    ),
)
