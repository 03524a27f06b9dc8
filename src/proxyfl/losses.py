r"""What the two models learn from: labels, and each other (paper, Eqs. 2 to 5).

    L = (1 - weight) CE(student, y) + weight KL(teacher || student)

The paper writes KL[student || teacher], with the student first as in its CE[f || y]; deep mutual
learning (Zhang et al. 2018) and the paper's released code compute KL(teacher || student), and so do
we. For a fixed teacher that equals, up to a constant, the cross-entropy against blended targets q =
(1 - weight) onehot(y) + weight softmax(teacher): one expression serves both models, and its
gradient at the logits is softmax(z) - q."""

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.errors import ConfigError


def blended_targets(
    y: Tensor, classes: int, teacher_logits: Tensor | None = None, weight: float = 0.0
) -> Tensor:
    """(1 - weight) onehot(y) + weight softmax(teacher): one probability row per example."""
    hard = F.one_hot(y, classes).to(torch.float32)
    if weight == 0:
        return hard
    if teacher_logits is None:
        raise ConfigError(
            f"Expected the teacher's logits for a teacher with weight {weight}, got none."
        )
    return (1 - weight) * hard + weight * teacher_logits.detach().softmax(1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-sum_c targets_c log softmax(logits)_c, one value per example; row i depends on row i
    alone."""
    return -(targets * logits.log_softmax(1)).sum(1)


def kl_divergence(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
    """KL(teacher || student), one value per example."""
    p = teacher_logits.log_softmax(1)
    return (p.exp() * (p - student_logits.log_softmax(1))).sum(1)
