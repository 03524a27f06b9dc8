"""A site's folder as one file, also while the site runs, and back.

Guarantees of ``backup``:
    * the copy is of one instant: the store, the frames and the state that it names are taken
      while the store is locked against changes, which takes milliseconds;
    * keys and certificates are of one set, also if the site changes its key meanwhile;
    * the ledger is copied after the store, so it has every charge that the store has seen;
    * the file is whole or not there, holds the SHA-256 of everything in it, and only its owner
      can read it: the keys and the private model are in it;
    * the records that the settings name are not in it, nor an account (``privacy.account``)
      outside of the folder. Whatever else somebody keeps in the folder is.

Guarantees of ``restore``:
    * nothing is overwritten, and a damaged file restores nothing. An empty folder is filled as it
      is, so it may be a mounted disk or a volume; its settings come last, and without them no
      command takes it for a site;
    * the restored site asks all of its peers before it trains or sends anything: to run from an
      old copy would send the same mass twice (``supervisor``).
"""

import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from proxyfl import _lock
from proxyfl._files import read_json, sync_folder, whole, write_json, writing
from proxyfl.data.tables.databases import sqlite_file
from proxyfl.errors import RunError
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.store import (
    FRAMES_FOLDER,
    LOCK_FILE,
    frames_in_use,
    hold_writers,
    progress,
)
from proxyfl.node.keeping import FOLDER as STATE_FOLDER
from proxyfl.node.members.site import FILE as SETTINGS_FILE
from proxyfl.node.members.site import Site

FORMAT = 1
RESTORED_FILE = "restored.json"
"""There from a restore until all peers were asked."""

_CONTENTS = "backup.json"
_SCRATCH = ".backup"
_LOCKED_SECONDS = 60.0

_LEFT_OUT = {LOCK_FILE, "stop.request", f"{STORE_FILE}-wal", f"{STORE_FILE}-shm"}
_FROM_SNAPSHOT = {STORE_FILE, FRAMES_FOLDER, STATE_FOLDER}


class Contents(NamedTuple):
    """The description that a backup carries."""

    site: str
    time: float
    round: int
    """The round that the site was in, counted from 0."""
    files: dict[str, str]
    """The SHA-256 of every file by its path."""


def backup(site: Site, folder: Path, file: Path) -> Contents:
    """Write a copy of the site in ``folder`` to the new file ``file``."""
    if file.exists():
        raise RunError(f"{file} exists already. Give another name, or remove it.")
    scratch = folder / _SCRATCH
    with writing(file):
        scratch.mkdir(mode=0o700, exist_ok=True)
        with _lock.hold(scratch / _lock.FILE, f"Another backup of {site.name} is under way."):
            try:
                while True:
                    round = _take_snapshot(folder, scratch)
                    keys = _keys(folder)
                    contents = _write(site, folder, scratch, file, round)
                    if _keys(folder) == keys:
                        return contents
                    file.unlink()  # the site has changed its key meanwhile
            finally:
                shutil.rmtree(scratch)


def _write(site: Site, folder: Path, scratch: Path, file: Path, round: int) -> Contents:
    digests: dict[str, str] = {}
    started = time.time()
    with whole(file) as new:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
            for name, path in _files(scratch, skip=set()):
                digests[name] = _add(tar, name, path)
            for name, path in _files(folder, skip=_left_out(site, folder, file)):
                digests[name] = _add(tar, name, path)
            contents = Contents(site.name, started, round, digests)
            about = json.dumps({"format": FORMAT, **contents._asdict()}).encode()
            _add_bytes(tar, _CONTENTS, about)
    sync_folder(file.absolute().parent)
    return contents


def _keys(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files of keys and certificates, and what tells whether one was replaced."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*.pem")}


def _left_out(site: Site, folder: Path, file: Path) -> set[Path]:
    """What of the folder is no part of a backup: records, shared folders, the store's own files."""
    names = [*_LEFT_OUT, *_FROM_SNAPSHOT]
    for setting in (site.data.source, site.data.test, site.network.folder):
        if setting:
            names.append(setting)
    paths = {(folder / name).resolve() for name in names}
    database = sqlite_file(site.data.source, folder)
    if database is not None:
        paths |= {Path(f"{database.resolve()}{end}") for end in ("", "-wal", "-shm", "-journal")}
    return paths | {file.resolve()}


def _files(folder: Path, skip: set[Path]) -> Iterator[tuple[str, Path]]:
    """The files below ``folder`` by their relative names; hidden ones are passed over."""
    for top, subfolders, names in os.walk(folder):
        here = Path(top)
        for known in (subfolders, names):
            known[:] = sorted(
                name
                for name in known
                if not name.startswith(".") and (here / name).resolve() not in skip
            )
        for name in names:
            path = here / name
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _take_snapshot(folder: Path, scratch: Path) -> int:
    """Put the store, and the files that it names, into ``scratch``; return the site's round."""
    for leftover in scratch.iterdir():  # of a backup that was killed
        if leftover.is_dir():
            shutil.rmtree(leftover)
        elif not leftover.name.startswith("."):
            leftover.unlink()
    path = folder / STORE_FILE
    if not path.exists():
        return 0
    try:
        with (
            hold_writers(path, _LOCKED_SECONDS) as store,
            closing(sqlite3.connect(scratch / STORE_FILE)) as copy,
        ):
            round, learner = progress(store)
            named = [f"{FRAMES_FOLDER}/{name}" for name in frames_in_use(store)]
            if learner:
                named.append(f"{STATE_FOLDER}/{learner}")
            for name in named:
                _link(folder / name, scratch / name)
            store.backup(copy)
            return round
    except sqlite3.Error as error:
        raise RunError(f"Cannot copy the store {path}: {error}. Nothing was written.") from error


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise RunError(
            f"The store names {source}, which is missing: this site cannot be backed up as it is. "
            "Bring back the whole of its folder from an earlier backup."
        ) from None
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _add(tar: tarfile.TarFile, name: str, path: Path) -> str:
    """Add a file as it is now, also if it grows meanwhile; return its SHA-256."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        reader = _Hashing(file)
        tar.addfile(_about(name, status.st_size, status.st_mtime), reader)
        return reader.digest.hexdigest()


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    tar.addfile(_about(name, len(content), time.time()), io.BytesIO(content))


def _about(name: str, size: int, modified: float) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mtime = modified
    info.mode = 0o600
    return info


class _Hashing(io.RawIOBase):
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: Any) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        content: bytes = self._file.read(size)
        self.digest.update(content)
        return content


def restore(file: Path, folder: Path) -> Contents:
    """Restores the site in ``file`` as the new folder ``folder``."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            f"{folder} exists already, and a restore overwrites nothing. Move it away, or give "
            "another folder."
        )
    is_there = folder.exists()
    beside = folder.with_name(f".{folder.name}.restoring")
    scratch = folder / beside.name if is_there else beside
    with writing(folder):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700, parents=True)
        try:
            contents = _extract(file, scratch)
            for below in scratch.rglob("*"):
                if below.is_dir():
                    below.chmod(0o700)
            write_json(
                scratch / RESTORED_FILE,
                {"time": time.time(), "made": contents.time, "round": contents.round},
            )
            if is_there:
                _move_all(scratch, folder)
            else:
                scratch.replace(folder)
                sync_folder(folder.absolute().parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return contents


def _move_all(source: Path, folder: Path) -> None:
    """Moves the content of ``source`` to ``folder``, which stays the folder that it is."""
    folder.chmod(0o700)
    for path in sorted(source.iterdir(), key=lambda path: path.name == SETTINGS_FILE):
        path.replace(folder / path.name)
    sync_folder(folder)


def _extract(file: Path, folder: Path) -> Contents:
    digests: dict[str, str] = {}
    try:
        with tarfile.open(file, mode="r:") as tar:
            for member in tar:
                _check_name(member, file)
                content = tar.extractfile(member)
                assert content is not None  # a regular file, as was checked
                digests[member.name] = _put(content, folder / member.name)
    except (tarfile.TarError, EOFError) as error:
        raise _damage_error(file, str(error)) from error
    except FileNotFoundError as error:
        raise RunError(
            f"Cannot read the backup {file}: {error.strerror}. Check the name."
        ) from error
    if digests.pop(_CONTENTS, None) is None:
        raise _damage_error(file, "its end is missing, or it is something else")
    about = read_json(folder / _CONTENTS)
    if about.get("format") != FORMAT:
        raise RunError(
            f"The backup {file} has format {about.get('format')!r}, expected {FORMAT}. Use the "
            "release that wrote it."
        )
    if about.get("files") != digests:
        raise _damage_error(file, "its files are not those that it lists")
    (folder / _CONTENTS).unlink()
    return Contents(about["site"], about["time"], about["round"], digests)


def _check_name(member: tarfile.TarInfo, file: Path) -> None:
    parts = PurePosixPath(member.name).parts
    if not member.isreg() or not parts or ".." in parts or member.name.startswith("/"):
        raise _damage_error(file, f"it holds {member.name!r:.80}, which no backup does")


def _put(content: Any, path: Path) -> str:
    """Write a new file that only its owner can read; return its SHA-256."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        while piece := content.read(1 << 20):
            digest.update(piece)
            target.write(piece)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def _damage_error(file: Path, reason: str) -> RunError:
    return RunError(
        f"{file} is not a whole backup of a site: {reason}. Nothing was restored. Take another."
    )
