r"""Local learning between two exchanges (paper, Eqs. 2 to 7 and Alg. 1, lines 2 to 6).

``Single`` trains one model. ``Mutual`` trains a private model and a proxy that teach each other,
alternating on each batch: the proxy steps first, learning from the private model as it was; then
the private model is run and steps, learning from its teacher:

    private: (1 - alpha) CE + alpha KL(teacher || private)   teacher: the current or received proxy
    proxy:   (1 - beta)  CE + beta  KL(private || proxy)     by DP-SGD

In a round of no steps the proxies settle: they only mix. The private model learns on, from batches
that DP-SGD does not see.

Guarantees, for a proxy that DP-SGD trains:
    * no model is given a tensor that another computation reads: each has copies, so a private
      model, an estimator or a teacher that works in place changes nothing for anybody else;
    * the proxy itself is never run on records outside of DP-SGD. Teaching and evaluation run copies
      of it (``Snapshot``), whose state goes nowhere;
    * a private model that shares a weight or a buffer with the proxy is refused, and so is an
      optimizer that would move the other's weights;
    * under a real end-to-end ledger a private model that fails on some record ends nothing: all
      peers see when a site ends. Its batch is left out, with a warning that stays at the site.

Two options go beyond the paper; both use only what the proxies have released, so they cost no
privacy:
    * ``teacher="received"``: the private model learns from the proxy as it came out of the
      exchange, frozen for the round, and not from what local training has since made of it;
    * ``residual=True``: the private model's logits are added to those of the received proxy, so
      that it learns what the others' knowledge leaves open.
"""

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl._setonce import SetOnce
from proxyfl.errors import ConfigError, ModelError, PrivacyError, ProxyFLError
from proxyfl.federation.methods import Role, name_of
from proxyfl.federation.state import Parts, State, pack, unpack
from proxyfl.federation.trainers import PlainSGD, descend, smallest_batch
from proxyfl.losses import NO_BALANCE, Objective
from proxyfl.privacy.dpsgd import DPSGD, Batch
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.settings import Learning

Teacher = Literal["current", "received"]
Trainer = DPSGD | PlainSGD


@dataclass(frozen=True)
class Losses:
    """Mean training losses of one round; None for a model that the client does not have."""

    private: float | None = None
    proxy: float | None = None


Step = tuple[Batch, Tensor | None]
"""A step of the shared model that is to be taken: its batch, and the teacher's logits."""
Training = Generator[Step, float | None, Losses]
"""A round's training, step by step. It yields each step of the shared model before it is taken and
is sent the loss once it has been, so that steps can be taken together with other clients'."""


def take_steps(trainer: Trainer, training: Training) -> Losses:
    """Run a round's training with steps of the client's own."""
    try:
        step = next(training)
        while True:
            step = training.send(trainer.step(*step))
    except StopIteration as end:
        losses: Losses = end.value
        return losses


class Learner(Protocol):
    """One client's models and how they train."""

    @property
    def trainer(self) -> Trainer:
        """The trainer of the shared model."""
        ...

    @property
    def shared(self) -> nn.Module:
        """The model whose parameters the exchange moves."""
        ...

    def train(self, round: int, steps: int) -> Losses:
        """``steps`` local steps."""
        ...

    def training(self, round: int, steps: int) -> Training:
        """The same, step by step, for steps that are taken together with other clients'."""
        ...

    def adopt(self, theta: Tensor) -> None:
        """Take the parameters that the exchange gave."""
        ...

    def snapshot(self) -> nn.Module:
        """The shared model as it is now, to be run on records: a copy, if it is promised
        anything."""
        ...

    def models(self) -> dict[Role, nn.Module]:
        """The models that can be evaluated or saved, by role."""
        ...

    def state(self) -> State:
        """Returns everything that the next round depends on."""
        ...

    def restore(self, state: State) -> None:
        """Continue from ``state``."""
        ...


@dataclass(frozen=True)
class Private:
    """A client's private model, for a learner of your own: its optimizer, the settings of mutual
    learning, and what its loss needs."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    settings: Learning
    classes: int
    objective: Objective = NO_BALANCE


MakeLearner = Callable[[Trainer, Private | None], Learner]
"""(trainer, private) -> learner: one client's learner, for ``Method.learner``.

``trainer`` owns the records and the shared model; ``private`` is None unless the method keeps the
private model. What is returned trains as ``Learner`` says. The stated epsilon covers the shared
model if it changes in ``trainer.step``, in ``adopt``, and by what follows from released parameters
alone (as in FedProx); a learner that writes anything else of the records into it breaks it."""


def made_by(make: MakeLearner, trainer: Trainer, private: Private | None) -> Learner:
    """The learner of the caller's own function; ConfigError if it is none, or shares another model
    than the trainer's."""
    learner = make(trainer, private)
    missing = [name for name in _PARTS if not hasattr(learner, name)]
    if missing:
        raise ConfigError(
            f"Expected a learner from {name_of(make)}, got a {type(learner).__name__} without "
            f"{', '.join(missing)}. Derive it from proxyfl.parts.Single."
        )
    if learner.shared is not trainer.model:
        raise ConfigError(
            f"The learner from {name_of(make)} shares another model than the one that its trainer "
            "trains, so nothing would bound what is released. Share trainer.model."
        )
    return learner


_PARTS = ("trainer", "shared", "train", "adopt", "snapshot", "models", "state", "restore")


class Snapshot(SetOnce):
    """A trainer's model as it is at each call, to be run on records.

    For DP-SGD it is a copy: whatever the model's Python does to itself on records that it is shown
    (running statistics in evaluation mode, say) does not reach the one that learns and leaves."""

    def __init__(self, trainer: Trainer) -> None:
        model = trainer.model
        self._model = model
        self._copy = independent_copy(model) if isinstance(trainer, DPSGD) else model

    def __call__(self) -> nn.Module:
        """The model, or its copy brought up to date. It is the same object every time."""
        if self._copy is not self._model:
            copy_state(self._model, self._copy)
            if self._copy.training != self._model.training:
                self._copy.train(self._model.training)
        return self._copy


class Single(SetOnce):
    """One model: the one that is shared, or, in ``alone``, the private one."""

    def __init__(self, trainer: Trainer, *, role: Role = "proxy") -> None:
        self.shared = trainer.model
        self.trainer = trainer
        self.role = role
        self.snapshot = Snapshot(trainer)

    def train(self, round: int, steps: int) -> Losses:
        return take_steps(self.trainer, self.training(round, steps))

    def training(self, round: int, steps: int) -> Training:
        self.trainer.begin_round(round, steps)
        losses = []
        for _ in range(steps):
            loss = yield self.trainer.draw(), None
            losses.append(loss)
        mean = mean_of(losses)
        if self.role == "private":
            return Losses(private=mean)
        return Losses(proxy=mean)

    def adopt(self, theta: Tensor) -> None:
        params.load_flat(self.shared, theta)

    def models(self) -> dict[Role, nn.Module]:
        return {self.role: self.snapshot()}

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
            base = self.received(x.clone())
        logits: Tensor = self.own(x) + base
        return logits


class Mutual(SetOnce):
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
        objective: Objective = NO_BALANCE,
        usual_steps: int = 0,
    ) -> None:
        refuse_shared_weights(private, private_optimizer, trainer.model)
        self.usual_steps = usual_steps
        self._objective = objective
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
        self.snapshot = Snapshot(trainer)
        self._smallest_batch = smallest_batch(private)
        self._is_broken = is_promised(trainer.ledger) and self._fails_on_zeros()

    def train(self, round: int, steps: int) -> Losses:
        return take_steps(self.trainer, self.training(round, steps))

    def training(self, round: int, steps: int) -> Training:
        # What the exchange gave is what the round begins with. Taking it over here and not in
        # ``adopt`` keeps a residual private model whole: it is evaluated, saved and used on the
        # proxy that it was trained on.
        copy_state(self.proxy, self.received)
        refuse_shared_weights(self.own, self.private_optimizer, self.proxy)
        self.trainer.begin_round(round, steps)
        if not steps:
            return Losses(private=self._settle())
        of_private = []
        of_proxy = []
        for _ in range(steps):
            private, proxy = yield from self._step(self.trainer.draw())
            of_private.append(private)
            of_proxy.append(proxy)
        return Losses(mean_of(of_private), mean_of(of_proxy))

    def _settle(self) -> float | None:
        """The private model learns for a round while the proxy takes no step: its batches serve a
        model that is never released, and DP-SGD refuses them."""
        losses = []
        for _ in range(self.usual_steps):
            batch = self.trainer.sample()
            if len(batch) >= self._smallest_batch:
                losses.append(self._private_step(batch))
        return mean_of(losses)

    def _step(
        self, batch: Batch
    ) -> Generator[Step, float | None, tuple[float | None, float | None]]:
        learns = len(batch) >= self._smallest_batch
        if self.trainer.teacher_weight == 0:
            # Before the private model has seen anything of this batch.
            proxy_loss = yield batch, None
            if not learns:
                return None, proxy_loss
            return self._private_step(batch), proxy_loss
        # A batch too small to learn from can still be judged, as in a prediction: running
        # statistics stay as they are.
        self.private.train(learns)
        logits = self.private(batch.x) if len(batch) else batch.x.new_zeros(0, self.classes)
        proxy_loss = yield batch, logits.detach()
        private_loss = self._private_step(batch, logits) if learns else None
        return private_loss, proxy_loss

    def _private_step(self, batch: Batch, logits: Tensor | None = None) -> float | None:
        """One step of the private model on ``batch``, for which it has given ``logits``; None if it
        cannot learn from this batch and nobody else may notice."""
        try:
            return descend(self.private_optimizer, self._private_loss(batch, logits))
        except Exception as problem:
            if not goes_on(self.trainer.ledger, problem) or self._is_broken:
                raise
            warn_of_fault("A batch was left out, because the private model fails on it", problem)
            return None

    def _fails_on_zeros(self) -> bool:
        """True if the private model or its optimizer, as they begin, fail on a batch of zeros: then
        a failure tells of no record. Afterwards one record may have spoilt a model for all."""
        if not isinstance(self.trainer, DPSGD):
            return False
        batch = self.trainer.blank(max(2, self._smallest_batch))
        with contextlib.suppress(Exception), torch.random.fork_rng(devices=[]):
            model = copy.deepcopy(self.private).train()
            targets = self._objective.targets(batch.y, self.classes, None, 0.0)
            with torch.enable_grad():
                loss = self._objective.loss(model(batch.x), targets).mean()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
            optimizer = copy.deepcopy(self.private_optimizer)  # with weights of its own, no hooks
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
            type(optimizer).step(optimizer)
            return False
        return True

    def _private_loss(self, batch: Batch, logits: Tensor | None = None) -> Tensor:
        if logits is None:
            self.private.train()
            with torch.enable_grad():
                logits = self.private(batch.x)
        teacher_logits = None
        if self.alpha > 0:
            teacher = self.received if self.teacher == "received" else self.snapshot()
            with torch.no_grad():
                teacher_logits = teacher(batch.x)
        objective = self._objective
        targets = objective.targets(batch.y, self.classes, teacher_logits, self.alpha)
        with torch.enable_grad():  # whatever a model's code has left switched off
            return objective.loss(logits, targets).mean()

    def adopt(self, theta: Tensor) -> None:
        params.load_flat(self.proxy, theta)

    def models(self) -> dict[Role, nn.Module]:
        return {"private": self.private, "proxy": self.snapshot()}

    def state(self) -> State:
        return pack(*self._parts(), streams=self.trainer.state())

    def restore(self, state: State) -> None:
        self.trainer.restore(unpack(state, *self._parts()))

    def _parts(self) -> Parts:
        models = {"private": self.own, "proxy": self.proxy, "received": self.received}
        optimizers = {
            "private optimizer": self.private_optimizer,
            "proxy optimizer": self.trainer.optimizer,
        }
        return models, optimizers


def independent_copy(model: nn.Module) -> nn.Module:
    """A copy that has no memory in common with ``model``; ModelError if there can be none."""
    # Tensors that a layer derives in every pass (weight norm, old form) are not made to be copied.
    derived = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                derived[id(value)] = value.detach().clone()
    try:
        copied = copy.deepcopy(model, derived)
    except (TypeError, RuntimeError, copy.Error) as problem:
        raise ModelError(
            f"The model {type(model).__name__} cannot be copied ({problem}), and the proxy that "
            "learns must not be the one that is evaluated. Keep in it only what copy.deepcopy "
            "can copy."
        ) from problem
    name = shared_tensor(copied, model)
    if name is not None:
        raise ModelError(
            f"A copy of the model {type(model).__name__} shares '{name}' with the original. Leave "
            "__deepcopy__ to torch."
        )
    return copied


def frozen_copy(model: nn.Module) -> nn.Module:
    """A copy that does not learn."""
    return independent_copy(model).requires_grad_(False).eval()


@torch.no_grad()
def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Give ``target`` the weights and buffers of ``source``, of which it is a copy."""
    pairs = zip(_tensors(source), _tensors(target), strict=True)
    for (name, value), (same, place) in pairs:
        if name != same:
            raise ModelError(f"Expected a copy with '{name}', got one with '{same}' in its place.")
        place.copy_(value)


def shared_tensor(one: nn.Module, other: nn.Module) -> str | None:
    """The name in ``one`` of a weight or buffer whose memory is also in ``other``, if any."""
    theirs = {_memory(tensor) for _, tensor in _tensors(other)}
    for name, tensor in _tensors(one):
        if tensor.numel() and _memory(tensor) in theirs:
            return name
    return None


def refuse_shared_weights(
    private: nn.Module, optimizer: torch.optim.Optimizer, proxy: nn.Module
) -> None:
    """Raise PrivacyError if training the private model would reach the proxy's weights."""
    name = shared_tensor(private, proxy)
    if name is not None:
        raise PrivacyError(
            f"The private model's '{name}' is also the proxy's: trained without DP, it would carry "
            "every record into what is released. Give each model its own, for example with "
            "copy.deepcopy."
        )
    theirs = {_memory(tensor) for _, tensor in _tensors(proxy)}
    for group in optimizer.param_groups:
        if any(_memory(each) in theirs for each in group["params"]):
            raise PrivacyError(
                "The private model's optimizer holds weights of the proxy, which it would move "
                "without DP. Make it over the private model's parameters alone."
            )


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All weights, then all buffers, by name."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _memory(tensor: Tensor) -> int:
    """The address of the memory that a tensor and all its views are in."""
    return tensor.untyped_storage().data_ptr()


def goes_on(ledger: Ledger, problem: Exception) -> bool:
    """True if training must outlast a ``problem`` that may follow from a single record: peers see
    when a site ends, and an end-to-end promise covers everything that they see."""
    # A stop or a refusal is not from a model. ModelError is what an estimator's errors become.
    is_own_error = isinstance(problem, ProxyFLError) and not isinstance(problem, ModelError)
    return is_promised(ledger) and not is_own_error


def is_promised(ledger: Ledger) -> bool:
    """True if a real end-to-end promise covers all that peers see."""
    return ledger.kind is Kind.END_TO_END and not ledger.simulated


def warn_of_fault(event: str, problem: Exception) -> None:
    """Tells the site, and nobody else. It never raises, whatever becomes of warnings."""
    text = (
        f"{event} ({type(problem).__name__}: {problem}). Training goes on, so that no peer learns "
        "of it from the site's end. Correct the model or the data at a time that you have fixed "
        "beforehand."
    )
    try:
        warnings.warn(text, stacklevel=3)
    except UserWarning:  # python -W error would end the site because of one record
        print(text, file=sys.stderr)


def mean_of(losses: Iterable[float | None]) -> float | None:
    """The mean over the batches that have a loss: an empty one has none."""
    values = [loss for loss in losses if loss is not None]
    return sum(values) / len(values) if values else None
