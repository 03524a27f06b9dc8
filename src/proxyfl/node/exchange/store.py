"""A site's durable state in one SQLite file: mass, charges, outbox, inbox, peers.

SQLite runs in WAL mode with ``synchronous=FULL``: when ``transaction`` ends without an error, its
changes are on the disk together; when the program or the machine stops before, none of them are.
There is one connection, used under one lock.

The tables hold names, rounds, exact weights as text and frames (``frames``: large ones lie as
files beside the store); what they mean is in ``protocol``.
"""

import contextlib
import fcntl
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from proxyfl.errors import RunError
from proxyfl.node.exchange import frames

FILE = "store.sqlite"
LOCK_FILE = "node.lock"
SCHEMA_VERSION = 2

_SCHEMA = """
create table site (
    one integer primary key check (one = 1),
    federation text not null,
    name text not null,
    epoch integer not null,
    boot integer not null,
    tag text not null,
    clock integer not null,
    round integer not null,
    phase text not null,
    state text not null,
    weight text not null,
    mass blob,
    learner text not null,
    budget text not null,
    since integer not null
);
create table outbox (
    receiver text not null,
    round integer not null,
    version integer not null,
    weight text not null,
    sha256 text not null,
    frame blob not null,
    epoch integer not null,
    boot integer not null,
    tag text not null,
    clock integer not null,
    primary key (receiver, round)
);
create table inbox (
    sender text not null,
    round integer not null,
    version integer not null,
    returned_by text not null,
    weight text not null,
    frame blob not null,
    primary key (sender, round, returned_by)
);
create table verdicts (
    version integer not null,
    round integer not null,
    sender text not null,
    sha256 text not null,
    outcome text not null,
    reason text not null,
    primary key (version, round, sender)
) without rowid;
create table peers (
    name text primary key,
    epoch integer not null default 0,
    boot integer not null default 0,
    tag text not null default '',
    clock integer not null default 0,
    round integer not null default 0,
    state text not null default 'active',
    accepted text not null default '',
    version integer not null default 0,
    before integer not null default 0
) without rowid;
create table written_off (
    receiver text not null,
    round integer not null,
    weight text not null
);
create table charges (
    number integer primary key,
    entry text not null
);
"""

_NAMED_FRAMES = """
select mass from site where substr(mass, 1, 6) = ?
union all select frame from outbox where substr(frame, 1, 6) = ?
union all select frame from inbox where substr(frame, 1, 6) = ?
"""

_STATEMENTS = [statement for statement in _SCHEMA.split(";") if statement.strip()]


class Store:
    """One site's durable state. Use ``transaction`` for every change."""

    def __init__(self, path: Path | None) -> None:
        """Open the file at ``path``, made if need be; None keeps everything in memory."""
        self.path = path
        self.frames = frames.Frames(
            None if path is None else path.parent / frames.FOLDER
        )
        self._lock = threading.RLock()
        self._depth = 0
        self._untidy = False
        try:
            self.connection = sqlite3.connect(
                ":memory:" if path is None else path,
                isolation_level=None,
                check_same_thread=False,
                timeout=10,
            )
            self._prepare()
        except sqlite3.Error as error:
            raise RunError(f"Cannot open the store {path}: {error}.") from error

    def _prepare(self) -> None:
        run = self.connection.execute
        if self.path is not None:
            self.path.chmod(0o600)
            run("pragma journal_mode=wal")
            run("pragma synchronous=full")
        found = run("pragma user_version").fetchone()[0]
        if found == 0:
            with self.transaction():
                for statement in _STATEMENTS:
                    run(statement)
                run(f"pragma user_version={SCHEMA_VERSION}")
        elif found != SCHEMA_VERSION:
            raise RunError(
                f"The store {self.path} has version {found}, this release reads {SCHEMA_VERSION}. "
                "Use the release that wrote it."
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Changes that last together or not at all. Blocks within one another become one."""
        with self._lock:
            outermost = self._depth == 0
            if outermost:
                self.connection.execute("begin immediate")
            self._depth += 1
            try:
                yield self.connection
                if outermost:
                    self.connection.execute("commit")
                    self._tidy()
            except BaseException as error:
                if outermost and self.connection.in_transaction:
                    self.connection.execute("rollback")
                if isinstance(error, sqlite3.Error):
                    raise RunError(
                        f"Cannot write the store {self.path}: {error}. Nothing of this step was "
                        "kept. Make room on the disk, then start the site again."
                    ) from error
                raise
            finally:
                self._depth -= 1

    def forget(self) -> None:
        """Remove the frames that no row names, once the present transaction has ended."""
        self._untidy = True

    def _tidy(self) -> None:
        if self._untidy:
            self._untidy = False
            named = self.connection.execute(_NAMED_FRAMES, (frames.MARK,) * 3)
            self.frames.sweep([held for (held,) in named])

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A consistent view; within a transaction, the transaction's own."""
        with self._lock:
            yield self.connection

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self.connection.close()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One program at a time works in a site's folder."""
    with (folder / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"Another program runs the site in {folder}. Stop it first: proxyfl node stop."
            ) from None
        yield


def is_running(folder: Path) -> bool:
    """Whether a program runs the site in ``folder`` now."""
    try:
        with locked(folder):
            return False
    except RunError:
        return True
