"""Canaries leave traces that can be told apart."""

import pytest
import torch
from torch import nn

from proxyfl import models, params
from proxyfl.audit.canaries import ANCHOR_COPIES, clipped_gradients, enlarge, make
from proxyfl.losses import cross_entropy
from proxyfl.privacy.perexample.clipper import Clipper


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("architecture", ["linear", "mlp"])
def test_clipped_gradients_are_nearly_orthogonal_and_of_norm_one(architecture: str) -> None:
    """Nine of ten have the full norm, and two of them are nearly orthogonal on average."""
    model = models.build(architecture, shape=(1, 8, 8), classes=10, seed=0)
    canaries = enlarge(make(100, (1, 8, 8), 10, generator()), model, 1.0)
    rows = clipped_gradients(model, params.flatten(model), canaries, 1.0)
    norms = rows.norm(dim=1)
    assert float(norms.max()) <= 1 + 1e-5
    assert float((norms > 0.999).float().mean()) >= 0.9
    cosines = rows @ rows.T - torch.diag(norms**2)
    assert float(cosines.square().mean().sqrt()) < 0.15


def test_the_gradients_are_those_that_dp_sgd_clips() -> None:
    """Their sum is the sum that ``privacy.perexample`` computes another way, in units of C."""
    model = models.build("mlp", shape=(1, 8, 8), classes=10, seed=0)
    canaries = make(20, (1, 8, 8), 10, generator()).larger(2.0)
    rows = clipped_gradients(model, params.flatten(model), canaries, 0.5)
    targets = nn.functional.one_hot(canaries.labels, 10).float()
    total = Clipper(model).clip(canaries.x, targets, cross_entropy, 0.5).total
    assert torch.allclose(rows.sum(dim=0), total / 0.5, atol=1e-4)


def test_a_client_has_what_was_planted_and_the_anchors() -> None:
    """A canary that was not planted is not among the records; an anchor is there several times."""
    canaries = make(50, (4,), 3, generator(), anchors=2)
    examples = canaries.examples()
    planted = int(canaries.planted[:50].sum())
    assert 10 < planted < 40
    assert len(canaries) == 50
    assert len(examples) == planted + 2 * ANCHOR_COPIES
    assert torch.equal(examples.x[:planted], canaries.x[:50][canaries.planted[:50]])
