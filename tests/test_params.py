"""Parameters as one flat vector."""

import pytest
import torch
from torch import nn

from proxyfl import params
from proxyfl.errors import ModelError


def small() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))
    model[0].bias.requires_grad_(False)
    return model


def test_there_and_back() -> None:
    """What flatten reads load_flat writes; frozen parameters and buffers neither travel nor
    change."""
    source, target = small(), small()
    source[1].running_mean += 5
    bias, mean = target[0].bias.clone(), target[1].running_mean.clone()
    params.load_flat(target, params.flatten(source))
    assert params.size(source) == len(params.flatten(source)) == 6 + 2 + 2 + 4
    assert torch.equal(params.flatten(target), params.flatten(source))
    assert torch.equal(target[0].bias, bias)
    assert torch.equal(target[1].running_mean, mean)


def test_flatten_copies() -> None:
    """The vector is the sender's no more: training on does not change what was read."""
    model = nn.Linear(2, 2)
    flat = params.flatten(model)
    before = flat.clone()
    with torch.no_grad():
        model.weight += 1
    assert torch.equal(flat, before)


def test_loading_keeps_the_parameters() -> None:
    """Values are written in place: an optimizer goes on with the same parameters."""
    model = nn.Linear(2, 2)
    weight = model.weight
    params.load_flat(model, torch.arange(6.0))
    assert model.weight is weight
    assert weight.tolist() == [[0, 1], [2, 3]]


def test_shared_parameters_travel_once() -> None:
    """A weight that two layers share is one part of the vector."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    assert params.size(model) == 4
    params.load_flat(model, torch.arange(4.0))
    assert model[1].weight.tolist() == [[0, 1], [2, 3]]


def test_nothing_to_learn() -> None:
    """A model without trainable parameters is an empty vector."""
    assert params.flatten(nn.ReLU()).shape == (0,)


@pytest.mark.parametrize("length", [5, 7])
def test_another_length_is_refused(length: int) -> None:
    """A vector of another length is refused, and the model stays as it was."""
    model = nn.Linear(2, 2)
    before = params.flatten(model)
    with pytest.raises(ModelError, match=f"Expected 6 parameters for Linear, got {length}"):
        params.load_flat(model, torch.ones(length))
    assert torch.equal(params.flatten(model), before)


def test_fingerprint_tells_layouts_apart() -> None:
    """Values do not matter to the fingerprint; shapes, types, names and what is frozen do."""
    model, frozen = nn.Linear(2, 2), nn.Linear(2, 2)
    assert params.fingerprint(model) == params.fingerprint(frozen)
    frozen.bias.requires_grad_(False)
    different = [nn.Linear(2, 3), nn.Linear(2, 2).double(), nn.Sequential(nn.Linear(2, 2))]
    prints = [params.fingerprint(m) for m in (model, frozen, *different)]
    assert len(set(prints)) == len(prints)
