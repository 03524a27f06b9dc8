r"""DP-SGD for one client: the only place where sampling, clipping, noise and the ledger meet.

    B ~ Poisson(q)                         afresh in every step; q: see ``sampling``
    theta <- optimizer(theta, (sum_i clip(g_i) + N(0, sigma^2 C^2 I)) / batch_size)

(paper, Eq. 7 with q = batch_size / n; Alg. 1, line 4)

Here i is a unit of the promise (``units``): a record, or a person, whose g_i is the mean over at
most ``max_per_group`` of their records. n, q and ``batch_size`` count units.

With a ``coalition`` a step is one of a masked sum over the members of a roster
(``privacy.masks``): ``contribute`` adds this member's share of the noise and gives out the masked
vector and nothing else; ``advance`` takes the optimizer's step with the sum of all.

Guarantees, for the sequence of released proxies, between datasets that are neighbours by the
ledger's relation:
    * with ``teacher_weight`` 0, (epsilon, delta) as the ledger states it, end to end: each step is
      a Poisson-subsampled Gaussian mechanism with sensitivity C, and everything else is
      post-processing;
    * with ``teacher_weight`` above 0 the same numbers hold only for a teacher that is taken as
      fixed. The teacher has seen all of the data without DP, so one record can move every clipped
      gradient; the ledger's kind is then ``conditional``, and this class refuses a ledger that
      claims more;
    * a step is on the ledger before its batch is drawn, with the sampling rate and the noise that
      it then has; an empty batch is a step, noise and all;
    * the divisor is ``batch_size``, never the size of the batch drawn; that of a masked sum is what
      ``advance`` is given, the same for all members;
    * a vector with a share of the noise leaves masked, once, for the attempt that it was drawn for,
      whose roster has at least the quorum that was charged for. ``step`` is refused;
    * ``weight`` multiplies a sum that has its noise, so it is post-processing and costs nothing; it
      is refused where it would do nothing or differ between members of a masked sum;
    * a step reads records that nothing else can write to: callers have copies (``Batch``);
    * with ``max_physical_batch_size`` the gradients of so many records are computed at a time, and
      added up before the one noise: neither the mechanism nor its cost changes;
    * a rate that follows from the counted number of examples is refused with a ledger that claims
      add-or-remove;
    * the loss of a record is a function of that record alone: the cross-entropy by construction, a
      ``loss`` of the caller's by the proof, or because it is computed record by record
      (``perexample.userloss``). The numbers in a loss's code are taken for public;
    * what was checked stays so: every attribute is set once, in the constructor, no copy can be
      made that would take a charged step again, and the optimizer's settings are changed by its own
      steps alone;
    * under a real ledger a proxy whose own Python must run on the records is refused unless the
      institution vouches for it (``trust_unproven``); ``gradients`` says how they are computed, and
      the ledger has it on record.
"""

import copy
import dataclasses
import inspect
from typing import Self

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl._examples import Examples
from proxyfl._setonce import SetOnce
from proxyfl._validate import number, whole
from proxyfl.errors import ConfigError, DataError, ModelError, PrivacyError
from proxyfl.losses import NO_BALANCE, Balance, CrossEntropy, Objective
from proxyfl.privacy import accounting
from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.gaussian import Integers
from proxyfl.privacy.guarantee import Computation, Epsilon, Gradients, Kind, Relation, Unit, kind_of
from proxyfl.privacy.isolation import isolated
from proxyfl.privacy.ledger import Budget, Charge, Ledger
from proxyfl.privacy.masks import MOST_ATTEMPTS, Attempt, Contribution, Keys, Words
from proxyfl.privacy.noise import add_noise, clip_norm_for
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.draws import model_draws
from proxyfl.privacy.perexample.userloss import CheckedLoss
from proxyfl.privacy.perexample.validation import (
    check_weights,
    checked_clipper,
    output_of_nothing,
    rehearse,
    rehearse_loss,
)
from proxyfl.privacy.perexample.ways import Clipped, Loss
from proxyfl.privacy.sampling import Sampling, cautious_delta, poisson, sampling_for
from proxyfl.privacy.shares import MOST_MEMBERS, Share, check_distance
from proxyfl.privacy.units import Units
from proxyfl.seeds import Randomness, System
from proxyfl.settings import DP, Learning

_TRIED_AT_ONCE = 65_536
"""Labels for which a loss is tried at a time."""


class Batch(SetOnce):
    """One Poisson sample. ``number`` tells the step it belongs to; a batch serves one step.

    Guarantee: the tensors that a step reads are never handed out. ``x`` and ``y`` are copies, new
    ones at every access, so that whoever writes to them, now or later, reaches no step."""

    def __init__(self, x: Tensor, y: Tensor, number: int, sizes: Tensor | None = None) -> None:
        """``sizes``, where persons are the unit: how many consecutive records each of them has."""
        self._x = x
        self._y = y
        self._number = number
        self._sizes = sizes

    @classmethod
    def drawn(
        cls, units: Units, rate: float, source: Randomness, device: torch.device, number: int
    ) -> Self:
        """The records of units that are drawn at ``rate``, on ``device``."""
        chosen = poisson(len(units), rate, source)
        rows, sizes = units.records(chosen, source)
        # A dataset of somebody else's may give out memory that it goes on using.
        x = units.examples.take(rows).to(device, copy=True)
        y = units.examples.labels.index_select(0, rows).to(device)
        return cls(x, y, number, None if sizes is None else sizes.to(device))

    @property
    def x(self) -> Tensor:
        """A copy of the inputs."""
        return self._x.clone()

    @property
    def y(self) -> Tensor:
        """A copy of the labels."""
        return self._y.clone()

    @property
    def number(self) -> int:
        """The number of the step that it was drawn for; 0 for one that serves no step."""
        return self._number

    def __len__(self) -> int:
        """The number of records."""
        return len(self._y)

    @property
    def units(self) -> int:
        """The number of units: records, or persons."""
        return len(self._y) if self._sizes is None else len(self._sizes)


class DPSGD(SetOnce, changing=("_charge", "_drawn", "_unused", "_round", "_optimizer_settings")):
    """Private training of one model on one client's data. See the module's guarantees."""

    _charge: Charge  # what pays for the batch that was drawn last

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        examples: Examples,
        *,
        dp: DP,
        loss: Loss | None = None,
        classes: int | None = None,
        batch_size: int = Learning.batch_size,
        ledger: Ledger | None = None,
        batches: Randomness | None = None,
        noise: Randomness | None = None,
        teacher_weight: float = 0.0,
        objective: Objective = NO_BALANCE,
        trust_unproven: bool = False,
        coalition: Coalition | None = None,
        charge_each_step: bool = False,
        weight: float = 1.0,
    ) -> None:
        """``dp`` is the mechanism, and the promise that ``ledger`` must make.

        ``loss`` is any function (outputs, targets) -> one value per record; the targets are the
        examples' labels. In its place ``classes`` asks for the cross-entropy of so many classes, or
        with an ``objective`` for that one's loss on so many outputs; only these know of a teacher.

        ``batch_size`` counts units: records, or persons. Without ``ledger`` one is kept in memory,
        with the delta, budget and unit of ``dp`` (delta is 1/(10 n), rounded down to a power of
        ten, where ``dp`` has none). Without ``batches`` or ``noise`` both come from the operating
        system. ``teacher_weight`` is the weight of a teacher's opinion in the loss.
        ``trust_unproven`` vouches for the code of model and loss. With a ``coalition`` the steps
        are those of a masked sum. With ``charge_each_step`` a batch is charged when it is drawn,
        not with its round: a step may have to be tried again. ``weight`` multiplies each step's
        noisy gradient; it is a public number."""
        self._units = Units.of(examples, dp)
        sampling = sampling_for(batch_size, len(self._units), dp)
        batches = System() if batches is None else batches
        noise = System() if noise is None else noise
        if ledger is None:
            ledger = _ledger_in_memory(
                dp, sampling, teacher_weight=teacher_weight, simulated=noise.simulated
            )
        _check_promise(ledger, sampling, dp, teacher_weight, objective)
        _check_randomness(ledger, batches, noise)
        check_weights(model)
        _check_one_loss(loss, classes, teacher_weight, objective)
        if classes is not None:
            objective.check(examples.labels, classes)
        _check_optimizer(optimizer, model)
        _check_weight(weight, optimizer, coalition)
        self.clip_norm = dp.clip_norm
        self.noise_multiplier = dp.noise_multiplier
        self.teacher_weight = teacher_weight
        self.coalition = coalition
        self._charge_each_step = charge_each_step
        self._round = -1
        # the layout of the gradients, which fused optimizers take for given
        for parameter in params.trainable(model):
            parameter.data = parameter.data.contiguous()
        self.model = model
        self.optimizer = optimizer
        self._optimizer_settings = _settings_of(optimizer)
        self.ledger = ledger
        self.batch_size = batch_size
        self.weight = weight
        self.sampling_rate = sampling.rate
        self._classes = classes
        self._objective = objective
        self._objective_loss = _loss_of(objective)
        self._batches = batches
        self._noise = noise
        nobody = examples.take(torch.empty(0, dtype=torch.int64))
        self._nobody = nobody
        self._device = _device(model)
        with isolated(self._device):
            self._clipper = checked_clipper(
                model,
                examples.shape,
                dtype=nobody.dtype,
                wide=coalition is not None or not noise.simulated,
                dp=dp,
                every_mode=True,
            )
            checked: CheckedLoss | None = None
            if loss is not None:
                checked = rehearse_loss(
                    self._clipper, examples.shape, nobody.dtype, examples.labels, loss
                )
                _check_targets(checked, self._clipper, examples, nobody.dtype)
            elif classes is not None:
                rehearse(self._clipper, examples.shape, nobody.dtype, classes, objective)
        self._loss = checked
        gradients = _weaker(self._clipper.gradients, checked)
        self._gradients = _vouched(gradients, ledger, trusted=trust_unproven)
        size = params.size(model)
        share = None
        if coalition is not None:
            share = Share(dp.noise_multiplier, dp.clip_norm, coalition)
        self._share = share
        self._clip_to = (
            share.clip_to(size)
            if share is not None
            else clip_norm_for(noise, dp.clip_norm, noise_multiplier=dp.noise_multiplier, size=size)
        )
        self._drawn = 0
        self._unused: Batch | None = None
        self._begun: set[int] = set()

    @property
    def gradients(self) -> Gradients:
        """The way in which the gradients of each step are computed, and why."""
        return self._gradients

    def epsilon(self) -> Epsilon:
        """The cost of all that is on the ledger."""
        return self.ledger.epsilon()

    def train(self, steps: int) -> list[float]:
        """``steps`` steps, charged together beforehand as the next round. Returns the mean loss of
        each batch that was not empty; raises ``BudgetExhausted`` before the first step if the
        budget does not allow them all."""
        if self._share is not None or self.teacher_weight:
            raise PrivacyError(
                "train() is for a model that learns from its records alone. With a teacher or a "
                "masked sum, call begin_round(), draw() and step() or contribute()."
            )
        rounds = [*self._begun, *(charge.round for charge in self.ledger.charges)]
        self.begin_round(max(rounds, default=-1) + 1, whole("steps", steps))
        losses = []
        for _ in range(steps):
            loss = self.step(self.draw())
            if loss is not None:
                losses.append(loss)
        return losses

    def begin_round(self, round: int, steps: int) -> None:
        """Put the cost of the round's steps on record; raise ``BudgetExhausted`` if the budget does
        not allow them."""
        if self.ledger.simulated and round in self._begun and not self._charge_each_step:
            raise PrivacyError(
                f"Round {round} was begun already. Its noise would be new and its cost not: a "
                f"simulated ledger records "
                "a repeated round once. Go on to the next round, or restore a checkpoint first."
            )
        self._begun.add(round)
        self._clipper.check_unchanged()
        self._check_optimizer_unchanged()
        if steps:
            self.ledger.record_gradients(self.gradients)
        self._round = round
        if not self._charge_each_step:
            self._charge_for(steps)
        if self._share is not None and steps and not self.ledger.simulated:
            self._check_distance(steps)

    def _check_distance(self, steps: int) -> None:
        """Refuse a round whose noise could be too far from a Gaussian, all attempts included."""
        spent = self.ledger.segments()
        attempts = self.ledger.steps
        if self._charge_each_step:
            ahead = MOST_ATTEMPTS * steps
            segment = Segment(self.sampling_rate, self.noise_multiplier, ahead, self.coalition)
            spent = (*spent, segment)
            attempts += ahead
        every = accounting.if_all_collude(spent)
        check_distance(
            members=MOST_MEMBERS,
            size=params.size(self.model),
            steps=attempts,
            epsilon=accounting.rdp_of(every, self.ledger.delta),  # quick, and an upper bound
            delta=self.ledger.delta,
        )

    def _charge_for(self, steps: int) -> None:
        self.ledger.charge(
            self._round,
            steps,
            self.sampling_rate,
            self.noise_multiplier,
            self.coalition,
            again=self._charge_each_step,
        )

    def draw(self) -> Batch:
        """The next Poisson sample. Uses up one step that ``begin_round`` put on record, or puts one
        on record."""
        if self._charge_each_step:
            self._charge_for(1)
        self._charge = self.ledger.take(self.sampling_rate, self.noise_multiplier, self.coalition)
        self._drawn += 1
        self._unused = self._batch(self._charge.sampling_rate, self._drawn)
        return self._unused

    def sample(self) -> Batch:
        """A Poisson sample for a model that is never released. It pays for no step, and ``step``
        refuses it."""
        return self._batch(self.sampling_rate, 0)

    def blank(self, size: int) -> Batch:
        """A batch of zeros, for a rehearsal; ``step`` refuses it."""
        x = self._nobody.new_zeros(size, *self._nobody.shape[1:])
        return Batch(x.to(self._device), self._objective.blank(size).to(self._device), 0)

    def _batch(self, rate: float, number: int) -> Batch:
        with isolated(self._device):
            return Batch.drawn(self._units, rate, self._batches, self._device, number)

    def step(self, batch: Batch, teacher_logits: Tensor | None = None) -> float | None:
        """One noisy step on ``batch``; returns the mean loss over its units (None if there are
        none)."""
        if self._share is not None:
            raise PrivacyError(
                "This training has a share of the noise of a masked sum, which alone hides too "
                "little. Call contribute(), add up the messages of all members, and call advance()."
            )
        self._use_up(batch, teacher_logits)
        with isolated(self._device):
            clipped = self._clip(batch, teacher_logits)
            add_noise(
                clipped.total,
                noise_multiplier=self._charge.noise_multiplier,
                clip_norm=self.clip_norm,
                source=self._noise,
            )
            self._descend(clipped.total, self.batch_size / self.weight)
        return clipped.loss / batch.units if batch.units else None

    def contribute(
        self, batch: Batch, attempt: Attempt, keys: Keys, teacher_logits: Tensor | None = None
    ) -> tuple[Words, float | None]:
        """This member's message for ``attempt``, the masked vector of its clipped sum and its share
        of the noise; and the mean loss over the batch's units, which stays here."""
        if self._share is None:
            raise PrivacyError(
                "This training has no terms of a masked sum. Give DPSGD a coalition, or call "
                "step()."
            )
        quorum = self._share.coalition.quorum
        if len(attempt.roster) < quorum:
            raise PrivacyError(
                f"The roster of {attempt} has {len(attempt.roster)} members, below the quorum of "
                f"{quorum}: too little noise would hide this member's sum. Nothing was sent; wait "
                "for more members."
            )
        self._use_up(batch, teacher_logits)
        with isolated(self._device):
            clipped = self._clip(batch, teacher_logits)
            total = clipped.total.detach().cpu().numpy()
            vector = self._share.noisy(total, self.batch_size, self._noise.bits)
        message = Contribution(vector, attempt).mask(keys)
        return message, clipped.loss / batch.units if batch.units else None

    def advance(self, total: Integers, batch_size: int) -> None:
        """The optimizer's step with the sum of all members' vectors, divided by ``batch_size``: the
        public, expected batch of all of them."""
        if self._share is None:
            raise PrivacyError(
                "This training has no coalition, so there is no masked sum. Call step()."
            )
        gradient = torch.from_numpy(self._share.to_floats(total))
        with isolated(self._device):
            self._descend(gradient.to(self._device), batch_size)

    def largest_sum(self, batch_sizes: int, members: int) -> int:
        """The largest value of an honest sum over ``members`` whose batch sizes add up to
        ``batch_sizes``, in grid steps."""
        if self._share is None:
            raise PrivacyError("This training has no terms of a masked sum.")
        return self._share.check_range(batch_sizes, members)

    def _use_up(self, batch: Batch, teacher_logits: Tensor | None) -> None:
        """Refuse a batch that has served, and a teacher that the promise does not know of."""
        if batch is not self._unused:
            raise PrivacyError(
                f"Batch {batch.number} was used already or is not the last one that draw() gave; "
                f"call draw() again."
            )
        if (teacher_logits is None) != (self.teacher_weight == 0):
            raise PrivacyError(
                f"With beta={self.teacher_weight} a step needs the teacher's logits."
                if self.teacher_weight
                else "With beta=0 a step takes no teacher's logits: they would break the "
                "end-to-end guarantee."
            )
        self._unused = None

    def _clip(self, batch: Batch, teacher_logits: Tensor | None) -> Clipped:
        """The sum of the batch's clipped gradients, without noise."""
        if not all(module.training for module in self.model.modules()):
            self.model.train()
        targets = batch._y
        loss = self._objective_loss
        if self._loss is not None:
            loss = self._loss
        elif self._classes is not None:
            weight = self.teacher_weight
            targets = self._objective.targets(batch._y, self._classes, teacher_logits, weight)
        with model_draws(simulated=self._noise.simulated):
            return self._clipper.clip(batch._x, targets, loss, self._clip_to, batch._sizes)

    def _check_optimizer_unchanged(self) -> None:
        """Raise PrivacyError if anybody except the optimizer's own steps has changed its
        settings."""
        now = _settings_of(self.optimizer)
        if now == self._optimizer_settings:
            return
        raise PrivacyError(
            "The settings of the proxy's optimizer were changed after DPSGD was made. A learning "
            "rate that follows from a loss or a score (ReduceLROnPlateau, for example) carries "
            "what no noise hides into what is released. Set them before, and leave them. A "
            "schedule that follows from the number of steps alone can be part of the steps: "
            "optimizer.register_step_post_hook(lambda *_: schedule.step())."
        )

    def _descend(self, total: Tensor, divisor: float) -> None:
        """The optimizer's step with a sum that has its noise."""
        self._check_optimizer_unchanged()
        total.div_(divisor)
        views = self._clipper.views
        parts = torch.split(total, [view.numel() for view in views.values()])
        for (parameter, view), part in zip(views.items(), parts, strict=True):
            parameter.grad = part.view(view.shape).to(parameter.dtype)
        self.optimizer.step()
        self._optimizer_settings = _settings_of(self.optimizer)

    def state(self) -> dict[str, Tensor | None]:
        """The random streams, for a checkpoint of a simulation."""
        return {"batches": self._batches.state(), "noise": self._noise.state()}

    def restore(self, state: dict[str, Tensor | None]) -> None:
        """Continue from a checkpoint's ``state``."""
        self._batches.restore(state.get("batches"))
        self._noise.restore(state.get("noise"))
        self._begun.clear()


def _check_weight(
    weight: float, optimizer: torch.optim.Optimizer, coalition: Coalition | None
) -> None:
    """Raise ConfigError for a weight that is none, or that would have no effect."""
    number("learning.weight", weight, above=0, at_most=1)
    if weight == 1:
        return
    if coalition is not None:
        raise ConfigError(
            f"learning.weight={weight:g} is for gossip: in a masked sum the noise is everybody's "
            "together. Leave it out."
        )
    if not isinstance(optimizer, torch.optim.SGD):
        raise ConfigError(
            f"learning.weight={weight:g} scales gradients; {type(optimizer).__name__} undoes that. "
            'Set proxy_optimizer.name = "sgd", or leave the weight out.'
        )


def _ledger_in_memory(
    dp: DP, sampling: Sampling, *, teacher_weight: float, simulated: bool
) -> Ledger:
    """A ledger that keeps what ``dp`` asks for, as long as the program runs."""
    delta = dp.delta
    if delta is None and sampling.examples is not None:
        delta = cautious_delta(sampling.examples)
    return Ledger(
        "in memory",
        delta=sampling.default_delta() if delta is None else delta,
        kind=kind_of(dp=True, teacher_weight=teacher_weight),
        simulated=simulated,
        relation=sampling.relation,
        unit=Unit(dp.unit),
        budget=Budget.of(dp),
    )


def _loss_of(objective: Objective) -> Loss:
    """The loss of an objective, with its gradient in closed form where there is one."""
    return CrossEntropy(objective.offsets) if type(objective) is Balance else objective.loss


def _check_one_loss(
    loss: Loss | None, classes: int | None, teacher_weight: float, objective: Objective
) -> None:
    if (loss is None) == (classes is None):
        raise ConfigError(
            "Expected loss= (any function of outputs and targets that gives one value per record) "
            "or classes= (the cross-entropy of so many classes), got "
            + ("neither." if loss is None else "both.")
        )
    if loss is not None and (teacher_weight or objective != NO_BALANCE):
        raise ConfigError(
            "A teacher and a balance or other objective belong to classes=, and loss= is a loss "
            "of its own. Give classes= in place of loss=, or put both into your loss."
        )


def _check_targets(
    loss: CheckedLoss, clipper: Clipper, examples: Examples, dtype: torch.dtype
) -> None:
    """Refuse targets for which the loss fails, before a step is charged that would draw them. A
    loss that only its own Python can compute is not run here."""
    labels = examples.labels
    if len(labels) != len(examples):
        raise DataError(f"Expected a label for each of {len(examples)} records, got {len(labels)}.")
    if labels.is_floating_point() and not bool(labels.isfinite().all()):
        raise DataError("A label is not a finite number. Leave such records out.")
    if loss.computation is Computation.ONE_BY_ONE:
        return
    device = _device(clipper.model)
    nothing = output_of_nothing(clipper.model, examples.shape, dtype)
    try:
        for part in torch.split(labels, _TRIED_AT_ONCE):
            outputs = nothing.expand(len(part), *nothing.shape[1:])
            with torch.no_grad():
                loss(outputs.clone(), part.to(device))
    except Exception as problem:
        raise DataError(
            f"The loss {loss.name} cannot be computed for all labels ({problem}). Correct the "
            "labels, or widen the model's last layer."
        ) from problem


def _weaker(gradients: Gradients, loss: CheckedLoss | None) -> Gradients:
    """What a step rests on: the weaker one of the model's way and the loss's."""
    order = (Computation.PROVEN, Computation.VMAPPED, Computation.ONE_BY_ONE)
    if loss is None or order.index(loss.computation) <= order.index(gradients.way):
        return gradients
    return Gradients(loss.computation, loss.reason)


def _check_promise(
    ledger: Ledger, sampling: Sampling, dp: DP, teacher_weight: float, objective: Objective
) -> None:
    """Refuse a ledger that promises more than this training keeps, or less than ``dp`` asks for,
    and what no ledger covers."""
    unit = Unit(dp.unit)
    if ledger.unit is not unit:
        raise PrivacyError(
            f"The ledger promises something to each {ledger.unit}; this training protects each "
            f"{unit}. Open the ledger with unit=Unit.{unit.name}."
        )
    if dp.delta is not None and dp.delta != ledger.delta:
        raise PrivacyError(
            f"The ledger has delta={ledger.delta:g}; this training asks for {dp.delta:g}. Open the "
            "ledger with the same delta, or leave it out of dp."
        )
    if dp.budget is not None and not _keeps(ledger.budget, dp):
        raise PrivacyError(
            f"This training asks for a budget of epsilon {dp.budget:g} by {dp.accountant}, which "
            "the ledger does not keep. Open the ledger with that budget, or leave it out of dp."
        )
    if ledger.relation is Relation.ADD_OR_REMOVE and sampling.relation is not ledger.relation:
        raise PrivacyError(
            f"The sampling rate {sampling.rate:.4g} follows from the number of examples; the "
            "ledger claims add-or-remove. Give dp a sampling_rate or a number of examples, or "
            "open the ledger with relation=Relation.ZERO_OUT."
        )
    number("beta", teacher_weight, at_least=0, at_most=1)
    if teacher_weight > 0 and ledger.kind is Kind.END_TO_END:
        raise PrivacyError(
            f"A proxy with beta={teacher_weight} learns from a private model, so its guarantee is "
            "conditional; the ledger claims end-to-end. Open the ledger with "
            "kind=Kind.CONDITIONAL, or set beta to 0."
        )
    if not objective.public:
        raise PrivacyError(
            "The class weights or offsets of this model come from private class counts, which "
            "no epsilon covers. Give publicly known shares: learning.prevalence, or "
            "label.prevalence in the schema."
        )


def _keeps(budget: Budget | None, dp: DP) -> bool:
    """True if a ledger with ``budget`` stops no later than ``dp`` asks."""
    if budget is None or dp.budget is None:
        return dp.budget is None
    asked = dp.budget_all_others
    keeps_second = asked is None or (budget.all_others is not None and budget.all_others <= asked)
    return budget.accountant == dp.accountant and budget.epsilon <= dp.budget and keeps_second


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Refuse an optimizer of other weights than the model's, and one that cannot take a step with
    the noisy gradient alone."""
    own = set(map(id, params.trainable(model)))
    for group in optimizer.param_groups:
        if any(id(parameter) not in own for parameter in group["params"]):
            raise PrivacyError(
                "The proxy's optimizer holds parameters that are not the proxy's, and would move "
                "them by gradients that have no noise. Make it over the proxy's trainable "
                "parameters alone."
            )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise PrivacyError(
            f"The optimizer {type(optimizer).__name__} computes the loss by itself, several times "
            "a step, which DP-SGD cannot allow. Use one such as torch.optim.SGD or Adam."
        )
    rehearsal = copy.deepcopy(optimizer)  # with weights of its own
    for group in rehearsal.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    try:
        type(rehearsal).step(rehearsal)
    except Exception as problem:
        raise PrivacyError(
            f"The optimizer {type(optimizer).__name__} cannot take a step with dense gradients of "
            f"the proxy's weights ({problem}). Use one such as torch.optim.SGD or Adam."
        ) from problem


def _settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, object]]:
    """The learning rate and all other settings of an optimizer, and which weights they are for."""
    by_group = []
    for group in optimizer.param_groups:
        settings: dict[str, object] = {}
        for name, value in group.items():
            settings[name] = value.tolist() if isinstance(value, Tensor) else value
        settings["params"] = [id(parameter) for parameter in group["params"]]
        by_group.append(settings)
    return by_group


def _device(model: nn.Module) -> torch.device:
    trainable = params.trainable(model)
    return trainable[0].device if trainable else torch.device("cpu")


def check_trust(gradients: Gradients, *, trusted: bool) -> None:
    """Refuse a proxy whose own Python would run on the records, unless it is ``trusted``."""
    if gradients.needs_trust and not trusted:
        raise ModelError(
            f"This proxy is not proven to keep records apart ({gradients.reason}): its own Python "
            "would run on one record after the other, and may remember them where no check looks. "
            "Use a proxy that is proven. If you have read its code and vouch for it, set "
            "proxy.trust_unproven = true in site.toml (in Python: trust_unproven=True); "
            "certificates will say so."
        )


def _vouched(gradients: Gradients, ledger: Ledger, *, trusted: bool) -> Gradients:
    """``gradients`` with the institution's word for them, which a real ledger demands."""
    if not ledger.simulated:
        check_trust(gradients, trusted=trusted)
    return dataclasses.replace(gradients, trusted=trusted and gradients.needs_trust)


def _check_randomness(ledger: Ledger, batches: Randomness, noise: Randomness) -> None:
    """Refuse a ledger that takes seeded numbers for real ones, or the other way round."""
    if (batches.simulated or noise.simulated) and not ledger.simulated:
        raise PrivacyError(
            "Seeded batches or noise can be recomputed and protect nobody; the ledger claims a "
            "real guarantee. Use seeds.System for both, or open the ledger with simulated=True."
        )
    if ledger.simulated and not noise.simulated:
        raise PrivacyError(
            "Noise from the operating system is new in every repetition; a simulated ledger "
            "records a repeated round once. Open the ledger with simulated=False, or use "
            "seeds.Seeded."
        )
