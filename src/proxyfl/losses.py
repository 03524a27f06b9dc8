r"""The losses of the two models: labels, and each other (paper, Eqs. 2 to 5).

    L = (1 - weight) CE(student, y) + weight KL(teacher || student)

The paper writes KL[student || teacher], with the student first as in its CE[f || y]; deep mutual
learning (Zhang et al. 2018) and the paper's released code compute KL(teacher || student), and so do
we. For a fixed teacher that equals, up to a constant, the cross-entropy against blended targets q =
(1 - weight) onehot(y) + weight softmax(teacher): one expression serves both models, and its
gradient at the logits is softmax(z) - q.

The other tasks (``proxyfl.tasks``) blend the same way: a target is (1 - weight) times the label and
weight times the teacher's opinion, so mutual learning needs no further loss.

An ``Objective`` is what a model learns by. Each states why clipping bounds what one example can do:
row i of ``loss`` is a function of row i of outputs and targets, ``targets`` looks at each label by
itself, and every other number in it is public."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl import tasks
from proxyfl.errors import ConfigError, DataError
from proxyfl.tasks import Task

__all__ = ["binary_cross_entropy", "cross_entropy", "huber", "squared_error"]
"""The losses that are public; the others serve the federation."""


def blended_targets(
    y: Tensor, classes: int, teacher_logits: Tensor | None = None, weight: float = 0.0
) -> Tensor:
    """(1 - weight) onehot(y) + weight softmax(teacher): one probability row per example."""
    hard = torch.zeros(len(y), classes, device=y.device)
    hard.scatter_(1, y.unsqueeze(1), 1.0)
    if weight == 0:
        return hard
    if teacher_logits is None:
        raise ConfigError(
            f"Expected the teacher's logits for a teacher with weight {weight}, got none. Pass "
            "them, or set the weight to 0."
        )
    soft = teacher_logits.detach().softmax(1)
    return (1 - weight) * hard + weight * soft


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-sum_c targets_c log softmax(logits)_c, one value per example; row i depends on row i alone.

    Targets are probabilities (n, classes), or class numbers (n,)."""
    if targets.dim() == 1:
        return F.cross_entropy(logits, targets, reduction="none")
    return -(targets * logits.log_softmax(1)).sum(1)


@dataclass(frozen=True)
class CrossEntropy:
    """``cross_entropy`` against probabilities, of logits shifted by ``offsets``, which also has its
    gradient in closed form.

    Guarantee: ``with_gradient`` gives the bits of the loss and of torch's autograd, and row i of
    either depends on row i of logits and targets alone."""

    offsets: tuple[float, ...] = ()

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """One value per example."""
        return cross_entropy(self.shifted(logits), targets)

    def has_gradient(self, logits: Tensor, targets: Tensor) -> bool:
        """True if the closed form is for such logits and targets."""
        return logits.dim() == 2 and logits.shape == targets.shape and logits.dtype == targets.dtype

    def with_gradient(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """One value per example, and softmax(logits) sum(targets) - targets, its gradient at the
        logits."""
        with torch.no_grad():
            logs = self.shifted(logits).log_softmax(1)
            gradient = torch._log_softmax_backward_data(targets.neg(), logs, 1, logits.dtype)
            return -(targets * logs).sum(1), gradient

    def shifted(self, logits: Tensor) -> Tensor:
        """Logits as the loss sees them."""
        return logits + logits.new_tensor(self.offsets) if self.offsets else logits


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """(output - target)^2 for a model with one output, one value per example."""
    return (outputs.squeeze(1) - targets) ** 2


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error up to a distance of 1, the distance less a half beyond: one value per
    example."""
    return F.huber_loss(outputs.squeeze(1), targets, reduction="none")


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of several yes/no findings, summed: targets (n, findings) of 0 and 1, one
    value per example."""
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)


class Objective(Protocol):
    """The objective of a task: labels become targets, and outputs and targets one loss each.

    Guarantees: target i follows from label i and row i of the teacher's outputs alone, loss i from
    row i of outputs and targets alone; a label outside its public range counts as the nearest one
    within it."""

    @property
    def public(self) -> bool:
        """True if every number in the loss is publicly known."""
        ...

    def targets(
        self, y: Tensor, outputs: int, teacher: Tensor | None = None, weight: float = 0.0
    ) -> Tensor:
        """(1 - weight) times the labels ``y`` and ``weight`` times the teacher's opinion."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One value per example."""
        ...

    def blank(self, n: int) -> Tensor:
        """Labels of ``n`` made-up examples, for a rehearsal."""
        ...

    def check(self, labels: Tensor, outputs: int) -> None:
        """Raise DataError for labels that are none of this task: a step that draws one would fail
        after its charge."""
        ...


@dataclass(frozen=True)
class Balance:
    """The way a loss makes up for uneven classes; without arguments, not at all.

    ``weights``: the loss of an example of class c counts weights[c] times. ``offsets``: the model
    is trained on logits + offsets and used without, so that it says how an example speaks for a
    class apart from how common the class is (Menon et al. 2020, arXiv:2007.07314v2).

    ``public`` says that the numbers come from public knowledge. Only then may they enter a loss of
    DP-SGD: a weight multiplies one example's loss before that example's gradient is clipped, so the
    sum's sensitivity stays C, but a weight made of private class counts would itself be a release.
    """

    weights: tuple[float, ...] = ()
    offsets: tuple[float, ...] = ()
    public: bool = True

    def targets(
        self, y: Tensor, classes: int, teacher_logits: Tensor | None = None, weight: float = 0.0
    ) -> Tensor:
        """``blended_targets``, each row times the weight of its example's class. (The cross-entropy
        is linear in its targets, so that weights the loss.) A teacher is shifted like its pupil."""
        if teacher_logits is not None:
            teacher_logits = self.shifted(teacher_logits)
        blended = blended_targets(y, classes, teacher_logits, weight)
        if not self.weights:
            return blended
        by_class = blended.new_tensor(self.weights)
        return blended * by_class[y].unsqueeze(1)

    def shifted(self, logits: Tensor) -> Tensor:
        """Logits as the loss sees them."""
        return CrossEntropy(self.offsets).shifted(logits)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of shifted logits, one value per example."""
        return CrossEntropy(self.offsets)(logits, targets)

    def blank(self, n: int) -> Tensor:
        """The first class for each of ``n`` made-up examples."""
        return torch.zeros(n, dtype=torch.int64)

    def check(self, labels: Tensor, outputs: int) -> None:
        """Raise DataError for a label that has no class."""
        if not len(labels) or 0 <= int(labels.min()) <= int(labels.max()) < outputs:
            return
        raise DataError(
            f"Expected labels from 0 to {outputs - 1} for {outputs} classes, got labels from "
            f"{int(labels.min())} to {int(labels.max())}. Name all classes, or correct the labels."
        )


@dataclass(frozen=True)
class Value:
    """A number within the public range [low, high], -1 to 1 in the model's one output.

    Guarantee: the sensitivity of a DP-SGD step stays C whatever the labels are. The scale is the
    range's, which is public, never the data's; a label outside of it counts as its nearest end, so
    that 1e300 is ``high``; the loss of a record reads its own row alone. Half a squared error would
    clip alike: the gradient's norm is bounded by the clipping, not by the loss."""

    low: float
    high: float
    form: str = "squared"
    public: bool = field(default=True, init=False)

    def scaled(self, y: Tensor) -> Tensor:
        """Labels as the model's outputs, clipped to the range."""
        within = y.double().clamp(self.low, self.high)
        return (2 * (within - self.low) / (self.high - self.low) - 1).float()

    def targets(
        self, y: Tensor, outputs: int, teacher: Tensor | None = None, weight: float = 0.0
    ) -> Tensor:
        """One scaled value per example."""
        own = self.scaled(y)
        if weight == 0:
            return own
        opinion = _opinion(teacher, weight).squeeze(1).clamp(-1, 1)
        return (1 - weight) * own + weight * opinion

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The squared error of scaled values, or Huber's, linear beyond a tenth of the range."""
        if self.form == "huber":
            return F.huber_loss(outputs.squeeze(1), targets, reduction="none", delta=0.2)
        return squared_error(outputs, targets)

    def blank(self, n: int) -> Tensor:
        """The middle of the range."""
        return torch.full((n,), (self.low + self.high) / 2)

    def check(self, labels: Tensor, outputs: int) -> None:
        """Raise DataError for labels that are no finite numbers."""
        _check_shape(labels, (len(labels),), "one number for each example")
        _check_finite(labels)


@dataclass(frozen=True)
class Findings:
    """Several yes/no findings: the sum of their binary cross-entropies.

    Guarantee: the loss of a record reads its own findings alone; no weight follows from how common
    a finding is."""

    findings: int
    public: bool = field(default=True, init=False)

    def targets(
        self, y: Tensor, outputs: int, teacher: Tensor | None = None, weight: float = 0.0
    ) -> Tensor:
        """A probability for each finding of each example."""
        own = y.float().clamp(0, 1)
        if weight == 0:
            return own
        return (1 - weight) * own + weight * _opinion(teacher, weight).sigmoid()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum over the findings, one value per example."""
        return binary_cross_entropy(outputs, targets)

    def blank(self, n: int) -> Tensor:
        """No finding."""
        return torch.zeros(n, self.findings)

    def check(self, labels: Tensor, outputs: int) -> None:
        """Raise DataError for anything else than 0 and 1."""
        _check_shape(labels, (len(labels), outputs), f"{outputs} findings for each example")
        _check_events(labels, "a finding")


@dataclass(frozen=True)
class Hazards:
    """The time to an event, as one probability per interval for those who have reached it.

        L_i = sum over the intervals k that i was at risk in: CE(hazard_k(x_i), event of i in k)

    (discrete-time survival; Gensheimer and Narasimhan 2019, arXiv:1805.00917v3, Eq. 2). A record is
    at risk up to the interval of its event. Where its follow-up ended without one, it counts in the
    last interval if it was followed for half of it or more.

    Guarantee: the loss is a sum over a record's own intervals, whose ends are public. Unlike the
    partial likelihood of a Cox model it compares no record with others: there is no risk set, so
    each record's gradient is its own and clipping bounds it by C, however many intervals it has. A
    time below 0 counts as 0, one beyond the horizon as no event by then."""

    ends: tuple[float, ...]
    public: bool = field(default=True, init=False)

    def targets(
        self, y: Tensor, outputs: int, teacher: Tensor | None = None, weight: float = 0.0
    ) -> Tensor:
        """(n, 2 K): for each interval whether the record is at risk, then whether its event comes
        in it."""
        at_risk, events = self.intervals_of(y)
        if weight:
            events = (1 - weight) * events + weight * _opinion(teacher, weight).sigmoid()
        return torch.cat([at_risk, events], dim=1)

    def intervals_of(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """For each record and interval: 1 where it is at risk, and 1 where its event comes."""
        time = y[:, :1].double().clamp(min=0)
        event = y[:, 1:2].double() > 0.5
        ends = torch.tensor(self.ends, dtype=torch.float64, device=y.device)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        # an event at time 0 is one of the first interval
        inside = (time <= ends) & ((time > starts) | (starts == 0))
        happens = inside & event
        reached = torch.where(event, time > starts, time >= (starts + ends) / 2)
        at_risk = reached | happens
        return at_risk.float(), happens.float()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum over each record's own intervals, one value per example."""
        intervals = outputs.shape[1]
        at_risk = targets[:, :intervals]
        events = targets[:, intervals:]
        each = F.binary_cross_entropy_with_logits(outputs, events, reduction="none")
        return (at_risk * each).sum(1)

    def blank(self, n: int) -> Tensor:
        """No event by the horizon."""
        return torch.tensor([[self.ends[-1], 0.0]]).repeat(n, 1)

    def check(self, labels: Tensor, outputs: int) -> None:
        """Raise DataError for times below 0 or not finite, and events other than 0 and 1."""
        _check_shape(labels, (len(labels), 2), "a time and an event for each example")
        _check_finite(labels)
        early = labels[:, 0] < 0
        if early.any():
            row = int(early.nonzero()[0])
            raise DataError(
                f"Expected times from 0, got {float(labels[row, 0]):g} in example {row}. Correct "
                "the time, or leave the record out."
            )
        _check_events(labels[:, 1:], "an event")


def objective_of(task: Task, balance: Balance | None = None) -> Objective:
    """The loss of a task; a ``balance`` for uneven classes is for classes alone."""
    if task.kind == tasks.REGRESSION:
        low, high = task.range
        return Value(low, high, task.loss)
    if task.kind == tasks.MULTILABEL:
        return Findings(len(task.names))
    if task.kind == tasks.TIME_TO_EVENT:
        return Hazards(task.intervals)
    return NO_BALANCE if balance is None else balance


def _opinion(teacher: Tensor | None, weight: float) -> Tensor:
    """A teacher's outputs, through which nothing is learnt."""
    if teacher is None:
        raise ConfigError(
            f"Expected the teacher's outputs for a teacher with weight {weight}, got none. Pass "
            "them, or set the weight to 0."
        )
    return teacher.detach()


def _check_shape(labels: Tensor, expected: tuple[int, ...], what: str) -> None:
    if tuple(labels.shape) != expected:
        raise DataError(f"Expected {what}, got labels of shape {tuple(labels.shape)}.")


def _check_finite(labels: Tensor) -> None:
    if not labels.isfinite().all():
        row = int((~labels.isfinite()).nonzero()[0][0])
        raise DataError(
            f"Expected finite numbers as labels, got {labels[row].tolist()} in example {row}. "
            "Leave such records out."
        )


def _check_events(labels: Tensor, what: str) -> None:
    other = (labels != 0) & (labels != 1)
    if other.any():
        row, column = other.nonzero()[0].tolist()
        raise DataError(
            f"Expected 0 or 1 for {what}, got {float(labels[row, column]):g} in example {row}. "
            "Correct it, or leave the record out."
        )


NO_BALANCE = Balance()

"""The ways to make up for uneven classes."""


def balance_for(way: str, shares: Sequence[float], *, public: bool) -> Balance:
    """The balance for classes with these shares; ``public`` if the shares are publicly known.

    ``weights`` are inverse shares with mean 1 over examples; ``prior`` offsets are log shares."""
    if way == "none":
        return NO_BALANCE
    if way == "weights":
        inverse = tuple(1 / (len(shares) * share) for share in shares)
        return Balance(weights=inverse, public=public)
    return Balance(offsets=tuple(map(math.log, shares)), public=public)


def class_shares(y: Tensor, classes: int) -> list[float]:
    """The share of each class among ``y``, as if each had been seen once more: none is zero."""
    seen = torch.bincount(y.cpu(), minlength=classes)
    counts = seen.double() + 1
    shares: list[float] = (counts / counts.sum()).tolist()
    return shares
