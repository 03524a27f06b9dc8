"""A site changes its key: while all run, with shares under way, after a crash; nobody else does."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.errors import ConfigError, TransportError
from proxyfl.node.exchange import auditlog
from proxyfl.node.exchange.messages import Verdict
from proxyfl.node.members import identity as identities
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import roster
from proxyfl.node.members.identity import Card, Identity, IdentityError, card_text, read_card
from proxyfl.node.members.manifest import MOST_ROUNDS, Manifest
from proxyfl.node.members.site import Privacy, Site
from proxyfl.node.supervisor import Node
from proxyfl.node.trial import Layout
from tests.node.federations import Running, change, quick, running, total_weight, trial
from tests.node.test_firewalls import without_addresses
from tests.node.test_service import Corner, asked, corners
from tests.waiting import PATIENCE, wait_until

__all__ = ["corners"]


def rotate(place: Path, agreed: Manifest) -> Manifest:
    """Make a new key for the site in ``place``; return the version that lists it."""
    assert main(["node", "rotate-key", str(place)]) == 0
    card, _ = read_card(place / "next" / f"{place.name}.card.toml")
    return manifests.successor(agreed, replace=[card])


def accept(place: Path, agreed: Manifest) -> None:
    """`proxyfl node accept`."""
    file = place.parent / f"sent-{agreed.version}.toml"
    file.write_text(manifests.to_toml(agreed))
    assert main(["node", "accept", str(place), str(file)]) == 0


def key_of(place: Path) -> str:
    """The fingerprint of the key in a site's folder."""
    return Identity(place, place.name).fingerprint


def events(place: Path) -> list[str]:
    return [entry["event"] for entry in auditlog.read(place / "audit.jsonl")]


@pytest.mark.parametrize(
    ("order", "way"),
    [((0, 1, 2), "open"), ((1, 2, 0), "open"), ((2, 0, 1), "dials out"), ((1, 0, 2), "files")],
)
def test_a_running_site_changes_its_key(tmp_path: Path, order: Sequence[int], way: str) -> None:
    """Whoever accepts first: sites that cannot talk meanwhile go on, all meet again under the new
    key, and no weight is lost."""
    endless = dataclasses.replace(quick(patience=2.0), privacy=Privacy(budget=None))
    layout = trial.lay_out(tmp_path, sites=3, rounds=MOST_ROUNDS - 1, template=endless)
    if way == "dials out":
        layout = without_addresses(layout, {"north", "south"})
    if way == "files":
        for place in layout.sites:
            change(place, lambda site: _by_files(site, tmp_path / "shared"))
    north = layout.sites[0]
    before = key_of(north)
    with running(layout) as made:
        for node in made.nodes.values():
            wait_until(lambda node=node: _stored_from_others(node) >= 2)  # type: ignore[misc]
        second = rotate(north, layout.manifest)
        for at in order:
            place = layout.sites[at]
            accept(place, second)
            node = made.nodes[place.name]
            wait_until(lambda node=node: node.books.version == 2)  # type: ignore[misc]
        present = {name: _last_round_stored(node, "north") for name, node in made.nodes.items()}
        for name in ("south", "east"):
            node = made.nodes[name]
            later = present[name] + 2
            wait_until(lambda node=node, later=later: _last_round_stored(node, "north") > later)  # type: ignore[misc]
        for node in made.nodes.values():
            node.stopping.set()
        made.join()
    assert set(made.ended.values()) == {"stopped"}
    assert total_weight(layout) == 3
    assert key_of(north) == second.member("north").fingerprint != before
    assert not (north / "next").exists()
    assert [card.fingerprint for card in identities.read_retired_cards(north)] == [before]
    assert "key changed" in events(north)


def _stored_from_others(node: Node) -> int:
    with node.store.reading() as run:
        rows = run.execute("select count(*) from verdicts where outcome = 'stored'").fetchone()
    return int(rows[0])


def _last_round_stored(node: Node, sender: str) -> int:
    with node.store.reading() as run:
        row = run.execute(
            "select max(round) from verdicts where outcome = 'stored' and sender = ?", (sender,)
        ).fetchone()
    return -1 if row[0] is None else int(row[0])


def _by_files(site: Site, shared: Path) -> Site:
    network = dataclasses.replace(site.network, folder=str(shared), listen="")
    return dataclasses.replace(site, network=network)


def test_shares_under_way_are_not_lost(tmp_path: Path) -> None:
    """South is away with a share for it in north's outbox when north changes its key; when south
    has accepted that and comes back it takes the share, and all weight is there."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=8, template=quick(patience=1.0))
    north, _, east = layout.sites
    made = Running()
    try:
        for place in (north, east):
            made.start(place, rounds=3)
        made.join()
        assert "south" in _owed(layout)
        second = rotate(north, layout.manifest)
        for place in layout.sites:
            accept(place, second)
        assert key_of(north) == second.member("north").fingerprint
        for place in layout.sites:
            made.start(place)
        made.join()
    finally:
        _stop(made)
    assert set(made.ended.values()) == {"finished"}
    assert total_weight(layout) == 3
    assert "delivered" in events(north)


def _owed(layout: Layout) -> set[str]:
    from proxyfl.node.exchange.store import FILE, Store

    store = Store(layout.sites[0] / FILE)
    rows = store.connection.execute("select receiver from outbox").fetchall()
    store.close()
    return {name for (name,) in rows}


def _stop(made: Running) -> None:
    for node in made.nodes.values():
        node.stopping.set()
        node.participant.patience = 0.0
        node.exchange.notify()
    for thread in made.threads.values():
        thread.join(PATIENCE)


@pytest.fixture
def rotated(corners: tuple[Corner, Corner, Corner]) -> tuple[Corner, Corner, Manifest]:
    """Site a, whose new key waits; site b, a member; and the version that lists a's new key."""
    a, b, _ = corners
    waiting = a.identity.rotate("")
    card, _ = read_card(waiting.folder / "a.card.toml")
    return a, b, manifests.successor(a.roster.current, replace=[card])


def test_the_old_key_is_refused_from_the_moment_of_acceptance(
    rotated: tuple[Corner, Corner, Manifest],
) -> None:
    """Over a connection, and sealed through a relay or a folder; before b's next round begins."""
    a, b, second = rotated
    assert asked(b, a, a.hello(b))
    old = a.hello(b)
    roster.accept(b.folder, b.identity, second)
    for via in ("a connection", "a relay"):
        with pytest.raises(
            TransportError, match="uses a key that version 2 of the manifest has re"
        ):
            asked(b, a, old) if via == "a connection" else b.service.take(old, via=None)
        assert b.service.refusals.pop("a")[0] == "manifest-behind"
    assert b.roster.current.version == 1
    roster.accept(a.folder, a.identity, second)
    # as the courier's next look around does
    assert a.roster.newest.version == 2
    assert asked(b, a, a.hello(b))
    assert b.service.take(a.hello(b), via=None)
    # A thief of the old key cannot make the site look absent.
    with pytest.raises(TransportError, match="uses a key that version 2"):
        b.service.take(old, via=None)
    assert b.service.refusals == {}
    sealed = b.service.seal(b"text", "a")
    assert a.service.unseal(sealed) == b"text"


def test_a_share_from_before_the_change_is_taken_once(
    rotated: tuple[Corner, Corner, Manifest],
) -> None:
    """Sent with the old key and again with the new one: one verdict, one share."""
    from proxyfl.node.exchange import messages

    a, b, second = rotated
    asked(b, a, a.hello(b))
    first, _ = messages.begin(asked(b, a, a.share(b)))
    for site in (a, b):
        roster.accept(site.folder, site.identity, second)
    assert a.roster.newest.version == 2
    asked(b, a, a.hello(b))
    again, _ = messages.begin(asked(b, a, a.share(b)))
    assert isinstance(first, Verdict)
    assert isinstance(again, Verdict)
    assert (first.outcome, again.outcome) == ("stored", "stored")
    assert sum((part.weight for part in b.books.parts()), Fraction(0)) == Fraction(1, 2)


def test_a_removed_member_is_not_heard_through_a_folder(
    corners: tuple[Corner, Corner, Corner],
) -> None:
    """Not until the next round, but from the moment of acceptance."""
    a, b, _ = corners
    assert b.service.take(a.hello(b), via=None)
    roster.accept(b.folder, b.identity, manifests.successor(b.roster.current, remove=["a"]))
    with pytest.raises(ConfigError, match="'a' is not a member in the newest version"):
        b.service.take(a.hello(b), via=None)


def _unproven(card: Card, _: Identity) -> Card:
    return dataclasses.replace(card, previous="", proof="")


def _signed_by_itself(card: Card, thief: Identity) -> Card:
    proof = thief.sign(card.key_change(card.previous)).hex()
    return dataclasses.replace(card, proof=proof)


def _other_sealing_key(card: Card, thief: Identity) -> Card:
    return dataclasses.replace(card, sealing_key=thief.card("").sealing_key)


def _other_certificate(card: Card, thief: Identity) -> Card:
    return dataclasses.replace(card, certificate=thief.card("").certificate)


@pytest.mark.parametrize(
    "forge", [_unproven, _signed_by_itself, _other_sealing_key, _other_certificate]
)
def test_nobody_else_changes_a_sites_key(
    rotated: tuple[Corner, Corner, Manifest],
    tmp_path: Path,
    forge: Callable[[Card, Identity], Card],
) -> None:
    """Neither the keeper's tool nor a member's accept takes a key that the old one did not sign
    for, with all that comes with it."""
    a, b, second = rotated
    thief = Identity.create(tmp_path / "thief", "a")
    forged = forge(second.member("a"), thief)
    with pytest.raises(IdentityError, match="old key did not sign the change"):
        manifests.successor(a.roster.current, replace=[forged])
    members = tuple(forged if card.name == "a" else card for card in second.members)
    with pytest.raises(IdentityError, match="old key did not sign the change"):
        roster.accept(b.folder, b.identity, dataclasses.replace(second, members=members))
    assert b.roster.newest.version == 1


def test_a_name_is_not_taken_by_removing_and_adding(
    corners: tuple[Corner, Corner, Corner], tmp_path: Path
) -> None:
    """In two versions instead of one; with its own key, a removed member may return."""
    a, b, _ = corners
    removed = manifests.successor(b.roster.current, remove=["a"])
    roster.accept(b.folder, b.identity, removed)
    thief = Identity.create(tmp_path / "thief", "a").card("")
    with pytest.raises(IdentityError, match="old key did not sign the change"):
        roster.accept(b.folder, b.identity, manifests.successor(removed, add=[thief]))
    back = manifests.successor(removed, add=[a.identity.card("")])
    roster.accept(b.folder, b.identity, back)
    assert b.roster.newest.version == 3


def test_an_address_can_be_replaced_without_a_proof(corners: tuple[Corner, Corner, Corner]) -> None:
    """The key is the same; position and first round stay."""
    a, b, _ = corners
    moved = dataclasses.replace(a.identity.card("north.example.org:7443"), joins=5)
    second = manifests.successor(a.roster.current, replace=[moved])
    assert second.names() == a.roster.current.names()
    assert second.member("a").address == "north.example.org:7443"
    assert second.member("a").joins == a.roster.current.member("a").joins
    roster.accept(b.folder, b.identity, second)


def test_a_crash_while_keys_move_is_finished_by_the_next_start(
    rotated: tuple[Corner, Corner, Manifest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After whichever file: the site has its new keys, and all of its files fit them."""
    a, _, second = rotated
    roster.accept(a.folder, a.identity, second)
    wanted = second.member("a").fingerprint
    replace = Path.replace
    for step in range(6):
        place = tmp_path / f"crash-{step}" / "a"
        shutil.copytree(a.folder, place)
        identity = Identity(place, "a")
        assert identity.take(second.member("a").public_key)
        moved: list[Path] = []

        def crash(self: Path, target: Path, moved: list[Path] = moved, step: int = step) -> Path:
            if self.parent.name == "next" and not self.name.startswith("."):
                if len(moved) == step:
                    raise KeyboardInterrupt
                moved.append(self)
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", crash)
        if step < 5:
            with pytest.raises(KeyboardInterrupt):
                identity.move()
        else:
            assert identity.move() is not None
        monkeypatch.setattr(Path, "replace", replace)
        again = Identity(place, "a")
        assert again.fingerprint == wanted
        assert again.card("").public_key == second.member("a").public_key
        assert again.card("").sealing_key == second.member("a").sealing_key
        assert identities.fingerprint_of(again.tls_certificate()) == wanted
        assert read_card(place / "a.card.toml")[0] == second.member("a")
        assert not (place / "next").exists()
        assert roster.Roster(place, again).current.version == 2


def test_a_new_key_waits_until_a_manifest_lists_it(
    corners: tuple[Corner, Corner, Corner], capsys: pytest.CaptureFixture[str]
) -> None:
    """The present key signs until then, a second new key is refused, and modes are tight."""
    a, _, _ = corners
    before = a.identity.fingerprint
    waiting = a.identity.rotate("")
    assert Identity(a.folder, "a").fingerprint == before != waiting.fingerprint
    with pytest.raises(IdentityError, match=r"waits in .* already"):
        a.identity.rotate("")
    assert (waiting.folder / "key.pem").stat().st_mode & 0o077 == 0
    assert waiting.folder.stat().st_mode & 0o077 == 0
    third = manifests.successor(a.roster.current)
    roster.accept(a.folder, a.identity, third)
    a.roster.reload()
    assert a.identity.fingerprint == before


def test_a_site_without_the_listed_key_says_so(rotated: tuple[Corner, Corner, Manifest]) -> None:
    """A folder that was restored in part does not go on with a key that nobody accepts."""
    a, _, second = rotated
    roster.accept(a.folder, a.identity, second)
    shutil.rmtree(a.folder / "next")
    with pytest.raises(IdentityError, match="the whole of the site's folder from one backup"):
        roster.Roster(a.folder, Identity(a.folder, "a"))


def test_certificates_of_the_old_key_still_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against the old card, and at the site, which keeps it."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=1, template=quick())
    with running(layout) as made:
        made.join()
    north = layout.sites[0]
    capsys.readouterr()
    assert main(["certificate", str(north)]) == 0
    page = tmp_path / "page.md"
    page.write_text(capsys.readouterr().out)
    card = tmp_path / "old.card.toml"
    card.write_text(card_text(layout.manifest.member("north")))
    second = rotate(north, layout.manifest)
    accept(north, second)
    assert main(["certificate", "--check", str(page), "--card", str(card)]) == 0
    assert main(["certificate", str(north), "--check", str(page)]) == 0
    new = tmp_path / "new.card.toml"
    new.write_text(card_text(second.member("north")))
    capsys.readouterr()
    assert main(["certificate", "--check", str(page), "--card", str(new)]) == 1
    assert "use its card from that time" in capsys.readouterr().out
    assert main(["certificate", str(north)]) == 0
    page.write_text(capsys.readouterr().out)
    assert main(["certificate", "--check", str(page), "--card", str(new)]) == 0


def test_the_commands_of_a_key_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """rotate-key, card --next, replace-card, show, accept, preflight: each says what comes next."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick())
    north, south = layout.sites
    assert main(["node", "card", str(north), "--next"]) == 2
    assert "rotate-key" in capsys.readouterr().err
    assert main(["node", "rotate-key", str(north)]) == 0
    said = capsys.readouterr().out
    assert "proxyfl federation replace-card DIR north.card.toml" in said
    assert main(["node", "card", str(north), "--next"]) == 0
    sent = tmp_path / "north.card.toml"
    sent.write_text(capsys.readouterr().out)
    card, _ = read_card(sent)
    assert card.address == layout.manifest.member("north").address
    main(["preflight", str(north), "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert "a new key waits" in checks[0]["text"]
    assert main(["federation", "replace-card", str(layout.folder), str(sent)]) == 0
    assert "version 2" in capsys.readouterr().out
    for place in (south, north):
        assert main(["node", "accept", str(place), str(layout.folder)]) == 0
    said = capsys.readouterr().out
    assert said.count("north has a new key, which its old key signed for") == 2
    assert "the old one is removed" in said
    assert key_of(north) == card.fingerprint
    assert main(["node", "card", str(north)]) == 0
    assert read_card(_written(tmp_path, capsys))[0] == card
    assert main(["node", "certificate", str(north)]) == 0
    assert "The card is the same" in capsys.readouterr().out


def _written(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = folder / "printed.toml"
    path.write_text(capsys.readouterr().out)
    return path
