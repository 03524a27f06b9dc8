"""A client from plain arguments: real or seeded, its models, its ledger, and what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from proxyfl import params
from proxyfl.data.examples import Subset
from proxyfl.data.sources import load
from proxyfl.errors import BudgetExhausted, ConfigError, PrivacyError
from proxyfl.federation.assembly import Part, Parts, assemble, real, seeded
from proxyfl.federation.client import Client
from proxyfl.federation.learners import Mutual, Single
from proxyfl.federation.methods import METHODS
from proxyfl.federation.trainers import PlainSGD
from proxyfl.models import build
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.settings import Input, Learning, Local, Model, Optimizer, Privacy, Study

DIGITS = load("digits")
EXAMPLES = Subset(DIGITS.train, torch.arange(40))
STUDY = Study("digits", input=Input((1, 8, 8), DIGITS.class_names))


def part(name: str, seed: int = 0) -> Part:
    """A model under Adam."""
    model = build(name, shape=(1, 8, 8), classes=10, seed=seed)
    return Part(model, Optimizer("adam", learning_rate=0.01))


def made(method: str = "proxyfl", *, streams=None, **changes: Any) -> Client:
    """A client of a method, seeded unless told otherwise."""
    row = METHODS[method]
    only_private = row.learner == "single" and row.keeps == "private"
    only_proxy = row.learner == "single" and not only_private
    learning = Learning(alpha=0.5, batch_size=20)
    for name in set(changes) & set(Learning.__dataclass_fields__):
        learning = dataclasses.replace(learning, **{name: changes.pop(name)})
    local = Local(
        "north",
        model=Model(residual=changes.pop("residual", False)),
        learning=learning,
        privacy=changes.pop("dp", Privacy(noise_multiplier=2.0)),
    )
    parts = Parts(
        changes.pop("private", None if only_proxy else part("mlp", 1)),
        changes.pop("proxy", None if only_private else part("linear")),
    )
    streams = streams or seeded(0, 0)
    return assemble(STUDY, local, EXAMPLES, row, streams, parts=parts, **changes)


def test_a_real_client(tmp_path: Path) -> None:
    """Real noise and a real ledger: it trains a round, releases its proxy, and what it paid is read
    back from the file by the next process."""
    dp = Privacy(clip_norm=1.0, noise_multiplier=2.0, delta=1e-3)
    path = tmp_path / "north.jsonl"
    client = made(streams=real(), dp=dp, ledger=path, residual=True, teacher="received")
    before = params.flatten(client.learner.shared).clone()
    losses = client.learner.train(0, client.steps)
    client.ledger.check_release(0)
    mass = client.mass()
    assert losses.private is not None
    assert losses.proxy is not None
    assert not torch.equal(mass.theta, before)

    read = Ledger.read(tmp_path / "north.jsonl")
    assert not read.simulated
    assert read.kind is Kind.END_TO_END
    assert read.steps == client.steps == 2
    assert read.epsilon() == client.ledger.epsilon()

    again = made(streams=real(), dp=dp, ledger=path)
    assert again.ledger.steps == 2
    again.learner.train(1, 2)
    assert Ledger.read(tmp_path / "north.jsonl").steps == 4


def test_real_clients_never_repeat() -> None:
    """Two real clients with equal arguments draw different batches and noise; seeded ones equal."""

    def trained(streams) -> torch.Tensor:
        client = made(streams=streams)
        client.learner.train(0, 2)
        return params.flatten(client.learner.shared)

    assert not torch.equal(trained(real()), trained(real()))
    assert torch.equal(trained(seeded(3, 1)), trained(seeded(3, 1)))
    assert not torch.equal(trained(seeded(3, 1)), trained(seeded(3, 2)))


def test_a_budget_holds_across_processes(tmp_path: Path) -> None:
    """A second process that continues the ledger cannot spend the budget again."""
    dp = Privacy(clip_norm=1.0, noise_multiplier=2.0, delta=1e-3, budget=2.0)
    path = tmp_path / "a.jsonl"
    client = made(streams=real(), dp=dp, ledger=path)
    affordable = client.ledger.affordable_steps(0.5, 2.0, 1000)
    assert 0 < affordable < 1000
    client.learner.train(0, affordable)
    with pytest.raises(BudgetExhausted):
        made(streams=real(), dp=dp, ledger=path).learner.train(1, 1)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "score"])
@pytest.mark.parametrize("dp", [True, False])
def test_what_is_shared_under_dp_trains_by_dpsgd(method: str, dp: bool) -> None:
    """Every row gets its learner; where it says DP, DP-SGD alone trains what is shared."""
    row = dataclasses.replace(METHODS[method], dp=METHODS[method].dp and dp)
    made_of = made(method)
    local = Local("north", learning=Learning(batch_size=20))
    client = assemble(STUDY, local, EXAMPLES, row, seeded(0, 0))
    assert type(made_of.learner) is type(client.learner)
    assert isinstance(client.learner, Mutual if row.learner == "mutual" else Single)
    assert isinstance(client.learner.trainer, DPSGD if row.dp else PlainSGD)
    assert client.learner.trainer.model is client.learner.shared
    assert client.ledger.kind is (Kind.END_TO_END if row.dp else Kind.NONE)


def test_a_taught_proxy_is_conditional() -> None:
    """With beta above 0 a mutual learner's guarantee is conditional; a single has no teacher."""
    assert made("proxyfl", beta=0.3).ledger.kind is Kind.CONDITIONAL
    assert made("avgpush", beta=0.3).ledger.kind is Kind.END_TO_END


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0.3}, "has kind='end-to-end', expected 'conditional'"),
        ({"dp": {"delta": 1e-2}}, r"has delta=0\.001, expected 0\.01"),
        ({"streams": seeded(0, 0)}, "has simulated=False, expected True"),
    ],
)
def test_a_ledger_of_other_settings_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """A ledger file that was opened for another guarantee is not continued."""
    dp = Privacy(clip_norm=1.0, noise_multiplier=2.0, delta=1e-3)
    path = tmp_path / "a.jsonl"
    made(streams=real(), dp=dp, ledger=path).learner.train(0, 1)
    other = dataclasses.replace(dp, **changes.pop("dp", {}))
    with pytest.raises(PrivacyError, match=message):
        made(**{"streams": real(), "dp": other, "ledger": path} | changes)


def test_a_missing_model_is_named() -> None:
    """A method whose model was not given says which, and how to give it."""
    with pytest.raises(ConfigError, match=r"north needs a private model .* got none in parts"):
        made(private=None)
    with pytest.raises(ConfigError, match=r"north needs a proxy model .* got none in parts"):
        made("fedavg", proxy=None)
    with pytest.raises(ConfigError, match=r"north has no private model .* got one in parts"):
        made("fedavg", private=part("mlp"))


def test_defaults_follow_the_data() -> None:
    """Without steps a round is one pass over the data; without delta it is 1/n."""
    client = made()
    assert client.steps == 2
    assert client.ledger.delta == 1 / 40
    assert made(steps_per_round=7).steps == 7
