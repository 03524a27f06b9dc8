"""A site's durable state: mass, charges, outbox, inbox, verdicts; each change is a transaction.

    Books    what the state means: each change of it is one method and one transaction
    Store    one SQLite file, one connection, one lock
    Frames   large frames, as files that a row names

SQLite runs in WAL mode with ``synchronous=FULL``: when ``transaction`` ends without an error, its
changes are on the disk together; when the program or the machine stops before, none of them are.
There is one connection, used under one lock. Where another program (a backup tool) has locked the
file, a change waits for up to ``LOCKED_SECONDS``, and ``on_locked`` is told.

SQLite writes a large blob to its log and once more to its file; a file is written once, while its
frame arrives, and read by a map, so that no frame is in memory as a whole.

A store of an older release is brought up to date when it is opened, and a new one goes through the
same steps (``_STEPS``), so that both have the same tables. A store of a newer release is refused.

Guarantees:
    * a crash falls between two changes and never within one;
    * weights are exact numbers, and no change creates or loses any: a release whose parts do not
      add up is refused, an entry is settled once;
    * whatever a committed row names is on the disk, whole. A file is synced before the transaction
      that names it commits, and removed only after the transaction that forgets it has.
"""

import contextlib
import hashlib
import mmap
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from proxyfl import _lock
from proxyfl._command import command
from proxyfl._files import sync_folder
from proxyfl.errors import ConfigError, RunError, TransportError
from proxyfl.node.exchange.history import History, Loss, Peers, Sighting, Sightings, new_tag
from proxyfl.node.exchange.messages import (
    NONE_SEEN,
    Share,
    Stamp,
    State,
    parse_weight,
    spell_weight,
)
from proxyfl.node.members.versions import RELEASE, install_command

FRAMES_FOLDER = "frames"
LARGEST_IN_A_ROW = 1 << 16
MARK = b"\0file:"


class Mapped(mmap.mmap):
    """A file's content that knows its file; ``named`` once a row may name it."""

    path: Path
    named: bool


@dataclass(frozen=True)
class Arrived:
    """A frame that was received, and the SHA-256 of what was."""

    frame: bytes | memoryview
    sha256: str


class Frames:
    """The files of one store; without a folder, every frame is in its row."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._arriving: set[str] = set()

    def put(self, frame: bytes | memoryview) -> bytes | memoryview:
        """The value of the row for ``frame``. Call it within the transaction of that row.

        A frame that is in a file here already is named, not copied."""
        if self._folder is None or len(frame) <= LARGEST_IN_A_ROW:
            return frame
        mapped = frame.obj if isinstance(frame, memoryview) else None
        if isinstance(mapped, Mapped) and mapped.path.parent == self._folder:
            mapped.named = True
            return MARK + mapped.path.name.encode()
        name = secrets.token_hex(16)
        self._write(self._folder / name, [frame])
        return MARK + name.encode()

    @contextlib.contextmanager
    def receiving(self, pieces: Iterable[bytes | memoryview], size: int) -> Iterator[Arrived]:
        """The frame of ``size`` bytes that ``pieces`` bring; a large one is on the disk.

        TransportError if they bring more or less. A file that no ``put`` has named when the block
        ends is removed."""
        digest = hashlib.sha256()
        counted = _check_size(pieces, size, digest.update)
        if self._folder is None or size <= LARGEST_IN_A_ROW:
            yield Arrived(b"".join(counted), digest.hexdigest())
            return
        path = self._folder / secrets.token_hex(16)
        self._arriving.add(path.name)
        named = False
        try:
            self._write(path, counted)
            mapped = _map(path)
            try:
                yield Arrived(memoryview(mapped), digest.hexdigest())
            finally:
                named = mapped.named
        finally:
            self._arriving.discard(path.name)
            if not named:
                path.unlink(missing_ok=True)

    def read(self, held: bytes) -> bytes | memoryview:
        """The frame for which a row holds ``held``. A large one is mapped, not copied."""
        if not held.startswith(MARK):
            return held
        if self._folder is None:
            raise RunError("A store in memory names no files.")
        path = self._folder / file_name(held)
        try:
            return memoryview(_map(path))
        except (OSError, ValueError) as error:
            raise RunError(
                f"The store names {path}, which cannot be read: {error}. Bring back the whole of "
                "the site's folder from one backup."
            ) from error

    def sweep(self, named: Collection[str]) -> None:
        """Remove the files that are not among ``named`` and not about to be named."""
        if self._folder is None or not self._folder.exists():
            return
        # In this order: a name is noted in ``_arriving`` before its file is there to be listed.
        present = list(self._folder.iterdir())
        needed = {*named, *self._arriving}
        for path in present:
            if path.name not in needed and not path.is_dir():
                path.unlink(missing_ok=True)

    def _write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """A new file that is on the disk when this returns."""
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with path.open("xb", buffering=0) as file:
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            sync_folder(path.parent)
        except OSError as error:
            raise RunError(
                f"Cannot write a frame to {path.parent}: {error.strerror}. Make room on the disk, "
                "then start the site again."
            ) from error


def file_name(held: bytes) -> str:
    """The name of the file for which a row holds ``held``."""
    return held[len(MARK) :].decode()


def _check_size(
    pieces: Iterable[bytes | memoryview], size: int, look: Callable[[bytes | memoryview], None]
) -> Iterator[bytes | memoryview]:
    """The pieces, each shown to ``look``; TransportError unless they have ``size`` bytes."""
    count = 0
    for piece in pieces:
        count += len(piece)
        if count > size:
            break
        look(piece)
        yield piece
    if count != size:
        raise TransportError(
            f"Expected a body of {size} bytes, as the header says, got {count} or more."
        )


def _map(path: Path) -> Mapped:
    with path.open("rb") as file:
        mapped = Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.path = path
    mapped.named = False
    return mapped


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
        self.frames = Frames(None if path is None else path.parent / FRAMES_FOLDER)
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
            raise failure("open", path, error) from error

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
                    advice = (
                        "Nothing of this step was kept. Make room on the disk, then start the site "
                        "again."
                    )
                    raise failure("write", self.path, error, advice) from error
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
                    raise failure("write", self.path, error) from error
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
            self.frames.sweep(frames_in_use(self.connection))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A consistent view; within a transaction, the transaction's own."""
        with self._lock:
            try:
                yield self.connection
            except sqlite3.Error as error:
                if self._depth:
                    raise  # the transaction says what became of it
                raise failure("read", self.path, error) from error

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self.connection.close()


def frames_in_use(store: sqlite3.Connection) -> list[str]:
    """The names of the files that rows of an open store name."""
    rows = store.execute(_NAMED_FRAMES, (MARK,) * 4)
    return [file_name(held) for (held,) in rows]


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


_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def failure(what: str, path: Path | None, error: sqlite3.Error, advice: str = "") -> RunError:
    """The error of a store that SQLite cannot ``what``, with what to do about it."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
        again = command("node", "restore", "BACKUP", "NEW_FOLDER")
        advice = f"The file is damaged. Bring the site back from its last backup. Run: {again}"
    return RunError(f"Cannot {what} the store {path}: {error}. {advice}".strip())


def _is_lock(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[str]:
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
    """True if a program runs the site in ``folder`` now."""
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
    """True if somebody asked the run ``tag`` to stop."""
    try:
        return (folder / STOP_FILE).read_text() == tag
    except OSError:
        return False


HANDED_OVER = "handed over"
"""The note on the verdict on a share that a leaving member sent past the graph."""


@dataclass(frozen=True)
class Part:
    """A piece of mass that is about to be added. ``returned_by`` names who refused it, if so."""

    sender: str
    round: int
    version: int
    returned_by: str
    weight: Fraction
    frame: bytes | memoryview


@dataclass(frozen=True)
class Position:
    """A site's progress. In phase "ready" it holds all of its mass, in "released" what it kept."""

    round: int
    phase: str
    state: State
    weight: Fraction
    learner: str

    @property
    def released(self) -> int:
        """The first round that this site has not released."""
        return self.round if self.phase == "ready" else self.round + 1


class Books:
    """One site's standing, over its store. ``version`` is that of the manifest in force."""

    def __init__(
        self, store: Store, *, federation: str, me: str, version: int, rounds: int
    ) -> None:
        self.store = store
        self.federation = federation
        self.me = me
        self.version = version
        self.rounds = rounds
        self.peers = Peers(store)
        self.history = History(store)
        self.evidence = Sightings(store, "evidence")
        """Places in this site's history that peers have seen and this store does not know."""

    def start(self, *, round: int = 0, weight: Fraction = Fraction(1)) -> None:
        """Begin or continue: each start of the program has a number and a chapter of its own."""
        with self.store.transaction() as run:
            if run.execute("select 1 from site").fetchone() is None:
                run.execute(
                    "insert into site (one, federation, name, epoch, boot, tag, clock, round,"
                    " phase, state, weight, mass, learner, budget) values"
                    " (1, ?, ?, 0, 0, '', 0, ?, 'ready', 'active', ?, x'', '', '')",
                    (self.federation, self.me, round, spell_weight(weight)),
                )
            owner = run.execute("select federation, name from site").fetchone()
            if owner != (self.federation, self.me):
                raise TransportError(
                    f"The store belongs to {owner[1]!r} of {owner[0]!r}, not to {self.me!r} of "
                    f"{self.federation!r}. Use another folder."
                )
            self.history.adopt()
            run.execute("update site set boot = boot + 1, release = ?", (RELEASE,))
            self.history.turn()
            self.store.forget()

    def stamp(self) -> Stamp:
        """This site's stamp."""
        return self.history.stamp()

    def position(self) -> Position:
        """This site's progress."""
        with self.store.reading() as run:
            row = run.execute("select round, phase, state, weight, learner from site").fetchone()
        round, phase, state, weight, learner = row
        return Position(round, phase, state, parse_weight(weight), learner)

    def debt(self) -> Fraction:
        """The weight that this site owes for a lost copy of itself; see ``history``."""
        with self.store.reading() as run:
            (debt,) = run.execute("select debt from site").fetchone()
        return parse_weight(debt)

    def owe(self, weight: Fraction) -> None:
        """Add to what this site owes."""
        with self.store.transaction() as run:
            run.execute("update site set debt = ?", (spell_weight(self.debt() + weight),))

    def mass(self) -> bytes | memoryview:
        """The mass that this site holds; empty before its first round."""
        with self.store.reading() as run:
            (held,) = run.execute("select mass from site").fetchone()
            return self.store.frames.read(held)

    def blocked_peers(self) -> set[str]:
        """Peers that have an unsettled share or have left: they get nothing for now."""
        with self.store.reading() as run:
            waiting = run.execute("select distinct receiver from outbox").fetchall()
            names = {name for (name,) in waiting}
        return names | self.peers.gone()

    def release(
        self,
        *,
        kept: bytes,
        frames: Mapping[str, bytes],
        weights: Mapping[str, Fraction],
        learner: str = "",
        charges: Sequence[str] = (),
        defence: str = "",
    ) -> None:
        """Put the frames of the present round into the outbox, and hold on to ``kept``.

        ``defence`` is what the site's defence remembers (``mixing.Guard.state``).
        ``weights`` says how the site's weight is divide, what it keeps under its own name; the
        parts must add up to the whole, to the last bit."""
        with self.store.transaction() as run:
            here = self.position()
            if here.phase != "ready":
                raise TransportError(f"Round {here.round} was released already.")
            if sum(weights.values(), Fraction(0)) != here.weight:
                raise TransportError(
                    f"Round {here.round}: the parts {dict(weights)} do not add up to {here.weight}."
                )
            stamp = self.stamp()
            tag = new_tag()
            for receiver, frame in frames.items():
                sha256 = hashlib.sha256(frame).hexdigest()
                weight = spell_weight(weights[receiver])
                held = self.store.frames.put(frame)
                about = (receiver, here.round, self.version, weight, sha256, held)
                made = (stamp.epoch, stamp.boot, tag, stamp.clock + 1)
                meant_for = self.peers.known(receiver).stamp.tag or NONE_SEEN
                row = (*about, *made, meant_for)
                run.execute("insert into outbox values (?,?,?,?,?,?,?,?,?,?,?)", row)
            remaining = spell_weight(weights.get(self.me, Fraction(0)))
            run.execute(
                "update site set phase = 'released', weight = ?, mass = ?, learner = ?,"
                " defence = ?",
                (remaining, self.store.frames.put(kept), learner, defence),
            )
            self.history.turn(tag)
            self.store.forget()
            self._keep_charges(charges)

    def defence(self) -> str:
        """The memory of the site's defence; empty before the first release."""
        with self.store.reading() as run:
            row = run.execute("select defence from site").fetchone()
        return "" if row is None else str(row[0])

    def sums(self) -> tuple[str, bytes | memoryview] | None:
        """The record of masked sums and the proxy, as ``save_sums`` wrote them."""
        with self.store.reading() as run:
            row = run.execute("select record, proxy from sums").fetchone()
            return None if row is None else (row[0], self.store.frames.read(row[1]))

    def save_sums(
        self, record: str, *, proxy: bytes | None = None, charges: Sequence[str] | None = None
    ) -> None:
        """Write the record of masked sums; with ``proxy``, after a step; with ``charges``, before a
        vector leaves, so that no copy of this site can forget it unseen."""
        with self.store.transaction() as run:
            if proxy is not None:
                held = self.store.frames.put(proxy)
                run.execute("insert or replace into sums values (1, ?, ?)", (record, held))
                self.store.forget()
            else:
                run.execute("update sums set record = ?", (record,))
            if charges is not None:
                run.execute("update site set phase = 'released'")
                self.history.tick()
                self._keep_charges(charges)

    def advance(self, round: int, learner: str, charges: Sequence[str]) -> None:
        """Begin ``round`` after a round of masked sums."""
        with self.store.transaction() as run:
            run.execute("update site set phase = 'ready', round = ?, learner = ?", (round, learner))
            self.history.tick()
            self._keep_charges(charges)

    def lower_budget(self, budget: float | None) -> None:
        """Record the site's budget. ConfigError if it is above one that it had before."""
        with self.store.transaction() as run:
            (known,) = run.execute("select budget from site").fetchone()
            if known and (budget is None or budget > float(known)):
                raise ConfigError(
                    f"privacy.budget is {budget}, and this site began with {known}. A budget can "
                    "be lowered, never raised: set it back."
                )
            text = "" if budget is None else repr(budget)
            run.execute("update site set budget = ?", (text,))

    def charges(self) -> list[str]:
        """The ledger's charges as the store knows them, one line each."""
        with self.store.reading() as run:
            rows = run.execute("select entry from charges order by number").fetchall()
        return [entry for (entry,) in rows]

    def _keep_charges(self, charges: Sequence[str]) -> None:
        with self.store.transaction() as run:
            known = run.execute("select count(*) from charges").fetchone()[0]
            for entry in charges[known:]:
                run.execute("insert into charges (entry) values (?)", (entry,))

    def heard(self, round: int) -> set[str]:
        """The peers whose share for ``round`` has arrived."""
        with self.store.reading() as run:
            rows = run.execute("select sender from verdicts where round = ?", (round,)).fetchall()
        return {name for (name,) in rows}

    def handovers(self, sender: str) -> int:
        """The number of shares that ``sender`` has handed over here because it leaves."""
        with self.store.reading() as run:
            (count,) = run.execute(
                "select count(*) from verdicts where sender = ? and outcome = 'stored'"
                " and reason = ?",
                (sender, HANDED_OVER),
            ).fetchone()
        return int(count)

    def parts(self, *, every: bool = False) -> list[Part]:
        """The parts that have arrived for rounds up to the present; with ``every``, all."""
        last = self.rounds if every else self.position().round
        with self.store.reading() as run:
            rows = run.execute(
                "select sender, round, version, returned_by, weight, frame from inbox"
                " where round <= ? order by sender, round, returned_by",
                (last,),
            ).fetchall()
        parts = []
        for sender, round, version, returned_by, weight, frame in rows:
            content = self.store.frames.read(frame)
            part = Part(sender, round, version, returned_by, parse_weight(weight), content)
            parts.append(part)
        return parts

    def conclude(
        self,
        parts: Sequence[Part],
        mass: bytes,
        *,
        next_round: int | None = None,
        defence: str | None = None,
    ) -> None:
        """Add ``parts``, whose sum with what was kept is ``mass``, and begin the next round.

        What this site owes is paid from their weight. ``defence`` as in ``release``; None leaves
        what is on record."""
        with self.store.transaction() as run:
            here = self.position()
            received = Fraction(0)
            for part in parts:
                key = (part.sender, part.round, part.returned_by)
                gone = run.execute(
                    "delete from inbox where sender = ? and round = ? and returned_by = ?", key
                )
                if gone.rowcount != 1:
                    raise TransportError(f"The share {key} was added already.")
                received += part.weight
            owed = self.debt()
            paid = min(owed, received)
            following = here.round + 1 if next_round is None else next_round
            run.execute(
                "update site set phase = 'ready', weight = ?, debt = ?, mass = ?, round = ?",
                (
                    spell_weight(here.weight + received - paid),
                    spell_weight(owed - paid),
                    self.store.frames.put(mass),
                    following,
                ),
            )
            if defence is not None:
                run.execute("update site set defence = ?", (defence,))
            self.history.tick()
            self.store.forget()

    def skip_to(self, round: int) -> None:
        """Continue at ``round`` without the rounds before it."""
        with self.store.transaction() as run:
            run.execute(
                "update site set round = ? where round < ? and phase = 'ready'", (round, round)
            )
            self.history.tick()

    def set_state(self, state: State) -> None:
        """From "leaving" on, the site refuses whatever arrives; "left" is for good."""
        with self.store.transaction() as run:
            run.execute("update site set state = ?", (state,))
            self.history.tick()

    def sightings_to_answer(self, *, round: int | None = None) -> list[Sighting]:
        """What a new beginning has to answer for: the evidence, and that some copy has released all
        rounds before ``round``.

        Where the latter is all that is known, that copy may have parted at the very beginning."""
        sightings = [seen for _, seen in self.evidence.every()]
        furthest = max((seen.round for seen in sightings), default=0)
        if round is not None and round > furthest:
            witnessed = Sighting(Stamp(0, 0, new_tag(), 0), round)
            if sightings:
                last = max(sightings, key=lambda seen: seen.round)
                witnessed = replace(last, round=round)
            sightings.append(witnessed)
        return sightings

    def begin_again(self, sightings: Sequence[Sighting]) -> list[Loss]:
        """After a restore from a backup: continue without mass, in a new epoch, and answer for the
        copies of this site of which there are ``sightings``. Returns what each of them costs: put
        it on the ledger within the same transaction."""
        with self.store.transaction() as run:
            here = self.position()
            (epoch,) = run.execute("select epoch from site").fetchone()
            owed = self.debt() - here.weight
            for (weight,) in run.execute("select weight from inbox").fetchall():
                owed -= parse_weight(weight)
            losses = []
            paid = 0
            # A round that this copy has released is not released once more: a count of rounds that
            # goes back would hide the second release.
            round = here.released
            for seen in sightings:
                loss = self.history.answer_for(seen)
                losses.append(loss)
                owed += loss.weight
                paid += len(loss.rounds) + loss.paid
                epoch = max(epoch, seen.stamp.epoch)
                round = max(round, seen.round)
            run.execute("delete from outbox")
            run.execute("delete from inbox")
            self.evidence.forget()
            run.execute(
                "update site set epoch = ?, weight = '0/1', debt = ?, paid = paid + ?, mass = x'',"
                " phase = 'ready', state = 'active', round = ?",
                (epoch + 1, spell_weight(max(owed, Fraction(0))), paid, round),
            )
            self.history.turn()
            self.store.forget()
            return losses

    def write_off(self, names: Collection[str]) -> None:
        """Give up, on record, the shares for members that a new manifest has removed."""
        with self.store.transaction() as run:
            for name in names:
                run.execute(
                    "insert into written_off select receiver, round, weight from outbox"
                    " where receiver = ?",
                    (name,),
                )
                run.execute("delete from outbox where receiver = ?", (name,))
            self.store.forget()

    def outbox(self, peer: str) -> list[tuple[Share, bytes | memoryview]]:
        """The shares that ``peer`` has given no verdict on, oldest first."""
        with self.store.reading() as run:
            rows = run.execute(
                "select version, epoch, boot, tag, clock, round, weight, sha256, frame, meant_for"
                " from outbox where receiver = ? order by round",
                (peer,),
            ).fetchall()
        shares = []
        for version, epoch, boot, tag, clock, round, weight, sha256, held, meant_for in rows:
            frame = self.store.frames.read(held)
            stamp = Stamp(epoch, boot, tag, clock)
            start = (self.federation, version, self.me, peer, *stamp.numbers)
            share = Share(
                *start,
                round=round,
                weight=weight,
                size=len(frame),
                sha256=sha256,
                past=self.history.ends(before=tag),
                meant_for=meant_for,
            )
            shares.append((share, frame))
        return shares

    def owed_rounds(self, peer: str, *, most: int) -> tuple[int, ...]:
        """The first rounds whose shares ``peer`` has given no verdict on."""
        with self.store.reading() as run:
            rows = run.execute(
                "select round from outbox where receiver = ? order by round limit ?", (peer, most)
            ).fetchall()
        return tuple(round for (round,) in rows)

    def rounds_stored(self, sender: str, *, most: int) -> tuple[int, ...]:
        """The last rounds whose shares of ``sender`` were stored here, the latest first."""
        with self.store.reading() as run:
            rows = run.execute(
                "select round from verdicts where sender = ? and outcome = 'stored'"
                " order by round desc limit ?",
                (sender, most),
            ).fetchall()
        return tuple(round for (round,) in rows)

    def settlement(self) -> tuple[int, str]:
        """The claims that this site has paid for, and the weight that it owes, as it is sent."""
        with self.store.reading() as run:
            paid, debt = run.execute("select paid, debt from site").fetchone()
        return paid, debt

    def verdict_on(self, sender: str, round: int) -> tuple[str, str, str] | None:
        """The hash, outcome and reason of the share that came first; None if none has."""
        with self.store.reading() as run:
            row = run.execute(
                "select sha256, outcome, reason from verdicts where round = ? and sender = ?",
                (round, sender),
            ).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    def count_waiting(self, sender: str) -> int:
        """The number of shares of ``sender`` that wait to be added."""
        with self.store.reading() as run:
            (count,) = run.execute(
                "select count(*) from inbox where sender = ? and returned_by = ''", (sender,)
            ).fetchone()
        return int(count)

    def receiving(
        self, pieces: Iterable[bytes | memoryview], size: int
    ) -> AbstractContextManager[Arrived]:
        """The body of a message as it arrives; see ``Frames.receiving``."""
        return self.store.frames.receiving(pieces, size)

    def store_share(self, share: Share, frame: bytes | memoryview) -> None:
        """Put an arriving share into the inbox."""
        with self.store.transaction() as run:
            held = self.store.frames.put(frame)
            run.execute(
                "insert into inbox values (?, ?, ?, '', ?, ?)",
                (share.sender, share.round, share.version, share.weight, held),
            )
            if self.history.may_be_elsewhere(share.meant_for):
                self.owe(share.exact_weight)

    def store_verdict(self, share: Share, outcome: str, reason: str) -> None:
        """Put on record what became of an arriving share; it holds for good."""
        with self.store.transaction() as run:
            run.execute(
                "insert into verdicts values (?,?,?,?,?,?,?,?,?)",
                (
                    share.version,
                    share.round,
                    share.sender,
                    share.sha256,
                    outcome,
                    reason,
                    share.weight,
                    share.meant_for,
                    self.history.number(),
                ),
            )
            self.history.tick()

    def owed_to(self) -> set[str]:
        """Peers with unsettled shares."""
        with self.store.reading() as run:
            rows = run.execute("select distinct receiver from outbox").fetchall()
        return {name for (name,) in rows}

    def settle(self, receiver: str, round: int, sha256: str, *, stored: bool) -> bool:
        """Close an entry of the outbox: the receiver stored it, or it is this site's again.

        False, and nothing changes, if there is no such entry."""
        with self.store.transaction() as run:
            key = (receiver, round, sha256)
            if not stored:
                run.execute(
                    "insert into inbox select ?, round, version, receiver, weight, frame"
                    " from outbox where receiver = ? and round = ? and sha256 = ?",
                    (self.me, *key),
                )
            gone = run.execute(
                "delete from outbox where receiver = ? and round = ? and sha256 = ?", key
            )
            if not gone.rowcount:
                return False
            self.history.tick()
            self.store.forget()
            return True


def divide(weight: Fraction, shares: Mapping[str, float], last: str) -> dict[str, Fraction]:
    """``weight`` divided by ``shares``: each part rounded to a float, ``last`` gets the exact rest.

    The parts add up to ``weight`` without rounding, and each is at least 0."""
    parts: dict[str, Fraction] = {}
    rest = weight
    for name, share in shares.items():
        if name == last:
            continue
        part = min(Fraction(float(weight) * share), rest)
        parts[name] = part
        rest -= part
    parts[last] = rest
    return parts
