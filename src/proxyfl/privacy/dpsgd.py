r"""DP-SGD for one client: the only place where sampling, clipping, noise and the ledger meet.

    B ~ Poisson(q)                         afresh in every step; q: see ``sampling``
    theta <- optimizer(theta, (sum_i clip(g_i) + N(0, sigma^2 C^2 I)) / batch_size)

(paper, Eq. 7 with q = batch_size / n; Alg. 1, line 4)

Here i is a unit of the promise (``units``): a record, or a person, whose g_i is the mean over at
most ``max_per_group`` of their records. n, q and ``batch_size`` count units.

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
    * the divisor is ``batch_size``, never the size of the batch drawn;
    * with ``max_physical_batch_size`` the gradients of so many records are computed at a time, and
      added up before the one noise: neither the mechanism nor its cost changes;
    * a rate that follows from a number of examples is refused with a ledger that claims
      add-or-remove.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl._examples import Examples
from proxyfl._validate import number
from proxyfl.errors import PrivacyError
from proxyfl.losses import NO_BALANCE, Balance
from proxyfl.privacy.clipping.validation import checked_clipper
from proxyfl.privacy.draws import model_draws
from proxyfl.privacy.guarantee import Kind, Relation, Unit
from proxyfl.privacy.ledger import Charge, Ledger
from proxyfl.privacy.noise import add_noise, clip_norm_for
from proxyfl.privacy.sampling import Sampling, poisson, sampling_for
from proxyfl.privacy.units import Units
from proxyfl.seeds import Randomness


@dataclass(frozen=True)
class Batch:
    """One Poisson sample. ``number`` tells the step it belongs to; a batch serves one step.

    Where persons are the unit, ``sizes`` says how many consecutive records each of them has."""

    x: Tensor
    y: Tensor
    number: int
    sizes: Tensor | None = None

    @classmethod
    def drawn(
        cls,
        units: Units,
        rate: float,
        source: Randomness,
        device: torch.device,
        number: int,
    ) -> Self:
        """The records of units that are drawn at ``rate``, on ``device``."""
        chosen = poisson(len(units), rate, source)
        rows, sizes = units.records(chosen, source)
        x = units.examples.take(rows).to(device)
        y = units.examples.labels.index_select(0, rows).to(device)
        return cls(x, y, number, None if sizes is None else sizes.to(device))

    def __len__(self) -> int:
        """The number of records."""
        return len(self.y)

    @property
    def units(self) -> int:
        """The number of units: records, or persons."""
        return len(self.y) if self.sizes is None else len(self.sizes)


class DPSGD:
    """Private training of one model on one client's data. See the module's guarantees."""

    _charge: Charge  # what pays for the batch that was drawn last

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        examples: Examples,
        *,
        classes: int,
        batch_size: int,
        clip_norm: float,
        noise_multiplier: float,
        teacher_weight: float,
        balance: Balance = NO_BALANCE,
        ledger: Ledger,
        batches: Randomness,
        noise: Randomness,
        sampling_rate: float | None = None,
        declared_examples: int | None = None,
        unit: Unit = Unit.RECORD,
        max_per_group: int | None = None,
        max_physical_batch_size: int | None = None,
    ) -> None:
        self._units = Units(examples, unit, max_per_group)
        sampling = sampling_for(
            batch_size,
            len(self._units),
            sampling_rate=sampling_rate,
            declared_examples=declared_examples,
            unit=unit,
        )
        _check_promise(ledger, sampling, unit, teacher_weight, balance)
        _check_randomness(ledger, batches, noise)
        self.clip_norm = number("clip_norm", clip_norm, above=0)
        self.noise_multiplier = number(
            "noise_multiplier", noise_multiplier, above=0
        )
        self.teacher_weight = teacher_weight
        # the layout of the gradients, which fused optimizers take for given
        for parameter in params.trainable(model):
            parameter.data = parameter.data.contiguous()
        self.model = model
        self.optimizer = optimizer
        self.ledger = ledger
        self.batch_size = batch_size
        self.sampling_rate = sampling.rate
        self._classes = classes
        self._balance = balance
        self._batches = batches
        self._noise = noise
        nobody = examples.take(torch.empty(0, dtype=torch.int64))
        self._clipper = checked_clipper(
            model,
            examples.shape,
            dtype=nobody.dtype,
            wide=not noise.simulated,
            at_once=max_physical_batch_size,
        )
        self._device = params.trainable(model)[0].device
        self._clip_to = clip_norm_for(
            noise,
            clip_norm,
            noise_multiplier=noise_multiplier,
            size=params.size(model),
        )
        self._drawn = 0
        self._unused: Batch | None = None
        self._begun: set[int] = set()

    def begin_round(self, round: int, steps: int) -> None:
        """Put the cost of the round's steps on record; raise ``BudgetExhausted`` if the budget does
        not allow them."""
        if self.ledger.simulated and round in self._begun:
            raise PrivacyError(
                f"Round {round} was begun already. Its noise would be new and its cost not: a "
                f"simulated ledger records "
                "a repeated round once. Go on to the next round, or restore a checkpoint first."
            )
        self._begun.add(round)
        self.ledger.charge(round, steps, self.sampling_rate, self.noise_multiplier)

    def draw(self) -> Batch:
        """The next Poisson sample. Uses up one step that ``begin_round`` put on record."""
        self._charge = self.ledger.take(self.sampling_rate, self.noise_multiplier)
        self._drawn += 1
        self._unused = self._batch(self._charge.sampling_rate, self._drawn)
        return self._unused

    def sample(self) -> Batch:
        """A Poisson sample for a model that is never released. It pays for no step, and ``step``
        refuses it."""
        return self._batch(self.sampling_rate, 0)

    def _batch(self, rate: float, number: int) -> Batch:
        return Batch.drawn(self._units, rate, self._batches, self._device, number)

    def step(
        self, batch: Batch, teacher_logits: Tensor | None = None
    ) -> float | None:
        """One noisy step on ``batch``; returns the mean loss over its units (None if there are
        none)."""
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
        if not all(module.training for module in self.model.modules()):
            self.model.train()
        weight = self.teacher_weight
        targets = self._balance.targets(
            batch.y, self._classes, teacher_logits, weight
        )
        with model_draws(simulated=self._noise.simulated):
            clipped = self._clipper.clip(
                batch.x, targets, self._balance.loss, self._clip_to, batch.sizes
            )
        add_noise(
            clipped.total,
            noise_multiplier=self._charge.noise_multiplier,
            clip_norm=self.clip_norm,
            source=self._noise,
        )
        clipped.total.div_(self.batch_size)
        for parameter, gradient in self._clipper.views.items():
            parameter.grad = gradient.to(parameter.dtype)
        self.optimizer.step()
        return clipped.loss / batch.units if batch.units else None

    def state(self) -> dict[str, Tensor | None]:
        """The random streams, for a checkpoint of a simulation."""
        return {"batches": self._batches.state(), "noise": self._noise.state()}

    def restore(self, state: dict[str, Tensor | None]) -> None:
        """Continue from a checkpoint's ``state``."""
        self._batches.restore(state.get("batches"))
        self._noise.restore(state.get("noise"))
        self._begun.clear()


def _check_promise(
    ledger: Ledger,
    sampling: Sampling,
    unit: Unit,
    teacher_weight: float,
    balance: Balance,
) -> None:
    """Refuse a ledger that promises more than this training keeps, and what no ledger covers."""
    if ledger.unit is not unit:
        raise PrivacyError(
            f"The ledger promises something to each {ledger.unit}; this training protects each "
            f"{unit}. Open the ledger with unit=Unit.{unit.name}."
        )
    if (
        ledger.relation is Relation.ADD_OR_REMOVE
        and sampling.relation is not ledger.relation
    ):
        raise PrivacyError(
            f"The sampling rate {sampling.rate:.4g} follows from a number of examples; the "
            "ledger claims add-or-remove. Give sampling_rate, or open the ledger with "
            "relation=Relation.ZERO_OUT."
        )
    number("beta", teacher_weight, at_least=0, at_most=1)
    if teacher_weight > 0 and ledger.kind is Kind.END_TO_END:
        raise PrivacyError(
            f"A proxy with beta={teacher_weight} learns from a private model, so its guarantee is "
            "conditional; the ledger claims end-to-end. Open the ledger with "
            "kind=Kind.CONDITIONAL, or set beta to 0."
        )
    if not balance.public:
        raise PrivacyError(
            "The class weights or offsets of this model come from private class counts, which "
            "no epsilon covers. Give publicly known shares: learning.prevalence, or "
            "label.prevalence in the schema."
        )


def _check_randomness(
    ledger: Ledger, batches: Randomness, noise: Randomness
) -> None:
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
