"""Settings that take one value for all clients or a list with one for each."""

from typing import Any, TypeVar

from proxyfl.errors import ConfigError

PerClientFloat = float | tuple[float, ...]
PerClientInt = int | tuple[int, ...]
PerClientStr = str | tuple[str, ...]
T = TypeVar("T")


def values(setting: Any) -> tuple[Any, ...]:
    """The values in a per-client setting; none for None."""
    if setting is None:
        return ()
    return setting if isinstance(setting, tuple) else (setting,)


def per_client(
    name: str, setting: T | tuple[T, ...], client: int, clients: int
) -> T:
    """The value of a per-client setting for one client."""
    if not isinstance(setting, tuple):
        return setting
    if len(setting) != clients:
        expected = (
            f"Expected one value or {clients} values (one per client) for {name}"
        )
        raise ConfigError(f"{expected}, got {len(setting)}.")
    return setting[client]
