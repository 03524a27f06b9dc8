"""The view that peers have of one client: its proxy at the start of each round and as it was
released.

The federation runs as configured, through the code of every run (``simulation.prepare``,
``federation.rounds``). Two things differ: the audited client has the planted canaries in place of
its own records, and the exchange is watched. A peer knows where a round starts: the client keeps
the share that it sends, and what it receives was sent by peers.

Guarantees:
    * the observer sees parameters before and after local training and nothing else of a client: no
      batches, noise, losses or optimizer states;
    * the audited client samples at the rate, adds the noise and takes the steps that the config
      gives it; its rate is stated, so that it does not follow from the coins;
    * the claimed epsilon is the one that the client's own ledger states at the end.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl._validate import choice, whole
from proxyfl.audit.canaries import Canaries, enlarge, make, of_task
from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError
from proxyfl.federation import exchange
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import Exchange, Traffic
from proxyfl.federation.methods import METHODS
from proxyfl.federation.rounds import run_rounds
from proxyfl.gossip.pushsum import Mass
from proxyfl.privacy.guarantee import Epsilon
from proxyfl.seeds import stream
from proxyfl.simulation.clients import evaluator
from proxyfl.simulation.config import Config, Optimizer, with_method
from proxyfl.simulation.division import ClientData
from proxyfl.simulation.engines import mixing_of
from proxyfl.simulation.prepare import Prepared, prepare
from proxyfl.transport.memory import MemoryTransport

MOST_CANARIES = 600
MOST_ANCHORS = 64

Progress = Callable[[int], None]
"""Hears how many rounds, or federations, are done."""


def silent(_done: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Mechanism:
    """The audited client's public statements about its training."""

    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    divisor: int
    optimizer: Optimizer


@dataclass
class Seen:
    """One client's rounds as its peers see them, in order."""

    starts: list[Tensor] = field(default_factory=list)
    releases: list[Tensor] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Observation:
    """A run of the configured mechanism on planted canaries, as peers see it."""

    method: str
    client: int
    mechanism: Mechanism
    canaries: Canaries
    model: nn.Module
    seen: Mapping[int, Seen]
    claimed: Epsilon

    @property
    def audited(self) -> Seen:
        """The audited client's rounds."""
        return self.seen[self.client]


def method_of(config: Config, method: str | None) -> str:
    """The method to audit: the one named, or the config's last that shares a model with DP."""
    if method is not None:
        if method in METHODS and METHODS[method].exchange == "masked":
            raise ConfigError(
                f"This audit watches what one client releases, and in {method} nobody sees that: "
                "only sums over clients. Audit another method, for example proxyfl."
            )
        return choice("method", method, filter(_shares, METHODS))
    sharing = list(filter(_shares, config.methods))
    if not sharing:
        raise ConfigError(
            f"None of the methods {', '.join(config.methods)} shares a model that is trained with "
            "DP, so there is nothing to audit. Name one with --method, for example proxyfl."
        )
    return sharing[-1]


def observe(
    config: Config,
    *,
    method: str,
    client: int = 0,
    canaries: int | None = None,
    progress: Progress = silent,
) -> Observation:
    """Run ``config`` with planted canaries in place of the records of ``client``, and watch."""
    if not config.privacy.enabled:
        raise ConfigError(
            "privacy.enabled is false: the training promises nothing, so there is no claim to "
            "audit. Set it to true."
        )
    prepared = prepare(with_method(config, method))
    check_client(prepared, client)
    model = initial_model(prepared, method)
    planted = _canaries(prepared, method, client, model, canaries)
    audited = with_records(
        prepared, method, client, planted.examples(), expected=planted.expected_records
    )
    everyone, seen = watched_run(audited, method, progress)
    mechanism = _mechanism(audited, method, client)
    claimed = everyone[client].ledger.epsilon()
    return Observation(method, client, mechanism, planted, model, seen, claimed)


def check_client(prepared: Prepared, client: int) -> None:
    """ConfigError unless there is such a client."""
    whole("client", client, at_least=0)
    if client >= len(prepared.clients):
        raise ConfigError(
            f"Expected a client from 0 to {len(prepared.clients) - 1}, got client={client}."
        )


def _shares(name: str) -> bool:
    row = METHODS[name]
    return row.dp and row.shares and row.exchange != "masked"


def initial_model(prepared: Prepared, method: str) -> nn.Module:
    """The shared model as everybody starts from it."""
    return prepared.assembly(method).client(0).learner.shared.cpu()


def _canaries(
    prepared: Prepared, method: str, client: int, model: nn.Module, count: int | None
) -> Canaries:
    """Canaries for the model: by default a fifth as many as it has parameters, at most 600.

    As many as it has parameters would leave no direction in which noise is seen alone."""
    size = params.size(model)
    if count is not None and count >= size:
        raise ConfigError(
            f"Expected fewer canaries than the {size} parameters of {method}'s shared model, got "
            f"{count}: what they add could not be told from the noise. Leave --canaries out, or "
            f"give at most {max(2, size // 2)}."
        )
    count = count or max(2, min(MOST_CANARIES, size // 5))
    dataset = prepared.dataset
    generator = stream(prepared.config.seed, "canaries", client)
    anchors = min(MOST_ANCHORS, size // 8, count)
    task = dataset.task
    classes = dataset.classes if task.is_classification else 2
    made = make(count, dataset.shape, classes, generator, anchors=anchors)
    if not task.is_classification:
        made = of_task(made, task)
    return enlarge(made, model, prepared.assembly(method).locals[client].privacy.clip_norm)


def with_records(
    prepared: Prepared, method: str, client: int, examples: InMemory, *, expected: int
) -> Prepared:
    """The same run in which ``client`` has other records, of which it has ``expected`` on average.

    Its rate and delta are stated as they were, and its batch size follows from ``expected``.
    Nothing of these depends on the records.
    """
    assembly = prepared.assembly(method)
    locals = []
    for each, local in enumerate(prepared.locals):
        sampling = assembly.sampling(each)
        batch_size = local.learning.batch_size
        if each == client:
            batch_size = max(1, round(sampling.rate * expected))
        learning = replace(
            local.learning, batch_size=batch_size, steps_per_round=assembly.steps(each)
        )
        privacy = replace(
            local.privacy,
            sampling_rate=sampling.rate,
            examples=None,
            delta=local.privacy.delta or sampling.default_delta(),
        )
        locals.append(replace(local, learning=learning, privacy=privacy))
    clients = list(prepared.clients)
    rows = torch.arange(len(examples))
    clients[client] = ClientData(clients[client].name, rows, examples)
    return replace(prepared, clients=clients, locals=locals)


def _watching(inner: Exchange, starts: dict[int, Tensor], notes: Mapping[int, Seen]) -> Exchange:
    """``inner``, with what it moves noted; ``starts`` is where each client's round starts."""

    def watched(
        round: int, masses: Mapping[int, Mass], *, present: Sequence[int], leaving: Set[int]
    ) -> tuple[dict[int, Mass], dict[int, Traffic]]:
        for client, mass in masses.items():
            seen = notes[client]
            seen.rounds.append(round)
            seen.starts.append(starts[client])
            seen.releases.append(mass.theta.clone())
        mixed, traffic = inner(round, masses, present=present, leaving=leaving)
        for client, mass in mixed.items():
            starts[client] = mass.theta.clone()
        return mixed, traffic

    return watched


def watched_run(
    prepared: Prepared, method: str, progress: Progress = silent
) -> tuple[list[Client], dict[int, Seen]]:
    """Run all rounds; the clients as they are at the end, and what peers saw of each."""
    config = prepared.config
    assembly = prepared.assembly(method)
    clients = [assembly.client(i) for i in range(len(prepared.clients))]
    mix = mixing_of(prepared, method, clients)
    if mix is None:
        raise ConfigError(
            f"{method} exchanges no masses, so peers see none of its proxies. Audit another "
            "method, for example proxyfl."
        )
    inner = exchange.over(
        MemoryTransport(), mix, shared=clients[0].learner.shared, timeout=config.exchange.timeout
    )
    starts = {}
    seen = {}
    for each in clients:
        starts[each.id] = params.flatten(each.learner.shared)
        seen[each.id] = Seen()
    presences = prepared.presences[method]
    rounds = run_rounds(
        clients,
        rounds=config.rounds,
        exchange=_watching(inner, starts, seen),
        presence=presences.__getitem__,
        evaluate=evaluator(config, prepared.dataset, assembly.method),
        evaluate_now=lambda _round: False,
    )
    for records in rounds:
        for record in records:
            seen[record.client].steps.append(record.steps)
        progress(1)
    return clients, seen


def _mechanism(prepared: Prepared, method: str, client: int) -> Mechanism:
    assembly = prepared.assembly(method)
    local = assembly.locals[client]
    row = assembly.method
    own = not row.mutual and row.architecture == "private"
    return Mechanism(
        sampling_rate=assembly.sampling(client).rate,
        noise_multiplier=local.privacy.noise_multiplier,
        clip_norm=local.privacy.clip_norm,
        divisor=local.learning.batch_size,
        optimizer=local.private_optimizer if own else local.proxy_optimizer,
    )
