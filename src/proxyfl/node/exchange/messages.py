"""Messages between sites: a signed header, and for a share the frame that it announces.

    b"PFLNODE" | version, 1 byte | length of the header, 4 bytes
    | header, JSON | signature, 64 bytes | body

The signature covers the header, and the header holds the body's length and SHA-256. A message is
what it is on whichever way it came: over TLS, through a relay, or as a file.

    hello      who I am now: which start of my program, how far I am, what I still owe you
    share      a part of my mass for you; the body is a frame (proxyfl.transport.wire)
    verdict    what became of a share: stored, or refused, once and for all
    restored   you are behind what I have seen of you: an old backup

Every message carries its sender's ``Stamp``, whose numbers only ever grow at one site.

Guarantees:
    * ``begin`` returns a header whose every field has the stated type and range, or raises
      MessageError; any other bytes raise nothing else and cost no more memory than they have;
    * what passes ``check_signature`` and ``check_body`` is what the owner of the card signed.
"""

import dataclasses
import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol

from proxyfl.errors import TransportError

VERSION = 1
HEADER_LIMIT = 8192
SIGNATURE_BYTES = 64
MOST_LISTED = 64

_MAGIC = b"PFLNODE" + bytes([VERSION])
_START = len(_MAGIC) + 4
HEAD_LIMIT = _START + HEADER_LIMIT + SIGNATURE_BYTES
"""A message's bytes before its body, at most."""
_CONTEXT = b"proxyfl message\0"
_LARGEST = 2**53
_LONGEST_TEXT = 700
_FINEST_WEIGHT = 2**1074
"""Weights are sums of floats, so all are multiples of the least float."""

State = Literal["active", "leaving", "left"]


class MessageError(TransportError):
    """Bytes that are not a message, or not one that may be believed."""


class Signer(Protocol):
    """Whoever can sign."""

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes."""
        ...


class Verifier(Protocol):
    """Whoever can check a signature."""

    def verify(self, signature: bytes, content: bytes) -> None:
        """Raise unless the signature is right."""
        ...


@dataclass(frozen=True)
class Stamp:
    """A site's place in its own history. A site that shows less than before has lost something.

    ``epoch`` counts deliberate new beginnings (`proxyfl node rejoin`), ``boot`` the starts of the
    program, ``clock`` the changes of the store; ``tag`` is drawn anew at each start.
    """

    epoch: int
    boot: int
    tag: str
    clock: int

    @property
    def numbers(self) -> tuple[int, int, str, int]:
        """All of it, in the order of a header's fields."""
        return self.epoch, self.boot, self.tag, self.clock

    def behind(self, seen: "Stamp") -> bool:
        """True if a site with this stamp has forgotten some of what ``seen`` shows."""
        if self.epoch != seen.epoch:
            return self.epoch < seen.epoch
        starts = self.boot - seen.boot
        another_start = starts == 0 and seen.tag not in ("", self.tag)
        # Each start of the program is a change of the store as well.
        return starts < 0 or self.clock < seen.clock + starts or another_start


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
    sent, ``since`` the one in which its present epoch began. A site that has ``ended`` releases
    nothing more. ``answer`` tells an answer from a question.
    """

    manifest: str
    accepted: str
    round: int
    since: int
    state: State
    owed: tuple[int, ...]
    stored: tuple[int, ...]
    ended: bool
    time: int
    answer: bool


@dataclass(frozen=True)
class Share(Header):
    """A part of the sender's mass. Its key is (federation, version, round, sender)."""

    round: int
    weight: str
    size: int
    sha256: str

    @property
    def exact_weight(self) -> Fraction:
        """The PushSum weight, without rounding."""
        return parse_weight(self.weight)


@dataclass(frozen=True)
class Verdict(Header):
    """The receiver's decision on a share. ``again`` asks to try later: nothing is decided."""

    round: int
    sha256: str
    outcome: Literal["stored", "refused", "again"]
    reason: str


@dataclass(frozen=True)
class Restored(Header):
    """The answer to a site that shows less than it showed before; the rest says what was seen."""

    seen_epoch: int
    seen_boot: int
    seen_tag: str
    seen_clock: int
    seen_round: int

    @property
    def seen(self) -> Stamp:
        """The latest stamp seen of the receiver."""
        return Stamp(
            self.seen_epoch, self.seen_boot, self.seen_tag, self.seen_clock
        )


_KINDS: dict[str, type[Header]] = {
    "hello": Hello,
    "share": Share,
    "verdict": Verdict,
    "restored": Restored,
}


def head(header: Header, signer: Signer) -> bytes:
    """The message without its body."""
    text = _encoded(header)
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
        raise MessageError(
            f"Expected a header of kind {', '.join(_KINDS)}, got {content!r:.120}."
        )
    return _header(_KINDS[content.pop("kind")], content), body


def check_signature(start: bytes, card: Verifier) -> None:
    """Raise unless the owner of ``card`` signed the header of the message."""
    text, signature, _ = _cut(start)
    card.verify(signature.tobytes(), _CONTEXT + text.tobytes())


def body_size(header: Header) -> int:
    """The bytes of body that ``header`` announces."""
    return header.size if isinstance(header, Share) else 0


def check_body(header: Header, sha256: str) -> None:
    """Raise unless a body with this SHA-256 is the one that ``header`` announces."""
    if isinstance(header, Share) and sha256 != header.sha256:
        raise MessageError(
            f"A share of {header.sender!r} has another content than its hash says."
        )


def spelled_weight(weight: Fraction) -> str:
    """An exact weight as text: numerator/denominator, in hexadecimal digits."""
    return f"{weight.numerator:x}/{weight.denominator:x}"


def parse_weight(text: str) -> Fraction:
    """The weight that ``spelled_weight`` wrote; MessageError unless it is a sum of floats >= 0.

    A finer one would add digits to every weight that it is added to, until no header holds them;
    a larger one is no float."""
    numerator, _, denominator = text.partition("/")
    try:
        over, under = int(numerator, 16), int(denominator, 16)
    except ValueError as error:
        raise MessageError(
            f"Expected a weight such as 3/4, got {text!r:.60}."
        ) from error
    if over < 0 or under < 1 or _FINEST_WEIGHT % under or over > under << 64:
        raise MessageError(
            f"Expected a weight from 0 to 2**64 over a power of two up to 2**1074, got "
            f"{text!r:.60}."
        )
    weight = Fraction(over, under)
    if spelled_weight(weight) != text:
        raise MessageError(
            f"Expected the weight {spelled_weight(weight):.60}, spelled {text!r:.60}."
        )
    return weight


def _encoded(header: Header) -> bytes:
    kind = type(header).__name__.lower()
    content = {"kind": kind, **dataclasses.asdict(header)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    if len(text) > HEADER_LIMIT:
        raise MessageError(
            f"A header of {len(text)} bytes; at most {HEADER_LIMIT} are allowed."
        )
    return text


def _cut(message: bytes) -> tuple[memoryview, memoryview, memoryview]:
    """Header, signature, and what there is of the body."""
    if message[: len(_MAGIC)] != _MAGIC or len(message) < _START:
        raise MessageError(
            f"Not a message of protocol {VERSION}: it begins with {bytes(message[:8])!r}."
        )
    length = int.from_bytes(message[len(_MAGIC) : _START], "big")
    signature = _START + length
    end = signature + SIGNATURE_BYTES
    if length > HEADER_LIMIT or end > len(message):
        raise MessageError(
            f"A header of {length} bytes in a message of {len(message)}."
        )
    whole = memoryview(message)
    return whole[_START:signature], whole[signature:end], whole[end:]


def _header(kind: type[Header], content: dict[str, Any]) -> Header:
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    if set(content) != set(fields):
        raise MessageError(
            f"Expected the fields {sorted(fields)}, got {sorted(content)!r:.200}."
        )
    values: dict[str, Any] = {}
    for name, value in content.items():
        values[name] = _checked(name, fields[name], value)
    if kind is Share:
        parse_weight(values["weight"])
    return kind(**values)


def _checked(name: str, hint: Any, value: Any) -> Any:
    if hint is int:
        if type(value) is int and 0 <= value < _LARGEST:
            return value
    elif hint is str:
        # Half a character, which JSON can spell, is not printable: no store takes it.
        short = isinstance(value, str) and len(value) <= _LONGEST_TEXT
        if short and value.isprintable():
            return value
    elif hint is bool:
        if isinstance(value, bool):
            return value
    elif hint == tuple[int, ...]:
        if isinstance(value, list) and len(value) <= MOST_LISTED:
            return tuple(_checked(name, int, each) for each in value)
    elif value in hint.__args__:
        return value
    raise MessageError(f"A header's {name} is {value!r:.60}, which is not allowed.")
