"""What was acknowledged survives power loss: every prefix of the write log is a state that was."""

import contextlib
import hashlib
import os
import random
import sqlite3
from fractions import Fraction
from pathlib import Path

import pytest

from proxyfl.errors import RunError
from proxyfl.node.exchange import store as stores
from proxyfl.node.exchange.messages import Verdict
from proxyfl.node.exchange.protocol import Exchange
from proxyfl.node.exchange.store import LARGEST_IN_A_ROW, Books, Store


def history(folder: Path) -> list[tuple[int, int]]:
    """Do some rounds on a real file; return (length of the write log, clock) after each commit."""
    store = Store(folder / "store.sqlite")
    store.connection.execute("pragma wal_autocheckpoint=0")
    books = Books(store, federation="f", me="a", version=1, rounds=100)
    log = folder / "store.sqlite-wal"
    committed = []

    def note() -> None:
        committed.append((log.stat().st_size, books.stamp().clock))

    books.start()
    note()
    for round in range(12):
        weight = books.position().weight
        half = weight / 2
        frame = bytes([round]) * 3000
        books.release(kept=b"kept", frames={"b": frame}, weights={"a": half, "b": weight - half})
        note()
        share, _ = books.outbox("b")[0]
        books.settle("b", share.round, share.sha256, stored=bool(round % 2))
        note()
        books.conclude(books.parts(), b"mass")
        note()
    return committed


def test_every_prefix_of_the_write_log_is_a_committed_state(tmp_path: Path) -> None:
    """Cut off the log anywhere: the store opens at the last commit before the cut, and nothing that
    had returned to its caller by then is missing."""
    (tmp_path / "live").mkdir()
    committed = history(tmp_path / "live")
    data = (tmp_path / "live" / "store.sqlite").read_bytes()
    log = (tmp_path / "live" / "store.sqlite-wal").read_bytes()
    draw = random.Random(0)
    for number in range(150):
        at = draw.randrange(committed[0][0], len(log) + 1)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "store.sqlite").write_bytes(data)
        (folder / "store.sqlite-wal").write_bytes(log[:at])
        expected = max(clock for size, clock in committed if size <= at)
        store = Store(folder / "store.sqlite")
        books = Books(store, federation="f", me="a", version=1, rounds=100)
        assert store.connection.execute("pragma integrity_check").fetchone() == ("ok",)
        assert books.stamp().clock == expected, f"cut at {at}"
        assert books.position().weight <= Fraction(1)
        store.close()


def test_commits_are_synchronous_and_logged(tmp_path: Path) -> None:
    """WAL with synchronous=FULL: a commit that has returned is on the disk."""
    store = Store(tmp_path / "store.sqlite")
    assert store.connection.execute("pragma journal_mode").fetchone() == ("wal",)
    assert store.connection.execute("pragma synchronous").fetchone() == (2,)
    assert (tmp_path / "store.sqlite").stat().st_mode & 0o777 == 0o600


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Whatever is raised within it, none of its changes last, and the next one works."""
    store = Store(tmp_path / "store.sqlite")
    insert = "insert into charges (entry) values ('x')"
    with contextlib.suppress(KeyboardInterrupt), store.transaction() as run:
        run.execute(insert)
        raise KeyboardInterrupt
    with store.transaction() as run:
        run.execute(insert)
    assert store.connection.execute("select count(*) from charges").fetchone() == (1,)


def test_a_store_of_another_release_is_refused(tmp_path: Path) -> None:
    """Its version is named."""
    other = sqlite3.connect(tmp_path / "store.sqlite")
    other.execute("pragma user_version=99")
    other.close()
    with pytest.raises(RunError, match="version 99"):
        Store(tmp_path / "store.sqlite")


def test_a_store_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    """A full disk is a RunError that names the file; what was there stays."""
    store = Store(tmp_path / "store.sqlite")
    pages = store.connection.execute("pragma page_count").fetchone()[0]
    store.connection.execute(f"pragma max_page_count={pages}")
    insert = "insert into charges (entry) values (?)"

    def fill() -> None:
        with store.transaction() as run:
            run.execute(insert, ("x" * 100_000,))

    with pytest.raises(RunError, match="Make room"):
        fill()
    assert store.connection.execute("select count(*) from charges").fetchone() == (0,)


LARGE = b"\0file:" + bytes(LARGEST_IN_A_ROW)
"""A frame that lies in a file; it begins like a row that names one."""


def a_site(folder: Path, name: str) -> Books:
    """A site that has just begun."""
    books = Books(Store(folder / "store.sqlite"), federation="f", me=name, version=1, rounds=9)
    books.start()
    return books


def large_history(folder: Path) -> Books:
    """A site that has released a large frame."""
    books = a_site(folder, "a")
    half = Fraction(1, 2)
    books.release(kept=LARGE, frames={"b": LARGE + b"b"}, weights={"a": half, "b": half})
    return books


def files(folder: Path) -> list[Path]:
    """The frames that lie beside a store."""
    return sorted((folder / "frames").iterdir())


def test_a_large_frame_lies_in_a_file_of_its_own(tmp_path: Path) -> None:
    """It reads back equal, only its owner may read it, and it goes when its row does."""
    books = large_history(tmp_path)
    assert len(files(tmp_path)) == 2
    assert {path.stat().st_mode & 0o077 for path in [tmp_path / "frames"]} == {0}
    share, frame = books.outbox("b")[0]
    assert bytes(frame) == LARGE + b"b"
    assert bytes(books.mass()) == LARGE
    assert (tmp_path / "store.sqlite").stat().st_size < LARGEST_IN_A_ROW
    books.settle("b", share.round, share.sha256, stored=False)
    assert bytes(books.parts()[0].frame) == LARGE + b"b"
    books.conclude(books.parts(), b"small")
    assert files(tmp_path) == []
    assert books.mass() == b"small"


def test_a_transaction_that_fails_keeps_the_files_of_before(tmp_path: Path) -> None:
    """A crash between a frame's file and its row leaves a file that the next start removes, and
    takes none away that a row names."""
    books = large_history(tmp_path)
    named = files(tmp_path)
    with contextlib.suppress(KeyboardInterrupt), books.store.transaction() as run:
        run.execute("update site set mass = ?", (books.store.frames.put(LARGE),))
        run.execute("delete from outbox")
        books.store.forget()
        raise KeyboardInterrupt
    assert set(named) < set(files(tmp_path))
    books.start()
    assert files(tmp_path) == named
    assert bytes(books.outbox("b")[0][1]) == LARGE + b"b"


def test_a_frame_is_synced_before_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and its folder are on the disk before the transaction that names it commits."""
    done: list[str] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        done.append(Path(f"/proc/self/fd/{descriptor}").resolve().parent.name)

    monkeypatch.setattr(os, "fsync", watched)
    store = Store(tmp_path / "store.sqlite")
    store.connection.set_trace_callback(
        lambda text: done.append("commit") if text == "commit" else None
    )
    with store.transaction():
        store.frames.put(LARGE)
    assert done == ["frames", tmp_path.name, "commit"]


def test_a_missing_frame_says_what_to_do(tmp_path: Path) -> None:
    """Whoever restored a part of the folder is told to restore all of it."""
    books = large_history(tmp_path)
    for path in files(tmp_path):
        path.unlink()
    with pytest.raises(RunError, match="whole of the site's folder"):
        books.mass()


class ForgetfulDisk:
    """The site's files as a power cut would leave them: a frame whose file or name was not synced
    is lost, and what was removed is gone at once."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.synced: dict[str, bytes] = {}
        self.lasting: dict[str, bytes] = {}
        self.cuts = 0
        sync, unlink = os.fsync, Path.unlink

        def watched_sync(descriptor: int) -> None:
            sync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").resolve()
            if path.parent.name == "frames":
                self.synced[path.name] = path.read_bytes()
            if path.name == "frames":
                self.lasting = dict(self.synced)
            self.cut()

        def watched_unlink(path: Path, missing_ok: bool = False) -> None:
            unlink(path, missing_ok=missing_ok)
            self.synced.pop(path.name, None)
            self.lasting.pop(path.name, None)
            self.cut()

        monkeypatch.setattr(os, "fsync", watched_sync)
        monkeypatch.setattr(Path, "unlink", watched_unlink)

    def cut(self) -> None:
        """Were the power to go now, every frame that the store names would be there, whole."""
        self.cuts += 1
        left = self.folder.with_name(f"cut{self.cuts}")
        (left / "frames").mkdir(parents=True)
        for file in self.folder.glob("store.sqlite*"):
            if not file.name.endswith("-shm"):
                (left / file.name).write_bytes(file.read_bytes())
        for name, content in self.lasting.items():
            (left / "frames" / name).write_bytes(content)
        store = Store(left / "store.sqlite")
        read = store.frames.read
        run = store.connection.execute
        for held, sha256 in run("select frame, sha256 from outbox").fetchall():
            assert hashlib.sha256(read(held)).hexdigest() == sha256
        rows = run("select frame from inbox union all select mass from site")
        for (held,) in rows.fetchall():
            assert len(read(held)) in (0, len(LARGE), len(LARGE) + 1)
        store.close()


def test_a_disk_that_forgets_keeps_what_the_store_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sites exchange large frames; after every sync and every removal the power goes at both,
    and each store still finds, whole, all that it names."""
    disks = []
    sites = []
    for name in ("a", "b"):
        (tmp_path / name / "live").mkdir(parents=True)
        sites.append(a_site(tmp_path / name / "live", name))
    for name in ("a", "b"):
        disks.append(ForgetfulDisk(tmp_path / name / "live", monkeypatch))
    a, b = sites
    for round in range(3):
        half = a.position().weight / 2
        a.release(kept=LARGE, frames={"b": LARGE + b"b"}, weights={"a": half, "b": half})
        share, frame = a.outbox("b")[0]
        taker = Exchange(b, lambda _share, _frame: "")
        pieces = [frame[:70_000], frame[70_000:]]
        with b.store.frames.receiving(pieces, share.size) as arrived:
            assert arrived.sha256 == share.sha256
            verdict = taker.handle(share, arrived.frame, time=0)
        assert isinstance(verdict, Verdict)
        a.settle("b", share.round, share.sha256, stored=round != 1)
        a.conclude(a.parts(), LARGE)
        b.conclude(b.parts(), LARGE, next_round=round + 1)
    assert min(disk.cuts for disk in disks) > 20
    a.start()
    b.start()
    assert len(files(tmp_path / "a" / "live")) == 1
    assert len(files(tmp_path / "b" / "live")) == 1


def test_a_store_that_another_program_locks_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup tool holds the lock for longer than one attempt: the change waits, is told how long,
    and is made when the tool lets go."""
    monkeypatch.setattr(stores, "_ATTEMPT_SECONDS", 0.02)
    told: list[float] = []
    tool = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)

    def on_locked(seconds: float) -> None:
        told.append(seconds)
        if len(told) == 3:
            tool.execute("rollback")

    store = Store(tmp_path / "store.sqlite", on_locked=on_locked)
    tool.execute("begin immediate")
    with store.transaction() as run:
        run.execute("insert into written_off values ('a', 1, '1/2')")
    assert len(told) == 3
    assert told == sorted(told)
    assert tool.execute("select count(*) from written_off").fetchone() == (1,)
    tool.close()
    store.close()


def test_a_store_that_stays_locked_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait has an end; the error names the file and what to do, for changes and at the start.
    What was told of the wait can end it sooner."""
    monkeypatch.setattr(stores, "_ATTEMPT_SECONDS", 0.02)
    monkeypatch.setattr(stores, "LOCKED_SECONDS", 0.1)
    store = Store(tmp_path / "store.sqlite")
    tool = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
    tool.execute("begin immediate")
    with (
        pytest.raises(RunError, match=r"locked the store .*store\.sqlite.*start the site again"),
        store.transaction(),
    ):
        raise AssertionError("unreachable")
    tool.execute("rollback")
    with store.transaction():
        pass
    store.close()
    tool.close()
    # in the old journal mode a lock keeps readers out, too
    tool = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
    tool.execute("pragma journal_mode=delete")
    tool.execute("begin exclusive")
    with pytest.raises(RunError, match="locked the store"):
        Store(tmp_path / "store.sqlite")

    def give_up(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stores, "LOCKED_SECONDS", 3600.0)
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path / "store.sqlite", on_locked=give_up)
    tool.close()


def test_a_request_to_stop_is_for_the_run_that_it_names(tmp_path: Path) -> None:
    """No run: nothing is left. A request that the run did not live to see stops no later one."""
    assert not stores.request_stop(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with stores.hold_folder(tmp_path) as tag:
        assert stores.is_running(tmp_path)
        assert not stores.is_stop_requested(tmp_path, tag)
        assert stores.request_stop(tmp_path)
        assert stores.is_stop_requested(tmp_path, tag)
    assert not stores.is_running(tmp_path)
    with stores.hold_folder(tmp_path) as another:
        assert another != tag
        assert not stores.is_stop_requested(tmp_path, another)
