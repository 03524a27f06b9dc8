"""Made-up federations are what their settings say."""

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl import Config, run
from proxyfl.data import Dataset
from proxyfl.data.sources import load
from proxyfl.errors import ConfigError
from proxyfl.settings import Synthetic
from proxyfl.simulation.config import from_tree
from proxyfl.simulation.config import load as read
from proxyfl.simulation.division import load_data


def federation(seed: int = 0, **settings: float) -> Dataset:
    return load("synthetic", seed=seed, synthetic=Synthetic(**settings))  # type: ignore[arg-type]


def fitted_auroc(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    model = LogisticRegression(max_iter=500).fit(x.numpy(), y.numpy())
    return float(roc_auc_score(test_y.numpy(), model.decision_function(test_x.numpy())))


@pytest.mark.parametrize(("prevalence", "signal"), [(0.05, 0.75), (0.3, 0.8), (0.5, 0.9)])
def test_prevalence_and_signal_are_as_stated(prevalence: float, signal: float) -> None:
    """With many patients the share of cases and the AUROC of a fitted score are those asked for."""
    made = federation(sites=10, examples=2000, prevalence=prevalence, signal=signal, tests=2000)
    assert float(made.train_y.float().mean()) == pytest.approx(prevalence, abs=0.012)
    found = fitted_auroc(made.train_x, made.train_y, made.test_x, made.test_y)
    assert found == pytest.approx(signal, abs=0.02)
    assert made.prevalence == (1 - prevalence, prevalence)


def test_columns_are_in_the_form_of_a_schema() -> None:
    """The stated share of columns is yes/no, and measurements lie between -1 and 1."""
    made = federation(columns=10, binary=0.3)
    whole = [bool(torch.isin(column, torch.tensor([0.0, 1.0])).all()) for column in made.train_x.T]
    assert sum(whole) == 3
    assert [name.startswith("yes_no") for name in made.feature_names] == whole
    assert made.train_x.abs().max() <= 1


def test_sizes_of_sites() -> None:
    """Sites are alike unless they are said to be unequal, and then so on average."""
    assert set(torch.bincount(federation(sites=5).site).tolist()) == {200}  # type: ignore[arg-type]
    sizes = torch.bincount(federation(sites=300, unequal=0.8, examples=100, tests=10).site)  # type: ignore[arg-type]
    assert float(sizes.float().mean()) == pytest.approx(100, rel=0.15)
    assert np.log(sizes.numpy()).std() == pytest.approx(0.8, abs=0.12)


def own_and_other(**settings: float) -> tuple[float, float]:
    """The AUROC of the first site's fitted score at the first site, and at the second."""
    made = federation(sites=2, examples=3000, tests=3000, signal=0.8, **settings)
    assert made.site is not None
    assert made.test_site is not None
    rows = made.site == 0
    scores = []
    for where in (0, 1):
        test = made.test_site == where
        scores.append(
            fitted_auroc(
                made.train_x[rows], made.train_y[rows], made.test_x[test], made.test_y[test]
            )
        )
    return scores[0], scores[1]


def test_kinds_and_heterogeneity_part_the_sites() -> None:
    """A score carries over to a site alike, less to a differing one, least to another kind."""
    losses = []
    for settings in ({}, {"heterogeneity": 0.7}, {"kinds": 2, "likeness": 0.0}):
        own, other = own_and_other(**settings)
        losses.append(own - other)
    assert abs(losses[0]) < 0.03
    assert losses[0] + 0.03 < losses[1] < losses[2] - 0.03
    assert losses[2] == pytest.approx(0.3, abs=0.05)


def test_the_same_seed_is_the_same_federation() -> None:
    """The settings and the seed decide everything; another seed is another federation."""
    first, again, other = federation(3), federation(3), federation(4)
    assert torch.equal(first.train_x, again.train_x)
    assert torch.equal(first.test_y, again.test_y)
    assert not torch.equal(first.train_x, other.train_x)


def test_a_config_states_the_federation() -> None:
    """The knobs are settings of a run: from a file or with --set, and so in sweeps."""
    changes = ["data.source=synthetic", "data.synthetic.sites=3", "partition.kind=site"]
    assert len(load_data(read(None, changes)).site_names) == 3
    with pytest.raises(ConfigError, match=r"data\.synthetic\.signal"):
        read(None, ["data.synthetic.signal=0.4"])
    with pytest.raises(ConfigError, match="A kind needs a site"):
        read(None, ["data.synthetic.kinds=9"])


def test_a_run_on_made_up_sites() -> None:
    """A run has a client for each site, judged on its own patients too."""
    tree = {
        "methods": ["alone", "proxysum"],
        "rounds": 2,
        "evaluate_every": 2,
        "data": {"source": "synthetic", "synthetic": {"sites": 3, "examples": 40, "tests": 60}},
        "partition": {"kind": "site"},
        "models": {"private": "logistic"},
        "learning": {"batch_size": 20, "steps_per_round": 1},
    }
    config: Config = from_tree(tree)
    result = run(config)
    last = [row for row in result.rows if row["method"] == "proxysum"][-1]
    assert last["client"] == 2
    assert last["private_own_auroc"] is not None
