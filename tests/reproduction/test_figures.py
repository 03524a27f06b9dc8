"""Figures: they come out of recorded results alone, and show what was recorded."""

from pathlib import Path

import pytest
from matplotlib import pyplot as plt

from reproduction import catalogue, figures, views
from reproduction.series import MODELS, PROXYFL, Results
from tests.reproduction.samples import group, record, results

RECORDED = Results(catalogue.RESULTS)


def test_every_experiment_is_recorded() -> None:
    """The committed results are those of all experiments."""
    assert [name for name in catalogue.EXPERIMENTS if not RECORDED.has(name)] == []


@pytest.mark.parametrize("source", ["recorded", "quick"])
def test_all_figures_come_out(source: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """As PNG, from the committed results, and from those of the quick variants."""
    found: Results = RECORDED if source == "recorded" else request.getfixturevalue("quick")
    written = list(figures.draw_all(found.folder, tmp_path))
    assert sorted(path.name for path in written) == sorted(
        f"{name}.png" for name in figures.FIGURES
    )
    assert all(path.stat().st_size > 5000 for path in written)


def test_committed_figures_are_all_there() -> None:
    """Every figure of the page is committed."""
    for name in figures.FIGURES:
        assert (catalogue.FIGURES / f"{name}.png").is_file()


def test_curves_are_the_recorded_means() -> None:
    """What is drawn for a model is the mean over seeds and clients of what was recorded for it."""
    figure = figures.accuracy(RECORDED)
    record = RECORDED.record("mnist")
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert set(lines) == {model.name for model in MODELS}
    for model in MODELS:
        group = record.group(model.method, model.role)
        last = list(group.at(group.rounds[-1]).values())
        assert lines[model.name].get_ydata()[-1] == pytest.approx(sum(last) / len(last))
    plt.close(figure)


def test_lines_differ_by_more_than_colour() -> None:
    """For print in grey: no two models share both marker and line style."""
    looks = [
        (s["marker"], s["linestyle"], s.get("markerfacecolor")) for s in figures.STYLES.values()
    ]
    assert len(set(looks)) == len(MODELS)


def test_views_have_every_value(quick: Results) -> None:
    assert list(views.skew(quick).scores) == [0.1, 0.3, 0.5, 0.8]
    assert list(views.weight(quick).scores) == [0.1, 0.3, 0.5, 0.7, 0.9]
    assert list(views.batch_size(quick).scores) == [10, 20, 50]
    assert list(views.epsilon(quick).scores) == [1, 2, 5, 10]
    assert list(views.honest(quick).scores) == [0.1, 0.3, 0.5]


def test_views_compare_the_same_seeds(tmp_path: Path) -> None:
    """One experiment has three seeds and the other one: the mean of the first is taken over that
    one as well."""
    base = record(
        "both-mlp",
        [group(m.method, m.role, [[0.5], [0.1], [0.1]]) for m in MODELS],
        **{"learning.alpha": 0.5},
    )
    models = [
        (method, role) for method in ("proxyfl", "fml") for role in ("private", "proxy", "received")
    ]
    weight = record(
        "weight", [group(method, role, [[0.6]], variant="weight-0.1") for method, role in models]
    )
    view = views.weight(results(tmp_path, base, weight))
    assert {value: found[PROXYFL] for value, found in view.scores.items()} == {
        0.1: {(0, 0): 0.6},
        0.5: {(0, 0): 0.5},
    }
    assert view.alone == {(0, 0): 0.5}
