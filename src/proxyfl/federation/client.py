"""One client of a federation, assembled from plain arguments.

A simulation and a node assemble their clients here. They differ in the randomness that they pass:
``seeded`` repeats a run bit for bit and protects nobody; ``real`` draws from the operating system.
The client's ledger follows from it: a simulated one for seeded randomness, a real one otherwise.

Guarantees:
    * the ledger's kind is the one that ``privacy.guarantee.kind_of`` gives for the method and beta;
    * what an existing ledger file says was spent stays spent; a file that does not belong to this
      client, kind, delta or randomness is refused;
    * a model that is trained without DP is never the one that a method with DP shares.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from proxyfl import params
from proxyfl._examples import Examples
from proxyfl.data.examples import on_device
from proxyfl.errors import ConfigError
from proxyfl.federation.averaging import Tail
from proxyfl.federation.home.fitted import Fitted
from proxyfl.federation.learners import Learner, Mutual, Single, Teacher, Trainer
from proxyfl.federation.methods import Method, Role
from proxyfl.federation.precision import computing_in
from proxyfl.federation.state import State
from proxyfl.federation.trainers import Optimizer, PlainSGD
from proxyfl.gossip.pushsum import Mass
from proxyfl.losses import NO_BALANCE, Balance
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind, Unit, kind_of
from proxyfl.privacy.ledger import Budget, Ledger
from proxyfl.privacy.sampling import Sampling, sampling_for
from proxyfl.privacy.spending.account import Kept
from proxyfl.privacy.units import Units
from proxyfl.seeds import Randomness, Seeded, System, derive


@dataclass
class Client:
    """One institution as the round loop sees it.

    ``weight`` is its PushSum weight; its mass is that weight times the shared parameters.
    """

    id: int
    name: str
    learner: Learner
    ledger: Ledger
    steps: int
    global_seed: Callable[[int], int]
    weight: float = 1.0
    tail: Tail | None = None

    def mass(self) -> Mass:
        """The client's share of the network's total."""
        return Mass.of(params.flatten(self.learner.shared), self.weight)

    def take(self, mass: Mass) -> None:
        """Continue with ``mass``."""
        self.weight = mass.w
        self.learner.adopt(mass.theta)

    def receive(self, round: int, mass: Mass) -> None:
        """Continue with what the exchange of ``round`` gave."""
        self.take(mass)
        if self.tail is not None:
            self.tail.add(round, mass.theta)

    def settle(self, round: int) -> None:
        """Continue with the mean of the last proxies, if ``round`` is the one to do so."""
        mean = None if self.tail is None else self.tail.mean(round)
        if mean is not None:
            self.learner.adopt(mean)

    def state(self) -> State:
        """Everything that the next round depends on."""
        tail = {} if self.tail is None else self.tail.state()
        return self.learner.state() | tail

    def restore(self, state: State) -> None:
        """Continue from ``state``."""
        self.learner.restore(state)
        if self.tail is not None:
            self.tail.restore(state)


@dataclass(frozen=True)
class Part:
    """A model, how it is optimized, and how its loss makes up for uneven classes."""

    model: nn.Module
    optimizer: Optimizer
    balance: Balance = NO_BALANCE


@dataclass(frozen=True)
class Estimator:
    """A private model that is fitted on the client's examples (``models.estimators``)."""

    spec: str
    balance: Balance = NO_BALANCE
    seed: int = 0


@dataclass(frozen=True)
class DP:
    """The settings of DP-SGD. ``delta`` None means 1/n; ``ledger`` None keeps it in memory.

    ``sampling_rate``, or ``declared_examples`` in place of the true number, keep the rate from
    following from the data; which of them is given decides the ledger's relation
    (``privacy.sampling``). ``unit`` is what is protected; with ``Unit.GROUP`` every number of
    examples, also the batch size, counts persons, of whom a step takes at most ``max_per_group``
    records (``privacy.units``). ``max_physical_batch_size`` bounds how many records' gradients are
    in memory at a time. With ``account``, what other studies have spent on the same records
    counts."""

    clip_norm: float
    noise_multiplier: float
    unit: Unit = Unit.RECORD
    max_per_group: int | None = None
    max_physical_batch_size: int | None = None
    sampling_rate: float | None = None
    declared_examples: int | None = None
    delta: float | None = None
    budget: Budget | None = None
    ledger: Path | None = None
    account: Kept | None = None

    def units(self, examples: Examples) -> Units:
        """What is drawn and clipped of ``examples``: records, or persons."""
        return Units(examples, self.unit, self.max_per_group)

    def sampling(self, batch_size: int, examples: Examples) -> Sampling:
        """The sampling of batches from ``examples``."""
        return sampling_for(
            batch_size,
            len(self.units(examples)),
            sampling_rate=self.sampling_rate,
            declared_examples=self.declared_examples,
            unit=self.unit,
        )


@dataclass(frozen=True)
class Streams:
    """The sources of a client's randomness; ``layers`` seeds dropout and the like each round."""

    batches: Randomness
    noise: Randomness
    layers: Callable[[int], int]


def seeded(seed: int, client: int) -> Streams:
    """Streams that a simulation repeats: they depend on the seed and the client alone."""
    return Streams(
        batches=Seeded(seed, "batches", client),
        noise=Seeded(seed, "noise", client),
        layers=lambda round: derive(seed, "global", client, round),
    )


def real() -> Streams:
    """Streams from the operating system, which nobody can repeat."""
    return Streams(
        batches=System(), noise=System(), layers=lambda _round: secrets.randbits(63)
    )


def assemble(
    id: int,
    name: str,
    method: Method,
    examples: Examples,
    *,
    classes: int,
    batch_size: int,
    dp: DP,
    streams: Streams,
    private: Part | Estimator | None = None,
    proxy: Part | None = None,
    steps: int | None = None,
    alpha: float = 0.0,
    beta: float = 0.0,
    teacher: Teacher = "current",
    residual: bool = False,
    device: str = "cpu",
    precision: str = "float32",
    tail: Tail | None = None,
) -> Client:
    """The client ``id``, ready for its first round.

    ``method`` says which models there are: a mutual learner needs ``private`` and ``proxy``, a
    single one needs the one that its institution keeps. Without ``steps`` a round is one pass over
    the examples. ``alpha``, ``beta``, ``teacher`` and ``residual`` are about mutual learning
    (``federation.learners``); ``precision`` is that of models trained without DP; ``tail`` averages
    the proxies of the last training rounds.
    """
    mutual = method.learner == "mutual"
    teacher_weight = beta if mutual else 0.0
    kind = kind_of(dp=method.dp, teacher_weight=teacher_weight)
    sampling = dp.sampling(batch_size, examples)
    ledger = _ledger(name, dp, kind, sampling, simulated=streams.noise.simulated)
    workshop = _Workshop(
        examples=on_device(examples, device),
        classes=classes,
        batch_size=batch_size,
        sampling_rate=sampling.rate,
        dp=dp,
        streams=streams,
        ledger=ledger,
        device=device,
        precision=precision,
    )

    def needed(part: Part | Estimator | None, role: Role) -> Part:
        if isinstance(part, Part):
            return part
        raise ConfigError(
            f"Client {name} needs a {role} model for a method of learner {method.learner!r} "
            f"that keeps the {method.keeps} model; got none. Pass {role}=Part(model, optimizer)."
        )

    learner: Learner
    steps = steps or sampling.steps_per_pass
    if isinstance(private, Estimator):
        if teacher_weight:
            raise ConfigError(
                f"A private model that is fitted ({private.spec}) teaches no proxy; got "
                f"beta={teacher_weight:g}. Set it to 0."
            )
        trainer = None
        if mutual:
            trainer = workshop.trainer(needed(proxy, "proxy"), 0.0)
        learner = Fitted(
            private.spec,
            workshop.examples,
            classes=classes,
            seed=private.seed,
            trainer=trainer,
            balance=private.balance,
        )
    elif mutual:
        own = needed(private, "private")
        model = workshop.without_dp(own.model)
        learner = Mutual(
            model,
            own.optimizer.over(model),
            workshop.trainer(needed(proxy, "proxy"), teacher_weight),
            classes=classes,
            alpha=alpha,
            teacher=teacher,
            residual=residual,
            balance=own.balance,
            usual_steps=steps,
        )
    else:
        role: Role = "private" if method.keeps == "private" else "proxy"
        only = needed(private if role == "private" else proxy, role)
        learner = Single(workshop.trainer(only, 0.0), role=role)
    return Client(
        id=id,
        name=name,
        learner=learner,
        ledger=ledger,
        steps=steps,
        global_seed=streams.layers,
        tail=tail,
    )


@dataclass(frozen=True)
class _Workshop:
    """The parts that the trainers of one client share."""

    examples: Examples
    classes: int
    batch_size: int
    sampling_rate: float
    dp: DP
    streams: Streams
    ledger: Ledger
    device: str
    precision: str

    def without_dp(self, model: nn.Module) -> nn.Module:
        """``model`` laid out for training without DP.

        Channels last saves an eighth to a third of a step's time. Not for DP-SGD: its flat buffer
        of gradients has the default layout, and its clipping is in float32.
        """
        # which torch's stubs do not know
        layout: Any = {"memory_format": torch.channels_last}
        return computing_in(self.precision, model.to(self.device).to(**layout))

    def trainer(self, part: Part, teacher_weight: float) -> Trainer:
        """DP-SGD of the part's model, or plain training where the ledger promises nothing."""
        if self.ledger.kind is Kind.NONE:
            model = self.without_dp(part.model)
            return PlainSGD(
                model,
                part.optimizer.over(model),
                self.dp.units(self.examples),
                classes=self.classes,
                sampling_rate=self.sampling_rate,
                teacher_weight=teacher_weight,
                balance=part.balance,
                ledger=self.ledger,
                batches=self.streams.batches,
            )
        model = part.model.to(self.device)
        return DPSGD(
            model,
            part.optimizer.over(model),
            self.examples,
            classes=self.classes,
            batch_size=self.batch_size,
            clip_norm=self.dp.clip_norm,
            noise_multiplier=self.dp.noise_multiplier,
            teacher_weight=teacher_weight,
            balance=part.balance,
            ledger=self.ledger,
            batches=self.streams.batches,
            noise=self.streams.noise,
            sampling_rate=self.dp.sampling_rate,
            declared_examples=self.dp.declared_examples,
            unit=self.dp.unit,
            max_per_group=self.dp.max_per_group,
            max_physical_batch_size=self.dp.max_physical_batch_size,
        )


def _ledger(
    client: str, dp: DP, kind: Kind, sampling: Sampling, *, simulated: bool
) -> Ledger:
    """The client's ledger: continued where its file exists, opened otherwise."""
    promise: dict[str, Any] = {
        "delta": dp.delta or sampling.default_delta(),
        "kind": kind,
        "relation": sampling.relation,
        "unit": dp.unit,
        "simulated": simulated,
        "budget": dp.budget,
    }
    charges = kind is not Kind.NONE  # without DP nothing is ever charged
    if charges and dp.ledger is not None:
        ledger = Ledger.at(dp.ledger, client, **promise)
    else:
        ledger = Ledger(client, **promise)
    if charges and dp.account is not None:
        dp.account.keep(ledger)
    return ledger
