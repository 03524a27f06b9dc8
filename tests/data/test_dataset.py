"""What a Dataset guarantees, and how one is split and encoded."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.data import Dataset
from proxyfl.data.dataset import hold_out
from proxyfl.data.examples import InMemory, pixels
from proxyfl.data.holdout import fingerprints, held_out, seeded_key
from proxyfl.data.labels import encode_labels
from proxyfl.errors import DataError


def parts(**changed):
    fields = {
        "name": "made",
        "train_x": torch.zeros(4, 2),
        "train_y": torch.tensor([0, 1, 2, 0]),
        "test_x": torch.zeros(2, 2),
        "test_y": torch.tensor([0, 1]),
        "classes": 3,
        "class_names": ("a", "b", "c"),
    }
    return fields | changed


def spoiled(value):
    x = torch.zeros(4, 2)
    x[2, 1] = value
    return x


def test_a_sound_dataset():
    """What is sound is taken as it is, and tells the shape of one example."""
    assert Dataset(**parts()).shape == (2,)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"train_x": spoiled(math.nan)},
            r"training part: expected finite values, got nan in example 2 at \(1,\)",
        ),
        ({"train_x": spoiled(math.inf)}, r"got inf in example 2 at \(1,\)"),
        (
            {"test_x": torch.tensor([[0.0, 0.0], [-math.inf, 0.0]])},
            r"test part: .* got -inf in example 1 at \(0,\)",
        ),
        ({"train_y": torch.tensor([0, 1, 3, 0])}, r"every label within 0..2, got 3 at index 2"),
        ({"test_y": torch.tensor([-1, 1])}, r"every label within 0..2, got -1 at index 0"),
        ({"train_y": torch.tensor([0, 1])}, r"a label for each of 4 examples, got 2"),
        ({"train_y": torch.zeros(4)}, r"each label as one int64, got torch.float32"),
        ({"test_x": torch.zeros(2, 3)}, r"examples of one shape, got \(2,\) and \(3,\)"),
        (
            {"test_x": torch.zeros(0, 2), "test_y": torch.zeros(0, dtype=torch.int64)},
            r"N >= 1, got .* \(0, 2\)",
        ),
        (
            {"train_x": torch.zeros(4, 2, dtype=torch.float64)},
            r"float32 examples, got torch.float64",
        ),
        ({"class_names": ("a", "b")}, r"one name for each class, got classes=3 and 2 names"),
        (
            {"site": torch.tensor([0, 1, 2, 0]), "site_names": ("x", "y")},
            r"every site within 0..1, got 2 at index 2",
        ),
        (
            {"site": torch.tensor([0, 1]), "site_names": ("x", "y")},
            r"a site for each of 4 examples, got 2",
        ),
    ],
)
def test_what_unsound_data_gets(changed, message):
    """Each broken promise is a DataError that says where and what was found."""
    with pytest.raises(DataError, match=message):
        Dataset(**parts(**changed))


@settings(max_examples=50)
@given(n=st.integers(2, 60), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 1000))
def test_split_uses_every_example_once(n, fraction, seed):
    """Training and test part together are all examples, each once, with their own label and site;
    if one of the two would be empty, the data are refused."""
    x, ids = torch.arange(n, dtype=torch.float32)[:, None], torch.arange(n)
    names = [str(i) for i in range(n)]
    key = seeded_key(seed)
    tests = held_out(fingerprints(InMemory(x, ids)), fraction, key()).sum()
    try:
        made = hold_out(
            "made",
            InMemory(x, ids),
            names,
            test_fraction=fraction,
            key=key,
            site=ids,
            site_names=names,
        )
    except DataError:
        assert tests in (0, n)
        return
    assert sorted([*made.train_y.tolist(), *made.test_y.tolist()]) == list(range(n))
    assert torch.equal(made.train_x[:, 0].long(), made.train_y)
    assert torch.equal(made.train_y, made.site)
    assert torch.equal(made.test_x[:, 0].long(), made.test_y)
    assert len(made.test_y) == tests


def test_split_follows_the_key():
    """One key gives one division, another key another."""
    examples = InMemory(torch.rand(100, 1), torch.arange(100))
    names = [str(i) for i in range(100)]
    a, b, c = (
        hold_out("made", examples, names, test_fraction=0.2, key=seeded_key(seed)).test_y
        for seed in (0, 0, 1)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def nothing(n: int) -> InMemory:
    return InMemory(torch.zeros(n, 1), torch.zeros(n).long())


def test_a_person_is_on_one_side():
    """Where examples have groups, all examples of a person are in one part; the other is drawn."""
    groups = torch.arange(60) // 3
    examples = InMemory(torch.zeros(60, 1), torch.zeros(60).long(), groups)
    made = hold_out("made", examples, ["a"], test_fraction=0.3, key=seeded_key(0))
    train, test = set(made.train.groups.tolist()), set(made.test.groups.tolist())
    assert not train & test
    assert train | test == set(range(20))
    assert len(made.train) == 3 * len(train)
    assert len(made.test) == 3 * len(test)


def test_a_person_on_both_sides_is_refused():
    """A dataset whose parts share a person says so, with the first such group."""
    examples = InMemory(torch.zeros(4, 1), torch.zeros(4).long(), torch.tensor([0, 7, 7, 9]))
    other = InMemory(torch.zeros(2, 1), torch.zeros(2).long(), torch.tensor([1, 7]))
    with pytest.raises(DataError, match=r"1 persons are in .* the first is group 7"):
        Dataset("made", train=examples, test=other, classes=1, class_names=["a"])


@pytest.mark.parametrize("fraction", [0, 1, -0.5, math.nan])
def test_split_refuses_senseless_fractions(fraction):
    """A test part of nothing or of everything is refused."""
    with pytest.raises(DataError, match="test_fraction"):
        hold_out("made", nothing(4), ["a"], test_fraction=fraction, key=seeded_key(0))


def test_split_needs_two_examples():
    """One example cannot be both trained and tested on."""
    with pytest.raises(DataError, match=r"part is empty\. Each of 1 records"):
        hold_out("made", nothing(1), ["a"], test_fraction=0.5, key=seeded_key(0))


def test_pixels_are_scaled_by_255_only():
    """Every one of the 256 levels becomes level / 255, whatever else is in the array and however it
    lies in memory."""
    levels = np.arange(256, dtype=np.uint8).reshape(2, 128)
    expected = torch.arange(256, dtype=torch.float32).reshape(2, 128) / 255
    assert torch.equal(pixels(levels), expected)
    assert torch.equal(pixels(levels.T), expected.T)
    assert pixels(levels.T).is_contiguous()


@pytest.mark.parametrize(
    ("values", "ids", "names"),
    [
        (np.array([2, 0, 2], dtype=np.uint8), [2, 0, 2], ("0", "1", "2")),
        (np.array([[1.0], [0.0]]), [1, 0], ("0", "1")),
        (np.array(["b", "a", "b"]), [1, 0, 1], ("a", "b")),
        (np.array(["yes", "no"], dtype=object), [1, 0], ("no", "yes")),
        (np.array([True, False]), [1, 0], ("False", "True")),
    ],
)
def test_labels_of_every_kind(values, ids, names):
    """Whole numbers stay as they are; names are numbered in sorted order."""
    found, found_names = encode_labels("y", values)
    assert found.tolist() == ids
    assert found.dtype == torch.int64
    assert found_names == names


@pytest.mark.parametrize(
    ("values", "classes", "ids"),
    [
        (np.array([2, 0]), ("0", "1", "2", "3"), [2, 0]),
        (np.array([3.0, 1.0]), ("1", "2", "3"), [2, 0]),
        (np.array(["well", "well"]), ("well", "ill", "unknown"), [0, 0]),
    ],
)
def test_named_classes_do_not_follow_from_the_labels(values, classes, ids):
    """A label's number is its place in the list that was given, and all of the list are classes."""
    found, names = encode_labels("y", values, classes)
    assert found.tolist() == ids
    assert names == classes


def test_a_label_outside_of_the_classes_is_refused_by_name():
    """The first unknown label, its place and the list are named."""
    with pytest.raises(DataError, match=r"label 'dead' at index 1 .* \['well', 'ill'\]"):
        encode_labels("y", np.array(["well", "dead"]), ("well", "ill"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([0, -3]), "numbers from 0, got -3 at index 1"),
        (np.array([0.0, 1.5]), "got values such as 1.5 at index 1"),
        (np.array([0.0, np.nan]), "got values such as nan at index 1"),
        (np.array([0, 20_240_101]), "got 20240101: is this the right column"),
        (np.zeros((2, 2)), r"an array of shape \(2, 2\)"),
        (np.array([]), "at least one example"),
    ],
)
def test_what_bad_labels_get(values, message):
    """Labels that cannot be class numbers or names are refused with the first of them."""
    with pytest.raises(DataError, match=message):
        encode_labels("y", values)
