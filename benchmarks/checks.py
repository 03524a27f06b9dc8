"""Checks of a study's arguments: each names the argument, what was expected and what was found."""

from collections.abc import Iterable

from proxyfl.errors import ConfigError, InputError


def within(
    name: str,
    value: float,
    low: float,
    high: float,
    *,
    closed: str = "",
    error: type[InputError] = ConfigError,
) -> float:
    """Returns ``value`` if it is between ``low`` and ``high``. ``closed`` says which of the two it
    may equal: "low", "high", or both."""
    is_above = value >= low if "low" in closed else value > low
    is_below = value <= high if "high" in closed else value < high
    if not (is_above and is_below):
        left = "<=" if "low" in closed else "<"
        right = "<=" if "high" in closed else "<"
        raise error(f"Expected {low:g} {left} {name} {right} {high:g}, got {name}={value}.")
    return value


def whole(
    name: str, value: int, *, at_least: int = 1, error: type[InputError] = ConfigError
) -> int:
    """Returns ``value`` if it is at least ``at_least``."""
    if value < at_least:
        raise error(f"Expected a whole number {name} >= {at_least}, got {name}={value!r}.")
    return value


def choice(
    name: str, value: str, known: Iterable[str], *, error: type[InputError] = ConfigError
) -> str:
    """Returns ``value`` if it is one of ``known``."""
    known = tuple(known)
    if value not in known:
        raise error(f"Unknown {name} {value!r}. Known: {', '.join(known)}.")
    return value
