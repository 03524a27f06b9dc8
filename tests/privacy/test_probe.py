"""The trial: it finds a mistake in a rule, trusts float64, and is paid for once per proxy."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from proxyfl.models import build
from proxyfl.models.registry import MODELS
from proxyfl.privacy.perexample import layers, validation
from proxyfl.privacy.perexample.layers import RULES, Use
from proxyfl.privacy.perexample.probe import widened
from proxyfl.privacy.perexample.term import Term
from proxyfl.privacy.perexample.validation import checked_clipper

aten = torch.ops.aten


def mlp() -> nn.Module:
    """A proxy of two layers."""
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nothing was tried yet."""
    monkeypatch.setattr(validation, "_tried", set())


def longer(use: Use) -> list[Term]:
    return layers.linear(replace(use, gradient=1.01 * use.gradient))


def without_bias(use: Use) -> list[Term]:
    return layers.linear(use)[:1]


def shared(use: Use) -> list[Term]:
    """Each example gets a little of the next one's gradient."""
    g = use.gradient
    return layers.linear(replace(use, gradient=g + 0.01 * g.roll(1, 0)))


def uphill(use: Use) -> list[Term]:
    """The norms are right, the sum points the other way."""
    return layers.linear(replace(use, gradient=-use.gradient))


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("rule", [longer, without_bias, shared, uphill])
def test_a_mistake_in_a_rule_is_found(rule: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proven proxy whose rule is wrong by a hundredth is not trained in one pass."""
    monkeypatch.setitem(RULES, aten.linear.default, rule)
    with pytest.warns(UserWarning, match="computed by itself"):
        assert checked_clipper(mlp(), (6,)).prepare((6,)).name != "one pass"


@pytest.mark.usefixtures("untried")
def test_the_same_proxy_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight clients with one architecture pay for one trial, another architecture for its own."""
    tried = []
    original = validation.disagreement

    def counted(model: nn.Module, *rest: object) -> str | None:
        tried.append(model)
        return original(model, *rest)

    monkeypatch.setattr(validation, "disagreement", counted)
    for _ in range(8):
        checked_clipper(mlp(), (6,))
    assert len(tried) == 1
    other = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    wider = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
    for model in (other, wider):
        checked_clipper(model, (6,))
    assert len(tried) == 3


@pytest.mark.parametrize("name", MODELS)
def test_every_model_that_comes_along_takes_one_pass(name: str) -> None:
    """No built-in model is lost to the slow way, a deep one in float32 included."""
    shape = (7,) if name == "tabular" else (3, 32, 32)
    model = build(name, shape=shape, classes=10, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checked_clipper(model, shape).prepare(shape).name == "one pass"


def test_a_widened_model_comes_back_to_the_bit() -> None:
    """Parameters and buffers are float64 for a while, and the same objects throughout."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    objects = [*model.parameters(), *model.buffers()]
    with widened(model):
        assert model[0].weight.dtype == torch.float64
        assert model(torch.ones(2, 3).double()).dtype == torch.float64
    assert all(
        one is other
        for one, other in zip(objects, [*model.parameters(), *model.buffers()], strict=True)
    )
    model[1].load_state_dict(
        {k.removeprefix("1."): v for k, v in before.items() if k.startswith("1.")}
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == before[name].dtype


@pytest.mark.usefixtures("untried")
def test_clients_can_be_built_in_several_threads() -> None:
    """Four threads that build clippers at once, with dropout and a recurrent layer among them, all
    get the one pass; the global generator stays where it was."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(6, 4, batch_first=True)
            self.last = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.layer(x.unsqueeze(1))[0]
            logits: Tensor = self.last(hidden[:, 0])
            return logits

    def name_of_way(model: nn.Module) -> str:
        return checked_clipper(model, (6,)).prepare((6,)).name

    dropping = [nn.Sequential(nn.Dropout(), nn.Linear(6, 3)) for _ in range(4)]
    models = [*dropping, *(Recurrent() for _ in range(4)), *(mlp() for _ in range(4))]
    state = torch.get_rng_state()
    with warnings.catch_warnings(), ThreadPoolExecutor(4) as pool:
        warnings.simplefilter("error")
        names = list(pool.map(name_of_way, models[::3] + models[1::3] + models[2::3]))
    assert names == ["one pass"] * len(models)
    assert torch.equal(torch.get_rng_state(), state)
