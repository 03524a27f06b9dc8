"""Sites that cannot be called, and sites that have no network to each other at all."""

import dataclasses
import os
from pathlib import Path

import pytest

from proxyfl.errors import TransportError
from proxyfl.node.exchange import auditlog
from proxyfl.node.exchange.service import RELAY
from proxyfl.node.trial import Layout
from proxyfl.transport.files import Folder
from tests.waiting import PATIENCE

from .federations import change, predicted, quick, running, total_weight, trial
from .test_node import final_proxy


def without_addresses(layout: Layout, names: set[str]) -> Layout:
    """The same federation, in which some sites can only dial out."""
    members = []
    for card in layout.manifest.members:
        address = "" if card.name in names else card.address
        members.append(dataclasses.replace(card, address=address))
    manifest = dataclasses.replace(layout.manifest, members=tuple(members))
    for place in layout.sites:
        if place.name in names:
            change(
                place,
                lambda site: dataclasses.replace(
                    site, network=dataclasses.replace(site.network, listen="")
                ),
            )
    return trial.accept_everywhere(layout, manifest)


def assert_equal_to_the_engine(layout: Layout) -> None:
    """Whichever way the shares went, the proxies are the in-process engine's."""
    expected = predicted(layout.folder)
    for place, outcome in zip(layout.sites, expected, strict=True):
        assert bool((final_proxy(place) == outcome.proxy).all()), place.name


def test_two_sites_that_only_dial_out_meet_through_a_relay(tmp_path: Path) -> None:
    """Of three sites only one can be called: the others hold a stream to it, and it passes their
    sealed shares on. The proxies are equal, bit for bit, to those of open sites."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=4, template=quick(patience=PATIENCE))
    layout = without_addresses(layout, {"south", "east"})
    with running(layout) as made:
        relay = made.nodes["north"].service
        passed: list[bytes] = []
        original = relay.hand

        def watched(peer: str, message: bytes, *, on_behalf: str = "") -> None:
            passed.append(message)
            original(peer, message, on_behalf=on_behalf)

        relay.hand = watched  # type: ignore[method-assign]  # to see what a relay sees
        made.join()
    assert set(made.ended.values()) == {"finished"}
    assert relay.traffic["messages_relayed"] > 0
    sealed = [message for message in passed if message.startswith(RELAY)]
    assert sealed
    assert not any(b"safetensors" in message or b"PFLNODE" in message for message in sealed)
    assert total_weight(layout) == 3
    assert_equal_to_the_engine(layout)


def test_sites_without_a_network_exchange_files(tmp_path: Path) -> None:
    """Signed and sealed files in a folder carry the same federation to the same proxies."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=3, template=quick(patience=PATIENCE))
    shared = tmp_path / "shared"
    for place in layout.sites:
        change(
            place,
            lambda site: dataclasses.replace(
                site, network=dataclasses.replace(site.network, folder=str(shared), listen="")
            ),
        )
    with running(layout) as made:
        made.join()
    assert set(made.ended.values()) == {"finished"}
    assert total_weight(layout) == 3
    assert_equal_to_the_engine(layout)


def test_a_file_that_is_not_sealed_to_the_site_is_refused(tmp_path: Path) -> None:
    """Rubbish in the folder, and a message for somebody else, change nothing and are logged."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=1, template=quick(patience=20.0))
    shared = tmp_path / "shared"
    for place in layout.sites:
        change(
            place,
            lambda site: dataclasses.replace(
                site, network=dataclasses.replace(site.network, folder=str(shared), listen="")
            ),
        )
    folder = Folder(shared, largest=1 << 20)
    folder.put(b"rubbish", "north", "a")
    folder.put(RELAY + bytes([5]) + b"south" + bytes(100), "north", "b")
    folder.put(RELAY + bytes([5]) + b"north" + bytes(100), "north", "c")
    with running(layout) as made:
        made.join()
        assert made.nodes["north"].log.counts["refused"] >= 3
    assert set(made.ended.values()) == {"finished"}
    assert auditlog.verify(layout.sites[0] / auditlog.FILE) is None


def test_what_nobody_collects_does_not_pile_up(tmp_path: Path) -> None:
    """A slot holds the latest message alone; one that is too large is left alone."""
    folder = Folder(tmp_path, largest=10)
    folder.put(b"first", "north", "hello")
    folder.put(b"second", "north", "hello")
    folder.put(b"much too large", "north", "share")
    assert folder.holds("north", "hello")
    assert [content for _, content in folder.waiting("north")] == [b"second"]
    assert list(folder.waiting("south")) == []
    with pytest.raises(TransportError, match="site's name"):
        folder.put(b"x", "../outside", "hello")


def test_only_plain_files_are_read_from_the_folder(tmp_path: Path) -> None:
    """A link to what never ends, a pipe, a folder and a file that is too large are left alone."""
    folder = Folder(tmp_path, largest=100)
    inbox = tmp_path / "for-north"
    folder.put(b"good", "north", "south-hello")
    (inbox / "link.message").symlink_to("/dev/zero")
    os.mkfifo(inbox / "pipe.message")
    (inbox / "folder.message").mkdir()
    (inbox / "large.message").write_bytes(bytes(101))
    assert [content for _, content in folder.waiting("north")] == [b"good"]


def test_what_is_left_in_the_folder_overwrites_nothing_else(tmp_path: Path) -> None:
    """Somebody who can write to the folder puts a link where the next message will be written."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    inbox = tmp_path / "for-north"
    inbox.mkdir()
    (inbox / ".south-hello.message.new").symlink_to(precious)
    Folder(tmp_path, largest=100).put(b"sealed", "north", "south-hello")
    assert precious.read_text() == "mine"
    assert (inbox / "south-hello.message").read_bytes() == b"sealed"


def test_a_message_that_comes_while_one_is_read_is_not_lost(tmp_path: Path) -> None:
    """The slot is filled again before the first message is done with: the second is collected,
    too, and so is one that was put aside when the program ended."""
    folder = Folder(tmp_path, largest=100)
    folder.put(b"first", "north", "south-hello")
    collected = []
    for path, content in folder.waiting("north"):
        collected.append(content)
        folder.put(b"second", "north", "south-hello")
        path.unlink()
    assert collected == [b"first"]
    assert [content for _, content in folder.waiting("north")] == [b"second"]
    assert [content for _, content in folder.waiting("north")] == [b"second"]
