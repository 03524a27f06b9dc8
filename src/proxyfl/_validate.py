"""Checks on plain values: each returns the value, or names it, the range and what was found."""

import difflib
import math
import os
from collections.abc import Iterable

from proxyfl.errors import ConfigError, InputError


def number(
    name: str,
    value: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    error: type[InputError] = ConfigError,
) -> float:
    """Return ``value`` if it is a finite number within the bounds; raise ``error`` otherwise."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not _is_finite(value):
        raise error(f"Expected a finite number for {name}, got {name}={value!r}.")
    is_within = (
        (above is None or value > above)
        and (at_least is None or value >= at_least)
        and (below is None or value < below)
        and (at_most is None or value <= at_most)
    )
    if not is_within:
        left = _bound("{} < ", above) or _bound("{} <= ", at_least)
        right = _bound(" < {}", below) or _bound(" <= {}", at_most)
        raise error(f"Expected {left}{name}{right}, got {name}={value}.")
    return value


def whole(
    name: str, value: int, *, at_least: int = 1, error: type[InputError] = ConfigError
) -> int:
    """Return ``value`` if it is an integer of at least ``at_least``; raise ``error`` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise error(f"Expected a whole number {name} >= {at_least}, got {name}={value!r}.")
    return value


def choice(
    name: str, value: str, known: Iterable[str], *, error: type[InputError] = ConfigError
) -> str:
    """Return ``value`` if it is one of ``known``; raise ``error``, which lists them, otherwise."""
    known = tuple(known)
    if value not in known:
        raise error(f"Unknown {name} {value!r}.{suggestion(value, known)}")
    return value


def path(name: str, value: object) -> None:
    """Raise ConfigError unless ``value`` names a file or a folder."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(
            f"Expected a path for {name}, got {value!r} of type {type(value).__name__}. Give it as "
            f"text, such as {name}='runs/first'."
        )


def suggestion(value: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the one that was probably meant, and all."""
    known = tuple(known)
    close = difflib.get_close_matches(value, known, 1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"{guess} Known: {', '.join(known)}."


def _is_finite(value: float) -> bool:
    """True for what a float can hold, which a whole number need not be."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _bound(form: str, bound: float | None) -> str:
    return "" if bound is None else form.format(bound)
