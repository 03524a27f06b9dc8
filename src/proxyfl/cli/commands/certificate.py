"""``proxyfl certificate``: what each client's releases cost, and whether a page is true."""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl._files import write_text
from proxyfl.cli.commands.ledger import SITE_LEDGER
from proxyfl.cli.options import JSON, Document, flag, option, print_json, repeatable
from proxyfl.errors import ConfigError, RunError
from proxyfl.privacy import certificate as certificates
from proxyfl.privacy.ledger import Ledger
from proxyfl.records import certified, reading

if TYPE_CHECKING:  # they need the extra "node"
    from proxyfl.node.members.identity import Card, Identity

DESCRIPTION = """\
Print one page for each client of a run, or for a site's folder: the mechanism, the unit and the
neighbouring relation, what is public, epsilon by both accountants with its kind, delta, steps and
rounds, how gradients were computed, where the randomness came from, and a sentence to copy. A
site's page and JSON are signed with its key. With --check, make the certificates in FILE again from
the ledgers and compare all of it; with --card, check who signed, for which neither ledger nor
folder is needed. Exit code 1 if anything is not as it should be.
"""

EPILOG = """\
examples:
  proxyfl certificate runs/a --client 3                   one client's page, in Markdown
  proxyfl certificate runs/a --json > certificates.json   every client's
  proxyfl certificate runs/a --check certificates.json    do they hold?
  proxyfl certificate --check north.md --card north.card.toml          did north sign this page?
"""

SITE_KEY = "key.pem"
"""The key of a site, in its folder."""

OPTIONS = (
    option("run_folder RUN", "a run's or a site's folder; not needed with --card", Path, nargs="?"),
    option("--client K", "number or name of the client (default: all)"),
    option("--method NAME", "which method (default: the last that releases models)"),
    repeatable(
        "--check FILE", "certificates, as Markdown or JSON, to check", type=Path, default=[]
    ),
    option("--card CARD", "the card of the site that signed the certificates in FILE", Path),
    flag("--save", "also put them into the run's folder, where `proxyfl report RUN` finds them"),
    JSON,
)


def execute(args: Namespace) -> int:
    """Print the certificates, or check those in files; 1 if one does not hold."""
    if args.check:
        return _check(args)
    if args.run_folder is None:
        raise ConfigError(
            "Name a run's or a site's folder. To check a signed certificate without one: "
            "proxyfl certificate --check FILE --card CARD"
        )
    signer = _signer(args.run_folder)
    documents = _documents(args.run_folder, args.method, signer=signer)
    if args.client is not None:
        documents = [_chosen(documents, args.client)]
    if args.save:
        file = args.run_folder / reading.ADDITIONS["certificate"]
        write_text(file, certificates.to_json(documents))
    if args.json:
        print(certificates.to_json(documents), end="", flush=True)
    else:
        pages = [certificates.markdown(document, signer) for document in documents]
        print("\n".join(pages), end="", flush=True)
    return 0


def _signer(folder: Path) -> "Identity | None":
    """The key of the site in ``folder``; None for a run, or a ledger without a key."""
    if not (folder / SITE_LEDGER).is_file() or not (folder / SITE_KEY).is_file():
        return None
    with _needing_node("Signing a certificate"):
        from proxyfl.node.members.identity import Identity
    return Identity(folder, Ledger.read(folder / SITE_LEDGER).client)


def _cards(folder: Path | None, given: Path | None) -> "list[Card]":
    """The cards by which a signature can be checked: the one given, or those of the site."""
    if given is not None:
        with _needing_node("Checking a signature"):
            from proxyfl.node.members.identity import read_card
        return [read_card(given)[0]]
    signer = None if folder is None else _signer(folder)
    if folder is None or signer is None:
        return []
    from proxyfl.node.members.identity import read_retired_cards

    return [signer.card(""), *read_retired_cards(folder)]


@contextmanager
def _needing_node(what: str) -> Iterator[None]:
    try:
        yield
    except ImportError as problem:
        raise RunError(f"{what} needs the extra: pip install 'proxyfl[node]'.") from problem


def _documents(
    path: Path,
    method: str | None,
    *,
    signer: "Identity | None" = None,
    signed: Mapping[str, str] | None = None,
    release: str = "",
) -> list[Document]:
    """A certificate for each ledger, in the order of the clients."""
    ledger = path / SITE_LEDGER
    if ledger.is_file():
        facts = replace(certified.site_facts(path), signed=signed, release=release)
        return [certificates.certificate(Ledger.read(ledger), facts, signer)]
    run = reading.read(path)
    name = method or certified.releasing(run)
    ledgers = sorted((path / "ledger" / name).glob("*.jsonl"))
    if not ledgers:
        raise RunError(
            f"{path} has no ledger of {name!r}, so there is nothing to certify: it trained without "
            f"DP, has not begun, or is none of the run's methods ({', '.join(run.methods)})."
        )
    facts = certified.facts_of(run, name)
    return [certificates.certificate(Ledger.read(ledger), facts) for ledger in ledgers]


def _chosen(documents: list[Document], client: str) -> Document:
    names = [document["client"] for document in documents]
    if client in names:
        return documents[names.index(client)]
    if client.isdigit() and int(client) < len(documents):
        return documents[int(client)]
    raise ConfigError(f"Expected a client among {', '.join(names)}, got {client!r}.")


@dataclass(frozen=True)
class _File:
    """A file with certificates: a page, or documents."""

    path: Path
    page: certificates.Page | None
    documents: list[Document]

    @property
    def body(self) -> str:
        """All of it as Markdown, without a signature."""
        if self.page is not None:
            return self.page.body
        return "\n".join(certificates.markdown(document) for document in self.documents)


def _check(args: Namespace) -> int:
    """Say whether all files hold, against the ledgers, the card, and one another."""
    if args.run_folder is None and args.card is None:
        raise ConfigError(
            "Name what to check against: the folder of the run or the site, or the card of the "
            "site that signed (--card)."
        )
    cards = _cards(args.run_folder, args.card)
    wrong: list[str] = []
    signers: set[str] = set()
    files: list[_File] = []
    count = 0
    for path in args.check:
        content = _content(path)
        try:
            file = _parse(path, content)
            sections = _sections(file)
            count += len(sections)
            signer = _verify(file, cards, required=args.card is not None)
        except RunError as problem:
            wrong.append(str(problem))
            continue
        files.append(file)
        if signer is not None:
            signers.add(f"{signer.name} (key {signer.fingerprint[:16]}...)")
        if args.run_folder is not None:
            wrong += _compare(args.run_folder, sections, is_verified=signer is not None)
    wrong += _disagreements(files)
    signed = ", ".join(sorted(signers))
    _tell(args, count, signed, wrong)
    return 1 if wrong else 0


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as refused:
        reason = refused.strerror or refused
        raise RunError(f"Cannot read the certificate {path}: {reason}.") from refused


def _tell(args: Namespace, count: int, signed: str, wrong: list[str]) -> None:
    if args.json:
        about = {"holds": not wrong, "checked": count, "signed": signed or None}
        print_json({**about, "differences": wrong})
        return
    if wrong:
        print("\n".join(["Does not hold:", *wrong]))
        return
    held = "The certificate holds" if count == 1 else f"All {count} certificates hold"
    reasons = []
    if args.run_folder is not None:
        reasons.append("the ledgers give the same")
    if signed:
        reasons.append(f"signed by {signed} and not changed since")
    else:
        reasons.append("not signed")
    print(f"{held}: {'; '.join(reasons)}.")
    if args.run_folder is None:
        print("The numbers are that site's word: only its ledger can show that they are right.")


def _parse(path: Path, content: bytes) -> _File:
    text = certificates.normal_text(content, path)
    if text.startswith(("{", "[")):
        return _File(path, None, certificates.parse_json(text, path))
    return _File(path, certificates.parse_page(text, path), [])


@dataclass(frozen=True)
class _Section:
    """One certificate of a file: its page, or its document."""

    path: Path
    client: str
    method: str
    release: str
    signed: Mapping[str, str] | None
    content: str | Document


def _sections(file: _File) -> list[_Section]:
    sections: list[_Section] = []
    if file.page is None:
        for document in file.documents:
            client, method = str(document["client"]), str(document["method"])
            release, signed = str(document["release"]), document["signed"]
            sections.append(_Section(file.path, client, method, release, signed, document))
    else:
        page = file.page
        for part in f"\n{page.body}".split(f"\n{certificates.TITLE}")[1:]:
            title = part.split("\n")[0]
            client, _, method = title.rpartition(", ")
            content = certificates.TITLE + part
            section = _Section(file.path, client, method, page.release, page.signed, content)
            sections.append(section)
    keys = [(section.client, section.method) for section in sections]
    for client, method in keys:
        if keys.count((client, method)) > 1:
            raise RunError(
                f"{file.path} has two certificates of {client!r}, {method!r}. Expected one: ask "
                "its sender which one counts."
            )
    return sections


def _verify(file: _File, cards: "list[Card]", *, required: bool) -> "Card | None":
    """The card of the site that signed; None if nobody claims to have. RunError if it is false."""
    if file.page is not None:
        stated = file.page.signed
        is_signed = stated is not None or file.page.signature is not None
    else:
        stated = file.documents[0]["signed"]
        is_signed = any(each["signed"] or each["signature"] for each in file.documents)
    if not is_signed and not required:
        return None
    if not cards:
        raise RunError(
            f"{file.path} is signed, and there is no key here to check that. Name the signer's "
            "card: --card CARD"
        )
    key = stated.get("key") if isinstance(stated, dict) else None
    fitting = [card for card in cards if card.fingerprint == key]
    card = fitting[0] if fitting else cards[0]
    if file.page is not None:
        certificates.verify_page(file.page, card, file.path)
    for document in file.documents:
        certificates.verify_json(document, card, file.path)
    return card


def _compare(path: Path, sections: list[_Section], *, is_verified: bool) -> list[str]:
    """The differences between certificates and the ledgers of the clients that they name."""
    wrong: list[str] = []
    for section in sections:
        release, signed = "", None
        if is_verified:
            # Who signed it vouches for the release as well; no ledger has it.
            release, signed = section.release, section.signed
        elif section.release != certificates.this_release():
            wrong.append(
                f"{section.path} was written by proxyfl {section.release or '?'}, this is "
                f"{certificates.this_release()}: have it written again, or check it with that one."
            )
        document = _document(path, section.client, section.method, release, signed)
        if isinstance(document, str):
            differences = [document]
        elif isinstance(section.content, str):
            expected = certificates.markdown(document)
            differences = certificates.page_differences(section.content, expected)
        else:
            differences = certificates.json_differences(section.content, document)
        wrong += [f"{section.client}, {section.method}: {each}" for each in differences]
    return wrong


def _document(
    path: Path, client: str, method: str, release: str, signed: Mapping[str, str] | None
) -> Document | str:
    """The certificate that the ledger gives, or why there is none."""
    try:
        documents = _documents(path, method, release=release, signed=signed)
    except RunError as problem:
        return str(problem)
    for document in documents:
        if (document["client"], document["method"]) == (client, method):
            return document
    return "no ledger of this client and method"


def _disagreements(files: list[_File]) -> list[str]:
    """Pages and documents among ``files`` that do not say the same."""
    wrong = []
    for page in files:
        for other in files:
            if page.page is not None and other.page is None and page.body != other.body:
                lines = certificates.page_differences(page.body, other.body)
                wrong.append(f"{page.path} and {other.path} do not say the same: {lines[0]}")
    return wrong
