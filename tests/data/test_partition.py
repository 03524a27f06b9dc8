"""Who gets what: disjoint, of the right size, with the right share of the right class."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from proxyfl.data import by_class, by_site, class_counts, dirichlet, iid, majority
from proxyfl.data.partition import _majority_classes
from proxyfl.errors import DataError

PROPERTY = settings(max_examples=80)
LABELS = st.lists(st.integers(0, 4), min_size=8, max_size=300).map(
    lambda values: np.array(values, dtype=np.int64)
)
SEEDS = st.integers(0, 10_000)


def rng(seed=0):
    return np.random.default_rng(seed)


def check_disjoint(parts, n):
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert all(part.dtype == np.int64 for part in parts)
    assert together.size == 0 or (together.min() >= 0 and together.max() < n)
    assert all((np.diff(part) > 0).all() for part in parts)


@PROPERTY
@given(labels=LABELS, clients=st.integers(1, 8), seed=SEEDS, data=st.data())
def test_iid(labels, clients, seed, data):
    """Parts are disjoint and of the size that was asked for, by default as large as they can be."""
    examples = data.draw(st.none() | st.integers(1, len(labels) // clients))
    parts = iid(labels, clients=clients, examples=examples, generator=rng(seed))
    check_disjoint(parts, len(labels))
    assert [len(part) for part in parts] == [examples or len(labels) // clients] * clients


def feasible(counts, clients, size, p_major):
    """Whether any choice of classes lets ``majority`` succeed surely: the majority parts fit, and
    so must the rest."""
    major = round(p_major * size)
    return major == 0 or sum(int(count) // major for count in counts) >= clients


@PROPERTY
@given(
    labels=LABELS, clients=st.integers(1, 8), p_major=st.floats(0, 1), seed=SEEDS, data=st.data()
)
def test_majority(labels, clients, p_major, seed, data):
    """Each client has exactly round(p_major * examples) of one class and no other example of it;
    parts are disjoint."""
    examples = data.draw(st.integers(1, len(labels) // clients))
    try:
        parts = majority(
            labels, clients=clients, examples=examples, p_major=p_major, generator=rng(seed)
        )
    except DataError:
        counts = np.bincount(labels)
        # It may only give up where the majority parts cannot fit, or where one class is nearly all
        # there is.
        rest = examples - round(p_major * examples)
        assert not feasible(counts, clients, examples, p_major) or rest * clients > len(
            labels
        ) - counts.max() - (clients * round(p_major * examples))
        return
    check_disjoint(parts, len(labels))
    assert [len(part) for part in parts] == [examples] * clients
    major = round(p_major * examples)
    for row in class_counts(labels, parts, 5):
        assert major in row


@PROPERTY
@given(labels=LABELS, clients=st.integers(1, 8), p_major=st.floats(0, 1), seed=SEEDS)
def test_majority_takes_what_fits(labels, clients, p_major, seed):
    """Without a number of examples, all clients get equally many, with the right majority share,
    and it never fails."""
    # One example each can always be dealt if there are that many outside the largest class.
    assume(clients <= len(labels) - np.bincount(labels).max())
    parts = majority(labels, clients=clients, p_major=p_major, generator=rng(seed))
    check_disjoint(parts, len(labels))
    assert len({len(part) for part in parts}) == 1
    assert 1 <= len(parts[0]) <= len(labels) // clients
    for row in class_counts(labels, parts, 5):
        assert round(p_major * len(parts[0])) in row


@PROPERTY
@given(labels=LABELS, clients=st.integers(1, 8), seed=SEEDS)
def test_majority_takes_as_many_as_fit(labels, clients, seed):
    """Without a number of examples and with pure classes, clients get the most that any choice of
    classes allows."""
    counts = np.bincount(labels)
    best = max(size for size in range(1, len(labels) + 1) if (counts // size).sum() >= clients)
    parts = majority(labels, clients=clients, p_major=1, generator=rng(seed))
    assert [len(part) for part in parts] == [best] * clients


@PROPERTY
@given(
    labels=LABELS, clients=st.integers(1, 8), classes=st.integers(1, 5), seed=SEEDS, data=st.data()
)
def test_by_class(labels, clients, classes, seed, data):
    """Each client has equally many examples of exactly so many classes, disjoint from others'; the
    numbers of clients that have a class differ by one at most."""
    known = np.flatnonzero(np.bincount(labels))
    assume(classes <= len(known))
    most = int(np.bincount(labels)[known].min()) // clients
    assume(most >= 1)
    examples = data.draw(st.none() | st.integers(1, most).map(lambda n: n * classes))
    parts = by_class(
        labels, clients=clients, classes=classes, examples=examples, generator=rng(seed)
    )
    check_disjoint(parts, len(labels))
    counts = class_counts(labels, parts, 5)
    assert ((counts > 0).sum(axis=1) == classes).all()
    sizes = counts[counts > 0]
    assert (sizes == sizes[0]).all()
    assert examples is None or sizes[0] * classes == examples
    takers = (counts > 0).sum(axis=0)[known]
    assert takers.max() - takers.min() <= 1


@pytest.mark.parametrize(
    ("classes", "examples", "said"),
    [
        (4, None, "Each client is to have 4 classes, there are 3"),
        (2, 5, "Expected a multiple of classes=2 for examples, got 5"),
        (2, 14, "Expected at most 6 examples of each of 2 classes for each client, got 7"),
    ],
)
def test_by_class_says_what_is_short(classes, examples, said):
    """A division by class that cannot be made says why."""
    labels = np.repeat(np.arange(3), 6)
    with pytest.raises(DataError, match=said):
        by_class(labels, clients=1, classes=classes, examples=examples, generator=rng())


def test_majority_as_in_the_paper():
    """8 clients of 1000 from ten large classes, p_major 0.8: 800 of one class, the rest from all
    nine others."""
    labels = rng(1).permutation(np.repeat(np.arange(10), 6000))
    counts = class_counts(
        labels, majority(labels, clients=8, examples=1000, p_major=0.8, generator=rng()), 10
    )
    assert (counts.max(axis=1) == 800).all()
    others = np.sort(counts, axis=1)[:, :-1]
    assert (others.sum(axis=1) == 200).all()
    # 200 draws over 9 classes: 22 each, standard deviation 4.4; five of them either way.
    assert others.min() > 0
    assert others.max() < 45


def test_majority_classes_are_random():
    """Over many clients every class is chosen about equally often: the paper's randomly chosen
    class."""
    chosen = _majority_classes(np.full(10, 10**9), 5000, 100, rng())
    # Binomial(5000, 0.1): 500, standard deviation 21.
    assert (abs(np.bincount(chosen, minlength=10) - 500) < 5 * 21).all()


def test_majority_uses_the_last_example():
    """Where only one choice of classes fits, it is found: two clients, two classes, all of each as
    majority."""
    labels = np.array([0] * 10 + [1] * 10)
    for seed in range(20):
        parts = majority(labels, clients=2, examples=10, p_major=1, generator=rng(seed))
        assert sorted(class_counts(labels, parts, 2).tolist()) == [[0, 10], [10, 0]]


def test_majority_rest_can_use_everything():
    """With every example dealt out, no client is left with too few: own-class examples are traded
    away."""
    labels = np.repeat(np.arange(10), 100)
    for seed in range(20):
        parts = majority(labels, clients=8, examples=125, p_major=0.1, generator=rng(seed))
        check_disjoint(parts, 1000)
        assert sum(map(len, parts)) == 1000
        assert all(12 in row for row in class_counts(labels, parts, 10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"examples": 60},
            "4 clients with 60 examples each need 240, there are 200. Lower examples to 50",
        ),
        (
            {"examples": 50, "p_major": 0.9},
            "Client 3 of 4 asks for 45 examples .* class 2, .* has 44 of its 44",
        ),
        ({"examples": 50, "p_major": 1.5}, "Expected 0 <= p_major <= 1, got p_major=1.5"),
        ({"examples": 0}, "examples >= 1"),
        ({"clients": 0}, "clients >= 1"),
        ({"clients": 201}, "201 clients need at least 201 examples, there are 200"),
    ],
)
def test_what_majority_refuses(arguments, message):
    """More than there is, of everything or of one class, is refused with the class, what was asked
    and what is left."""
    labels = np.array([0] * 101 + [1] * 55 + [2] * 44)
    with pytest.raises(DataError, match=message):
        majority(labels, **({"clients": 4, "p_major": 0.5, "generator": rng()} | arguments))


def test_majority_needs_other_classes():
    """Where one class is nearly all, the clients that must not have more of it cannot be filled,
    and it says so."""
    labels = np.array([0] * 95 + [1] * 5)
    with pytest.raises(
        DataError, match=r"majority class 0 ask for 40 examples of other classes, there are 5 left"
    ):
        majority(labels, clients=2, examples=40, p_major=0.5, generator=rng())


@PROPERTY
@given(
    labels=LABELS,
    clients=st.integers(1, 6),
    concentration=st.sampled_from([0.3, 1.0, 100.0]),
    seed=SEEDS,
)
def test_dirichlet(labels, clients, concentration, seed):
    """Every example goes to exactly one client, and every client has at least the minimum."""
    # a twentieth of an equal share: some draws reach it, not all do
    minimum = len(labels) // (20 * clients)
    parts = dirichlet(
        labels, clients=clients, concentration=concentration, generator=rng(seed), minimum=minimum
    )
    check_disjoint(parts, len(labels))
    assert len(parts) == clients
    assert sum(map(len, parts)) == len(labels)
    assert min(map(len, parts)) >= minimum


def test_dirichlet_concentration():
    """Shares of a class have the Dirichlet's variance: a small concentration is uneven, a large one
    even."""
    labels = np.repeat(np.arange(200), 500)
    for concentration in (0.5, 5.0):
        parts = dirichlet(labels, clients=4, concentration=concentration, generator=rng())
        shares = class_counts(labels, parts, 200) / 500
        # Var of one share: (1/K)(1 - 1/K) / (K a + 1). 800 shares; a tenth is about two standard
        # errors, take three.
        expected = 0.25 * 0.75 / (4 * concentration + 1)
        assert abs(shares.var() / expected - 1) < 0.3
        assert abs(shares.mean(axis=1) - 0.25).max() < 0.1


def test_dirichlet_gives_up():
    """A minimum that no draw reaches ends in an error that says what to change."""
    labels = np.zeros(100, dtype=np.int64)
    with pytest.raises(
        DataError, match=r"No division in 1000 draws .* 20 clients at least 4 .*concentration=0.01"
    ):
        dirichlet(labels, clients=20, concentration=0.01, minimum=4, generator=rng())
    with pytest.raises(
        DataError, match="20 clients with at least 6 examples need 120, there are 100"
    ):
        dirichlet(labels, clients=20, concentration=1, minimum=6, generator=rng())
    with pytest.raises(DataError, match="0 < concentration"):
        dirichlet(labels, clients=20, concentration=0, generator=rng())


@PROPERTY
@given(site=st.lists(st.integers(0, 3), min_size=1, max_size=50))
def test_by_site(site):
    """Each site has exactly its own examples; a site without any is named."""
    site = np.array(site)
    missing = sorted(set(range(site.max() + 1)) - set(site.tolist()))
    if missing:
        with pytest.raises(DataError, match=f"Site {missing[0]} has no training example"):
            by_site(site)
        return
    parts = by_site(site)
    check_disjoint(parts, len(site))
    assert all((site[part] == i).all() for i, part in enumerate(parts))
    assert sum(map(len, parts)) == len(site)


@pytest.mark.parametrize(
    "division",
    [
        lambda labels, generator: iid(labels, clients=4, generator=generator),
        lambda labels, generator: majority(labels, clients=4, p_major=0.6, generator=generator),
        lambda labels, generator: dirichlet(
            labels, clients=4, concentration=0.5, generator=generator
        ),
    ],
)
def test_divisions_follow_their_generator(division):
    """An equal generator gives equal parts, another one others."""
    labels = np.arange(200) % 5
    a, b, c = (division(labels, rng(seed)) for seed in (0, 0, 1))
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not all(np.array_equal(x, y) for x, y in zip(a, c, strict=True))


@pytest.mark.parametrize(
    "labels", [np.array([]), np.array([0.5, 1]), np.array([[0, 1]]), np.array([0, -1])]
)
def test_labels_must_be_class_numbers(labels):
    """What cannot be a list of class numbers is refused."""
    with pytest.raises(DataError, match="Expected each label as a whole number from 0"):
        iid(labels, clients=1, generator=rng())
