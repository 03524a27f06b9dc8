"""The manifest: what the members of a federation agree on. TOML, no secrets.

Members, in order, with addresses and keys; the proxy's architecture and initial seed; what an
example looks like and the fixed list of classes, or the public schema of a table, from which both
follow; the graph; how many rounds, or until when; the measure in which gain is reported. Every
message names the manifest's version, and sites that meet compare its hash.

A change (a site added, a site removed, an address moved, a key changed) is a new version that names
the hash of the one before. A site follows only manifests that its own operator accepted; the
acceptance is a signature over the hash, which peers collect.

A later release may add terms. A term that sites of older releases may ignore stands at the top
level or in a member's table, and raises ``minor``; those sites keep it in the hash, and say that
they ignore it. Every other new term (in the proxy, the graph, the input, the schema: whatever
changes what is exchanged) needs all members to know it, or a new ``protocol``.

Guarantees:
    * ``digest`` depends on what the file states alone, not on its layout nor on the release that
      reads it: terms of the first format count with their defaults, a later term only if it is
      stated, whether this release knows it or not;
    * the order of a schema's columns is content, since it is the order of the proxy's inputs;
    * a version that does not follow from the one before is refused: ``check_successor``.
"""

import dataclasses
import datetime
import hashlib
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxyfl import _settings, settings
from proxyfl._command import command
from proxyfl._files import write_text
from proxyfl._validate import choice, number, whole
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.schema import Schema
from proxyfl.errors import ConfigError
from proxyfl.gossip import topology
from proxyfl.node.members import files
from proxyfl.node.members.identity import Card
from proxyfl.node.members.versions import ADDED, RELEASE, added, install_command
from proxyfl.privacy.coalition import Coalition
from proxyfl.settings import Input as Input
from proxyfl.settings import Proxy as Proxy
from proxyfl.settings import Study

FILE = files.MANIFEST
PROTOCOL = 1
"""The major version of the manifest's format."""
MINOR = 5
"""The minor version: the largest ``minor`` of the fields below, or of ``OUTCOMES``."""
OUTCOMES = 5
"""The first minor version whose schemas may have another task than classification."""
MOST_MEMBERS = 1000
MOST_ROUNDS = 100_000


MOST_IN_A_SUM = 64
"""The most members of a federation that trains by masked sums: each sends to all others."""


@dataclass(frozen=True)
class Masked:
    """The terms of a masked sum. All members take every step together, so they have the same
    noise, clipping and optimizer, whatever their own site.toml says."""

    colluders: int
    """Members that may pool what they know or leave out their noise (t)."""
    quorum: int
    """The fewest members that a sum may have (K_min): more than half of all. Below it nobody
    sends."""
    steps: int = 1
    """Steps of a round."""
    noise_multiplier: float = 4.0
    """Standard deviation of the noise that hides a sum from the colluders, in units of
    `clip_norm`. Each member adds its share of it."""
    clip_norm: float = 1.0
    """Largest norm of one record's or person's gradient."""
    optimizer: str = "adam"
    """`adam` or `sgd`."""
    learning_rate: float = 0.1
    """The proxy's learning rate."""
    weight_decay: float = 1e-4
    """The proxy's weight decay."""
    momentum: float = 0.0
    """The momentum of `sgd`."""

    def __post_init__(self) -> None:
        _ = self.coalition, self.proxy_optimizer
        whole("graph.masked.steps", self.steps)
        number("graph.masked.noise_multiplier", self.noise_multiplier, above=0)
        number("graph.masked.clip_norm", self.clip_norm, above=0)

    @property
    def coalition(self) -> Coalition:
        """Against whom the first epsilon holds."""
        return Coalition(self.colluders, self.quorum)

    @property
    def proxy_optimizer(self) -> settings.Optimizer:
        """The optimizer of the one proxy."""
        return settings.Optimizer(
            self.optimizer, self.learning_rate, self.weight_decay, self.momentum
        )


@dataclass(frozen=True)
class Graph(settings.Graph):
    """The graph: each site's receivers and shares."""

    self_weight: float = 0.5
    """The share that a site keeps. Above 0, so that a site never depends on one message."""
    masked: Masked | None = added(3, None)  # noqa: RUF009  # makes a field
    """The terms of masked sums, in which there is one proxy and no graph; absent: gossip."""
    kinds: tuple[str, ...] = added(4, ())  # makes a field
    """The kind of each member, in their order. Members exchange with those of their own kind alone,
    so there is one proxy for each kind. Empty: all are of one kind."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("graph.topology", self.topology, [n for n in topology.TOPOLOGIES if n != "cycle"])
        number("graph.self_weight", self.self_weight, above=0, below=1)


@dataclass(frozen=True)
class Manifest(Study):
    """One version of a federation's agreement."""

    version: int = 1
    """The number of this version, counted from 1."""
    previous: str = ""
    """The hash of the version before; empty for the first."""
    founded: str = ""
    """The hash of the first version; empty in the first itself."""
    protocol: int = PROTOCOL
    """The version of the format and of the exchange protocol."""
    minor: int = added(1, 0)
    """The minor version of the format that has all of this manifest's terms."""
    release: str = added(1, "")
    """The release that wrote this version, for a site that cannot read it."""
    ends: str = ""
    """No round begins after this, such as 2027-03-31T18:00:00+00:00. Empty: no date."""
    graph: Graph = field(default_factory=Graph)
    schema: Schema | None = None
    """The meaning of a table's columns and their encoding, if examples are rows of tables."""
    members: tuple[Card, ...] = ()
    whole: "Manifest | None" = field(default=None, metadata=_settings.INTERNAL)
    """Of one kind's part (``for_member``): the manifest that all kinds have signed."""
    later: dict[str, Any] = field(default_factory=dict)
    """Terms that this release does not know, as the file states them; those of members' tables by
    name, under "members"."""

    def __post_init__(self) -> None:
        if self.schema is not None and self.input.outcome is None:
            outcome = input_of(self.schema).outcome
            object.__setattr__(self, "input", dataclasses.replace(self.input, outcome=outcome))
        object.__setattr__(self, "minor", max(self.minor, _least_minor(self)))
        super().__post_init__()
        whole("version", self.version)
        if not (0 < len(self.name) <= 200 and self.name.isprintable()):
            raise ConfigError(
                "Expected a federation's name of 1 to 200 printable characters, got "
                f"{self.name!r:.80}."
            )
        if self.settle and self.rounds == MOST_ROUNDS:
            raise ConfigError(
                f"settle={self.settle} needs to know which rounds are the last. State rounds too, "
                "not only the date of the end."
            )
        if self.prevalence or self.proxy.balance != "none":
            self.public_shares()
        if self.ends:
            moment("ends", self.ends)
        if self.schema is not None and self.input != input_of(self.schema):
            raise ConfigError(
                "The manifest's input is not what its schema gives: "
                f"{_settings.to_toml(input_of(self.schema))!r}."
            )
        if self.protocol != PROTOCOL:
            raise _other_format(self.protocol, self.release)
        if self.rounds > MOST_ROUNDS or len(self.members) > MOST_MEMBERS:
            raise ConfigError(
                f"Expected at most {MOST_ROUNDS} rounds and {MOST_MEMBERS} members, got "
                f"{self.rounds} and {len(self.members)}."
            )
        if self.members:
            _check_kinds(self.graph.kinds, self.members)
        if self.graph.masked is not None and self.members:
            for _, names in self.kinds():
                _check_masked(self.graph.masked, len(names), self.average)
        for kind in ("name", "public_key", "sealing_key"):
            _check_distinct(kind, [getattr(card, kind) for card in self.members])

    @property
    def prevalence(self) -> tuple[float, ...]:
        """The publicly known share of each class; empty if none is stated."""
        if self.proxy.prevalence or self.schema is None:
            return self.proxy.prevalence
        return self.schema.label.prevalence

    def published_score(self) -> tuple[float, ...]:
        """The score of the schema's ``start``."""
        if self.schema is None:
            return ()
        from proxyfl.data.tables.features import published_score  # it needs numpy

        return published_score(self.schema)

    @property
    def digest(self) -> str:
        """The SHA-256 of the content, as 64 hexadecimal digits. One kind's part has that of the
        whole, which its members have signed."""
        if self.whole is not None:
            return self.whole.digest
        content = _canonical(_terms(self)).encode()
        return hashlib.sha256(b"proxyfl manifest\0" + content).hexdigest()

    @property
    def federation(self) -> str:
        """This federation's identity: its name and its first version's hash."""
        return f"{self.name}/{(self.founded or self.digest)[:16]}"

    def is_over(self, now: float) -> bool:
        """True if no round may begin any more at the time ``now``, in seconds since 1970."""
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

    def kinds(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each kind of members and their names; one kind without a name if none are stated."""
        kinds = self.graph.kinds or ("",) * len(self.members)
        names: dict[str, tuple[str, ...]] = {}
        for card, kind in zip(self.members, kinds, strict=True):
            names[kind] = (*names.get(kind, ()), card.name)
        return list(names.items())

    def for_member(self, name: str) -> "Manifest":
        """The federation as the member called ``name`` takes part in it: with the members of its
        own kind alone. It is never written to a file."""
        if not self.graph.kinds:
            return self
        self.member(name)
        (own,) = (names for _, names in self.kinds() if name in names)
        return dataclasses.replace(
            self,
            members=tuple(card for card in self.members if card.name in own),
            graph=dataclasses.replace(self.graph, kinds=()),
            whole=self,
        )

    def acceptance(self) -> bytes:
        """The bytes that a member signs to accept this version."""
        return b"proxyfl accepts manifest\0" + bytes.fromhex(self.digest)

    @property
    def masked(self) -> Masked | None:
        """The terms of masked sums; None where sites gossip."""
        return self.graph.masked

    @property
    def method(self) -> str:
        """The method that its sites run."""
        return "proxyfl" if self.masked is None else "proxysum"

    def mixing(self) -> topology.Topology:
        """The graph as a function of round and number of members present."""
        return topology.from_graph(self.graph, seed=self.proxy.seed)


def read(path: Path) -> Manifest:
    """The manifest in a file, or in a folder's manifest.toml."""
    file = path / FILE if path.is_dir() else path
    return parse(_settings.read_toml(file, "manifest"), source=file)


def read_accepted(folder: Path, site: str) -> Manifest:
    """The newest manifest that ``site`` has accepted, from its ``folder``."""
    versions = sorted((folder / "manifests").glob("*.toml"))
    if not versions:
        raise ConfigError(
            f"{site} has not accepted a manifest yet. Run: "
            f"{command('node', 'accept', folder, 'MANIFEST')}"
        )
    return read(versions[-1]).for_member(site)


def parse(tree: dict[str, Any], *, source: Path | str) -> Manifest:
    """The manifest that a nested mapping describes. Terms of a newer minor version are kept."""
    protocol, minor, release = (tree.get(name) for name in ("protocol", "minor", "release"))
    if protocol is not None and protocol != PROTOCOL:
        raise ConfigError(f"{source}: {_other_format(protocol, release)}")
    if "method" in tree:
        # refused under every minor version: a term that changes what leaves is never ignored
        raise ConfigError(
            f"{source}: method={tree['method']!r} is not a term of a manifest. Sites run proxyfl, "
            "or proxysum if there is a table [graph.masked]. Leave method out."
        )
    is_newer = isinstance(minor, int) and minor > MINOR
    known, later = _split_terms(tree) if is_newer else (tree, {})
    try:
        built = _settings.build(Manifest, known, source=source)
        _check_spelling(tree, built)
    except ConfigError as error:
        if not is_newer:
            raise
        raise ConfigError(
            f"{error} The manifest has minor version {minor}, of which release {RELEASE} knows "
            f"{MINOR}. Run: {install_command(release if isinstance(release, str) else '')}"
        ) from error
    return dataclasses.replace(built, later=later)


def to_toml(manifest: Manifest) -> str:
    """The manifest as a file that ``read`` reads back to an equal one."""
    later = dict(manifest.later)
    of_members = later.pop("members", {})
    blocks = [_block("", manifest, later)]
    for name in ("input", "proxy", "graph"):
        blocks.append(_block(f"[{name}]", getattr(manifest, name), {}))
    if manifest.masked is not None:
        blocks.append(_block("[graph.masked]", manifest.masked, {}))
    if manifest.schema is not None:
        blocks.append(_schema_block(manifest.schema))
    for card in manifest.members:
        blocks.append(_block("[[members]]", card, of_members.get(card.name, {})))
    return "\n".join(blocks)


def notes(manifest: Manifest) -> list[str]:
    """Remarks for the operator who accepts the manifest: terms that this release ignores."""
    names = [name for name in manifest.later if name != "members"]
    for member, terms in manifest.later.get("members", {}).items():
        names += [f"{name} of {member}" for name in terms]
    if not names:
        return []
    return [
        f"ignores {', '.join(names)}, which release {RELEASE} does not know; the manifest was "
        f"written by release {manifest.release or 'unknown'}"
    ]


def write(folder: Path, manifest: Manifest) -> Path:
    """Write the manifest into ``folder``, and keep the version next to it under its number."""
    text = to_toml(manifest)
    write_text(folder / f"manifest-{manifest.version:04d}.toml", text)
    write_text(folder / FILE, text)
    return folder / FILE


def successor(
    manifest: Manifest,
    *,
    add: Sequence[Card] = (),
    remove: Sequence[str] = (),
    replace: Sequence[Card] = (),
    joins: int = 0,
    colluders: int | None = None,
    quorum: int | None = None,
    kinds: Sequence[str] = (),
) -> Manifest:
    """The next version, with cards added from round ``joins`` on, members removed, and members'
    cards replaced by new ones of theirs; with other ``colluders`` or another ``quorum`` of masked
    sums, if they are given. ``kinds`` has the kind of each card that is added, where members have
    kinds."""
    graph = manifest.graph
    if colluders is not None or quorum is not None:
        if graph.masked is None:
            raise ConfigError(
                "--colluders and --quorum are terms of masked sums, and this federation gossips. "
                "Leave them out."
            )
        masked = graph.masked
        terms = Masked(
            **dataclasses.asdict(masked)
            | {
                "colluders": masked.colluders if colluders is None else colluders,
                "quorum": masked.quorum if quorum is None else quorum,
            }
        )
        graph = dataclasses.replace(graph, masked=terms)
    new = {}
    for card in replace:
        old = manifest.member(card.name)
        card.check_change(old)
        new[card.name] = dataclasses.replace(card, joins=old.joins)
    for name in remove:
        manifest.member(name)
    kept = [new.get(card.name, card) for card in manifest.members if card.name not in remove]
    joined = [dataclasses.replace(card, joins=joins) for card in add]
    of_kept: tuple[str, ...] = ()
    if graph.kinds:
        if len(kinds) != len(joined):
            raise ConfigError(
                "This federation has kinds of members. Say of which kind a new one is: --kind "
                f"{joined[0].name if joined else 'NAME'}=KIND."
            )
        pairs = zip(manifest.members, graph.kinds, strict=True)
        of_kept = tuple(kind for card, kind in pairs if card.name not in remove)
    graph = dataclasses.replace(graph, kinds=(*of_kept, *kinds))
    return dataclasses.replace(
        manifest,
        version=manifest.version + 1,
        previous=manifest.digest,
        founded=manifest.founded or manifest.digest,
        release=RELEASE,
        members=(*kept, *joined),
        graph=graph,
        later=_later_of(manifest, [card.name for card in kept]),
    )


def check_successor(old: Manifest, new: Manifest) -> None:
    """Raise ConfigError unless ``new`` is the version after ``old`` of the same federation."""
    expected = old.founded or old.digest
    if new.version != old.version + 1 or new.previous != old.digest or new.founded != expected:
        raise ConfigError(
            f"Version {new.version} of {new.name!r} does not follow version {old.version} of "
            f"{old.name!r}: it names another predecessor. Accept the versions in order."
        )
    for part in ("name", "input", "schema", "proxy", "protocol"):
        if _terms(new)[part] != _terms(old)[part]:
            raise ConfigError(
                f"Version {new.version} changes {part}, which is fixed for a federation's life. "
                "Found a new federation for that."
            )
    names = old.names()
    before = {name: kind for kind, of_kind in old.kinds() for name in of_kind}
    after = {name: kind for kind, of_kind in new.kinds() for name in of_kind}
    for card in new.members:
        if card.name in names:
            card.check_change(old.member(card.name))
            if after[card.name] != before[card.name]:
                raise ConfigError(
                    f"Version {new.version} makes {card.name} of the kind {after[card.name]!r}; it "
                    f"was {before[card.name]!r}, and has trained that kind's proxy. Found a new "
                    "federation for that."
                )


def input_of(schema: Schema) -> Input:
    """The form of an example under a schema."""
    from proxyfl.data.tables.features import feature_names  # it needs numpy

    return Input.of((len(feature_names(schema)),), schema.label.outcome)


def moment(what: str, text: str) -> float:
    """The time that ``text`` names, in seconds since 1970; a date alone is its end, in UTC."""
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"Expected {what} such as 2027-03-31 or 2027-03-31T18:00:00+00:00, got {text!r:.40}."
        ) from None
    if schemas.is_date(text):
        at += datetime.timedelta(days=1)
    if at.tzinfo is None:
        at = at.replace(tzinfo=datetime.UTC)
    return at.timestamp()


def _terms(manifest: Manifest) -> dict[str, Any]:
    """All that the members agree on; the schema as text, in which its columns have an order."""
    terms = _content(manifest)
    if manifest.schema is not None:
        terms["schema"] = schemas.to_toml(manifest.schema)
    later = dict(manifest.later)
    of_members = later.pop("members", {})
    for card in terms["members"]:
        card |= of_members.get(card["name"], {})
    return {**terms, **later}


def _content(table: Any) -> dict[str, Any]:
    """The terms of a table that count in the hash."""
    terms: dict[str, Any] = {}
    for item in dataclasses.fields(table):
        value = getattr(table, item.name)
        if item.metadata == _settings.INTERNAL:
            continue  # it follows from the schema
        if ADDED in item.metadata:
            if dataclasses.is_dataclass(value):
                terms[item.name] = _content(value)
            elif value != item.default:
                terms[item.name] = _as_stated(value)
        elif item.name == "members":
            terms[item.name] = [_content(card) for card in value]
        elif dataclasses.is_dataclass(value) and not isinstance(value, Schema):
            terms[item.name] = _content(value)
        elif item.name not in ("later", "whole"):
            terms[item.name] = value
    return terms


def _canonical(terms: Any) -> str:
    return json.dumps(terms, sort_keys=True, separators=(",", ":"))


def _as_stated(value: Any) -> Any:
    """A value as TOML reads it back: what a release that does not know the term would hash."""
    return tomllib.loads(f"value = {_settings.toml_value(value)}")["value"]


def _least_minor(manifest: Manifest) -> int:
    """The minor version of the format that first had all of the terms that are stated."""
    least = OUTCOMES if manifest.input.outcome is not None else 0
    tables: list[Manifest | Graph | Card] = [manifest, manifest.graph, *manifest.members]
    for table in tables:
        for item in dataclasses.fields(table):
            if getattr(table, item.name) != item.default:
                least = max(least, item.metadata.get(ADDED, 0))
    return least


def _split_terms(tree: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The terms that this release knows, and the others."""
    known, later = _of_fields(Manifest, tree)
    members = known.get("members")
    if isinstance(members, list):
        cards = []
        of_members = {}
        for card in members:
            ours, theirs = _of_fields(Card, card) if isinstance(card, dict) else (card, {})
            cards.append(ours)
            if theirs:
                of_members[card.get("name")] = theirs
        known["members"] = cards
        if of_members:
            later["members"] = of_members
    return known, later


def _of_fields(kind: type, tree: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = {item.name for item in dataclasses.fields(kind)} - {"later"}
    known = {name: value for name, value in tree.items() if name in names}
    later = {name: value for name, value in tree.items() if name not in names}
    for name, value in later.items():
        if not _can_be_kept(value):
            raise ConfigError(
                f"The term {name!r} is of a kind that release {RELEASE} cannot keep: {value!r:.80}."
            )
    return known, later


def _can_be_kept(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_can_be_kept, value.values()))
    if isinstance(value, list):
        return all(map(_can_be_kept, value))
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _check_spelling(tree: dict[str, Any], manifest: Manifest) -> None:
    """Raise ConfigError if a later term is stated in another way than ``to_toml`` states it.

    A release that does not know the term hashes it as the file has it."""
    tables: list[tuple[dict[str, Any], Any]] = [(tree, manifest)]
    tables += zip(tree.get("members", []), manifest.members, strict=True)
    for stated, table in tables:
        terms = _content(table)
        for item in dataclasses.fields(table):
            name = item.name
            if ADDED not in item.metadata or name not in stated:
                continue
            if name not in terms:
                raise ConfigError(f"Leave out {name!r}: it states the default.")
            if _canonical(stated[name]) != _canonical(terms[name]):
                raise ConfigError(
                    f"Expected {name} = {_settings.toml_value(terms[name])}, got "
                    f"{stated[name]!r:.80}: a term has one spelling, since all hash it."
                )


def _later_of(manifest: Manifest, members: Sequence[str]) -> dict[str, Any]:
    """The terms that this release does not know, without those of members that are gone."""
    later = dict(manifest.later)
    if "members" in later:
        of_members = later["members"].items()
        later["members"] = {name: terms for name, terms in of_members if name in members}
    return later


def _other_format(protocol: Any, release: Any) -> ConfigError:
    written = release if isinstance(release, str) else ""
    by = f" by release {written}" if written else ""
    return ConfigError(
        f"The manifest was written{by} for protocol {protocol}; release {RELEASE} reads protocol "
        f"{PROTOCOL}. Use the release that the other members use. "
        f"Run: {install_command(written)}"
    )


def _block(title: str, table: Any, later: dict[str, Any]) -> str:
    """A table's own lines in TOML: what it states, and what this release does not know."""
    lines = [title] if title else []
    for item in dataclasses.fields(table):
        value = getattr(table, item.name)
        is_left_out = value == item.default if ADDED in item.metadata else value is None
        is_a_block = item.name in ("members", "later", "whole") or dataclasses.is_dataclass(value)
        if not is_left_out and not is_a_block:
            lines.append(f"{item.name} = {_settings.toml_value(value)}")
    for name, value in later.items():
        lines.append(f"{_settings.toml_key(name)} = {_settings.toml_value(value)}")
    return "\n".join(lines) + "\n"


def _schema_block(schema: Schema) -> str:
    lines = ["[schema]"]
    for line in schemas.to_toml(schema).splitlines():
        lines.append(f"[schema.{line[1:]}" if line.startswith("[") else line)
    return "\n".join(lines) + "\n"


def _check_masked(masked: Masked, members: int, average: float) -> None:
    """Raise ConfigError unless ``members`` members can train by masked sums on these terms."""
    if not members < 2 * masked.quorum <= 2 * members:
        raise ConfigError(
            f"Expected a quorum of more than half of the {members} members, and not of more than "
            f"all, got {masked.quorum}: two groups must not go on with two proxies. Set it to "
            f"{members // 2 + 1} to {members}."
        )
    if members > MOST_IN_A_SUM:
        raise ConfigError(
            f"Expected at most {MOST_IN_A_SUM} members for masked sums, got {members}: each sends "
            "to all others. Make several smaller federations, or let them gossip."
        )
    if average:
        raise ConfigError(
            f"average={average:g} is for proxies that gossip; masked sums have one proxy. Leave "
            "it out."
        )


def _check_kinds(kinds: Sequence[str], members: Sequence[Card]) -> None:
    """Raise ConfigError unless each member has a kind, or none has, and no kind has one member."""
    if not kinds:
        return
    if len(kinds) != len(members):
        raise ConfigError(
            f"Expected the kind of each of the {len(members)} members in graph.kinds, in their "
            f"order, got {len(kinds)}."
        )
    for kind, card in zip(kinds, members, strict=True):
        if not (0 < len(kind) <= 100 and kind.isprintable()):
            raise ConfigError(
                f"Expected a kind of 1 to 100 printable characters for {card.name}, got "
                f"{kind!r:.80}."
            )
        if list(kinds).count(kind) < 2:
            raise ConfigError(
                f"{card.name} is the only member of the kind {kind!r}: it would have nobody to "
                "train a proxy with. Give it a kind that others have, or leave it out."
            )


def _check_distinct(kind: str, values: Sequence[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(
                f"Two members have the same {kind} {value!r:.80}. Each needs its own."
            )
