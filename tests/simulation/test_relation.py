"""Where the sampling rate comes from, through a whole run: what follows, and what it says."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxyfl.errors import ConfigError
from proxyfl.federation.methods import METHODS, Method
from proxyfl.federation.modelfile import about_model
from proxyfl.privacy.guarantee import Relation
from proxyfl.privacy.ledger import Ledger
from proxyfl.records import folder
from proxyfl.simulation.config import Config, from_tree
from proxyfl.simulation.prepare import prepare
from proxyfl.simulation.run import run


def small(held: int | list[int] = 60, **privacy: Any) -> Config:
    return from_tree(
        {
            "methods": ["proxyfl"],
            "rounds": 2,
            "partition": {"clients": 2, "examples": held},
            "learning": {"batch_size": 20},
            "privacy": privacy,
        }
    )


@pytest.mark.parametrize(
    ("privacy", "rate", "steps", "delta", "relation"),
    [
        ({}, 20 / 60, 3, 1 / 60, "zero-out"),
        ({"examples": 100}, 0.2, 5, 1 / 100, "add-or-remove"),
        ({"sampling_rate": 0.25, "delta": 1e-3}, 0.25, 4, 1e-3, "add-or-remove"),
    ],
    ids=["own number", "declared", "rate"],
)
def test_what_the_rate_follows_from_is_on_record(
    privacy: dict[str, Any], rate: float, steps: int, delta: float, relation: str, tmp_path: Path
) -> None:
    """Ledger, rows and model files state the rate, the steps, delta and the relation that holds."""
    run(small(**privacy), out=tmp_path / "run")
    ledger = Ledger.read(tmp_path / "run" / "ledger" / "proxyfl" / "000.jsonl")
    (segment,) = ledger.segments()
    assert (segment.sampling_rate, segment.steps) == (rate, 2 * steps)
    assert (ledger.delta, ledger.relation) == (delta, relation)
    header = (tmp_path / "run" / "ledger" / "proxyfl" / "000.jsonl").read_text().splitlines()[0]
    assert json.loads(header)["relation"] == relation
    rows = list(folder.read_metrics(tmp_path / "run"))
    assert {row["epsilon_relation"] for row in rows} == {relation}
    model = tmp_path / "run" / "models" / "proxyfl" / "000-proxy.safetensors"
    assert f"(end-to-end, {relation}, per record)" in about_model(model)["epsilon"]


@pytest.mark.parametrize("privacy", [{"examples": 60}, {"sampling_rate": 0.25, "delta": 1e-3}])
def test_nothing_follows_from_a_number_that_is_not_declared(privacy: dict[str, Any]) -> None:
    """Clients with 45 and 61 records train alike: same rate, divisor, steps and delta."""
    config = small([45, 61], **privacy)
    assembly = prepare(config).assembly("proxyfl")
    first, second = (assembly.client(i) for i in range(2))
    assert first.steps == second.steps
    assert first.ledger.delta == second.ledger.delta
    for name in ("sampling_rate", "batch_size"):
        assert getattr(first.learner.trainer, name) == getattr(second.learner.trainer, name)


def test_a_budget_counts_the_declared_rate() -> None:
    """The plan turns a budget into steps at the rate that is used, not at B/n."""
    planned = [
        sum(p.steps(0, 99) for p in prepare(small(budget=0.4, **given)).presences["proxyfl"])
        for given in ({"examples": 60, "delta": 1 / 2000}, {"examples": 2000, "delta": 1 / 2000})
    ]
    assert planned[0] < planned[1]


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"sampling_rate": 0.1}, r"privacy\.delta must be set"),
        ({"sampling_rate": 0.1, "examples": 100, "delta": 1e-3}, "got both"),
        ({"sampling_rate": 1.5, "delta": 1e-3}, r"privacy\.sampling_rate"),
        ({"examples": 0}, r"privacy\.examples"),
    ],
)
def test_settings_that_contradict_are_refused(privacy: dict[str, Any], message: str) -> None:
    """A rate without a delta, two answers to one question, and values out of range are errors."""
    with pytest.raises(ConfigError, match=message):
        small(**privacy)


def test_pooled_data_sample_at_their_own_rate() -> None:
    """``joint`` has no institution that could declare a number, and says zero-out."""
    config = from_tree(
        {
            "methods": ["joint"],
            "rounds": 1,
            "partition": {"clients": 2, "examples": 60},
            "learning": {"batch_size": 20},
            "privacy": {"sampling_rate": 0.25, "delta": 1e-3},
        }
    )
    client = prepare(config).assembly("joint").client(0)
    assert client.ledger.relation is Relation.ZERO_OUT
    assert client.learner.trainer.sampling_rate == 20 / 120


@pytest.mark.parametrize("dp", [True, False])
def test_a_shared_model_that_is_kept_as_private_is_released(dp: bool, tmp_path: Path) -> None:
    """A custom method's only model, averaged and kept as "private", is labelled released, with its
    guarantee or without one; ``alone``'s is never released."""
    shared = Method("averaged and kept", "single", "mean", dp=dp, keeps="private")
    config = from_tree(
        {
            "methods": ["alone", "mine"],
            "rounds": 1,
            "partition": {"clients": 2, "examples": 60},
            "learning": {"batch_size": 20},
        }
    )
    run(config, out=tmp_path / "run", methods=METHODS | {"mine": shared})
    models = tmp_path / "run" / "models"
    label = about_model(models / "mine" / "000-private.safetensors")["epsilon"]
    assert label.startswith("released under: epsilon ")
    assert "simulation" in label
    assert ("infinite" in label) is not dp
    alone = about_model(models / "alone" / "000-private.safetensors")["epsilon"]
    assert alone == "never released"
