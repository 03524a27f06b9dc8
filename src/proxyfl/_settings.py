"""Settings: trees of frozen dataclasses, read from TOML, changed with ``key=value``, written back.

A settings class is a frozen dataclass whose fields have plain types: bool, int, float, str, None,
tuples and dicts of these, other settings classes, and unions of them. The text below a field is
its documentation:

    @dataclass(frozen=True)
    class Exchange:
        timeout: float = 600.0
        \"""Seconds to wait for a peer.\"""

``__post_init__`` checks values; what it raises names the setting. Fields are inherited with their
texts. A field with the metadata ``PER_CLIENT`` has one value, but a run's file may list one for
each client (``split_lists``, ``replaced``). A field with the metadata ``INTERNAL`` is no setting.

Guarantees:
    * ``build(kind, tomllib.loads(to_toml(settings))) == settings``;
    * an unknown key is an error that names its file, lists those known and guesses the one meant;
    * what a tree does not mention keeps the default of the place where it stands.
"""

import ast
import copy
import dataclasses
import functools
import inspect
import json
import textwrap
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from proxyfl._command import command
from proxyfl._files import read_text
from proxyfl._validate import suggestion
from proxyfl.errors import ConfigError

T = TypeVar("T")

Tree = dict[str, Any]
"""Nested tables of settings, as TOML has them."""

MISSING = dataclasses.MISSING
"""The default of a setting that must be given."""

PER_CLIENT = {"per client": True}
"""The metadata of a setting for which a run may list one value for each client."""

INTERNAL = {"internal": True}
"""The metadata of a field that no file holds."""

_NOTHING = "none"
"""The word for a setting that has a default and is to have no value: TOML has no null."""

_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "nothing",
}
_LISTS = {int: "a list of whole numbers", float: "a list of numbers", str: "a list of texts"}


@dataclass(frozen=True)
class Setting:
    """One setting of a tree: its dotted key, its type, its default and the class that has it."""

    key: str
    hint: Any
    default: Any
    home: type
    per_client: bool = False

    @property
    def type(self) -> str:
        """The type in words."""
        return described(self.hint)

    @property
    def text(self) -> str:
        """The documentation. Reading it means parsing sources, which loading a config need not."""
        return documentation(self.home).get(self.key.rpartition(".")[2], "")


_NO_TOML = (".csv", ".npz", ".npy", ".parquet", ".xlsx", ".tsv", ".gz")


def read_toml(path: Path, what: str) -> Tree:
    """The content of the TOML file at ``path``, which is a ``what`` file."""
    if path.suffix in _NO_TOML:
        raise ConfigError(
            f"Expected a {what} file in TOML, got {path}, which holds data. To make a study of "
            f"tables, run: {command('new', 'NAME', '--tables', path, 'OTHER.csv')}"
        )
    if path.is_dir():
        inside = sorted(each.name for each in path.glob("*.toml"))
        meant = f" Did you mean {path / inside[0]}?" if inside else ""
        raise ConfigError(f"Expected a {what} file in TOML, got the folder {path}.{meant}")
    if not path.exists():
        there = sorted(each.name for each in path.parent.glob("*.toml"))
        near = (
            suggestion(path.name, there)
            if there
            else " No TOML file is there; give the path of one."
        )
        raise ConfigError(f"No {what} file {path} (looked from {Path.cwd()}).{near}")
    text = read_text(path, f"{what} file", error=ConfigError)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"The {what} file {path} is not valid TOML: {error}. Correct it."
        ) from error


def build(kind: type[T], tree: Mapping[str, Any], *, source: Path | str | None = None) -> T:
    """The ``kind`` that a nested mapping describes. Errors name the ``source``, a file."""
    with naming(source):
        built: T = _table(kind, MISSING, tree, "")
    return built


@contextmanager
def naming(source: Path | str | None) -> Iterator[None]:
    """Lets every ConfigError name the file that it is about, if there is one."""
    try:
        yield
    except ConfigError as error:
        if source is None:
            raise
        raise ConfigError(f"{source}: {error}") from error


def set_twice(texts: Sequence[str]) -> dict[str, str]:
    """Returns each key that several ``key=value`` set, and the last of these, which counts."""
    last: dict[str, str] = {}
    twice: dict[str, str] = {}
    for text in texts:
        key = text.partition("=")[0].strip()
        if last.get(key, text) != text:
            twice[key] = text
        last[key] = text
    return twice


def override(tree: Tree, text: str) -> None:
    """Put the ``key=value`` of a command line's ``--set`` into ``tree``."""
    key, equals, value = text.partition("=")
    if not equals:
        example = "--set privacy.noise_multiplier=1.1"
        raise ConfigError(f"Expected --set key=value, got {text!r}. For example {example}.")
    put(tree, key.strip(), _parse(value.strip()))


def put(tree: Tree, key: str, value: Any) -> None:
    """Set the dotted ``key`` of a nested mapping."""
    *parents, last = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"Expected no key below {parent!r}, which is a value, got {key!r}.")
    tree[last] = value


def to_toml(
    settings: Any,
    *,
    complete: bool = False,
    explained: bool = False,
    lists: Mapping[str, tuple[Any, ...]] | None = None,
) -> str:
    """``settings``, defaults included, as TOML that ``build`` reads back to an equal one.

    With ``complete``, settings that have no value stand in comments that say what they take.
    With ``explained``, each setting has its documentation above it, as a comment. ``lists`` has the
    settings that stand there as lists (``split_lists``)."""
    blocks = []
    for path, table in _tables(settings, ""):
        lines = [f"[{path}]"] if path else []
        kind: type = type(table)
        texts = documentation(kind) if explained else {}
        lines += _lines(table, path, complete=complete, lists=lists, texts=texts)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def tree_to_toml(tree: Tree) -> str:
    """A nested mapping as TOML; what has no value is left out."""
    blocks = [_table_text("", tree)]
    for name, table in tree.items():
        if isinstance(table, Mapping):
            blocks.append(f"[{name}]\n{_table_text(name, table)}")
    return "\n".join(blocks)


def _table_text(name: str, table: Mapping[str, Any]) -> str:
    lines = ""
    for key, value in table.items():
        if isinstance(value, Mapping) and not name:
            continue
        if value is not None:
            value = tuple(value) if isinstance(value, list) else value
            lines += f"{toml_key(key)} = {toml_value(value)}\n"
    return lines


def flat(tree: Any, prefix: str = "") -> Tree:
    """Every dotted key and its value, of settings or of a nested mapping."""
    table = tree if isinstance(tree, Mapping) else _values(tree)
    leaves: Tree = {}
    for name, value in table.items():
        is_mapping = isinstance(value, Mapping) and table is tree
        if is_mapping or dataclasses.is_dataclass(value):
            leaves |= flat(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves


def split_lists(kind: type, tree: Tree) -> tuple[Tree, dict[str, tuple[Any, ...]]]:
    """Separates the lists that ``tree`` has for per-client settings of ``kind``.

    Returns a tree in which each of them has its first value, and key -> all of its values."""
    plain = copy.deepcopy(tree)
    lists: dict[str, tuple[Any, ...]] = {}
    for setting in describe(kind):
        *parents, last = setting.key.split(".")
        table: Any = plain
        for parent in parents:
            table = table.get(parent, {}) if isinstance(table, Mapping) else {}
        value = table.get(last) if isinstance(table, Mapping) else None
        if not setting.per_client or not isinstance(value, list | tuple):
            continue
        if not value:
            raise ConfigError(f"Expected one value for each client in {setting.key}, got none.")
        lists[setting.key] = tuple(
            _value(setting.hint, MISSING, each, setting.key) for each in value
        )
        table[last] = lists[setting.key][0]
    return plain, lists


def replaced(settings: T, values: Mapping[str, Any]) -> T:
    """``settings`` with other values for some dotted keys, checked as any others are."""
    changes: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        table, dot, rest = key.partition(".")
        if dot:
            below.setdefault(table, {})[rest] = value
        else:
            changes[key] = value
    current = _values(settings)
    for table, inner in below.items():
        changes[table] = replaced(current[table], inner)
    new: T = dataclasses.replace(settings, **changes)  # type: ignore[type-var]
    return new


def names_settings(kind: type[T]) -> type[T]:
    """Decorates a settings class: one that is made in Python refuses an unknown setting as its file
    does, and guesses the one that was meant."""
    made: Any = kind.__init__

    @functools.wraps(made)
    def init(self: T, *values: Any, **changes: Any) -> None:
        known = [field.name for field in dataclasses.fields(typing.cast(Any, kind))]
        for key in changes:
            if key not in known:
                raise ConfigError(
                    f"Unknown setting {key!r} of {kind.__name__}.{suggestion(key, known)}"
                    f"{_place(kind, key)}"
                )
        made(self, *values, **changes)

    kind.__init__ = init  # type: ignore[method-assign,assignment]
    return kind


def _place(kind: type, key: str) -> str:
    """A sentence on the tables that have a setting of this name, if any has."""
    places = [dotted for dotted in keys(kind) if dotted.endswith(f".{key}")]
    return f" There is {' and '.join(places)}." if places else ""


def keys(kind: type) -> list[str]:
    """The dotted key of every setting of ``kind``."""
    return [setting.key for setting in describe(kind)]


def describe(kind: type, default: Any = MISSING, prefix: str = "") -> list[Setting]:
    """Every setting of ``kind``, with the default that it has where it stands."""
    hints = _type_hints(kind)
    settings = []
    for field in _fields(kind):
        key = prefix + field.name
        hint = hints[field.name]
        value = _default(field, default)
        if dataclasses.is_dataclass(hint):
            settings += describe(typing.cast(type, hint), value, f"{key}.")
        else:
            settings.append(Setting(key, hint, value, kind, "per client" in field.metadata))
    return settings


@functools.cache
def documentation(kind: type) -> Mapping[str, str]:
    """Field -> the text that stands below it in the source of ``kind``, or of a class before it."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= _own_texts(base)
    return texts


def _own_texts(kind: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    definition = tree.body[0]
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign):
            continue
        if not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            words = str(below.value.value).split()
            texts[field.target.id] = " ".join(words)
    return texts


def markdown(kind: type, *, without: Sequence[str] = (), per_client: bool = False) -> str:
    """The settings of ``kind`` as one Markdown table, except those ``without`` a line. With
    ``per_client`` it says which of them may be lists."""
    lines = ["| setting | default | takes | meaning |", "|---|---|---|---|"]
    for setting in describe(kind):
        if setting.key in without:
            continue
        default = shown_default(setting.default)
        takes = setting.type
        if setting.per_client and per_client:
            takes += " (per client)"
        lines.append(f"| `{setting.key}` | {default} | {takes} | {setting.text} |")
    return "\n".join(lines) + "\n"


def shown_default(default: Any) -> str:
    """A default as a page shows it."""
    if default is MISSING:
        return "must be given"
    return "absent" if default is None else f"`{toml_value(default)}`"


def described(hint: Any) -> str:
    """A type as a user knows it; that a setting may be absent is left out."""
    options = [option for option in _options(hint) if option is not type(None)]
    return " or ".join(_describe(option) for option in options)


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return f'"{_NOTHING}"'
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped and JSON does not.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_value, value))}]"
    if dataclasses.is_dataclass(value):
        value = _values(value)
    if isinstance(value, Mapping):
        pairs = []
        for name, inner in value.items():
            if inner is not None:
                pairs.append(f"{toml_key(name)} = {toml_value(inner)}")
        return "{" + ", ".join(pairs) + "}"
    return repr(value)


@functools.cache
def _type_hints(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def _fields(kind: Any) -> list["dataclasses.Field[Any]"]:
    """The settings among the fields of a class or an object: its own, then those that it inherits,
    and all tables in the order of the fields."""
    settings = [field for field in dataclasses.fields(kind) if "internal" not in field.metadata]
    home = kind if isinstance(kind, type) else type(kind)
    own = inspect.get_annotations(home)
    hints = _type_hints(home)
    first = {name for name in own if not dataclasses.is_dataclass(hints[name])}
    return sorted(settings, key=lambda field: field.name not in first)


def _values(settings: Any) -> Tree:
    """Field -> its value."""
    return {field.name: getattr(settings, field.name) for field in _fields(settings)}


def _default(field: "dataclasses.Field[Any]", around: Any) -> Any:
    """A field's default: that of the object ``around`` it, if there is one."""
    if around is not MISSING:
        return getattr(around, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _table(kind: Any, default: Any, tree: Any, path: str) -> Any:
    """A ``kind`` with the values of ``tree``, and those of ``default`` for what is not there."""
    if not isinstance(tree, Mapping):
        raise ConfigError(
            f"Expected a table for {path!r}, got {tree!r}. Write [{path}], and its settings "
            "below it."
        )
    fields = {field.name: field for field in _fields(kind)}
    where = f" in [{path}]" if path else ""
    for key in tree:
        if key not in fields:
            raise ConfigError(
                f"Unknown key {key!r}{where}.{suggestion(key, fields)}{_place(kind, key)}"
            )
    hints = _type_hints(kind)
    given = {}
    for name, field in fields.items():
        value = _default(field, default)
        if name in tree:
            key = f"{path}.{name}".lstrip(".")
            given[name] = _value(hints[name], value, tree[name], key)
        elif value is MISSING:
            raise ConfigError(_missing(kind, name, where))
        else:
            given[name] = value
    try:
        return kind(**given)
    except ConfigError as error:
        if not path or f"{path}." in str(error):
            raise
        raise ConfigError(f"In [{path}]: {error}") from error


def _missing(kind: type, name: str, where: str) -> str:
    expected = described(_type_hints(kind)[name])
    meaning = documentation(kind).get(name, "")
    return f"Expected {expected} for {name!r}{where}, got none. {meaning}".strip()


def _value(hint: Any, default: Any, value: Any, key: str) -> Any:
    """``value`` as one of the types that ``hint`` allows."""
    options = _options(hint)
    if value == _NOTHING and type(None) in options and str not in options:
        return None
    for option in options:
        alone = len(options) == 1
        converted = _convert(option, default, value, key, alone=alone)
        if converted is not MISSING:
            return converted
    expected = " or ".join(map(_describe, options))
    raise ConfigError(f"Expected {expected} for {key}, got {value!r}.")


def _convert(option: Any, default: Any, value: Any, key: str, *, alone: bool) -> Any:
    """``value`` as an ``option``; MISSING if it is none. An option that is ``alone`` says itself
    what is wrong with a value."""
    origin = typing.get_origin(option)
    if origin is tuple and (alone or isinstance(value, list | tuple)):
        inner = typing.get_args(option)[0]
        listed = value if isinstance(value, list | tuple) else [value]
        return tuple(_value(inner, MISSING, each, key) for each in listed)
    if origin is dict and isinstance(value, Mapping):
        inner = typing.get_args(option)[1]
        entries = {}
        for name, each in value.items():
            entries[name] = _value(inner, MISSING, each, f"{key}.{name}")
        return entries
    if dataclasses.is_dataclass(option) and (alone or isinstance(value, Mapping)):
        start = default if dataclasses.is_dataclass(default) else MISSING
        return _table(option, start, value, key)
    if not isinstance(option, type) or (option is bool) != isinstance(value, bool):
        return MISSING
    if option is float and isinstance(value, int | float):
        return float(value)
    return value if isinstance(value, option) else MISSING


def _options(hint: Any) -> tuple[Any, ...]:
    if isinstance(hint, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _describe(option: Any) -> str:
    if typing.get_origin(option) is tuple:
        inner = typing.get_args(option)[0]
        return _LISTS.get(inner) or f"a list, each {described(inner)}"
    if option in _TYPES:
        return _TYPES[option]
    if not dataclasses.is_dataclass(option):
        return "a table"
    fields = ", ".join(field.name for field in dataclasses.fields(option))
    return f"a table with {fields}"


def _parse(text: str) -> Any:
    """``text`` as a TOML value; else as a plain string, or a comma-separated list of them."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if "," not in text:
            return text
    return [_parse(part.strip()) for part in text.split(",")]


def _tables(settings: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(dotted name, settings) of a tree's root and of each table in it."""
    yield path, settings
    for name, value in _values(settings).items():
        if dataclasses.is_dataclass(value):
            yield from _tables(value, f"{path}.{name}".lstrip("."))


def _lines(
    table: Any,
    path: str,
    *,
    complete: bool,
    lists: Mapping[str, tuple[Any, ...]] | None,
    texts: Mapping[str, str],
) -> Iterator[str]:
    """The settings of a table, without the tables within it: a line for each, below its text."""
    kind: type = type(table)
    hints = _type_hints(kind)
    for field in _fields(table):
        key = f"{path}.{field.name}".lstrip(".")
        value = (lists or {}).get(key, getattr(table, field.name))
        if dataclasses.is_dataclass(value):
            continue
        is_shown = value is not None or field.default is not None or complete
        if is_shown and field.name in texts:
            yield from textwrap.wrap(
                texts[field.name], 98, initial_indent="# ", subsequent_indent="# "
            )
        # What has no value by default is left out; what has none although it could is _NOTHING.
        if value is not None or field.default is not None:
            yield f"{field.name} = {toml_value(value)}"
        elif complete:
            takes = described(hints[field.name])
            if lists is not None and "per client" in field.metadata:
                takes += ", or a list with one for each client"
            yield f"# {field.name} =    # absent; takes {takes}"


def toml_key(name: str) -> str:
    """A key as TOML writes it."""
    letters = name.replace("-", "").replace("_", "")
    is_bare = name.isascii() and letters.isalnum()
    return name if is_bare else toml_value(name)
