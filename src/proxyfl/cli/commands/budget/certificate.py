"""``proxyfl certificate``: what each client's releases cost, and whether a page is true."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from proxyfl._files import read_text, write_json
from proxyfl.cli.commands.ledger.sum import SITE_LEDGER
from proxyfl.cli.options import JSON, Document, flag, option, print_json
from proxyfl.errors import ConfigError, RunError
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.statements import certificate as certificates
from proxyfl.privacy.statements.certificate import Facts
from proxyfl.records import reading
from proxyfl.records.run import Run

DESCRIPTION = """\
Print one page for each client of a run, or for a site's folder: the mechanism, the unit and the
neighbouring relation, what is public, epsilon by both accountants with its kind, delta, steps and
rounds, where the randomness came from, and a sentence to copy. With --check, make the certificates
in FILE again from the ledgers and compare them; exit code 1 if anything differs.
"""

EPILOG = """\
examples:
  proxyfl certificate runs/a --client 3                   one client's page, in Markdown
  proxyfl certificate runs/a --json > certificates.json   every client's
  proxyfl certificate runs/a --check certificates.json    do they hold?
"""

_TITLE = "# Privacy certificate: "
_AUDIT = (
    "client",
    "epsilon",
    "lower_bound",
    "ceiling",
    "confidence",
    "method",
    "verdict",
)


OPTIONS = (
    option("run_folder RUN", "a run's or a site's folder", Path),
    option("--client K", "number or name of the client (default: all)"),
    option(
        "--method NAME", "which method (default: the last that releases models)"
    ),
    option("--check FILE", "certificates, as Markdown or JSON, to compare", Path),
    flag(
        "--save",
        "also put them into the run's folder, where `proxyfl report` finds them",
    ),
    JSON,
)


def execute(args: Namespace) -> int:
    """Print the certificates, or check those in a file; 1 if one does not hold."""
    if args.check is not None:
        return _check(args)
    documents = _documents(args.run_folder, args.method)
    if args.client is not None:
        documents = [_chosen(documents, args.client)]
    if args.save:
        write_json(
            args.run_folder / reading.ADDITIONS["certificate"],
            {"certificates": documents},
        )
    if args.json:
        print_json({"certificates": documents})
    else:
        print(
            "\n".join(certificates.markdown(document) for document in documents),
            end="",
        )
    return 0


def _documents(path: Path, method: str | None) -> list[Document]:
    """A certificate for each ledger, in the order of the clients."""
    if (path / SITE_LEDGER).is_file():
        ledger = Ledger.read(path / SITE_LEDGER)
        return [certificates.certificate(ledger, certificates.NODE)]
    run = reading.read(path)
    name = method or _releasing(run)
    ledgers = sorted((path / "ledger" / name).glob("*.jsonl"))
    if not ledgers:
        raise RunError(
            f"{path} has no ledger of {name!r}, so there is nothing to certify: it trained without "
            f"DP, has not begun, or is none of the run's methods ({', '.join(run.methods)})."
        )
    packages = run.environment.get("packages", {})
    facts = Facts(
        name,
        released=run.method(name).exchange != "none",
        version=packages.get("proxyfl"),
        commit=run.environment.get("commit"),
        started=run.environment.get("started"),
        audit=_audited(run),
    )
    return [
        certificates.certificate(Ledger.read(ledger), facts) for ledger in ledgers
    ]


def _audited(run: Run) -> Document | None:
    """The result of the audit in the run's folder, if there is one."""
    found = run.additions.get("audit")
    if not isinstance(found, dict):
        return None
    return {key: found[key] for key in _AUDIT if key in found}


def _releasing(run: Run) -> str:
    """The last method whose models leave their clients."""
    for name in reversed(run.methods):
        if run.method(name).exchange != "none":
            return name
    raise RunError(
        f"No method of {run.path} releases models: {', '.join(run.methods)}. Name one with "
        "--method to see what its training would have cost."
    )


def _chosen(documents: list[Document], client: str) -> Document:
    names = [document["client"] for document in documents]
    if client in names:
        return documents[names.index(client)]
    if client.isdigit() and int(client) < len(documents):
        return documents[int(client)]
    raise ConfigError(
        f"Expected a client among {', '.join(names)}, got {client!r}."
    )


def _check(args: Namespace) -> int:
    text = read_text(args.check, "certificate")
    stated: list[tuple[str, str, Any]]
    stated = (
        _pages(text)
        if text.lstrip().startswith("#")
        else _entries(text, args.check)
    )
    if not stated:
        raise RunError(
            f"{args.check} holds no certificate. Give what `proxyfl certificate` made."
        )
    wrong: list[str] = []
    for client, method, content in stated:
        found = _compared(args.run_folder, client, method, content)
        wrong += [f"{client}, {method}: {each}" for each in found]
    holds = not wrong
    if args.json:
        print_json({"holds": holds, "checked": len(stated), "differences": wrong})
    elif holds:
        count = len(stated)
        held = (
            "The certificate holds"
            if count == 1
            else f"All {count} certificates hold"
        )
        print(f"{held}: the ledgers give the same.")
    else:
        print("\n".join(["Does not hold:", *wrong]))
    return 0 if holds else 1


def _compared(path: Path, client: str, method: str, content: Any) -> list[str]:
    """The differences between a certificate and the ledger of the client that it names."""
    try:
        documents = _documents(path, method)
    except RunError as problem:
        return [str(problem)]
    for document in documents:
        if (document["client"], document["method"]) == (client, method):
            if isinstance(content, str):
                return certificates.page_differences(
                    content, certificates.markdown(document)
                )
            return certificates.differences(content, document)
    return ["no ledger of this client and method"]


def _pages(text: str) -> list[tuple[str, str, Any]]:
    """(client, method, page) for each page of a Markdown file."""
    found: list[tuple[str, str, Any]] = []
    for part in f"\n{text}".split(f"\n{_TITLE}")[1:]:
        title = part.splitlines()[0]
        client, _, method = title.rpartition(", ")
        found.append((client, method, _TITLE + part))
    return found


def _entries(text: str, path: Path) -> list[tuple[str, str, Any]]:
    """(client, method, document) for each certificate of a JSON file."""
    try:
        content = certificates.parse(text)
    except ValueError as problem:
        raise RunError(
            f"{path} is neither Markdown nor JSON: {problem}."
        ) from problem
    if isinstance(content, dict) and "certificates" in content:
        content = content["certificates"]
    listed = content if isinstance(content, list) else [content]
    if not all(isinstance(entry, dict) and "client" in entry for entry in listed):
        raise RunError(f"{path} holds something that is no certificate.")
    return [
        (str(entry["client"]), str(entry.get("method")), entry) for entry in listed
    ]
