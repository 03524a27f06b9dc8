"""``build``: seeds, the user's own models, and what is said when they are wrong."""

import random
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from proxyfl.errors import ModelError
from proxyfl.models import MODELS, build, parameter_count

OWN = """
import torch
from torch import nn

CONSTANT = 3

def good(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))

def normalised(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, classes), nn.BatchNorm1d(classes))

def wrong_output(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, classes + 1))

def no_tensor(shape, classes):
    class Pair(nn.Module):
        def forward(self, x):
            return x, x
    return Pair()

def wrong_input(shape, classes):
    return nn.Linear(99, classes)

def nothing(shape, classes):
    nn.Linear(4, classes)

def broken(shape, classes):
    raise KeyError("depth")

class Space:
    @staticmethod
    def inner(shape, classes):
        return good(shape, classes)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's file in the current directory, which is not on the import path."""
    (tmp_path / "own_models.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("1 / 0\n")
    (tmp_path / "own_needs.py").write_text("import a_module_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))]
    )
    yield tmp_path
    for name in ("own_models", "own_broken", "own_needs"):
        sys.modules.pop(name, None)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@settings(max_examples=20)
@given(seed=st.integers(0, 2**63 - 1), state=st.integers(0, 2**31))
def test_weights_depend_on_the_seed_alone(seed, state):
    """Whatever was drawn before, one seed gives one set of weights, and another seed another."""
    torch.manual_seed(state)
    first = weights(build("linear", shape=(5,), classes=3, seed=seed))
    torch.rand(state % 7)
    assert torch.equal(first, weights(build("linear", shape=(5,), classes=3, seed=seed)))
    assert not torch.equal(
        first, weights(build("linear", shape=(5,), classes=3, seed=(seed + 1) % 2**63))
    )


def test_global_state_stays(own):
    """Building leaves the global generators of torch, numpy and python where they were."""
    torch.manual_seed(3)
    np.random.seed(3)  # the legacy generator is the global state this test is about
    random.seed(3)
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    for name in (*MODELS, "own_models:good"):
        build(name, shape=(1, 32, 32), classes=2, seed=0)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()


def test_own_model_in_the_current_directory(own):
    """A file beside the user is importable, lazy layers are ready, and the seed governs their
    weights too."""
    one, same, other = (
        build("own_models:good", shape=(2, 2), classes=3, seed=seed) for seed in (1, 1, 2)
    )
    assert parameter_count(one) == 4 * 3 + 3
    assert torch.equal(weights(one), weights(same))
    assert not torch.equal(weights(one), weights(other))


def test_nested_names(own):
    """A factory may be an attribute of an attribute."""
    assert isinstance(build("own_models:Space.inner", shape=(4,), classes=2, seed=0), nn.Module)


def test_the_trial_leaves_running_statistics(own):
    """Trying the model on zeros moves no BatchNorm statistics, and the model comes back in training
    mode."""
    model = build("own_models:normalised", shape=(4,), classes=2, seed=0)
    assert model.training
    assert model[2].num_batches_tracked == 0
    assert torch.equal(model[2].running_var, torch.ones(2))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "resnet",
            r"Unknown model 'resnet'. Did you mean 'resnet18'\? Known: linear.*module:factory",
        ),
        ("no_such_module:f", "no module 'no_such_module'"),
        ("own_models.deeper:f", "no module 'own_models.deeper'|importing own_models.deeper raised"),
        ("own_models:missing", "own_models has no 'missing'. It has: .*good"),
        ("own_models:CONSTANT", "expected a function or a class, found int"),
        ("own_models:", "Expected package.module:factory, got 'own_models:'"),
        ("own_broken:f", "importing own_broken raised ZeroDivisionError"),
        (
            "own_needs:f",
            "importing own_needs raised ModuleNotFoundError: No module named 'a_module_nobody_has'",
        ),
        ("own_models:broken", r"shape \(4,\) and 2 classes: it raised KeyError: 'depth'"),
        (
            "own_models:nothing",
            "Expected a torch.nn.Module from 'own_models:nothing', got NoneType",
        ),
        ("own_models:wrong_output", r"to \(2, 3\), expected logits of shape \(2, 2\)"),
        ("own_models:no_tensor", r"to tuple, expected logits of shape \(2, 2\)"),
        ("own_models:wrong_input", r"does not accept a batch of shape \(2, 4\)"),
    ],
)
def test_what_bad_specs_get(own, spec, message):
    """Each way in which a model can be wrong has a ModelError that names it."""
    with pytest.raises(ModelError, match=message):
        build(spec, shape=(4,), classes=2, seed=0)


@pytest.mark.parametrize("arguments", [{"classes": 0}, {"shape": (0, 3)}, {"seed": -1}])
def test_senseless_sizes(arguments):
    """Sizes below one and negative seeds are refused before anything is made."""
    with pytest.raises(ModelError, match="Expected a whole number"):
        build("linear", **({"shape": (4,), "classes": 2, "seed": 0} | arguments))


def test_shared_parameters_count_once():
    """A parameter that two layers share is learnt once, and counts once."""
    layer = nn.Linear(3, 3)
    assert parameter_count(nn.Sequential(layer, layer)) == 12
