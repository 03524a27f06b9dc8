"""``load``: names, paths, the user's own functions."""

import sys

import numpy as np
import pytest
import torch

from proxyfl.data import Dataset
from proxyfl.data.holdout import published_rows
from proxyfl.data.sources import SOURCES, load
from proxyfl.errors import DataError

OWN = """
import torch
from proxyfl.data import Dataset

def good():
    x, y = torch.ones(3, 2), torch.tensor([0, 1, 0])
    return Dataset("own", x, y, x, y, 2, ("a", "b"))

def bad_labels():
    x, y = torch.ones(3, 2), torch.tensor([0, 1, 5])
    return Dataset("own", x, y, x, y, 2, ("a", "b"))

def nothing():
    pass

def broken():
    raise KeyError("path")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's file in the current directory."""
    (tmp_path / "own_data.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))]
    )
    yield
    sys.modules.pop("own_data", None)


def test_digits():
    """The default needs nothing but scikit-learn: 1797 images of 8x8 in [0, 1], all ten digits in
    both parts."""
    found = load("digits")
    assert found.shape == (1, 8, 8)
    assert (len(found.train_y), len(found.test_y)) == (1438, 359)
    assert (found.train_x.min(), found.train_x.max()) == (0, 1)
    assert set(found.train_y.tolist()) == set(found.test_y.tolist()) == set(range(10))


def test_digits_are_scikit_learns():
    """Images and digits are those that scikit-learn's own reader gives, in the same order."""
    from sklearn.datasets import load_digits

    theirs = load_digits()
    ours = load("digits", test_fraction=0.2)
    train, test = published_rows(len(theirs.target), 0.2, 0)
    for rows, x, y in ((train, ours.train_x, ours.train_y), (test, ours.test_x, ours.test_y)):
        assert np.array_equal(16 * x[:, 0].numpy(), theirs.images[rows])
        assert np.array_equal(y.numpy(), theirs.target[rows])


def test_digits_follow_the_seed():
    """The division depends on the seed, and on nothing else."""
    a, b, c = (load("digits", seed=seed).test_x for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_own_dataset(own):
    """package.module:factory is called without arguments and returns the dataset."""
    found = load("own_data:good")
    assert isinstance(found, Dataset)
    assert found.name == "own"


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("cifar", {}, "Unknown source 'cifar'.*digits, mnist, fashion-mnist, cifar10.*FILE.npz"),
        ("missing.csv", {}, "missing.csv: no such file"),
        ("missing.npz", {}, "missing.npz: no such file"),
        ("digits", {"site": "ward"}, "Only tables and arrays .* have sites, got site='ward'"),
        ("digits", {"test_fraction": 1.0}, "test_fraction"),
        ("no_such_module:f", {}, "no module 'no_such_module'"),
        ("own_data:missing", {}, "own_data has no 'missing'"),
        (
            "own_data:nothing",
            {},
            "Expected a proxyfl.data.Dataset from 'own_data:nothing', got NoneType",
        ),
        ("own_data:broken", {}, "'own_data:broken' raised KeyError: 'path'"),
        ("own_data:bad_labels", {}, "every label within 0..1, got 5 at index 2"),
    ],
)
def test_what_bad_sources_get(own, source, arguments, message):
    """Each way in which a source can be wrong has a DataError that names it."""
    with pytest.raises(DataError, match=message):
        load(source, **arguments)


def test_sources_say_where_they_are(tmp_path):
    """In an empty data folder only what needs no file is found (Fashion-MNIST may be installed with
    the system)."""
    found = {name for name, source in SOURCES.items() if source.find(tmp_path)}
    assert found - {"fashion-mnist"} == {"digits", "heart_disease", "synthetic"}


def test_sources_with_their_own_classes(own):
    """A named source and an own function have their classes; a list that differs is refused."""
    assert load("digits", classes=tuple("0123456789")).classes == 10
    assert load("own_data:good", classes=("a", "b")).classes == 2
    for source in ("digits", "own_data:good"):
        with pytest.raises(DataError, match="has its own classes"):
            load(source, classes=("b", "a"))
