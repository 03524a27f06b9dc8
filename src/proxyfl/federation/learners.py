r"""Local learning between two exchanges (paper, Eqs. 2 to 7 and Alg. 1, lines 2 to 6).

``Single`` trains one model. ``Mutual`` trains a private model and a proxy that teach each other,
alternating on each batch: the proxy steps first, learning from the private model as it was; then
the private model steps, learning from its teacher:

    private: (1 - alpha) CE + alpha KL(teacher || private)   teacher: the current or received proxy
    proxy:   (1 - beta)  CE + beta  KL(private || proxy)     by DP-SGD

In a round of no steps the proxies settle: they only mix. The private model learns on, from batches
that DP-SGD does not see.

Two options go beyond the paper; both use only what the proxies have released, so they cost no
privacy:
    * ``teacher="received"``: the private model learns from the proxy as it came out of the
      exchange, frozen for the round, and not from what local training has since made of it;
    * ``residual=True``: the private model's logits are added to those of the received proxy, so
      that it learns what the others' knowledge leaves open.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl.federation.methods import Role
from proxyfl.federation.state import Parts, State, pack, unpack
from proxyfl.federation.trainers import PlainSGD, descend, smallest_batch
from proxyfl.losses import NO_BALANCE, Balance
from proxyfl.privacy.dpsgd import DPSGD, Batch

Teacher = Literal["current", "received"]
Trainer = DPSGD | PlainSGD


@dataclass(frozen=True)
class Losses:
    """Mean training losses of one round; None for a model that the client does not have."""

    private: float | None = None
    proxy: float | None = None


class Learner(Protocol):
    """One client's models and how they train."""

    @property
    def trainer(self) -> Trainer:
        """What trains the model that is shared."""
        ...

    @property
    def shared(self) -> nn.Module:
        """The model whose parameters the exchange moves."""
        ...

    def train(self, round: int, steps: int) -> Losses:
        """``steps`` local steps."""
        ...

    def adopt(self, theta: Tensor) -> None:
        """Take the parameters that the exchange gave."""
        ...

    def models(self) -> dict[Role, nn.Module]:
        """The models that can be evaluated or saved, by role."""
        ...

    def state(self) -> State:
        """Everything that the next round depends on."""
        ...

    def restore(self, state: State) -> None:
        """Continue from ``state``."""
        ...


class Single:
    """One model: the one that is shared, or, in ``alone``, the private one."""

    def __init__(self, trainer: Trainer, *, role: Role = "proxy") -> None:
        self.shared = trainer.model
        self.trainer = trainer
        self.role = role

    def train(self, round: int, steps: int) -> Losses:
        self.trainer.begin_round(round, steps)
        losses = []
        for _ in range(steps):
            batch = self.trainer.draw()
            losses.append(self.trainer.step(batch))
        mean = mean_of(losses)
        if self.role == "private":
            return Losses(private=mean)
        return Losses(proxy=mean)

    def adopt(self, theta: Tensor) -> None:
        params.load_flat(self.shared, theta)

    def models(self) -> dict[Role, nn.Module]:
        return {self.role: self.shared}

    def state(self) -> State:
        return pack(*self._parts(), streams=self.trainer.state())

    def restore(self, state: State) -> None:
        self.trainer.restore(unpack(state, *self._parts()))

    def _parts(self) -> Parts:
        return {"model": self.shared}, {"optimizer": self.trainer.optimizer}


class Residual(nn.Module):
    """A private model that adds to what the received proxy says: logits = own(x) + received(x), the
    latter frozen."""

    def __init__(self, own: nn.Module, received: nn.Module) -> None:
        super().__init__()
        self.own = own
        self.received = received

    def train(self, mode: bool = True) -> "Residual":
        """Only the own part has a training mode: dropout in the frozen one would blur what was
        received."""
        super().train(mode)
        self.received.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            base = self.received(x)
        logits: Tensor = self.own(x) + base
        return logits


class Mutual:
    """A private model, trained without DP, and a proxy that ``trainer`` trains; see the module's
    docstring."""

    def __init__(
        self,
        private: nn.Module,
        private_optimizer: torch.optim.Optimizer,
        trainer: Trainer,
        *,
        classes: int,
        alpha: float,
        teacher: Teacher = "current",
        residual: bool = False,
        balance: Balance = NO_BALANCE,
        usual_steps: int = 0,
    ) -> None:
        self.usual_steps = usual_steps
        self._balance = balance
        self.received = frozen_copy(trainer.model)
        self.own = private
        self.private = Residual(private, self.received) if residual else private
        self.private_optimizer = private_optimizer
        self.proxy = trainer.model
        self.shared = self.proxy
        self.trainer = trainer
        self.classes = classes
        self.alpha = alpha
        self.teacher = teacher
        self._smallest_batch = smallest_batch(private)

    def train(self, round: int, steps: int) -> Losses:
        # What the exchange gave is what the round begins with. Taking it over here and not in
        # ``adopt`` keeps a residual private model whole: it is evaluated, saved and used on the
        # proxy that it was trained on.
        self.received.load_state_dict(self.proxy.state_dict())
        self.trainer.begin_round(round, steps)
        if not steps:
            return Losses(private=self._settle())
        of_private = []
        of_proxy = []
        for _ in range(steps):
            private, proxy = self._step(self.trainer.draw())
            of_private.append(private)
            of_proxy.append(proxy)
        return Losses(mean_of(of_private), mean_of(of_proxy))

    def _settle(self) -> float | None:
        """The private model learns for a round while the proxy takes no step: its batches serve a
        model that is never released, and DP-SGD refuses them."""
        self.private.train()
        losses = []
        for _ in range(self.usual_steps):
            batch = self.trainer.sample()
            if len(batch) >= self._smallest_batch:
                losses.append(self._private_step(batch, self.private(batch.x)))
        return mean_of(losses)

    def _step(self, batch: Batch) -> tuple[float | None, float | None]:
        learns = len(batch) >= self._smallest_batch
        # A batch too small to learn from can still be judged, as in a prediction: running
        # statistics stay as they are.
        self.private.train(learns)
        logits = batch.x.new_zeros(0, self.classes)
        if len(batch):
            logits = self.private(batch.x)
        teaches = self.trainer.teacher_weight > 0
        proxy_loss = self.trainer.step(batch, logits.detach() if teaches else None)
        private_loss = self._private_step(batch, logits) if learns else None
        return private_loss, proxy_loss

    def _private_step(self, batch: Batch, logits: Tensor) -> float:
        teacher_logits = None
        if self.alpha > 0:
            teacher = self.received if self.teacher == "received" else self.proxy
            with torch.no_grad():
                teacher_logits = teacher(batch.x)
        balance = self._balance
        targets = balance.targets(batch.y, self.classes, teacher_logits, self.alpha)
        loss = balance.loss(logits, targets).mean()
        return descend(self.private_optimizer, loss)

    def adopt(self, theta: Tensor) -> None:
        params.load_flat(self.proxy, theta)

    def models(self) -> dict[Role, nn.Module]:
        return {"private": self.private, "proxy": self.proxy}

    def state(self) -> State:
        return pack(*self._parts(), streams=self.trainer.state())

    def restore(self, state: State) -> None:
        self.trainer.restore(unpack(state, *self._parts()))

    def _parts(self) -> Parts:
        models = {
            "private": self.own,
            "proxy": self.proxy,
            "received": self.received,
        }
        optimizers = {
            "private optimizer": self.private_optimizer,
            "proxy optimizer": self.trainer.optimizer,
        }
        return models, optimizers


def frozen_copy(model: nn.Module) -> nn.Module:
    """A copy that does not learn."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def mean_of(losses: Iterable[float | None]) -> float | None:
    """The mean over the batches that have a loss: an empty one has none."""
    values = [loss for loss in losses if loss is not None]
    return sum(values) / len(values) if values else None
