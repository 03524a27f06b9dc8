"""Runs that belong together: those that differ in nothing but the seed, their methods, and settings
that results do not depend on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxyfl.errors import ConfigError, RunError
from proxyfl.federation.methods import METHODS
from proxyfl.records.run import Run

APART = ("seed", "methods")
"""Settings in which the runs of one group may differ: seeds are pooled, methods compared."""

INCIDENTAL = (
    "device",
    "threads",
    "measure",
    "evaluate_every",
    "checkpoint_every",
    "data.directory",
    "data.download",
    "exchange.timeout",
)
"""Settings that results do not depend on, except for rounding."""


@dataclass(frozen=True)
class Group:
    """Runs that are taken together, and the settings that tell them from other groups.

    ``mixed`` are settings in which they differ all the same."""

    settings: Mapping[str, Any]
    runs: Sequence[Run]
    mixed: Sequence[str] = ()

    @property
    def label(self) -> str:
        """The settings in words; empty where there is but one group."""
        words = []
        for key, value in self.settings.items():
            words.append(f"{key}={said(value)}")
        return ", ".join(words)

    @property
    def methods(self) -> list[str]:
        """The methods of all runs, those of this release's table first and in its order."""
        names = distinct(run.methods for run in self.runs)
        known = [name for name in METHODS if name in names]
        return known + [name for name in names if name not in METHODS]

    @property
    def clients(self) -> dict[int, str]:
        """Client id -> name, over all runs."""
        names: dict[int, str] = {}
        for run in self.runs:
            names |= run.clients
        return dict(sorted(names.items()))


def distinct(lists: Iterable[Iterable[str]]) -> list[str]:
    """All entries of the lists, each once, in the order of appearance."""
    seen: dict[str, None] = {}
    for one in lists:
        seen.update(dict.fromkeys(one))
    return list(seen)


def groups(runs: Sequence[Run], by: Sequence[str] | None = None) -> list[Group]:
    """The runs in groups, by all settings in which they differ or by those given."""
    all_that_differ = differing(runs)
    keys = all_that_differ if by is None else by
    mixed = [key for key in all_that_differ if key not in keys]
    by_settings: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        values = tuple(map(run.flat.get, keys))
        by_settings.setdefault(values, []).append(run)
    made = []
    for values, members in by_settings.items():
        settings = dict(zip(keys, values, strict=True))
        made.append(Group(settings, members, mixed))
    return made


def differing(runs: Sequence[Run]) -> list[str]:
    """The settings in which runs differ, of those that their results depend on."""
    keys = []
    for key in distinct(run.flat for run in runs):
        if key not in APART + INCIDENTAL and differ(runs, key):
            keys.append(key)
    return keys


def differ(runs: Sequence[Run], key: str) -> bool:
    """True if a setting has more than one value in some runs."""
    values = {run.flat.get(key) for run in runs}
    return len(values) > 1


def setting(runs: Sequence[Run], key: str) -> str:
    """The setting called ``key``, or the only one that ends in it."""
    known = distinct(run.flat for run in runs)
    if key in known:
        return key
    matching = [name for name in known if name.endswith(f".{key}")]
    if len(matching) != 1:
        raise ConfigError(
            f"Unknown setting {key!r} to group by. Known: {', '.join(matching or known)}."
        )
    return matching[0]


def measure_of(runs: Sequence[Run]) -> str:
    """The measure in which runs are reported; ConfigError if they disagree."""
    named = list(dict.fromkeys(run.measure for run in runs))
    if len(named) != 1:
        raise ConfigError(
            f"These runs report different measures: {', '.join(named)}. Choose one with --metric."
        )
    return named[0]


def check_once(group: Group, method: str) -> None:
    """Raise ``RunError`` if two runs of a group hold the same method, seed and settings."""
    seen: dict[tuple[Any, ...], Run] = {}
    for run in group.runs:
        if method not in run.methods:
            continue
        first = seen.setdefault(same(run, group.mixed), run)
        if first is not run:
            raise RunError(
                f"{first.path} and {run.path} hold the same method ({method}), settings and seed. "
                "Name one of them."
            )


def said(value: Any) -> str:
    """A setting's value in words."""
    if isinstance(value, tuple):
        return "+".join(map(said, value)) or "none"
    return "unset" if value is None else str(value)


def same(run: Run, mixed: Sequence[str]) -> tuple[Any, ...]:
    """The settings that two runs must share for their clients to be pairs."""
    return (run.seed, *map(run.flat.get, mixed))
