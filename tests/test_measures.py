"""Every measure against scikit-learn or by hand, and what is undefined is None."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn import metrics

from proxyfl import measures
from proxyfl.measures import MEASURES, Curve, Predictions


def predictions(classes, count=400, seed=0):
    """Logits that know something of the labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=count)
    logits = generator.normal(size=(count, classes)) + 1.5 * np.eye(classes)[labels]
    return Predictions(logits, labels)


def test_two_classes_as_scikit_learn_has_them():
    """Every binary measure equals scikit-learn's."""
    found = predictions(2)
    score = found.probabilities[:, 1]
    told = found.logits.argmax(1)
    expected = {
        "accuracy": metrics.accuracy_score(found.labels, told),
        "macro_accuracy": metrics.balanced_accuracy_score(found.labels, told),
        "auroc": metrics.roc_auc_score(found.labels, score),
        "average_precision": metrics.average_precision_score(found.labels, score),
        "brier": metrics.brier_score_loss(found.labels, score),
        "log_loss": metrics.log_loss(found.labels, found.probabilities),
    }
    for name, value in expected.items():
        assert MEASURES[name].compute(found) == pytest.approx(value), name


def test_many_classes_as_scikit_learn_has_them():
    """With more classes, AUROC and average precision are means over classes against the rest."""
    found = predictions(4)
    hot = np.eye(4)[found.labels]
    auroc = metrics.roc_auc_score(found.labels, found.probabilities, multi_class="ovr")
    assert MEASURES["auroc"].compute(found) == pytest.approx(auroc)
    precision = metrics.average_precision_score(hot, found.probabilities, average="macro")
    assert MEASURES["average_precision"].compute(found) == pytest.approx(precision)
    assert measures.log_loss(found) == pytest.approx(
        metrics.log_loss(found.labels, found.probabilities)
    )
    assert measures.brier(found) == pytest.approx(((found.probabilities - hot) ** 2).sum(1).mean())
    assert MEASURES["sensitivity_at_90_specificity"].compute(found) is None


def test_sensitivity_and_specificity_by_hand():
    """With ten negatives, 90 % specificity lets one of them score above the threshold."""
    scores = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.9, 0.95, 0.8, 0.75, 0.05])
    labels = np.array([0] * 10 + [1] * 4)
    found = Predictions(np.stack([np.zeros(14), np.log(scores / (1 - scores))], axis=1), labels)
    assert found.curve(1).sensitivity_at(0.9) == 0.75
    assert found.curve(1).sensitivity_at(1.0) == 0.25
    assert found.curve(1).specificity_at(0.75) == 0.9
    assert found.curve(1).specificity_at(1.0) == 0.0


@pytest.mark.parametrize("labels", [[], [1, 1, 1], [0]])
def test_what_is_not_defined_is_none(labels):
    """Without both classes there is no AUROC, no average precision and no trade-off."""
    found = Predictions(np.zeros((len(labels), 2)), np.array(labels, dtype=np.int64))
    for name in ("auroc", "average_precision", "sensitivity_at_90_specificity"):
        assert MEASURES[name].compute(found) is None
    if not labels:
        assert all(measure.compute(found) is None for measure in MEASURES.values())


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40))
def test_ties_as_scikit_learn_has_them(examples):
    """Whatever scores are equal, areas and trade-offs are those of scikit-learn's curves."""
    scores = np.array([score for score, _ in examples], dtype=float)
    positive = np.array([truth for _, truth in examples])
    assume(positive.any() and not positive.all())
    curve = Curve.of(scores, positive)
    assert curve.auroc() == pytest.approx(metrics.roc_auc_score(positive, scores))
    expected = metrics.average_precision_score(positive, scores)
    assert curve.average_precision() == pytest.approx(expected)
    false, true, _ = metrics.roc_curve(positive, scores, drop_intermediate=False)
    for wanted in (0.1, 0.5, 0.9, 1.0):
        found = true[false <= 1 - wanted + 1e-12].max()
        assert curve.sensitivity_at(wanted) == pytest.approx(found)
        found = 1 - false[true >= wanted - 1e-12].min()
        assert curve.specificity_at(wanted) == pytest.approx(found)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_diverged_is_scored(classes, value):
    """Logits that are not finite give an accuracy; what needs probabilities is not defined."""
    found = predictions(classes)
    found.logits[0] = value
    for name, measure in MEASURES.items():
        defined = measure.compute(found) is not None
        assert defined == (name in ("accuracy", "macro_accuracy")), name


def test_a_class_that_the_test_set_lacks_is_left_out():
    """The mean over classes is over those that can be judged."""
    found = predictions(2)
    wider = Predictions(np.concatenate([found.logits, np.full((400, 1), -9.0)], 1), found.labels)
    assert MEASURES["auroc"].compute(wider) == pytest.approx(
        MEASURES["auroc"].compute(found), abs=0.01
    )


def test_extreme_logits_have_finite_scores():
    """A model that is sure and wrong has a large log-loss, not an infinite or undefined one."""
    found = Predictions(np.array([[500.0, -500.0], [-500.0, 500.0]]), np.array([1, 1]))
    assert measures.log_loss(found) == pytest.approx(500)
    assert measures.brier(found) == pytest.approx(0.5)


def test_the_calibration_curve():
    """Each tenth that has examples gives its mean probability, the share that came true, and n."""
    score = np.array([0.05, 0.07, 0.95, 0.95, 1.0])
    with np.errstate(divide="ignore"):
        logits = np.stack([np.zeros(5), np.minimum(np.log(score / (1 - score)), 50)], axis=1)
    curve = measures.calibration(Predictions(logits, np.array([0, 1, 1, 1, 0])))
    assert [count for _, _, count in curve] == [2, 3]
    assert curve[0][:2] == pytest.approx((0.06, 0.5))
    assert curve[1][1] == pytest.approx(2 / 3)


def test_lower_is_better_for_losses():
    """A gain is positive where the joined model is better, also in Brier score and log-loss."""
    assert MEASURES["brier"].gain(0.1, 0.2) > 0
    assert MEASURES["log_loss"].gain(0.3, 0.2) < 0
    assert MEASURES["auroc"].gain(0.9, 0.8) > 0


@pytest.mark.parametrize(
    ("shares", "measure"),
    [
        ([50, 50], "accuracy"),
        ([55, 45], "accuracy"),
        ([93, 7], "auroc"),
        ([7, 93], "auroc"),
        ([10] * 10, "accuracy"),
        ([80, 10, 10], "macro_accuracy"),
    ],
)
def test_uneven_classes_have_a_measure_of_their_own(shares, measure):
    """Accuracy is the default only where always saying one class does not look good."""
    labels = np.repeat(np.arange(len(shares)), shares)
    assert measures.default_measure(labels, len(shares)) == measure


def test_reading_the_list_needs_no_numpy():
    """Importing the list of measures imports neither NumPy nor torch nor scikit-learn."""
    import subprocess
    import sys

    code = "import sys, proxyfl.measures; print({'numpy', 'torch', 'sklearn'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
