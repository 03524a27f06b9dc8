"""A run's settings: one tree of frozen dataclasses, from TOML, changed with ``--set key=value``.

The defaults are the demo's: eight clients with 179 handwritten digits each, three fifths of them of
one class, and a proxy of 650 parameters, so that the noise that hides a record does not drown what
the proxy has learnt.

A setting marked *per client* takes one value for all or a list with one for each.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxyfl import _settings
from proxyfl._validate import choice, number, whole
from proxyfl.errors import ConfigError
from proxyfl.measures import MEASURES
from proxyfl.records import folder
from proxyfl.simulation.exchanging import Exchange as Exchange
from proxyfl.simulation.exchanging import Membership as Membership
from proxyfl.simulation.perclient import PerClientInt, PerClientStr, check_each
from proxyfl.simulation.privacy import Privacy as Privacy

# The homes of these names import torch or the accountants, which take seconds to load. A test
# compares them.
OPTIMIZERS = ("adam", "sgd")
PRECISIONS = ("float32", "bfloat16")
BALANCES = ("none", "weights", "prior")

_MOST_THREADS = 1024


@dataclass(frozen=True)
class Data:
    """The source of the examples (see ``proxyfl data``)."""

    source: str | tuple[str, ...] = "digits"
    """A dataset's name, a file, a folder of images, or your own `package.module:factory`. With a
    schema: one file per site, as a list or a pattern such as `sites/*.csv`."""
    directory: str | None = None
    """The folder of named datasets; absent: `PROXYFL_DATA`, else `~/.cache/proxyfl`."""
    label: str = "label"
    """The label column of a table."""
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
    separator: str = "auto"
    """The separator of a CSV file's fields: `comma`, `semicolon`, `tab`, `bar`, or `auto`."""
    decimal: str = "auto"
    """The decimal sign of a CSV file: `point`, `comma`, or `auto`."""
    encoding: str = "auto"
    """The encoding of a CSV file, such as `utf-8` or `latin-1`, or `auto`."""
    faults: str = "refuse"
    """The treatment of rows that the schema finds at fault: `refuse` the file, or `skip` them."""
    test_fraction: float = 0.2
    """Part of the examples that becomes the test set where the source has none of its own."""
    download: bool = True
    """Whether a named dataset that is not there is fetched from its publisher."""

    def __post_init__(self) -> None:
        number("data.test_fraction", self.test_fraction, above=0, below=1)
        choice("data.faults", self.faults, ("refuse", "skip"))
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


@dataclass(frozen=True)
class Partition:
    """The division of the training examples among the clients."""

    kind: str = "majority"
    """`majority`, `classes`, `dirichlet`, `iid`, or `site`: each client has its own examples."""
    clients: int = 8
    """Number of clients; with `site` the data decides."""
    examples: PerClientInt | None = None
    """Examples (persons, with `privacy.unit = "group"`), per client; absent: as many as there
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
        check_each(whole, "partition.examples", self.examples)
        number("partition.p_major", self.p_major, at_least=0, at_most=1)
        number("partition.concentration", self.concentration, above=0)


@dataclass(frozen=True)
class Models:
    """The architectures (see ``proxyfl models``)."""

    private: PerClientStr = "mlp"
    """The private model, per client."""
    proxy: str = "linear"
    """The proxy, the same for all clients."""
    residual: bool = True
    """Whether the private model learns what the received proxy does not know yet."""
    single: str | None = None
    """The model that methods with one model train: `private` or `proxy`; absent: as the method
    says."""

    def __post_init__(self) -> None:
        if self.single is not None:
            choice("models.single", self.single, ("private", "proxy"))


@dataclass(frozen=True)
class Learning:
    """Mutual learning: the weights of its losses, and how long a round is."""

    alpha: float = 0.6
    """Weight of the proxy's opinion in the private model's loss."""
    beta: float = 0.0
    """Weight of the private model's opinion in the proxy's loss; above 0 epsilon is conditional."""
    teacher: str = "received"
    """The proxy that teaches the private model: the one `received`, or the `current` one."""
    batch_size: PerClientInt = 60
    """Expected size of a batch, per client; in persons with `privacy.unit = "group"`."""
    steps_per_round: PerClientInt | None = None
    """Steps in a round, per client; absent: one pass, examples // batch_size steps."""
    balance: str = "none"
    """The remedy for uneven classes: `weights`, `prior` (logit adjustment), or `none`. A shared
    model under DP uses `prevalence`, any other the client's own class counts."""
    prevalence: tuple[float, ...] = ()
    """Publicly known share of each class; with `none` it sets the proxy's first bias. Empty: that
    of the schema."""

    def __post_init__(self) -> None:
        choice("learning.balance", self.balance, BALANCES)
        for share in self.prevalence:
            number("learning.prevalence", share, above=0, below=1)
        number("learning.alpha", self.alpha, at_least=0, at_most=1)
        number("learning.beta", self.beta, at_least=0, at_most=1)
        choice("learning.teacher", self.teacher, ("current", "received"))
        check_each(whole, "learning.batch_size", self.batch_size)
        check_each(whole, "learning.steps_per_round", self.steps_per_round)


@dataclass(frozen=True)
class Optimizer:
    """The rule by which gradients become steps."""

    name: str = "adam"
    """`adam` or `sgd`."""
    learning_rate: float = 0.001
    """The learning rate."""
    weight_decay: float = 1e-4
    """The weight decay."""
    momentum: float = 0.0
    """The momentum of `sgd`."""

    def __post_init__(self) -> None:
        choice("optimizer name", self.name, OPTIMIZERS)
        number("learning_rate", self.learning_rate, above=0)
        number("weight_decay", self.weight_decay, at_least=0)
        number("momentum", self.momentum, at_least=0, below=1)
        if self.momentum and self.name != "sgd":
            found = f"momentum={self.momentum} is for sgd; {self.name} has its own."
            raise ConfigError(f"{found} Set it to 0 or use sgd.")


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
    precision: str = "float32"
    """Precision of training without DP: `float32` or `bfloat16`."""
    data: Data = field(default_factory=Data)
    partition: Partition = field(default_factory=Partition)
    models: Models = field(default_factory=Models)
    learning: Learning = field(default_factory=Learning)
    private_optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=0.003)
    )
    proxy_optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=0.1)
    )
    privacy: Privacy = field(default_factory=Privacy)
    exchange: Exchange = field(default_factory=Exchange)
    membership: Membership = field(default_factory=Membership)

    def __post_init__(self) -> None:
        whole("seed", self.seed, at_least=0)
        whole("rounds", self.rounds)
        choice("measure", self.measure, ("auto", *MEASURES))
        whole("evaluate_every", self.evaluate_every)
        whole("checkpoint_every", self.checkpoint_every)
        whole("threads", self.threads)
        number("threads", self.threads, at_most=_MOST_THREADS)
        choice("precision", self.precision, PRECISIONS)
        if not self.methods:
            expected = "Expected at least one method in methods, got none."
            raise ConfigError(f"{expected} See `proxyfl methods`.")
        settle = self.exchange.settle
        if isinstance(settle, int) and settle >= self.rounds:
            raise ConfigError(
                f"exchange.settle={settle} leaves none of {self.rounds} rounds to "
                "train in. Settle for fewer rounds, or raise rounds."
            )
        for name, count in Counter(self.methods).items():
            if count > 1:
                found = f"got {name} more than once"
                raise ConfigError(f"Expected each method once in methods, {found}.")


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """The config in the TOML file at ``path``, or the defaults, changed by ``key=value`` texts."""
    tree: dict[str, Any] = {}
    if path is not None:
        tree = _settings.read_toml(path, "config")
        # what is wrong with the file names the file
        _settings.build(Config, tree, source=path)
    for text in overrides:
        _settings.override(tree, text)
    return from_tree(tree)


def of_run(path: Path) -> Config:
    """The config of the run in the folder ``path``."""
    return load(folder.existing(path) / "config.toml")


def from_tree(tree: Mapping[str, Any]) -> Config:
    """The config that a nested mapping describes; what it does not mention keeps its default."""
    return _settings.build(Config, tree)


def to_toml(config: Config) -> str:
    """The whole config, defaults included, as TOML that ``load`` reads back to an equal one."""
    return _settings.to_toml(config)


def keys() -> list[str]:
    """Every setting's dotted name."""
    return _settings.keys(Config)
