"""Settings: any tree of frozen dataclasses, from TOML and back; what is wrong is named."""

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxyfl import _settings
from proxyfl._validate import number
from proxyfl.errors import ConfigError
from proxyfl.simulation import config


@dataclass(frozen=True)
class Peer:
    """Somebody to talk to."""

    name: str
    """What the peer is called."""
    port: int = 443
    """Where it listens."""


@dataclass(frozen=True)
class Limits:
    """What is allowed."""

    epsilon: float = 1.0
    """The largest epsilon."""
    note: str | None = None
    """Anything."""

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, above=0)


@dataclass(frozen=True)
class Outer:
    """A table within a table."""

    limits: Limits = field(default_factory=lambda: Limits(epsilon=8.0))
    on: bool = False
    """Whether it counts."""


@dataclass(frozen=True)
class Site:
    """A file with all that settings can be."""

    name: str
    """The site's
    own name."""
    peers: tuple[Peer, ...] = ()
    """All peers."""
    ports: dict[str, int] = field(default_factory=dict)
    """Ports by name."""
    outer: Outer = field(default_factory=Outer)
    weight: float | None = 0.5
    """A weight."""
    sizes: int | tuple[int, ...] = 3
    """Sizes."""


WHOLE = Site(
    name='north "1"',
    peers=(Peer("south"), Peer("west", 8443)),
    ports={"tls": 1, "a b": 2},
    outer=Outer(Limits(2.5, "x"), on=True),
    weight=None,
    sizes=(1, 2),
)


@pytest.mark.parametrize("settings", [Site("a"), WHOLE])
@pytest.mark.parametrize("complete", [False, True])
def test_settings_round_trip(settings: Site, complete: bool) -> None:
    """Lists of tables, named values, nested tables and nothing survive being written and read."""
    text = _settings.to_toml(settings, complete=complete)
    assert _settings.build(Site, tomllib.loads(text)) == settings


def test_a_complete_file_names_what_is_absent() -> None:
    """Settings without a value stand in comments that say what they take."""
    lines = _settings.to_toml(Site("a"), complete=True).splitlines()
    assert lines[lines.index("[outer.limits]") + 1 :] == [
        "epsilon = 8.0",
        "# note =    # absent; takes a text",
    ]


def test_defaults_belong_to_their_place() -> None:
    """A table that is given in part keeps the defaults of where it stands, not of its class."""
    site = _settings.build(Site, {"name": "a", "outer": {"limits": {"note": "x"}}})
    assert site.outer.limits == Limits(8.0, "x")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "Expected a text for 'name', got none. The site's own name."),
        ({"name": "a", "peers": [{}]}, r"Expected a text for 'name' in \[peers\], got none"),
        ({"name": "a", "nme": 1}, "Unknown key 'nme'. Did you mean 'name'. Known: name, peers"),
        ({"name": "a", "peers": 3}, "Expected a table for 'peers', got 3"),
        ({"name": "a", "ports": {"x": "y"}}, "Expected a whole number for ports.x, got 'y'"),
        ({"name": "a", "ports": 1}, "Expected a table for ports, got 1"),
        (
            {"name": "a", "sizes": "x"},
            "Expected a whole number or a list of whole numbers for sizes",
        ),
        ({"name": 3}, "Expected a text for name, got 3"),
        (
            {"name": "a", "outer": {"limits": {"epsilon": 0}}},
            r"In \[outer.limits\]: Expected 0 < epsilon, got epsilon=0.0",
        ),
        (
            {"name": "a", "outer": {"limits": {"eps": 0}}},
            r"Unknown key 'eps' in \[outer.limits\]. Did you",
        ),
    ],
)
def test_what_is_wrong_is_named(tree: dict[str, object], message: str) -> None:
    """The file, the table, the key, what was expected and what was found stand in the error."""
    with pytest.raises(ConfigError, match=f"site.toml: {message}"):
        _settings.build(Site, tree, source=Path("site.toml"))


def test_overrides_reach_into_tables() -> None:
    """A dotted key changes what is there, or makes the tables on its way."""
    tree = {"name": "a"}
    for text in ("outer.limits.epsilon=3", "outer.on=true", 'ports={"tls" = 4}'):
        _settings.override(tree, text)
    site = _settings.build(Site, tree)
    assert site == Site("a", outer=Outer(Limits(3.0), on=True), ports={"tls": 4})
    with pytest.raises(ConfigError, match="Expected no key below 'name', which is a value"):
        _settings.override(tree, "name.first=b")


def test_every_setting_is_described() -> None:
    """Key, default in its place, type in words and documentation, in the order of the source."""
    described = {setting.key: setting for setting in _settings.describe(Site)}
    assert list(described) == list(_settings.flat(WHOLE)) == _settings.keys(Site)
    assert described["name"].default is _settings.MISSING
    assert described["name"].text == "The site's own name."
    assert described["outer.limits.epsilon"].default == 8.0
    assert described["sizes"].type == "a whole number or a list of whole numbers"
    assert described["weight"].type == "a number"


def test_a_page_has_a_line_for_each() -> None:
    """The Markdown table shows every setting; what must be given or is absent says so."""
    lines = _settings.markdown(Site).splitlines()
    assert len(lines) == 2 + len(_settings.keys(Site))
    assert "| `name` | must be given | a text | The site's own name. |" in lines
    assert "| `outer.limits.note` | absent | a text | Anything. |" in lines
    assert "| `outer.limits.epsilon` | `8.0` | a number | The largest epsilon. |" in lines


def test_values_are_plain() -> None:
    """What is built is the class itself, frozen and equal by value."""
    site = _settings.build(Site, {"name": "a"})
    assert site == Site("a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        site.name = "b"  # type: ignore[misc]


def test_loading_a_config_parses_no_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of settings are read from the sources when they are shown. That takes half a second
    for a config, which a sweep would pay for each of its runs."""

    def refuse(kind: type) -> str:
        raise AssertionError(f"parses the source of {kind.__name__}")

    monkeypatch.setattr("inspect.getsource", refuse)
    _settings.documentation.cache_clear()
    tree = {"privacy": {"noise_multiplier": [1.0, 2.0]}, "partition": {"clients": 2}}
    loaded = config.from_tree(tree)
    assert config.to_toml(loaded)
    with pytest.raises(AssertionError, match="parses the source"):
        _settings.markdown(config.Config)
