"""Bootstrap samples of persons: every measure as if the rows drawn were the test set."""

import subprocess
import sys

import numpy as np
import pytest

from proxyfl import measures
from proxyfl.measures import MEASURES, Measure, Predictions, interval, resample
from tests.test_measures import predictions


def by_rows(found: Predictions, persons: np.ndarray, times: int, seed: int) -> dict:
    """Every measure of the rows drawn, one sample after another: the plain way."""
    generator = np.random.default_rng(seed)
    names = np.unique(persons)
    known = measures.of("classification")
    values = {name: [] for name in known}
    for _ in range(times):
        drawn = names[generator.integers(len(names), size=len(names))]
        rows = np.concatenate([np.flatnonzero(persons == name) for name in drawn])
        for name, measure in ((name, MEASURES[name]) for name in known):
            values[name].append(measure.compute(found.taken(rows)))
    return values


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("ties", [False, True])
def test_weights_give_what_the_rows_drawn_give(classes, ties):
    """Every measure of every sample is what scikit-learn says of its rows, ties and all."""
    found = predictions(classes, count=120)
    if ties:
        found = Predictions(np.round(found.logits), found.labels)
    persons = np.arange(120) // 3
    fast = resample(found, persons, times=25, seed=3)
    for name, values in by_rows(found, persons, 25, 3).items():
        assert fast[name] == pytest.approx(values, abs=1e-12), name


def test_samples_that_lack_a_class():
    """A sample without positives has no AUROC, and the others have theirs."""
    logits = np.random.default_rng(0).normal(size=(12, 2))
    found = Predictions(logits, np.array([1] + [0] * 11))
    fast = resample(found, np.arange(12), times=60, seed=0)
    plain = by_rows(found, np.arange(12), 60, 0)
    assert None in plain["auroc"]
    for name, values in plain.items():
        assert [value is None for value in fast[name]] == [value is None for value in values]
        known = [pair for pair in zip(fast[name], values, strict=True) if pair[1]]
        assert [one for one, _ in known] == pytest.approx([two for _, two in known])


def test_a_measure_of_ones_own_is_resampled_too(monkeypatch):
    """What somebody adds to the list is computed on the rows of each sample."""
    share = Measure("share", "share", lambda found: float(found.labels.mean()))
    monkeypatch.setitem(MEASURES, "share", share)
    found = predictions(2, count=60)
    fast = resample(found, np.arange(60), times=5, seed=1)
    assert fast["share"] == by_rows(found, np.arange(60), 5, 1)["share"]


def test_resampling_is_paired():
    """Two models are judged on the same samples: a model minus itself is zero, always."""
    found = predictions(2)
    persons = np.arange(400) // 2
    one = resample(found, persons, times=20, seed=3)
    assert one == resample(found, persons, times=20, seed=3)
    assert one != resample(found, persons, times=20, seed=4)


def test_blocks_change_nothing(monkeypatch):
    """However many samples fit into memory, the values are the same."""
    found = predictions(2)
    whole = resample(found, None, times=20, seed=3)
    monkeypatch.setattr("proxyfl.measures._CELLS", 1000)
    for name, values in resample(found, None, times=20, seed=3).items():
        assert values == pytest.approx(whole[name], rel=1e-12)


def test_persons_are_drawn_whole():
    """With every person's rows alike, resampling rows would be too sure of itself by sqrt(rows)."""
    rows = np.repeat(np.arange(50), 20)
    found = predictions(2, count=50).taken(rows)
    by_person = resample(found, rows, times=200, seed=0)["accuracy"]
    by_row = resample(found, None, times=200, seed=0)["accuracy"]
    assert np.std(by_person) / np.std(by_row) == pytest.approx(np.sqrt(20), rel=0.3)


def test_intervals_cover_what_they_say():
    """The 95 % interval of the accuracy of 400 coin tosses covers the truth 19 times in 20."""
    generator = np.random.default_rng(0)
    covered = 0
    for seed in range(100):
        labels = (generator.random(400) < 0.7).astype(np.int64)
        found = Predictions(np.tile([0.0, 1.0], (400, 1)), labels)
        values = resample(found, None, times=200, seed=seed)["accuracy"]
        low, high = interval(values)
        covered += low <= 0.7 <= high
    assert 88 <= covered <= 99
    assert interval([None, None]) is None


def test_nothing_to_draw_from():
    """Without examples there are no samples."""
    empty = Predictions(np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
    assert resample(empty, None, times=5, seed=0) == {}


@pytest.mark.parametrize("number", [1, 2, 3, 41, 200, 1000])
def test_the_interval_is_numpys_quantile(number: int) -> None:
    """To the last bit, whatever the number of values and whether some are equal."""
    generator = np.random.default_rng(number)
    for values in (generator.normal(size=number), generator.integers(3, size=number) / 7):
        tail = (1 - 0.95) / 2
        expected = tuple(np.quantile(values, [tail, 1 - tail]).tolist())
        assert interval(values.tolist()) == expected


def test_an_interval_needs_no_numpy() -> None:
    """Whoever reads a run with intervals does not wait for NumPy."""
    code = (
        "import sys; from proxyfl.measures import interval; interval([0.1, 0.2, None]); "
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
