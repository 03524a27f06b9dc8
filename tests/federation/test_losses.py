"""The losses of mutual learning against their definitions (paper, Eqs. 2 to 5)."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxyfl.errors import ConfigError
from proxyfl.losses import Balance, CrossEntropy, blended_targets, cross_entropy


def logits(seed: int, n: int = 5, classes: int = 4, scale: float = 3.0) -> Tensor:
    return (
        torch.randn(n, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        * scale
    )


Y = torch.tensor([0, 3, 1, 1, 2])


def test_cross_entropy_of_labels() -> None:
    """Against one-hot targets the loss is the ordinary cross-entropy, one value per example."""
    z = logits(0)
    torch.testing.assert_close(
        cross_entropy(z, blended_targets(Y, 4).double()), F.cross_entropy(z, Y, reduction="none")
    )


def kl_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student), one value per example, by torch."""
    return F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="none").sum(1)


@settings(max_examples=25)
@given(weight=st.floats(0, 1), seed=st.integers(0, 1000))
def test_blended_targets_are_the_papers_objective(weight: float, seed: int) -> None:
    """Cross-entropy on blended targets has the gradient of (1 - w) CE + w KL, whatever the
    weight."""
    teacher, student = logits(seed), logits(seed + 1)
    gradients = []
    for loss in (
        lambda z: cross_entropy(z, blended_targets(Y, 4, teacher, weight)),
        lambda z: (
            (1 - weight) * F.cross_entropy(z, Y, reduction="none")
            + weight * kl_divergence(teacher, z)
        ),
    ):
        z = student.clone().requires_grad_()
        loss(z).sum().backward()
        gradients.append(z.grad)
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


def test_gradient_at_the_logits() -> None:
    """It is softmax(z) - q: what the module's docstring says."""
    z, q = logits(3).requires_grad_(), blended_targets(Y, 4, logits(4), 0.3)
    cross_entropy(z, q).sum().backward()
    torch.testing.assert_close(z.grad, z.detach().softmax(1) - q)


def test_targets_are_distributions() -> None:
    """Each row is non-negative and adds up to 1; weight 0 is the label, weight 1 the teacher."""
    teacher = logits(5)
    for weight in (0.0, 0.4, 1.0):
        q = blended_targets(Y, 4, teacher, weight)
        assert bool((q >= 0).all())
        torch.testing.assert_close(q.sum(1).double(), torch.ones(5, dtype=torch.float64))
    assert torch.equal(blended_targets(Y, 4, teacher, 0.0), F.one_hot(Y, 4).float())
    torch.testing.assert_close(blended_targets(Y, 4, teacher, 1.0), teacher.softmax(1))


def test_no_gradient_reaches_the_teacher() -> None:
    """The teacher is a constant to its student."""
    teacher = logits(6).requires_grad_()
    assert not blended_targets(Y, 4, teacher, 0.5).requires_grad


def test_rows_do_not_mix() -> None:
    """Example i's loss depends on row i alone, which DP-SGD relies on."""
    z, q = logits(7), blended_targets(Y, 4, logits(8), 0.5)
    changed, changed_q = z.clone(), q.clone()
    changed[1:] += 100
    changed_q[1:] = 0.25
    assert cross_entropy(z, q)[0] == cross_entropy(changed, changed_q)[0]


def test_extreme_logits_stay_finite() -> None:
    """Logits of a thousand give a finite loss and a finite gradient."""
    z = torch.tensor([[1000.0, -1000.0]], requires_grad=True)
    loss = cross_entropy(
        z, blended_targets(torch.tensor([1]), 2, torch.tensor([[-1000.0, 1000.0]]), 0.5)
    ).sum()
    loss.backward()
    assert float(loss.detach()) == pytest.approx(2000)
    assert bool(z.grad.isfinite().all())


def test_a_missing_teacher_is_noticed() -> None:
    """A weight without a teacher is an error, not silently the labels."""
    with pytest.raises(ConfigError, match=r"teacher with weight 0.5, got none"):
        blended_targets(Y, 4, None, 0.5)
    assert len(blended_targets(Y[:0], 4)) == 0


@pytest.mark.parametrize("offsets", [(), (0.5, -1.0, 0.0, 2.0)])
@pytest.mark.parametrize("scale", [1.0, 1e30, float("inf")])
def test_the_closed_form_has_autograds_bits(offsets: tuple[float, ...], scale: float) -> None:
    """Loss and gradient in closed form equal torch's to the last bit, weights of classes and
    numbers that are not finite included."""
    balance = Balance(weights=(0.5, 1.0, 2.0, 3.0), offsets=offsets)
    z = logits(1, scale=1.0).float()
    z[2, 1] = scale
    z.requires_grad_()
    targets = balance.targets(Y, 4, logits(2).float(), 0.3)
    losses = balance.loss(z, targets)
    (gradient,) = torch.autograd.grad(losses.sum(), z)
    loss = CrossEntropy(offsets)
    assert loss.has_gradient(z, targets)
    found, at_logits = loss.with_gradient(z, targets)
    assert torch.equal(found.nan_to_num(7), losses.detach().nan_to_num(7))
    assert torch.equal(at_logits.nan_to_num(7), gradient.nan_to_num(7))


def test_the_closed_form_is_for_rows_of_probabilities_alone() -> None:
    """Class numbers, targets of another type and outputs of another shape go by autograd."""
    z = logits(1)
    loss = CrossEntropy()
    assert not loss.has_gradient(z, Y)
    assert not loss.has_gradient(z, blended_targets(Y, 4))  # float32
    assert not loss.has_gradient(z[:, :3], blended_targets(Y, 4).double())
    assert loss.has_gradient(z, blended_targets(Y, 4).double())
