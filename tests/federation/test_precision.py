"""Arithmetic in bfloat16, for models that are trained without DP."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from proxyfl.errors import ConfigError, ModelError
from proxyfl.federation.learners import Mutual
from proxyfl.federation.precision import computing_in
from proxyfl.models import build as build_model
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.simulation import division
from proxyfl.simulation.config import Config, from_tree
from proxyfl.simulation.prepare import prepare


def cnn() -> nn.Module:
    return build_model("cnn1", shape=(1, 28, 28), classes=10, seed=0)


def test_logits_are_close_and_float32() -> None:
    """What comes out is float32 and near what float32 arithmetic gives, and not the same: it did
    compute otherwise."""
    x = torch.randn(64, 1, 28, 28)
    exact, lowered = cnn()(x), computing_in("bfloat16", cnn())(x)
    assert lowered.dtype == torch.float32
    assert not torch.equal(exact, lowered)
    assert torch.allclose(exact, lowered, atol=0.02)


def test_weights_and_gradients_stay_float32() -> None:
    """Only the products are rough; names, weights and gradients are as before."""
    model = computing_in("bfloat16", cnn())
    model(torch.randn(4, 1, 28, 28)).sum().backward()
    assert model.state_dict().keys() == cnn().state_dict().keys()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_a_deep_copy_runs_its_own_weights() -> None:
    """A copy, such as the proxy as it was received, stays as it is when the original learns."""
    x = torch.randn(8, 1, 28, 28)
    model = computing_in("bfloat16", cnn())
    frozen = copy.deepcopy(model)
    before = frozen(x)
    assert torch.equal(before, model(x))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(frozen(x), before)
    assert not torch.equal(model(x), before)


@pytest.mark.parametrize("name", ["proxyfl", "fml"])
def test_the_received_proxy_is_frozen_without_dp(name: str) -> None:
    """Without DP, where the proxy computes in bfloat16 too, the private model's teacher is the
    proxy
    as it was received while the proxy trains on."""
    config = from_tree(
        {
            "precision": "bfloat16",
            "privacy": {"enabled": False},
            "models": {"private": "cnn1", "proxy": "cnn1"},
        }
    )
    dataset = division.load_data(config)
    learner = prepare(config).assembly(name).client(0).learner
    assert isinstance(learner, Mutual)
    x = dataset.test_x[:16]
    before = learner.received(x)
    learner.train(0, 2)
    assert torch.equal(learner.received(x), before)
    assert not torch.equal(learner.proxy(x), before)


def test_a_forward_that_only_the_object_has_is_refused() -> None:
    """A model whose forward was set on the object would be copied with it; the error says so."""
    model = cnn()
    model.forward = lambda x: x
    with pytest.raises(ModelError, match="set on the object"):
        computing_in("bfloat16", model)


def test_float32_changes_nothing() -> None:
    x = torch.randn(8, 1, 28, 28)
    assert torch.equal(computing_in("float32", cnn())(x), cnn()(x))


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"precision.*float16.*float32, bfloat16"):
        from_tree({"precision": "float16"})


def test_dp_training_stays_in_float32(tmp_path: Path) -> None:
    """The setting reaches the private model and not the proxy, on whose gradients the guarantee
    rests."""
    config = from_tree(
        {"precision": "bfloat16", "models": {"private": "cnn1", "proxy": "cnn1", "residual": False}}
    )
    dataset = division.load_data(config)
    clients = division.split(config, dataset)
    client = prepare(config).assembly("proxyfl").client(0)
    learner = client.learner
    assert isinstance(learner, Mutual)
    assert isinstance(learner.trainer, DPSGD)
    x = clients[0].examples.take(torch.arange(16))
    for model, rough in ((learner.private, True), (learner.proxy, False)):
        plain = build_model("cnn1", shape=dataset.shape, classes=10, seed=0)
        plain.load_state_dict(model.state_dict())
        assert torch.equal(plain(x), model(x)) is not rough
    assert Config().precision == "float32"
