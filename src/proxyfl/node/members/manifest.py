"""The manifest: what the members of a federation agree on. TOML, no secrets.

Members, in order, with addresses and keys; the proxy's architecture and initial seed; what an
example looks like and the fixed list of classes, or the public schema of a table, from which both
follow; the graph; how many rounds, or until when; the measure in which gain is reported. Every
message names the manifest's version, and sites that meet compare its hash.

A change (a site added, a site removed, an address moved) is a new version that names the hash of
the one before. A site follows only manifests that its own operator accepted; the acceptance is a
signature over the hash, which peers collect.

Guarantees:
    * ``digest`` depends on the content alone, not on how the file is laid out; the order of a
      schema's columns is content, since it is the order of the proxy's inputs;
    * a version that does not follow from the one before is refused: ``check_successor``.
"""

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxyfl import _settings
from proxyfl._files import write_text
from proxyfl._validate import choice, number, whole
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.features import feature_names
from proxyfl.data.tables.schema import Schema
from proxyfl.errors import ConfigError
from proxyfl.gossip import topology
from proxyfl.losses import BALANCES
from proxyfl.measures import MEASURES
from proxyfl.node.members.card import Card

FILE = "manifest.toml"
PROTOCOL = 1
MOST_MEMBERS = 1000
MOST_ROUNDS = 100_000


@dataclass(frozen=True)
class Input:
    """The form of an example at every site."""

    shape: tuple[int, ...] = ()
    """The shape of one example: channels, height, width; or the number of columns of a table."""
    classes: tuple[str, ...] = ()
    """The classes, in the order of the proxy's outputs."""

    def __post_init__(self) -> None:
        for size in self.shape:
            whole("input.shape", size)
        if len(set(self.classes)) != len(self.classes) or len(self.classes) < 2:
            raise ConfigError(
                f"Expected two or more distinct input.classes, got {list(self.classes)}."
            )


@dataclass(frozen=True)
class Proxy:
    """The model that travels."""

    architecture: str = "linear"
    """An architecture that `proxyfl models` lists."""
    seed: int = 0
    """The seed of the initial parameters, which are the same everywhere."""
    balance: str = "none"
    """The remedy for uneven classes in the proxy's loss: `weights`, `prior`, or `none`. Proxies
    that are mixed must have the same."""
    prevalence: tuple[float, ...] = ()
    """The publicly known share of each class, which a balance needs; with `none` it sets the
    proxy's first bias. Empty: that of the schema, if it states one."""

    def __post_init__(self) -> None:
        choice("proxy.balance", self.balance, BALANCES)
        for share in self.prevalence:
            number("proxy.prevalence", share, above=0, below=1)


@dataclass(frozen=True)
class Graph:
    """The graph: each site's receivers and shares."""

    topology: str = "exponential"
    """One of `proxyfl topology`."""
    self_weight: float = 0.5
    """The share that a site keeps. Above 0, so that a site never depends on one message."""
    degree: int | None = None
    """The number of receivers of a site, for the topology "random"."""

    def __post_init__(self) -> None:
        choice(
            "graph.topology",
            self.topology,
            [n for n in topology.TOPOLOGIES if n != "cycle"],
        )
        number("graph.self_weight", self.self_weight, above=0, below=1)


@dataclass(frozen=True)
class Manifest:
    """One version of a federation's agreement."""

    name: str
    version: int = 1
    previous: str = ""
    """The hash of the version before; empty for the first."""
    founded: str = ""
    """The hash of the first version; empty in the first itself."""
    protocol: int = PROTOCOL
    rounds: int = 60
    settle: int = 0
    """The number of last rounds in which proxies only mix, which costs no privacy."""
    average: float = 0.0
    """The share of the training rounds, counted from their end, whose proxies each site averages
    before they settle."""
    ends: str = ""
    """No round begins after this, such as 2027-03-31T18:00:00+00:00. Empty: no date."""
    measure: str = "accuracy"
    """The measure in which sites report what joining gained them."""
    input: Input = field(default_factory=lambda: Input((1,), ("0", "1")))
    proxy: Proxy = field(default_factory=Proxy)
    graph: Graph = field(default_factory=Graph)
    schema: Schema | None = None
    """The meaning of a table's columns and their encoding, if examples are rows of tables."""
    members: tuple[Card, ...] = ()

    def __post_init__(self) -> None:
        whole("version", self.version)
        whole("rounds", self.rounds)
        if not (0 < len(self.name) <= 200 and self.name.isprintable()):
            raise ConfigError(
                "Expected a federation's name of 1 to 200 printable characters, got "
                f"{self.name!r:.80}."
            )
        self._check_end()
        self._check_prevalence()
        if self.ends:
            moment("ends", self.ends)
        if self.schema is not None and self.input != input_of(self.schema):
            raise ConfigError(
                "The manifest's input is not what its schema gives: "
                f"{_settings.to_toml(input_of(self.schema))!r}."
            )
        choice("measure", self.measure, MEASURES)
        if self.protocol != PROTOCOL:
            raise ConfigError(
                f"The manifest asks for protocol {self.protocol}, this release speaks {PROTOCOL}. "
                "Install the release that the other members use."
            )
        if self.rounds > MOST_ROUNDS or len(self.members) > MOST_MEMBERS:
            raise ConfigError(
                f"Expected at most {MOST_ROUNDS} rounds and {MOST_MEMBERS} members, got "
                f"{self.rounds} and {len(self.members)}."
            )
        for kind in ("name", "public_key", "sealing_key"):
            _check_distinct(kind, [getattr(card, kind) for card in self.members])

    def _check_end(self) -> None:
        whole("settle", self.settle, at_least=0)
        number("average", self.average, at_least=0, at_most=1)
        if self.settle >= self.rounds:
            raise ConfigError(
                f"settle={self.settle} leaves none of {self.rounds} rounds to learn in."
            )
        if self.settle and self.rounds == MOST_ROUNDS:
            raise ConfigError(
                f"settle={self.settle} needs to know which rounds are the last. State rounds too, "
                "not only the date of the end."
            )
        if self.average and not self.settle:
            raise ConfigError(
                f"average={self.average:g} needs last rounds in which the averaged proxies mix. "
                "Set settle."
            )

    def _check_prevalence(self) -> None:
        shares = self.prevalence
        if self.proxy.balance != "none" and not shares:
            raise ConfigError(
                f"proxy.balance={self.proxy.balance!r} needs the publicly known share of each "
                "class: sites' own counts are private. Give proxy.prevalence, or label.prevalence "
                "in the schema."
            )
        if shares and len(shares) != len(self.input.classes):
            raise ConfigError(
                f"Expected a share for each of {len(self.input.classes)} classes in "
                f"proxy.prevalence, got {len(shares)}."
            )
        if shares and abs(sum(shares) - 1) > 1e-6:
            raise ConfigError(
                f"Expected shares that add up to 1 in proxy.prevalence, got {sum(shares):g}."
            )

    @property
    def prevalence(self) -> tuple[float, ...]:
        """The publicly known share of each class; empty if none is stated."""
        if self.proxy.prevalence or self.schema is None:
            return self.proxy.prevalence
        return self.schema.label.prevalence

    @property
    def training_rounds(self) -> int:
        """The number of rounds in which proxies take steps."""
        return self.rounds - self.settle

    @property
    def digest(self) -> str:
        """The SHA-256 of the content, as 64 hexadecimal digits."""
        content = json.dumps(_terms(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"proxyfl manifest\0" + content.encode()).hexdigest()

    @property
    def federation(self) -> str:
        """This federation's identity: its name and its first version's hash."""
        return f"{self.name}/{(self.founded or self.digest)[:16]}"

    def is_over(self, now: float) -> bool:
        """Whether no round may begin any more at the time ``now``, in seconds since 1970."""
        return bool(self.ends) and now >= moment("ends", self.ends)

    def member(self, name: str) -> Card:
        """The card of the member called ``name``."""
        for card in self.members:
            if card.name == name:
                return card
        known = ", ".join(card.name for card in self.members)
        raise ConfigError(
            f"No member {name!r} in version {self.version} of {self.name!r}: {known}."
        )

    def position(self, name: str) -> int:
        """A member's number: its place in this version's list."""
        return self.members.index(self.member(name))

    def names(self) -> tuple[str, ...]:
        """All members, in order."""
        return tuple(card.name for card in self.members)

    def acceptance(self) -> bytes:
        """The bytes that a member signs to accept this version."""
        return b"proxyfl accepts manifest\0" + bytes.fromhex(self.digest)

    def mixing(self) -> topology.Topology:
        """The graph as a function of round and number of members present."""
        graph = self.graph
        return topology.make(
            graph.topology,
            self_weight=graph.self_weight,
            degree=graph.degree,
            seed=self.proxy.seed,
        )


def read(path: Path) -> Manifest:
    """The manifest in a file, or in a folder's manifest.toml."""
    file = path / FILE if path.is_dir() else path
    return parse(_settings.read_toml(file, "manifest"), source=file)


def parse(tree: dict[str, Any], *, source: Path | str) -> Manifest:
    """The manifest that a nested mapping describes."""
    return _settings.build(Manifest, tree, source=source)


def to_toml(manifest: Manifest) -> str:
    """The manifest as a file that ``read`` reads back to an equal one."""
    terms = _settings.to_toml(
        dataclasses.replace(manifest, members=(), schema=None)
    )
    head = terms.replace("members = []\n", "").replace("\nmembers = []", "")
    if manifest.schema is not None:
        head += "\n" + _schema_block(manifest.schema)
    cards = [f"[[members]]\n{_settings.to_toml(card)}" for card in manifest.members]
    return "\n".join([head, *cards])


def write(folder: Path, manifest: Manifest) -> Path:
    """Write the manifest into ``folder``, and keep the version beside it under its number."""
    text = to_toml(manifest)
    write_text(folder / f"manifest-{manifest.version:04d}.toml", text)
    write_text(folder / FILE, text)
    return folder / FILE


def successor(
    manifest: Manifest,
    *,
    add: Sequence[Card] = (),
    remove: Sequence[str] = (),
    joins: int = 0,
) -> Manifest:
    """The next version, with cards added from round ``joins`` on and members removed."""
    for name in remove:
        manifest.member(name)
    kept = [card for card in manifest.members if card.name not in remove]
    joined = [dataclasses.replace(card, joins=joins) for card in add]
    return dataclasses.replace(
        manifest,
        version=manifest.version + 1,
        previous=manifest.digest,
        founded=manifest.founded or manifest.digest,
        members=(*kept, *joined),
    )


def check_successor(old: Manifest, new: Manifest) -> None:
    """Raise ConfigError unless ``new`` is the version after ``old`` of the same federation."""
    expected = old.founded or old.digest
    if (
        new.version != old.version + 1
        or new.previous != old.digest
        or new.founded != expected
    ):
        raise ConfigError(
            f"Version {new.version} of {new.name!r} does not follow version {old.version} of "
            f"{old.name!r}: it names another predecessor. Get the versions in order."
        )
    for part in ("name", "input", "schema", "proxy", "protocol"):
        if _terms(new)[part] != _terms(old)[part]:
            raise ConfigError(
                f"Version {new.version} changes {part}, which is fixed for a federation's life. "
                "Found a new federation for that."
            )


def input_of(schema: Schema) -> Input:
    """The form of an example under a schema."""
    return Input((len(feature_names(schema)),), schema.label.classes)


def moment(what: str, text: str) -> float:
    """The time that ``text`` names, in seconds since 1970; a date alone is its end, in UTC."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"Expected {what} such as 2027-03-31 or 2027-03-31T18:00:00+00:00, got {text!r:.40}."
        ) from None
    if schemas.is_date(text):
        found += datetime.timedelta(days=1)
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    return found.timestamp()


def _terms(manifest: Manifest) -> dict[str, Any]:
    """All that the members agree on; the schema as text, in which its columns have an order."""
    terms = dataclasses.asdict(manifest)
    if manifest.schema is not None:
        terms["schema"] = schemas.to_toml(manifest.schema)
    return terms


def _schema_block(schema: Schema) -> str:
    lines = ["[schema]"]
    for line in schemas.to_toml(schema).splitlines():
        lines.append(f"[schema.{line[1:]}" if line.startswith("[") else line)
    return "\n".join(lines) + "\n"


def _check_distinct(kind: str, values: Sequence[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(
                f"Two members have the same {kind} {value!r:.80}. Each needs its own."
            )
