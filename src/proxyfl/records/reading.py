"""Runs from their folders: which there are below a path, how far each has come, what it holds."""

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from proxyfl import _journal
from proxyfl._files import read_json
from proxyfl._journal import CRC32
from proxyfl.errors import RunError
from proxyfl.records import folder
from proxyfl.records.row import Row
from proxyfl.records.run import Run

State = Literal["new", "resumable", "finished"]

SITE_CLIENT = 0
"""A real site's number in its own folder, which has no other client."""

METRICS_FILE = "metrics.jsonl"
SITE_METRICS = "metrics of the rounds"
"""The name of that file of a real site in messages; its lines are sealed."""

ADDITIONS = {
    "certificate": "privacy_certificate.json",
    "audit": "audit.json",
    "membership": "membership.json",
    "effects": "effects.json",
}
"""Files that other commands may have added to a run's folder."""


def read(path: Path, rows: Iterable[Row] | None = None) -> Run:
    """The run in ``path``; with ``rows`` given, those stand for its metrics."""
    config = folder.existing(path) / "config.toml"
    try:
        settings = tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(
            f"Cannot read {config}: {error}. Give a folder that `proxyfl run` made."
        ) from error
    if rows is None:
        rows = site_rows(path) if folder.is_site(path) else folder.read_metrics(path)
    additions = {}
    for key, name in ADDITIONS.items():
        if (path / name).is_file():
            additions[key] = read_json(path / name)
    return Run(
        path,
        settings,
        distinct_rows(rows, client=SITE_CLIENT if folder.is_site(path) else None),
        _if_there(path / "summary.json"),
        _if_there(path / "environment.json") or {},
        additions,
    )


def site_rows(path: Path, methods: Sequence[str] = ()) -> list[Row]:
    """The rows of the real site in ``path``, or those of some ``methods``. Lines that cannot be
    read are left out: a site outlives a full disk."""
    content = _journal.read(path / METRICS_FILE, CRC32, name=SITE_METRICS, unsealed=True)
    rows = distinct_rows(content.entries, client=SITE_CLIENT)
    if not methods:
        return rows
    # rows of the first releases name no method, of which there was one
    return [row for row in rows if row.get("method", "proxyfl") in methods]


def distinct_rows(rows: Iterable[Row], *, client: int | None = None) -> list[Row]:
    """Returns each round once: where a round was written again, the later line takes the place of
    the earlier one.

    With ``client``, all rows are that client's. Earlier releases gave a site's rows its number in
    the federation."""
    recorded: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if client is not None:
            row = row | {"client": client}
        recorded[row.get("method"), row["round"], row.get("client")] = row
    return list(recorded.values())


def find(paths: Iterable[Path | str]) -> list[Path]:
    """The run folders among ``paths`` and at any depth below them, each once; hidden folders are
    passed over. RunError for a path that holds none."""
    runs: dict[Path, Path] = {}
    for path in map(Path, paths):
        if folder.is_site(path):
            folder.existing(path)  # says why there is nothing to read yet
        here = _below(path)
        if (path / "config.toml").is_file():
            here = [path]
        if not here:
            raise RunError(
                f"{path} holds no run: expected a run's folder as `proxyfl run` makes it, or a "
                "folder of runs as `proxyfl sweep FILE` makes it."
            )
        for run in here:
            runs.setdefault(run.resolve(), run)
    return list(runs.values())


def newest(below: Path) -> Path:
    """The run of ``below`` that was begun last, or the folder of its splits; RunError if there
    is none."""
    begun = []
    for config in below.glob("*/config.toml"):
        begun.append((config.stat().st_mtime_ns, config.parent))
    for config in below.glob("*/split-*/config.toml"):
        begun.append((config.stat().st_mtime_ns, config.parent.parent))
    if not begun:
        raise RunError(
            f"No run in {below} (looked from {Path.cwd()}). Name a run's folder, or begin one. "
            "Run: proxyfl run"
        )
    return max(begun)[1]


def state(path: Path) -> State:
    """The state of the run in the folder ``path``."""
    if not (path / "config.toml").is_file():
        return "new"
    try:
        summary = read_json(path / "summary.json")
    except RunError:
        return "resumable"
    finished = isinstance(summary, dict) and summary.get("finished") is True
    return "finished" if finished else "resumable"


def _below(path: Path) -> list[Path]:
    runs = []
    for config in sorted(path.glob("**/config.toml")):
        between = config.parent.relative_to(path).parts
        if not any(part.startswith(".") for part in between):
            runs.append(config.parent)
    return runs


def _if_there(path: Path) -> Any:
    return read_json(path) if path.is_file() else None
