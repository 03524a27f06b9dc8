"""A certificate: one page that says what a client's releases cost, made from its ledger.

Guarantees:
    * every number on it follows from the ledger; numbers are rounded up, never down;
    * the same ledger and the same facts give the same text, in JSON and in Markdown, so that a
      certificate can be made again and compared as a whole: nothing can stand before it, after it
      or next to it (``page_differences``, ``json_differences``);
    * a simulation is called one in the first line and in the sentence to copy;
    * a site signs page and JSON with its key. What ``verify_page`` and ``verify_json`` accept is
      what the owner of the card signed, except for line endings and empty space at the end.

A signature shows who vouches for a certificate. Only the ledger shows that its numbers are right,
and a site that can write its ledger can write another. A simulation has no key and signs nothing.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Protocol

from proxyfl._files import Document
from proxyfl.errors import RunError
from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.guarantee import Epsilon, Kind, Relation, Unit, shown, upward
from proxyfl.privacy.ledger import Ledger

FORMAT = 2
_DIGITS = 6

TITLE = "# Privacy certificate: "

MECHANISMS = {
    Unit.RECORD: "DP-SGD: each step draws every record independently with the sampling rate, "
    "clips each record's gradient to the norm C, and adds Gaussian noise of standard deviation "
    "(noise multiplier) x C to their sum",
    Unit.GROUP: "DP-SGD: each step draws every person independently with the sampling rate, clips "
    "the mean gradient of each person's records to the norm C, and adds Gaussian noise of standard "
    "deviation (noise multiplier) x C to their sum",
}
MASKED = (
    "; of that noise each member of a masked sum adds a part of variance 1 / h, and only the sum "
    "over a roster of members can be read"
)
"""What a masked sum adds to the mechanism; h is the number of members that are taken for honest."""
UNITS = {Unit.RECORD: "one record", Unit.GROUP: "one person with all of their records"}

RANDOMNESS = {
    True: "a seed: this is a simulation, whoever knows the seed can subtract the noise",
    False: "the operating system's cryptographic generator; the noise is exact on a grid",
}

PUBLIC = {
    Relation.ZERO_OUT: "the number of {many} (or the number declared in its place), from which "
    "the sampling rate follows; noise multiplier, steps and delta",
    Relation.ADD_OR_REMOVE: "the sampling rate, which was declared and does not follow from the "
    "number of {many}; noise multiplier, steps and delta",
}

AGAINST = (
    "all others together: whoever has every release of this ledger, at whatever number of "
    "institutions, learns no more than epsilon and delta allow"
)

AGAINST_COALITION = (
    "everyone outside together with up to {colluders} members of each roster, which has {quorum} "
    "members or more"
)

NOT_SIGNED = "no: whoever can write this file can change it; compare it with the ledger"


class Signer(Protocol):
    """The holder of a site's key."""

    @property
    def name(self) -> str:
        """The site's name."""
        ...

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key."""
        ...

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes."""
        ...


class Verifier(Protocol):
    """A site's card."""

    @property
    def name(self) -> str:
        """The site's name."""
        ...

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key."""
        ...

    def verify(self, signature: bytes, content: bytes) -> None:
        """Raise an InputError unless the owner of the card signed ``content``."""
        ...


@dataclass(frozen=True)
class Facts:
    """The part of a certificate that is not in the ledger: the method, whether it released
    anything, the code that ran, the release that writes the certificate, and who signs it."""

    method: str
    released: bool
    version: str | None = None
    commit: str | None = None
    started: str | None = None
    audit: Mapping[str, Any] | None = None
    release: str = ""
    """The release that writes the certificate; empty, this one."""
    signed: Mapping[str, str] | None = None
    """The site whose key signs, and the key's fingerprint; None: nobody signs."""


NODE = Facts("proxyfl", released=True)
"""A node takes part in the one method that nodes have."""


def this_release() -> str:
    """The version of the package that runs."""
    return metadata.version("proxyfl")


def signed_by(key: Signer | Verifier) -> dict[str, str]:
    """The entry of a certificate on who signs it."""
    return {"site": key.name, "key": key.fingerprint}


def certificate(ledger: Ledger, facts: Facts, signer: Signer | None = None) -> Document:
    """The certificate as a JSON document, signed if there is a ``signer``."""
    epsilon = ledger.epsilon()
    charged = [charge for charge in ledger.charges if charge.steps]
    mechanism = "none" if ledger.kind is Kind.NONE else MECHANISMS[ledger.unit]
    against, both = AGAINST, {}
    if epsilon.coalition is not None:
        mechanism += MASKED
        terms = asdict(epsilon.coalition)
        against = AGAINST_COALITION.format(**terms)
        both = {**terms, "epsilon_all_others": _number(epsilon.against_all)}
    signed = facts.signed if signer is None else signed_by(signer)
    document: Document = {
        "format": FORMAT,
        "client": ledger.client,
        "method": facts.method,
        "released": facts.released,
        "mechanism": mechanism,
        "gradients": _gradients(ledger),
        "unproven_proxy_trusted": _trusted(ledger),
        "unit": UNITS[ledger.unit],
        "relation": str(ledger.relation),
        "public": PUBLIC[ledger.relation].format(many=_MANY[ledger.unit]),
        "kind": str(ledger.kind),
        "against": against,
        "delta": ledger.delta,
        "epsilon_pld": _number(epsilon.pld),
        "epsilon_rdp": _number(epsilon.rdp),
        "epsilon": _number(epsilon.best),
        **both,
        "steps": ledger.steps,
        "rounds": len({charge.round for charge in charged}),
        "settings": [_setting(segment) for segment in ledger.segments()],
        "simulation": ledger.simulated,
        "randomness": RANDOMNESS[ledger.simulated],
        "version": facts.version,
        "commit": facts.commit,
        "started": facts.started,
        "release": facts.release or this_release(),
        "ledger": ledger.receipt(),
        "audit": dict(facts.audit) if facts.audit else None,
        "sentence": sentence(ledger.client, epsilon, facts, simulated=ledger.simulated),
        "signed": dict(signed) if signed else None,
        "signature": None,
    }
    if signer is not None:
        document["signature"] = signer.sign(_CONTEXT_JSON + _canonical(document)).hex()
    return document


def _setting(segment: Segment) -> Document:
    """A run of alike steps; its coalition is named if there is one."""
    about = asdict(segment)
    if segment.coalition is None:
        del about["coalition"]
    return about


def _gradients(ledger: Ledger) -> list[Document]:
    """The ways in which gradients were computed, each with its reason."""
    entries: list[Document] = []
    for each in ledger.gradients:
        if each is None:
            entries.append({"way": "not recorded", "reason": "", "trusted": None})
        else:
            about = {"way": str(each.way), "reason": each.reason, "trusted": each.trusted}
            entries.append(about)
    return entries


def _trusted(ledger: Ledger) -> bool | None:
    """True if an unproven proxy was trusted in any step; None if that is not on record."""
    if any(each.trusted for each in ledger.gradients if each):
        return True
    return None if None in ledger.gradients else False


def sentence(client: str, epsilon: Epsilon, facts: Facts, *, simulated: bool) -> str:
    """Sentences that a data protection officer can copy."""
    if epsilon.kind is Kind.NONE:
        return f"{client} trained without differential privacy; no guarantee holds."
    what = f"Everything that {client} released under this ledger"
    if not facts.released:
        what = f"The model that {client} trained, which this method does not release,"
    delta = f"{upward(epsilon.delta, 3):.3g}"
    neighbours = _NEIGHBOURS[epsilon.relation].format(
        one=_ONE[epsilon.unit], many=_MANY[epsilon.unit]
    )
    text = (
        f"{what} is ({shown(epsilon.best)}, {delta})-differentially private with respect to "
        f"{UNITS[epsilon.unit]}. {neighbours}"
    )
    if epsilon.coalition is not None:
        text += f" {' '.join(epsilon.sentences)}"
    if epsilon.kind is Kind.CONDITIONAL:
        text += (
            " The guarantee is conditional: it takes the private model as fixed and does not bound "
            "what reaches the proxy through it."
        )
    if simulated:
        text = (
            "SIMULATION, protects nobody: the noise can be recomputed from the seed. With real "
            f"noise this would hold: {text}"
        )
    return text


_NEIGHBOURS = {
    Relation.ZERO_OUT: "It compares the data with the data in which that {one} has no effect; the "
    "number of {many} is public.",
    Relation.ADD_OR_REMOVE: "It compares the data with the data to which that {one} is added or "
    "from which it is removed.",
}
_ONE = {Unit.RECORD: "record", Unit.GROUP: "person"}
_MANY = {Unit.RECORD: "records", Unit.GROUP: "persons"}


def markdown(document: Mapping[str, Any], signer: Signer | None = None) -> str:
    """The certificate as a page, on which every entry of the document is; signed if there is a
    ``signer``, who must be the one that the document names."""
    title = f"{TITLE}{document['client']}, {document['method']}"
    lines = [title, ""]
    if document["simulation"]:
        lines += ["**Simulation. The noise can be recomputed, so this run protects nobody.**", ""]
    lines += [f"> {document['sentence']}", "", "| | |", "|---|---|"]
    for key, label in _LABELS.items():
        if key in document:
            lines.append(f"| {label} | {_cell(key, document[key])} |")
    for each in document["gradients"]:
        trusted = ", by code that the institution vouches for" if each["trusted"] else ""
        reason = f" ({each['reason']})" if each["reason"] else ""
        lines.append(f"| gradients computed | {each['way']}{trusted}{reason} |")
    for setting in document["settings"]:
        lines.append(
            f"| charged | {setting['steps']} steps at sampling rate {setting['sampling_rate']!r}, "
            f"noise multiplier {setting['noise_multiplier']!r}{_terms(setting)} |"
        )
    body = "\n".join(lines) + "\n"
    if signer is None:
        return body
    signature = signer.sign(_CONTEXT_PAGE + body.encode())
    return f"{body}{_BEGIN}{signature.hex()}{_END}"


def _terms(setting: Mapping[str, Any]) -> str:
    """The coalition of a setting in words; nothing if it has none."""
    coalition = setting.get("coalition")
    if coalition is None:
        return ""
    return f", masked sum with {coalition['colluders']} colluders, quorum {coalition['quorum']}"


_LABELS = {
    "released": "released",
    "mechanism": "mechanism",
    "unit": "unit",
    "relation": "neighbouring relation",
    "public": "public, not protected",
    "kind": "kind of guarantee",
    "against": "holds against",
    "epsilon": "epsilon (the smaller of the two)",
    "epsilon_pld": "epsilon, PLD accountant",
    "epsilon_rdp": "epsilon, RDP accountant",
    "colluders": "colluding members that it holds against",
    "quorum": "fewest members of a sum",
    "epsilon_all_others": "epsilon if all other members collude",
    "delta": "delta",
    "steps": "steps on record",
    "rounds": "rounds with steps",
    "unproven_proxy_trusted": "an unproven proxy was trusted",
    "randomness": "randomness",
    "version": "trained with proxyfl",
    "commit": "commit",
    "started": "begun",
    "audit": "audit",
    "ledger": "ledger",
    "release": "written by proxyfl",
    "format": "format",
    "signed": "signed",
}


def _cell(key: str, value: Any) -> str:
    if key == "signed":
        return f"by {value['site']}, key {value['key']}" if value else NOT_SIGNED
    if value is None:
        return "infinite" if key.startswith("epsilon") else "not recorded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {entry}" for name, entry in value.items())
    return f"`{value}`" if key == "ledger" else str(value)


def _number(value: float) -> float | None:
    """An epsilon rounded up to six digits; None for infinity, which JSON lacks."""
    return upward(value, _DIGITS) if value < float("inf") else None


def to_json(documents: Sequence[Mapping[str, Any]]) -> str:
    """The text of a file with these certificates."""
    content = {"certificates": [dict(document) for document in documents]}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def parse_json(text: str, source: object) -> list[Document]:
    """The certificates in a file that ``to_json`` wrote.

    RunError unless it is JSON without repeated or unknown keys, spelled as ``to_json`` spells it;
    so what a reader of the file sees is what is compared."""
    try:
        content = json.loads(
            text, object_pairs_hook=_without_repetition, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as problem:
        raise RunError(f"{source} is not a certificate in JSON: {problem}.") from problem
    listed = content.get("certificates") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not listed or not all(isinstance(e, dict) for e in listed):
        raise RunError(
            f"{source} holds no certificates: expected what `proxyfl certificate --json` prints."
        )
    extra = sorted(set(content) - {"certificates"})
    if extra:
        raise RunError(
            f"{source}: expected only certificates, got {', '.join(extra)} as well. Check the "
            "file as it was written."
        )
    for document in listed:
        _check_keys(document, source)
    if to_json(listed) != text:
        raise RunError(
            f"{source} is not spelled as proxyfl spells it: {_first_difference(text, listed)}. "
            "Check the file as it was written."
        )
    return listed


def _without_repetition(pairs: list[tuple[str, Any]]) -> Document:
    document: Document = {}
    for key, value in pairs:
        if key in document:
            raise ValueError(f"the key {key!r} appears twice")
        document[key] = value
    return document


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _check_keys(document: Document, source: object) -> None:
    if document.get("format") != FORMAT:
        raise RunError(
            f"{source} has a certificate of format {document.get('format')!r}; this release reads "
            f"{FORMAT}. Have it written again."
        )
    unknown = sorted(set(document) - _KEYS)
    needed = _KEYS if _OF_A_COALITION & set(document) else _KEYS - _OF_A_COALITION
    missing = sorted(needed - set(document))
    if unknown or missing:
        about = f"unknown: {', '.join(unknown) or 'none'}; missing: {', '.join(missing) or 'none'}"
        raise RunError(
            f"{source} has a certificate whose entries do not match this format ({about})."
        )


_KEYS = {*_LABELS, "client", "method", "gradients", "settings", "simulation", "sentence"}
_KEYS |= {"signature"}
_OF_A_COALITION = {"colluders", "quorum", "epsilon_all_others"}
"""Entries of a ledger with a masked sum, all or none."""


def _first_difference(text: str, documents: Sequence[Document]) -> str:
    differences = _line_differences(text, to_json(documents), "the file says", "expected")
    return differences[0] if differences else "its end"


def json_differences(stated: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """The entries of a parsed certificate that the ledger does not support; empty if it holds.

    Its signature is not compared: no two are equal."""
    wrong = []
    for key in sorted((set(stated) | set(document)) - {"signature"}):
        there, here = stated.get(key), document.get(key)
        # as text: 1 is not 1.0, and True is neither
        if json.dumps(there) != json.dumps(here):
            wrong.append(f"{key}: the certificate says {there!r}, the ledger {here!r}")
    return wrong


def page_differences(stated: str, expected: str) -> list[str]:
    """The lines of pages, without a signature, that the ledger does not support."""
    return _line_differences(stated, expected, "the certificate says", "the ledger")


def _line_differences(stated: str, expected: str, there: str, here: str) -> list[str]:
    pairs = itertools.zip_longest(stated.split("\n"), expected.split("\n"), fillvalue="nothing")
    wrong = []
    for number, (said, right) in enumerate(pairs, 1):
        if said != right:
            wrong.append(f"line {number}: {there} {said!r}, {here} {right!r}")
    return wrong


_CONTEXT_JSON = b"proxyfl certificate, JSON\0"
_CONTEXT_PAGE = b"proxyfl certificate, page\0"
_BEGIN = "\n```\nsignature of all lines above: "
_END = "\n```\n"
_SIGNED = re.compile(f"(?s)(.*){re.escape(_BEGIN)}([0-9a-f]{{128}}){re.escape(_END)}")
_SIGNED_ROW = re.compile(r"^\| signed \| by ([a-z0-9_-]+), key ([0-9a-f]{64}) \|$", re.MULTILINE)
_RELEASE_ROW = re.compile(r"^\| written by proxyfl \| (\S+) \|$", re.MULTILINE)


def normal_text(content: bytes, source: object) -> str:
    """The text of a file with line feeds at the ends of lines, and one at its end."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise RunError(f"{source} is not a certificate: {problem}.") from problem
    return text.replace("\r\n", "\n").rstrip(" \t\r\n") + "\n"


@dataclass(frozen=True)
class Page:
    """A Markdown file: its text above the signature, and the signature, if it has one."""

    body: str
    signature: str | None

    @property
    def signed(self) -> dict[str, str] | None:
        """The site and the key that the page says it is signed with. Nothing is checked yet."""
        stated = _SIGNED_ROW.findall(self.body)
        return {"site": stated[0][0], "key": stated[0][1]} if len(stated) == 1 else None

    @property
    def release(self) -> str:
        """The release that the page says has written it. Nothing is checked yet."""
        stated = set(_RELEASE_ROW.findall(self.body))
        return str(stated.pop()) if len(stated) == 1 else ""


def parse_page(text: str, source: object) -> Page:
    """The page in a Markdown file; RunError unless it begins and ends as a certificate does."""
    if not text.startswith(TITLE):
        start = text[:60].split("\n")[0]
        raise RunError(
            f"{source} begins with {start!r}, which proxyfl did not write: expected "
            f"{TITLE.strip()!r}. Text before a certificate is not part of it."
        )
    match = _SIGNED.fullmatch(text)
    page = Page(text, None) if match is None else Page(match[1], match[2])
    if _BEGIN.strip("\n") in page.body:
        raise RunError(
            f"{source} does not end with its signature as it was written: something was added "
            "after it, or it was changed."
        )
    return page


def verify_page(page: Page, card: Verifier, source: object) -> None:
    """Raise RunError unless the owner of ``card`` signed the page, about itself."""
    titles = re.findall(f"(?m)^{re.escape(TITLE)}(.*)$", page.body)
    named = titles[0].rpartition(", ")[0]
    _check_signed(page.signed if page.signature else None, named, card, source)
    if len(titles) > 1:
        raise RunError(
            f"{source} has {len(titles)} certificates under one signature. Ask for a file for each."
        )
    content = _CONTEXT_PAGE + page.body.encode()
    _check_signature(card, page.signature or "", content, source)


def verify_json(document: Mapping[str, Any], card: Verifier, source: object) -> None:
    """Raise RunError unless the owner of ``card`` signed the certificate, about itself."""
    signature = document["signature"]
    stated = document["signed"] if isinstance(signature, str) else None
    if not isinstance(stated, dict) or set(stated) != {"site", "key"}:
        stated = None
    _check_signed(stated, document["client"], card, source)
    _check_signature(card, signature, _CONTEXT_JSON + _canonical(document), source)


def _check_signed(
    stated: Mapping[str, Any] | None, client: Any, card: Verifier, source: object
) -> None:
    if stated is None:
        raise RunError(
            f"{source} is not signed, so {card.name}'s card cannot vouch for it. Ask the site for "
            "a signed one."
        )
    if stated["site"] != card.name or client != card.name:
        raise RunError(
            f"{source} is a certificate of {client!r:.80}, signed by {stated['site']!r:.80}; the "
            f"card is that of {card.name!r}. Ask for the signer's card."
        )
    if stated["key"] != card.fingerprint:
        raise RunError(
            f"{source} says that it is signed with the key {stated['key']!s:.16}..., the card of "
            f"{card.name} has {card.fingerprint[:16]}... If the site has changed its key since, "
            "use its card from that time. Otherwise one of the two is false."
        )


def _check_signature(card: Verifier, signature: str, content: bytes, source: object) -> None:
    try:
        made = bytes.fromhex(signature)
        if made.hex() != signature:
            raise ValueError("not in lower case")
        card.verify(made, content)
    except ValueError as problem:
        raise RunError(
            f"{source} was changed after it was signed, or not signed by {card.name}: the "
            "signature does not fit."
        ) from problem


def _canonical(document: Mapping[str, Any]) -> bytes:
    """The bytes of a document that are signed."""
    content = {key: value for key, value in document.items() if key != "signature"}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
