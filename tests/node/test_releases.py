"""Sites of different releases: what an older one has signed and stored still holds, what a newer
one adds is left aside, and what cannot be understood is refused by name."""

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import proxyfl
from proxyfl._files import write_text
from proxyfl.cli.main import main
from proxyfl.errors import ConfigError, RunError
from proxyfl.node.exchange import auditlog, messages
from proxyfl.node.exchange.messages import MessageError
from proxyfl.node.exchange.store import NEWEST, Books, Store
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import roster
from proxyfl.node.members import site as sites
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.versions import RELEASE
from proxyfl.node.observe import status
from tests.waiting import PATIENCE, wait_until

from .federations import SEED, predicted, quick, running, total_weight, trial
from .releases import MAJOR_CHANGES, MINOR_CHANGES, NEXT, Release
from .test_messages import a_hello
from .test_node import final_proxy

OLD = Path(__file__).parent / "before"
"""Files of commit 342afee, before formats had minor versions: four manifests, their members'
signatures, a site's store."""

SITE = OLD / "site"
"""A whole site that finished, of commit 292ca6c: `federation try --sites 2 --rounds 4`. Its keys
protect nothing: they were made for this test."""

ACCEPTED = json.loads((OLD / "accepted.json").read_text())

WRITE = """
import dataclasses, sys
from pathlib import Path
from proxyfl.node.members import manifest
old = manifest.read(Path(sys.argv[1]))
members = [dataclasses.replace(card, beds=300 + at) for at, card in enumerate(old.members)]
new = dataclasses.replace(old, contact="a@b.org", members=(members[0], *old.members[1:]))
manifest.write(Path(sys.argv[1]), new)
print(new.digest)
"""
"""A later release states the terms that it has added; prints the hash."""


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The next minor release."""
    return Release(tmp_path_factory.mktemp("later"), MINOR_CHANGES)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The next major release."""
    return Release(tmp_path_factory.mktemp("stranger"), MAJOR_CHANGES)


@pytest.mark.parametrize("name", list(ACCEPTED))
def test_a_manifest_of_before_keeps_its_hash_and_signatures(name: str, tmp_path: Path) -> None:
    """Whatever terms were added since: the hash is what its members signed, also once copied."""
    for path in (OLD / f"{name}.toml", tmp_path / "copy.toml"):
        agreed = manifests.read(path if path.exists() else OLD / f"{name}.toml")
        assert agreed.digest == ACCEPTED[name]["hash"]
        for member, signature in ACCEPTED[name]["accepted"].items():
            agreed.member(member).verify(bytes.fromhex(signature), agreed.acceptance())
        write_text(tmp_path / "copy.toml", manifests.to_toml(agreed))


def test_a_second_version_of_before_follows_the_first() -> None:
    """The chain of hashes holds, and goes on with a version of this release."""
    first, second = (manifests.read(OLD / f"{name}.toml") for name in ("first", "second"))
    manifests.check_successor(first, second)
    third = manifests.successor(second, remove=["west"])
    manifests.check_successor(second, third)
    assert (third.release, third.minor) == (RELEASE, 1)


def test_terms_of_a_later_minor_version_are_hashed_and_ignored(
    later: Release, tmp_path: Path
) -> None:
    """A manifest with added terms has the same hash at the release that knows them and at this one,
    also once copied; this one says what it ignores."""
    write_text(tmp_path / manifests.FILE, (OLD / "first.toml").read_text())
    digest = later.evaluate(WRITE, tmp_path).strip()
    agreed = manifests.read(tmp_path)
    assert agreed.digest == digest != ACCEPTED["first"]["hash"]
    (note,) = manifests.notes(agreed)
    assert note.startswith("ignores contact, beds of north, which release")
    write_text(tmp_path / "copy.toml", manifests.to_toml(agreed))
    assert manifests.read(tmp_path / "copy.toml") == agreed
    second = manifests.successor(agreed, remove=["north"])
    assert manifests.notes(second)[0].startswith("ignores contact, which")


def test_manifests_of_before_keep_their_hash_at_a_later_release(later: Release) -> None:
    """Adding a term changes no hash of a manifest that does not state it."""
    program = (
        "import sys; from pathlib import Path; from proxyfl.node.members import manifest;"
        "print(manifest.read(Path(sys.argv[1])).digest)"
    )
    assert later.evaluate(program, OLD / "second.toml").strip() == ACCEPTED["second"]["hash"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('minor = 9\nrelease = "8.0"\n[graph]\nhops = 2\n', r"'hops'.*>=8\.0"),
        ('protocol = 2\nrelease = "9.3"\n', r"by release 9\.3 for protocol 2.*>=9\.3'"),
        ("protocol = 2\n", "protocol 2; release .* reads protocol 1.*other members use"),
        ("minor = 9\nwhen = 2027-01-01\n", "cannot keep"),
        ('hops = "2"\n', "Unknown key 'hops'"),
        ("minor = 1\nhops = 2\n", "Unknown key 'hops'"),
        ("minor = 0\n", "Leave out 'minor'"),
        ('minor = 1\nrelease = ""\n', "Leave out 'release'"),
    ],
)
def test_what_must_not_be_ignored_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """A term where none may be ignored, another major version, a kind of value that TOML alone has,
    a misspelt term of this release, a second spelling of a default."""
    path = tmp_path / manifests.FILE
    rest = (OLD / "by-hand.toml").read_text()
    head, _, tables = text.partition("[graph]")
    graph = f"[graph]{tables}" if tables else ""
    path.write_text(head + rest.replace("[[members]]", f"{graph}[[members]]", 1))
    with pytest.raises(ConfigError, match=message):
        manifests.read(path)


def old_store(path: Path) -> None:
    """The store of before."""
    connection = sqlite3.connect(path)
    connection.executescript((OLD / "store.sql").read_text())
    connection.close()


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every table of a store with its columns: name, type, default, key."""
    connection = sqlite3.connect(path)
    names = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
    columns = {}
    for (name,) in names:
        columns[name] = connection.execute(f"pragma table_info({name})").fetchall()
    connection.close()
    return columns


def test_a_store_of_before_is_migrated(tmp_path: Path) -> None:
    """Nothing of it is lost, and its tables are those of a new store."""
    old_store(tmp_path / "store.sqlite")
    Store(tmp_path / "new.sqlite").close()
    store = Store(tmp_path / "store.sqlite")
    books = Books(store, federation="heart/0123456789abcdef", me="north", version=1, rounds=12)
    assert books.stamp().numbers == (0, 2, "d93e424772f3839b", 12)
    here = books.position()
    assert (here.round, here.phase, here.weight, bytes(books.mass())) == (
        2,
        "released",
        0.5,
        b"kept 2",
    )
    assert [(part.sender, bytes(part.frame)) for part in books.parts()] == [("south", b"frame 2")]
    assert [share.round for share, _ in books.outbox("south")] == [2]
    assert books.peers.known("south").round == 3
    assert store.connection.execute("select count(*) from charges").fetchone() == (3,)
    books.start()
    books.conclude(books.parts(), b"mass 2")
    store.close()
    assert tables(tmp_path / "store.sqlite") == tables(tmp_path / "new.sqlite")


def test_a_store_of_a_newer_release_is_refused_by_name(tmp_path: Path) -> None:
    """The sentence says which release to install."""
    path = tmp_path / "store.sqlite"
    store = Store(path)
    Books(store, federation="f", me="a", version=1, rounds=3).start()
    with store.transaction() as run:
        run.execute("update site set release = '9.9'")
        run.execute(f"pragma user_version={NEWEST + 1}")
    store.close()
    with pytest.raises(RunError, match=rf"by release 9\.9 with version {NEWEST + 1}.*>=9\.9'"):
        Store(path)


def test_status_reads_a_store_that_was_not_migrated_yet(tmp_path: Path) -> None:
    """`node status` works between the upgrade and the next start, and changes nothing."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=12, template=quick())
    place = layout.sites[0]
    old_store(place / "store.sqlite")
    before = (place / "store.sqlite").read_bytes()
    shown = status.of_folder(*sites.read(place))
    assert [(peer["round"], peer["release"]) for peer in shown["peers"]] == [(3, "")]
    assert (place / "store.sqlite").read_bytes() == before


def test_fields_that_a_minor_version_adds_are_ignored(later: Release, tmp_path: Path) -> None:
    """The hello of a later release is understood here, and this one's there: an added field is
    ignored, a missing one has its default."""
    identity = Identity.create(tmp_path / "a", "a")
    mine = messages.pack(a_hello(), identity)
    program = (
        "import sys; from proxyfl.node.exchange import messages; from pathlib import Path\n"
        "from proxyfl.node.members.identity import Identity\n"
        "header, _ = messages.begin(bytes.fromhex(sys.argv[1]))\n"
        "assert header.mood == 'new' and header.round == 3\n"
        "import dataclasses\n"
        f"header = dataclasses.replace(header, mood='old', release='{NEXT}')\n"
        "print(messages.pack(header, Identity(Path(sys.argv[2]), 'a')).hex())"
    )
    theirs = bytes.fromhex(later.evaluate(program, mine.hex(), tmp_path / "a"))
    assert b'"mood":"old"' in theirs
    header, _ = messages.begin(theirs)
    messages.check_signature(theirs, identity.card(""))
    assert header == replace(a_hello(), release=NEXT)


def test_a_message_that_lacks_a_field_is_refused(tmp_path: Path) -> None:
    """Only what a minor version has added may be missing."""
    message = messages.pack(a_hello(), Identity.create(tmp_path / "a", "a"))
    for name in ("round", "release"):
        cut = message.replace(f'"{name}":'.encode(), f'"{name[:-1]}_":'.encode())
        with pytest.raises(MessageError, match=f"without '{name}'"):
            messages.begin(cut)


def test_a_federation_of_two_releases(later: Release, tmp_path: Path) -> None:
    """Two sites of this release and one of a later minor release, under a manifest with terms that
    only the later one knows: proxies equal the simulation's, bit for bit, weights add up, and
    each side's status shows the other's release."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=3, template=quick(patience=PATIENCE))
    later.evaluate(WRITE, tmp_path)
    layout = replace(layout, manifest=manifests.read(tmp_path))
    north, south, east = layout.sites
    for place in layout.sites:
        (place / roster.FOLDER / "0001.toml").unlink()
    for place in (north, south):
        roster.accept(place, Identity(place, place.name), layout.manifest)
    accept = (
        "import sys; from proxyfl.cli.main import main; sys.exit(main(['node', 'accept',"
        " sys.argv[1], sys.argv[2]]))"
    )
    assert layout.manifest.digest in later.evaluate(accept, east, tmp_path)
    with running(layout, only=["north", "south"]) as made:
        process = later.start(east, "--simulated-seed", str(SEED))
        try:
            made.join()
            assert process.wait(PATIENCE) == 0, (east / "node.log").read_text()
        finally:
            process.kill()
            process.wait()
    assert set(made.ended.values()) == {"finished"}
    expected = predicted(tmp_path)
    for place, outcome in zip(layout.sites, expected, strict=True):
        assert torch.equal(final_proxy(place), outcome.proxy), place.name
    assert total_weight(layout) == 3
    shown = status.of_folder(*sites.read(north))["peers"]
    assert [(peer["name"], peer["release"], peer["protocol"]) for peer in shown] == [
        ("south", RELEASE, "2.2"),
        ("east", NEXT, "2.3"),
    ]
    theirs = status.of_folder(*sites.read(east))["peers"]
    assert {peer["release"] for peer in theirs} == {RELEASE}


def test_another_major_version_is_refused_on_both_sides(stranger: Release, tmp_path: Path) -> None:
    """Both sites' logs say which releases met, and what to install."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick(patience=1.0))
    north, south = layout.sites

    def says_both(place: Path) -> bool:
        if not (place / auditlog.FILE).exists():
            return False
        reasons = [str(entry.get("reason")) for entry in auditlog.read(place / auditlog.FILE)]
        return any(
            RELEASE in reason and NEXT in reason and f"proxyfl[node]>={NEXT}" in reason
            for reason in reasons
        )

    with running(layout, only=["north"], hold=1):
        process = stranger.start(south, "--simulated-seed", str(SEED))
        try:
            wait_until(lambda: says_both(north) and says_both(south))
        finally:
            process.kill()
            process.wait()


def test_a_site_of_before_becomes_a_run_once_it_has_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until then the commands for runs say what to do; its ledger and status are read at once."""
    folder = tmp_path / "south"
    shutil.copytree(SITE, folder)
    for key in ("key.pem", "sealing-key.pem"):
        (folder / key).chmod(0o600)
    assert main(["node", "status", str(folder)]) == 0
    assert main(["certificate", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "round 4 of 4" in printed
    assert "Spent: epsilon 0.468" in printed
    assert main(["report", str(folder)]) == 2
    assert f"run: proxyfl node run {folder}" in capsys.readouterr().err
    assert main(["node", "run", str(folder)]) == 0
    for command in ("table", "report"):
        assert main([command, str(folder)]) == 0
    (run,) = proxyfl.load(folder)
    assert run.final("proxyfl", 0)["round"] == 3
    assert run.gain("proxyfl", 0) is not None
