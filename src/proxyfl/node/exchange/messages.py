"""Messages between sites: a signed header, and for a share the frame that it announces.

    b"PFLNODE" | version, 1 byte | length of the header, 4 bytes
    | header, JSON | signature, 64 bytes | body

The signature covers the header, and the header holds the body's length and SHA-256. A message is
what it is on whichever way it came: over TLS, through a relay, or as a file. The version is the
protocol's major version (``node.members.versions``); this layout and the header's ``release`` stay
the same in all of them.

    hello      who I am now: which start of my program, how far I am, what I still owe you
    share      a part of my mass for you; the body is a frame (proxyfl.transport.wire)
    verdict    what became of a share: stored, or refused, once and for all
    summand    my masked vector for one attempt at a step (proxyfl.node.summing); its body
    parcel     the proxy after so many steps, for a member that lacks it; its body
    restored   I have seen this of you, and you do not show it: show it, or you are an old backup

Every message carries its sender's ``Stamp``, its place in the sender's history (``history``).

Guarantees:
    * ``begin`` returns a header whose every field has the stated type and range, or raises
      MessageError; any other bytes raise nothing else and cost no more memory than they have;
    * fields that a newer minor version has added are ignored, and those that an older one lacks
      have their default; another major version is refused by a sentence that names both releases;
    * what passes ``check_signature`` and ``check_body`` is what the owner of the card signed.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol

from proxyfl.errors import ProxyFLError, TransportError
from proxyfl.node.members.versions import ADDED, PROTOCOL, RELEASE, SPOKEN, added, other_protocol

HEADER_LIMIT = 8192
SIGNATURE_BYTES = 64
MOST_LISTED = 64

_NAME = b"PFLNODE"
_MAGIC = _NAME + bytes([PROTOCOL])
_START = len(_MAGIC) + 4
HEAD_LIMIT = _START + HEADER_LIMIT + SIGNATURE_BYTES
"""A message's bytes before its body, at most."""
_CONTEXT = b"proxyfl message\0"
_LARGEST = 2**53
_LONGEST_TEXT = 700
_LONGEST_END = 40
_LONGEST_VIEW = 1500
_FINEST_WEIGHT = 2**1074
"""Weights are sums of floats, so all are multiples of the least float."""

NONE_SEEN = "0"
"""Stands for the tag of a chapter where the sender has seen none."""

State = Literal["active", "leaving", "left"]


class MessageError(TransportError):
    """Bytes that are not a message, or not one that may be believed."""


class Signer(Protocol):
    """An owner of a key that signs."""

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes."""
        ...


class Verifier(Protocol):
    """A holder of a card that checks a signature."""

    def verify(self, signature: bytes, content: bytes) -> None:
        """Raise unless the signature is right."""
        ...


@dataclass(frozen=True)
class Stamp:
    """A site's place in its own history.

    ``epoch`` counts deliberate new beginnings (`proxyfl node rejoin`), ``boot`` the starts of the
    program, ``clock`` the changes of the store. ``tag`` names the present chapter: it is drawn anew
    at each start and at each release, so that no two copies of a site have it in common.
    """

    epoch: int
    boot: int
    tag: str
    clock: int

    @property
    def numbers(self) -> tuple[int, int, str, int]:
        """All of it, in the order of a header's fields."""
        return self.epoch, self.boot, self.tag, self.clock


@dataclass(frozen=True)
class Header:
    """The fields of every message."""

    federation: str
    version: int
    sender: str
    receiver: str
    epoch: int
    boot: int
    tag: str
    clock: int

    @property
    def stamp(self) -> Stamp:
        """The sender's stamp when it made the message."""
        return Stamp(self.epoch, self.boot, self.tag, self.clock)


@dataclass(frozen=True)
class Hello(Header):
    """A site's present state.

    ``owed`` lists the rounds of unsettled shares for the receiver, ``stored`` the rounds of the
    last shares stored from it. ``round`` is the first round whose shares the site has not yet
    sent. ``past`` has the ends of earlier chapters (``spell_end``), newest first: the last ones,
    and those that the receiver asked for. ``paid`` counts the rounds that rejoining has charged,
    ``debt`` is the weight that the site has yet to make good (``history``). A site that has
    ``ended`` releases nothing more. ``answer`` tells an answer from a question. ``release`` and
    ``protocol`` are those of the program that speaks.
    """

    manifest: str
    accepted: str
    round: int
    past: tuple[str, ...]
    paid: int
    debt: str
    state: State
    owed: tuple[int, ...]
    stored: tuple[int, ...]
    ended: bool
    time: int
    answer: bool
    release: str = RELEASE
    protocol: str = SPOKEN
    masked: str = added(2, "")
    """In a federation of masked sums, the sender's ``agreement.View``; else empty."""


@dataclass(frozen=True)
class Share(Header):
    """A part of the sender's mass. Its key is (federation, round, sender).

    ``past`` has the ends of the chapters before the one in which it was released. ``meant_for`` is
    the tag of the receiver's last chapter that the sender had seen when it made the share, or
    ``NONE_SEEN``; a sender of protocol 2.0 does not say."""

    round: int
    weight: str
    size: int
    sha256: str
    past: tuple[str, ...]
    meant_for: str = added(1, "")

    @property
    def exact_weight(self) -> Fraction:
        """The PushSum weight, without rounding."""
        return parse_weight(self.weight)


@dataclass(frozen=True)
class Verdict(Header):
    """The receiver's decision on a share. ``again`` asks to try later: nothing is decided.

    ``released`` is the first round that the receiver has not released, ``past`` as in a hello."""

    round: int
    sha256: str
    outcome: Literal["stored", "refused", "again"]
    reason: str
    released: int
    past: tuple[str, ...]


@dataclass(frozen=True)
class Restored(Header):
    """The answer to a site that does not show all that was seen of it; the rest says what was.

    A site that remembers it shows it in its next hello. One that does not is a restored copy, if
    ``proof`` is a message of its own from there (``proof_of``)."""

    seen_epoch: int
    seen_boot: int
    seen_tag: str
    seen_clock: int
    seen_round: int
    seen_past: tuple[str, ...]
    seen_paid: int
    seen_debt: str
    proof: str = added(1, "")

    @property
    def seen(self) -> Stamp:
        """The latest stamp seen of the receiver."""
        return Stamp(self.seen_epoch, self.seen_boot, self.seen_tag, self.seen_clock)


@dataclass(frozen=True)
class Summand(Header):
    """A masked vector: the body has its words. ``roster`` and ``sees`` are sets of members by
    position, in hexadecimal digits; ``batch`` is the sender's expected batch."""

    step: int
    ballot: int
    roster: str
    base: str
    sees: str
    last: bool
    batch: int
    masked: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Parcel(Header):
    """A proxy and its optimizer's state after ``step`` sums, for a member that lacks it."""

    step: int
    ballot: int
    proxy: str
    before: str
    roster: str
    size: int
    sha256: str


_KINDS: dict[str, type[Header]] = {
    "hello": Hello,
    "share": Share,
    "verdict": Verdict,
    "restored": Restored,
    "summand": Summand,
    "parcel": Parcel,
}


def head(header: Header, signer: Signer) -> bytes:
    """The message without its body."""
    text = _encode(header)
    signature = signer.sign(_CONTEXT + text)
    return b"".join([_MAGIC, len(text).to_bytes(4, "big"), text, signature])


def pack(header: Header, signer: Signer, body: bytes | memoryview = b"") -> bytes:
    """The message as bytes."""
    return b"".join([head(header, signer), body])


def begin(start: bytes) -> tuple[Header, memoryview]:
    """The header of a message that begins with ``start``, and what ``start`` has of the body.

    ``start`` needs no more than ``HEAD_LIMIT`` bytes. Nothing is authentic yet."""
    text, _, body = _cut(start)
    try:
        content = json.loads(text.tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise MessageError(f"A message's header is not JSON: {error}.") from error
    if not isinstance(content, dict) or content.get("kind") not in _KINDS:
        raise MessageError(f"Expected a header of kind {', '.join(_KINDS)}, got {content!r:.120}.")
    return _header(_KINDS[content.pop("kind")], content), body


def check_signature(start: bytes, card: Verifier) -> None:
    """Raise unless the owner of ``card`` signed the header of the message."""
    text, signature, _ = _cut(start)
    card.verify(signature.tobytes(), _CONTEXT + text.tobytes())


def proof_of(message: bytes) -> str:
    """The signed header of a message, by which others can be shown that its sender said it."""
    text, signature, _ = _cut(message)
    return signature.tobytes().hex() + text.tobytes().decode()


def check_proof(proof: str, cards: Iterable[Verifier]) -> Header | None:
    """The header in a proof; None unless the owner of one of ``cards`` signed it."""
    digits, text = proof[: 2 * SIGNATURE_BYTES], proof[2 * SIGNATURE_BYTES :].encode()
    try:
        signature = bytes.fromhex(digits)
    except ValueError:
        return None
    for card in cards:
        with contextlib.suppress(ProxyFLError):
            card.verify(signature, _CONTEXT + text)
            message = b"".join([_MAGIC, len(text).to_bytes(4, "big"), text, signature])
            return begin(message)[0]
    return None


def body_size(header: Header) -> int:
    """The bytes of body that ``header`` announces."""
    return header.size if isinstance(header, Share | Summand | Parcel) else 0


def check_body(header: Header, sha256: str) -> None:
    """Raise unless a body with this SHA-256 is the one that ``header`` announces."""
    if isinstance(header, Share | Summand | Parcel) and sha256 != header.sha256:
        kind = type(header).__name__.lower()
        raise MessageError(
            f"A {kind} of {header.sender!r} does not match its own hash: it was damaged or "
            "altered on the way."
        )


def spell_end(tag: str, clock: int) -> str:
    """The end of a chapter as text."""
    return f"{tag}:{clock}"


def parse_ends(past: Iterable[str]) -> dict[str, int]:
    """Tag -> clock, for ends that ``spell_end`` wrote; MessageError for anything else."""
    ends = {}
    for text in past:
        tag, _, clock = text.rpartition(":")
        is_plain = text.isascii() and tag.isalnum() and clock.isdecimal()
        if not is_plain or len(text) > _LONGEST_END:
            raise MessageError(f"Expected the end of a chapter such as a1b2:7, got {text!r:.60}.")
        ends[tag] = int(clock)
    return ends


def spell_weight(weight: Fraction) -> str:
    """An exact weight as text: numerator/denominator, in hexadecimal digits."""
    return f"{weight.numerator:x}/{weight.denominator:x}"


def parse_weight(text: str) -> Fraction:
    """The weight that ``spell_weight`` wrote; MessageError unless it is a sum of floats >= 0.

    A finer one would add digits to every weight that it is added to, until no header holds them;
    a larger one is no float."""
    numerator, _, denominator = text.partition("/")
    try:
        over, under = int(numerator, 16), int(denominator, 16)
    except ValueError as error:
        raise MessageError(f"Expected a weight such as 3/4, got {text!r:.60}.") from error
    if over < 0 or under < 1 or _FINEST_WEIGHT % under or over > under << 64:
        raise MessageError(
            f"Expected a weight from 0 to 2**64 over a power of two up to 2**1074, got "
            f"{text!r:.60}."
        )
    weight = Fraction(over, under)
    if spell_weight(weight) != text:
        raise MessageError(f"Expected the weight {spell_weight(weight):.60}, spelled {text!r:.60}.")
    return weight


def _encode(header: Header) -> bytes:
    kind = type(header).__name__.lower()
    content = {"kind": kind, **dataclasses.asdict(header)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    if len(text) > HEADER_LIMIT:
        raise MessageError(f"Expected a header of at most {HEADER_LIMIT} bytes, got {len(text)}.")
    return text


def _cut(message: bytes) -> tuple[memoryview, memoryview, memoryview]:
    """Header, signature, and what there is of the body."""
    if message[: len(_NAME)] != _NAME or len(message) < _START:
        raise MessageError(f"Not a message of a site: it begins with {bytes(message[:8])!r}.")
    length = int.from_bytes(message[len(_MAGIC) : _START], "big")
    signature = _START + length
    end = signature + SIGNATURE_BYTES
    if length > HEADER_LIMIT or end > len(message):
        raise MessageError(f"The header claims {length} bytes in a message of {len(message)}.")
    content = memoryview(message)
    text = content[_START:signature]
    if message[len(_NAME)] != PROTOCOL:
        raise _other_protocol(message[len(_NAME)], text)
    return text, content[signature:end], content[end:]


def _other_protocol(protocol: int, text: memoryview) -> MessageError:
    """The refusal of a message of another major version. Nothing of it is authentic."""
    release = ""
    with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError):
        release = str(json.loads(text.tobytes().decode())["release"])[:40]
    if not release.isprintable():
        release = ""
    return MessageError(other_protocol(protocol, release))


def _header(kind: type[Header], content: dict[str, Any]) -> Header:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in content:
            values[field.name] = _check_value(field.name, field.type, content[field.name])
        elif ADDED not in field.metadata:
            raise MessageError(
                f"A {kind.__name__.lower()} without {field.name!r}: {sorted(content)!r:.200}."
            )
    for name in ("weight", "debt", "seen_debt"):
        if name in values:
            parse_weight(values[name])
    for name in ("past", "seen_past"):
        parse_ends(values.get(name, ()))
    for name in ("tag", "seen_tag", "meant_for"):
        if name in values and (values[name] or name != "meant_for"):
            parse_ends([spell_end(values[name], 0)])
    return kind(**values)


def _check_value(name: str, hint: Any, value: Any) -> Any:
    if hint is int:
        if type(value) is int and 0 <= value < _LARGEST:
            return value
    elif hint is str:
        # Half a character, which JSON can spell, is not printable: no store takes it.
        longest = HEADER_LIMIT if name == "proof" else _LONGEST_TEXT
        if name == "masked":
            longest = _LONGEST_VIEW
        short = isinstance(value, str) and len(value) <= longest
        if short and value.isprintable():
            return value
    elif hint is bool:
        if isinstance(value, bool):
            return value
    elif hint == tuple[int, ...]:
        if isinstance(value, list) and len(value) <= MOST_LISTED:
            return tuple(_check_value(name, int, each) for each in value)
    elif hint == tuple[str, ...]:
        if isinstance(value, list) and len(value) <= MOST_LISTED:
            return tuple(_check_value(name, str, each) for each in value)
    elif value in hint.__args__:
        return value
    raise MessageError(f"Expected a valid {name} in the header, got {value!r:.60}.")
