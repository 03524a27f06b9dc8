"""What models learn by for tasks other than classification, and what one record can do to it."""

import math

import numpy as np
import pytest
import torch

from proxyfl import seeds
from proxyfl.data.dataset import Dataset
from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError, DataError, ModelError
from proxyfl.federation.fitted import choose_outcome
from proxyfl.losses import Findings, Hazards, Value, objective_of
from proxyfl.models import build
from proxyfl.models.fits import events_fit, fits_of, ridge_fit
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.perexample.gradients import Computation
from proxyfl.privacy.perexample.userloss import check_loss
from proxyfl.settings import DP, Input, Proxy, Study
from proxyfl.tasks import Task

REGRESSION = Task("regression", ("hba1c",), range=(4.0, 14.0))
HUBER = Task("regression", ("hba1c",), range=(4.0, 14.0), loss="huber")
FINDINGS = Task("multilabel", ("edema", "mass", "nodule"))
SURVIVAL = Task("time-to-event", ("days",), intervals=(30.0, 90.0, 365.0), unit="days")
TASKS = [REGRESSION, HUBER, FINDINGS, SURVIVAL]


def labels(task, n, seed=0):
    """Made-up labels of a task."""
    generator = torch.Generator().manual_seed(seed)
    if task.kind == "regression":
        return 4 + 10 * torch.rand(n, generator=generator)
    if task.kind == "multilabel":
        return (torch.rand(n, 3, generator=generator) < 0.4).float()
    time = 500 * torch.rand(n, 1, generator=generator)
    event = (torch.rand(n, 1, generator=generator) < 0.5).float()
    return torch.cat([time, event], dim=1)


def trainer(task, examples, *, spec="linear", lr=1.0):
    """DP-SGD of a model of the task, all of its records in each batch, with hardly any noise."""
    model = build(spec, shape=examples.shape, classes=task.outputs, seed=0)
    n = len(examples)
    return DPSGD(
        model,
        torch.optim.SGD(model.parameters(), lr=lr),
        examples,
        dp=DP(clip_norm=1.0, noise_multiplier=1e-6, sampling_rate=1.0, delta=1e-3),
        classes=task.outputs,
        objective=objective_of(task),
        batch_size=n,
        ledger=Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=True),
        batches=seeds.Seeded(0, "batches"),
        noise=seeds.Seeded(0, "noise"),
    )


def moved(task, examples, **options):
    """How far one step moves the model, in all: the norm of the divided sum at rate 1."""
    dpsgd = trainer(task, examples, **options)
    before = torch.cat([p.detach().flatten().clone() for p in dpsgd.model.parameters()])
    dpsgd.begin_round(0, 1)
    dpsgd.step(dpsgd.draw())
    after = torch.cat([p.detach().flatten() for p in dpsgd.model.parameters()])
    return float((after - before).norm()) * dpsgd.batch_size


@pytest.mark.parametrize("task", TASKS)
def test_each_loss_is_proven_to_keep_records_apart(task):
    """Every task's loss passes the proof that a loss of a user's must pass."""
    objective = objective_of(task)

    def pairs(n):
        generator = torch.Generator().manual_seed(n)
        targets = objective.targets(labels(task, n, seed=n), task.outputs)
        return torch.randn(n, task.outputs, generator=generator), targets

    assert check_loss(objective.loss, pairs).computation is Computation.PROVEN


@pytest.mark.parametrize("task", TASKS)
def test_a_target_follows_from_its_own_label(task):
    """The targets of a record are the same whatever the other records are."""
    objective = objective_of(task)
    y = labels(task, 12)
    together = objective.targets(y, task.outputs)
    for i in range(len(y)):
        assert torch.equal(together[i], objective.targets(y[i : i + 1], task.outputs)[0])


HOSTILE = {
    "regression": [1e300, -1e300, 1e38, 14.0, 4.0],
    "multilabel": [[1e30, -1e30, 1.0], [0.0, 1.0, 1.0]],
    "time-to-event": [[-5.0, 1.0], [1e30, 1.0], [0.0, 1.0], [0.0, 0.0], [30.0, 7.0], [1e9, 0.0]],
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("spec", ["linear", "mlp"])
def test_no_label_moves_the_sum_by_more_than_the_clip_norm(task, spec):
    """Whatever its label is, also one that every check would have refused, a record adds at most
    C to the sum of clipped gradients: here the only record, from inputs as large as a table has."""
    for label in HOSTILE[task.kind]:
        y = torch.tensor([label], dtype=torch.float64)
        x = torch.linspace(-1, 1, 5)[None]
        dpsgd = trainer(task, InMemory(x, labels(task, 1)), spec=spec)
        dpsgd.begin_round(0, 1)
        drawn = dpsgd.draw()
        object.__setattr__(drawn, "_y", y)  # past all checks, as no caller can
        before = torch.cat([p.detach().flatten().clone() for p in dpsgd.model.parameters()])
        dpsgd.step(drawn)
        after = torch.cat([p.detach().flatten() for p in dpsgd.model.parameters()])
        distance = float((after - before).norm())
        assert math.isfinite(distance)
        assert distance <= 1.0 + 1e-4


@pytest.mark.parametrize("task", TASKS)
def test_a_step_learns(task):
    """A record's step is as long as the clip norm allows where its label is far off."""
    x = torch.ones(1, 5) * 3
    assert moved(task, InMemory(x, labels(task, 1))) > 0.3


def test_a_value_beyond_the_range_is_its_nearest_end():
    """1e300 is the high end of the range, and the scale is the range's."""
    objective = Value(4.0, 14.0)
    y = torch.tensor([1e300, -1e300, 9.0, 4.0, 14.0], dtype=torch.float64)
    assert objective.targets(y, 1).tolist() == [1, -1, 0, -1, 1]


@pytest.mark.parametrize(
    ("task", "bad"),
    [
        (REGRESSION, [math.nan]),
        (REGRESSION, [math.inf]),
        (FINDINGS, [[0.0, 2.0, 1.0]]),
        (FINDINGS, [[0.0, math.nan, 1.0]]),
        (SURVIVAL, [[-1.0, 0.0]]),
        (SURVIVAL, [[5.0, 2.0]]),
        (SURVIVAL, [[math.nan, 1.0]]),
        (SURVIVAL, [[5.0, 0.5]]),
        (SURVIVAL, [5.0]),
    ],
)
def test_impossible_labels_are_refused_before_the_first_charge(task, bad):
    """A label that is none of the task is a DataError of DPSGD and of Dataset."""
    y = torch.tensor(bad)
    x = torch.zeros(1, 5)
    with pytest.raises(DataError, match="Expected"):
        trainer(task, InMemory(x, y))
    good = InMemory(x, labels(task, 1))
    with pytest.raises(DataError, match=r"[Ee]xpected"):
        Dataset("table", train=InMemory(x, y), test=good, task=task)


def test_hazards_are_a_sum_over_the_records_own_intervals():
    """At risk up to the event's interval; censored ones count where half of it was seen."""
    objective = Hazards((30.0, 90.0, 365.0))
    y = torch.tensor(
        [
            [30.0, 1],  # the end belongs to its interval
            [31.0, 1],
            [0.0, 1],  # an event at time 0 is one of the first interval
            [59.0, 0],  # less than half of the second interval
            [60.0, 0],
            [400.0, 1],  # beyond the horizon: no event by then
            [365.0, 0],
        ]
    )
    at_risk, events = objective.intervals_of(y)
    assert at_risk.tolist() == [
        [1, 0, 0],
        [1, 1, 0],
        [1, 0, 0],
        [1, 0, 0],
        [1, 1, 0],
        [1, 1, 1],
        [1, 1, 1],
    ]
    assert events.sum(1).tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert events.argmax(1).tolist()[:3] == [0, 1, 0]
    outputs = torch.randn(7, 3)
    hazard = outputs.sigmoid()
    expected = -(1 - hazard[1, 0]).log() - hazard[1, 1].log()
    found = objective.loss(outputs, objective.targets(y, 3))
    torch.testing.assert_close(found[1], expected)


@pytest.mark.parametrize("task", TASKS)
def test_a_teacher_that_says_the_labels_changes_nothing(task):
    """Mutual learning blends the label with the teacher's opinion."""
    objective = objective_of(task)
    y = labels(task, 6)
    plain = objective.targets(y, task.outputs)
    teacher = torch.zeros(6, task.outputs)
    blended = objective.targets(y, task.outputs, teacher, 0.5)
    assert not torch.equal(plain, blended)
    if task.kind == "regression":
        torch.testing.assert_close(blended, plain / 2)
    else:
        events = plain if task.kind == "multilabel" else plain[:, 3:]
        now = blended if task.kind == "multilabel" else blended[:, 3:]
        torch.testing.assert_close(now, events / 2 + 0.25)
    with pytest.raises(ConfigError, match="teacher"):
        objective.targets(y, task.outputs, None, 0.5)


def test_what_belongs_to_classes_is_refused_in_words():
    """A balance, a prevalence and a measure of classes have no place in another task."""
    form = Input.of((5,), REGRESSION)
    assert form.task == REGRESSION
    with pytest.raises(ConfigError, match="makes up for uneven classes"):
        Study("a", measure="r2", input=form, proxy=Proxy(balance="prior"))
    with pytest.raises(ConfigError, match="share of each class"):
        Study("a", measure="r2", input=form, proxy=Proxy(prevalence=(0.5, 0.5)))
    with pytest.raises(ConfigError, match="none of the task regression, which has: r2"):
        Study("a", measure="accuracy", input=form)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "regression"}, "range = \\[low, high\\]"),
        ({"kind": "regression", "range": (3.0, 3.0)}, "range = \\[low, high\\]"),
        ({"kind": "regression", "range": (3.0, math.inf)}, "finite number"),
        ({"kind": "time-to-event"}, "rising ends above 0"),
        ({"kind": "time-to-event", "intervals": (30.0, 30.0)}, "rising ends above 0"),
        ({"kind": "time-to-event", "intervals": (0.0, 30.0)}, "intervals"),
        ({"kind": "multilabel", "names": ("a", "a")}, "distinct names"),
        ({"kind": "survival"}, "Unknown task"),
        ({"kind": "multilabel", "names": ("a",), "range": (0.0, 1.0)}, "has no range"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(wrong, words):
    """Each error says what was expected."""
    with pytest.raises(ConfigError, match=words):
        Task(**wrong)


def test_ridge_is_the_least_squares_of_its_penalty():
    """The closed form is where the gradient of the penalised squares vanishes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = x @ [1.0, -2.0, 0.5] + 3 + rng.normal(size=40)
    w, b = ridge_fit(x, y, 10.0)
    error = x @ w[0] + b[0] - y
    assert np.allclose(x.T @ error + 10.0 * w[0], 0, atol=1e-8)
    assert abs(error.sum()) < 1e-8


def test_person_periods_are_logistic_regression_with_dummies():
    """The hazards' fit is scikit-learn's on the table of person-periods."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = labels(SURVIVAL, 300)
    at_risk, events = (
        part.double().numpy() for part in Hazards(SURVIVAL.intervals).intervals_of(y)
    )
    w, b = events_fit(x, at_risk, events, 10.0)
    person, interval = np.nonzero(at_risk)
    # the penalty of the dummies is a trace of that of the weights
    dummies = np.eye(3)[interval] * math.sqrt(10.0 / 1e-2)
    table = np.concatenate([x[person], dummies], axis=1)
    oracle = LogisticRegression(C=0.1, fit_intercept=False, max_iter=5000, tol=1e-10)
    oracle.fit(table, events[person, interval])
    found = oracle.coef_[0]
    assert np.allclose(found[:3], w, atol=2e-3)
    assert np.allclose(found[3:] * math.sqrt(10.0 / 1e-2), b, atol=2e-2)


def site(task, n, seed=0, strength=2.0):
    """Examples whose labels follow from the first of three inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 3, generator=generator) - 1
    noise = torch.randn(n, generator=generator)
    score = strength * x[:, 0] + 0.5 * noise
    if task.kind == "regression":
        y = (9 + 2 * score).clamp(4, 14)
    elif task.kind == "multilabel":
        y = torch.stack([score > 0, score > 1, x[:, 1] > 0], dim=1).float()
    else:
        time = 100 * torch.exp(-score)
        y = torch.stack([time.clamp(max=400), (time < 400).float()], dim=1)
    return InMemory(x, y)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("spec", ["logistic", "trees", "logistic|trees"])
def test_estimators_at_home_learn_every_task(task, spec):
    """What is kept alone beats a constant on new records, by the task's own measure."""
    from proxyfl.federation.metrics import evaluate
    from proxyfl.measures import DEFAULTS

    home = choose_outcome(task, spec, site(task, 150))
    score = evaluate(home, site(task, 300, seed=1), task=task).values[DEFAULTS[task.kind]]
    assert home.name.startswith("alone")
    assert score > (0.5 if task.kind == "regression" else 0.75)


@pytest.mark.parametrize("task", TASKS)
def test_a_good_proxy_is_listened_to_and_a_bad_one_is_not(task):
    """A small site takes a proxy of many records; a proxy that says the opposite is left."""
    good = choose_outcome(task, "logistic", site(task, 2000, seed=5))
    few = site(task, 45, seed=3)
    kept = choose_outcome(task, "logistic", few, received=good)
    assert kept.weights[1] > 0

    class Opposite(torch.nn.Module):
        def forward(self, x):
            return -3 * good(x)

    many = site(task, 400, seed=4)
    name = choose_outcome(task, "logistic", many, received=Opposite()).name
    assert name.startswith(("alone", "residual"))


def test_a_classifier_of_ones_own_is_refused_for_another_task():
    """The words say which estimators the task has."""
    with pytest.raises(ModelError, match="is a classifier, and the task is regression"):
        fits_of(REGRESSION).candidates("sklearn.naive_bayes:GaussianNB")


def test_findings_count_alike():
    """A finding outside 0 and 1 counts as the nearer one."""
    y = torch.tensor([[7.0, -3.0]])
    assert Findings(2).targets(y, 2).tolist() == [[1, 0]]
