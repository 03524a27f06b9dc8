"""Messages survive the way there and back; anything else is refused and does no harm."""

import hashlib
import random
from dataclasses import replace
from fractions import Fraction

import pytest

from proxyfl.errors import ProxyFLError
from proxyfl.node.exchange import messages
from proxyfl.node.exchange.messages import Hello, MessageError, Share, Verdict
from proxyfl.node.exchange.store import Frames
from proxyfl.node.members.identity import Identity

START = ("f/0", 1, "a", "b", 0, 1, "tag", 7)
BODY = b"frame" * 20


def a_share() -> Share:
    """A share of weight 3/4 with a small body."""
    sha256 = hashlib.sha256(BODY).hexdigest()
    weight = messages.spell_weight(Fraction(3, 4))
    return Share(
        *START, round=2, weight=weight, size=len(BODY), sha256=sha256, past=("a1:5", "b2:3")
    )


def a_hello() -> Hello:
    """A hello that owes rounds 1 and 2."""
    return Hello(
        *START,
        manifest="0" * 64,
        accepted="",
        round=3,
        past=("a1:5", "b2:3"),
        paid=0,
        debt="0/1",
        state="active",
        owed=(1, 2),
        stored=(),
        ended=False,
        time=10,
        answer=False,
    )


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The sender's keys."""
    return Identity.create(tmp_path_factory.mktemp("site"), "a")


def check(message: bytes, identity: Identity) -> None:
    """Raise unless all of it is what ``identity`` signed."""
    header, body = messages.begin(message)
    messages.check_signature(message, identity.card(""))
    with Frames(None).receiving([body], messages.body_size(header)) as arrived:
        messages.check_body(header, arrived.sha256)


def test_a_message_arrives_as_it_was_sent(identity: Identity) -> None:
    """Header and body come back equal, and the signature is the sender's."""
    verdict = Verdict(
        *START, round=2, sha256="0" * 64, outcome="refused", reason="why", released=3, past=()
    )
    for header, body in ((a_share(), BODY), (a_hello(), b""), (verdict, b"")):
        message = messages.pack(header, identity, body)
        found, content = messages.begin(message)
        assert (found, content.tobytes()) == (header, body)
        check(message, identity)


def test_a_changed_byte_is_noticed(identity: Identity) -> None:
    """Wherever a byte changes, in header, signature or body, the message is refused."""
    message = messages.pack(a_share(), identity, BODY)
    for at in range(len(message)):
        changed = bytearray(message)
        changed[at] ^= 0x40
        with pytest.raises(ProxyFLError):
            check(bytes(changed), identity)


def mutated(message: bytes, draw: random.Random) -> bytes:
    """A message with some bytes changed, cut out, repeated or put in."""
    data = bytearray(message)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(data))
        kind = draw.randrange(5)
        if kind == 0:
            data[at] = draw.randrange(256)
        elif kind == 1:
            del data[at : at + draw.randrange(1, 9)]
        elif kind == 2:
            data[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif kind == 3:
            data[at:at] = data[at : at + draw.randrange(1, 30)]
        else:
            data[at : at + 1] = draw.choice([b"9" * 30, b"null", b'"', b"[", b"{", b"-1", b"1e9"])
        data = data or bytearray(b"x")
    return bytes(data)


def fuzz(count: int, seed: int, identity: Identity) -> int:
    """Parse ``count`` mutated messages; return how many were refused."""
    draw = random.Random(seed)
    originals = [messages.pack(a_share(), identity, BODY), messages.pack(a_hello(), identity)]
    refused = 0
    for _ in range(count):
        try:
            messages.begin(mutated(draw.choice(originals), draw))
        except MessageError:
            refused += 1
    return refused


def test_mutated_messages_are_refused_and_nothing_else(identity: Identity) -> None:
    """5,000 mutated messages raise MessageError or parse; no other exception escapes."""
    assert fuzz(5_000, 0, identity) > 2_000


@pytest.mark.slow
def test_a_hundred_thousand_mutated_messages(identity: Identity) -> None:
    """The same, with 120,000."""
    assert fuzz(120_000, 1, identity) > 50_000


@pytest.mark.parametrize("text", ["1/3", "-1/2", "1", "x/2", "1/0", "", "1/-2"])
def test_weights_are_dyadic_and_not_negative(text: str) -> None:
    """Anything but a number >= 0 over a power of two is refused."""
    with pytest.raises(MessageError):
        messages.parse_weight(text)


@pytest.mark.parametrize(
    "text", ["2/4", "+1/2", " 1/2", "0x1/2", "1_0/1", "f" * 690 + "/1", f"1/{2**1075:x}"]
)
def test_weights_are_spelled_in_one_way_and_are_sums_of_floats(text: str) -> None:
    """No other spelling, nothing that is too large or too fine for a float."""
    with pytest.raises(MessageError):
        messages.parse_weight(text)


def test_the_least_and_the_largest_weights_of_honest_sites_pass() -> None:
    """What is divided down to the least float, and what a thousand members hold."""
    for weight in (Fraction(5e-324), 1000 - Fraction(5e-324)):
        assert messages.parse_weight(messages.spell_weight(weight)) == weight


@pytest.mark.parametrize("tag", ["\ud800", "line\nline", "\x1b[2J", "\0"])
def test_a_text_that_no_store_or_terminal_takes_is_refused(identity: Identity, tag: str) -> None:
    """Half a character, a control character: signed or not, it is no header."""
    message = messages.pack(replace(a_hello(), tag=tag), identity)
    with pytest.raises(MessageError, match="a valid tag"):
        messages.begin(message)


@pytest.mark.parametrize("end", ["a1", "a1:", ":5", "a1:-5", "a 1:5", "a1:5:x", "\u0661:5"])
def test_the_end_of_a_chapter_has_a_tag_and_a_clock(identity: Identity, end: str) -> None:
    """Anything else in a past is refused."""
    message = messages.pack(replace(a_hello(), past=(end,)), identity)
    with pytest.raises(MessageError, match="end of a chapter"):
        messages.begin(message)
