"""Finds public datasets on this machine, and fetches those that are missing.

A download is complete or absent: bytes go to a temporary file next to the target, the checksum is
compared, and only then does the file take its name."""

import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from proxyfl.errors import DataError

BLOCK = 1 << 20
SECONDS = 30.0


@dataclass(frozen=True)
class Remote:
    """A public file: its address and the MD5 sum that its publisher states (against damage, not
    against forgery)."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.url.rsplit("/", 1)[1]


def md5_of(content: bytes) -> str:
    """The MD5 sum of ``content``, as publishers state it."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def data_folder(directory: str | Path | None = None) -> Path:
    """``directory`` if given, else the environment's PROXYFL_DATA, else ``~/.cache/proxyfl``."""
    if directory is not None:
        return Path(directory).expanduser()
    return Path(os.environ.get("PROXYFL_DATA") or "~/.cache/proxyfl").expanduser()


def fetch_all(dataset: str, remotes: Sequence[Remote], folder: Path, *, download: bool) -> None:
    """Fetches those of ``remotes`` that ``folder`` lacks; a DataError says which files to put
    where."""
    absent = [remote for remote in remotes if not (folder / remote.name).exists()]
    if not download:
        raise DataError(
            f"{dataset} is not on this machine, and downloading is off. {_by_hand(absent, folder)}"
        )
    for remote in absent:
        try:
            fetch(remote, folder)
        except (OSError, HTTPException) as problem:
            raise DataError(
                f"{dataset} is not on this machine and could not be fetched: {problem}. "
                f"{_by_hand(absent, folder)}"
            ) from problem


def fetch(remote: Remote, folder: Path) -> Path:
    """Download ``remote`` into ``folder`` with a progress bar on stderr; the checksum decides
    whether it stays."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{remote.name}.", dir=folder)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            md5 = _copy(remote, out)
        if md5 != remote.md5:
            raise DataError(
                f"{remote.url}: expected MD5 {remote.md5}, got {md5}. The download is damaged "
                f"and was discarded: "
                f"try again, or put the right file into {folder}."
            )
        # mkstemp makes it private, but a data folder may be shared
        partial.chmod(0o644)
        partial.replace(folder / remote.name)
    finally:
        partial.unlink(missing_ok=True)
    return folder / remote.name


def _copy(remote: Remote, out: IO[bytes]) -> str:
    """Write what ``remote`` sends to ``out``; return its MD5 sum."""
    digest = hashlib.md5(usedforsecurity=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with (
        urllib.request.urlopen(remote.url, timeout=SECONDS) as response,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        length = response.headers.get("Content-Length")
        task = progress.add_task(remote.name, total=int(length) if length else None)
        while block := response.read(BLOCK):
            out.write(block)
            digest.update(block)
            progress.advance(task, len(block))
    return digest.hexdigest()


def _by_hand(absent: Sequence[Remote], folder: Path) -> str:
    files = "".join(f"\n  {remote.url}" for remote in absent)
    return (
        f"Put these files into {folder} (or name another folder with --data-dir or "
        f"PROXYFL_DATA):{files}\n"
        "The source 'digits' needs no download."
    )
