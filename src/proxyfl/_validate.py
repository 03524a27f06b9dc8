"""Checks on plain values. Each names the value, the range and what was found, and returns the
value."""

import math
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
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise error(f"Expected a finite number for {name}, got {name}={value!r}.")
    low_ok = (above is None or value > above) and (at_least is None or value >= at_least)
    high_ok = (below is None or value < below) and (at_most is None or value <= at_most)
    if not (low_ok and high_ok):
        left = (
            f"{above} < "
            if above is not None
            else f"{at_least} <= "
            if at_least is not None
            else ""
        )
        right = (
            f" < {below}" if below is not None else f" <= {at_most}" if at_most is not None else ""
        )
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
        raise error(f"Unknown {name} {value!r}. Known: {', '.join(known)}.")
    return value
