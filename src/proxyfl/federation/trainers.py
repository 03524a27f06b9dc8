"""Trainers of a client's models: optimizers, and training without DP.

``PlainSGD`` trains through the same three calls as ``DPSGD``, for models that are never shared and
for ablations. It samples as DP-SGD does (Poisson, from the client's own stream), so comparing the
two compares clipping and noise and nothing else. Where persons are drawn (``privacy.units``), its
loss is the mean over records, not over persons. It promises no privacy, and its ledger says so
(kind ``none``).
"""

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl._setonce import SetOnce
from proxyfl._validate import number
from proxyfl.errors import ModelError, PrivacyError
from proxyfl.federation import optimizers
from proxyfl.losses import NO_BALANCE, Objective
from proxyfl.privacy.dpsgd import Batch
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.units import Units
from proxyfl.seeds import Randomness
from proxyfl.settings import Optimizer


def optimizer_over(settings: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Makes an optimizer of the trainable parameters, in PyTorch's fused form (a single pass)."""
    trainable = params.trainable(model)
    if not trainable:
        raise ModelError(
            f"The model {type(model).__name__} has no trainable parameters: nothing to learn "
            "or to share. Leave requires_grad on where it should learn."
        )
    lr, decay = settings.learning_rate, settings.weight_decay
    if settings.name == "sgd":
        momentum = settings.momentum
        return optimizers.SGD(trainable, lr, momentum, weight_decay=decay, fused=True)
    if settings.name == "adam":
        return optimizers.Adam(trainable, lr, weight_decay=decay, fused=True)
    raise AssertionError(f"proxyfl.settings knows the optimizer {settings.name!r}, this does not")


class PlainSGD(SetOnce, changing=("_drawn",)):
    """Ordinary training of one model on one client's data, drawn at ``sampling_rate``."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        units: Units,
        *,
        classes: int,
        sampling_rate: float,
        teacher_weight: float,
        objective: Objective = NO_BALANCE,
        ledger: Ledger,
        batches: Randomness,
    ) -> None:
        if ledger.kind is not Kind.NONE:
            raise PrivacyError(
                f"Training without DP has no guarantee to record; open its ledger with Kind.NONE, "
                f"not {ledger.kind}."
            )
        self.teacher_weight = number("beta", teacher_weight, at_least=0, at_most=1)
        self.model = model
        self.optimizer = optimizer
        self.ledger = ledger
        self.sampling_rate = sampling_rate
        self._units = units
        self._objective = objective
        self._classes = classes
        self._device = params.trainable(model)[0].device
        self._batches = batches
        self._drawn = 0
        self._smallest_batch = smallest_batch(model)

    def begin_round(self, round: int, steps: int) -> None:
        """Records nothing."""

    def draw(self) -> Batch:
        """The next Poisson sample."""
        self._drawn += 1
        return Batch.drawn(
            self._units, self.sampling_rate, self._batches, self._device, self._drawn
        )

    def sample(self) -> Batch:
        """A Poisson sample, as ``DPSGD.sample`` gives."""
        return self.draw()

    def step(self, batch: Batch, teacher_logits: Tensor | None = None) -> float | None:
        """One step on the batch's mean loss, which it returns. Too small a batch does nothing."""
        if len(batch) < self._smallest_batch:
            return None
        self.model.train()
        weight = self.teacher_weight
        targets = self._objective.targets(batch.y, self._classes, teacher_logits, weight)
        loss = self._objective.loss(self.model(batch.x), targets).mean()
        return descend(self.optimizer, loss)

    def state(self) -> dict[str, Tensor | None]:
        """The random stream, for a checkpoint."""
        return {"batches": self._batches.state()}

    def restore(self, state: dict[str, Tensor | None]) -> None:
        """Continue from a checkpoint's ``state``."""
        self._batches.restore(state.get("batches"))


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    """One step down ``loss``, whose value it returns. No gradient is kept: of many clients in a
    process only one has any."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def smallest_batch(model: nn.Module) -> int:
    """The fewest examples that ``model`` can learn from: a BatchNorm cannot train on one."""
    norm = nn.modules.batchnorm._BatchNorm
    return 2 if any(isinstance(module, norm) for module in model.modules()) else 1
