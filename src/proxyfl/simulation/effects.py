"""Odds ratios behind the proxy of a finished run or a real site, by ``federation.effects``.

The proxy and the settings are read from the folder, and the inputs are loaded again, without their
labels. In a simulation they are those of every client; ``own_inputs`` takes the client's own for
all, as a real site must. ``inputs`` takes those of a table, which may be a public one: then nothing
but the released proxy and public facts goes into the result. Nothing leaves.

The mechanism must be known to the end, and so is what this module refuses: gossip between real
sites, whose settings are their own; a proxy that learns from a private model (beta above 0), is not
linear or has no two classes; clients that were away.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from proxyfl._examples import Examples
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.contrasts import Contrast, contrasts
from proxyfl.data.tables.predicting import by_schema
from proxyfl.errors import ConfigError, RunError
from proxyfl.federation import modelfile
from proxyfl.federation.assembly import initial_proxy, sampling_of, steps_of
from proxyfl.federation.averaging import tail_over
from proxyfl.federation.effects import MOST_UNCERTAIN, Mechanism, Member, fit, together
from proxyfl.federation.methods import METHODS
from proxyfl.gossip.routes import routes
from proxyfl.gossip.topology import Topology, cycle
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import site as sites
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.units import Units
from proxyfl.records import folder, reading
from proxyfl.records.effects import Effect, Effects
from proxyfl.records.run import Run
from proxyfl.settings import Local, Study
from proxyfl.simulation import federation
from proxyfl.simulation.config import of_run, with_method
from proxyfl.simulation.prepare import Prepared, fingerprint, prepare

PLAIN = (
    "An odds ratio is for one change of one column, the others held fixed, and says nothing of "
    "causes. Intervals are 95 %; they include the noise, the clipping, and the sample of records."
)
ALL_INPUTS = (
    "The inputs of all clients, without their labels, went into the calculation, as only a "
    "simulation can. With --own-inputs it does as a real site would."
)
OWN_INPUTS = (
    "The inputs of {client} stand for those of all sites: intervals hold as far as inputs are "
    "distributed alike. They are no part of any release, and no epsilon covers them: the table is "
    "for people who may see the records."
)
UNCERTAINTY = (
    "The log odds of a record have a standard error of {error:.2f}. Intervals are given below "
    "{most:g}: less noise, fewer columns, more steps or more records make it smaller."
)
GIVEN_INPUTS = (
    "The inputs in {file} stand for those of all sites: intervals hold as far as inputs are "
    "distributed alike. If that table is public, this one follows from public facts and the "
    "released proxy, and costs no privacy to show."
)
LINEAR = (
    "Estimated are the coefficients of one logistic regression over the records of all sites. "
    "Where sites differ in what the columns do not hold, or effects are not linear, it is the "
    "model nearest to all records, and coverage is approximate."
)


def effects(
    path: Path,
    *,
    client: str | None = None,
    method: str | None = None,
    own_inputs: bool = False,
    inputs: Path | None = None,
    records: Mapping[str, int] | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> Effects:
    """The odds ratios behind the proxy of a client of the finished run, or real site, in ``path``.

    ``records`` has the number of records of every other member of a real federation, which a site
    does not know by itself. ``inputs`` is a table by the study's schema, whose label is not read.
    ``draws`` is the number of simulated proxies behind the intervals.
    RunError or ConfigError where the method has no answer, in words."""
    run = reading.read(path)
    is_site = folder.is_site(path)
    config = federation.config_of(path) if is_site else of_run(path)
    chosen = _method(path, config.methods, method)
    # a site by itself is no roster
    prepared = prepare(with_method(config, "alone"))
    if not is_site:
        folder.check_data(path, fingerprint(prepared))
    prepared = replace(prepared, config=config)
    contrast = _contrasts(path, prepared)
    names = [each.name for each in prepared.clients]
    number = _position(path, names, client)
    known: Tensor | None = None
    if inputs is not None:
        known = by_schema(inputs, prepared.dataset.schema).x
    elif own_inputs or is_site:
        known = _inputs_of(prepared.clients[number].examples)
    if is_site:
        mechanism = _of_site(path, prepared, known, records or {}, counts=inputs is None)
    else:
        if records:
            raise ConfigError("--records is for a real site; a run knows the size of every client.")
        mechanism = _of_run(prepared, chosen, number, known)
    _check_attendance(path, run, chosen, prepared)
    released = _released(path, chosen, number)
    fitted = fit(mechanism, released, draws=draws, seed=seed)
    delta = released[1] - released[0]
    rows = []
    for each in contrast:
        weights = torch.tensor([*each.weights, 0.0])
        interval = fitted.interval(weights)
        uncorrected = math.exp(float(weights @ delta))
        rows.append(
            Effect(
                each.column,
                each.change,
                interval.value,
                interval.error,
                interval.low,
                interval.high,
                uncorrected,
                interval.reason,
            )
        )
    otherwise, event = prepared.dataset.class_names
    basis = ALL_INPUTS
    if inputs is not None:
        basis = GIVEN_INPUTS.format(file=inputs.name)
    elif known is not None:
        basis = OWN_INPUTS.format(client=names[number])
    uncertainty = UNCERTAINTY.format(error=fitted.typical_error, most=MOST_UNCERTAIN)
    notes = [PLAIN, basis, LINEAR, uncertainty]
    return Effects(names[number], chosen, event, otherwise, rows, notes)


def _method(path: Path, methods: Sequence[str], wanted: str | None) -> str:
    """The method whose proxy is meant: the one asked for, or the last that shares one under DP."""
    if wanted is not None and wanted not in methods:
        raise RunError(f"{path} has no method {wanted!r}. It has: {', '.join(methods)}.")
    able = [name for name in methods if METHODS[name].shares and METHODS[name].dp]
    if wanted is not None and wanted not in able:
        raise RunError(
            f"{wanted} shares no model under DP, so there is no proxy to correct. Name a method "
            "with a proxy under DP."
        )
    if not able:
        raise RunError(f"No method of {path} shares a proxy. It has: {', '.join(methods)}.")
    return wanted or able[-1]


def _contrasts(path: Path, prepared: Prepared) -> list[Contrast]:
    """The changes that have an odds ratio; refused for anything but two classes in a table."""
    task = prepared.dataset.task
    if not task.is_classification or task.outputs != 2:
        kind = f"{task.outputs} classes" if task.is_classification else f"the task {task.kind}"
        raise ConfigError(
            f"{path}: odds ratios are of two classes, and this study has {kind}. The clipped "
            "gradient of a time to an event also depends on everybody's follow-up, which is not "
            "public, so hazard ratios are not computed."
        )
    if not prepared.dataset.schema:
        raise ConfigError(
            f"{path}: odds ratios need a table with a schema, which says what a column holds. "
            "Draft one with: proxyfl schema draft --help"
        )
    return contrasts(schemas.parse(tomllib.loads(prepared.dataset.schema)))


def _position(path: Path, names: Sequence[str], client: str | None) -> int:
    if client is None:
        return 0
    if client in names:
        return names.index(client)
    if client.isdecimal() and int(client) < len(names):
        return int(client)
    raise RunError(f"{path}: There is no {client!r}. Its clients: {', '.join(names)}.")


def _released(path: Path, method: str, client: int) -> Tensor:
    """The proxy's weights and biases: (2, features + 1)."""
    file = path / "models" / method / f"{client:03d}-proxy.safetensors"
    if not file.is_file():
        raise RunError(f"{path} holds no proxy of {method} in {file.name}. Has it ended?")
    model, _ = modelfile.load_model(file)
    return _coefficients(model)


def _coefficients(model: torch.nn.Module) -> Tensor:
    layers = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    parameters = sum(each.numel() for each in model.parameters())
    if len(layers) != 1 or parameters != layers[0].weight.numel() + 2 or layers[0].bias is None:
        raise ConfigError(
            "Odds ratios need the proxy `linear`, and this run has another one. Set models.proxy "
            "to `linear`, and run again."
        )
    both = torch.cat([layers[0].weight, layers[0].bias[:, None]], dim=1)
    return both.detach().cpu()


def _of_run(prepared: Prepared, method: str, position: int, known: Tensor | None) -> Mechanism:
    """The mechanism of a simulated method, all of whose settings are known. The inputs ``known``
    stand for every client's; None: each has its own."""
    config, study = prepared.config, prepared.study
    row = METHODS[method]
    if row.architecture == "private" or config.models.single == "private":
        raise ConfigError(
            f"{method} shares a model of the private architecture, not the linear proxy. Name a "
            "method that shares a proxy."
        )
    if not config.privacy.enabled:
        raise ConfigError(
            "This run has no DP (privacy.enabled = false), so there is no noise to correct for. "
            "Fit an ordinary logistic regression."
        )
    if config.exchange.kinds:
        raise ConfigError(
            "With exchange.kinds there is a proxy for each kind, and no single effect."
        )
    defended = any(each.rule != "none" for each in config.defences(len(prepared.clients)))
    if config.exchange.rules == "sites" and row.exchange != "masked" and defended:
        raise ConfigError(
            "A defence changes what arrives, by what the site holds. That is not simulated here. "
            'Take exchange.rules = "paper", or defence.rule = "none".'
        )
    every = []
    for client, local in zip(prepared.clients, prepared.locals, strict=True):
        own = _inputs_of(client.examples) if known is None else known
        every.append(_member(client.name, client.examples, own, local, mutual=row.mutual))
    coalition = prepared.assembly(method).coalition
    return _mechanism(study, every, row.exchange, prepared, position, coalition)


def _inputs_of(examples: Examples) -> Tensor:
    return examples.take(torch.arange(len(examples))).flatten(1).cpu()


def _of_site(
    path: Path,
    prepared: Prepared,
    known: Tensor | None,
    records: Mapping[str, int],
    *,
    counts: bool,
) -> Mechanism:
    """The mechanism of a real site's masked sum, by its manifest and the stated sizes of others.
    Where the site's own records do not count, its size is the expected one."""
    (site, _), (own,), (local,) = sites.read(path), prepared.clients, prepared.locals
    assert known is not None
    manifest = manifests.read_accepted(path, site.name)
    masked = manifest.masked
    if masked is None:
        raise ConfigError(
            f"{path}: the sites of this federation gossip, and what others decide (their noise, "
            "batches, learning rates and defences) is not known here. Odds ratios are for masked "
            "sums, whose manifest states all of it."
        )
    if manifest.graph.kinds:
        raise ConfigError(
            "With kinds of sites there is a proxy for each kind, and no single effect."
        )
    others = [name for name in manifest.names() if name != site.name]
    if set(records) != set(others):
        raise ConfigError(
            "State the number of training records of every other member, as they tell you: "
            + " ".join(f"--records {name}=N" for name in others)
        )
    every = [_member(site.name, own.examples, known, local, mutual=True)]
    rate = float(every[0].rates[0])
    if not counts:
        size = every[0].batch_size / rate
        every[0] = replace(every[0], stands_for=torch.full((len(known),), size / len(known)))
    for name in others:
        size = records[name]
        if size < 1:
            raise ConfigError(f"Expected 1 or more records of {name}, got {size}.")
        stands_for = torch.full((len(known),), size / len(known))
        every.append(
            replace(every[0], stands_for=stands_for, batch_size=max(1, round(rate * size)))
        )
    return _mechanism(manifest, every, "masked", prepared, 0, masked.coalition)


def _member(name: str, examples: Examples, known: Tensor, local: Local, *, mutual: bool) -> Member:
    """A client of ``examples``, as far as it matters: their number, and inputs ``known``."""
    dp = local.privacy
    if mutual and local.learning.beta:
        raise ConfigError(
            f"The proxy of {name} learns from its private model (learning.beta="
            f"{local.learning.beta:g}), which nobody else knows. Odds ratios need beta = 0."
        )
    if dp.normalize:
        raise ConfigError(
            "With privacy.normalize every gradient has the same length, whatever the odds, so "
            "the proxy's coefficients do not follow from them. Set privacy.normalize to false, "
            "and run again."
        )
    _check_single(name, examples, local)
    sampling = sampling_of(local, examples)
    return Member.of(
        known,
        records=len(examples),
        rate=sampling.rate,
        batch_size=sampling.batch_size,
        noise=dp.noise_multiplier * dp.clip_norm,
        optimizer=local.proxy_optimizer,
        steps=steps_of(local, sampling),
        weight=local.learning.weight,
    )


def _check_single(name: str, examples: Examples, local: Local) -> None:
    persons = len(Units.of(examples, local.privacy))
    if persons < len(examples):
        raise ConfigError(
            f"{name} has {len(examples)} records of {persons} persons. A person's records are not "
            "independent, so no interval is computed."
        )


def _mechanism(
    study: Study,
    every: Sequence[Member],
    exchange: object,
    prepared: Prepared,
    position: int,
    coalition: Coalition | None,
) -> Mechanism:
    """The mechanism of a study with these members; ``coalition`` has the terms of a masked sum."""
    balance = study.proxy.balance
    if balance == "weights":
        raise ConfigError(
            'The proxy\'s loss weighs its classes (balance = "weights"), and so does the clipping. '
            'Odds ratios are computed for "prior" and "none".'
        )
    offset = 0.0
    if balance == "prior":
        first, second = study.public_shares()
        offset = math.log(second / first)
    tail = tail_over(study.average, study.training_rounds)
    mixing: list[Tensor] = []
    members = list(every)
    dp = prepared.locals[0].privacy
    if coalition is not None:
        # every member adds a share
        share = coalition.alone(dp.noise_multiplier) * dp.clip_norm
        members = [together(every, noise=math.sqrt(len(every)) * share)]
        position = 0
    else:
        mixing = _matrices(exchange, study.rounds, len(every), prepared.topology)
    if len({local.privacy.clip_norm for local in prepared.locals}) > 1:
        raise ConfigError("privacy.clip_norm differs between clients; one is needed for all.")
    return Mechanism(
        members=members,
        clip_norm=dp.clip_norm,
        rounds=study.rounds,
        settle=study.settle,
        mixing=mixing,
        start=_coefficients(initial_proxy(study)),
        average_from=None if tail is None else tail.first,
        offset=offset,
        position=position,
    )


def _matrices(exchange: object, rounds: int, members: int, graph: Topology) -> list[Tensor]:
    """The mixing matrix of each round; none for a single member."""
    if members == 1:
        return []
    if exchange == "mean":
        return [torch.full((members, members), 1 / members, dtype=torch.float64)] * rounds
    if exchange not in ("pushsum", "cycle"):
        raise ConfigError(
            "Odds ratios are not computed for an exchange of your own. Take a method whose "
            "exchange is pushsum, mean or cycle."
        )
    schedule = graph if exchange == "pushsum" else cycle()
    matrices = []
    for round in range(rounds):
        plan = routes(schedule, round, range(members))
        matrices.append(torch.from_numpy(plan.matrix()))
    return matrices


def _check_attendance(path: Path, run: Run, method: str, prepared: Prepared) -> None:
    """Refuse a run that has not ended as planned: everybody there in every round."""
    if not run.finished:
        raise RunError(
            f"{path} has not ended. Odds ratios are computed from the last proxy: wait for it."
        )
    rows = run.rows_of(method)
    for row in rows:
        if row["present"] < row["expected"] or row.get("left"):
            raise ConfigError(
                f"In round {row['round'] + 1} of {method} {row['present']} of {row['expected']} "
                "clients were there. Odds ratios are computed where all are, in every round."
            )
