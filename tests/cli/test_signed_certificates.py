"""Certificates that a site signs: what the card alone shows, and that every change is found."""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proxyfl import _settings, node
from proxyfl.cli.commands.certificate import SITE_KEY
from proxyfl.cli.main import main
from proxyfl.node.members import identity as identities
from proxyfl.node.members.identity import Identity
from proxyfl.privacy import certificate as certificates
from proxyfl.privacy.guarantee import Computation, Gradients, Kind
from proxyfl.privacy.ledger import Ledger

FLIPS = 400


class Signed:
    """A site with a real ledger, its signed certificates, and its card."""

    def __init__(self, folder: Path, name: str = "north") -> None:
        self.folder = folder / name
        self.identity = Identity.create(self.folder, name)
        ledger = Ledger(
            name,
            delta=1e-5,
            kind=Kind.END_TO_END,
            simulated=False,
            path=self.folder / "ledger.jsonl",
        )
        ledger.record_gradients(Gradients(Computation.ONE_BY_ONE, "a loop", trusted=True))
        ledger.charge(0, 10, 0.05, 2.0)
        self.card = folder / f"{name}.card.toml"
        self.card.write_text(_settings.to_toml(self.identity.card("")))
        document = certificates.certificate(ledger, certificates.NODE, self.identity)
        self.page = folder / f"{name}.md"
        self.page.write_text(certificates.markdown(document, self.identity))
        self.json = folder / f"{name}.json"
        self.json.write_text(certificates.to_json([document]))

    def file(self, form: str) -> Path:
        """The page, or the JSON."""
        return self.page if form == "md" else self.json


@pytest.fixture(scope="module")
def north(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return Signed(tmp_path_factory.mktemp("signed"))


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `proxyfl certificate --check`; returns what it says if it holds or not as expected."""

    def checked(*words: object, holds: bool = True) -> str:
        code = main(["certificate", *map(str, words)])
        written = capsys.readouterr()
        assert code == (0 if holds else 1), written
        return " ".join(written.out.split())

    return checked


@pytest.mark.parametrize("form", ["md", "json"])
def test_a_signed_certificate_needs_only_itself_and_the_card(
    north: Signed, check: Callable[..., str], form: str
) -> None:
    """No folder and no ledger; who signed is said, and whose word the numbers are."""
    said = check("--check", north.file(form), "--card", north.card)
    assert f"signed by north (key {north.identity.fingerprint[:16]}...)" in said
    assert "only its ledger can show that they are right" in said
    said = check(north.folder, "--check", north.file(form))
    assert "the ledgers give the same; signed by north" in said


def test_the_page_and_the_json_state_everything(north: Signed) -> None:
    """How gradients were computed and why, a trusted proxy, the release, the signer; delta,
    relation, unit, kind of epsilon, and against whom it holds."""
    page = north.page.read_text()
    (document,) = json.loads(north.json.read_text())["certificates"]
    release = certificates.this_release()
    key = north.identity.fingerprint
    for row in (
        "| gradients computed | one by one, by code that the institution vouches for (a loop) |",
        "| an unproven proxy was trusted | yes |",
        f"| written by proxyfl | {release} |",
        f"| signed | by north, key {key} |",
        "| delta | 1e-05 |",
        "| neighbouring relation | zero-out |",
        "| unit | one record |",
        "| kind of guarantee | end-to-end |",
        f"| holds against | {certificates.AGAINST} |",
    ):
        assert row in page.split("\n")
    about = {"way": "one by one", "reason": "a loop", "trusted": True}
    assert document["gradients"] == [about]
    assert document["unproven_proxy_trusted"] is True
    assert document["release"] == release
    assert document["signed"] == {"site": "north", "key": key}
    assert document["against"].startswith("all others together")


@pytest.mark.parametrize(
    ("ways", "trusted", "shown"),
    [
        ([None], None, "not recorded"),
        ([None, Gradients(Computation.PROVEN, "")], None, "not recorded"),
        ([None, Gradients(Computation.ONE_BY_ONE, "a loop", trusted=True)], True, "yes"),
        ([Gradients(Computation.PROVEN, "")], False, "no"),
    ],
)
def test_a_certificate_says_no_only_of_what_is_on_record(
    ways: list[Gradients | None], trusted: bool | None, shown: str
) -> None:
    """Ledgers of earlier releases do not have how gradients were computed, in some or all steps:
    nobody knows then whether an unproven proxy was trusted."""
    ledger = Ledger("north", delta=1e-5, kind=Kind.END_TO_END, simulated=False)
    for round, way in enumerate(ways):
        if way is not None:
            ledger.record_gradients(way)
        ledger.charge(round, 10, 0.05, 2.0)
    document = certificates.certificate(ledger, certificates.NODE)
    assert document["unproven_proxy_trusted"] is trusted
    page = certificates.markdown(document).split("\n")
    assert f"| an unproven proxy was trusted | {shown} |" in page
    assert ("| gradients computed | not recorded |" in page) == (None in ways)


@pytest.mark.parametrize("form", ["md", "json"])
def test_every_changed_byte_is_found(north: Signed, tmp_path: Path, form: str) -> None:
    """Flipped bits and other bytes anywhere before the empty space at the end."""
    content = north.file(form).read_bytes()
    card = north.identity.card("")
    generator = random.Random(0)
    places = range(len(content.rstrip()))

    def holds(changed: bytes) -> bool:
        try:
            text = certificates.normal_text(changed, "it")
            if form == "md":
                certificates.verify_page(certificates.parse_page(text, "it"), card, "it")
            else:
                for document in certificates.parse_json(text, "it"):
                    certificates.verify_json(document, card, "it")
        except ValueError:
            return False
        return True

    assert holds(content)
    assert holds(content.replace(b"\n", b"\r\n"))
    assert holds(content + b"\r\n \n")
    for _ in range(FLIPS):
        at = generator.choice(places)
        flipped = content[at] ^ (1 << generator.randrange(8))
        for byte in (flipped, generator.choice(sorted({*range(256)} - {content[at]}))):
            changed = content[:at] + bytes([byte]) + content[at + 1 :]
            assert not holds(changed), (at, content[at - 20 : at + 20], byte)
    for at in generator.sample(places, 100):
        assert not holds(content[:at] + content[at + 1 :]), at
        assert not holds(content[:at] + b"#" + content[at:]), at


def _preface(text: str) -> str:
    return "**Audited by the authority: epsilon 0.001.**\n\n" + text


def _appended(text: str) -> str:
    return text + "\n" + text.replace("north", "south")


def _appended_words(text: str) -> str:
    return text + "\nAnd epsilon is really 0.001.\n"


def _without_signature(text: str) -> str:
    return text[: text.index("\n```\n")]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_preface, "Text before a certificate is not part of it"),
        (_appended, "something was added after it"),
        (_appended_words, "something was added after it"),
        (_without_signature, "is not signed"),
        (lambda text: text.replace("zero-out", "add-or-remove"), "was changed after it was signed"),
    ],
)
def test_a_forged_page_does_not_hold(
    north: Signed,
    tmp_path: Path,
    check: Callable[..., str],
    change: Callable[[str], str],
    said: str,
) -> None:
    """A preface, a second certificate, words after the end, no signature, other words."""
    forged = tmp_path / "forged.md"
    forged.write_text(change(north.page.read_text()))
    assert said in check("--check", forged, "--card", north.card, holds=False)
    check(north.folder, "--check", forged, holds=False)
    check(north.folder, "--check", forged, "--card", north.card, holds=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace('"format"', '"epsilon": 0.001,\n "format"'), "appears twice"),
        (lambda text: text.replace('"format"', '"note": "safe",\n      "format"'), "unknown: note"),
        (lambda text: text.replace('"certificates"', '"verdict": 0,\n  "certificates"'), "verdict"),
        (lambda text: text.replace("      ", "     "), "is not spelled as proxyfl spells it"),
        (lambda text: text.replace("1e-05", "0.00001"), "is not spelled as proxyfl spells it"),
        (lambda text: text.replace("1e-05", "NaN"), "NaN is not JSON"),
        (lambda text: text.replace("1e-05", "1e-06"), "was changed after it was signed"),
        (lambda text: text.replace('"format": 2', '"format": 1'), "Have it written again"),
        (lambda text: text + '{"epsilon": 0}', "Extra data"),
    ],
)
def test_a_forged_document_does_not_hold(
    north: Signed,
    tmp_path: Path,
    check: Callable[..., str],
    change: Callable[[str], str],
    said: str,
) -> None:
    """Repeated and unknown keys, other spellings and numbers, a second document."""
    forged = tmp_path / "forged.json"
    forged.write_text(change(north.json.read_text()))
    assert forged.read_text() != north.json.read_text()
    assert said in check("--check", forged, "--card", north.card, holds=False)
    check(north.folder, "--check", forged, holds=False)


def test_a_false_second_certificate_does_not_hold(
    north: Signed, tmp_path: Path, check: Callable[..., str]
) -> None:
    """Beside a true one in the same JSON: of the same site, or of one that has no ledger here."""
    (document,) = json.loads(north.json.read_text())["certificates"]
    forged = tmp_path / "forged.json"
    forged.write_text(certificates.to_json([document, {**document, "epsilon": 0.001}]))
    assert "two certificates of 'north'" in check(north.folder, "--check", forged, holds=False)
    other = {**document, "client": "south", "signed": None, "signature": None}
    forged.write_text(certificates.to_json([document, other]))
    said = check("--check", forged, "--card", north.card, holds=False)
    assert "is not signed" in said
    check(north.folder, "--check", forged, holds=False)


def test_the_card_must_be_the_signers(
    north: Signed, tmp_path: Path, check: Callable[..., str]
) -> None:
    """Another site's card, a card of the same name with another key, another site's page."""
    south = Signed(tmp_path, "south")
    other = Signed(tmp_path / "again", "north")
    for form in ("md", "json"):
        said = check("--check", north.file(form), "--card", south.card, holds=False)
        assert "is a certificate of 'north', signed by 'north'; the card is that of 'south'" in said
        said = check("--check", north.file(form), "--card", other.card, holds=False)
        assert "use its card from that time. Otherwise one of the two is false" in said
        said = check(north.folder, "--check", south.file(form), holds=False)
        assert "the card is that of 'north'" in said


def test_a_site_cannot_sign_for_another(
    north: Signed, tmp_path: Path, check: Callable[..., str]
) -> None:
    """A page about south under north's key holds for neither card."""
    (document,) = json.loads(north.json.read_text())["certificates"]
    page = tmp_path / "page.md"
    page.write_text(certificates.markdown({**document, "client": "south"}, north.identity))
    assert "Ask for the signer's card" in check("--check", page, "--card", north.card, holds=False)


def test_page_and_json_must_say_the_same(
    north: Signed, tmp_path: Path, check: Callable[..., str]
) -> None:
    """Each signed, and from different days: named together, they do not hold."""
    both = ("--check", north.page, "--check", north.json, "--card", north.card)
    assert "All 2 certificates hold" in check(*both)
    ledger = Ledger.read(north.folder / "ledger.jsonl")
    before = (north.folder / "ledger.jsonl").read_bytes()
    ledger.charge(1, 10, 0.05, 2.0)
    (north.folder / "ledger.jsonl").write_bytes(before)
    later = certificates.certificate(ledger, certificates.NODE, north.identity)
    newer = tmp_path / "newer.md"
    newer.write_text(certificates.markdown(later, north.identity))
    check("--check", newer, "--card", north.card)
    said = check("--check", newer, "--check", north.json, "--card", north.card, holds=False)
    assert "do not say the same" in said
    assert "steps" in check(north.folder, "--check", newer, holds=False)


def test_a_signed_page_of_another_release_is_compared_with_the_ledger(
    north: Signed, tmp_path: Path, check: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signature vouches for the release, which no ledger has; an unsigned page's is refused."""
    monkeypatch.setattr(certificates, "this_release", lambda: "9.9.9")
    check(north.folder, "--check", north.page)
    check(north.folder, "--check", north.json)
    ledger = Ledger.read(north.folder / "ledger.jsonl")
    unsigned = tmp_path / "page.md"
    unsigned.write_text(certificates.markdown(certificates.certificate(ledger, certificates.NODE)))
    assert "not signed" in check(north.folder, "--check", unsigned)
    monkeypatch.undo()
    said = check(north.folder, "--check", unsigned, holds=False)
    assert "was written by proxyfl 9.9.9" in said


def test_an_unsigned_page_says_so(tmp_path: Path, check: Callable[..., str]) -> None:
    """A ledger without a key gives a page that calls itself unsigned, and no card vouches for
    it."""
    site = Signed(tmp_path)
    (site.folder / SITE_KEY).unlink()
    page = tmp_path / "page.md"
    ledger = Ledger.read(site.folder / "ledger.jsonl")
    page.write_text(certificates.markdown(certificates.certificate(ledger, certificates.NODE)))
    assert f"| signed | {certificates.NOT_SIGNED} |" in page.read_text()
    assert "the ledgers give the same; not signed" in check(site.folder, "--check", page)
    said = check("--check", page, "--card", site.card, holds=False)
    assert "is not signed, so north's card cannot vouch for it" in said
    said = check(site.folder, "--check", site.page, holds=False)
    assert "there is no key here to check that" in said


def test_without_the_extra_a_sentence_says_which_to_install(
    north: Signed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Signatures need `cryptography`."""
    monkeypatch.setattr(node, "members", node.members)  # the import below replaces it
    for name in [name for name in sys.modules if name.startswith("proxyfl.node.members")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert main(["certificate", "--check", str(north.page), "--card", str(north.card)]) == 2
    assert "Checking a signature needs the extra: pip install 'proxyfl[node]'" in (
        capsys.readouterr().err
    )
    assert main(["certificate", str(north.folder)]) == 2
    assert "Signing a certificate needs the extra" in capsys.readouterr().err


def test_the_key_is_where_the_command_looks() -> None:
    """The command names the file itself, so that it can say which extra is missing."""
    assert SITE_KEY == identities.KEY_FILE
