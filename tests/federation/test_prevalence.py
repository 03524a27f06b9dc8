"""Probabilities mean what they say: the public prevalence is put back after a balance."""

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from proxyfl.cli.main import main
from proxyfl.federation.home import Home
from proxyfl.federation.modelfile import load_model
from proxyfl.federation.prevalence import BALANCED, NOTHING, PUBLIC, Balances, Meaning
from proxyfl.measures import Predictions, brier
from proxyfl.models.estimators import PUBLISHED
from proxyfl.records.judged import judged
from proxyfl.records.reading import read
from proxyfl.simulation.config import of_run
from proxyfl.simulation.prepare import prepare

CASES = 0.15
SHARES = (1 - CASES, CASES)
TESTS = 1000


@pytest.fixture(scope="module", params=["prior", "weights"])
def run(request, tmp_path_factory) -> Path:
    """Two sites with 15 % cases, whose losses make up for that in one way or the other."""
    out = tmp_path_factory.mktemp("run") / request.param
    sets = {
        "data.source": "synthetic",
        "data.synthetic.sites": 2,
        "data.synthetic.examples": 1500,
        "data.synthetic.tests": TESTS,
        "data.synthetic.columns": 6,
        "data.synthetic.prevalence": CASES,
        "partition.kind": "site",
        "methods": "alone,proxyfl",
        "models.private": "logistic",
        "models.proxy": "linear",
        "learning.balance": request.param,
        "learning.batch_size": 1400,
        "learning.steps_per_round": 150,
        "rounds": 1,
        "proxy_optimizer.learning_rate": 1.0,
        # little noise and clipping: they would leave an error of their own
        "privacy.noise_multiplier": 0.5,
        "privacy.clip_norm": 5,
        "learning.choose_for": "own",
    }
    arguments = []
    for key, value in sets.items():
        arguments += ["--set", f"{key}={value}"]
    assert main(["run", *arguments, "--workers", "1", "--out", str(out)]) == 0
    return out


def inputs(run: Path) -> tuple[torch.Tensor, np.ndarray]:
    """The run's test examples."""
    test = prepare(of_run(run)).dataset.test
    return test.take(torch.arange(len(test))), test.labels.numpy()


@pytest.mark.parametrize("role", ["private", "proxy"])
def test_probabilities_are_for_the_public_prevalence(run: Path, role: str) -> None:
    """On records of a known prevalence the mean probability is within chance of it, and was not
    before: a softmax for balanced classes says at least half as many cases again."""
    x, _ = inputs(run)
    model, about = load_model(run / "models" / "proxyfl" / f"000-{role}.safetensors")
    meaning = Meaning.read(about)
    assert (meaning.of, meaning.prevalence) == (PUBLIC, SHARES)
    with torch.no_grad():
        logits = model(x)
    said = float(meaning.shifted(logits).softmax(1)[:, 1].mean())
    # chance of the 1500 training and the 2000 test records
    chance = math.sqrt(CASES * (1 - CASES) * (1 / 1500 + 1 / (2 * TESTS)))
    assert abs(said - CASES) < 4 * chance
    assert float(logits.softmax(1)[:, 1].mean()) > 1.5 * CASES


def test_reports_have_the_same_probabilities(run: Path) -> None:
    """Brier score and calibration are those of the shifted probabilities; accuracy is that of the
    model's own decision, for which it was balanced. Each says what its probabilities are for."""
    x, labels = inputs(run)
    model, about = load_model(run / "models" / "proxyfl" / "000-private.safetensors")
    with torch.no_grad():
        logits = model(x)
    shifted = Predictions(Meaning.read(about).shifted(logits).numpy(), labels)
    scores = [one for one in judged(read(run)) if one.method == "proxyfl"]
    common = next(one for one in scores if (one.client, one.on) == (0, "common"))
    assert common.measures["brier"] == pytest.approx(brier(shifted), abs=1e-5)
    decided = (logits.argmax(1).numpy() == labels).mean()
    assert common.measures["accuracy"] == pytest.approx(decided)
    total = sum(n for _, _, n in common.calibration)
    assert sum(said * n for said, _, n in common.calibration) / total == pytest.approx(
        CASES, abs=0.03
    )
    assert {one.probabilities for one in scores} == {"the public prevalence (0.85, 0.15)"}


def test_predict_puts_the_prevalence_back(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`proxyfl predict` prints probabilities for the public prevalence, and says so; the class is
    the one that the report counts."""
    x, _ = inputs(run)
    np.save(tmp_path / "new.npy", x.numpy())
    line = ["predict", str(run), str(tmp_path / "new.npy"), "--client", "0"]
    capsys.readouterr()
    assert main([*line, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    said = [row["probabilities"][1] for row in document["predictions"]]
    assert np.mean(said) == pytest.approx(CASES, abs=0.03)
    assert document["probabilities_for"] == PUBLIC
    assert list(document["prevalence"].values()) == list(SHARES)
    case = list(document["prevalence"])[1]
    cases = [row["class"] for row in document["predictions"]].count(case) / len(said)
    assert cases > 1.5 * CASES
    assert main(line) == 0
    assert "the public prevalence" in capsys.readouterr().out


def test_without_a_public_prevalence_they_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no prevalence is public the column, the document and the report name balanced classes:
    a site's own counts are not put back in silence."""
    pytest.importorskip("pandas")
    rows = [f"{i % 5},{i % 7},{int(i % 10 == 0)}" for i in range(200)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,b,label", *rows]) + "\n")
    out = tmp_path / "run"
    sets = [f"data.source={path}", "rounds=1", "methods=alone", "partition.clients=2"]
    sets += ["models.private=logistic", "learning.balance=prior", "learning.batch_size=10"]
    arguments = [word for one in sets for word in ("--set", one)]
    assert main(["run", *arguments, "--workers", "1", "--out", str(out)]) == 0
    line = ["predict", str(out), str(path), "--client", "0"]
    capsys.readouterr()
    assert main([*line, "--csv"]) == 0
    header = next(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert header == ["id", "class", f"0 ({BALANCED})", f"1 ({BALANCED})"]
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["probabilities_for"] == BALANCED
    assert {one.probabilities for one in judged(read(out))} == {BALANCED}
    assert main(["table", str(out), "--show", "calibration"]) == 0
    assert BALANCED in " ".join(capsys.readouterr().out.split())


def home(name: str, own: float, proxy: float) -> Home:
    return Home(name, nn.Linear(2, 2), nn.Linear(2, 2), (own, proxy), torch.zeros(2))


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (home("alone (logistic)", 1, 0), 0.0),
        (home("proxy", 0, 1), 1.0),
        (home("sum, 0.75 proxy (logistic)", 0.25, 0.75), 0.75),
        (home("residual, penalty 10", 1, 1), 0.0),
        (nn.Linear(2, 2), 0.0),
    ],
)
def test_each_part_of_a_kept_model_counts(model: nn.Module, part: float) -> None:
    """Where the proxy alone was balanced, a kept model gets its share of the shift."""
    found = Balances("none", "prior", SHARES).meaning("private", model)
    expected = [part * math.log(share) for share in SHARES] if part else []
    assert found.offsets == pytest.approx(expected)


def test_what_no_balance_has_moved_stays() -> None:
    """Without a balance nothing is added and nothing is said, and so for a published score that
    weights did not fit."""
    assert Balances(shares=SHARES).meaning("proxy", nn.Linear(2, 2)) is NOTHING
    assert NOTHING.about() == {}
    score = home(f"alone ({PUBLISHED})", 1, 0)
    assert Balances("weights", "none", SHARES).meaning("private", score) is NOTHING
