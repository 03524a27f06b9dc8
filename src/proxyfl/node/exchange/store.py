"""A site's durable state in one SQLite file: mass, charges, outbox, inbox, peers.

SQLite runs in WAL mode with ``synchronous=FULL``: when ``transaction`` ends without an error, its
changes are on the disk together; when the program or the machine stops before, none of them are.
There is one connection, used under one lock. Where another program (a backup tool) has locked the
file, a change waits for up to ``LOCKED_SECONDS``, and ``on_locked`` is told.

The tables hold names, rounds, exact weights as text and frames (``frames``: large ones lie as
files beside the store); what they mean is in ``protocol``.

A store of an older release is brought up to date when it is opened, and a new one goes through the
same steps (``_STEPS``), so that both have the same tables. A store of a newer release is refused.
"""

import contextlib
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from proxyfl import _lock
from proxyfl._command import command
from proxyfl.errors import RunError
from proxyfl.node.exchange import frames
from proxyfl.node.members.versions import RELEASE, install_command

FILE = "store.sqlite"
LOCK_FILE = "node.lock"
STOP_FILE = "stop.request"
LEAVE_FILE = "leave.request"

LOCKED_SECONDS = 300.0
"""The longest wait for another program that has locked the store."""

_ATTEMPT_SECONDS = 1.0
"""After so long, a wait for the lock is told and tried again."""

_STEPS = {
    2: """
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
""",
    3: """
alter table site add column release text not null default '';
alter table peers add column release text not null default '';
alter table peers add column protocol text not null default '';
""",
    4: """
create table chapters (
    number integer primary key,
    tag text not null unique,
    epoch integer not null,
    boot integer not null,
    clock integer not null,
    round integer not null,
    held text not null,
    paid integer not null,
    lost integer not null
);
create table sightings (
    peer text not null,
    epoch integer not null,
    boot integer not null,
    tag text not null,
    clock integer not null,
    round integer not null,
    past text not null,
    paid integer not null,
    debt text not null,
    primary key (peer, tag)
);
create table evidence (
    peer text not null,
    epoch integer not null,
    boot integer not null,
    tag text not null,
    clock integer not null,
    round integer not null,
    past text not null,
    paid integer not null,
    debt text not null,
    primary key (peer, tag)
);
alter table site drop column since;
alter table site add column paid integer not null default 0;
alter table site add column debt text not null default '0/1';
alter table peers drop column before;
alter table peers add column past text not null default '';
alter table peers add column paid integer not null default 0;
alter table peers add column debt text not null default '0/1';
""",
    5: """
alter table outbox add column meant_for text not null default '';
alter table verdicts add column weight text not null default '0/1';
alter table verdicts add column meant_for text not null default '';
alter table verdicts add column chapter integer not null default 0;
alter table chapters add column parted integer not null default 0;
""",
    6: """
alter table peers add column proof text not null default '';
alter table sightings add column proof text not null default '';
alter table evidence add column proof text not null default '';
""",
    7: """
alter table chapters add column tip integer not null default 1;
""",
    8: """
alter table site add column defence text not null default '';
""",
    9: """
create table sums (
    one integer primary key check (one = 1),
    record text not null,
    proxy blob not null
);
""",
}
"""Version of the tables -> the statements that lead there from the version before. A version that
was released is never changed: add the next one."""

NEWEST = max(_STEPS)

_NAMED_FRAMES = """
select mass from site where substr(mass, 1, 6) = ?
union all select frame from outbox where substr(frame, 1, 6) = ?
union all select frame from inbox where substr(frame, 1, 6) = ?
union all select proxy from sums where substr(proxy, 1, 6) = ?
"""


class Store:
    """One site's durable state. Use ``transaction`` for every change."""

    def __init__(
        self, path: Path | None, *, on_locked: Callable[[float], None] = lambda seconds: None
    ) -> None:
        """Open the file at ``path``, made if need be; None keeps everything in memory.

        ``on_locked`` is told, about once a second, for how long another program has locked the
        store. What it raises ends the wait."""
        self.path = path
        self.frames = frames.Frames(None if path is None else path.parent / frames.FOLDER)
        self._on_locked = on_locked
        self._lock = threading.RLock()
        self._depth = 0
        self._untidy = False
        try:
            self.connection = sqlite3.connect(
                ":memory:" if path is None else path,
                isolation_level=None,
                check_same_thread=False,
                timeout=LOCKED_SECONDS,
            )
            self._prepare()
        except sqlite3.Error as error:
            raise RunError(f"Cannot open the store {path}: {error}.") from error

    def _prepare(self) -> None:
        run = self.connection.execute
        if self.path is not None:
            self.path.chmod(0o600)
            self._await_lock("pragma journal_mode=wal")
            run("pragma synchronous=full")
        version = run("pragma user_version").fetchone()[0]
        if version not in (0, *_STEPS):
            raise self._other_version(version)
        if version < NEWEST:
            self._bring_up_to_date(version)

    def _bring_up_to_date(self, version: int) -> None:
        """Take the tables from ``version`` to the newest, all the way or not at all."""
        with self.transaction() as run:
            for step, script in _STEPS.items():
                if step > version:
                    for statement in script.split(";"):
                        run.execute(statement)
            run.execute(f"pragma user_version={NEWEST}")

    def _other_version(self, version: int) -> RunError:
        release = ""
        with contextlib.suppress(sqlite3.Error, TypeError):
            (release,) = self.connection.execute("select release from site").fetchone()
        by = f" by release {release}" if release else ""
        return RunError(
            f"The store {self.path} was written{by} with version {version} of its tables; release "
            f"{RELEASE} reads up to {NEWEST}. Use the release that wrote it. "
            f"Run: {install_command(release)}"
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Changes that last together or not at all. Blocks within one another become one."""
        with self._lock:
            outermost = self._depth == 0
            if outermost:
                self._await_lock("begin immediate")
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

    def _await_lock(self, statement: str) -> None:
        """Run a statement that needs the store's lock, as soon as no other program holds it."""
        started = time.monotonic()
        while True:
            try:
                self._set_patience(_ATTEMPT_SECONDS)
                self.connection.execute(statement)
                self._set_patience(LOCKED_SECONDS)
                return
            except sqlite3.Error as error:
                waited = time.monotonic() - started
                if not _is_lock(error):
                    raise RunError(f"Cannot write the store {self.path}: {error}.") from error
                if waited >= LOCKED_SECONDS:
                    raise RunError(self._describe_lock(waited)) from error
                self._on_locked(waited)

    def _set_patience(self, seconds: float) -> None:
        self.connection.execute(f"pragma busy_timeout = {1000 * seconds:.0f}")

    def _describe_lock(self, waited: float) -> str:
        return (
            f"Another program has locked the store {self.path} for {waited:.0f} s, perhaps a "
            "backup tool. Nothing of this step was kept. Let that program end, then start the "
            "site again; `fuser` and `lsof` name the program."
        )

    def forget(self) -> None:
        """Remove the frames that no row names, once the present transaction has ended."""
        self._untidy = True

    def _tidy(self) -> None:
        if self._untidy:
            self._untidy = False
            self.frames.sweep(named_frames(self.connection))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A consistent view; within a transaction, the transaction's own."""
        with self._lock:
            try:
                yield self.connection
            except sqlite3.Error as error:
                if self._depth:
                    raise  # the transaction says what became of it
                raise RunError(f"Cannot read the store {self.path}: {error}.") from error

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self.connection.close()


def named_frames(store: sqlite3.Connection) -> list[str]:
    """The names of the files that rows of an open store name."""
    rows = store.execute(_NAMED_FRAMES, (frames.MARK,) * 4)
    return [frames.file_name(held) for (held,) in rows]


@contextlib.contextmanager
def hold_writers(path: Path, seconds: float) -> Iterator[sqlite3.Connection]:
    """Open a store that stays as it is within the block: readers go on, and the site waits to
    write. sqlite3.Error if another program holds its lock for ``seconds``."""
    with (
        contextlib.closing(sqlite3.connect(path, timeout=seconds, isolation_level=None)) as lock,
        contextlib.closing(sqlite3.connect(path, timeout=seconds)) as store,
    ):
        lock.execute("begin immediate")
        yield store


def progress(store: sqlite3.Connection) -> tuple[int, str]:
    """The round of an open store and the name of its client's state; (0, "") before the first."""
    row = store.execute("select round, learner from site").fetchone()
    return (0, "") if row is None else (int(row[0]), row[1])


def _is_lock(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[str]:
    """One program at a time works in a site's folder. Gives this run's tag, which the lock file
    holds as long as the run lasts."""
    tag = secrets.token_hex(8)
    refusal = (
        f"Another program runs the site in {folder}. Stop it first: "
        f"{command('node', 'stop', folder)}"
    )
    with _lock.hold(folder / LOCK_FILE, refusal, note=tag):
        yield tag


def running_tag(folder: Path) -> str | None:
    """The tag of the program that runs the site in ``folder`` now; None if none does."""
    return _lock.read_note(folder / LOCK_FILE)


def is_running(folder: Path) -> bool:
    """Whether a program runs the site in ``folder`` now."""
    return running_tag(folder) is not None


def request_stop(folder: Path) -> bool:
    """Ask the program that runs the site to stop; False, and nothing is left, if none does.

    The request names that run, so no later one takes it for its own."""
    tag = running_tag(folder)
    if tag is None:
        return False
    (folder / STOP_FILE).write_text(tag)
    return True


def is_stop_requested(folder: Path, tag: str) -> bool:
    """Whether somebody asked the run ``tag`` to stop."""
    try:
        return (folder / STOP_FILE).read_text() == tag
    except OSError:
        return False
