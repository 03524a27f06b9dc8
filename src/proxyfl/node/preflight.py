"""Is a site ready? Each check says ok, or what to do.

Peers are asked over the connection that the rounds will use. A site that is not running yet answers
while its own preflight runs, so all members can check at the same time (``wait``).

Nothing is charged and nothing lasts: the trial step runs on a throw-away copy of the models.
"""

import datetime
import json
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl import params
from proxyfl.errors import ProxyFLError, TransportError
from proxyfl.federation.client import Client
from proxyfl.node import assembly
from proxyfl.node.exchange.service import ABOUT, about
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.ways import dial
from proxyfl.node.members.card import Card, fingerprint_of
from proxyfl.node.members.identity import (
    KEY_FILE,
    SEALING_FILE,
    Identity,
    check_folder,
    check_secret,
)
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.roster import Roster
from proxyfl.node.members.site import Site

CLOCK_SECONDS = 30.0
STATES_KEPT = 8
"""The copies of all models that a site's folder holds at its fullest."""

_CALL_SECONDS = 5.0


@dataclass(frozen=True)
class Line:
    """One check: what was looked at, whether it is in order, what was found or is to be done."""

    check: str
    ok: bool
    text: str


def preflight(site: Site, folder: Path, *, wait: float = 0.0) -> Iterator[Line]:
    """All checks, as they are done."""
    yield _tried("private keys", lambda: _keys(folder))
    identity = _tried(
        "certificate", lambda: _certificate(Identity(folder, site.name))
    )
    yield identity
    if not identity.ok:
        return
    found: list[Roster] = []
    yield _tried("manifest", lambda: _manifest(site, folder, found))
    if not found:
        return
    roster = found[0]
    clients: list[Client] = []
    yield _tried("data", lambda: _data(site, folder, roster.current))
    yield _tried(
        "models and one DP step",
        lambda: _step(site, folder, roster.current, clients),
    )
    if clients:
        yield _tried("budget", lambda: _budget(clients[0], roster.current))
        yield _tried("disk", lambda: _disk(clients[0], folder))
    if site.network.folder:
        yield _tried(
            "exchange folder", lambda: _writable(folder / site.network.folder)
        )
        return
    yield from _network(site, folder, roster, wait)


def _tried(check: str, look: Callable[[], str]) -> Line:
    try:
        return Line(check, True, look())
    except (ProxyFLError, OSError) as error:
        return Line(check, False, str(error))


def _keys(folder: Path) -> str:
    for name in (KEY_FILE, SEALING_FILE):
        check_secret(folder / name)
    check_folder(folder)
    return "readable by their owner only"


def _certificate(identity: Identity) -> str:
    identity.tls_certificate()
    left = identity.expires() - datetime.datetime.now(datetime.UTC)
    if left.days < 1:
        raise TransportError(
            "The TLS certificate has ended. Run `proxyfl node certificate`."
        )
    return f"valid for {left.days} days"


def _manifest(site: Site, folder: Path, found: list[Roster]) -> str:
    roster = Roster(folder, Identity(folder, site.name))
    agreed = roster.current
    agreed.member(site.name)
    found.append(roster)
    return (
        f"version {agreed.version} of {agreed.name!r}, hash {agreed.digest[:16]}..."
    )


def _data(site: Site, folder: Path, agreed: Manifest) -> str:
    own = assembly.load(agreed, site, folder)
    present = len(set(own.train.labels.tolist()))
    total = len(agreed.input.classes)
    found = (
        f"{len(own.train)} examples to learn from, {len(own.test)} to judge by, {present} of "
        f"{total} classes"
    )
    return "; ".join([found, *own.notes])


def _step(site: Site, folder: Path, agreed: Manifest, clients: list[Client]) -> str:
    own = assembly.load(agreed, site, folder)
    # Without a budget: whether it covers the rounds is the next check's question.
    unbounded = assembly.with_budget(site, None)
    client = assembly.client(agreed, unbounded, own.train, ledger=None, seed=0)
    client.learner.train(0, 1)
    clients.append(
        assembly.client(
            agreed, site, own.train, ledger=None, seed=0, account=own.account
        )
    )
    size = params.size(client.learner.shared)
    return (
        f"a proxy of {size} parameters ({agreed.proxy.architecture}) learns with DP"
    )


def _budget(client: Client, agreed: Manifest) -> str:
    wanted = agreed.training_rounds * client.steps
    affordable = assembly.affordable_steps(client, wanted)
    rounds = affordable // client.steps
    if not rounds:
        raise TransportError(
            "privacy.budget, or what is left in the account, does not cover one round. Raise "
            "privacy.noise_multiplier, or use smaller batches or fewer steps."
        )
    kind = f"{client.ledger.kind}, per {client.ledger.unit}"
    if affordable < wanted:
        return f"covers {rounds} of {agreed.rounds} rounds ({kind}); the site leaves after those"
    return f"covers all {agreed.rounds} rounds ({kind})"


def _disk(client: Client, folder: Path) -> str:
    state = sum(value.nbytes for value in client.learner.state().values())
    needed = STATES_KEPT * state + (64 << 20)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise TransportError(
            f"{free >> 20} MB are free, up to {needed >> 20} MB are needed. Make room."
        )
    return f"{free >> 20} MB free, up to {needed >> 20} MB needed"


def _writable(path: Path) -> str:
    path.mkdir(parents=True, exist_ok=True)
    probe = path / ".preflight"
    probe.write_bytes(b"")
    probe.unlink()
    return f"{path} can be written"


def _network(
    site: Site, folder: Path, roster: Roster, wait: float
) -> Iterator[Line]:
    identity = roster.identity
    answering: list[Any] = []
    if site.network.listen:
        yield _tried("own port", lambda: _listen(site, folder, roster, answering))
    try:
        deadline = time.monotonic() + wait
        for card in roster.others():
            yield _peer_line(card, identity, roster, deadline)
        time.sleep(max(0.0, deadline - time.monotonic()))
    finally:
        for server in answering:
            server.stop()


def _listen(site: Site, folder: Path, roster: Roster, answering: list[Any]) -> str:
    from proxyfl.transport.grpc.server import Server

    def who(certificate: bytes) -> str:
        name = roster.named(fingerprint_of(certificate))
        if name is None:
            raise TransportError("Only members are answered.")
        return name

    def answer(certificate: bytes, pieces: Iterator[bytes]) -> bytes:
        if b"".join(pieces) != ABOUT:
            raise TransportError("Only members' preflights are answered now.")
        return about(roster.current)

    try:
        server = Server(
            site.network.listen,
            credentials=roster.credentials,
            who=who,
            answer=answer,
            follow=lambda _certificate, _listens: iter(()),
            largest=1 << 16,
        )
    except TransportError:
        if (folder / STORE_FILE).exists():
            return f"{site.network.listen} is in use, by this site's own node if it runs"
        raise
    answering.append(server)
    return f"{site.network.listen} is free"


def _peer_line(
    card: Card, identity: Identity, roster: Roster, deadline: float
) -> Line:
    check = f"peer {card.name}"
    if not card.address:
        return Line(
            check, True, "can only dial out: it will call this site, or use a relay"
        )
    while True:
        line = _tried(check, lambda: _peer(card, identity, roster))
        if line.ok or time.monotonic() > deadline:
            return line
        time.sleep(1.0)


def _peer(card: Card, identity: Identity, roster: Roster) -> str:
    _check_key(card, identity)
    channel = dial(card, identity, largest=1 << 16)
    try:
        answer = _understood(channel.send(ABOUT, timeout=_CALL_SECONDS))
    finally:
        channel.close()
    skew = abs(answer["time"] - time.time())
    if skew > CLOCK_SECONDS:
        raise TransportError(f"Its clock differs by {skew:.0f} s. Set both by NTP.")
    agreed = roster.current
    if answer["hash"] != agreed.digest:
        raise TransportError(
            f"It has version {answer['version']} of the manifest with another hash; this site has "
            f"version {agreed.version}. Accept the same manifest at both."
        )
    return f"{card.address} reached over TLS 1.3, same manifest, clocks {skew:.1f} s apart"


def _understood(answer: bytes) -> dict[str, Any]:
    """A peer's answer to ``ABOUT``; TransportError if it is something else."""
    try:
        found = json.loads(answer)
        return {
            "version": int(found["version"]),
            "hash": str(found["hash"]),
            "time": float(found["time"]),
        }
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
        raise TransportError(
            "It answers, but not as a site does. Does it run the same release?"
        ) from None


def _check_key(card: Card, identity: Identity) -> None:
    """See which key answers: something in between that opens TLS shows another one."""
    host, _, port = card.address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # looked at below: which key it is, is the question
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(identity.folder / "tls.pem", identity.folder / KEY_FILE)
    try:
        plain = socket.create_connection(
            (host.strip("[]"), int(port)), _CALL_SECONDS
        )
    except OSError as error:
        raise TransportError(
            f"{card.address} cannot be reached: {error}. Is the site or its preflight running, and "
            "does a firewall let this machine out to that port?"
        ) from error
    with closing(plain):
        try:
            with context.wrap_socket(plain) as secure:
                shown = secure.getpeercert(binary_form=True) or b""
        except (ssl.SSLError, OSError) as error:
            raise TransportError(
                f"{card.address} answers, but not with TLS 1.3: {error}. Something in between (a "
                "proxy, an antivirus) may break the connection: exempt this port from inspection."
            ) from error
    if fingerprint_of(ssl.DER_cert_to_PEM_cert(shown).encode()) != card.fingerprint:
        raise TransportError(
            f"{card.address} shows another key than the manifest's. Something in between opens "
            "the connection (TLS inspection), or the address is another machine's."
        )
