"""A run's settings: one tree of frozen dataclasses, from TOML, changed with ``--set key=value``.

The defaults are the demo's: eight clients with 179 handwritten digits each, three fifths of them of
one class, and a proxy of 650 parameters, so that the noise that hides a record does not drown what
the proxy has learnt.

A setting marked *per client* takes one value for all or a list with one for each. A config holds
the first of them, and all in ``each``; ``of_client`` gives the config of one client.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from proxyfl import _settings, settings
from proxyfl._settings import PER_CLIENT, names_settings
from proxyfl._validate import choice, number, whole
from proxyfl.errors import ConfigError
from proxyfl.federation.membership import Attendance
from proxyfl.federation.methods import METHODS
from proxyfl.measures import MEASURES
from proxyfl.records import folder
from proxyfl.settings import Local, Model, Resources
from proxyfl.settings import Optimizer as Optimizer


@names_settings
@dataclass(frozen=True)
class Data(settings.Reading):
    """The source of the examples (see ``proxyfl data``)."""

    source: str | tuple[str, ...] = "digits"
    """A dataset's name, a file, a folder of images, the URL of a database (with `query`), or your
    own `package.module:factory`. With a schema: one file per site, as a list or a pattern such as
    `sites/*.csv`. Or the folder of a real federation (manifest.toml, and site.toml of each member),
    whose data are read as its sites do; `proxyfl run --federation DIR` also takes its other
    settings from there."""
    trust: tuple[str, ...] = ()
    """With a federation's folder, whose files may be others': the installed modules whose code
    those files and this config may name."""
    directory: str | None = None
    """The folder of named datasets; absent: `PROXYFL_DATA`, else `~/.cache/proxyfl`."""
    site: str | None = None
    """The column of a table, or the array of an .npz file, that names each example's site. With a
    schema: a column in the place of the schema's own."""
    classes: tuple[str | int, ...] = ()
    """The classes, in the order of the models' outputs. The list is public. Absent: the classes
    that the labels show, which then shape the proxy."""
    schema: str | None = None
    """The schema.toml of a table, which says what its columns mean; see `proxyfl schema`."""
    test: str | tuple[str, ...] = ()
    """The sites' own test parts, as files with the names of those in `source`."""
    download: bool = True
    """Fetch a named dataset that is not there from its publisher."""
    synthetic: settings.Synthetic = field(default_factory=settings.Synthetic)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source in ("", ()):
            raise ConfigError(
                "Expected a dataset for data.source, got ''. Give a file, a folder, or one of the "
                "datasets that this lists: proxyfl data"
            )
        names = self.class_names
        distinct = len(set(names))
        if names and (distinct < 2 or distinct < len(names)):
            raise ConfigError(
                f"Expected two or more distinct names in data.classes, got {list(names)}."
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that were named, if any were."""
        return tuple(map(str, self.classes))

    @property
    def name(self) -> str:
        """The source in words."""
        if isinstance(self.source, str):
            return self.source
        return ", ".join(self.source)


@names_settings
@dataclass(frozen=True)
class Partition:
    """The division of the training examples among the clients."""

    kind: str = "majority"
    """`majority`, `classes`, `dirichlet`, `iid`, or `site`: each client has its own examples."""
    clients: int = 8
    """Number of clients; with `site` the data decides."""
    examples: int | None = field(default=None, metadata=PER_CLIENT)
    """Examples of a client (persons, with `privacy.unit = "group"`); absent: as many as there
    are."""
    p_major: float = 0.6
    """With `majority`: the fraction of a client's examples that are of its own class."""
    classes: int = 2
    """With `classes`: the number of classes that a client has examples of."""
    concentration: float = 0.5
    """With `dirichlet`: the smaller, the more the clients differ."""

    def __post_init__(self) -> None:
        kinds = ("majority", "classes", "dirichlet", "iid", "site")
        choice("partition.kind", self.kind, kinds)
        whole("partition.clients", self.clients)
        whole("partition.classes", self.classes)
        if self.examples is not None:
            whole("partition.examples", self.examples)
        number("partition.p_major", self.p_major, at_least=0, at_most=1)
        number("partition.concentration", self.concentration, above=0)


@names_settings
@dataclass(frozen=True)
class Models:
    """The architectures (see ``proxyfl models``)."""

    private: str = field(default="mlp", metadata=PER_CLIENT)
    """The private model."""
    proxy: str = "linear"
    """The proxy, the same for all clients."""
    residual: bool = field(default=True, metadata=PER_CLIENT)
    """Train the private model as a residual: its outputs are added to the received proxy's."""
    proxy_seed: int | None = None
    """The seed of the proxy's first parameters and of a random graph; absent: `seed`."""
    single: str | None = None
    """The model that methods with one model train: `private` or `proxy`; absent: as the method
    says."""

    def __post_init__(self) -> None:
        if self.proxy_seed is not None:
            whole("models.proxy_seed", self.proxy_seed, at_least=0)
        if self.single is not None:
            choice("models.single", self.single, ("private", "proxy"))


@names_settings
@dataclass(frozen=True)
class Learning(settings.Learning):
    """Mutual learning, and what is publicly known of the classes."""

    prevalence: tuple[float, ...] = ()
    """Publicly known share of each class; with `none` it sets the proxy's first bias. Empty: that
    of the schema."""
    proxy_balance: str | None = None
    """The remedy for uneven classes in the loss of what is shared, the same for all clients;
    absent: as `balance`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.proxy_balance is not None:
            choice("learning.proxy_balance", self.proxy_balance, settings.BALANCES)
        for share in self.prevalence:
            number("learning.prevalence", share, above=0, below=1)


@names_settings
@dataclass(frozen=True)
class Privacy(settings.Privacy):
    """DP-SGD of what is shared."""

    enabled: bool = True
    """`false` trains every method without DP: for ablations only."""


@names_settings
@dataclass(frozen=True)
class Exchange(settings.Graph):
    """The graph of the PushSum methods (see ``proxyfl topology``), and the terms of the masked sum
    of ``proxysum``."""

    topology: str = "exponential"
    """A name, a .json or .npy file of matrices, or your own `package.module:function`."""
    self_weight: float | None = 0.5
    """Share of its mass that a client keeps; the default holds where the topology takes one."""
    degree: int | None = None
    """Receivers per client and round of the topology `random`; absent: 1."""
    settle: int | str = 0
    """Last rounds in which proxies only mix, which costs no privacy; `auto`: as many as spread
    what everyone knows, and one more."""
    average: float = 0.0
    """Share of the training rounds, counted from their end, whose proxies each client averages
    before they settle; 0: none."""
    rules: str = "paper"
    """How a client treats shares: `paper` adds up what arrives, `sites` does as real sites do:
    no share is heavier than its edge allows, and each client has its `defence`."""
    timeout: float = 600.0
    """Seconds to wait for a peer."""
    colluders: int | None = None
    """Of `proxysum`: the most clients that may pool what they know, or leave out their noise,
    without the stated epsilon being exceeded; absent: half of the quorum, rounded down."""
    quorum: int | None = None
    """Of `proxysum`: the fewest clients that a step's sum may have; with fewer present nobody
    sends. Absent: all of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.colluders is not None:
            whole("exchange.colluders", self.colluders, at_least=0)
        if self.quorum is not None:
            whole("exchange.quorum", self.quorum)
        choice("exchange.rules", self.rules, ("paper", "sites"))
        if isinstance(self.settle, str):
            choice("exchange.settle", self.settle, ("auto",))
        number("exchange.timeout", self.timeout, above=0)

    def settling(self, clients: int, rounds: int) -> int:
        """The number of last rounds in which the proxies of ``clients`` clients only mix."""
        if isinstance(self.settle, str):
            return settings.rounds_to_settle(clients, rounds)
        return self.settle


@names_settings
@dataclass(frozen=True)
class Membership:
    """Attendance: who takes part in which round."""

    absence: float = 0.0
    """Probability that a client misses a round."""
    schedule: tuple[Attendance, ...] = ()
    """Clients that join late, are away or leave: one table per client, for example
    `{client = 3, joins = 20, leaves = 80, away = [30, 35]}`."""

    def __post_init__(self) -> None:
        number("membership.absence", self.absence, at_least=0, below=1)

    def joined(self, clients: Collection[int], round: int) -> int:
        """Counts those of ``clients`` that have joined by ``round``, those who left included."""
        later = {stay.client for stay in self.schedule if stay.joins > round}
        return len(set(clients) - later)


@names_settings
@dataclass(frozen=True)
class Config:
    """Everything that determines a run's results."""

    seed: int = 0
    """The seed of everything random: partition, initial models, batches, noise, absences."""
    methods: tuple[str, ...] = ("alone", "regular", "proxyfl")
    """The methods to compare (see `proxyfl methods`)."""
    rounds: int = 100
    """Number of rounds."""
    measure: str = "auto"
    """The measure in which gains are reported; all measures are recorded. `auto`: accuracy where
    the classes are even, else `auroc` for two classes and `macro_accuracy` for more."""
    evaluate_every: int = 10
    """Models are scored every so many rounds, and after the last."""
    checkpoint_every: int = 5
    """A run can be resumed from every so many rounds."""
    device: str = "cpu"
    """A PyTorch device, such as `cuda`."""
    threads: int = 1
    """Threads within each process; results may differ in their rounding."""
    precision: str = field(default="float32", metadata=PER_CLIENT)
    """Precision of training without DP: `float32` or `bfloat16`."""
    data: Data = field(default_factory=Data)
    partition: Partition = field(default_factory=Partition)
    models: Models = field(default_factory=Models)
    learning: Learning = field(default_factory=Learning)
    private_optimizer: Optimizer = settings.PRIVATE_OPTIMIZER
    proxy_optimizer: Optimizer = settings.PROXY_OPTIMIZER
    privacy: Privacy = field(default_factory=Privacy)
    exchange: Exchange = field(default_factory=Exchange)
    defence: settings.Defence = field(default_factory=settings.Defence)
    membership: Membership = field(default_factory=Membership)
    each: Mapping[str, tuple[Any, ...]] = field(
        default_factory=dict, metadata=_settings.INTERNAL, hash=False
    )
    """Settings that differ between clients: dotted key -> one value for each of them."""

    def __post_init__(self) -> None:
        self._check_each()
        self.local  # refuses what a site's own settings would  # noqa: B018
        whole("seed", self.seed, at_least=0)
        whole("rounds", self.rounds)
        choice("measure", self.measure, ("auto", *MEASURES))
        whole("evaluate_every", self.evaluate_every)
        whole("checkpoint_every", self.checkpoint_every)
        if isinstance(self.methods, str):
            raise ConfigError(
                f"Expected a tuple of methods, got the text {self.methods!r}. Write "
                f"methods=({self.methods!r},)."
            )
        if not self.methods:
            expected = "Expected at least one method in methods, got none."
            raise ConfigError(f"{expected} See `proxyfl methods`.")
        if self.defence != settings.Defence() and self.exchange.rules != "sites":
            raise ConfigError(
                f"defence.rule={self.defence.rule!r} with defence.radius={self.defence.radius:g} "
                'is for clients that exchange as real sites do. Set exchange.rules = "sites", or '
                "leave [defence] out."
            )
        if isinstance(self.exchange.settle, int):
            settings.check_settling(self.exchange.settle, self.exchange.average, self.rounds)
        for name, count in Counter(self.methods).items():
            if count > 1:
                got = f"got {name} more than once"
                raise ConfigError(f"Expected each method once in methods, {got}.")

    @property
    def local(self) -> Local:
        """The decisions of a client; of the first, where clients have lists."""
        return Local(
            "client-0",
            data=self.data,
            model=Model(self.models.private, self.models.residual),
            learning=self.learning,
            private_optimizer=self.private_optimizer,
            proxy_optimizer=self.proxy_optimizer,
            privacy=self.privacy,
            resources=Resources(self.threads, self.device, self.precision),
        )

    def locals(self, names: Sequence[str]) -> list[Local]:
        """The decisions of each of the clients called ``names``."""
        own = []
        for client, name in enumerate(names):
            local = self.of_client(client, len(names)).local
            own.append(replace(local, name=name))
        return own

    def of_client(self, client: int, clients: int) -> "Config":
        """The config of one of ``clients`` clients, in which every setting has one value."""
        own: dict[str, Any] = {}
        for key, values in self.each.items():
            if len(values) != clients:
                raise ConfigError(
                    f"Expected one value or {clients} values (one per client) for {key}, got "
                    f"{len(values)}."
                )
            own[key] = values[client]
        return _settings.replaced(self, own | {"each": {}}) if own else self

    def defences(self, clients: int) -> list[settings.Defence]:
        """The defence of each of ``clients`` clients."""
        return [self.of_client(client, clients).defence for client in range(clients)]

    @property
    def protects_persons(self) -> bool:
        """True if the unit of any client is a person with all records."""
        units = self.each.get("privacy.unit", (self.privacy.unit,))
        return bool({"group", settings.PERSON} & set(units))

    def _check_each(self) -> None:
        lengths = {key: len(values) for key, values in self.each.items()}
        if len(set(lengths.values())) > 1:
            counted = ", ".join(f"{key} has {count}" for key, count in lengths.items())
            raise ConfigError(
                f"Expected as many values as there are clients in every list, got: {counted}."
            )
        for clients in set(lengths.values()):
            for client in range(clients):
                self.of_client(client, clients)


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """The config in the TOML file at ``path``, or the defaults, changed by ``key=value`` texts.

    A schema that names a person makes the person the unit, unless a unit is given."""
    return from_tree(_with_unit(_tree(path, overrides)))


def _with_unit(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with the unit that its schema asks for; a schema that cannot be read is left to the
    data's reader."""
    data, privacy = tree.get("data"), tree.setdefault("privacy", {})
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(privacy, dict) or "unit" in privacy or not isinstance(schema, str):
        return tree
    try:
        named = _settings.read_toml(Path(schema), "schema").get("person")
    except ConfigError:
        return tree
    if named is not None:
        privacy["unit"] = "group"
    return tree


def _tree(path: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    if path is not None:
        tree = _settings.read_toml(path, "config")
        # what is wrong with the file names the file
        from_tree(tree, source=path)
    for text in overrides:
        _settings.override(tree, text)
    return tree


def of_run(path: Path) -> Config:
    """The config of the run in the folder ``path``."""
    return from_tree(_tree(folder.existing(path) / "config.toml", ()))


def with_method(config: Config, name: str) -> Config:
    """The config with this method alone. The terms of a masked sum go with the methods that have
    one."""
    alone = replace(config, methods=(name,))
    if METHODS[name].exchange == "masked":
        return alone
    return replace(alone, exchange=replace(config.exchange, colluders=None, quorum=None))


def from_tree(tree: Mapping[str, Any], *, source: Path | None = None) -> Config:
    """The config that a nested mapping describes; what it does not mention keeps its default."""
    with _settings.naming(source):
        plain, lists = _settings.split_lists(Config, dict(tree))
        config = _settings.build(Config, plain)
        return replace(config, each=lists) if lists else config


def to_toml(config: Config, *, complete: bool = False) -> str:
    """The whole config, defaults included, as TOML that ``load`` reads back to an equal one."""
    return _settings.to_toml(config, complete=complete, lists=config.each)


def flat(config: Config) -> dict[str, Any]:
    """Dotted key -> value, or the list of the clients' values."""
    values: dict[str, Any] = _settings.flat(config)
    return values | dict(config.each)


def keys() -> list[str]:
    """Every setting's dotted name."""
    return _settings.keys(Config)
