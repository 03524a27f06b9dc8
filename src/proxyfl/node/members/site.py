"""site.toml: a site's own business. Nothing of it is shared with anybody.

The file lies in the site's folder beside its keys, its store and its ledger. Paths in it are
relative to that folder.
"""

from dataclasses import dataclass, field
from pathlib import Path

from proxyfl import _settings
from proxyfl._validate import choice, number, whole
from proxyfl.errors import ConfigError
from proxyfl.federation.trainers import Optimizer
from proxyfl.losses import BALANCES
from proxyfl.node.members.card import check_name
from proxyfl.privacy.accounting import ACCOUNTANTS
from proxyfl.privacy.guarantee import Unit

FILE = "site.toml"


@dataclass(frozen=True)
class Data:
    """This site's examples."""

    source: str = "data.npz"
    """A file, a folder, or one of the datasets that `proxyfl data` lists."""
    label: str = "label"
    """The label column of a table for which the manifest has no schema."""
    test: str = ""
    """A table's own test part, a file of the same name in another folder; empty: some persons are
    held out."""
    separator: str = "auto"
    """The separator of a CSV file's columns: `comma`, `semicolon`, `tab`, `bar`, or `auto`."""
    decimal: str = "auto"
    """The decimal sign of a CSV file: `point`, `comma`, or `auto`."""
    encoding: str = "auto"
    """The encoding of a CSV file, such as `utf-8` or `latin-1`, or `auto`."""
    faults: str = "refuse"
    """Rows with faults: `refuse` the file, or `skip` them and say how many."""
    test_fraction: float = 0.2
    """The part of the examples that is kept for judging, if the source has no test part."""
    seed: int = 0
    """The seed that draws those examples."""

    def __post_init__(self) -> None:
        number("data.test_fraction", self.test_fraction, above=0, below=1)
        choice("data.faults", self.faults, ("refuse", "skip"))


@dataclass(frozen=True)
class Model:
    """The private model. It never leaves the site."""

    architecture: str = "mlp"
    """Any architecture of `proxyfl models`, or your own "module:function"; or an estimator that is
    fitted: `logistic`, `trees`, or a classifier of scikit-learn's kind, "module:Class"."""
    residual: bool = True
    """Whether the private model learns what the received proxy leaves open."""


@dataclass(frozen=True)
class Learning:
    """The learning of both models, and the length of a round."""

    alpha: float = 0.6
    """The weight of the proxy's advice to the private model."""
    beta: float = 0.0
    """The weight of the private model's advice to the proxy; above 0, epsilon is conditional."""
    teacher: str = "received"
    """The proxy that teaches: the one received, or the current one."""
    batch_size: int = 60
    """The expected number of examples (persons, with `privacy.unit = "group"`) in a batch."""
    steps_per_round: int | None = None
    """Steps in a round; absent, one pass over the examples."""
    balance: str = "none"
    """The remedy for uneven classes in the private model's loss, by this site's own counts:
    `weights`, `prior` (logit adjustment), or `none`. The proxy's is in the manifest."""

    def __post_init__(self) -> None:
        choice("learning.balance", self.balance, BALANCES)
        number("learning.alpha", self.alpha, at_least=0, at_most=1)
        number("learning.beta", self.beta, at_least=0, at_most=1)
        choice("learning.teacher", self.teacher, ("current", "received"))
        whole("learning.batch_size", self.batch_size)
        if self.steps_per_round is not None:
            whole("learning.steps_per_round", self.steps_per_round)


@dataclass(frozen=True)
class Privacy:
    """The protection of this site's records."""

    unit: str = "record"
    """The unit that is protected: one `record`, or a `group`: a person with all of their records.
    With `group`, batch_size, examples and sampling_rate count persons, whom the data must name."""
    max_per_group: int | None = None
    """With `group`: records of a person in one step, drawn anew each time; absent: all of them."""
    max_physical_batch_size: int | None = None
    """Records whose gradients are computed at a time, which bounds memory; a larger batch is worked
    through in slices and gets its noise once. Absent: the whole batch at a time."""
    noise_multiplier: float = 4.0
    clip_norm: float = 1.0
    delta: float | None = None
    """The guarantee's delta; absent, one over the number of examples."""
    sampling_rate: float | None = None
    """The share of examples that a step draws, fixed beforehand: nothing that is released then
    follows from how many examples there are (relation add-or-remove). Needs ``delta``."""
    examples: int | None = None
    """A declared, public number of examples, which may be rounded, in place of the true one."""
    budget: float | None = 5.0
    """The epsilon that this site's records may cost in all. It can be lowered, never raised."""
    accountant: str = "pld"
    account: str | None = None
    """The folder of this institution's account (see `proxyfl ledger`): what other studies have
    spent on the same records counts towards the budget, and this site's spending is entered."""

    def __post_init__(self) -> None:
        number("privacy.noise_multiplier", self.noise_multiplier, above=0)
        number("privacy.clip_norm", self.clip_norm, above=0)
        choice("privacy.accountant", self.accountant, ACCOUNTANTS)
        choice("privacy.unit", self.unit, tuple(Unit))
        if self.max_per_group is not None:
            whole("privacy.max_per_group", self.max_per_group)
        if self.max_physical_batch_size is not None:
            whole("privacy.max_physical_batch_size", self.max_physical_batch_size)
        if self.delta is not None:
            number("privacy.delta", self.delta, above=0, below=1)
        if self.sampling_rate is not None:
            number("privacy.sampling_rate", self.sampling_rate, above=0, at_most=1)
        if self.examples is not None:
            whole("privacy.examples", self.examples)
        if self.budget is not None:
            number("privacy.budget", self.budget, above=0)

    @property
    def declared(self) -> bool:
        """True if the sampling rate is known without counting this site's records."""
        return self.sampling_rate is not None or self.examples is not None


@dataclass(frozen=True)
class Network:
    """The connections to the other sites."""

    listen: str = "0.0.0.0:7443"
    """The address to listen on; empty for a site that can only dial out."""
    patience: float = 600.0
    """Seconds that a round waits for a peer before it continues without it."""
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
        number("network.heartbeat", self.heartbeat, above=0)
        number("network.timeout", self.timeout, above=0)


@dataclass(frozen=True)
class Defence:
    """The defence against a member that sends poisoned proxies."""

    rule: str = "none"
    """"none"; "clip": pull what is received towards one's own proxy; "median": clip, then take the
    middle value of each parameter, where two or more proxies are received in a round."""
    radius: float = 3.5
    """The largest distance of a received proxy, in multiples of one's own way in a round."""
    most_weight: float = 4.0
    """The largest weight of a share, in multiples of one's own."""

    def __post_init__(self) -> None:
        choice("defence.rule", self.rule, ("none", "clip", "median"))
        number("defence.radius", self.radius, above=0)
        number("defence.most_weight", self.most_weight, above=0)


@dataclass(frozen=True)
class Resources:
    """The parts of this machine that are used."""

    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        whole("resources.threads", self.threads)


@dataclass(frozen=True)
class Site:
    """One site's settings."""

    name: str
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    learning: Learning = field(default_factory=Learning)
    private_optimizer: Optimizer = field(
        default_factory=lambda: Optimizer("adam", 0.01, 1e-4)
    )
    proxy_optimizer: Optimizer = field(
        default_factory=lambda: Optimizer("adam", 0.05, 1e-4)
    )
    privacy: Privacy = field(default_factory=Privacy)
    network: Network = field(default_factory=Network)
    defence: Defence = field(default_factory=Defence)
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        check_name(self.name)


def read(path: Path) -> tuple[Site, Path]:
    """The settings in ``path`` (a file, or a folder's site.toml), and the site's folder."""
    file = path / FILE if path.is_dir() else path
    if not file.exists():
        raise ConfigError(
            f"No {FILE} in {path}. `proxyfl node init` makes a site's folder."
        )
    tree = _settings.read_toml(file, "site")
    return _settings.build(Site, tree, source=file), file.parent


def to_toml(site: Site) -> str:
    """The settings as a file, with what could be set in comments."""
    return _settings.to_toml(site, complete=True)
