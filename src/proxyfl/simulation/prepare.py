"""Validates a run before anything is written, and plans who takes part in which round."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from proxyfl._command import command
from proxyfl._files import short_hash
from proxyfl._validate import choice
from proxyfl.data import Dataset
from proxyfl.data.examples import Absent, Subset, checksum, gather, is_in_memory
from proxyfl.errors import ConfigError
from proxyfl.federation import membership
from proxyfl.federation.masked import Plan
from proxyfl.federation.membership import Allowance, Presence
from proxyfl.federation.methods import METHODS, Method
from proxyfl.gossip import topology
from proxyfl.gossip.topology import Topology
from proxyfl.measures import DEFAULTS, default_measure, measure_for
from proxyfl.privacy.account import Kept
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.guarantee import Kind, Unit, kind_of
from proxyfl.privacy.ledger import Budget, Ledger
from proxyfl.privacy.planning import check_small
from proxyfl.settings import Input, Local, Proxy, Study
from proxyfl.simulation.clients import Assembly, pooled_population
from proxyfl.simulation.config import Config, to_toml
from proxyfl.simulation.division import ClientData, load_data, pooled, split


@dataclass
class Prepared:
    """A run that was found to be in order: settings, data, and who is present when."""

    config: Config
    dataset: Dataset
    clients: list[ClientData]
    methods: Mapping[str, Method]
    study: Study
    locals: list[Local]
    """Each client's own decisions."""
    presences: Mapping[str, Sequence[Presence]] = field(default_factory=dict)
    sums: dict[str, Plan] = field(default_factory=dict)

    @cached_property
    def topology(self) -> Topology:
        """The topology that the config names; made where it is needed, as it cannot be sent."""
        return topology_of(self.config)

    def clients_of(self, method: str) -> list[ClientData]:
        """The clients' data under a method: everyone's own, or all of it in one place."""
        if self.methods[method].pooled:
            return [pooled(self.clients, self.dataset.train)]
        return self.clients

    def assembly(self, method: str) -> Assembly:
        """The assembly of a method's clients."""
        row = row_of(self.config, self.methods[method])
        clients = self.clients_of(method)
        locals = [self._pooled_local()] if row.pooled else self.locals
        return Assembly(self.config, self.study, row, self.dataset, clients, locals)

    def _pooled_local(self) -> Local:
        """The decisions for pooled data: the first value of each list. They are nobody's own, so
        that their rate follows from their number, which no one declares."""
        local = self.config.local
        privacy = replace(
            local.privacy,
            sampling_rate=None,
            examples=None,
            population=pooled_population(self.locals),
        )
        return replace(local, name="joint", privacy=privacy)

    def only(self, own: Collection[int]) -> "Prepared":
        """The same run for a process that has the clients in ``own``, with no others' examples.

        The one that has client 0 also has the pooled client, and with it everyone's examples. What
        is read from a file stays there.
        """
        pooled_ones = [self.methods[name].pooled for name in self.config.methods]
        pools = 0 in own and any(pooled_ones)
        rows = []
        for i, client in enumerate(self.clients):
            is_here = pools or i in own
            rows.append(client.rows if is_here else client.rows[:0])
        dataset = self.dataset
        if is_in_memory(dataset.train):
            kept = torch.cat(rows).sort().values
            test = dataset.test
            if is_in_memory(test):
                test = gather(test)
            train = gather(Subset(dataset.train, kept))
            dataset = dataset.holding(train, test)
            rows = [torch.searchsorted(kept, part) for part in rows]
        clients = []
        for client, part in zip(self.clients, rows, strict=True):
            examples = Subset(dataset.train, part)
            clients.append(replace(client, rows=part, examples=examples))
        return replace(self, dataset=dataset, clients=clients)

    def release_examples(self) -> None:
        """Forget the inputs, once other processes hold them; names, labels and rows stay."""
        train = Absent.like(self.dataset.train)
        test = Absent.like(self.dataset.test)
        self.dataset = self.dataset.holding(train, test)
        self.clients = [client.without_inputs() for client in self.clients]


def prepare(
    config: Config, *, dataset: Dataset | None = None, methods: Mapping[str, Method] = METHODS
) -> Prepared:
    """Load and check all that a run needs; raise ``InputError`` if something does not fit."""
    if not isinstance(config, Config):
        raise ConfigError(
            f"Expected a proxyfl.Config, got {type(config).__name__}. Config() has the settings "
            "of the demo; proxyfl.simulation.config.load reads them from a file."
        )
    for name in config.methods:
        choice("method", name, methods)
    coalition = (config.exchange.colluders, config.exchange.quorum)
    masked = any(methods[name].exchange == "masked" for name in config.methods)
    if coalition != (None, None) and not masked:
        raise ConfigError(
            "exchange.colluders and exchange.quorum are the terms of a masked sum, and none of the "
            f"methods is one: {', '.join(config.methods)}. Add proxysum to methods, or leave them "
            "out."
        )
    _check_device(config.device)
    torch.set_num_threads(config.threads)
    dataset = dataset if dataset is not None else load_data(config)
    config = replace(config, measure=_measure(config, dataset))
    clients = split(config, dataset)
    study = study_of(config, dataset, len(clients))
    locals = config.locals([client.name for client in clients])
    kinds = config.exchange.kinds
    if kinds and len(kinds) != len(clients):
        raise ConfigError(
            f"Expected the kind of each of the {len(clients)} clients in exchange.kinds, got "
            f"{len(kinds)}. List one for each, in their order, or leave it out."
        )
    prepared = Prepared(config, dataset, clients, methods, study, locals)
    # refused now if it cannot be made, whether or not a method uses it
    graph = prepared.topology
    presences = {}
    for name in config.methods:
        assembly = prepared.assembly(name)
        assembly.check_models()
        if methods[name].exchange == "masked":
            prepared.sums[name] = assembly.masked_sum()
        presences[name] = _plan(assembly)
        if methods[name].exchange == "pushsum":
            membership.rehearse(graph, presences[name], config.exchange.kinds)
    prepared.presences = presences
    return prepared


def _measure(config: Config, dataset: Dataset) -> str:
    """The run's measure, which must be one of its task."""
    task = dataset.task
    if config.measure != "auto":
        return measure_for(config.measure, task.kind)
    if task.is_classification:
        return default_measure(dataset.test.labels.numpy(), dataset.classes)
    return DEFAULTS[task.kind]


@dataclass(frozen=True)
class Simulated(Study):
    """The study of a simulation, with the published score of its dataset's schema."""

    published: tuple[float, ...] = ()

    def published_score(self) -> tuple[float, ...]:
        return self.published


def study_of(config: Config, dataset: Dataset, clients: int) -> Study:
    """The study: all that the clients of a run agree on."""
    learning = config.learning
    balance = learning.proxy_balance
    if balance is None:
        balance = learning.balance
        if len(set(config.each.get("learning.balance", ()))) > 1:
            raise ConfigError(
                "learning.balance differs between clients, and the loss of what they share must "
                "be the same for all. Set learning.proxy_balance."
            )
    prevalence = learning.prevalence or tuple(dataset.prevalence)
    return Simulated(
        "simulation",
        rounds=config.rounds,
        settle=config.exchange.settling(clients, config.rounds),
        average=config.exchange.average,
        measure=config.measure,
        input=Input.of(dataset.shape, dataset.task),
        proxy=Proxy(config.models.proxy, proxy_seed(config), balance, prevalence),
        graph=config.exchange,
        published=dataset.published,
    )


def row_of(config: Config, method: Method) -> Method:
    """A method's row as the config has it: without DP where that is switched off, and with the
    architecture that it names for single models. ``alone`` keeps its own."""
    architecture = method.architecture
    if method.keeps != "private" and config.models.single is not None:
        architecture = "private" if config.models.single == "private" else "proxy"
    return replace(method, dp=method.dp and config.privacy.enabled, architecture=architecture)


def topology_of(config: Config) -> Topology:
    """The topology that the config names."""
    return topology.from_graph(config.exchange, seed=proxy_seed(config))


def proxy_seed(config: Config) -> int:
    """The seed of what all clients begin with and send by: the first proxy, a random graph."""
    seed = config.models.proxy_seed
    return config.seed if seed is None else seed


def identity(config: Config) -> str:
    """A hash that a checkpoint must agree with: of all settings that results depend on."""
    return short_hash(to_toml(config).encode())


def fingerprint(prepared: Prepared) -> int:
    """A checksum of all clients' data: a resumed run must find the same."""
    total = 0
    for client in prepared.clients:
        total = checksum(client.examples, total)
    return total


def _plan(assembly: Assembly) -> list[Presence]:
    """The clients present in each round. A method without exchange has no federation to leave but
    by its budget."""
    config, clients = assembly.config, len(assembly.clients)
    allowances = _allowances(assembly)
    if not assembly.method.shares:
        return membership.plan(clients, config.rounds, allowances=allowances)
    return membership.plan(
        clients,
        config.rounds,
        schedule=config.membership.schedule,
        absence=config.membership.absence,
        seed=config.seed,
        allowances=allowances,
        settling=assembly.settling,
    )


LARGEST_DELTA = 0.01
"""A delta above this is refused where it is above 1/n, too: it promises nothing."""


def _allowances(assembly: Assembly) -> dict[int, Allowance]:
    """Each client's steps in a round, and the number that its budget allows in all."""
    mutual = assembly.method.mutual
    known: dict[tuple[object, ...], int | None] = {}  # many clients, few settings
    allowances = {}
    for i, client in enumerate(assembly.clients):
        sampling = assembly.sampling(i)
        rate = sampling.rate
        steps = assembly.steps(i)
        local = assembly.locals[i]
        dp = local.privacy
        beta = local.learning.beta if mutual else 0.0
        kind = kind_of(dp=assembly.method.dp, teacher_weight=beta)
        account = assembly.account(i)
        ledger = Ledger(
            client.name,
            delta=dp.delta or sampling.default_delta(),
            kind=kind,
            simulated=True,
            unit=Unit(dp.unit),
            budget=Budget.of(dp),
        )
        if kind is not Kind.NONE and ledger.delta > LARGEST_DELTA:
            check_small(ledger.delta, max(1, math.floor(sampling.batch_size / rate)))
        if account is not None and kind is not Kind.NONE:
            account.keep(ledger)
        case = (rate, steps, dp, kind, ledger.delta)
        if case not in known:
            known[case] = _steps_in_all(
                ledger,
                rate,
                dp.noise_multiplier,
                assembly.training_rounds * steps,
                assembly.coalition,
            )
        if known[case] == 0:
            raise _nothing_left(i, ledger, account)
        allowances[i] = Allowance(steps, known[case])
    return allowances


def _steps_in_all(
    ledger: Ledger, rate: float, noise_multiplier: float, limit: int, coalition: Coalition | None
) -> int | None:
    """The number of ``limit`` steps that the budget allows; None if it allows them all."""
    if ledger.kind is Kind.NONE:
        return None
    if ledger.budget is None and ledger.page is None:
        return None
    steps = ledger.affordable_steps(rate, noise_multiplier, limit, coalition)
    return None if steps == limit else steps


def _nothing_left(client: int, ledger: Ledger, account: Kept | None) -> ConfigError:
    limit = "that of its account"
    if ledger.budget is not None:
        epsilon, accountant = ledger.budget.epsilon, ledger.budget.accountant
        limit = f"epsilon {epsilon:g} by {accountant}, {ledger.kind}"
    earlier = ""
    if account is not None and ledger.page is not None:
        earlier = (
            " What earlier releases spent on the same population counts. To see how much is left, "
            f"run: {command('ledger', 'list', account.folder)}"
        )
    return ConfigError(
        f"The budget of client {client} ({limit}) does not cover a single step. Raise "
        f"privacy.budget or privacy.noise_multiplier, or use smaller batches.{earlier}"
    )


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        there = ["cpu"]
        if torch.cuda.is_available():
            there.append("cuda")
        if torch.backends.mps.is_available():
            there.append("mps")
        reason = str(error).splitlines()[0]
        if reason.startswith("Expected one of"):  # torch lists twenty kinds of devices
            reason = "PyTorch knows no such device" + (
                "; a GPU is called cuda." if device == "gpu" else "."
            )
        raise ConfigError(
            f"Cannot use device={device!r}: {reason} This machine has: {', '.join(there)}. Set "
            'device="cpu" or another of them.'
        ) from error
