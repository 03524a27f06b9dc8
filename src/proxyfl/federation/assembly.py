"""Makes a client: from the study that all agree on and one institution's own decisions.

A simulation and a node make their clients here, so that both are the same client and refuse the
same settings in the same words. They differ in the randomness that they pass: ``seeded`` repeats a
run bit for bit and protects nobody; ``real`` draws from the operating system. The client's ledger
follows from it: a simulated one for seeded randomness, a real one otherwise.

Guarantees:
    * the ledger's kind is the one that ``privacy.guarantee.kind_of`` gives for the method and beta;
    * what an existing ledger file says was spent stays spent; a file that does not belong to this
      client, kind, delta or randomness is refused;
    * a model that is trained without DP is never the one that a method with DP shares;
    * an institution's own class counts reach only models that are never shared under DP.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from proxyfl import models
from proxyfl._entrypoint import ALL, HERE, Code, Imports, resolve
from proxyfl._examples import Examples
from proxyfl.data.examples import on_device
from proxyfl.errors import ConfigError, ModelError
from proxyfl.federation.averaging import Tail, tail_over
from proxyfl.federation.client import Client
from proxyfl.federation.fitted import Fitted
from proxyfl.federation.learners import (
    Learner,
    MakeLearner,
    Mutual,
    Private,
    Single,
    Trainer,
    made_by,
)
from proxyfl.federation.methods import LEARNERS, Method, name_of
from proxyfl.federation.precision import computing_in
from proxyfl.federation.prevalence import Balances
from proxyfl.federation.trainers import PlainSGD, optimizer_over
from proxyfl.losses import NO_BALANCE, Objective, balance_for, class_shares, objective_of
from proxyfl.models.architectures import set_score
from proxyfl.models.estimators import PUBLISHED, is_estimator
from proxyfl.models.fits import fits_of
from proxyfl.pooling import with_quick_pooling
from proxyfl.privacy import journal
from proxyfl.privacy.account import Kept
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind, Relation, Unit, kind_of
from proxyfl.privacy.ledger import Budget, Ledger
from proxyfl.privacy.sampling import Sampling, sampling_for
from proxyfl.privacy.units import Units
from proxyfl.privacy.worth import noise_ratio
from proxyfl.seeds import Randomness, Seeded, System, derive
from proxyfl.settings import DP, Local, Optimizer, Study, check_unbalanced


@dataclass(frozen=True)
class Part:
    """A model, how it is optimized, and what it learns by."""

    model: nn.Module
    optimizer: Optimizer
    objective: Objective = NO_BALANCE


@dataclass(frozen=True)
class Estimator:
    """A private model that is fitted on the client's examples (``models.estimators``)."""

    spec: str
    objective: Objective = NO_BALANCE
    seed: int = 0
    imports: Imports = HERE


@dataclass(frozen=True)
class Parts:
    """The models of a client. A method with one model has either."""

    private: Part | Estimator | None
    proxy: Part | None


@dataclass(frozen=True)
class Streams:
    """The sources of a client's randomness.

    ``layers`` seeds dropout and the like each round, ``weights`` the private model's first
    parameters. ``fit`` seeds an estimator; None: it follows from the study, so that it is the same
    at each start."""

    batches: Randomness
    noise: Randomness
    layers: Callable[[int], int]
    weights: int
    fit: int | None = None


def seeded(seed: int, client: int) -> Streams:
    """Streams that a simulation repeats: they depend on the seed and the client alone."""
    weights = derive(seed, "init", 1, client)
    return Streams(
        batches=Seeded(seed, "batches", client),
        noise=Seeded(seed, "noise", client),
        layers=lambda round: derive(seed, "global", client, round),
        weights=weights,
        fit=weights,
    )


def real() -> Streams:
    """Streams from the operating system, which nobody can repeat."""
    return Streams(
        batches=System(),
        noise=System(),
        layers=lambda _round: secrets.randbits(63),
        weights=secrets.randbits(62),
    )


def assemble(
    study: Study,
    local: Local,
    examples: Examples,
    method: Method,
    streams: Streams,
    *,
    id: int = 0,
    ledger: Path | None = None,
    account: Kept | None = None,
    code: Code = ALL,
    parts: Parts | None = None,
    coalition: Coalition | None = None,
    charge_each_step: bool = False,
    members: int | None = None,
) -> Client:
    """The client ``id``, ready for its first round.

    ``method`` says which models there are; ``parts`` takes the place of those that the study and
    the institution name. The ledger is kept in the file ``ledger``, or in memory. With ``account``,
    what other studies have spent on the same people counts. ``coalition`` has the terms of a method
    whose exchange is a masked sum; ``charge_each_step`` as in ``DPSGD``. ``members`` is the number
    of members, if it is known; how noisy a proxy is to be expected follows from it.
    """
    dp = local.privacy
    mutual = method.mutual
    teacher_weight = local.learning.beta if mutual else 0.0
    kind = kind_of(dp=method.dp, teacher_weight=teacher_weight)
    sampling = sampling_of(local, examples)
    if parts is None:
        parts = parts_of(study, local, examples, method, streams, code)
    _check_parts(local.name, method, parts)
    if parts.proxy is not None and method.shares and method.exchange != "masked":
        _check_travels(parts.proxy.model)
    simulated = streams.noise.simulated
    own_ledger = _ledger(local.name, dp, kind, sampling, ledger, account, simulated=simulated)
    device = local.resources.device
    examples = on_device(examples, device)
    classes = study.task.outputs

    def without_dp(model: nn.Module) -> nn.Module:
        # Channels last saves an eighth to a third of a step's time. Not for DP-SGD: its flat buffer
        # of gradients has the default layout, and its clipping is in float32.
        layout: Any = {"memory_format": torch.channels_last}  # which torch's stubs do not know
        laid_out = with_quick_pooling(model.to(device).to(**layout))
        return computing_in(local.resources.precision, laid_out)

    # the weight is for what gossips; other methods of the same study have none
    weighs = method.exchange == "pushsum"

    def trainer_of(part: Part) -> Trainer:
        """DP-SGD of the part's model, or plain training where the ledger promises nothing."""
        if kind is Kind.NONE:
            model = without_dp(part.model)
            return PlainSGD(
                model,
                optimizer_over(part.optimizer, model),
                Units.of(examples, dp),
                classes=classes,
                sampling_rate=sampling.rate,
                teacher_weight=teacher_weight,
                objective=part.objective,
                ledger=own_ledger,
                batches=streams.batches,
            )
        model = part.model.to(device)
        return DPSGD(
            model,
            optimizer_over(part.optimizer, model),
            examples,
            dp=dp,
            classes=classes,
            batch_size=sampling.batch_size,
            ledger=own_ledger,
            batches=streams.batches,
            noise=streams.noise,
            teacher_weight=teacher_weight,
            objective=part.objective,
            trust_unproven=local.proxy.trust_unproven,
            coalition=coalition,
            charge_each_step=charge_each_step,
            weight=local.learning.weight if weighs else 1.0,
        )

    learner: Learner
    private = parts.private
    trainer = None if parts.proxy is None else trainer_of(parts.proxy)
    steps = steps_of(local, sampling)
    make = own_learner(method)
    if make is not None and trainer is not None:
        of_private = None
        if isinstance(private, Estimator):
            raise ConfigError(
                f"A private model that is fitted ({private.spec}) learns by a fit, not by the "
                f"learner {name_of(method.learner)}. Name an architecture for the private model."
            )
        if private is not None:
            model = without_dp(private.model)
            optimizer = optimizer_over(private.optimizer, model)
            of_private = Private(model, optimizer, local.learning, classes, private.objective)
        learner = made_by(make, trainer, of_private)
    elif isinstance(private, Estimator):
        learner = Fitted(
            private.spec,
            examples,
            task=study.task,
            seed=private.seed,
            trainer=trainer,
            objective=private.objective,
            imports=private.imports,
            published=study.published_score(),
            choose_for=local.learning.choose_for,
            noise=_expected_noise(
                study, local, examples, method, trainer, steps, coalition, members
            ),
        )
    elif private is None:
        assert trainer is not None
        learner = Single(trainer)
    elif trainer is None:
        learner = Single(trainer_of(private), role="private")
    else:
        model = without_dp(private.model)
        learner = Mutual(
            model,
            optimizer_over(private.optimizer, model),
            trainer,
            classes=classes,
            alpha=local.learning.alpha,
            teacher="received" if local.learning.teacher == "received" else "current",
            residual=local.model.residual,
            objective=private.objective,
            usual_steps=steps,
        )
    return Client(
        id=id,
        name=local.name,
        learner=learner,
        ledger=own_ledger,
        steps=steps,
        global_seed=streams.layers,
        tail=tail_of(study, method),
        balances=Balances.of(study, local, method),
    )


def own_learner(method: Method) -> MakeLearner | None:
    """The function of the method's row that makes its learners; None for a learner by name."""
    if not isinstance(method.learner, str):
        return method.learner
    if method.learner in LEARNERS:
        return None
    return resolve(method.learner, error=ConfigError)


def _expected_noise(
    study: Study,
    local: Local,
    examples: Examples,
    method: Method,
    trainer: Trainer | None,
    steps: int,
    coalition: Coalition | None,
    members: int | None,
) -> float | None:
    """The expected error of the proxy in parts of that of the site's own model, from public facts
    and the site's own cases. None where the rule was not calibrated: it knows linear proxies of two
    classes with full batches under DP."""
    known = members is not None and members > 1 and method.shares
    if not known or not isinstance(trainer, DPSGD) or trainer.sampling_rate < 1:
        return None
    if not study.task.is_classification or study.task.outputs != 2:
        return None
    if study.proxy.architecture != "linear":
        return None
    assert members is not None
    own = float(examples.labels.double().mean())
    public = study.prevalence[1] if study.prevalence else own
    if not (0 < own < 1 and 0 < public < 1):
        return None
    return noise_ratio(
        clients=members,
        honest=1 if coalition is None else coalition.honest,
        width=sum(p.numel() for p in trainer.model.parameters()) / 2,
        mu=math.sqrt(study.training_rounds * steps) / trainer.noise_multiplier,
        total=members * trainer.batch_size,
        prevalence=public,
        examples=len(examples),
        own_prevalence=own,
    )


def sampling_of(local: Local, examples: Examples) -> Sampling:
    """The sampling of the institution's batches; ConfigError if they are larger than its data."""
    dp = local.privacy
    batch_size = local.learning.batch_size
    units = len(Units.of(examples, dp))
    public = dp.examples or units
    if dp.sampling_rate is None and batch_size > public:
        raise ConfigError(
            f"learning.batch_size={batch_size} is larger than the {public} "
            f"{Unit(dp.unit).plural} of {local.name}. Set it to {public} or less, or give "
            f"{local.name} more data."
        )
    return sampling_for(batch_size, units, dp)


def steps_of(local: Local, sampling: Sampling) -> int:
    """The number of steps in a round: one pass over the data by default."""
    return local.learning.steps_per_round or sampling.steps_per_pass


def tail_of(study: Study, method: Method) -> Tail | None:
    """The mean of the last proxies, where the study asks for one and the method exchanges any."""
    if not method.shares:
        return None
    return tail_over(study.average, study.training_rounds)


def parts_of(
    study: Study,
    local: Local,
    examples: Examples,
    method: Method,
    streams: Streams,
    code: Code = ALL,
) -> Parts:
    """The models that ``method`` trains: the private one, the proxy, or one of the two.

    ConfigError if the settings do not go together."""
    own_objective, shared_objective = _objectives(study, local, examples, method)

    def private() -> Part | Estimator:
        spec = local.model.architecture
        if is_estimator(spec, code.own):
            if method.mutual and local.learning.beta:
                raise ConfigError(
                    f"A private model that is fitted ({spec}) teaches no proxy; got "
                    f"learning.beta={local.learning.beta:g}. Set it to 0."
                )
            if not study.task.is_classification:
                fits_of(study.task).candidates(spec)  # refuses what the task does not have
            fit = derive(study.proxy.seed, "init", 1) if streams.fit is None else streams.fit
            return Estimator(spec, own_objective, fit, code.own)
        model = _build(study, spec, streams.weights, code.own)
        return Part(model, local.private_optimizer, own_objective)

    if method.published:
        if not study.published_score():
            raise ConfigError(
                "The method score is the published score that a schema states, and there is none. "
                "Put it into [start] of the schema, or leave score out of methods."
            )
        return Parts(Estimator(PUBLISHED, own_objective, 0, code.own), None)
    if method.mutual:
        model = initial_proxy(study, code.agreed)
        return Parts(private(), Part(model, local.proxy_optimizer, shared_objective))
    if method.keeps == "private":
        return Parts(private(), None)
    if method.architecture == "proxy":
        model = initial_proxy(study, code.agreed)
        return Parts(None, Part(model, local.proxy_optimizer, shared_objective))
    # Models that are to be averaged start from the same point.
    seed = derive(study.proxy.seed, "init", 0) if method.shares else streams.weights
    model = _build(study, local.model.architecture, seed, code.own)
    return Parts(None, Part(model, local.private_optimizer, shared_objective))


def _objectives(
    study: Study, local: Local, examples: Examples, method: Method
) -> tuple[Objective, Objective]:
    """What the institution's own model learns by, and what a model that is shared does."""
    check_unbalanced("learning.balance", local.learning.balance, study.task)
    if not study.task.is_classification:
        objective = objective_of(study.task)
        return objective, objective
    shares = class_shares(examples.labels, study.task.outputs)
    own = balance_for(local.learning.balance, shares, public=False)
    if not method.dp:
        return own, own
    # A client's class counts are private: what is shared under DP takes public ones.
    if study.proxy.balance == "none":
        return own, NO_BALANCE
    return own, balance_for(study.proxy.balance, study.public_shares(), public=True)


def _check_travels(model: nn.Module) -> None:
    """Raise ModelError for weights that could be trained, and paid for, but not sent."""
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dtype is not torch.float32:
            kind = type(model).__name__
            raise ModelError(
                f"The weight '{name}' of the shared model {kind} is of type {weight.dtype}; "
                "parameters travel as float32. Make its weights float32 (model.float())."
            )


def _check_parts(name: str, method: Method, parts: Parts) -> None:
    """Raise ConfigError unless ``parts`` has the models that ``method`` trains, and no other."""
    needs_private = method.mutual or method.keeps == "private"
    needs_proxy = method.mutual or not needs_private
    for role, part, needed in (
        ("private", parts.private, needs_private),
        ("proxy", parts.proxy, needs_proxy),
    ):
        if (part is not None) != needed:
            raise ConfigError(
                f"Client {name} {'needs a' if needed else 'has no'} {role} model under a method of "
                f"learner {name_of(method.learner)!r} that keeps the {method.keeps} model; got "
                f"{'none' if part is None else 'one'} in parts."
            )


def initial_proxy(study: Study, imports: Imports = HERE) -> nn.Module:
    """The proxy that all members begin with."""
    # One seed for all, or averages would mean little.
    seed = derive(study.proxy.seed, "init", 0)
    model = _build(study, study.proxy.architecture, seed, imports)
    if study.prevalence and study.proxy.balance == "none":
        models.set_prior(model, study.public_shares())
    score = study.published_score()
    if score:
        shares = study.public_shares() if study.proxy.balance == "prior" else ()
        set_score(model, score, shares)
    return model


def _build(study: Study, spec: str, seed: int, imports: Imports) -> nn.Module:
    shape, outputs = study.input.shape, study.task.outputs
    return models.build(spec, shape=shape, classes=outputs, seed=seed, imports=imports)


def _ledger(
    client: str,
    dp: DP,
    kind: Kind,
    sampling: Sampling,
    path: Path | None,
    account: Kept | None,
    *,
    simulated: bool,
) -> Ledger:
    """The client's ledger: continued where its file exists, opened otherwise."""
    promise: dict[str, Any] = {
        "delta": dp.delta or sampling.default_delta(),
        "kind": kind,
        "relation": _relation(sampling, path),
        "unit": Unit(dp.unit),
        "simulated": simulated,
        "budget": Budget.of(dp),
    }
    charges = kind is not Kind.NONE  # without DP nothing is ever charged
    if charges and path is not None:
        ledger = Ledger.at(path, client, **promise)
    else:
        ledger = Ledger(client, **promise)
    if charges and account is not None:
        account.keep(ledger)
    return ledger


def _relation(sampling: Sampling, path: Path | None) -> Relation:
    """The relation that the ledger states.

    In earlier releases a declared number meant zero-out. A ledger that says so goes on with it: at
    a fixed rate both relations cost the same, and it claims the weaker one."""
    if sampling.declared and path is not None and path.exists():
        header, _, _ = journal.read(path)
        return Relation(header.get("relation", Relation.ZERO_OUT))
    return sampling.relation
