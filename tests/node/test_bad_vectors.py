"""Vectors that no honest site sends: each is named, nothing is charged twice, nobody hangs."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from proxyfl.errors import ConfigError, TransportError
from proxyfl.node.agreement import (
    Agreement,
    Apply,
    Contribute,
    Diverged,
    Record,
    Snapshot,
    Take,
    Vector,
    View,
)
from proxyfl.node.exchange.auditlog import AuditLog
from proxyfl.node.exchange.messages import Summand
from proxyfl.node.exchange.store import Books, Store
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members.manifest import Graph, Manifest, Masked
from proxyfl.node.summing import Desk, parse_view, spell_view
from proxyfl.privacy.masks import Keys

from .test_manifest import manifest as manifest  # a fixture

NAMES = ("a", "b", "c")
RECORD = Record(proxy="p", roster=NAMES)


def view(name: str, **changes: object) -> View:
    """A member that stands where everybody does."""
    usual = View(1, 1, 0, 0, "p", "", 0, 0, Keys(name).public.hex(), sees=frozenset(NAMES))
    return replace(usual, **changes)  # type: ignore[arg-type]  # a test's own words


def agreement(**changes: object) -> Agreement[str]:
    """The site a, which has heard from b and c."""
    made: Agreement[str] = Agreement(
        "a",
        NAMES,
        quorum=2,
        colluders=1,
        version=1,
        record=replace(RECORD, **changes),
        start=1,
        key="a",
    )
    for name in "bc":
        made.hear(name, view(name))
    return made


def vector(name: str, **changes: object) -> Vector[str]:
    """An honest vector for the first ballot."""
    usual = Vector(0, 10_000, NAMES, "0:p", frozenset(NAMES), False, 1, name)
    return replace(usual, **changes)  # type: ignore[arg-type]  # a test's own words


def contributing() -> Agreement[str]:
    """The same site, which has sent its own vector."""
    made = agreement()
    do = made.next(0.0, "bc")
    assert isinstance(do, Contribute)
    made.begin(do)
    made.contributed(do, vector("a"))
    return made


def test_a_vector_for_another_roster_is_named_and_left_out() -> None:
    """The ballot fails; the next one goes on without its sender, with one more vector."""
    made = contributing()
    made.receive("b", vector("b"))
    made.receive("c", vector("c", roster=("a", "c")))
    assert not isinstance(made.next(1.0, "bc"), Apply)
    assert made.rejected == {"c": "its vector was made for another roster"}
    assert made.able("bc") == {"a", "b"}
    made.next(5.0, "bc")
    assert made.record.promised > 10_000, "another ballot is asked for"
    assert made.record.sent == 1


def test_a_vector_for_another_attempt_is_not_added() -> None:
    """It waits for its own ballot, and that of this one is waited for."""
    made = contributing()
    made.receive("b", vector("b"))
    made.receive("c", vector("c", ballot=10_003))
    assert made.next(1.0, "bc") is None
    assert made.missing() == ["c"]
    made.receive("c", vector("c"))
    assert isinstance(made.next(1.0, "bc"), Apply)


def test_a_vector_for_another_proxy_fails_the_ballot() -> None:
    """Nothing is added to a proxy that it was not made for."""
    made = contributing()
    made.receive("b", vector("b"))
    made.receive("c", vector("c", base="0:q"))
    assert not isinstance(made.next(1.0, "bc"), Apply)


def test_a_second_vector_for_a_ballot_is_refused() -> None:
    """Of this site, and a second one of a member does not take the place of the first."""
    made = contributing()
    with pytest.raises(TransportError, match="second vector"):
        made.begin(Contribute(0, 10_000, NAMES))
    made.receive("b", vector("b"))
    made.receive("b", vector("b", words="other"))
    made.receive("c", vector("c"))
    do = made.next(1.0, "bc")
    assert isinstance(do, Apply)
    assert do.vectors["b"].words == "b"


def test_garbage_leads_to_another_attempt() -> None:
    """A sum out of range is not added, and its ballot is over."""
    made = contributing()
    for name in "bc":
        made.receive(name, vector(name))
    assert isinstance(made.next(1.0, "bc"), Apply)
    made.spoiled()
    assert made.next(1.0, "bc") is None
    made.next(9.0, "bc")
    assert made.record.promised > 10_000


def test_a_proxy_that_differs_stops_the_site() -> None:
    """After the same ballots more than half have another one."""
    made = agreement(step=1, ballot=10_000, proxy="mine", before="0:p")
    for name in "bc":
        theirs = view(name, serial=2, step=1, ballot=10_000, proxy="theirs", before="0:p")
        made.hear(name, theirs)
    with pytest.raises(Diverged, match=r"this site's proxy is mine, and b, c have theirs"):
        made.next(0.0, "bc")


def stranded(*ahead: str) -> object:
    """What a site of six does that has missed two sums, while ``ahead`` are two steps further and
    all others are gone for good."""
    record = Record(step=1, ballot=10_000, proxy="p1", before="0:p", roster=NAMES)
    made: Agreement[str] = Agreement(
        "a", "abcdef", quorum=4, colluders=1, version=1, record=record, start=1, key="a"
    )
    for name in ahead:
        proxy = {"proxy": "p3", "before": "10000:p2", "sees": frozenset(ahead)}
        made.hear(name, view(name, step=3, ballot=10_000, **proxy))
    assert made.next(0.0, ahead) is None
    made.next(2.0, ahead)
    wants = made.view(ahead).wants
    if wants:
        assert wants in ahead
        made.offer(Snapshot(3, 10_000, "p3", "10000:p2", NAMES, b"proxy"))
    return made.next(3.0, ahead)


def test_a_site_that_has_missed_two_sums_follows_more_than_the_colluders() -> None:
    """They need not be a majority any more: whoever has gone on from a proxy shows that its whole
    roster had it. The word of one, who may be the colluder, is not enough."""
    assert stranded("b") is None
    done = stranded("b", "c")
    assert isinstance(done, Take)
    assert done.snapshot.proxy == "p3"


def test_a_member_that_has_not_begun_is_on_no_roster() -> None:
    """A restored site that still asks its peers answers them, and sees nobody: each attempt with
    it would be charged, and wait for it in vain."""
    made = agreement()
    made.hear("c", view("c", serial=2, sees=frozenset()))
    assert made.able("bc") == {"a", "b"}
    assert made.next(0.0, "bc") is None, "the roster of the first ballot has all three"
    made.hear("c", view("c", serial=3))
    assert made.able("bc") == {"a", "b", "c"}


@pytest.mark.parametrize("there", ["b", "c"])
def test_a_proxy_is_asked_of_a_member_that_is_there(there: str) -> None:
    """A member that is lost for good is not asked for ever, one step ahead or two."""
    for step in (1, 2):
        made = agreement(step=0, ballot=0, proxy="p0", before="")
        for name in "bc":
            made.hear(name, view(name, step=step, before="0:p0"))
        assert made.next(0.0, there) is None
        made.next(2.0, there)
        assert made.view(there).wants == there


@pytest.fixture
def desk(tmp_path: Path, manifest: Manifest) -> Desk:
    """The desk of a federation's first site, for a proxy of ten parameters."""
    terms = Masked(1, len(manifest.members))
    agreed = replace(manifest, graph=Graph(masked=terms))
    me = agreed.names()[0]
    books = Books(Store(None), federation="f", me=me, version=1, rounds=3)
    made = Desk(books, me, agreed, size=10, log=AuditLog(tmp_path / "audit.jsonl"))
    made.open(Record(proxy="p", roster=agreed.names()), b"", agreed, 1)
    return made


def summand(desk: Desk, **changes: object) -> Summand:
    """A message of the second site."""
    sender = desk.names[1]
    said = spell_view(view(sender, sees=frozenset()), desk.names)
    start = ("f", desk.version, sender, desk.me, 0, 1, "a1", 1)
    about = {"step": 0, "ballot": 10_000, "roster": "3", "base": "0:p", "sees": "3", "last": False}
    about |= {"batch": 5, "masked": said, "size": 80, "sha256": "0"}
    return Summand(*start, **about | changes)  # type: ignore[arg-type]  # a test's own words


def test_a_vector_of_the_wrong_length_is_named(desk: Desk) -> None:
    """Its sender is left out until it starts again."""
    desk.take(summand(desk), bytes(80))
    with pytest.raises(TransportError, match=r"vector of 72 bytes for step 1; expected 80"):
        desk.take(summand(desk, size=72), bytes(72))
    assert list(desk.agreement.rejected) == [desk.names[1]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 7}, "uses version 7 of the manifest"),
        ({"roster": "ffff"}, "a set of"),
        ({"roster": "x"}, "a set of members"),
        ({"batch": 0}, "a batch of 0"),
        ({"masked": "[1,2]"}, "annot read"),
    ],
)
def test_headers_that_make_no_sense_are_refused(
    desk: Desk, changes: dict[str, object], said: str
) -> None:
    """With what was wrong; nothing of them is kept."""
    header = replace(summand(desk), **changes)  # type: ignore[arg-type]  # a test's own words
    with pytest.raises(TransportError, match=said):
        desk.take(header, bytes(80))
    assert desk.agreement.next(0.0, desk.names) is None


def test_views_survive_the_wire() -> None:
    """Whatever a site says is what others read."""
    said = view("b", has=((0, 10_000, frozenset("ab")),), wants="a")
    assert parse_view(spell_view(said, NAMES), NAMES) == said


def test_an_old_release_refuses_the_terms(manifest: Manifest, tmp_path: Path) -> None:
    """A table that a release does not know, in a table that it knows, is never ignored: it asks
    for a newer release. Shown with a term that this release does not know."""
    agreed = replace(manifest, graph=Graph(masked=Masked(1, len(manifest.members))))
    path = manifests.write(tmp_path, agreed)
    newer = re.sub(r"minor = \d+", f"minor = {manifests.MINOR + 1}", path.read_text())
    path.write_text(newer.replace("[graph.masked]", "[graph.hidden]"))
    with pytest.raises(ConfigError, match=r"hidden.*pip install"):
        manifests.read(path)
