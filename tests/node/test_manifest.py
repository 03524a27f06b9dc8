"""The manifest: read and written, hashed, and changed in versions."""

import dataclasses
from pathlib import Path

import pytest

from proxyfl.errors import ConfigError
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members.identity import Card, Identity
from proxyfl.node.members.manifest import Graph, Input, Manifest


def cards(folder: Path, *names: str) -> list[Card]:
    """New sites' cards."""
    return [
        Identity.create(folder / name, name).card(f"127.0.0.1:{7000 + at}")
        for at, name in enumerate(names)
    ]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A federation of three."""
    members = tuple(cards(tmp_path, "north", "south", "west"))
    return Manifest("heart", input=Input((13,), ("well", "sick")), members=members)


def test_a_manifest_is_read_back_as_written(manifest: Manifest, tmp_path: Path) -> None:
    """The file holds all of it, one table per member, and its hash stays the same."""
    path = manifests.write(tmp_path / "federation", manifest)
    assert manifests.read(path) == manifest
    assert manifests.read(path.parent).digest == manifest.digest
    assert path.read_text().count("[[members]]") == 3


def test_the_hash_depends_on_the_content_alone(manifest: Manifest, tmp_path: Path) -> None:
    """Comments and layout do not matter; a changed value does."""
    path = manifests.write(tmp_path, manifest)
    path.write_text("# a comment\n" + path.read_text().replace(" = ", "  =  "))
    assert manifests.read(path).digest == manifest.digest
    assert dataclasses.replace(manifest, rounds=61).digest != manifest.digest


def test_a_site_added_is_a_new_version(manifest: Manifest, tmp_path: Path) -> None:
    """The next version names its predecessor; nobody's card changes; the federation is the same."""
    (card,) = cards(tmp_path, "east")
    second = manifests.successor(manifest, add=[card], joins=10)
    manifests.check_successor(manifest, second)
    assert second.members[:3] == manifest.members
    assert second.members[3].joins == 10
    assert second.federation == manifest.federation
    third = manifests.successor(second, remove=["west"])
    manifests.check_successor(second, third)
    assert third.names() == ("north", "south", "east")
    with pytest.raises(ConfigError, match="does not follow"):
        manifests.check_successor(manifest, third)


def test_what_is_fixed_for_life_stays(manifest: Manifest) -> None:
    """A version that changes the classes or the proxy is another federation."""
    second = manifests.successor(manifest)
    changed = dataclasses.replace(second, input=Input((14,), ("well", "sick")))
    with pytest.raises(ConfigError, match="changes input"):
        manifests.check_successor(manifest, changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: {"members": (m.members[0], m.members[0])}, "same name"),
        (lambda m: {"protocol": 2}, "protocol 2"),
        (lambda m: {"measure": "luck"}, "Unknown measure"),
        (lambda m: {"rounds": 0}, "rounds >= 1"),
    ],
)
def test_a_bad_manifest_says_why(manifest: Manifest, change: object, message: str) -> None:
    """Values out of range are named."""
    assert callable(change)
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(manifest, **change(manifest))


def test_a_site_always_keeps_a_share() -> None:
    """With a self weight of 0 a site would be left with nothing when one message is late."""
    with pytest.raises(ConfigError, match="self_weight"):
        Graph(self_weight=0.0)
    with pytest.raises(ConfigError, match="Unknown"):
        Graph(topology="cycle")


@pytest.mark.parametrize("minor", [manifests.MINOR, manifests.MINOR + 1])
def test_a_method_is_refused_at_real_sites(manifest: Manifest, tmp_path: Path, minor: int) -> None:
    """Terms of a newer minor version are ignored, but never one that changes what leaves."""
    path = manifests.write(tmp_path, manifest)
    text = path.read_text()
    assert "minor" not in text
    path.write_text(f'method = "proxysum"\nminor = {minor}\n' + text)
    with pytest.raises(ConfigError, match=r"manifest\.toml.*'proxysum'.*not a term"):
        manifests.read(path)


def test_an_unknown_key_is_an_error(manifest: Manifest, tmp_path: Path) -> None:
    """A misspelt setting is named, with the file."""
    path = manifests.write(tmp_path, manifest)
    path.write_text("round = 3\n" + path.read_text())
    with pytest.raises(ConfigError, match=r"manifest\.toml.*Unknown key 'round'"):
        manifests.read(path)
