"""Settings that take one value for all clients or a list with one for each."""

from collections.abc import Callable
from typing import Any

from proxyfl.errors import ConfigError

PerClientFloat = float | tuple[float, ...]
PerClientInt = int | tuple[int, ...]
PerClientStr = str | tuple[str, ...]

Check = Callable[..., object]
"""``number`` or ``whole`` of ``_validate``."""


def check_each(
    check: Check,
    name: str,
    setting: Any,
    **bounds: float,
) -> None:
    """``check`` each value of a per-client setting, if it has one."""
    values = setting if isinstance(setting, tuple) else (setting,)
    for value in values:
        if value is not None:
            check(name, value, **bounds)


def per_client(name: str, setting: Any, client: int, clients: int) -> Any:
    """The value of a per-client setting for one client."""
    if not isinstance(setting, tuple):
        return setting
    if len(setting) != clients:
        raise ConfigError(
            f"Expected one value or {clients} values (one per client) for {name}, got "
            f"{len(setting)}."
        )
    return setting[client]
