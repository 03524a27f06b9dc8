"""A certificate: one page that says what a client's releases cost, made from its ledger.

Guarantees:
    * every number on it follows from the ledger; numbers are rounded up, never down;
    * the same ledger and the same facts give the same page, in JSON and in Markdown, so that a page
      can be made again and compared: ``differences`` finds any changed character;
    * a simulation is called one in the first line and in the sentence to copy.

A certificate is no signature: whoever can write the ledger can write another. It shows that a page
and a ledger agree.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from proxyfl.privacy.guarantee import (
    Epsilon,
    Kind,
    Relation,
    Unit,
    shown,
    upward,
)
from proxyfl.privacy.ledger import Ledger

FORMAT = 1
_DIGITS = 6

MECHANISMS = {
    Unit.RECORD: "DP-SGD: each step draws every record independently with the sampling rate, "
    "clips each record's gradient to the norm C, and adds Gaussian noise of standard deviation "
    "(noise multiplier) x C to their sum",
    Unit.GROUP: "DP-SGD: each step draws every person independently with the sampling rate, clips "
    "the mean gradient of each person's records to the norm C, and adds Gaussian noise of standard "
    "deviation (noise multiplier) x C to their sum",
}
UNITS = {
    Unit.RECORD: "one record",
    Unit.GROUP: "one person with all of their records",
}

RANDOMNESS = {
    True: "a seed: this is a simulation, whoever knows the seed can subtract the noise",
    False: "the operating system's cryptographic generator; the noise is exact on a grid",
}

PUBLIC = {
    Relation.ZERO_OUT: "the number of {many} (or the number declared in its place), from which "
    "the sampling rate follows; noise multiplier, steps and delta",
    Relation.ADD_OR_REMOVE: "the sampling rate, which does not follow from the number of {many}; "
    "noise multiplier, steps and delta",
}


@dataclass(frozen=True)
class Facts:
    """The part of a certificate that is not in the ledger: the method, whether it released
    anything, and the code that ran."""

    method: str
    released: bool
    version: str | None = None
    commit: str | None = None
    started: str | None = None
    audit: Mapping[str, Any] | None = None


NODE = Facts("proxyfl", released=True)
"""A node takes part in the one method that nodes have."""


def certificate(ledger: Ledger, facts: Facts) -> dict[str, Any]:
    """The certificate as a JSON document."""
    epsilon = ledger.epsilon()
    charged = [charge for charge in ledger.charges if charge.steps]
    mechanism = "none" if ledger.kind is Kind.NONE else MECHANISMS[ledger.unit]
    return {
        "format": FORMAT,
        "client": ledger.client,
        "method": facts.method,
        "released": facts.released,
        "mechanism": mechanism,
        "unit": UNITS[ledger.unit],
        "relation": str(ledger.relation),
        "public": PUBLIC[ledger.relation].format(many=_MANY[ledger.unit]),
        "kind": str(ledger.kind),
        "delta": ledger.delta,
        "epsilon_pld": _number(epsilon.pld),
        "epsilon_rdp": _number(epsilon.rdp),
        "epsilon": _number(epsilon.best),
        "steps": ledger.steps,
        "rounds": len({charge.round for charge in charged}),
        "settings": [asdict(segment) for segment in ledger.segments()],
        "simulation": ledger.simulated,
        "randomness": RANDOMNESS[ledger.simulated],
        "version": facts.version,
        "commit": facts.commit,
        "started": facts.started,
        "ledger": ledger.receipt(),
        "audit": dict(facts.audit) if facts.audit else None,
        "sentence": sentence(
            ledger.client, epsilon, facts, simulated=ledger.simulated
        ),
    }


def sentence(
    client: str, epsilon: Epsilon, facts: Facts, *, simulated: bool
) -> str:
    """Sentences that a data protection officer can copy."""
    if epsilon.kind is Kind.NONE:
        return f"{client} trained without differential privacy; no guarantee holds."
    what = f"Everything that {client} released under this ledger"
    if not facts.released:
        what = (
            f"The model that {client} trained, which this method does not release,"
        )
    delta = f"{upward(epsilon.delta, 3):.3g}"
    neighbours = _NEIGHBOURS[epsilon.relation].format(
        one=_ONE[epsilon.unit], many=_MANY[epsilon.unit]
    )
    text = (
        f"{what} is ({shown(epsilon.best)}, {delta})-differentially private with respect to "
        f"{UNITS[epsilon.unit]}. {neighbours}"
    )
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


def markdown(document: Mapping[str, Any]) -> str:
    """The certificate as a page. Every entry of the document is on it."""
    title = f"# Privacy certificate: {document['client']}, {document['method']}"
    lines = [title, ""]
    if document["simulation"]:
        lines += [
            "**Simulation. The noise can be recomputed, so this run protects nobody.**",
            "",
        ]
    lines += [f"> {document['sentence']}", "", "| | |", "|---|---|"]
    for key, label in _LABELS.items():
        lines.append(f"| {label} | {_cell(key, document[key])} |")
    for setting in document["settings"]:
        lines.append(
            f"| charged | {setting['steps']} steps at sampling rate {setting['sampling_rate']!r}, "
            f"noise multiplier {setting['noise_multiplier']!r} |"
        )
    return "\n".join(lines) + "\n"


_LABELS = {
    "released": "released",
    "mechanism": "mechanism",
    "unit": "unit",
    "relation": "neighbouring relation",
    "public": "public, not protected",
    "kind": "kind of guarantee",
    "epsilon": "epsilon (the smaller of the two)",
    "epsilon_pld": "epsilon, PLD accountant",
    "epsilon_rdp": "epsilon, RDP accountant",
    "delta": "delta",
    "steps": "steps on record",
    "rounds": "rounds with steps",
    "randomness": "randomness",
    "version": "proxyfl",
    "commit": "commit",
    "started": "begun",
    "audit": "audit",
    "ledger": "ledger",
    "format": "format",
}


def _cell(key: str, value: Any) -> str:
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


def parse(text: str) -> Any:
    """JSON whose numbers keep their spelling: a last digit that no float can hold counts, too."""
    return json.loads(text, parse_float=_Number, parse_int=_Number)


class _Number(str):
    """A number as it was written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def differences(
    stated: Mapping[str, Any], document: Mapping[str, Any]
) -> list[str]:
    """The statements of a parsed certificate that the ledger does not support; empty if it
    holds."""
    found = parse(json.dumps(document))
    wrong = []
    for key in sorted({*stated, *found}):
        there, here = stated.get(key), found.get(key)
        if there != here or type(there) is not type(here):
            wrong.append(
                f"{key}: the certificate says {there!r}, the ledger {here!r}"
            )
    return wrong


def page_differences(stated: str, found: str) -> list[str]:
    """The same of a Markdown page, line by line."""
    there = stated.strip().splitlines()
    here = found.strip().splitlines()
    pairs = itertools.zip_longest(there, here, fillvalue="nothing")
    wrong = []
    for number, (said, right) in enumerate(pairs, 1):
        if said != right:
            wrong.append(
                f"line {number}: the certificate says {said!r}, the ledger {right!r}"
            )
    return wrong
