"""What was acknowledged survives power loss: every prefix of the write log is a state that was."""

import contextlib
import random
import sqlite3
from fractions import Fraction
from pathlib import Path

import pytest

from proxyfl.errors import RunError
from proxyfl.node.exchange.books import Books
from proxyfl.node.exchange.store import Store


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
        books.release(
            kept=b"kept",
            frames={"b": frame},
            weights={"a": half, "b": weight - half},
        )
        note()
        share, _ = books.unsettled("b")[0]
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
        assert store.connection.execute("pragma integrity_check").fetchone() == (
            "ok",
        )
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
    assert store.connection.execute("select count(*) from charges").fetchone() == (
        1,
    )


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
    assert store.connection.execute("select count(*) from charges").fetchone() == (
        0,
    )
