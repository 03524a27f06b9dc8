r"""The losses of the two models: labels, and each other (paper, Eqs. 2 to 5).

    L = (1 - weight) CE(student, y) + weight KL(teacher || student)

The paper writes KL[student || teacher], with the student first as in its CE[f || y]; deep mutual
learning (Zhang et al. 2018) and the paper's released code compute KL(teacher || student), and so do
we. For a fixed teacher that equals, up to a constant, the cross-entropy against blended targets q =
(1 - weight) onehot(y) + weight softmax(teacher): one expression serves both models, and its
gradient at the logits is softmax(z) - q."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.errors import ConfigError

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
            f"Expected the teacher's logits for a teacher with weight {weight}, got none."
        )
    soft = teacher_logits.detach().softmax(1)
    return (1 - weight) * hard + weight * soft


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-sum_c targets_c log softmax(logits)_c, one value per example; row i depends on row i alone.

    Targets are probabilities (n, classes), or class numbers (n,)."""
    if targets.dim() == 1:
        return F.cross_entropy(logits, targets, reduction="none")
    return -(targets * logits.log_softmax(1)).sum(1)


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
        return logits + logits.new_tensor(self.offsets) if self.offsets else logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of shifted logits, one value per example."""
        return cross_entropy(self.shifted(logits), targets)


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
