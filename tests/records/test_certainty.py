"""How sure a gain is: intervals, noise, the majority rate, and models that say one class only."""

import pytest

from proxyfl.measures import interval
from proxyfl.records import certainty
from proxyfl.records.answers import Question, answer
from proxyfl.records.groups import groups
from proxyfl.records.run import Run


def run(alone, joined, counts=None, measure="auroc"):
    """A finished run of two clients with these resampled scores of the kept models."""
    rows = []
    for method, lists in (("alone", alone), ("proxyfl", joined)):
        for client, values in enumerate(lists):
            row = {"method": method, "round": 0, "client": client, "name": f"c{client}"}
            row |= {f"private_{measure}": values[0], "private_resampled": list(values)}
            rows.append(row)
    counts = counts or [[5, 5], [5, 5]]
    clients = [{"client": i, "confusion": {"private": counts}} for i in range(2)]
    methods = {name: {"keeps": "private", "clients": clients} for name in ("alone", "proxyfl")}
    settings = {"methods": ["alone", "proxyfl"], "rounds": 1, "measure": measure}
    named = [{"name": "c0"}, {"name": "c1"}]
    summary = {"finished": True, "classes": ["no", "yes"], "clients": named, "methods": methods}
    return Run(None, settings, rows, summary)


def gain_interval(found, name, client=None, *, measure=None):
    """The interval of the answer about one run: of all clients, or of one of them."""
    (group,) = groups([found])
    joined = answer(group, name, Question(measure or found.measure))
    return None if joined is None else certainty.answer_interval(joined, client)


def test_the_interval_is_of_the_mean_over_clients():
    """Samples are compared place by place, and clients averaged within a sample."""
    found = run([[0.5, 0.6], [0.5, 0.6]], [[0.7, 0.8], [0.9, 1.0]])
    low, high = gain_interval(found, "proxyfl")
    assert abs(low - 0.3) < 1e-9
    assert abs(high - 0.3) < 1e-9
    one = gain_interval(found, "proxyfl", 0)
    assert abs(one[0] - 0.2) < 1e-9


def test_noise_is_an_interval_with_zero():
    """A difference that changes its sign between samples is within noise; a steady one is not."""
    noisy = run([[0.5, 0.9], [0.5, 0.9]], [[0.7, 0.7], [0.7, 0.7]])
    assert certainty.is_within_noise(gain_interval(noisy, "proxyfl"))
    steady = run([[0.5, 0.6], [0.5, 0.6]], [[0.7, 0.8], [0.7, 0.8]])
    assert not certainty.is_within_noise(gain_interval(steady, "proxyfl"))
    assert not certainty.is_within_noise(None)


def test_a_lower_loss_is_a_gain():
    """In a measure where lower is better the interval's sign is turned."""
    found = run([[0.3, 0.3], [0.3, 0.3]], [[0.2, 0.2], [0.2, 0.2]], measure="brier")
    low, _ = gain_interval(found, "proxyfl")
    assert low > 0


def test_samples_without_a_value_are_left_out():
    """A sample on which a measure is not defined says nothing; without any there is no interval."""
    found = run([[0.5, None], [0.5, 0.5]], [[0.7, 0.7], [0.7, 0.9]])
    assert gain_interval(found, "proxyfl") is not None
    nothing = run([[None], [None]], [[None], [None]])
    assert gain_interval(nothing, "proxyfl") is None


def test_no_resampled_scores_no_interval():
    """A run of an earlier release has no interval, and says so by None."""
    found = run([[0.5], [0.5]], [[0.7], [0.7]])
    for row in found.rows:
        del row["private_resampled"]
    assert gain_interval(found, "proxyfl") is None


def test_the_majority_rate_and_one_class_only():
    """Counts tell both: 93 of 100 examples are of one class, and the model says only that."""
    found = run([[0.5], [0.5]], [[0.5], [0.5]], counts=[[93, 0], [7, 0]])
    assert certainty.majority_rate(found) == 0.93
    assert ("alone", 0, "no") in certainty.one_class_only(found)
    assert len(certainty.one_class_only(found)) == 4
    fair = run([[0.5], [0.5]], [[0.5], [0.5]], counts=[[90, 3], [7, 0]])
    assert not certainty.one_class_only(fair)


def test_the_alone_that_gains_are_over_is_named():
    """Chosen among estimators where clients record what they keep, else trained; nothing where no
    method is ``alone``."""
    found = run([[0.5], [0.5]], [[0.5], [0.5]], counts=[[50, 5], [5, 40]])
    assert "trained locally" in (certainty.kind_of_alone(found) or "")
    for client in found.summary["methods"]["alone"]["clients"]:
        client["keeps"] = "alone (trees)"
    assert "best of the stated estimators" in certainty.warnings(found)[0]
    del found.summary["methods"]["alone"]
    assert certainty.kind_of_alone(found) is None


def test_an_answer_has_the_interval_of_its_clients():
    """The interval of an answer over one run is that of all clients' means, or of one client's."""
    found = run([[0.5, 0.6], [0.5, 0.4]], [[0.7, 0.7], [0.6, 0.5]])
    assert gain_interval(found, "proxyfl") == pytest.approx(interval([0.15, 0.1]))
    assert gain_interval(found, "proxyfl", 0) == pytest.approx(interval([0.2, 0.1]))
    assert gain_interval(found, "proxyfl", 1) == pytest.approx(interval([0.1, 0.1]))


def test_only_the_runs_measure_has_intervals_of_gains():
    """A gain in another measure has no interval rather than that of the run's measure."""
    found = run([[0.5], [0.5]], [[0.7], [0.7]])
    assert gain_interval(found, "proxyfl", measure="brier") is None
    assert gain_interval(found, "proxyfl", measure="own_auroc") is None
    for row in found.rows:
        row["private_own_auroc"] = row["private_auroc"]
        row["private_own_resampled"] = row["private_resampled"]
    own = gain_interval(found, "proxyfl", measure="own_auroc")
    assert own == gain_interval(found, "proxyfl")


def test_warnings_of_several_runs_are_said_once():
    """Rates become a span, and a model that says one class is named once, with in how many runs."""
    first = run([[0.5], [0.5]], [[0.5], [0.5]], counts=[[93, 0], [7, 0]])
    second = run([[0.5], [0.5]], [[0.5], [0.5]], counts=[[80, 10], [5, 5]])
    said = certainty.warnings_over([first, second])
    assert "Always saying the commonest class would have accuracy 0.900 to 0.930." in said
    (alone,) = (line for line in said if line.startswith("alone, c0"))
    assert alone.endswith("for every test example, in 1 of 2 runs.")
    assert len(said) == len(set(said))
