"""Backups of running sites, and what comes of them."""

import shutil
import sqlite3
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from proxyfl.errors import RunError
from proxyfl.node import assembly, keeping
from proxyfl.node.backup import RESTORED_FILE, backup, restore
from proxyfl.node.exchange import auditlog
from proxyfl.node.exchange.protocol import RestoredError
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.store import Books, Store
from proxyfl.node.members import site as sites
from proxyfl.node.observe import status
from proxyfl.privacy.ledger import Ledger
from tests.node.federations import Running, quick, running, total_weight, trial
from tests.waiting import wait_until

STEPS = 2


def check_whole(place: Path) -> int:
    """See that a site's folder is of one instant; return the round that it is in."""
    store = Store(place / STORE_FILE)
    try:
        assert store.connection.execute("pragma integrity_check").fetchone() == ("ok",)
        round, learner = store.connection.execute("select round, learner from site").fetchone()
        if learner:
            assert (place / keeping.FOLDER / learner).is_file()
        # Every charge that the store has seen is in the ledger.
        books = Books(store, federation="", me="", version=1, rounds=1)
        keeping.check_ledger(books.charges(), Ledger.read(place / assembly.LEDGER_FILE))
    finally:
        store.close()
    assert auditlog.verify(place / auditlog.FILE) is None
    assert not status.metrics_log(place).faults
    return int(round)


@pytest.mark.filterwarnings("ignore::proxyfl.privacy.accounting.AccountingWarning")
def test_a_backup_of_a_running_site_is_of_one_instant(tmp_path: Path) -> None:
    """Taken again and again while rounds go on, each copy is whole, its ledger no older than its
    store, and the site finishes undisturbed."""
    layout = trial.lay_out(tmp_path / "sites", sites=2, rounds=25, template=quick())
    north = layout.sites[0]
    settings, folder = sites.read(north)
    rounds = []
    with running(layout) as made:
        wait_until(lambda: status.rows(north))
        number = 0
        while made.threads["north"].is_alive():
            file = tmp_path / f"{number}.tar"
            backup(settings, folder, file)
            restored = tmp_path / f"{number}"
            restore(file, restored)
            rounds.append(check_whole(restored))
            number += 1
        made.join()
    assert set(made.ended.values()) == {"finished"}
    assert rounds == sorted(rounds)
    assert len(set(rounds)) > 1
    assert not (folder / ".backup").exists()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A site's folder after some rounds."""
    layout = trial.lay_out(tmp_path / "sites", sites=2, rounds=2, template=quick())
    with running(layout) as made:
        made.join()
    return layout.sites[0]


def test_a_backup_has_all_but_the_records_and_is_its_owners_alone(
    stopped: Path, tmp_path: Path
) -> None:
    """Keys, settings, manifests, ledger, logs, models: yes. Records, locks, scratch files: no."""
    file = tmp_path / "north.tar"
    (stopped / "leave.request").touch()
    contents = backup(*sites.read(stopped), file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    names = set(contents.files)
    assert {
        "key.pem",
        "sealing-key.pem",
        "identity.pem",
        "tls.pem",
        "site.toml",
        "store.sqlite",
        "ledger.jsonl",
        "metrics.jsonl",
        "audit.jsonl",
        "manifests/0001.toml",
        "manifests/0001.signature",
        "state/round-000001.safetensors",
        "leave.request",
    } <= names
    assert not names & {"data.npz", "node.lock", "store.sqlite-wal", "store.sqlite-shm"}
    restore(file, tmp_path / "again")
    for path in (tmp_path / "again").rglob("*"):
        assert path.name == RESTORED_FILE or not path.stat().st_mode & 0o077, path
    for name in names - {"store.sqlite"}:
        assert (tmp_path / "again" / name).read_bytes() == (stopped / name).read_bytes(), name
    rows = []
    for place in (stopped, tmp_path / "again"):
        store = sqlite3.connect(place / "store.sqlite")
        rows.append(list(store.iterdump()))
        store.close()
    assert rows[0] == rows[1]


def test_large_frames_are_in_the_backup(tmp_path: Path) -> None:
    """Frames that lie as files beside the store are those that the store names, and no others."""
    layout = trial.lay_out(tmp_path / "sites", sites=2, rounds=1, template=quick())
    north = layout.sites[0]
    settings, folder = sites.read(north)
    store = Store(folder / STORE_FILE)
    with store.transaction() as run:
        held = store.frames.put(b"x" * 100_000)
        run.execute("insert into inbox values ('south', 0, 1, '', '1/2', ?)", (held,))
    (folder / "frames" / "stray").write_bytes(b"y")
    contents = backup(settings, folder, tmp_path / "north.tar")
    store.close()
    named = [name for name in contents.files if name.startswith("frames/")]
    assert len(named) == 1
    restore(tmp_path / "north.tar", tmp_path / "again")
    assert (tmp_path / "again" / named[0]).stat().st_size == 100_000


def test_a_restore_overwrites_nothing(stopped: Path, tmp_path: Path) -> None:
    """A folder with anything in it is refused, and stays as it is."""
    file = tmp_path / "north.tar"
    backup(*sites.read(stopped), file)
    before = sorted(stopped.rglob("*"))
    with pytest.raises(RunError, match="overwrites nothing"):
        restore(file, stopped)
    assert sorted(stopped.rglob("*")) == before
    with pytest.raises(RunError, match="exists already"):
        backup(*sites.read(stopped), file)
    (tmp_path / "empty").mkdir()
    restore(file, tmp_path / "empty")
    assert (tmp_path / "empty" / RESTORED_FILE).exists()


def test_an_empty_folder_is_filled_as_it_is(stopped: Path, tmp_path: Path) -> None:
    """It may be a mounted disk or a volume, which nothing can be put in the place of; a damaged
    backup leaves it empty."""
    file = tmp_path / "north.tar"
    backup(*sites.read(stopped), file)
    volume = tmp_path / "volume"
    volume.mkdir()
    before = volume.stat().st_ino
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(RunError):
        restore(file, volume)
    assert list(volume.iterdir()) == []
    file.write_bytes(data)
    restore(file, volume)
    assert volume.stat().st_ino == before
    assert stat.S_IMODE(volume.stat().st_mode) == 0o700
    shutil.copy(stopped / "data.npz", volume)
    check_whole(volume)
    assert {path.name for path in volume.iterdir()} >= {RESTORED_FILE, sites.FILE, "key.pem"}


def test_a_damaged_backup_restores_nothing(stopped: Path, tmp_path: Path) -> None:
    """A flipped byte anywhere, or a lost end, is found; no folder is left behind."""
    file = tmp_path / "north.tar"
    backup(*sites.read(stopped), file)
    data = file.read_bytes()
    cuts = [data[: len(data) * part // 7] for part in range(7)]
    flips = []
    for at in range(600, len(data), len(data) // 40):
        flips.append(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for content in [*cuts, *flips, b"", b"x" * 5000]:
        file.write_bytes(content)
        try:
            restore(file, tmp_path / "again")
        except RunError:
            assert sorted(path.name for path in tmp_path.iterdir()) == ["north.tar", "sites"]
        else:
            # Padding and times are no part of any file.
            original = tmp_path / "original"
            file.write_bytes(data)
            restore(file, original)
            for path in original.rglob("*.*"):
                if path.name != RESTORED_FILE and path.is_file():
                    twin = tmp_path / "again" / path.relative_to(original)
                    assert twin.read_bytes() == path.read_bytes()
            shutil.rmtree(original)
            shutil.rmtree(tmp_path / "again")


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../outside"])
def test_a_backup_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """Nothing is written outside of the new folder."""
    file = tmp_path / "evil.tar"
    with tarfile.open(file, "w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(RunError, match="which no backup does"):
        restore(file, tmp_path / "site")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.tar"]


def test_a_site_that_never_ran_can_be_backed_up(tmp_path: Path) -> None:
    """Its keys are what matters then."""
    layout = trial.lay_out(tmp_path / "sites", sites=2, rounds=1, template=quick())
    contents = backup(*sites.read(layout.sites[0]), tmp_path / "north.tar")
    assert "key.pem" in contents.files
    assert contents.round == 0


def run_until(places: Sequence[Path], rows: int) -> None:
    """Run sites until the first has done so many rounds in all, then stop all of them."""
    made = Running()
    for place in places:
        made.start(place)
    wait_until(lambda: len(status.rows(places[0])) >= rows)
    for node in made.nodes.values():
        node.stopping.set()
    made.join()
    assert set(made.ended.values()) == {"stopped"}


def test_a_site_that_was_moved_goes_on_where_it_was(tmp_path: Path) -> None:
    """Stopped, backed up, restored elsewhere: its peers have seen no more, it says so, and all
    finish with weights exact."""
    layout = trial.lay_out(tmp_path / "sites", sites=3, rounds=30, template=quick())
    run_until(layout.sites, 2)
    north = layout.sites[0]
    backup(*sites.read(north), tmp_path / "north.tar")
    shutil.move(north, tmp_path / "old")
    restore(tmp_path / "north.tar", north)
    shutil.copy(tmp_path / "old" / "data.npz", north)
    again = Running()
    for place in layout.sites:
        again.start(place)
    again.join()
    assert set(again.ended.values()) == {"finished"}
    assert total_weight(layout) == 3
    assert not (north / RESTORED_FILE).exists()
    events = [entry["event"] for entry in auditlog.read(north / auditlog.FILE)]
    assert events.index("restored") > events.index("stopped")
    assert Ledger.read(north / assembly.LEDGER_FILE).steps == 30 * STEPS


def test_an_old_backup_trains_nothing_before_every_peer_was_asked(tmp_path: Path) -> None:
    """Two of three sites go on after the backup. The restored site waits while the one that has
    seen more is away, trains nothing, and is stopped by it when it comes back."""
    layout = trial.lay_out(tmp_path / "sites", sites=3, rounds=60, template=quick(patience=0.5))
    north, south, east = layout.sites
    run_until(layout.sites, 2)
    backup(*sites.read(north), tmp_path / "north.tar")
    run_until([north, south], len(status.rows(north)) + 3)
    shutil.move(north, tmp_path / "lost")
    restore(tmp_path / "north.tar", north)
    shutil.copy(tmp_path / "lost" / "data.npz", north)
    charged = Ledger.read(north / assembly.LEDGER_FILE).steps
    last = Running()
    try:
        last.start(north)
        last.start(east)
        node = last.nodes["north"]
        wait_until(lambda: node.exchange.is_admitted("east"))
        wait_until(lambda: node.reasons.of("waiting") is not None)
        reason = node.reasons.of("waiting")
        assert reason is not None
        assert reason.code == "restored"
        assert "south" in reason.text
        assert Ledger.read(north / assembly.LEDGER_FILE).steps == charged
        last.start(south)
        wait_until(lambda: "north" in last.ended)
        assert isinstance(last.ended["north"], RestoredError)
        assert "rejoin" in str(last.ended["north"])
        assert Ledger.read(north / assembly.LEDGER_FILE).steps == charged
    finally:
        for node in last.nodes.values():
            node.stopping.set()
            node.exchange.notify()
        last.join()
