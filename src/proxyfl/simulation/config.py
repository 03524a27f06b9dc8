"""A run's settings: one tree of frozen dataclasses, read from TOML, changed with ``--set
key=value``.

The defaults are the demo's: eight clients with 179 handwritten digits each, three fifths of them of
one class, and a proxy of 650 parameters, so that the noise that hides a record does not drown what
the proxy has learnt.

A value marked *per client* is one value for all or a list with one for each.
"""

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from proxyfl._validate import choice, number, whole
from proxyfl.errors import ConfigError
from proxyfl.federation.learners import OPTIMIZERS
from proxyfl.federation.membership import Stay
from proxyfl.federation.precision import PRECISIONS
from proxyfl.privacy.accounting import ACCOUNTANTS

PerClientFloat = float | tuple[float, ...]
PerClientInt = int | tuple[int, ...]
PerClientStr = str | tuple[str, ...]
T = TypeVar("T")
_NOTHING = "none"
"""How a file says that a setting with a default has no value."""


@dataclass(frozen=True)
class Data:
    """Where the examples come from: see ``proxyfl data``."""

    source: str = "digits"
    directory: str | None = None
    label: str = "label"
    site: str | None = None
    test_fraction: float = 0.2
    download: bool = True

    def __post_init__(self) -> None:
        number("data.test_fraction", self.test_fraction, above=0, below=1)


@dataclass(frozen=True)
class Partition:
    """How the training examples are dealt out. ``examples`` per client; absent means as many as
    there are."""

    kind: str = "majority"
    clients: int = 8
    examples: PerClientInt | None = None
    p_major: float = 0.6
    concentration: float = 0.5

    def __post_init__(self) -> None:
        choice("partition.kind", self.kind, ("majority", "dirichlet", "iid", "site"))
        whole("partition.clients", self.clients)
        for value in values(self.examples):
            whole("partition.examples", value)
        number("partition.p_major", self.p_major, at_least=0, at_most=1)
        number("partition.concentration", self.concentration, above=0)


@dataclass(frozen=True)
class Models:
    """Architectures: see ``proxyfl models``. ``private`` is per client; all clients share one proxy
    architecture."""

    private: PerClientStr = "mlp"
    proxy: str = "linear"
    residual: bool = True
    single: str | None = None

    def __post_init__(self) -> None:
        if self.single is not None:
            choice("models.single", self.single, ("private", "proxy"))


@dataclass(frozen=True)
class Learning:
    """The losses of mutual learning, and how long a round is (absent: one pass, n // batch_size
    steps)."""

    alpha: float = 0.6
    beta: float = 0.0
    teacher: str = "received"
    batch_size: PerClientInt = 60
    steps_per_round: PerClientInt | None = None

    def __post_init__(self) -> None:
        number("learning.alpha", self.alpha, at_least=0, at_most=1)
        number("learning.beta", self.beta, at_least=0, at_most=1)
        choice("learning.teacher", self.teacher, ("current", "received"))
        for value in values(self.batch_size):
            whole("learning.batch_size", value)
        for value in values(self.steps_per_round):
            whole("learning.steps_per_round", value)


@dataclass(frozen=True)
class Optimizer:
    """How gradients become steps. ``momentum`` is for sgd."""

    name: str = "adam"
    learning_rate: float = 0.001
    weight_decay: float = 1e-4
    momentum: float = 0.0

    def __post_init__(self) -> None:
        choice("optimizer name", self.name, OPTIMIZERS)
        number("learning_rate", self.learning_rate, above=0)
        number("weight_decay", self.weight_decay, at_least=0)
        number("momentum", self.momentum, at_least=0, below=1)
        if self.momentum and self.name != "sgd":
            raise ConfigError(
                f"momentum={self.momentum} is for sgd; {self.name} has its own. Set it to 0 or "
                f"use sgd."
            )


@dataclass(frozen=True)
class Privacy:
    """DP-SGD of what is shared. ``enabled = false`` trains every method without DP, for ablations
    only.

    ``delta`` absent means 1/n. A client whose next step would exceed its ``budget`` (epsilon, by
    ``accountant``) leaves."""

    enabled: bool = True
    noise_multiplier: PerClientFloat = 4.0
    clip_norm: PerClientFloat = 1.0
    delta: PerClientFloat | None = None
    budget: PerClientFloat | None = None
    accountant: str = "pld"

    def __post_init__(self) -> None:
        choice("privacy.accountant", self.accountant, ACCOUNTANTS)
        for value in values(self.budget):
            number("privacy.budget", value, above=0)
        for value in values(self.noise_multiplier):
            number("privacy.noise_multiplier", value, above=0)
        for value in values(self.clip_norm):
            number("privacy.clip_norm", value, above=0)
        for value in values(self.delta):
            number("privacy.delta", value, above=0, below=1)


@dataclass(frozen=True)
class Exchange:
    """The graph of the pushsum methods: see ``proxyfl topology``."""

    topology: str = "exponential"
    self_weight: float | None = 0.5
    degree: int | None = None
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.self_weight is not None:
            number("exchange.self_weight", self.self_weight, at_least=0, below=1)
        if self.degree is not None:
            whole("exchange.degree", self.degree)
        number("exchange.timeout", self.timeout, above=0)


@dataclass(frozen=True)
class Membership:
    """Who is there when. ``absence``: probability that a client misses a round. ``schedule``: one
    entry per client."""

    absence: float = 0.0
    schedule: tuple[Stay, ...] = ()

    def __post_init__(self) -> None:
        number("membership.absence", self.absence, at_least=0, below=1)


@dataclass(frozen=True)
class Config:
    """Everything that determines a run's results."""

    seed: int = 0
    methods: tuple[str, ...] = ("alone", "regular", "proxyfl")
    rounds: int = 100
    evaluate_every: int = 10
    checkpoint_every: int = 5
    device: str = "cpu"
    threads: int = 1
    precision: str = "float32"
    data: Data = field(default_factory=Data)
    partition: Partition = field(default_factory=Partition)
    models: Models = field(default_factory=Models)
    learning: Learning = field(default_factory=Learning)
    private_optimizer: Optimizer = field(default_factory=lambda: Optimizer(learning_rate=0.003))
    proxy_optimizer: Optimizer = field(default_factory=lambda: Optimizer(learning_rate=0.1))
    privacy: Privacy = field(default_factory=Privacy)
    exchange: Exchange = field(default_factory=Exchange)
    membership: Membership = field(default_factory=Membership)

    def __post_init__(self) -> None:
        whole("seed", self.seed, at_least=0)
        whole("rounds", self.rounds)
        whole("evaluate_every", self.evaluate_every)
        whole("checkpoint_every", self.checkpoint_every)
        whole("threads", self.threads)
        choice("precision", self.precision, PRECISIONS)
        if not self.methods:
            raise ConfigError(
                "Expected at least one method in methods, got none. See `proxyfl methods`."
            )
        if repeated := [
            name for name in dict.fromkeys(self.methods) if self.methods.count(name) > 1
        ]:
            raise ConfigError(
                f"Expected each method once in methods, got {', '.join(repeated)} more than once."
            )


def values(setting: Any) -> tuple[Any, ...]:
    """The values in a per-client setting; none for None."""
    return () if setting is None else setting if isinstance(setting, tuple) else (setting,)


def per_client(name: str, setting: T | tuple[T, ...], client: int, clients: int) -> T:
    """The value of a per-client setting for one client."""
    if not isinstance(setting, tuple):
        return setting
    if len(setting) != clients:
        raise ConfigError(
            f"Expected one value or {clients} values (one per client) for {name}, got "
            f"{len(setting)}."
        )
    return setting[client]


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """The config in the TOML file at ``path`` (the defaults without one), changed by ``key=value``
    overrides."""
    tree = {} if path is None else read_toml(path, "config")
    for override in overrides:
        _apply(tree, override)
    return from_tree(tree)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of the TOML file at ``path``, which is a ``what`` file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"Cannot read the {what} file {path}: {error.strerror or error}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The {what} file {path} is not valid TOML: {error}.") from error


def from_tree(tree: Mapping[str, Any]) -> Config:
    """The config that a nested mapping describes; what it does not mention keeps its default."""
    config: Config = _changed(Config(), tree, "")
    return config


def to_toml(config: Config) -> str:
    """The whole config, defaults included, as TOML that ``load`` reads back to an equal one."""
    top, tables = [], []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            lines = [
                f"{f.name} = {_toml(getattr(value, f.name))}"
                for f in dataclasses.fields(value)
                # TOML has no null: what is nothing by default is left out, what could be something
                # is _NOTHING.
                if getattr(value, f.name) is not None or f.default is not None
            ]
            tables.append("\n".join([f"[{item.name}]", *lines]))
        else:
            top.append(f"{item.name} = {_toml(value)}")
    return "\n\n".join(["\n".join(top), *tables]) + "\n"


def keys() -> list[str]:
    """Every setting's dotted name."""
    names = []
    for item in dataclasses.fields(Config):
        kind = typing.get_type_hints(Config)[item.name]
        inner = [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
        names += [f"{item.name}.{name}" for name in inner] or [item.name]
    return names


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(
            f"Expected --set key=value, got {override!r}. For example --set "
            f"privacy.noise_multiplier=1.1."
        )
    *parents, last = key.strip().split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"Unknown key {key.strip()!r}: {parent!r} is a value, not a table.")
    tree[last] = _parsed(text.strip())


def _parsed(text: str) -> Any:
    """``text`` as a TOML value; as a plain string, or comma-separated list of them, where it is
    none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return [_parsed(part.strip()) for part in text.split(",")] if "," in text else text


def _changed(default: Any, tree: Any, path: str) -> Any:
    """``default`` with what ``tree`` mentions put in its place."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"Expected a table for {path!r}, got {tree!r}.")
    known = [f.name for f in dataclasses.fields(default)]
    hints = typing.get_type_hints(type(default))
    for key in tree:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            where = f" in [{path}]" if path else ""
            raise ConfigError(f"Unknown key {key!r}{where}.{hint} Known: {', '.join(known)}.")
    given = {}
    for key, value in tree.items():
        name, old = f"{path}.{key}" if path else key, getattr(default, key)
        given[key] = (
            _changed(old, value, name)
            if dataclasses.is_dataclass(old)
            else _convert(hints[key], value, name)
        )
    try:
        return dataclasses.replace(default, **given)
    except ConfigError as error:
        if isinstance(default, Optimizer):  # there are two, and it does not know which it is
            raise ConfigError(f"In [{path}]: {error}") from error
        raise


def _convert(hint: Any, value: Any, path: str) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value == _NOTHING and type(None) in options and str not in options:
        return None
    for option in options:
        if typing.get_origin(option) is tuple and (
            isinstance(value, list | tuple) or len(options) == 1
        ):
            inner = typing.get_args(option)[0]
            return tuple(
                _convert(inner, v, path)
                for v in (value if isinstance(value, list | tuple) else [value])
            )
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if (
            isinstance(option, type)
            and dataclasses.is_dataclass(option)
            and isinstance(value, Mapping)
        ):
            return _changed(option(), value, path)
        if (
            isinstance(option, type)
            and isinstance(value, option)
            and isinstance(value, bool) == (option is bool)
        ):
            return value
    raise ConfigError(
        f"Expected {' or '.join(_named(o) for o in options)} for {path}, got {value!r}."
    )


def _named(option: Any) -> str:
    """A type as a user knows it."""
    if typing.get_origin(option) is tuple:
        return (
            "a list with one such value per client"
            if option != tuple[str, ...]
            else "a list of names"
        )
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a text",
        type(None): "nothing",
    }
    return names.get(option, "a table such as {client = 3, joins = 20}")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return f'"{_NOTHING}"'
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped and JSON does not.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    if dataclasses.is_dataclass(value):
        inner = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return (
            "{"
            + ", ".join(f"{key} = {_toml(v)}" for key, v in inner.items() if v is not None)
            + "}"
        )
    return repr(value)
