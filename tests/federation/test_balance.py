"""Uneven classes: class weights and prior correction, and what they may know under DP."""

import math

import pytest
import torch

from proxyfl import losses, seeds
from proxyfl.data.examples import InMemory
from proxyfl.errors import PrivacyError
from proxyfl.losses import Balance, balance_for, class_shares, cross_entropy
from proxyfl.models import build, set_prior
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.settings import DP


def batch(count=40, classes=3):
    """Logits, labels and a teacher's logits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, classes, generator=generator, requires_grad=True)
    labels = torch.randint(classes, (count,), generator=generator)
    return logits, labels, torch.randn(count, classes, generator=generator)


def test_weights_multiply_the_loss_and_its_gradient():
    """Weighted targets give each example's loss, and the gradient, times its class's weight."""
    logits, y, teacher = batch()
    weighted = Balance(weights=(0.5, 1.0, 3.0))
    plain = cross_entropy(logits, losses.blended_targets(y, 3, teacher, 0.4))
    found = weighted.loss(logits, weighted.targets(y, 3, teacher, 0.4))
    factor = torch.tensor(weighted.weights)[y]
    torch.testing.assert_close(found, factor * plain)
    (one,) = torch.autograd.grad(found.sum(), logits)
    logits.grad = None
    (two,) = torch.autograd.grad(
        (factor * cross_entropy(logits, losses.blended_targets(y, 3, teacher, 0.4))).sum(), logits
    )
    torch.testing.assert_close(one, two)


def test_prior_correction_is_undone_at_use():
    """The best logits under offsets are those of even classes: fitting shares alone gives zero."""
    shares = (0.9, 0.1)
    balance = balance_for("prior", shares, public=True)
    y = torch.tensor([0] * 900 + [1] * 100)
    logits = torch.zeros(2, requires_grad=True)
    loss = balance.loss(logits.expand(1000, 2), balance.targets(y, 2)).mean()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.abs().max() < 1e-6


def test_weights_have_mean_one():
    """Over examples with the shares that they are made for, weights average to 1."""
    shares = (0.7, 0.2, 0.1)
    weights = balance_for("weights", shares, public=True).weights
    assert sum(w * s for w, s in zip(weights, shares, strict=True)) == pytest.approx(1)


def test_a_class_that_a_client_lacks_has_a_share():
    """Shares are smoothed, so that a missing class has a finite weight."""
    shares = class_shares(torch.tensor([0, 0, 0]), 2)
    assert shares == [pytest.approx(0.8), pytest.approx(0.2)]
    assert all(math.isfinite(w) for w in balance_for("weights", shares, public=False).weights)


def trainer(balance):
    """DP-SGD of a linear model with a balance."""
    model = build("linear", shape=(4,), classes=2, seed=0)
    examples = InMemory(torch.randn(50, 4), torch.randint(2, (50,)))
    ledger = Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=True)
    return DPSGD(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        examples,
        dp=DP(clip_norm=1.0, noise_multiplier=1.0),
        classes=2,
        batch_size=10,
        objective=balance,
        ledger=ledger,
        batches=seeds.Seeded(0, "batches"),
        noise=seeds.Seeded(0, "noise"),
    )


def test_dp_refuses_private_class_counts():
    """A balance made of a client's own class counts cannot enter DP-SGD; a public one can."""
    with pytest.raises(PrivacyError, match="private class counts"):
        trainer(balance_for("weights", [0.9, 0.1], public=False))
    found = trainer(balance_for("weights", [0.9, 0.1], public=True))
    found.begin_round(0, 1)
    assert found.step(found.draw()) is not None


@pytest.mark.parametrize("way", ["weights", "prior"])
def test_the_clip_holds_under_any_weight(way):
    """Whatever the weight, no example adds more than the clipping norm to the sum."""
    model = build("linear", shape=(4,), classes=2, seed=0)
    balance = balance_for(way, [0.999, 0.001], public=True)
    clipper = Clipper(model)
    for seed in range(20):
        x = 10 * torch.randn(1, 4, generator=torch.Generator().manual_seed(seed))
        targets = balance.targets(torch.tensor([seed % 2]), 2)
        total = clipper.clip(x, targets, balance.loss, 1.0).total
        assert total.norm() <= 1 + 1e-5


def test_a_known_prevalence_is_the_first_bias():
    """Before training, a proxy without inputs says the known shares."""
    model = build("linear", shape=(4,), classes=2, seed=0)
    assert set_prior(model, [0.93, 0.07])
    told = model(torch.zeros(1, 4)).softmax(1)[0]
    assert told.tolist() == pytest.approx([0.93, 0.07])
