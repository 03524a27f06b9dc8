"""The settings of a study, simulated or real.

    Study   what all members agree on: rounds and their end, the input, the proxy, the graph
    Local   what one institution decides: data, model, learning, privacy, resources

Each setting has its type, default, check and text here and nowhere else. A manifest is a ``Study``
with members, ``site.toml`` is a ``Local`` with a network; ``simulation.config`` has both in one
file, and per-client lists in the place of several ``Local``. So a value is refused everywhere in
the same words. ``federation.assembly`` makes a client of the two.

Nothing here imports torch or the accountants, which take seconds to load; the modules that act on
a setting take the list of its values from here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from proxyfl import tasks
from proxyfl._settings import INTERNAL, PER_CLIENT
from proxyfl._validate import choice, number, whole
from proxyfl.errors import ConfigError
from proxyfl.measures import MEASURES, measure_for
from proxyfl.tasks import Task

OPTIMIZERS = ("adam", "sgd")
PRECISIONS = ("float32", "bfloat16")
BALANCES = ("none", "weights", "prior")
TEACHERS = ("current", "received")
ACCOUNTANTS = ("pld", "rdp")
UNITS = ("record", "group")
PERSON = "person"
"""The other word for the unit ``group``."""
AUTO = "auto"
"""The unit that follows from the schema: a person, if it names one, else a record."""
DEFENCES = ("none", "clip", "median")
PATIENTS = ("all", "own")
EVERY = "every"
"""The population of a study that names none: it counts for all, and all count for it."""
MOST_THREADS = 1024


@dataclass(frozen=True)
class Reading:
    """The form of a table's file, and which of its persons are held out."""

    query: str = ""
    """With the URL of a database as `data.source`: the SELECT whose rows are the table, or a file
    that ends in `.sql`."""
    label: str = "label"
    """The label column of a table without a schema."""
    separator: str = "auto"
    """The separator of a CSV file's fields: `comma`, `semicolon`, `tab`, `bar`, or `auto`."""
    decimal: str = "auto"
    """The decimal sign of a CSV file: `point`, `comma`, or `auto`."""
    encoding: str = "auto"
    """The encoding of a CSV file, such as `utf-8` or `latin-1`, or `auto`."""
    faults: str = "refuse"
    """The treatment of rows that the schema finds at fault: `refuse` the file, or `skip` them and
    say how many."""
    test_fraction: float = 0.2
    """The probability with which a person (or a record, if none is named) is held out for the test
    part, each by itself, where the source has no test part of its own."""

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
class ProxyTerms:
    """This site's terms for the proxy that the manifest names."""

    trust_unproven: bool = False
    """Whether to train a proxy that is not proven to keep records apart, so that its own Python
    must run on one record after the other. Certificates then say that you vouch for its code."""


@dataclass(frozen=True)
class Resources:
    """The parts of this machine that are used."""

    threads: int = 1
    """Threads of the computation; results may differ in their rounding."""
    device: str = "cpu"
    """A PyTorch device, such as `cuda`."""
    precision: str = "float32"
    """Precision of training without DP: `float32` or `bfloat16`."""

    def __post_init__(self) -> None:
        whole("threads", self.threads)
        number("threads", self.threads, at_most=MOST_THREADS)
        choice("precision", self.precision, PRECISIONS)


LARGEST_RATE = 1e4
"""A learning rate above this is a slip: every model would end at chance without a word."""


@dataclass(frozen=True)
class Optimizer:
    """The rule by which gradients become steps."""

    name: str = field(default="adam", metadata=PER_CLIENT)
    """`adam` or `sgd`."""
    learning_rate: float = field(default=0.001, metadata=PER_CLIENT)
    """The learning rate."""
    weight_decay: float = field(default=1e-4, metadata=PER_CLIENT)
    """The weight decay."""
    momentum: float = field(default=0.0, metadata=PER_CLIENT)
    """The momentum of `sgd`."""

    def __post_init__(self) -> None:
        choice("optimizer name", self.name, OPTIMIZERS)
        number("learning_rate", self.learning_rate, above=0, at_most=LARGEST_RATE)
        number("weight_decay", self.weight_decay, at_least=0)
        number("momentum", self.momentum, at_least=0, below=1)
        if self.momentum and self.name != "sgd":
            raise ConfigError(
                f"momentum={self.momentum} is for sgd; {self.name} has its own. Set it to 0 or use "
                "sgd."
            )


PRIVATE_OPTIMIZER = Optimizer(learning_rate=0.003)
PROXY_OPTIMIZER = Optimizer(learning_rate=0.1)


@dataclass(frozen=True)
class Learning:
    """Mutual learning: the weights of its losses, and how long a round is."""

    alpha: float = field(default=0.6, metadata=PER_CLIENT)
    """Weight of the proxy's opinion in the private model's loss."""
    beta: float = field(default=0.0, metadata=PER_CLIENT)
    """Weight of the private model's opinion in the proxy's loss; above 0 epsilon is conditional."""
    teacher: str = field(default="received", metadata=PER_CLIENT)
    """The proxy that teaches the private model: the one `received`, or the `current` one."""
    batch_size: int = field(default=60, metadata=PER_CLIENT)
    """Expected number of examples in a batch; of persons with `privacy.unit = "group"`."""
    steps_per_round: int | None = field(default=None, metadata=PER_CLIENT)
    """Steps in a round; absent: one pass, examples // batch_size steps."""
    balance: str = field(default="none", metadata=PER_CLIENT)
    """The remedy for uneven classes: `weights`, `prior` (logit adjustment), or `none`. A private
    model uses its site's own class counts, a shared model under DP the public `prevalence`."""
    weight: float = field(default=1.0, metadata=PER_CLIENT)
    """Weight of the site's steps under gossip with DP and `sgd`: its noisy gradient is multiplied
    by it. A site of n examples whose noise outweighs its signal counts best for n / (n + d / mu^2)
    (`--smallest` of `proxyfl worth`). State a public number: it leaves with every proxy."""
    choose_for: str = field(default="all", metadata=PER_CLIENT)
    """Whose patients a fitted private model is chosen for: `all` keeps the proxy in the model
    unless the site's own model is surely better; `own` keeps the site's own model unless listening
    to the proxy is surely better on the site's own records."""

    def __post_init__(self) -> None:
        choice("learning.choose_for", self.choose_for, PATIENTS)
        number("learning.weight", self.weight, above=0, at_most=1)
        choice("learning.balance", self.balance, BALANCES)
        number("learning.alpha", self.alpha, at_least=0, at_most=1)
        number("learning.beta", self.beta, at_least=0, at_most=1)
        choice("learning.teacher", self.teacher, TEACHERS)
        whole("learning.batch_size", self.batch_size)
        if self.steps_per_round is not None:
            whole("learning.steps_per_round", self.steps_per_round)


@dataclass(frozen=True, kw_only=True)
class DP:
    """The terms of DP-SGD: its mechanism, and the promise that its ledger makes.

    ``privacy.dpsgd.DPSGD`` takes one as it is. Every value is checked here, once."""

    units: ClassVar[tuple[str, ...]] = UNITS

    noise_multiplier: float = field(default=4.0, metadata=PER_CLIENT)
    """Standard deviation of the noise in units of `clip_norm`."""
    clip_norm: float = field(default=1.0, metadata=PER_CLIENT)
    """Largest norm of one unit's gradient."""
    normalize: bool = field(default=False, metadata=PER_CLIENT)
    """Whether small gradients are scaled up to `clip_norm` as well (automatic clipping), so that
    `clip_norm` need not be tuned apart from the learning rate. It costs no privacy."""
    normalize_gamma: float = field(default=0.01, metadata=PER_CLIENT)
    """With `normalize`: a gradient g counts as clip_norm g / (|g| + gamma), so those far below this
    norm stay small. Any value above 0 costs the same."""
    unit: str = field(default="record", metadata=PER_CLIENT)
    """The unit that is protected: one `record`, or a `group`: a person with all of their records
    (`person` says the same). Absent: a person, if the schema of the data names one, else a record.
    With `group`, batch_size, examples and sampling_rate count persons, whom the data must name."""
    max_per_group: int | None = field(default=None, metadata=PER_CLIENT)
    """With `group`: records of a person in one step, drawn again each time; absent: all of them."""
    max_physical_batch_size: int | None = field(default=None, metadata=PER_CLIENT)
    """Records whose gradients are computed at a time, which bounds memory; a larger batch is worked
    through in slices and gets its noise once. Absent: the whole batch at a time."""
    delta: float | None = field(default=None, metadata=PER_CLIENT)
    """The guarantee's delta; absent: 1 / examples."""
    sampling_rate: float | None = field(default=None, metadata=PER_CLIENT)
    """Probability that an example is in a batch, fixed beforehand, so that nothing released follows
    from the number of examples. Needs `delta`. Absent: batch_size / examples."""
    examples: int | None = field(default=None, metadata=PER_CLIENT)
    """Declared, public number of examples, which may be rounded: the rate, delta and a round's
    length follow from it. Absent: the true number."""
    budget: float | None = field(default=None, metadata=PER_CLIENT)
    """Largest epsilon: who would exceed it with the next step leaves; absent: none."""
    budget_all_others: float | None = field(default=None, metadata=PER_CLIENT)
    """Largest epsilon if all other clients collude, which in `proxysum` is larger than the one that
    `budget` limits. Needs `budget`; absent: none."""
    accountant: str = field(default="pld", metadata=PER_CLIENT)
    """The accountant that keeps the budget: `pld` or `rdp`."""

    def __post_init__(self) -> None:
        choice("privacy.accountant", self.accountant, ACCOUNTANTS)
        if self.unit == PERSON:
            object.__setattr__(self, "unit", "group")
        if self.unit not in self.units:
            choice("privacy.unit", self.unit, (*UNITS, PERSON))
        if self.max_per_group is not None:
            whole("privacy.max_per_group", self.max_per_group)
            if self.unit not in ("group", AUTO):
                raise ConfigError(
                    f"privacy.max_per_group={self.max_per_group} is for privacy.unit = 'group', "
                    f"got {self.unit!r}. Set the unit, or leave max_per_group out."
                )
        if self.max_physical_batch_size is not None:
            whole("privacy.max_physical_batch_size", self.max_physical_batch_size)
        if self.budget is not None:
            number("privacy.budget", self.budget, above=0)
        if self.budget_all_others is not None:
            number("privacy.budget_all_others", self.budget_all_others, above=0)
            if self.budget is None:
                raise ConfigError(
                    f"privacy.budget_all_others={self.budget_all_others:g} is a second limit and "
                    "needs the first, privacy.budget, which is missing. Set both."
                )
        number("privacy.noise_multiplier", self.noise_multiplier, above=0)
        number("privacy.clip_norm", self.clip_norm, above=0)
        number("privacy.normalize_gamma", self.normalize_gamma, above=0)
        if self.normalize_gamma != type(self).normalize_gamma and not self.normalize:
            raise ConfigError(
                f"privacy.normalize_gamma={self.normalize_gamma:g} is for privacy.normalize = "
                "true. Set that, or leave normalize_gamma out."
            )
        if self.delta is not None:
            number("privacy.delta", self.delta, above=0, below=1)
        if self.sampling_rate is not None:
            number("privacy.sampling_rate", self.sampling_rate, above=0, at_most=1)
        if self.examples is not None:
            whole("privacy.examples", self.examples)
        if self.sampling_rate is not None and self.examples is not None:
            raise ConfigError(
                "Expected privacy.sampling_rate or privacy.examples, got both. The rate alone is "
                "enough."
            )
        if self.sampling_rate is not None and self.delta is None:
            raise ConfigError(
                "With privacy.sampling_rate, privacy.delta must be set: its default 1/n would "
                "follow from the data. Use 1/(10 n) for a rounded n, or less."
            )

    @property
    def declared(self) -> bool:
        """True if the sampling rate is known without counting the records."""
        return self.sampling_rate is not None or self.examples is not None


@dataclass(frozen=True, kw_only=True)
class Privacy(DP):
    """DP-SGD of what is shared, and the account that its cost is entered in."""

    account: str | None = None
    """The folder of an account (see `proxyfl ledger`): what real releases have spent on the same
    population counts towards every budget. A run of a simulation is entered as one, and counts for
    nobody else."""
    population: str | None = field(default=None, metadata=PER_CLIENT)
    """The public name that your institution gives to the people whom the records are about, such as
    `cardiology`; several are joined by `+`. Studies of one population count together in the
    account. Absent: every study in the account counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.population is not None:
            populations(self.population)
            if self.account is None:
                raise ConfigError(
                    f"privacy.population={self.population!r} says for whom charges count in an "
                    "account, and none is kept. Set privacy.account (`proxyfl ledger --help`), or "
                    "leave the population out."
                )


@dataclass(frozen=True)
class Defence:
    """The defence against a member that sends poisoned proxies."""

    rule: str = field(default="clip", metadata=PER_CLIENT)
    """"clip": pull what a peer sends towards one's own proxy where it is too far away; "median":
    clip, then take the middle value of each parameter, where two or more proxies are received in a
    round; "none": add up what arrives as it is."""
    radius: float = field(default=3.5, metadata=PER_CLIENT)
    """What is too far away: more than so many times the way that one's own training goes in a
    round, and more than 1.5 times the distance of the other senders."""

    def __post_init__(self) -> None:
        choice("defence.rule", self.rule, DEFENCES)
        number("defence.radius", self.radius, above=0)


@dataclass(frozen=True)
class Synthetic:
    """A made-up federation; the source is `synthetic`."""

    sites: int = 8
    """The number of sites."""
    examples: int = 200
    """Training examples of a site, on average."""
    unequal: float = 0.0
    """How unequal the sites are: the standard deviation of the logarithm of their sizes."""
    prevalence: float = 0.3
    """The share of cases, over all sites."""
    signal: float = 0.8
    """The AUROC of the true score at its own site."""
    columns: int = 20
    """The number of columns."""
    binary: float = 0.5
    """The share of columns that are yes/no; the others are measurements."""
    relevant: float = 0.5
    """The share of columns that the outcome depends on, the first of them most."""
    heterogeneity: float = 0.0
    """How much sites of one kind differ: the standard deviation by which a site's coefficients are
    off, in parts of the coefficients' own."""
    shift: float = 0.0
    """How much the sites' prevalence differs: the standard deviation of its logit."""
    kinds: int = 1
    """The number of kinds of sites, which take turns."""
    likeness: float = 0.0
    """The correlation of two kinds' true scores."""
    tests: int = 200
    """Test examples of a site."""

    def __post_init__(self) -> None:
        for name in ("sites", "columns", "kinds"):
            whole(f"data.synthetic.{name}", getattr(self, name))
        for name in ("examples", "tests"):
            whole(f"data.synthetic.{name}", getattr(self, name), at_least=10)
        for name in ("unequal", "heterogeneity", "shift"):
            number(f"data.synthetic.{name}", getattr(self, name), at_least=0)
        for name in ("binary", "likeness"):
            number(f"data.synthetic.{name}", getattr(self, name), at_least=0, at_most=1)
        number("data.synthetic.relevant", self.relevant, above=0, at_most=1)
        number("data.synthetic.prevalence", self.prevalence, above=0, below=1)
        number("data.synthetic.signal", self.signal, above=0.5, below=0.99)
        if self.kinds > self.sites:
            raise ConfigError(
                f"data.synthetic.kinds={self.kinds} is more than data.synthetic.sites="
                f"{self.sites}. A kind needs a site."
            )

    def kind(self, site: int) -> int:
        """The kind of a site."""
        return site % self.kinds

    def name(self, site: int) -> str:
        """The name of a site; where there are several kinds, it begins with the kind's letter."""
        number = f"{site:0{len(str(self.sites - 1))}d}"
        if self.kinds == 1:
            return f"site-{number}"
        return f"{chr(ord('a') + self.kind(site))}-{number}"


@dataclass(frozen=True)
class Local:
    """One institution's own decisions. Nothing of it is shared."""

    name: str
    """The name of the site in its federation."""
    data: Reading = field(default_factory=Reading)
    model: Model = field(default_factory=Model)
    proxy: ProxyTerms = field(default_factory=ProxyTerms)
    learning: Learning = field(default_factory=Learning)
    private_optimizer: Optimizer = PRIVATE_OPTIMIZER
    proxy_optimizer: Optimizer = PROXY_OPTIMIZER
    privacy: Privacy = field(default_factory=Privacy)
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True)
class Input:
    """The form of an example at every site."""

    shape: tuple[int, ...] = ()
    """The shape of one example: channels, height, width; or the number of columns of a table."""
    classes: tuple[str, ...] = ()
    """The classes, in the order of the proxy's outputs; of another task, what each output says."""
    outcome: Task | None = field(default=None, metadata=INTERNAL)
    """What is predicted, if it is not one of the classes. A schema states it."""

    def __post_init__(self) -> None:
        for size in self.shape:
            whole("input.shape", size)
        if len(set(self.classes)) != len(self.classes) or not self.classes:
            raise ConfigError(f"Expected distinct input.classes, got {list(self.classes)}.")

    @classmethod
    def of(cls, shape: Sequence[int], task: Task) -> Self:
        """The input of examples of this shape for a task."""
        outcome = None if task.is_classification else task
        return cls(tuple(shape), task.output_names, outcome)

    @property
    def task(self) -> Task:
        """The task to predict."""
        return tasks.classification(self.classes) if self.outcome is None else self.outcome


@dataclass(frozen=True)
class Proxy:
    """The model that travels."""

    architecture: str = "linear"
    """An architecture that `proxyfl models` lists, or code, "package.module:factory", that each
    site has installed and trusts."""
    seed: int = 0
    """The seed of the initial parameters, which are the same everywhere."""
    balance: str = "none"
    """The remedy for uneven classes in the proxy's loss: `weights`, `prior`, or `none`. Proxies
    that are mixed must have the same."""
    prevalence: tuple[float, ...] = ()
    """The publicly known share of each class, which a balance needs; with `none` it sets the
    proxy's first bias. Empty: that of the schema, if it states one."""

    def __post_init__(self) -> None:
        if not (self.architecture.isprintable() and len(self.architecture) <= 200):
            raise ConfigError(
                "Expected a proxy.architecture of at most 200 printable characters, got "
                f"{self.architecture!r:.80}."
            )
        choice("proxy.balance", self.balance, BALANCES)
        for share in self.prevalence:
            number("prevalence", share, above=0, below=1)


@dataclass(frozen=True)
class Graph:
    """The graph: each site's receivers and shares."""

    topology: str = "exponential"
    """One of `proxyfl topology`."""
    self_weight: float | None = 0.5
    """The share that a site keeps. Above 0, so that a site never depends on one message."""
    degree: int | None = None
    """The number of receivers of a site, for the topology "random"."""
    kinds: tuple[str, ...] = ()
    """The kind of each member, in their order, such as `["urban", "urban", "rural", "rural"]`.
    Members exchange with those of their own kind alone, so there is one proxy for each kind. Empty:
    all are of one kind."""

    def __post_init__(self) -> None:
        if self.self_weight is not None:
            number("self_weight", self.self_weight, at_least=0, below=1)
        if self.degree is not None:
            whole("degree", self.degree)


@dataclass(frozen=True)
class Study:
    """The terms that all members agree on."""

    name: str
    """The federation's name."""
    rounds: int = 60
    """Number of rounds, those in which proxies only mix included."""
    settle: int = 0
    """The number of last rounds in which proxies only mix, which costs no privacy."""
    average: float = 0.0
    """The share of the training rounds, counted from their end, whose proxies each site averages
    before they settle."""
    measure: str = "accuracy"
    """The measure in which sites report what joining gained them."""
    input: Input = field(default_factory=lambda: Input((1,), ("0", "1")))
    proxy: Proxy = field(default_factory=Proxy)
    graph: Graph = field(default_factory=Graph)

    def __post_init__(self) -> None:
        whole("rounds", self.rounds)
        check_settling(self.settle, self.average, self.rounds)
        choice("measure", self.measure, MEASURES)
        # Here and not in the input: a schema may say later that one output is a value.
        if self.task.is_classification and len(self.input.classes) < 2:
            raise ConfigError(
                f"Expected two or more distinct input.classes, got {list(self.input.classes)}."
            )
        if not self.task.is_classification:
            measure_for(self.measure, self.task.kind)
            check_unbalanced("proxy.balance", self.proxy.balance, self.task)
            if self.proxy.prevalence:
                raise ConfigError(
                    f"A prevalence is the share of each class, and the task is {self.task.kind}. "
                    "Leave it out."
                )

    @property
    def prevalence(self) -> tuple[float, ...]:
        """The publicly known share of each class; empty if none is stated."""
        return self.proxy.prevalence

    def published_score(self) -> tuple[float, ...]:
        """The published score that the proxy starts from: each feature's coefficient in the log
        odds of the second class, and the intercept; empty if there is none."""
        return ()

    @property
    def task(self) -> Task:
        """The task that all members predict."""
        return self.input.task

    @property
    def training_rounds(self) -> int:
        """The number of rounds in which proxies take steps."""
        return self.rounds - self.settle

    def public_shares(self) -> tuple[float, ...]:
        """``prevalence``, which a proxy's balance or first bias needs; ConfigError if it does not
        fit."""
        shares = self.prevalence
        if not shares:
            raise ConfigError(
                f"A balance of {self.proxy.balance!r} needs the publicly known share of each class "
                "for a model that is shared under DP: sites' own counts are private. Give the "
                "prevalence: proxy.prevalence of a manifest, learning.prevalence of a run, or "
                "label.prevalence of a schema."
            )
        if len(shares) != len(self.input.classes):
            raise ConfigError(
                f"Expected a share for each of {len(self.input.classes)} classes in the "
                f"prevalence, got {len(shares)}."
            )
        if abs(sum(shares) - 1) > 1e-6:
            raise ConfigError(
                f"Expected shares that add up to 1 in the prevalence, got {sum(shares):g}."
            )
        return shares


def check_unbalanced(setting: str, balance: str, task: Task) -> None:
    """Raise ConfigError for a remedy for uneven classes where there are no classes."""
    if balance != "none" and not task.is_classification:
        raise ConfigError(
            f"{setting}={balance!r} makes up for uneven classes, and the task is {task.kind}. "
            'Set it to "none".'
        )


def check_settling(settle: int, average: float, rounds: int) -> None:
    """Raise ConfigError unless ``settle`` leaves rounds to train in, and a mean has rounds to mix
    in."""
    whole("settle", settle, at_least=0)
    number("average", average, at_least=0, at_most=1)
    if settle >= rounds:
        raise ConfigError(
            f"settle={settle} leaves none of {rounds} rounds to train in. Settle for fewer rounds, "
            "or raise rounds."
        )
    if average and not settle:
        raise ConfigError(
            f"average={average:g} needs last rounds in which the averaged proxies mix. Set settle."
        )


def populations(text: str | None) -> tuple[str, ...]:
    """The populations that a setting names, sorted; ``EVERY`` alone for None."""
    if text is None:
        return (EVERY,)
    names = sorted({name.strip() for name in text.split("+")})
    strange = [name for name in names if not (0 < len(name) <= 100 and name.isprintable())]
    if strange or (EVERY in names and len(names) > 1):
        raise ConfigError(
            f"Expected names of populations with + between them, got {text!r:.120}. A name has 1 "
            f"to 100 printable characters; {EVERY!r} means all of them and is given alone."
        )
    return tuple(names)


def rounds_to_settle(clients: int, rounds: int) -> int:
    """The number that `settle = "auto"` stands for: enough last rounds for what spreads by doubling
    to reach everyone, and one more for the private models."""
    return min(math.ceil(math.log2(clients)) + 1, rounds - 1)
