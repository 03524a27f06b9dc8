"""Runs from their folders: which there are below a path, how far each has come, what it holds."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from proxyfl._files import read_json
from proxyfl.errors import RunError
from proxyfl.records import folder
from proxyfl.records.row import Row
from proxyfl.records.run import Run

State = Literal["new", "resumable", "finished"]

ADDITIONS = {
    "certificate": "privacy_certificate.json",
    "audit": "audit.json",
    "membership": "membership.json",
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
        rows = folder.read_metrics(path)
    # A resumed run may write a round again: the later line stands, in the earlier one's place.
    recorded: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        place = (row["method"], row["round"], row["client"])
        recorded[place] = row
    additions = {}
    for key, name in ADDITIONS.items():
        if (path / name).is_file():
            additions[key] = read_json(path / name)
    return Run(
        path,
        settings,
        list(recorded.values()),
        _if_there(path / "summary.json"),
        _if_there(path / "environment.json") or {},
        additions,
    )


def find(paths: Iterable[Path | str]) -> list[Path]:
    """The run folders among ``paths`` and at any depth below them, each once; hidden folders are
    passed over. RunError for a path that holds none."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        here = _below(path)
        if (path / "config.toml").is_file():
            here = [path]
        if not here:
            raise RunError(
                f"{path} holds no run: expected a run's folder as `proxyfl run` makes it, or a "
                "folder of runs as `proxyfl sweep` makes it."
            )
        for run in here:
            found.setdefault(run.resolve(), run)
    return list(found.values())


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
    found = []
    for config in sorted(path.glob("**/config.toml")):
        between = config.parent.relative_to(path).parts
        if not any(part.startswith(".") for part in between):
            found.append(config.parent)
    return found


def _if_there(path: Path) -> Any:
    return read_json(path) if path.is_file() else None
