"""Estimators as private models: fitted like scikit-learn's own, and stored as numbers."""

import numpy as np
import pytest
import torch

from proxyfl.errors import ModelError
from proxyfl.models import estimators
from proxyfl.models.estimators import (
    TREES,
    UNSEEN,
    Pickled,
    Trees,
    candidates,
    is_estimator,
    rebuild,
    softmax_fit,
)

BAYES = "sklearn.naive_bayes:GaussianNB"


def made(n: int = 200, classes: int = 3, seed: int = 0):
    """A small table whose classes can be told apart, though not quite."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, n)
    x = generator.normal(size=(n, 5)) + np.eye(classes, 5)[y] * 1.5
    # as a client's inputs come: what float32 can hold
    return x.astype(np.float32).astype(np.float64), y.astype(np.int64)


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_is_scikit_learns(classes: int) -> None:
    """Our ridge-penalised fit finds the minimum that scikit-learn's finds."""
    from sklearn.linear_model import LogisticRegression

    x, y = made(classes=classes)
    model = softmax_fit(x, y, classes, penalty=1.0)
    theirs = LogisticRegression(C=1.0, max_iter=5000, tol=1e-8)
    if classes == 2:
        # two rows w and -w share the penalty: half of it each is one row's with C doubled
        theirs = LogisticRegression(C=2.0, max_iter=5000, tol=1e-8)
    expected = theirs.fit(x, y).predict_proba(x)
    found = model(torch.from_numpy(x).float()).softmax(1).numpy()
    assert np.abs(found - expected).max() < 2e-3


@pytest.mark.parametrize("classes", [2, 3])
def test_trees_become_tables(classes: int) -> None:
    """Boosted trees as tensors say what scikit-learn's say, and come back from their tensors."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, y = made(classes=classes)
    estimator = HistGradientBoostingClassifier(random_state=0).fit(x, y)
    module = estimators._as_module(estimator, classes)
    inputs = torch.from_numpy(x).float()
    assert isinstance(module, Trees)
    expected = estimator.predict_proba(x)
    assert np.abs(module(inputs).softmax(1).numpy() - expected).max() < 1e-6
    again = rebuild("Trees", module.state_dict(), unpickle=False)
    assert torch.equal(again(inputs), module(inputs))


@pytest.mark.parametrize("spec", ["logistic", "trees", BAYES])
def test_a_class_without_examples(spec: str) -> None:
    """Logits have an entry for every class; one that was never seen is the least likely."""
    x, y = made(classes=2)
    for candidate in candidates(spec):
        model = candidate.fit(x, y * 2, 4, None, 0)
        logits = model(torch.from_numpy(x).float())
        assert logits.shape == (len(x), 4)
        assert (logits[:, [1, 3]] == UNSEEN).all()
        assert ((logits.argmax(1) // 2).numpy() == y).mean() > 0.8


def test_other_estimators_are_pickles_and_opened_only_when_told() -> None:
    """An estimator that is no table of numbers is refused unless the reader trusts the file."""
    x, y = made()
    model = candidates(BAYES)[0].fit(x, y, 3, None, 0)
    assert isinstance(model, Pickled)
    with pytest.raises(ModelError, match="--unpickle"):
        rebuild("Pickled", model.state_dict(), unpickle=False)
    again = rebuild("Pickled", model.state_dict(), unpickle=True)
    inputs = torch.from_numpy(x).float()
    assert torch.equal(again(inputs), model(inputs))


def test_an_offset_is_taken_as_given() -> None:
    """With a strong penalty a residual leaves the offset as it is, but for a shift."""
    x, y = made(classes=2)
    offset = np.stack([-x[:, 0], x[:, 0]], axis=1)
    model = softmax_fit(x, y, 2, 1e9, offset=offset)
    assert float(model.weight.abs().max()) < 1e-4


def test_what_is_an_estimator() -> None:
    """Names of estimators are told from names of torch models."""
    assert is_estimator("logistic")
    assert is_estimator("logistic|trees")
    assert is_estimator(TREES)
    assert not is_estimator("mlp")
    assert not is_estimator("torch.nn:Linear")
    with pytest.raises(ModelError, match="no classifier"):
        candidates("sklearn.linear_model:Ridge")


def test_an_estimator_that_fails_says_so() -> None:
    """What an estimator raises arrives with its name and the number of examples."""
    x, _ = made(n=4)
    x[0, 0] = np.nan
    y = np.array([0, 1, 0, 1])
    (candidate,) = candidates("sklearn.neighbors:KNeighborsClassifier")
    with pytest.raises(ModelError, match=r"KNeighbors.*4 examples"):
        candidate.fit(x, y, 2, None, 0)
