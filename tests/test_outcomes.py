"""Measures of tasks other than classification, held to plain loops and to scikit-learn."""

import numpy as np
import pytest
from sklearn import metrics as sk

from proxyfl import measures, tasks
from proxyfl.federation.metrics import judge
from proxyfl.outcomes import kaplan_meier, predictions, survival_interval, survival_of, value_of
from proxyfl.tasks import Task

VALUES = Task("regression", ("y",), range=(-10.0, 30.0))
FINDINGS = Task("multilabel", ("a", "b", "c"))
SURVIVAL = Task("time-to-event", ("days",), intervals=(2.0, 5.0, 9.0))


def made(task, n=120, seed=0):
    """Outputs of a model that knows something, and labels with ties."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n)
    if task is VALUES:
        y = 10 + 8 * score + rng.normal(scale=4, size=n)
        return (0.4 * score[:, None]).astype(np.float32), y.astype(np.float32)
    if task is FINDINGS:
        outputs = np.stack([score, -score, rng.normal(size=n)], axis=1)
        y = rng.uniform(size=(n, 3)) < 1 / (1 + np.exp(-2 * outputs))
        return outputs.astype(np.float32), y.astype(np.float32)
    time = np.minimum(rng.exponential(5 * np.exp(-score)), rng.uniform(1, 12, n))
    time = np.round(time, 1)  # ties, of events and of censoring
    event = rng.uniform(size=n) < 0.7
    outputs = np.round(score, 1)[:, None] + np.array([-2.0, -1.5, -1.0])
    return outputs.astype(np.float32), np.stack([time, event], axis=1).astype(np.float32)


def values(task, outputs, labels):
    """Every measure."""
    return dict(judge(predictions(outputs, labels, task)).values)


def test_every_measure_belongs_to_a_task_that_there_is():
    """Each task has measures, among them its default."""
    for kind in tasks.KINDS:
        assert measures.of(kind)
    for kind, name in measures.DEFAULTS.items():
        assert name in measures.of(kind)
    assert set(tasks.KINDS) == {kind for m in measures.MEASURES.values() for kind in m.tasks}


def test_regression_is_scikit_learns_over_the_range():
    """MAE and RMSE are those of clipped values, divided by the range's width."""
    outputs, labels = made(VALUES)
    found = values(VALUES, outputs, labels)
    said = value_of(outputs[:, 0], VALUES)
    true = np.clip(labels.astype(float), -10, 30)
    assert found["r2"] == pytest.approx(sk.r2_score(true, said))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(true, said) / 40)
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(true, said) / 40)


def test_findings_are_means_of_scikit_learns():
    """A finding that nobody has is left out of the areas."""
    outputs, labels = made(FINDINGS)
    labels[:, 2] = 0
    found = values(FINDINGS, outputs, labels)
    areas = [sk.roc_auc_score(labels[:, k], outputs[:, k]) for k in range(2)]
    assert found["auroc"] == pytest.approx(np.mean(areas))
    precision = [sk.average_precision_score(labels[:, k], outputs[:, k]) for k in range(2)]
    assert found["average_precision"] == pytest.approx(np.mean(precision))
    p = 1 / (1 + np.exp(-outputs.astype(float)))
    assert found["brier"] == pytest.approx(((p - labels) ** 2).mean())


def cut(labels):
    """Times and events up to the horizon."""
    time = labels[:, 0].astype(float)
    event = (labels[:, 1] > 0.5) & (time <= 9.0)
    return np.minimum(time, 9.0), event


def test_c_is_harrells_over_all_pairs():
    """Counted pair by pair; a censoring comes after the events of its time."""
    outputs, labels = made(SURVIVAL)
    time, event = cut(labels)
    survival = survival_of(outputs)
    area = (np.column_stack([np.ones(len(time)), survival[:, :-1]]) + survival) / 2
    risk = -(area @ np.array([2.0, 3.0, 4.0]))
    right = pairs = 0.0
    for i in range(len(time)):
        for j in range(len(time)):
            first = event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j]))
            if first:
                pairs += 1
                right += 1.0 if risk[i] > risk[j] else 0.5 * (risk[i] == risk[j])
    assert values(SURVIVAL, outputs, labels)["c_index"] == pytest.approx(right / pairs)


def censoring(time, event, when, *, at):
    """G just before ``when``, or ``at`` it, factor by factor."""
    value = 1.0
    for t in np.unique(time):
        if t < when or (at and t == when):
            left = ((time == t) & ~event & (time < 9.0)).sum()
            # whoever has an event at t is gone before somebody is lost at t
            value *= 1 - left / ((time >= t).sum() if left else 1)
    return max(value, 0.05)


def test_the_brier_score_is_grafs():
    """Record by record, with weights by inverse probability of censoring."""
    outputs, labels = made(SURVIVAL)
    time, event = cut(labels)
    survival = survival_of(outputs)
    scores = [0.0]
    for k, end in enumerate((2.0, 5.0, 9.0)):
        total = 0.0
        for i in range(len(time)):
            if event[i] and time[i] <= end:
                total += survival[i, k] ** 2 / censoring(time, event, time[i], at=False)
            elif time[i] > end or time[i] == end:
                total += (1 - survival[i, k]) ** 2 / censoring(time, event, end, at=True)
        scores.append(total / len(time))
    expected = np.trapezoid(scores, [0.0, 2.0, 5.0, 9.0]) / 9.0
    assert values(SURVIVAL, outputs, labels)["integrated_brier"] == pytest.approx(expected)


def test_the_auroc_over_time_counts_weighted_pairs():
    """Cases by each end against those free of the event after it."""
    outputs, labels = made(SURVIVAL)
    time, event = cut(labels)
    survival = survival_of(outputs)
    overall = kaplan_meier(time, event).at(np.array([2.0, 5.0, 9.0]))
    falls = -np.diff(overall, prepend=1.0)
    total = 0.0
    for k, end in enumerate((2.0, 5.0, 9.0)):
        right = pairs = 0.0
        for i in np.flatnonzero(event & (time <= end)):
            weight = 1 / censoring(time, event, time[i], at=False)
            for j in np.flatnonzero((time > end) | ((time == end) & ~event)):
                pairs += weight
                higher = survival[i, k] < survival[j, k]
                right += weight * (1.0 if higher else 0.5 * (survival[i, k] == survival[j, k]))
        total += falls[k] * right / pairs
    found = values(SURVIVAL, outputs, labels)["time_auroc"]
    assert found == pytest.approx(total / falls.sum())


def test_kaplan_meier_is_the_textbooks():
    """Events 1 and 3 of four persons, one lost at 2: 3/4, then 3/4 times 1/2."""
    steps = kaplan_meier(np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, False]))
    assert steps.at(np.array([0.5, 1.0, 2.5, 3.0])).tolist() == [1.0, 0.75, 0.75, 0.375]
    assert steps.before(np.array([1.0, 3.0])).tolist() == [1.0, 0.75]


@pytest.mark.parametrize("task", [VALUES, FINDINGS, SURVIVAL])
def test_weights_are_the_rows_drawn(task):
    """A measure on a bootstrap sample is that of the rows drawn; G stays that of the test set."""
    outputs, labels = made(task)
    found = predictions(outputs, labels, task)
    rng = np.random.default_rng(1)
    counts = rng.multinomial(len(labels), np.ones(len(labels)) / len(labels), size=3).T
    by_weight = found.weighted(counts.astype(np.float32))
    for sample in range(3):
        rows = np.repeat(np.arange(len(labels)), counts[:, sample])
        drawn = values(task, outputs[rows], labels[rows])
        for name, expected in drawn.items():
            if name in ("time_auroc", "integrated_brier"):
                continue  # their weights are of the whole test set
            assert by_weight[name][sample] == pytest.approx(expected), name


@pytest.mark.parametrize("task", [VALUES, FINDINGS, SURVIVAL])
def test_a_model_that_diverged_has_no_score(task):
    """Outputs that are no numbers give None, not a traceback and not a good score."""
    outputs, labels = made(task)
    found = values(task, np.full_like(outputs, np.nan), labels)
    assert all(value is None for value in found.values()), found


def test_a_test_part_without_events_has_no_c():
    """Nobody had the event: nothing is defined but the Brier score."""
    outputs, labels = made(SURVIVAL)
    labels[:, 1] = 0
    found = values(SURVIVAL, outputs, labels)
    assert found["c_index"] is None
    assert found["time_auroc"] is None
    assert found["integrated_brier"] is not None


def test_the_interval_of_survival_is_the_textbooks():
    """Freireich's 21 patients on 6-MP: R's survfit with conf.type="log-log" gives these ends."""
    time = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
    event = [1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    time, event = np.array(time, dtype=float), np.array(event, dtype=bool)
    when = np.array([5.0, 6.0, 7.0, 10.0, 23.0])
    low, high = survival_interval(time, event, when)
    assert kaplan_meier(time, event).at(when) == pytest.approx(
        [1, 0.857, 0.807, 0.753, 0.448], abs=1e-3
    )
    assert low == pytest.approx([1, 0.620, 0.563, 0.503, 0.188], abs=1e-3)
    assert high == pytest.approx([1, 0.952, 0.923, 0.889, 0.680], abs=1e-3)


def test_risk_groups_are_thirds_by_predicted_risk():
    """Each third has the mean of its own predictions and Kaplan-Meier's estimate of its own times;
    nobody is in two of them."""
    outputs, labels = made(SURVIVAL)
    survival = predictions(outputs, labels, SURVIVAL)
    groups = survival.risk_groups()
    assert [group.name for group in groups] == ["lowest risk", "middle", "highest risk"]
    assert sum(group.examples for group in groups) == len(labels)
    low, high = np.quantile(survival.risk, [1 / 3, 2 / 3])
    time, event = cut(labels)
    for group, here in ((groups[0], survival.risk <= low), (groups[2], survival.risk > high)):
        assert group.examples == here.sum()
        assert group.events == event[here].sum()
        expected = kaplan_meier(time[here], event[here]).at(np.array([2.0, 5.0, 9.0]))
        rows = np.array(group.points)
        assert rows[0].tolist() == [0, 1, 1, 1, 1]
        assert rows[1:, 0].tolist() == [2, 5, 9]
        assert rows[1:, 1] == pytest.approx(survival.survival[here].mean(0))
        assert rows[1:, 2] == pytest.approx(expected)
        assert (rows[:, 3] <= rows[:, 2]).all()
        assert (rows[:, 2] <= rows[:, 4]).all()
    assert groups[0].points[-1][2] > groups[2].points[-1][2]


def test_risk_groups_need_examples_and_different_risks():
    """A model that says the same of everybody has one group; few examples have one, or none."""
    outputs, labels = made(SURVIVAL)
    (everybody,) = predictions(np.zeros_like(outputs), labels, SURVIVAL).risk_groups()
    assert everybody.examples == len(labels)
    (few,) = predictions(outputs[:29], labels[:29], SURVIVAL).risk_groups()
    assert (few.name, few.examples) == ("all of them", 29)
    assert predictions(outputs[:9], labels[:9], SURVIVAL).risk_groups() == []


def test_the_calibration_of_values_is_in_their_unit():
    """Tenths from the lowest prediction to the highest: mean prediction and mean value of each."""
    outputs, labels = made(VALUES)
    curve = predictions(outputs, labels, VALUES).calibration()
    said = value_of(outputs[:, 0], VALUES)
    true = np.clip(labels.astype(float), -10, 30)
    order = np.argsort(said)
    assert [n for _, _, n in curve] == [12] * 10
    for place, (mean, came, _) in enumerate(curve):
        rows = order[12 * place : 12 * place + 12]
        assert (mean, came) == pytest.approx((said[rows].mean(), true[rows].mean()))
    assert len(predictions(np.zeros_like(outputs), labels, VALUES).calibration()) == 1


def test_the_calibration_of_findings_is_over_all_of_them():
    """Each pair of example and finding counts once, in the tenth of its probability."""
    outputs, labels = made(FINDINGS)
    curve = predictions(outputs, labels, FINDINGS).calibration()
    p = 1 / (1 + np.exp(-outputs.astype(float)))
    assert sum(n for _, _, n in curve) == labels.size
    inside = (p >= 0.3) & (p < 0.4)
    (third,) = [point for point in curve if 0.3 <= point[0] < 0.4]
    assert third == pytest.approx((p[inside].mean(), labels[inside].mean(), inside.sum()))
