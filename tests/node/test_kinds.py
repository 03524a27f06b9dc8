"""Kinds of sites: a federation whose manifest states them trains one proxy for each."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from proxyfl.cli.main import main
from proxyfl.errors import ConfigError
from proxyfl.node.exchange import auditlog
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members.identity import Identity, card_text
from proxyfl.node.members.manifest import Graph, Input, Manifest, Masked
from tests.waiting import PATIENCE

from .federations import predicted, quick, running, trial
from .test_manifest import cards
from .test_sums import ROUNDS, STEPS, record_of, shared_proxy

KINDS = ("town", "land", "town", "land")
NAMES = ("north", "south", "west", "east")


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A federation of two kinds of two."""
    members = tuple(cards(tmp_path, *NAMES))
    graph = Graph(kinds=KINDS)
    return Manifest("heart", input=Input((13,), ("a", "b")), members=members, graph=graph)


def test_kinds_are_terms_that_all_sign(manifest: Manifest, tmp_path: Path) -> None:
    """They are read back and change the hash; a manifest without them is as it was before."""
    path = manifests.write(tmp_path / "federation", manifest)
    assert manifests.read(path) == manifest
    assert manifest.minor == 4
    without = replace(manifest, graph=Graph(), minor=0)
    assert without.digest != manifest.digest
    assert "kinds" not in manifests.to_toml(without)


def test_a_site_sees_its_own_kind_under_the_hash_of_all(manifest: Manifest) -> None:
    """Members, positions and graph are those of the kind; hash, signature and identity the
    whole's."""
    seen = manifest.for_member("west")
    assert seen.names() == ("north", "west")
    assert seen.position("west") == 1
    assert (seen.digest, seen.federation) == (manifest.digest, manifest.federation)
    assert seen.acceptance() == manifest.acceptance()
    with pytest.raises(ConfigError, match="No member 'south'"):
        seen.member("south")
    plain = replace(manifest, graph=Graph())
    assert plain.for_member("west") is plain


def test_a_release_that_knows_no_kinds_refuses_the_manifest(
    manifest: Manifest, tmp_path: Path
) -> None:
    """Kinds change who exchanges with whom. Shown with a term that this release does not know."""
    path = manifests.write(tmp_path / "federation", manifest)
    newer = path.read_text().replace("kinds =", "sorts =")
    newer = re.sub(r"minor = \d+", f"minor = {manifests.MINOR + 1}", newer)
    path.write_text(newer)
    with pytest.raises(ConfigError, match=r"sorts.*pip install"):
        manifests.read(path)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph(kinds=("town", "land")), "kind of each of the 4 members"),
        (Graph(kinds=("town", "town", "town", "land")), "east is the only member of the kind"),
        (Graph(kinds=("a", "a", "\n", "\n")), "printable characters for west"),
        (Graph(kinds=KINDS, masked=Masked(1, 3)), "quorum of more than half of the 2 members"),
    ],
)
def test_kinds_that_make_no_sense_are_refused(
    manifest: Manifest, graph: Graph, message: str
) -> None:
    """Before anybody signs; a quorum is that of each kind."""
    with pytest.raises(ConfigError, match=message):
        replace(manifest, graph=graph)


def test_a_member_keeps_its_kind(manifest: Manifest, tmp_path: Path) -> None:
    """One that is added says its kind; one that stays cannot change it."""
    (card,) = cards(tmp_path, "lake")
    with pytest.raises(ConfigError, match="--kind lake=KIND"):
        manifests.successor(manifest, add=[card])
    second = manifests.successor(manifest, add=[card], kinds=["land"])
    manifests.check_successor(manifest, second)
    assert second.for_member("lake").names() == ("south", "east", "lake")
    third = manifests.successor(second, remove=["south"])
    assert third.graph.kinds == ("town", "town", "land", "land")
    other = ("land", "land", "town", "town", "land")
    moved = replace(second, graph=Graph(kinds=other))
    with pytest.raises(ConfigError, match="north of the kind 'land'; it was 'town'"):
        manifests.check_successor(manifest, moved)


def test_the_commands_state_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``federation new --kind`` writes them and ``show`` says them; a site without one is named."""
    paths = []
    for name in NAMES:
        card = Identity.create(tmp_path / name, name).card("127.0.0.1:7000")
        path = tmp_path / f"{name}.card.toml"
        path.write_text(card_text(card))
        paths.append(str(path))
    start = ["federation", "new", str(tmp_path / "made"), "--classes", "a,b", "--shape", "4"]
    start += ["--rounds", "3", *paths]
    kinds = [f"--kind={name}={kind}" for name, kind in zip(NAMES, KINDS, strict=True)]
    assert main([*start, *kinds[:3]]) == 2
    assert "Give the kind of east" in capsys.readouterr().err
    assert main([*start, *kinds]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "town (north, west); land (south, east)" in said
    assert "a site with fewer than about" in said, "the least size is named"
    assert manifests.read(tmp_path / "made").graph.kinds == KINDS


def test_sites_of_two_kinds_train_two_proxies(tmp_path: Path) -> None:
    """By masked sums, each equal to the simulation's bit for bit; no site hears from another
    kind."""
    layout = trial.lay_out(tmp_path, sites=4, rounds=ROUNDS, template=quick(patience=PATIENCE))
    masked = Masked(1, 2, steps=STEPS, noise_multiplier=8.0, learning_rate=0.05)
    agreed = replace(layout.manifest, graph=Graph(kinds=KINDS, masked=masked))
    layout = trial.accept_everywhere(layout, agreed)
    with running(layout) as made:
        made.join()
        assert set(made.ended.values()) == {"finished"}, (made.ended, made.said)
    expected = predicted(layout.folder)
    names = agreed.names()
    for place, outcome in zip(layout.sites, expected, strict=True):
        assert record_of(place).step == ROUNDS * STEPS
        assert torch.equal(shared_proxy(place), outcome.proxy), place.name
        own = {name for name, kind in zip(names, KINDS, strict=True) if name != place.name}
        kind = KINDS[names.index(place.name)]
        others = {name for name in own if KINDS[names.index(name)] != kind}
        text = (place / auditlog.FILE).read_text()
        assert not any(f'"{name}"' in text for name in others), f"{place.name} knows of {others}"
    assert not torch.equal(expected[0].proxy, expected[1].proxy)
