"""A run's folder: what was asked, on what, what came out. Plain files that outlive this program.

    config.toml          the resolved settings; `proxyfl run RUN/config.toml` runs them again
    environment.json     versions, commit, machine, and notes on how the data were read
    metrics.jsonl        one line per method, client and round
    ledger/METHOD/       one append-only file per client: what its data has paid
    models/METHOD/       the final models as safetensors, with what is needed to load them again
    checkpoints/METHOD/  where an interrupted run continues; gone when the method is over
    ended/METHOD.json    that a method is over; gone when the run is finished
    summary.json         final scores and costs, per method and client

Guarantees:
    * ``create`` makes the folder with its config in it, or makes nothing;
    * metrics are flushed round by round, so an interrupted run leaves readable records;
    * reading needs no torch and changes nothing.
"""

import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any

from proxyfl import _lock
from proxyfl._command import command
from proxyfl._files import Document, finite, read_json, short_hash, write_json, writing
from proxyfl.errors import RunError

FORMAT = 3
"""The layout that this release resumes. Release 0.1 wrote none, which counts as 1; rows of layout
2 had no confusion counts."""

PACKAGES = ("proxyfl", "torch", "numpy", "dp-accounting", "safetensors", "scikit-learn")


def create(path: Path, config: str, *, identity: str, data: int, notes: Sequence[str] = ()) -> Path:
    """Make the folder with its config (TOML) and environment; it must be new or empty.

    ``identity`` of the settings and checksum of the ``data`` are noted for ``resume`` to compare.
    ``notes`` say how the data were read: what was clipped, left out or taken for something else.
    """
    about = environment() | {
        "format": FORMAT,
        "identity": identity,
        "data": data,
        "notes": list(notes),
    }
    try:
        is_empty = path.is_dir() and not any(path.iterdir())
        if path.exists() and not is_empty:
            raise RunError(f"{path} exists already. Give another folder with --out, or remove it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as scratch:
            new = Path(scratch) / "run"
            new.mkdir()
            (new / "config.toml").write_text(config, encoding="utf-8")
            described = json.dumps(about, indent=2) + "\n"
            (new / "environment.json").write_text(described, encoding="utf-8")
            (new / "metrics.jsonl").touch()
            new.rename(path)
    except OSError as error:
        raise RunError(
            f"Cannot write the run's folder {path}: {error.strerror or error}. "
            "Nothing was run. Give a folder that can be written with --out."
        ) from error
    return path


def fresh(parent: Path, source: str) -> Path:
    """A name for a new run below ``parent`` that is not taken: the time, and the data's name."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{Path(source).stem.replace(':', '-')}"
    path = parent / name
    number = 0
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


def environment() -> Document:
    """Versions and machine: all that results may depend on besides the config."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "simulation": True,
        "command": sys.argv,
    }


def check_environment(path: Path) -> None:
    """Raise ``RunError`` unless the run in ``path`` can continue as it began: with the same
    releases."""
    check_simulated(path, "there is nothing to resume")
    if not (existing(path) / "environment.json").is_file():
        raise RunError(
            f"{path} has no environment.json, which says how the run began, so it cannot be "
            f"resumed. To start it again, run: {command('run', path / 'config.toml')}"
        )
    began = read_json(existing(path) / "environment.json")
    before = began.get("packages", {})
    if began.get("format", 1) != FORMAT:
        raise RunError(
            f"{path} was begun by release {before.get('proxyfl')} of proxyfl, whose folders this "
            "release shows and does not resume. Install that release to resume it, or start a new "
            f"run. To show it, run: {command('report', path)}"
        )
    now = environment()["packages"]
    for name in ("proxyfl", "torch", "numpy"):
        if before.get(name) != now[name]:
            raise RunError(
                f"{path} was begun with {name} {before.get(name)}, this is {name} {now[name]}: "
                "the result would differ from that of an uninterrupted run. Install that "
                "release, or start a new run."
            )


def check_settings(path: Path, identity: str) -> str:
    """Returns the identity that the run in ``path`` began with; raises ``RunError`` if its settings
    were changed since.

    ``identity`` is that of the settings as they are read now. A file that nobody touched may have
    another: a setting that did not exist when the run began takes its default.
    """
    began = read_json(path / "environment.json").get("identity")
    text = (path / "config.toml").read_text(encoding="utf-8")
    if not isinstance(began, str) or began not in (identity, short_hash(text.encode())):
        raise RunError(
            f"{path}/config.toml was changed after the run began. Put it back, or start a new run "
            "with it."
        )
    return began


def check_data(path: Path, data: int) -> None:
    """Raise ``RunError`` unless the data is what the run began with."""
    if read_json(path / "environment.json").get("data") != data:
        raise RunError(
            f"The data has changed since the run in {path} began. Put it back, or start a new run."
        )


def append_metrics(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Add lines to ``metrics.jsonl``, flushed before it returns; the size of the file then."""
    lines = ""
    for row in rows:
        lines += json.dumps(finite(row)) + "\n"
    with writing(path / "metrics.jsonl"), (path / "metrics.jsonl").open("ab") as file:
        file.write(lines.encode())
        file.flush()
        return file.tell()


def cut_metrics(path: Path, size: int) -> None:
    """Drop what was written to ``metrics.jsonl`` after its first ``size`` bytes: those rounds are
    done again."""
    with writing(path / "metrics.jsonl"), (path / "metrics.jsonl").open("r+b") as file:
        file.truncate(size)


def read_metrics(path: Path) -> Iterator[Document]:
    """The lines of ``metrics.jsonl``; a torn last line, of a run that was killed, is passed
    over."""
    file = existing(path) / "metrics.jsonl"
    if not file.is_file():
        return
    lines = file.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise RunError(
                f"{file}, line {number} is not JSON: {error}. Restore the file from a copy, or "
                "run again."
            ) from error


def ended(path: Path, name: str) -> Path:
    """The note that a method is over, with what a resumed run needs of it."""
    return path / "ended" / f"{name}.json"


def end_run(path: Path, summary: Mapping[str, Any]) -> None:
    """Write the summary. That of a finished run says all that ``ended`` said."""
    write_json(path / "summary.json", summary)
    if summary["finished"]:
        shutil.rmtree(path / "ended", ignore_errors=True)


def existing(path: Path) -> Path:
    """``path`` if it holds a run, or a real site that has run."""
    if is_site(path) and not (path / "config.toml").is_file():
        raise RunError(
            f"The site in {path} has no record of its rounds yet. To start it, run: "
            f"{command('node', 'run', path)}"
        )
    if not (path / "config.toml").is_file():
        raise RunError(
            f"{path} holds no run: expected a config.toml in it. `proxyfl run` makes such folders."
        )
    return path


def is_site(path: Path) -> bool:
    """True if ``path`` is the folder of a real site."""
    return (path / "site.toml").is_file()


def check_simulated(path: Path, what: str) -> None:
    """Raise ``RunError`` for a real site's folder, with which ``what`` cannot be done."""
    if is_site(path):
        raise RunError(
            f"{path} is the folder of a real site, not of a simulation: {what}. To let the site go "
            f"on, run: {command('node', 'run', path)}"
        )


def subfolder(path: Path, *names: str) -> Path:
    """A folder within the run's folder, made if need be."""
    below = path.joinpath(*names)
    with writing(below):
        below.mkdir(parents=True, exist_ok=True)
    return below


def locked(path: Path) -> AbstractContextManager[int]:
    """Keep other processes from running the same run: two writers would spoil each other's
    records."""
    refusal = f"Another process is at work on the run in {path}. Wait for it or stop it."
    return _lock.hold(path / _lock.FILE, refusal)


def _version(package: str) -> str | None:
    """The version in use. A build of torch names itself more exactly than its metadata does."""
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree that this package runs from; None where it is installed from
    elsewhere."""
    here = str(Path(__file__).parent)
    command = ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
