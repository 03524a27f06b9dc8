"""A sweep: one base config, and every combination of the settings that vary, each a run of its own.

    base = "base/images.toml"            beside the sweep's file; the demo's settings without it
    [set]                                the same in every run
    rounds = 100
    [grid]                               every combination of the values listed
    seed = [0, 1, 2]
    methods = ["alone", "proxyfl"]       one run each; a list within the list is one run with several methods
    privacy.noise_multiplier = [1, 2]
    [[variant]]                          settings that vary together, under a name; combined with the grid
    name = "honest"
    learning.beta = 0.0
    [quick]                              what is different in the quick variant of the sweep (``--quick``)
    data.source = "digits"               a list replaces the list of that setting in the grid
    seed = [0]

Guarantees:
    * every run's config is built and checked before anything is written and before the first run
      starts;
    * a folder that holds a run with other settings is refused: it is neither overwritten nor
      counted as done.
"""

import difflib
import hashlib
import itertools
import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl import _settings
from proxyfl._settings import flat
from proxyfl._validate import choice
from proxyfl.errors import ConfigError, RunError
from proxyfl.federation.methods import METHODS
from proxyfl.records.run import state as state
from proxyfl.simulation import config as configs
from proxyfl.simulation.config import Config

_KEYS = ("base", "set", "grid", "variant", "quick")
_MOST_RUNS = 10_000
_LONGEST_NAME = 120


@dataclass(frozen=True)
class _Point:
    """What tells one run from the others, and all that it changes in the base config."""

    varies: dict[str, Any]
    changes: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One point of a sweep. Its name says what varies, and is its folder's name."""

    name: str
    settings: Mapping[str, Any]
    config: Config
    folder: Path

    @property
    def work(self) -> int:
        """How many rounds there are to do, over all methods."""
        return self.config.rounds * len(self.config.methods)

    def beside(self, ending: str) -> Path:
        """A file beside the run's folder that belongs to it: its config (.toml), what it said
        (.log)."""
        return self.folder.with_name(self.folder.name + ending)


def plan(path: Path, out: Path, *, quick: bool = False) -> list[Run]:
    """The runs of the sweep at ``path``, in folders below ``out``; ``ConfigError`` if any of them
    cannot be."""
    tree = _read(path)
    base = configs.load(path.parent / tree["base"] if "base" in tree else None)
    try:
        points = _points(_quickened(tree) if quick else tree)
        runs = [
            _run(base, point, name, out / name)
            for point, name in zip(points, _names(points), strict=True)
        ]
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    seen: dict[Config, str] = {}
    for run in runs:
        if run.config in seen:
            raise ConfigError(
                f"{path}: {seen[run.config]} and {run.name} are the same run. Remove one."
            )
        seen[run.config] = run.name
        _check_folder(run)
    return runs


def _read(path: Path) -> dict[str, Any]:
    tree = _settings.read_toml(path, "sweep")
    for key in tree:
        choice(f"key in {path}:", key, _KEYS)
    kinds: list[tuple[str, type, str]] = [
        (key, dict, "a table") for key in ("set", "grid", "quick")
    ]
    for key, kind, what in [("base", str, "a file name"), *kinds]:
        if not isinstance(tree.get(key, kind()), kind):
            raise ConfigError(f"{path}: expected {what} for {key!r}, got {tree[key]!r}.")
    variants = tree.get("variant", [])
    if not isinstance(variants, list) or not all(isinstance(v, dict) for v in variants):
        raise ConfigError(
            f"{path}: expected [[variant]] tables, got variant = {variants!r}. Mind the double "
            f"brackets."
        )
    return tree


def _quickened(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The sweep's quick variant, as it would be written without [quick]."""
    if not tree.get("quick"):
        raise ConfigError(
            "There is no quick variant. Say below [quick] what is different in it, or leave out "
            "--quick."
        )
    fixed, grid = _flat(tree.get("set", {})), _flat(tree.get("grid", {}))
    for key, value in _flat(tree["quick"]).items():
        (grid if key in grid else fixed)[key] = value
    return {"set": fixed, "grid": grid, "variant": tree.get("variant", [])}


def _points(tree: Mapping[str, Any]) -> list[_Point]:
    """The runs in the file's order. In what varies, the name of a variant stands for its
    settings."""
    fixed, grid = _flat(tree.get("set", {})), _flat(tree.get("grid", {}))
    variants = [_variant(table) for table in tree.get("variant", [])]
    for name, count in Counter(name for name, _ in variants).items():
        if count > 1:
            raise ConfigError(f"{count} variants are called {name!r}. Give each its own name.")
    varied = dict.fromkeys(key for _, changes in variants for key in changes)
    for key, count in Counter([*fixed, *grid, *varied]).items():
        _check_key(key)
        if count > 1:
            raise ConfigError(
                f"{key!r} is given more than once. Leave it in one of [set], [grid] and "
                f"[[variant]]."
            )
    for key, listed in grid.items():
        if not isinstance(listed, list) or not listed:
            raise ConfigError(
                f"Expected a list of one or more values for {key!r} in [grid], got {listed!r}. "
                "A value for all runs goes below [set]."
            )
    if not grid and not variants:
        raise ConfigError(
            "Nothing varies. Expected a [grid], such as seed = [0, 1, 2], or [[variant]] tables."
        )
    count = math.prod(map(len, grid.values())) * max(1, len(variants))
    if count > _MOST_RUNS:
        raise ConfigError(f"Expected at most {_MOST_RUNS} runs, got {count}. Split the sweep.")
    points = []
    for name, together in variants or [("", {})]:
        for chosen in itertools.product(*grid.values()):
            point = dict(zip(grid, chosen, strict=True))
            points.append(
                _Point(({"variant": name} if name else {}) | point, fixed | together | point)
            )
    return points


def _variant(table: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    name = table.get("name")
    if not isinstance(name, str) or not _plain(name):
        raise ConfigError(
            f'Expected a name for each [[variant]], such as name = "honest", got name = {name!r}.'
        )
    return name, _flat({key: value for key, value in table.items() if key != "name"})


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys, whether they were quoted, dotted or written as tables: no setting's value is a
    table."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


def _check_key(key: str) -> None:
    known = configs.keys()
    if key not in known:
        close = difflib.get_close_matches(key, known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"Unknown setting {key!r}.{hint} Known: {', '.join(known)}.")


def _run(base: Config, point: _Point, name: str, where: Path) -> Run:
    tree = tomllib.loads(configs.to_toml(base))
    for key, value in point.changes.items():
        table, _, last = key.rpartition(".")
        (tree.setdefault(table, {}) if table else tree)[last] = value
    try:
        config = configs.from_tree(tree)
        for method in config.methods:
            choice("method", method, METHODS)
    except ConfigError as error:
        raise ConfigError(f"In the run {name}: {error}") from error
    return Run(name, point.varies, config, where)


def _check_folder(run: Run) -> None:
    if state(run.folder) == "new":
        return
    there, wanted = flat(configs.of_run(run.folder)), flat(run.config)
    other = [
        f"{key} is {there[key]!r} there and {wanted[key]!r} here"
        for key in wanted
        if there[key] != wanted[key]
    ]
    if other:
        raise RunError(
            f"{run.folder} holds a run with other settings: {'; '.join(other)}. "
            "Give another folder with --out, or remove that one."
        )


def _names(points: Sequence[_Point]) -> list[str]:
    """A short readable name per point. A hash cuts a long one short, and tells apart those that
    read the same."""
    lasts = Counter(key.rpartition(".")[2] for key in points[0].varies)
    names = [
        ",".join(_label(key, value, lasts) for key, value in point.varies.items())
        for point in points
    ]
    count = Counter(names)
    return [
        name
        if count[name] == 1 and len(name) <= _LONGEST_NAME
        else f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(repr(point.varies).encode()).hexdigest()[:8]}"
        for name, point in zip(names, points, strict=True)
    ]


def _label(key: str, value: Any, lasts: Mapping[str, int]) -> str:
    text = _plain("+".join(map(str, value)) if isinstance(value, list) else str(value))
    last = key.rpartition(".")[2]
    return text if key in ("variant", "methods") else f"{last if lasts[last] == 1 else key}={text}"


def _plain(text: str) -> str:
    """``text`` as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9.+_-]+", "-", text).lstrip(".")
