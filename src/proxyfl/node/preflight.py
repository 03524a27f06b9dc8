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

from cryptography import x509

from proxyfl import params
from proxyfl._command import command
from proxyfl._entrypoint import is_code
from proxyfl.data.tables.databases import Query, is_url
from proxyfl.errors import PeerTimeout, ProxyFLError, TransportError
from proxyfl.federation.client import Client
from proxyfl.node import assembly, proposal
from proxyfl.node.exchange import auditlog
from proxyfl.node.exchange.auditlog import CLOCK_SECONDS
from proxyfl.node.exchange.courier import dial
from proxyfl.node.exchange.service import ABOUT, about
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.members import holdout
from proxyfl.node.members.identity import (
    KEY_FILE,
    NEXT_FOLDER,
    SEALING_FILE,
    Card,
    Identity,
    check_dates,
    check_folder,
    check_secret,
    fingerprint_of,
)
from proxyfl.node.members.manifest import Manifest, notes
from proxyfl.node.members.roster import Roster
from proxyfl.node.members.site import Site
from proxyfl.node.members.trust import check_code, code_names, code_of
from proxyfl.node.members.versions import PROTOCOL, other_protocol
from proxyfl.node.observe import status, verdict
from proxyfl.node.summing import rehearse
from proxyfl.privacy.coalition import worst_case
from proxyfl.privacy.guarantee import shown
from proxyfl.privacy.worth import gaussian_dp, least_size, site_weight

STATES_KEPT = 8
"""The copies of all models that a site's folder holds at its fullest."""

_CALL_SECONDS = 5.0


@dataclass(frozen=True)
class Line:
    """One check: what was looked at, whether it is in order, what was found or is to be done.

    With ``warn`` the site can take part, and somebody should read the text first."""

    check: str
    ok: bool
    text: str
    warn: bool = False


class Caution(Exception):
    """A check's warning: the text of its line."""


def preflight(site: Site, folder: Path, *, wait: float = 0.0) -> Iterator[Line]:
    """All checks, as they are done."""
    yield _run_check("private keys", lambda: _keys(folder))
    identity = _run_check("certificate", lambda: _certificate(Identity(folder, site.name)))
    yield identity
    if not identity.ok:
        return
    yield _run_check("clock", lambda: _clock(folder))
    yield _run_check("records", lambda: _records(folder))
    rosters: list[Roster] = []
    yield _run_check("manifest", lambda: _manifest(site, folder, rosters))
    if not rosters:
        return
    roster = rosters[0]
    yield _run_check("members' certificates", lambda: _members(roster))
    yield _run_check("code", lambda: _code(site, roster.current))
    clients: list[Client] = []
    yield _run_check("data", lambda: _data(site, folder, roster.current))
    if is_url(site.data.source):
        yield _run_check("query", lambda: _query(site, folder))
    else:
        yield _run_check("form of the file", lambda: _form(site, folder))
    yield _run_check("models and one DP step", lambda: _step(site, folder, roster.current, clients))
    if clients:
        yield _run_check("declared numbers", lambda: _describe_declared(site, clients[0]))
        yield _run_check("budget", lambda: _budget(clients[0], roster.current, site, folder))
        agreed = roster.current
        if agreed.proxy.architecture == "linear" and agreed.task.is_classification:
            yield _run_check("size", lambda: _size(clients[0], roster.current, site, folder))
        yield _run_check("disk", lambda: _disk(clients[0], folder))
    if site.network.folder:
        yield _run_check("exchange folder", lambda: _writable(folder / site.network.folder))
        return
    yield from _network(site, folder, roster, wait)


def _run_check(check: str, look: Callable[[], str]) -> Line:
    try:
        return Line(check, True, look())
    except Caution as caution:
        return Line(check, True, str(caution), warn=True)
    except (ProxyFLError, OSError) as error:
        return Line(check, False, str(error))


def _keys(folder: Path) -> str:
    for name in (KEY_FILE, SEALING_FILE):
        check_secret(folder / name)
    if (folder / holdout.FILE).exists():
        check_secret(folder / holdout.FILE)
    check_folder(folder)
    if not (folder / NEXT_FOLDER).exists():
        return "readable by their owner only"
    for name in (KEY_FILE, SEALING_FILE):
        check_secret(folder / NEXT_FOLDER / name)
    return (
        "readable by their owner only; a new key waits for a manifest that lists it. Its card: "
        f"{command('node', 'card', folder, '--next')}"
    )


def _certificate(identity: Identity) -> str:
    identity.tls_certificate()  # renewed if it ends soon, or a wrong clock dated it
    identity.check_dates()
    left = identity.expires() - datetime.datetime.now(datetime.UTC)
    text = f"valid for {left.days} days"
    if left.days < verdict.SOON_DAYS:
        request = command("node", "certificate", identity.folder, "--request")
        raise Caution(f"{text} only. Have your authority sign this request again: {request}")
    return text


def _clock(folder: Path) -> str:
    """Compare the clock with this site's own records; peers' clocks are compared with theirs."""
    entries = auditlog.read(folder / auditlog.FILE)
    times = [entry["time"] for entry in entries[-1:] if isinstance(entry.get("time"), int | float)]
    ahead = max(times, default=0.0) - time.time()
    if ahead > CLOCK_SECONDS:
        raise Caution(
            f"the last entry of {auditlog.FILE} is {_span(ahead)} in the future: this machine's "
            "clock was ahead then, or is behind now. Set it by NTP. If it is right now, start the "
            "site: its log then says that the clock was set."
        )
    return "no entry of this site is from the future"


def _span(seconds: float) -> str:
    if seconds > 2 * 86400:
        return f"{seconds / 86400:.0f} days"
    return f"{seconds:.0f} s"


def _records(folder: Path) -> str:
    """See that the files that only grow are whole; a damaged ledger is refused elsewhere."""
    faults = [*auditlog.faults(folder / auditlog.FILE), *status.metrics_log(folder).faults]
    if faults:
        raise Caution(" ".join(faults))
    return "audit log and metrics are whole"


def _members(roster: Roster) -> str:
    """See that the certificates by which peers know each other are valid."""
    for card in roster.current.members:
        advice = (
            f"If the clock here is right, {card.name} makes a new card, and a new version of the "
            f"manifest lists it. At {card.name}, run: {command('node', 'certificate', 'SITE')}"
        )
        certificate = x509.load_pem_x509_certificate(card.pem)
        check_dates(certificate, f"The certificate of {card.name} in the manifest", advice)
    return "valid now"


def _manifest(site: Site, folder: Path, found: list[Roster]) -> str:
    roster = Roster(folder, Identity(folder, site.name))
    agreed = roster.current
    agreed.member(site.name)
    found.append(roster)
    text = f"version {agreed.version} of {agreed.name!r}, hash {agreed.digest[:16]}..."
    return "; ".join([text, *notes(agreed)])


def _code(site: Site, agreed: Manifest) -> str:
    """The code that names lead to; nothing is imported here."""
    check_code(agreed, site.trust)
    named = ", ".join(code_names(agreed))
    own = ", ".join(filter(is_code, [site.model.architecture, site.data.source]))
    said = f"the manifest names {named}, which trust.modules allows" if named else ""
    ours = f"site.toml names {own}" if own else ""
    return "; ".join(filter(None, [said, ours])) or "neither the manifest nor site.toml names any"


def _data(site: Site, folder: Path, agreed: Manifest) -> str:
    own = assembly.load(agreed, site, folder)
    counts = f"{len(own.train)} examples to learn from, {len(own.test)} to judge by, "
    if agreed.task.is_classification:
        present = len(set(own.train.labels.tolist()))
        counts += f"{present} of {agreed.task.outputs} classes"
    else:
        counts += agreed.task.described()
    return "; ".join([counts, *own.notes])


def _form(site: Site, folder: Path) -> str:
    """See that the form of a CSV file is stated, and not recognised at each start."""
    stated = proposal.state_form(site.data, folder)
    open_ = []
    for name in ("separator", "decimal", "encoding"):
        if getattr(site.data, name) != getattr(stated, name):
            open_.append(f'{name} = "{getattr(stated, name)}"')
    if open_:
        raise Caution(
            "recognised from the file at each start, so one record can change how all others are "
            f"read, which no epsilon covers. State it in [data] of site.toml: {', '.join(open_)}"
        )
    return "stated in site.toml, or follows from the kind of file"


def _query(site: Site, folder: Path) -> str:
    """See that a row of the query's answer does not depend on other persons' rows."""
    couplings = Query(site.data.source, site.data.query, folder).couplings()
    if couplings:
        raise Caution(
            f"it has {', '.join(couplings)}: one record can then change others' rows, which no "
            "epsilon covers. Let each row follow from one person alone (docs/guides/data.md, "
            "Databases)"
        )
    return "no limit, window or chance was seen in it"


def _step(site: Site, folder: Path, agreed: Manifest, clients: list[Client]) -> str:
    own = assembly.load(agreed, site, folder)
    # Without a budget: whether it covers the rounds is the next check's question.
    unbounded = assembly.with_budget(site, None)
    code = code_of(site, folder)
    client = assembly.client(agreed, unbounded, own.train, ledger=None, seed=0, code=code)
    if agreed.masked is None:
        client.learner.train(0, 1)
    else:
        rehearse(client, agreed)
    clients.append(
        assembly.client(
            agreed, site, own.train, ledger=None, seed=0, account=own.account, code=code
        )
    )
    size = params.size(client.learner.shared)
    gradients = assembly.gradients(client, site)
    return (
        f"a proxy of {size} parameters ({agreed.proxy.architecture}) learns with DP; gradients: "
        f"{gradients}"
    )


def _describe_declared(site: Site, client: Client) -> str:
    """What an observer learns of the number of examples, and how the promise may fail."""
    asked = site.privacy
    promise = f"delta {client.ledger.delta:g}, {client.ledger.relation}"
    if asked.declared:
        return promise
    examples = assembly.public_examples(client)
    lines = proposal.declaration(examples)
    advice = f" Declare a rounded one in [privacy] of site.toml: {lines}" if lines else ""
    raise Caution(
        f"{promise}: the number of examples, {examples}, is public, since the sampling rate "
        f"follows from it.{advice}"
    )


def _budget(client: Client, agreed: Manifest, site: Site, folder: Path) -> str:
    plan = assembly.plan(client, agreed, site, folder)
    kind = f"{client.ledger.kind}, per {client.ledger.unit.noun}"
    if not plan.rounds:
        return f"all rounds are charged already ({kind})"
    rounds = plan.affordable_rounds()
    if rounds >= plan.rounds:
        return f"covers all {plan.rounds} rounds ({kind}){_coalition(plan)}"
    fits = []
    noise = plan.noise_that_fits()
    if noise is not None:
        home = "privacy" if plan.coalition is None else "in the manifest graph.masked"
        fits.append(f"{home}.noise_multiplier = {noise:g}")
    if rounds:
        fits.append(f"{rounds} rounds")
    if not plan.has_begun:  # a budget is never raised
        fits.append(f"a budget of {plan.budget_that_fits():g}")
    limit = "privacy.budget" if client.ledger.page is None else "the budget or the account"
    short = f"{limit} covers {rounds} of {plan.rounds} rounds ({kind})"
    advice = f"What would fit: {', or '.join(fits)}." if fits else "It is spent."
    if not rounds:
        raise TransportError(f"{short}: not one. {advice}")
    raise Caution(f"{short}. The site then leaves. {advice}")


def _size(client: Client, agreed: Manifest, site: Site, folder: Path) -> str:
    """Whether the site adds more signal to the proxy than noise (``worth.least_size``)."""
    plan = assembly.plan(client, agreed, site, folder)
    if not plan.rounds:
        return "all rounds are charged already"
    honest = 1 if plan.coalition is None else plan.coalition.honest
    width = params.size(client.learner.shared) / len(agreed.input.classes)
    epsilon = plan.epsilon_of_all()
    if site.privacy.budget is not None:  # where it ends, the site leaves
        epsilon = min(epsilon, site.privacy.budget)
    mu = gaussian_dp(epsilon, client.ledger.delta)
    least = least_size(width, mu, honest)
    examples = assembly.public_examples(client)
    if examples >= least:
        return f"{examples} examples; from {least} on a site adds more signal than noise"
    text = (
        f"{examples} examples: with fewer than {least} a site adds more noise to the proxy than "
        "signal"
    )
    if plan.coalition is not None:
        return f"{text}; the others share the noise"
    if site.learning.weight < 1:
        return f"{text}; its steps count for {site.learning.weight:g}"
    weight = site_weight(examples, width, mu)
    advice = f"Let its steps count for less, in [learning] of site.toml: weight = {weight:.2g}"
    if site.proxy_optimizer.name != "sgd":
        advice += ' (with proxy_optimizer.name = "sgd")'
    raise Caution(f"{text}. {advice}")


def _coalition(plan: proposal.Plan) -> str:
    """Against whom the planned epsilon holds, if the rounds are masked sums, and what is left if
    all others collude."""
    if plan.coalition is None:
        return ""
    worst = worst_case(shown(plan.epsilon_all_others()))
    return f". {plan.coalition.sentence} {worst}"


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


def _network(site: Site, folder: Path, roster: Roster, wait: float) -> Iterator[Line]:
    identity = roster.identity
    answering: list[Any] = []
    if site.network.listen:
        yield _run_check("own port", lambda: _listen(site, folder, roster, answering))
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
        name = roster.name_of(fingerprint_of(certificate))
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


def _peer_line(card: Card, identity: Identity, roster: Roster, deadline: float) -> Line:
    check = f"peer {card.name}"
    if not card.address:
        return Line(check, True, "can only dial out: it will call this site, or use a relay")
    while True:
        line = _run_check(check, lambda: _peer(card, identity, roster))
        if line.ok or time.monotonic() > deadline:
            return line
        time.sleep(1.0)


def _peer(card: Card, identity: Identity, roster: Roster) -> str:
    _check_key(card, identity)
    channel = dial(card, identity, largest=1 << 16)
    try:
        answer = _understood(channel.send(ABOUT, timeout=_CALL_SECONDS))
    except PeerTimeout as error:
        raise TransportError(
            f"{error} It shows the right key, so it may refuse this site's certificate, which is "
            f"valid until {identity.expires():%Y-%m-%d %H:%M} UTC: is its clock right, and has it "
            f"accepted a manifest that lists {identity.name}?"
        ) from error
    finally:
        channel.close()
    if answer["protocol"] != PROTOCOL:
        raise TransportError(other_protocol(answer["protocol"], answer["release"]))
    skew = abs(answer["time"] - time.time())
    if skew > CLOCK_SECONDS:
        raise TransportError(f"Its clock differs by {skew:.0f} s. Set both by NTP.")
    agreed = roster.current
    if answer["hash"] != agreed.digest:
        raise TransportError(
            f"It has version {answer['version']} of the manifest with another hash; this site has "
            f"version {agreed.version}. Accept the same manifest at both."
        )
    return (
        f"{card.address} reached over TLS 1.3, same manifest, clocks {skew:.1f} s apart, release "
        f"{answer['release']}"
    )


def _understood(answer: bytes) -> dict[str, Any]:
    """A peer's answer to ``ABOUT``; TransportError if it is something else."""
    try:
        content = json.loads(answer)
        return {
            "version": int(content["version"]),
            "hash": str(content["hash"]),
            "time": float(content["time"]),
            # Protocol 1 stated neither.
            "release": str(content.get("release", ""))[:40],
            "protocol": int(str(content.get("protocol", "1")).partition(".")[0]),
        }
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError, AttributeError):
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
    context.load_cert_chain(*identity.tls_files())
    try:
        plain = socket.create_connection((host.strip("[]"), int(port)), _CALL_SECONDS)
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
    pem = ssl.DER_cert_to_PEM_cert(shown).encode()
    if fingerprint_of(pem) != card.fingerprint:
        raise TransportError(
            f"{card.address} shows another key than the manifest's. Something in between opens "
            "the connection (TLS inspection), or the address is another machine's."
        )
    advice = f"At {card.name}: proxyfl node certificate {card.name}"
    check_dates(x509.load_pem_x509_certificate(pem), "The certificate that it shows", advice)
