"""Everything that can be wrong with a run is found here, before its folder comes into being."""

import hashlib
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from proxyfl._validate import choice
from proxyfl.data import Dataset
from proxyfl.errors import ConfigError
from proxyfl.federation import membership
from proxyfl.federation.methods import METHODS, Method
from proxyfl.federation.rounds import Client
from proxyfl.gossip import topology
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.simulation import clients as build
from proxyfl.simulation.config import Config, to_toml, values
from proxyfl.simulation.engines.serial import Prepared


def prepare(
    config: Config,
    *,
    dataset: Dataset | None = None,
    table: Mapping[str, Method] = METHODS,
    hosted: Collection[int] | None = None,
) -> Prepared:
    """Load and check everything that a run needs; raise ``InputError`` if something does not fit.

    A process that hosts only some clients names them in ``hosted``: it keeps their data alone, and
    leaves the checks, and who is present when, to the process that started it."""
    for name in config.methods:
        choice("method", name, table)
    _check_device(config.device)
    torch.set_num_threads(config.threads)
    dataset = dataset if dataset is not None else build.load_data(config)
    pools = any(table[name].pooled for name in config.methods) and 0 in (hosted or ())
    sites = build.deal(config, dataset, None if pools else hosted)
    if hosted is not None:
        dataset = replace(
            dataset, train_x=dataset.train_x[:1].clone(), train_y=dataset.train_y[:1], site=None
        )
    settings = config.exchange
    mixing = topology.make(
        settings.topology,
        self_weight=settings.self_weight,
        degree=settings.degree,
        seed=config.seed,
    )
    presences: dict[str, Sequence[membership.Presence]] = {}
    for name in config.methods if hosted is None else ():
        some = [build.pooled(sites)] if table[name].pooled else sites
        # Where clients differ in settings each is tried; where they do not, one stands for all.
        tried = range(len(some)) if _differ(config) else range(1)
        clients = build.clients_for(config, table[name], dataset, some, tried)
        presences[name] = _plan(config, table[name], len(some), clients)
        if table[name].exchange == "pushsum":
            membership.rehearse(mixing, presences[name])
    return Prepared(config, dataset, sites, table, mixing, presences)


def identity(config: Config) -> str:
    """What a checkpoint must agree with: all settings that results depend on."""
    return hashlib.sha256(to_toml(config).encode()).hexdigest()[:16]


def fingerprint(prepared: Prepared) -> int:
    """A checksum of the data as it was dealt out: a resumed run must find the same."""
    checksum = 0
    for site in prepared.sites:
        for part in (site.x, site.y):
            checksum = zlib.crc32(part.contiguous().numpy().tobytes(), checksum)
    return checksum


def _plan(
    config: Config, method: Method, clients: int, tried: Sequence[Client]
) -> Sequence[membership.Presence]:
    """Who is there when. A method without exchange has no federation to leave but by its budget."""
    settings = config.membership
    if method.exchange == "none":
        return membership.plan(
            clients, config.rounds, allowances=_allowances(config, clients, tried)
        )
    return membership.plan(
        clients,
        config.rounds,
        schedule=settings.schedule,
        absence=settings.absence,
        seed=config.seed,
        allowances=_allowances(config, clients, tried),
    )


def _allowances(
    config: Config, clients: int, tried: Sequence[Client]
) -> dict[int, membership.Allowance]:
    if not _capped(config):
        return {}
    allowances = {}
    for client in tried:
        trainer, in_all = client.learner.trainer, None
        if isinstance(trainer, DPSGD):
            limit = config.rounds * client.steps
            in_all = client.ledger.affordable_steps(
                trainer.sampling_rate, trainer.noise_multiplier, limit
            )
            if in_all < 1:
                raise ConfigError(
                    f"The budget of client {client.id} ({_budget(client)}) does not cover a "
                    f"single step. "
                    "Raise privacy.budget or privacy.noise_multiplier, or use smaller batches."
                )
            in_all = None if in_all == limit else in_all
        allowances[client.id] = membership.Allowance(client.steps, in_all)
    if len(tried) == 1:
        allowances = dict.fromkeys(range(clients), allowances[tried[0].id])
    return allowances


def _budget(client: Client) -> str:
    budget = client.ledger.budget
    return (
        "none"
        if budget is None
        else f"epsilon {budget.epsilon:g} by {budget.accountant}, {client.ledger.kind}"
    )


def _capped(config: Config) -> bool:
    return config.privacy.budget is not None and config.privacy.enabled


def _differ(config: Config) -> bool:
    settings = (
        config.models.private,
        config.learning.batch_size,
        config.learning.steps_per_round,
        config.partition.examples,
        config.privacy.noise_multiplier,
        config.privacy.clip_norm,
        config.privacy.delta,
        config.privacy.budget,
    )
    return config.partition.kind in ("dirichlet", "site") or any(
        len(values(s)) > 1 for s in settings
    )


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f'Cannot use device={device!r}: {reason} Use device="cpu" or one that is there.'
        ) from error
