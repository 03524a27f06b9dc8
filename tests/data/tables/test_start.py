"""A published score in the schema: its coefficients become the proxy's start, in the units in which
it was published."""

import math

import numpy as np
import pytest
import torch

from proxyfl import run
from proxyfl.data.tables import schema
from proxyfl.data.tables.features import feature_names, published_score
from proxyfl.data.tables.loading import load_tables
from proxyfl.errors import ConfigError
from proxyfl.federation.assembly import initial_proxy
from proxyfl.models.estimators import PUBLISHED, rebuild, score_candidates
from proxyfl.node.members import manifest as manifests
from proxyfl.settings import Input, Proxy, Study
from proxyfl.simulation.config import from_tree
from proxyfl.simulation.prepare import Simulated
from tests.data.tables import making

SCORE = {"age": 0.08, "height": -0.01, "stage = II": 0.5, "stage = III": 1.5, "smoker": 0.7}


def with_start(**changes: object) -> schema.Schema:
    """The clinic's schema with a score; hinges and bins where the tests ask for them."""
    start = {"intercept": -4.0, "coefficients": SCORE, "source": "Nobody et al. 2020"} | changes
    return schema.parse(making.TREE | {"start": start})


def cases(count: int, seed: int = 0) -> list[list[str]]:
    """Patients who die by the score."""
    generator = np.random.default_rng(seed)
    table = making.rows(count, seed, first=1000 * seed)
    for line in table:
        line[6] = str(int(generator.random() < 1 / (1 + math.exp(-by_hand(line)))))
    return table


def by_hand(line: list[str]) -> float:
    """The published formula, from the texts of a row."""
    _, age, height, stage, smoker, *_ = line
    points = {"I": 0.0, "II": 0.5, "III": 1.5}[stage]
    return -4.0 + 0.08 * float(age) - 0.01 * float(height) + points + 0.7 * (smoker == "yes")


def test_the_score_of_a_row_is_the_published_formula(tmp_path) -> None:
    """Log odds by the features' coefficients equal those of the formula in its own units."""
    agreed = with_start()
    table = cases(120)
    found = load_tables([making.write(tmp_path / "a.csv", table)], agreed)
    *weights, intercept = found.published
    assert len(weights) == len(feature_names(agreed))
    expected = sorted(by_hand(line) for line in table)
    inputs = torch.cat([found.train_x, found.test_x])
    logits = inputs.double() @ torch.tensor(weights, dtype=torch.float64) + intercept
    assert sorted(logits.tolist()) == pytest.approx(expected, abs=1e-4)


def test_hinges_and_bins_have_their_features_names() -> None:
    """A hinge's coefficient is per unit beyond the knot; a bin's is its own."""
    columns = making.TREE["columns"] | {
        "age": {"type": "number", "range": [0, 100], "encoding": "hinges", "knots": [60]},
        "height": {"type": "number", "range": [100, 200], "encoding": "bins", "knots": [150]},
    }
    start = {"coefficients": {"age": 0.02, "age above 60": 0.1, "height 150 to 200": 0.3}}
    agreed = schema.parse(making.TREE | {"columns": columns, "start": start})
    weights = dict(zip([*feature_names(agreed), "intercept"], published_score(agreed), strict=True))
    assert weights["age"] == pytest.approx(1.0)
    assert weights["age above 60"] == pytest.approx(4.0)
    assert weights["height 150 to 200"] == pytest.approx(0.3)
    assert weights["intercept"] == pytest.approx(1.0)


def test_a_score_is_part_of_what_sites_agree_on() -> None:
    """It comes back from the schema's text, and changes its fingerprint."""
    agreed = with_start()
    assert "[start]" in schema.to_toml(agreed)
    assert schema.parse(schema_tree(schema.to_toml(agreed))) == agreed
    assert agreed.fingerprint != making.SCHEMA.fingerprint


def schema_tree(text: str) -> dict[str, object]:
    import tomllib

    return tomllib.loads(text)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"coefficients": {"weight": 1.0}}, "'weight' is not a number"),
        ({"coefficients": {"stage": 1.0}}, "'stage' is not a number"),
        ({"coefficients": {}}, "coefficients of a published score"),
        ({"intercept": math.inf}, "intercept"),
    ],
)
def test_a_score_that_does_not_fit_is_refused(wrong: dict[str, object], message: str) -> None:
    """Each fault is named when the schema is read."""
    with pytest.raises(ConfigError, match=message):
        with_start(**wrong)


def study(**changes: object) -> Study:
    """A study of two inputs whose score is 2 x1 - x2 + 0.5."""
    terms = {"published": (2.0, -1.0, 0.5)} | changes
    return Simulated("s", input=Input((2,), ("no", "yes")), **terms)


def test_the_proxy_starts_at_the_score() -> None:
    """The difference of its logits is the score; with a balance by the prior the loss adds the
    prevalence, so it is taken off."""
    x = torch.tensor([[0.3, -0.2], [1.0, 1.0]])
    score = 2 * x[:, 0] - x[:, 1] + 0.5
    logits = initial_proxy(study())(x)
    assert (logits[:, 1] - logits[:, 0]).tolist() == pytest.approx(score.tolist())
    balanced = study(proxy=Proxy(balance="prior", prevalence=(0.9, 0.1)))
    logits = initial_proxy(balanced)(x)
    added = math.log(0.1) - math.log(0.9)
    assert (logits[:, 1] - logits[:, 0] + added).tolist() == pytest.approx(score.tolist())


def test_a_proxy_that_cannot_start_there_is_refused() -> None:
    """A network of several layers has no place for the coefficients."""
    with pytest.raises(ConfigError, match="linear proxy"):
        initial_proxy(study(proxy=Proxy("mlp")))


def test_a_refitted_score_comes_back_from_its_file() -> None:
    """A regression on top of the score is a plain linear model, near the score if the penalty is
    strong and the records agree."""
    candidates = score_candidates((2.0, -1.0, 0.5))
    assert candidates[0].name == PUBLISHED
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 2))
    odds = 2 * x[:, 0] - x[:, 1] + 0.5
    y = (generator.random(400) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    for candidate in candidates[1:]:
        model = candidate.fit(x, y, 2, None, 0)
        assert rebuild("Linear", model.state_dict(), unpickle=False)
        weights = model.weight[1] - model.weight[0]
        assert weights.tolist() == pytest.approx([2.0, -1.0], abs=0.6)


@pytest.fixture
def config(tmp_path):
    """A run of two small clinics whose patients die by the score."""
    for number, name in enumerate(("north", "south")):
        making.write(tmp_path / f"{name}.csv", cases(150, seed=number))
    (tmp_path / "schema.toml").write_text(schema.to_toml(with_start()))
    tree = {
        "methods": ["score", "alone", "pooled", "proxyfl"],
        "rounds": 3,
        "evaluate_every": 3,
        "measure": "auroc",
        "data": {"source": str(tmp_path / "*.csv"), "schema": str(tmp_path / "schema.toml")},
        "partition": {"kind": "site"},
        "models": {"private": "logistic", "proxy": "linear"},
        "learning": {"batch_size": 20},
    }
    return from_tree(tree)


def test_the_score_has_a_line_of_its_own(config) -> None:
    """The method score keeps the published score at every site and spends nothing; alone and pooled
    may take it, and do where it is the truth; the proxy begins at it."""
    result = run(config)
    scores = [result.kept("score", client) for client in range(2)]
    assert scores[0] == scores[1]
    assert not result.method("score").shares
    for client in range(2):
        own = result.kept("alone", client)
        assert own is not None
        assert own >= scores[client] - 0.03
        found = result.kept_row("alone", client)
        assert found is not None
        assert found[0]["keeps"].startswith("alone (published score")


def test_the_method_needs_a_score(config, tmp_path) -> None:
    """Without one in the schema it is refused, with what to do."""
    (tmp_path / "schema.toml").write_text(schema.to_toml(making.SCHEMA))
    with pytest.raises(ConfigError, match=r"\[start\] of the schema"):
        run(config)


def test_a_manifest_carries_the_score(tmp_path) -> None:
    """Members agree on it with the schema: it comes back from the manifest's file, and the proxy of
    a real site starts at it."""
    agreed = with_start()
    terms = manifests.Manifest("clinics", schema=agreed, input=manifests.input_of(agreed))
    path = tmp_path / "manifest.toml"
    path.write_text(manifests.to_toml(terms), encoding="utf-8")
    again = manifests.read(path)
    assert again.schema == agreed
    score = published_score(agreed)
    assert again.published_score() == score
    layer = next(m for m in initial_proxy(again).modules() if isinstance(m, torch.nn.Linear))
    found = (layer.weight[1] - layer.weight[0]).tolist()
    assert found == pytest.approx(score[:-1], rel=1e-5)
