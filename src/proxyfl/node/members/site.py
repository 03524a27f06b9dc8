"""site.toml: a site's own business. Nothing of it is shared with anybody.

The file is in the site's folder next to its keys, its store and its ledger. Paths in it are
relative to that folder.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from proxyfl import _settings, settings
from proxyfl._command import command
from proxyfl._entrypoint import is_entry
from proxyfl._validate import choice, number, whole
from proxyfl.errors import ConfigError
from proxyfl.node.members import files
from proxyfl.node.members.identity import check_name
from proxyfl.settings import Defence as Defence
from proxyfl.settings import Learning as Learning
from proxyfl.settings import Local
from proxyfl.settings import Model as Model

FILE = files.SITE


@dataclass(frozen=True)
class Data(settings.Reading):
    """This site's examples."""

    source: str = "data.npz"
    """A file, a folder, the URL of a database (with `query`), or one of the datasets that
    `proxyfl data` lists."""
    changes: str = "refuse"
    """What to do if a table or the answer of a query is not the one of the last start: `refuse` to
    start, or `accept` it and say so."""
    test: str = ""
    """A table's own test part, a file of the same name in another folder; empty: some persons or
    rows are held out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("data.changes", self.changes, ("refuse", "accept"))


@dataclass(frozen=True)
class Privacy(settings.Privacy):
    """The protection of this site's records."""

    units: ClassVar[tuple[str, ...]] = (settings.AUTO, *settings.UNITS)

    delta: float | None = None
    """The probability with which the guarantee may fail. Absent: 1 / (10 examples), rounded down to
    a power of ten."""
    unit: str = settings.AUTO
    """The unit that is protected: one `record`, or a `person` with all of their records. `auto`: a
    person, if the manifest's schema names one, else a record. A ledger that has begun keeps its
    own. With persons, batch_size, examples and sampling_rate count persons."""
    examples: int | None = None
    """Declared, public number of examples (persons, with `unit = "group"`) that this site trains
    on; round it. The rate, delta and a round's length follow from it, so that nothing released
    follows from the true number (add-or-remove). Absent: the true number is public (zero-out)."""
    budget: float | None = 1.0
    """Largest epsilon that this site's records may cost in all; those who answer for them decide.
    Somebody who thinks it as likely as not that a record is in the data can become 73 % sure at
    epsilon 1, and 99.3 % at 5. It can be lowered, never raised. A site that has spent it leaves."""


@dataclass(frozen=True)
class Network:
    """The connections to the other sites."""

    listen: str = "0.0.0.0:7443"
    """The address to listen on; empty for a site that can only dial out."""
    patience: float = 600.0
    """Seconds that a round waits for a peer before it continues without it."""
    least_peers: int = 1
    """Peers that must be able to receive before a round is trained and charged; with fewer, the
    site waits. 0 trains also when nobody is there."""
    heartbeat: float = 10.0
    """Seconds between two signs of life to a peer."""
    timeout: float = 120.0
    """Seconds that one call may take."""
    folder: str = ""
    """Exchange by files in this folder instead of by connections."""
    status_port: int = 7480
    """The port of the status page, on this machine only; 0 takes a free one."""

    def __post_init__(self) -> None:
        number("network.patience", self.patience, at_least=0)
        whole("network.least_peers", self.least_peers, at_least=0)
        number("network.heartbeat", self.heartbeat, above=0)
        number("network.timeout", self.timeout, above=0)


@dataclass(frozen=True)
class Trust:
    """Code that may run here. What the manifest names was named by another member."""

    modules: tuple[str, ...] = ()
    """Modules, packages, or single "module:factory" that the manifest may name. Empty: none."""
    path: str = ""
    """A folder with modules of this site's own, for names here and in the manifest; empty: only
    installed modules. The current directory is never searched."""

    def __post_init__(self) -> None:
        for entry in self.modules:
            if not is_entry(entry):
                raise ConfigError(
                    'Expected trust.modules such as "hospital_models" or '
                    f'"hospital_models:make_proxy", got {entry!r:.80}.'
                )


@dataclass(frozen=True)
class Site(Local):
    """One site's settings."""

    data: Data = field(default_factory=Data)
    privacy: Privacy = field(default_factory=Privacy)
    network: Network = field(default_factory=Network)
    defence: Defence = field(default_factory=Defence)
    trust: Trust = field(default_factory=Trust)

    def __post_init__(self) -> None:
        check_name(self.name)


def read(path: Path) -> tuple[Site, Path]:
    """The settings in ``path`` (a file, or a folder's site.toml), and the site's folder."""
    file = path / FILE if path.is_dir() else path
    if not file.exists():
        raise ConfigError(
            f"No {FILE} in {path}. To make a site's folder, run: {command('node', 'init', path)}"
        )
    tree = _settings.read_toml(file, "site")
    # What drew the test part in earlier releases; holdout.key does now.
    # What limited weights in earlier releases; the protocol does now.
    for section, setting in (("data", "seed"), ("defence", "most_weight")):
        own = tree.get(section)
        if isinstance(own, dict):
            own.pop(setting, None)
    return _settings.build(Site, tree, source=file), file.parent


def to_toml(site: Site) -> str:
    """Returns the settings as a file, each with its documentation above it."""
    return _settings.to_toml(site, complete=True, explained=True)
