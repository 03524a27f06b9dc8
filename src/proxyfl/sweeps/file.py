"""A sweep: one base config, and every combination of the settings that vary, each a run of its own.

    base = "base/images.toml"            beside the sweep's file; the defaults without it
    [set]                                the same in every run
    rounds = 100
    [grid]                               every combination of the values listed
    seed = [0, 1, 2]
    methods = ["alone", "proxyfl"]       one run each; a list within the list is one run with both
    privacy.noise_multiplier = [1, 2]
    [[variant]]                          settings that vary together; combined with the grid
    name = "honest"
    learning.beta = 0.0
    [quick]                              what is different with ``--quick``
    data.source = "digits"               a list replaces the list of that setting in the grid
    seed = [0]

Guarantees:
    * every run's config is built and checked before anything is written and before the first run
      starts;
    * a folder that holds a run with other settings is refused: it is neither overwritten nor
      counted as done.
"""

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
from proxyfl._settings import Tree, flat
from proxyfl._validate import choice
from proxyfl.errors import ConfigError, RunError
from proxyfl.federation.methods import METHODS
from proxyfl.records.reading import state as state
from proxyfl.simulation import config as configs
from proxyfl.simulation.config import Config

_KEYS = ("base", "set", "grid", "variant", "quick")
_MOST_RUNS = 10_000
_LONGEST_NAME = 120


@dataclass(frozen=True)
class _Choice:
    """The settings that tell one run from the others, and all that it changes in the base
    config."""

    varies: Tree
    changes: Tree


@dataclass(frozen=True)
class Point:
    """One run of a sweep. Its name says what varies, and is its folder's name."""

    name: str
    settings: Mapping[str, Any]
    config: Config
    folder: Path

    @property
    def work(self) -> int:
        """The number of rounds to do, over all methods."""
        return self.config.rounds * len(self.config.methods)

    def beside(self, ending: str) -> Path:
        """A file next to the run's folder: its config (.toml), what it said (.log)."""
        return self.folder.with_name(self.folder.name + ending)


def plan(path: Path, out: Path, *, quick: bool = False) -> list[Point]:
    """The runs of the sweep at ``path``, in folders below ``out``.

    Raises ``ConfigError`` if the settings of one cannot be, and ``RunError`` if its folder holds
    another run."""
    tree = _read(path)
    base = configs.load(path.parent / tree["base"] if "base" in tree else None)
    try:
        choices = _choices(_quick_variant(tree) if quick else tree)
        points = []
        for chosen, name in zip(choices, _names(choices), strict=True):
            points.append(_point(base, chosen, name, out / name))
        _check_distinct(points)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    for point in points:
        _check_folder(point)
    return points


def only(points: Sequence[Point], wanted: Sequence[str]) -> list[Point]:
    """The runs with all of the wanted settings, each written KEY=VALUE or KEY=VALUE,VALUE for any
    of these values.

    Raises ``ConfigError`` if a key does not vary, if no run has a value, or if none is left."""
    kept = list(points)
    for each in wanted:
        key, _, listed = each.partition("=")
        choice("key of --only", key, points[0].settings)
        known = [_written(point.settings[key]) for point in points]
        values = listed.split(",")
        for value in values:
            choice(f"value of {key}", value, dict.fromkeys(known))
        kept = [p for p in kept if _written(p.settings[key]) in values]
    if not kept:
        raise ConfigError(f"No run has {' and '.join(wanted)}.")
    return kept


def _check_distinct(points: Sequence[Point]) -> None:
    seen: dict[Config, str] = {}
    for point in points:
        if point.config in seen:
            first = seen[point.config]
            raise ConfigError(f"{first} and {point.name} are the same run. Remove one.")
        seen[point.config] = point.name


def _read(path: Path) -> Tree:
    tree = _settings.read_toml(path, "sweep")
    for key in tree:
        choice(f"key in {path}:", key, _KEYS)
    if not isinstance(tree.get("base", ""), str):
        raise ConfigError(f"{path}: expected a file name for 'base', got {tree['base']!r}.")
    for key in ("set", "grid", "quick"):
        if not isinstance(tree.get(key, {}), dict):
            raise ConfigError(f"{path}: expected a table for {key!r}, got {tree[key]!r}.")
    variants = tree.get("variant", [])
    is_list = isinstance(variants, list)
    if not is_list or not all(isinstance(each, dict) for each in variants):
        got = f"got variant = {variants!r}. Mind the double brackets."
        raise ConfigError(f"{path}: expected [[variant]] tables, {got}")
    return tree


def _quick_variant(tree: Mapping[str, Any]) -> Tree:
    """The sweep's quick variant, as it would be written without [quick]."""
    if not tree.get("quick"):
        raise ConfigError(
            "There is no quick variant. Say below [quick] what is different in it, or leave out "
            "--quick."
        )
    fixed = flat(tree.get("set", {}))
    grid = flat(tree.get("grid", {}))
    for key, value in flat(tree["quick"]).items():
        where = grid if key in grid else fixed
        where[key] = value
    return {"set": fixed, "grid": grid, "variant": tree.get("variant", [])}


def _choices(tree: Mapping[str, Any]) -> list[_Choice]:
    """The changes of each run, in the file's order. The name of a variant stands for its settings
    in what varies."""
    fixed = flat(tree.get("set", {}))
    grid = flat(tree.get("grid", {}))
    variants = _variants(tree.get("variant", []))
    _check_keys(fixed, grid, variants)
    _check_grid(grid, variants)
    choices = []
    for name, together in (variants or {"": {}}).items():
        named = {"variant": name} if name else {}
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            choices.append(_Choice(named | point, fixed | together | point))
    return choices


def _check_keys(fixed: Tree, grid: Tree, variants: Mapping[str, Tree]) -> None:
    varied: Tree = {}
    for changes in variants.values():
        varied |= changes
    known = configs.keys()
    for key, count in Counter([*fixed, *grid, *varied]).items():
        choice("setting", key, known)
        if count > 1:
            advice = "Leave it in one of [set], [grid] and [[variant]]."
            raise ConfigError(f"{key!r} is given more than once. {advice}")


def _check_grid(grid: Tree, variants: Mapping[str, Tree]) -> None:
    for key, listed in grid.items():
        if not isinstance(listed, list) or not listed:
            raise ConfigError(
                f"Expected a list of one or more values for {key!r} in [grid], got {listed!r}. A "
                "value for all runs goes below [set]."
            )
    if not grid and not variants:
        raise ConfigError(
            "Nothing varies. Expected a [grid], such as seed = [0, 1, 2], or [[variant]] tables."
        )
    count = math.prod(map(len, grid.values())) * max(1, len(variants))
    if count > _MOST_RUNS:
        raise ConfigError(f"Expected at most {_MOST_RUNS} runs, got {count}. Split the sweep.")


def _variants(tables: Sequence[Tree]) -> dict[str, Tree]:
    """Name -> the settings that vary together."""
    variants = {}
    for table in tables:
        changes = flat(table)
        name = changes.pop("name", None)
        if not isinstance(name, str) or not _plain(name):
            raise ConfigError(
                'Expected a name for each [[variant]], such as name = "honest", got name = '
                f"{name!r}."
            )
        if name in variants:
            raise ConfigError(f"2 variants are called {name!r}. Give each its own name.")
        variants[name] = changes
    return variants


def _point(base: Config, chosen: _Choice, name: str, where: Path) -> Point:
    tree = tomllib.loads(configs.to_toml(base))
    for key, value in chosen.changes.items():
        _settings.put(tree, key, value)
    try:
        config = configs.from_tree(tree)
        for method in config.methods:
            choice("method", method, METHODS)
    except ConfigError as error:
        raise ConfigError(f"In the run {name}: {error}") from error
    return Point(name, chosen.varies, config, where)


def _check_folder(point: Point) -> None:
    if state(point.folder) == "new":
        return
    there = flat(configs.of_run(point.folder))
    other = []
    for key, wanted in flat(point.config).items():
        # No result depends on the measure, and a run's folder has the one that "auto" came to.
        if there[key] != wanted and key != "measure":
            other.append(f"{key} is {there[key]!r} there and {wanted!r} here")
    if other:
        raise RunError(
            f"{point.folder} holds a run with other settings: {'; '.join(other)}. Give another "
            "folder with --out, or remove that one."
        )


def _names(choices: Sequence[_Choice]) -> list[str]:
    """A short readable name per run.

    A hash cuts a long one short, and tells apart those that read the same."""
    lasts = Counter(key.rpartition(".")[2] for key in choices[0].varies)
    names = []
    for made in choices:
        labels = [_label(key, value, lasts) for key, value in made.varies.items()]
        names.append(",".join(labels))
    count = Counter(names)
    for i, (name, made) in enumerate(zip(names, choices, strict=True)):
        if count[name] > 1 or len(name) > _LONGEST_NAME:
            digest = hashlib.sha256(repr(made.varies).encode()).hexdigest()
            names[i] = f"{name[: _LONGEST_NAME - 9]}-{digest[:8]}"
    return names


def _label(key: str, value: Any, lasts: Mapping[str, int]) -> str:
    text = _plain(_written(value))
    if key in ("variant", "methods"):
        return text
    last = key.rpartition(".")[2]
    return f"{last if lasts[last] == 1 else key}={text}"


def _written(value: Any) -> str:
    """A value as it stands in names, and in ``only``."""
    listed = value if isinstance(value, list) else [value]
    return "+".join(map(str, listed))


def _plain(text: str) -> str:
    """``text`` as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9.+_-]+", "-", text).lstrip(".")
