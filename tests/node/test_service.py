"""What reaches a site's ears: only members, only in their own name, only what they signed."""

import dataclasses
import hashlib
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import torch

from proxyfl.errors import ProxyFLError, TransportError
from proxyfl.node.exchange import auditlog, messages
from proxyfl.node.exchange.auditlog import AuditLog, read
from proxyfl.node.exchange.history import Sighting
from proxyfl.node.exchange.messages import MOST_LISTED, Hello, Restored, Share, Stamp, Verdict
from proxyfl.node.exchange.protocol import Exchange
from proxyfl.node.exchange.service import ABOUT, MOST_RELAYED, RELAY, Service
from proxyfl.node.exchange.store import FRAMES_FOLDER, LARGEST_IN_A_ROW, Books, Store
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import roster
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import MOST_ROUNDS, Input, Manifest
from proxyfl.node.mixing import Mixer, Proxy
from proxyfl.transport import wire
from tests.waiting import wait_until

from .test_messages import mutated

SIZE = 10


class Corner:
    """One site with its keys, roster, store and service, without a network."""

    def __init__(
        self,
        folder: Path,
        name: str,
        manifest: Manifest,
        *,
        size: int = SIZE,
        on_disk: bool = False,
    ) -> None:
        self.folder = folder / name
        self.size = size
        self.identity = Identity(folder / name, name)
        roster.accept(folder / name, self.identity, manifest)
        self.roster = roster.Roster(folder / name, self.identity)
        self.books = Books(
            Store(self.folder / "store.sqlite" if on_disk else None),
            federation=manifest.federation,
            me=name,
            version=1,
            rounds=manifest.rounds,
        )
        self.books.start()
        self.mixer = Mixer(self.roster, self.books, Proxy("model", size))
        self.exchange = Exchange(self.books, self.mixer.admit)
        self.exchange.manifest = manifest.digest
        self.exchange.accepted = self.roster.acceptance
        self.log = AuditLog(folder / name / "audit.jsonl")
        self.service = Service(self.identity, self.roster, self.exchange, self.log)

    @property
    def certificate(self) -> bytes:
        """What this site shows in TLS."""
        return self.identity.tls_certificate()

    def hello(self, other: "Corner") -> bytes:
        """A signed hello."""
        header = self.exchange.hello(other.identity.name, time=int(time.time()))
        return messages.pack(header, self.identity)

    def share(self, other: "Corner", **changes: object) -> bytes:
        """A signed share of round 0, with some fields changed."""
        values = changes.pop("values", torch.ones(self.size))
        weight = changes.pop("frame_weight", 0.5)
        assert isinstance(values, torch.Tensor)
        assert isinstance(weight, float)
        sender = self.roster.current.position(self.identity.name)
        frame = bytearray(wire.encode(wire.Message(0, sender, weight, values, "model")))
        if patch := changes.pop("patch", None):
            assert isinstance(patch, bytes)
            frame[-4:] = patch
        stamp = self.books.stamp()
        start = (self.roster.current.federation, 1, self.identity.name, other.identity.name)
        header = Share(
            *start,
            *stamp.numbers,
            round=0,
            weight="1/2",
            size=len(frame),
            sha256=hashlib.sha256(frame).hexdigest(),
            past=(),
        )
        header = dataclasses.replace(header, **changes)
        return messages.pack(header, self.identity, bytes(frame))


@pytest.fixture
def corners(tmp_path: Path) -> tuple[Corner, Corner, Corner]:
    """Two members and a stranger who once was a member of another federation."""
    cards = [Identity.create(tmp_path / name, name).card("") for name in ("a", "b", "c")]
    classes = Input((1,), ("0", "1"))
    manifest = Manifest("f", rounds=9, input=classes, members=tuple(cards[:2]))
    other = Manifest("g", rounds=9, input=classes, members=tuple(cards))
    return (
        Corner(tmp_path, "a", manifest),
        Corner(tmp_path, "b", manifest),
        Corner(tmp_path, "c", other),
    )


def asked(site: Corner, peer: Corner, message: bytes) -> bytes:
    """The site's answer to what comes over the peer's connection, in two pieces."""
    middle = len(message) // 2
    pieces = iter([message[:middle], message[middle:]])
    return site.service.answer(peer.certificate, pieces)


def verdict(a: Corner, b: Corner, message: bytes) -> Verdict:
    """What b says to a's share, after they have met."""
    asked(b, a, a.hello(b))
    found, _ = messages.begin(asked(b, a, message))
    assert isinstance(found, Verdict)
    return found


def test_a_hello_that_was_overtaken_makes_nobody_a_second_copy(
    corners: tuple[Corner, Corner, Corner],
) -> None:
    """A hello made before a release arrives after a message made since: the sender is held to be
    neither a second copy nor an old backup, and stays able to receive. A copy without that release
    is refused, also if it was found out by its own hello."""
    a, b, _ = corners
    asked(b, a, a.hello(b))
    late = a.hello(b)
    a.books.release(kept=b"", frames={}, weights={"a": Fraction(1)})
    asked(b, a, a.hello(b))
    answer = asked(b, a, late)
    assert isinstance(messages.begin(answer)[0], Restored)
    a.service.take(answer, via="b")
    assert a.service.behind is None
    assert b.service.refusals == {}
    assert not any(entry["event"] == "second copy" for entry in read(b.folder / "audit.jsonl"))

    clone = Corner(a.folder.parent, "a", a.roster.current)
    answer = asked(b, a, clone.hello(b))
    assert isinstance(messages.begin(answer)[0], Restored)
    assert b.service.refusals["a"][0] == "old-backup"
    asked(b, a, a.hello(b))
    assert b.service.refusals["a"][0] == "old-backup", "now neither copy is beyond doubt"
    assert [entry["event"] for entry in read(b.folder / "audit.jsonl")].count("second copy") == 1


def test_members_are_heard(corners: tuple[Corner, Corner, Corner]) -> None:
    """A hello is answered, a share is stored, the answer is signed."""
    a, b, _ = corners
    answer = asked(b, a, a.hello(b))
    assert isinstance(messages.begin(answer)[0], Hello)
    messages.check_signature(answer, b.identity.card(""))
    assert verdict(a, b, a.share(b)).outcome == "stored"
    assert b'"version": 1' in asked(b, a, ABOUT)


def test_the_way_of_a_share_is_short(corners: tuple[Corner, Corner, Corner]) -> None:
    """From its bytes to the signed verdict, a share passes these modules of the node and no other;
    docs/about/design.md draws the way."""
    a, b, _ = corners
    asked(b, a, a.hello(b))
    message = a.share(b)
    passed = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = str(frame.f_globals.get("__name__", ""))
        if event == "call" and name.startswith("proxyfl.node."):
            passed.add(name.removeprefix("proxyfl.node.").replace(".", "/"))

    sys.setprofile(note)
    try:
        answer = asked(b, a, message)
    finally:
        sys.setprofile(None)
    header, _ = messages.begin(answer)
    assert isinstance(header, Verdict)
    assert header.outcome == "stored"
    design = (Path(__file__).parents[2] / "docs/about/design.md").read_text()
    table = design.split("| module | its question |")[1].split("\n\n")[0]
    assert passed == set(re.findall(r"`([a-z]+(?:/[a-z]+)?)`", table))


def test_a_stranger_is_not_heard(corners: tuple[Corner, Corner, Corner]) -> None:
    """A key that is not in the manifest gets nothing, whatever it says."""
    _, b, c = corners
    for message in (c.hello(b), ABOUT, RELAY + b"\x01a" + bytes(60)):
        with pytest.raises(TransportError, match="not a member's"):
            asked(b, c, message)


def test_a_revoked_member_is_refused_at_once(tmp_path: Path) -> None:
    """The operator accepts a version without b while a round is under way: b's messages and its
    stream end before the round does."""
    cards = [Identity.create(tmp_path / name, name).card("") for name in ("a", "b", "c")]
    first = Manifest("f", rounds=9, input=Input((1,), ("0", "1")), members=tuple(cards))
    a, b = Corner(tmp_path, "a", first), Corner(tmp_path, "b", first)
    second = manifests.successor(first, remove=["b"])
    looks: list[int] = []

    def listens() -> bool:
        looks.append(1)
        if len(looks) == 2:
            roster.accept(tmp_path / "a", a.identity, second)
        return True

    asked(a, b, b.hello(a))
    with pytest.raises(TransportError, match="not a member's"):
        next(a.service.follow(b.certificate, listens))
    assert len(looks) == 2
    with pytest.raises(TransportError, match="not a member's"):
        asked(a, b, b.hello(a))


def test_nobody_speaks_in_anothers_name(corners: tuple[Corner, Corner, Corner]) -> None:
    """The sender named in a message must be the one in the certificate, and must have signed."""
    a, b, c = corners
    hello = a.exchange.hello("c", time=0)
    hello = dataclasses.replace(hello, federation=c.roster.current.federation)
    with pytest.raises(TransportError, match="in the name of"):
        asked(c, b, messages.pack(hello, a.identity))
    forged = messages.pack(a.exchange.hello("b", time=0), c.identity)
    with pytest.raises(TransportError, match="signature"):
        asked(b, a, forged)


def test_another_manifest_of_the_same_version_is_refused(
    corners: tuple[Corner, Corner, Corner],
) -> None:
    """A member that agreed to something else, or that never signed, is told so and not admitted."""
    a, b, _ = corners
    a.exchange.manifest = "0" * 64
    with pytest.raises(TransportError, match="another version 1 of the manifest"):
        asked(b, a, a.hello(b))
    a.exchange.manifest = a.roster.current.digest
    for nobodys in ("", "0" * 128, b.exchange.accepted, "x"):
        a.exchange.accepted = nobodys
        with pytest.raises(TransportError):
            asked(b, a, a.hello(b))
    assert b.books.peers.known("a").version == 0
    a.exchange.accepted = a.roster.acceptance
    assert asked(b, a, a.hello(b))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"federation": "x/0"}, "this site is"),
        ({"receiver": "c"}, "not for this site"),
        ({"sender": "nobody"}, "not another member"),
        ({"sender": "b"}, "not another member"),
        ({"sha256": "0" * 64}, "does not match its own hash"),
    ],
)
def test_misaddressed_messages_are_refused(
    corners: tuple[Corner, Corner, Corner], changes: dict[str, object], said: str
) -> None:
    """Another federation, receiver or sender, or a body that is not the announced one."""
    a, b, _ = corners
    asked(b, a, a.hello(b))
    with pytest.raises(TransportError, match=said):
        asked(b, a, a.share(b, **changes))
    assert b.books.parts(every=True) == []


NAN = np.float32("nan").tobytes()
INFINITE = np.float32("inf").tobytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"patch": NAN}, "not finite"),
        ({"patch": INFINITE}, "not finite"),
        ({"values": torch.full((SIZE,), 1e6)}, "is sane"),
        ({"values": torch.ones(SIZE + 1)}, "expected 10 float32 values"),
        ({"round": 3}, "round"),
        ({"round": 9}, "beyond the last"),
        ({"weight": "3/4"}, "its header"),
        ({"weight": "8/1", "frame_weight": 8.0}, "members' total"),
        ({"weight": "0/1", "frame_weight": 0.0}, "more than 0"),
        ({"version": 0}, "does not know version"),
        ({"weight": f"{2**60:x}/1", "frame_weight": 2.0**60}, "members' total"),
    ],
)
def test_harmful_shares_are_refused_for_good(
    corners: tuple[Corner, Corner, Corner], changes: dict[str, object], said: str
) -> None:
    """NaN, infinity, absurd values, the wrong shape, round, weight or version: refused, with a
    signed verdict that returns the mass to its sender, and logged."""
    a, b, _ = corners
    found = verdict(a, b, a.share(b, **changes))
    assert found.outcome == "refused"
    assert said in found.reason
    assert b.books.parts(every=True) == []
    assert b.log.counts["refused"] == 1


def lines(site: Corner, event: str) -> int:
    """How often the site's audit log has ``event``."""
    return sum(entry["event"] == event for entry in read(site.folder / "audit.jsonl"))


def test_a_member_cannot_fill_the_audit_log(corners: tuple[Corner, Corner, Corner]) -> None:
    """The same share again and again, verdicts on shares that were never sent, streams opened and
    left: what decides nothing is not written a second time."""
    a, b, _ = corners
    share = a.share(b)
    assert verdict(a, b, share).outcome == "stored"
    start = (a.roster.current.federation, 1, "a", "b", *a.books.stamp().numbers)
    for number in range(50):
        assert verdict(a, b, share).outcome == "stored"
        about = {"sha256": "0" * 64, "outcome": "stored", "reason": ""}
        never = Verdict(*start, round=number, released=0, past=(), **about)  # type: ignore[arg-type]  # one each
        asked(b, a, messages.pack(never, a.identity))
        assert list(b.service.follow(a.certificate, lambda: False)) == []
    assert lines(b, "stored") == 1
    assert lines(b, "delivered") == 0
    assert lines(b, "dialled in") == 1
    assert b.log.counts["dialled in"] == 50


def test_a_member_cannot_shut_others_out_of_a_relay(corners: tuple[Corner, Corner, Corner]) -> None:
    """Whoever floods a peer's queue at the relay has two places in it; the others find room."""
    a, b, _ = corners
    stream = b.service.follow(a.certificate, lambda: True)
    threading.Thread(target=next, args=(stream,), daemon=True).start()
    wait_until(lambda: b.service.has_dialled_in("a"))
    b.service.hand("a", b"the one that is on its way")
    wait_until(lambda: b.service._queues["a"].empty())
    refused = 0
    for _ in range(10):
        try:
            b.service.hand("a", b"rubbish", on_behalf="mallory")
        except TransportError:
            refused += 1
    assert refused == 10 - MOST_RELAYED
    b.service.hand("a", b"an honest one", on_behalf="c")
    b.service.hand("a", b"the relay's own")
    with pytest.raises(TransportError, match="Too many"):
        b.service.hand("a", b"one too many")


def test_rounds_that_no_manifest_has_leave_no_trace_in_the_store(
    corners: tuple[Corner, Corner, Corner],
) -> None:
    """A member that makes up rounds without end fills no table with verdicts."""
    a, b, _ = corners
    asked(b, a, a.hello(b))
    for round in (MOST_ROUNDS, 2**53 - 1):
        with pytest.raises(TransportError, match="no version of the manifest has"):
            asked(b, a, a.share(b, round=round))
    with b.books.store.reading() as run:
        assert run.execute("select count(*) from verdicts").fetchone() == (0,)


def fuzz(a: Corner, b: Corner, count: int, seed: int) -> int:
    """Send b ``count`` mutated messages; return how many it refused."""
    draw = random.Random(seed)
    asked(b, a, a.hello(b))
    originals = [a.hello(b), a.share(b), b.service.seal(a.hello(b), "b"), ABOUT]
    refused = 0
    for _ in range(count):
        message = mutated(draw.choice(originals), draw)
        if message in originals:
            continue  # two changes that undo each other
        try:
            asked(b, a, message)
        except ProxyFLError:
            refused += 1
    return refused


def test_fuzzing_the_service_changes_nothing(corners: tuple[Corner, Corner, Corner]) -> None:
    """3,000 mutated messages from a member: nothing but refusals, and no share is stored."""
    a, b, _ = corners
    assert fuzz(a, b, 3_000, seed=0) > 2_900
    assert b.books.parts(every=True) == []
    assert verdict(a, b, a.share(b)).outcome == "stored"


@pytest.mark.slow
def test_a_hundred_thousand_mutated_frames(corners: tuple[Corner, Corner, Corner]) -> None:
    """The same, with 100,000."""
    a, b, _ = corners
    assert fuzz(a, b, 100_000, seed=1) > 95_000
    assert b.books.parts(every=True) == []


@pytest.fixture
def large(tmp_path: Path) -> tuple[Corner, Corner]:
    """Two members whose frames are large enough for files of their own."""
    cards = [Identity.create(tmp_path / name, name).card("") for name in "ab"]
    classes = Input((1,), ("0", "1"))
    manifest = Manifest("f", rounds=9, input=classes, members=tuple(cards))
    corners = []
    for name in "ab":
        corner = Corner(tmp_path, name, manifest, size=LARGEST_IN_A_ROW, on_disk=True)
        corners.append(corner)
    return corners[0], corners[1]


def files(site: Corner) -> list[Path]:
    """The files of a site's frames."""
    folder = site.folder / FRAMES_FOLDER
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_large_share_is_a_file_that_its_row_names(large: tuple[Corner, Corner]) -> None:
    """It is stored once however often it arrives, and its content is what was sent."""
    a, b = large
    message = a.share(b)
    assert verdict(a, b, message).outcome == "stored"
    first = files(b)
    assert verdict(a, b, message).outcome == "stored"
    assert files(b) == first
    (part,) = b.books.parts(every=True)
    assert message.endswith(bytes(part.frame))
    assert bytes(part.frame) == first[0].read_bytes()


@pytest.mark.parametrize(
    "changes", [{"patch": NAN}, {"round": 9}, {"version": 2}, {"weight": "3/4"}]
)
def test_a_share_that_is_not_stored_leaves_no_file(
    large: tuple[Corner, Corner], changes: dict[str, object]
) -> None:
    """Refused or put off: what had arrived is removed."""
    a, b = large
    assert verdict(a, b, a.share(b, **changes)).outcome != "stored"
    assert files(b) == []


@pytest.mark.parametrize("length", [-1, -LARGEST_IN_A_ROW, None])
def test_a_body_that_is_not_the_announced_one_leaves_no_file(
    large: tuple[Corner, Corner], length: int | None
) -> None:
    """Too short, much too short, or too long: refused, and nothing is decided."""
    a, b = large
    asked(b, a, a.hello(b))
    message = a.share(b)[:length] + (b"x" if length is None else b"")
    with pytest.raises(TransportError, match="Expected a body"):
        asked(b, a, message)
    with pytest.raises(TransportError, match="does not match its own hash"):
        asked(b, a, a.share(b, sha256="0" * 64))
    assert files(b) == []
    assert b.books.heard(0) == set()


def test_a_body_is_not_read_before_its_header_is_believed(large: tuple[Corner, Corner]) -> None:
    """A header that nobody signed, or for another site, is refused at its first piece."""
    a, b = large
    header, _ = messages.begin(a.share(b))
    forged = messages.head(header, b.identity)
    misaddressed = messages.head(dataclasses.replace(header, receiver="x"), a.identity)
    for head in (forged, misaddressed):
        pieces = iter([head + bytes(messages.HEAD_LIMIT), b"the rest"])
        with pytest.raises(TransportError):
            b.service.answer(a.certificate, pieces)
        assert next(pieces) == b"the rest"
    assert files(b) == []


def test_a_frame_that_arrives_is_not_swept_away(large: tuple[Corner, Corner]) -> None:
    """The store removes files that no row names; one whose bytes still arrive is not among them."""
    a, b = large
    asked(b, a, a.hello(b))
    message = a.share(b)
    middle = len(message) // 2

    def pieces() -> Iterator[bytes]:
        yield message[:middle]
        assert len(files(b)) == 1
        b.books.write_off([])  # a change that sweeps
        yield message[middle:]

    answer = b.service.answer(a.certificate, pieces())
    found, _ = messages.begin(answer)
    assert isinstance(found, Verdict)
    assert found.outcome == "stored"
    assert len(files(b)) == 1


def test_fuzzing_the_service_with_large_frames(large: tuple[Corner, Corner]) -> None:
    """300 mutated messages that begin a file each: none is stored and no file is left."""
    a, b = large
    assert fuzz(a, b, 300, seed=2) > 280
    assert b.books.parts(every=True) == []
    assert files(b) == []


def test_an_accepted_manifest_is_signed(tmp_path: Path) -> None:
    """A manifest whose acceptance is not this site's signature is not followed."""
    card = Identity.create(tmp_path / "a", "a").card("")
    other = Identity.create(tmp_path / "b", "b")
    manifest = Manifest("f", input=Input((1,), ("0", "1")), members=(card, other.card("")))
    identity = Identity(tmp_path / "a", "a")
    roster.accept(tmp_path / "a", identity, manifest)
    path = tmp_path / "a" / roster.FOLDER / "0001.toml"
    path.write_text(manifests.to_toml(dataclasses.replace(manifest, rounds=7)))
    with pytest.raises(ProxyFLError, match="signature"):
        roster.Roster(tmp_path / "a", identity)


def claim(
    liar: Corner, site: Corner, seen: Stamp, *, round: int, proof: str, past: tuple[str, ...] = ()
) -> bytes:
    """The liar's signed message that it has seen ``site`` in that place, after ``past``."""
    start = liar.exchange._start(site.identity.name, liar.books.stamp())
    header = Restored(
        *start,
        *seen.numbers,
        seen_round=round,
        seen_past=past,
        seen_paid=0,
        seen_debt="0/1",
        proof=proof,
    )
    return messages.pack(header, liar.identity)


def test_no_member_stops_a_site_by_a_false_claim(corners: tuple[Corner, Corner, Corner]) -> None:
    """Site b claims to have seen what a does not remember: with no proof, with a message of its
    own, with one that a sent from another place, with numbers that a's message does not state. Site
    a goes on, and says whom to ask."""
    a, b, _ = corners
    asked(b, a, a.hello(b))
    now = a.books.stamp()
    true = messages.proof_of(a.hello(b))
    other = Stamp(now.epoch, now.boot, "f" * 16, now.clock)
    forged = replace(messages.begin(a.hello(b))[0], tag=other.tag, boot=9)
    of_liar = messages.proof_of(messages.pack(forged, b.identity))
    for proof in ("", "f" * 200, of_liar, true):
        with pytest.raises(
            TransportError, match=r"shows no message of this site.*Ask the operator"
        ):
            asked(a, b, claim(b, a, other, round=3, proof=proof))
    later = Stamp(now.epoch, now.boot, now.tag, 2**40)
    asked(a, b, claim(b, a, later, round=5, proof=true))
    assert a.service.behind is None
    assert a.books.evidence.every() == []
    assert a.books.history.chapter(other.tag) is None
    entries = read(a.folder / "audit.jsonl")
    assert "claim without proof" in {entry["event"] for entry in entries}


def test_no_member_floods_the_audit_log(
    corners: tuple[Corner, Corner, Corner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """False claims, hellos of a second copy and of the site in turn, and clocks that jump: twenty
    of each cost one line, and all are counted."""
    monkeypatch.setattr(auditlog, "QUIET_SECONDS", 3600.0)
    a, b, _ = corners
    asked(b, a, a.hello(b))
    other = replace(a.books.stamp(), tag="f" * 16)
    clone = Corner(a.folder.parent, "a", a.roster.current)
    a.books.release(kept=b"", frames={}, weights={"a": Fraction(1)})
    for _ in range(20):
        with pytest.raises(TransportError, match="shows no message of this site"):
            asked(a, b, claim(b, a, other, round=3, proof=""))
        b.books.peers.sightings.forget()  # a liar would list both in its past
        asked(b, a, a.hello(b))
        asked(b, a, clone.hello(b))
        for offset in (0, 10**6):
            for _ in range(3):
                hello = replace(messages.begin(b.hello(a))[0], time=int(time.time()) + offset)
                asked(a, b, messages.pack(hello, b.identity))
    for site, event in ((a, "claim without proof"), (b, "second copy"), (a, "clock differs")):
        assert site.log.counts[event] >= 20, event
        lines = [entry for entry in read(site.folder / "audit.jsonl") if entry["event"] == event]
        assert len(lines) == 1, event


def test_a_site_that_has_forgotten_is_stopped_by_its_own_message(
    corners: tuple[Corner, Corner, Corner],
) -> None:
    """What b answers to a copy of a from before carries what a signed when it was further."""
    a, b, _ = corners
    answer = set_back(a, b, releases=1)
    with pytest.raises(TransportError, match="proxyfl node rejoin"):
        asked(a, b, answer)
    assert a.service.behind is not None
    (name, seen), *_ = a.books.evidence.every()
    assert (name, seen.round) == ("b", 1)


@pytest.mark.parametrize(
    "change", [{"federation": "g"}, {"receiver": "c"}, {"sender": "b"}], ids=str
)
def test_a_message_for_others_stops_no_site(
    corners: tuple[Corner, Corner, Corner], change: dict[str, str]
) -> None:
    """What a signed in another federation with the same key, or for another member, or in another
    name, proves nothing, though it is from a place that a does not remember."""
    a, b, _ = corners
    asked(b, a, a.hello(b))
    header, _ = messages.begin(a.hello(b))
    assert isinstance(header, Hello)
    forgotten = replace(replace(header, tag="f" * 16, round=3), **change)
    proof = messages.proof_of(messages.pack(forgotten, a.identity))
    with pytest.raises(TransportError, match="shows no message of this site"):
        asked(a, b, claim(b, a, forgotten.stamp, round=3, proof=proof))
    assert a.service.behind is None
    assert a.books.evidence.every() == []


def test_what_was_answered_for_stops_no_site_again(corners: tuple[Corner, Corner, Corner]) -> None:
    """Site b shows the proof by which it has stopped a once more, after a has rejoined."""
    a, b, _ = corners
    answer = set_back(a, b, releases=1)
    with pytest.raises(TransportError, match="proxyfl node rejoin"):
        asked(a, b, answer)
    a.books.begin_again(a.books.sightings_to_answer())
    a.books.start()
    a.service.behind = None
    debt = a.books.debt()
    asked(a, b, answer)
    assert a.service.behind is None
    assert a.books.evidence.every() == []
    assert a.books.debt() == debt


def set_back(a: Corner, b: Corner, *, releases: int) -> bytes:
    """Let b see some releases of a and set a back to before; b's answer to a's next hello."""
    backup = Store(None)
    a.books.store.connection.backup(backup.connection)
    for _ in range(releases):
        a.books.release(kept=b"", frames={}, weights={"a": Fraction(1)})
        a.books.conclude([], b"")
    asked(b, a, a.hello(b))
    backup.connection.backup(a.books.store.connection)
    a.books.start()
    return asked(b, a, a.hello(b))


def test_a_member_cannot_make_a_site_answer_for_too_few_rounds(
    corners: tuple[Corner, Corner, Corner],
) -> None:
    """Site a, set back, has run on. Site b shows a true proof of the copy that was lost, and says
    that the copy had released less, and that the two have parted only just now: a believes what
    it has signed, and charges all rounds since they parted."""
    a, b, _ = corners
    answer, _ = messages.begin(set_back(a, b, releases=3))
    assert isinstance(answer, Restored)
    a.books.release(kept=b"", frames={}, weights={"a": Fraction(1)})
    a.books.conclude([], b"")
    now = a.books.stamp()
    lie = claim(
        b, a, answer.seen, round=1, proof=answer.proof, past=(messages.spell_end(now.tag, 1),)
    )
    with pytest.raises(TransportError, match="proxyfl node rejoin"):
        asked(a, b, lie)
    (loss,) = a.books.begin_again(a.books.sightings_to_answer())
    assert loss.rounds == range(3)


def test_a_proof_fits_beside_all_that_a_message_can_list(
    corners: tuple[Corner, Corner, Corner],
) -> None:
    """The longest hello as a proof, with the longest past: the claim can still be sent."""
    a, b, _ = corners
    ends = tuple(f"{at:016x}:{2**53 - 1}" for at in range(MOST_LISTED))
    rounds = tuple(range(10**6, 10**6 + MOST_LISTED))
    hello = replace(messages.begin(a.hello(b))[0], past=ends, owed=rounds, stored=rounds)
    proof = messages.proof_of(messages.pack(hello, a.identity))
    seen = Sighting(a.books.stamp(), 10**6, ends, 7, "1/2", proof)
    message = messages.pack(b.exchange._report_seen("a", seen), b.identity)
    header, _ = messages.begin(message)
    assert isinstance(header, Restored)
    assert messages.check_proof(header.proof, [a.identity.card("")]) == hello
