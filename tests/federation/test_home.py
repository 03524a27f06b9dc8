"""What an institution keeps: chosen at home, by the rule, at no cost."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from proxyfl import run
from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError
from proxyfl.federation import fitted as choosing
from proxyfl.federation.fitted import choose
from proxyfl.federation.home import Home, combined
from proxyfl.federation.modelfile import load_model, save_model
from proxyfl.models.estimators import UNSEEN
from proxyfl.privacy.ledger import Ledger
from proxyfl.settings import DP
from proxyfl.simulation.config import Config, Exchange, from_tree

DIRECTION = torch.tensor([1.0, -2.0, 0.5])


def site(n: int, *, groups: bool = False, seed: int = 0) -> InMemory:
    """Examples of two classes, along one direction."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    noise = torch.randn(n, generator=generator)
    y = (x @ DIRECTION + noise > 0).long()
    persons = torch.arange(n) // 2 if groups else None
    return InMemory(x, y, persons)


def proxy(direction: torch.Tensor) -> nn.Linear:
    """A linear proxy of two outputs whose difference follows ``direction``."""
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.stack([-direction, direction]) / 2)
        model.bias.zero_()
    return model


def test_a_good_proxy_is_listened_to() -> None:
    """A small site that receives a proxy that knows keeps something with the proxy in it."""
    kept = choose("logistic", site(30), 2, received=proxy(DIRECTION * 2))
    assert kept.weights[1] > 0
    assert not kept.name.startswith("alone")


def test_few_examples_take_no_bare_proxy() -> None:
    """With fewer than 20 examples a class a site keeps a part of its own, though the bare proxy may
    be what its folds like best; with 20 it may keep the proxy."""
    kept: dict[int, set[bool]] = {39: set(), 40: set()}
    for n, found in kept.items():
        for seed in range(8):
            model = choose("logistic", site(n, seed=seed), 2, received=proxy(DIRECTION))
            found.add(model.name == "proxy")
    assert kept[39] == {False}
    assert True in kept[40]


def test_a_harmful_proxy_is_left_out() -> None:
    """A site with many examples keeps its own model when the proxy says the opposite."""
    examples = site(400)
    kept = choose("logistic", examples, 2, received=proxy(-DIRECTION * 3))
    alone = choose("logistic", examples, 2)
    inputs = site(200, seed=1)
    right = (kept(inputs.x).argmax(1) == inputs.labels).float().mean()
    expected = (alone(inputs.x).argmax(1) == inputs.labels).float().mean()
    # a residual may have unlearned the proxy: nearly as good is good enough
    assert right >= expected - 0.03


def test_for_its_own_patients_a_site_keeps_alone_unless_the_gain_is_sure() -> None:
    """A proxy that helps, but not surely, is taken for "all" and not for "own"; one that surely
    helps is taken for both. The losses of the folds are on the model that is kept."""
    names = {}
    for seed in (0, 3):
        for whose in ("all", "own"):
            examples = site(40, seed=seed)
            kept = choose("logistic", examples, 2, received=proxy(DIRECTION), choose_for=whose)
            names[seed, whose] = kept.name.split(" ")[0]
            assert kept.folds is not None
            alone, bare = kept.folds
            assert bare < alone
    sure = {(0, "all"): "proxy", (0, "own"): "proxy"}
    assert names == sure | {(3, "all"): "proxy", (3, "own"): "alone"}


def test_for_its_own_patients_a_class_that_it_lacks_does_not_matter() -> None:
    """A site without a class leaves it to the proxy under "all"; under "own" it keeps what is best
    for the patients that it has."""
    examples = InMemory(site(200).x, torch.zeros(200, dtype=torch.int64))
    assert not choose("logistic", examples, 2, received=proxy(DIRECTION)).name.startswith("alone")
    own = choose("logistic", examples, 2, received=proxy(DIRECTION), choose_for="own")
    assert own.name.startswith("alone")


def test_public_facts_say_how_much_a_noisy_proxy_counts() -> None:
    """A small site's folds cannot show that a proxy is noise. Public facts can: its share in what
    is kept is 1 / (1 + 3 q) for an expected error of q times the site's own, whichever sum the
    folds like best."""
    examples = site(60)
    received = proxy(DIRECTION)
    assert choose("logistic", examples, 2, received=received).weights[1] > 0
    for noise, share in ((1.0, 0.25), (1 / 3, 0.5), (0.03, 0.92), (30.0, 0.01)):
        kept = choose("logistic", examples, 2, received=received, noise=noise)
        assert kept.weights == (1 - share, share)
    assert choose("logistic", examples, 2, received=received, noise=0.001).name == "proxy"
    assert choose("logistic", examples, 2, received=received, noise=1e3).name.startswith("alone")


def test_a_share_by_public_facts_does_not_overrule_what_is_sure() -> None:
    """Public facts promise a good proxy, and it says the opposite: a site with many examples keeps
    its own model."""
    kept = choose("logistic", site(400), 2, received=proxy(-DIRECTION * 3), noise=0.01)
    assert kept.name.startswith("alone")


def test_for_its_own_patients_a_proxy_that_is_expected_to_be_noise_is_left_out() -> None:
    """With an expected error above its own a site keeps its own model for "own", though its folds
    like the proxy; above a third of it at most a sum."""
    examples = site(60)
    received = proxy(DIRECTION)

    def kept(noise: float | None) -> Home:
        return choose("logistic", examples, 2, received=received, noise=noise, choose_for="own")

    assert kept(None).weights[1] > 0
    assert kept(1.01).name.startswith("alone")
    assert kept(0.4).name.startswith(("sum", "alone"))
    assert kept(0.01).name == kept(None).name


def test_a_client_knows_how_noisy_its_proxy_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run, what ``choose`` is told grows with the noise and shrinks with the members; of a
    proxy that the rule was not calibrated for it is told nothing."""
    told: list[float | None] = []

    def remember(*args, noise: float | None = None, **rest) -> Home:
        told.append(noise)
        return choose(*args, **rest)

    monkeypatch.setattr("proxyfl.federation.fitted.choose", remember)

    def noise_of(sites: int, multiplier: float, **models: str) -> float | None:
        told.clear()
        tree = {
            "methods": ["proxyfl"],
            "rounds": 3,
            "evaluate_every": 3,
            "data": {"source": "synthetic", "synthetic": {"sites": sites, "examples": 40}},
            "partition": {"kind": "site"},
            "models": {"private": "logistic", "proxy": "linear"} | models,
            "learning": {"batch_size": 40, "steps_per_round": 1},
            "privacy": {"sampling_rate": 1.0, "noise_multiplier": multiplier, "delta": 1e-3},
        }
        run(from_tree(tree))
        return told[-1]

    few = noise_of(3, 10.0)
    assert few is not None
    louder, more = noise_of(3, 20.0), noise_of(6, 10.0)
    assert louder is not None
    assert more is not None
    assert more < few < louder
    assert noise_of(3, 10.0, proxy="mlp") is None


def test_the_best_of_the_stated_estimators_is_alone() -> None:
    """Where a linear model is right, ``logistic|trees`` keeps it; where it cannot be, trees."""
    assert "logistic" in choose("logistic|trees", site(150), 2).name
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 3, generator=generator) * 2 - 1
    corners = InMemory(x, ((x[:, 0] * x[:, 1]) > 0).long())
    assert "trees" in choose("logistic|trees", corners, 2).name


def test_persons_stay_in_one_fold() -> None:
    """Nobody is in both parts of a fold, and every example is judged once."""
    examples = site(60, groups=True)
    y = examples.labels.numpy()
    assert examples.groups is not None
    persons = examples.groups.numpy()
    judged = []
    for fitting, judging in choosing._folds(y, persons, 0):
        assert not set(persons[fitting]) & set(persons[judging])
        judged.extend(judging)
    assert sorted(judged) == list(range(60))


def test_classes_never_seen_follow_the_proxy() -> None:
    """A class that the site lacks keeps the probability that the proxy gives it."""
    own = torch.tensor([[2.0, 0.0, UNSEEN]])
    received = torch.tensor([[0.0, 1.0, 0.5]])
    found = combined(own, received, 0.5, 0.5).softmax(1)
    assert torch.isclose(found[0, 2], received.softmax(1)[0, 2])
    assert found[0, 0] > received.softmax(1)[0, 0]


def test_who_lacks_a_class_keeps_the_proxy_for_it() -> None:
    """A site with two of three classes keeps the proxy or a sum, however good its own model is on
    those two: the third keeps the probability that the proxy gives it."""
    received = nn.Linear(3, 3)
    inputs = site(400, seed=2)
    kept = choose("logistic", inputs, 3, received=received)
    assert kept.name.split(",")[0] in ("proxy", "sum")
    found = kept(inputs.x).softmax(1)[:, 2]
    torch.testing.assert_close(found, received(inputs.x).softmax(1)[:, 2])


def test_the_same_examples_give_the_same_choice() -> None:
    """Everything follows from the examples, the proxy and the seed."""
    received = proxy(DIRECTION)
    first = choose("logistic|trees", site(80), 2, received=received, seed=3)
    second = choose("logistic|trees", site(80), 2, received=received, seed=3)
    inputs = site(10, seed=2).x
    assert first.name == second.name
    assert torch.equal(first(inputs), second(inputs))


@pytest.mark.parametrize("received", [None, proxy(DIRECTION)])
def test_what_is_kept_comes_back_from_its_file(received, tmp_path: Path) -> None:
    """A kept model predicts the same bits after it was saved, without a pickle."""
    kept = choose("trees", site(80), 2, received=received)
    about = {"architecture": "trees", "shape": "[3]", "classes": "2"}
    if received is not None:
        about["residual_on"] = "linear"
        kept.received = nn.Sequential(nn.Flatten(), received)
    save_model(tmp_path / "m.safetensors", kept, about)
    again, _ = load_model(tmp_path / "m.safetensors")
    assert isinstance(again, Home)
    inputs = site(20, seed=4).x
    assert torch.equal(again(inputs), kept(inputs))


CONFIG = from_tree(
    {
        "rounds": 6,
        "evaluate_every": 6,
        "methods": ["alone", "pooled", "proxyfl"],
        "models": {"private": "logistic"},
        "partition": {"clients": 4, "examples": 60},
        "learning": {"batch_size": 30, "steps_per_round": 1},
        "exchange": {"settle": "auto", "average": 0.5},
    }
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run with estimators as private models."""
    out = tmp_path_factory.mktemp("home") / "run"
    return run(CONFIG, out=out)


def test_settling_costs_nothing(finished) -> None:
    """Three rounds train and are charged for; three settle, are on the ledger, and cost nothing."""
    assert finished.path is not None
    for path in sorted(finished.path.glob("ledger/proxyfl/*.jsonl")):
        charges = Ledger.read(path).charges
        assert [charge.steps for charge in charges] == [1, 1, 1, 0, 0, 0]
    third = finished.last("proxyfl", 0, after=3)
    last = finished.last("proxyfl", 0)
    assert third["epsilon_pld"] == last["epsilon_pld"] > 0


def test_everyone_ends_with_the_average(finished) -> None:
    """After settling over a graph that reaches everyone, all clients have the same proxy."""
    received = {row["received_log_loss"] for row in finished.finals("proxyfl")}
    assert max(received) - min(received) < 1e-5


def test_what_is_kept_is_on_record(finished) -> None:
    """A client's last row names what it keeps; nothing of it was sent."""
    for row in finished.finals("proxyfl"):
        assert row["keeps"]
        # the proxy is linear, ten classes of 64 pixels: nothing larger ever leaves
        assert row["bytes_sent"] < 650 * 4 + 500
    for row in finished.finals("alone"):
        assert row["keeps"].startswith("alone")
        assert row["bytes_sent"] == 0


def test_what_is_chosen_at_home_changes_no_proxy(finished) -> None:
    """Another private model leaves every proxy and every charge as they were."""
    other = dataclasses.replace(
        CONFIG, methods=("proxyfl",), models=dataclasses.replace(CONFIG.models, private="trees")
    )
    again = run(other)
    for client in range(4):
        one = finished.last("proxyfl", client)
        two = again.last("proxyfl", client)
        assert one["received_log_loss"] == two["received_log_loss"]
        assert one["epsilon_pld"] == two["epsilon_pld"]


def test_a_fitted_model_teaches_no_proxy() -> None:
    """With beta above 0 the run is refused before anything is written."""
    learning = dataclasses.replace(CONFIG.learning, beta=0.5)
    with pytest.raises(ConfigError, match="teaches no proxy"):
        run(dataclasses.replace(CONFIG, learning=learning))


def test_a_run_that_only_settles_is_refused() -> None:
    """Settings that leave no round to train in, or nothing to settle, are errors."""
    with pytest.raises(ConfigError, match="leaves none of 6 rounds"):
        dataclasses.replace(CONFIG, exchange=Exchange(settle=6))
    with pytest.raises(ConfigError, match=r"average=0\.5 needs last rounds .* Set settle"):
        dataclasses.replace(CONFIG, exchange=Exchange(settle=0, average=0.5))


def test_a_torch_private_model_learns_while_proxies_settle() -> None:
    """In a round of no steps the private model trains on, and the ledger gets a charge of none."""
    config = Config(rounds=3, evaluate_every=1, methods=("proxyfl",), exchange=Exchange(settle=1))
    result = run(config)
    rows = [row for row in result.rows if row["client"] == 0]
    assert rows[2]["steps"] == 0
    assert rows[2]["private_loss"] is not None
    assert rows[2]["proxy_loss"] is None
    assert rows[2]["epsilon_pld"] == rows[1]["epsilon_pld"]
    assert rows[2]["private_log_loss"] != rows[1]["private_log_loss"]


def test_equal_divisors_weigh_sites_by_their_examples() -> None:
    """With a given rate and one batch size for all, a site's step is in proportion to its sum: the
    accounting knows nothing of it, and two sites of one record more or less differ by C."""
    from proxyfl.federation.trainers import optimizer_over
    from proxyfl.privacy.dpsgd import DPSGD
    from proxyfl.privacy.guarantee import Kind, Relation
    from proxyfl.seeds import Seeded
    from proxyfl.settings import Optimizer

    moved = []
    for n in (10, 11):
        x = torch.ones(n, 3)
        examples = InMemory(x, torch.ones(n, dtype=torch.int64))
        model = proxy(torch.zeros(3))
        ledger = Ledger(
            "a", delta=1e-3, kind=Kind.END_TO_END, simulated=True, relation=Relation.ADD_OR_REMOVE
        )
        trainer = DPSGD(
            model,
            optimizer_over(Optimizer("sgd", learning_rate=1.0), model),
            examples,
            dp=DP(clip_norm=0.5, noise_multiplier=1.0, sampling_rate=1.0, delta=1e-3),
            classes=2,
            batch_size=5,
            ledger=ledger,
            batches=Seeded(0, "batches", 0),
            noise=Seeded(0, "noise", 0),
        )
        trainer.begin_round(0, 1)
        trainer.step(trainer.draw())
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        moved.append(flat.numpy())
    # same noise: one record more moves the divided sum by C / batch_size and no further
    assert np.linalg.norm(moved[1] - moved[0]) == pytest.approx(0.5 / 5, rel=1e-3)


def test_a_sample_that_pays_nothing_is_no_step() -> None:
    """DP-SGD refuses a batch that ``sample`` drew for a private model."""
    from proxyfl.errors import PrivacyError
    from proxyfl.federation.trainers import optimizer_over
    from proxyfl.privacy.dpsgd import DPSGD
    from proxyfl.privacy.guarantee import Kind
    from proxyfl.seeds import Seeded
    from proxyfl.settings import Optimizer

    model = proxy(DIRECTION)
    trainer = DPSGD(
        model,
        optimizer_over(Optimizer("sgd"), model),
        site(20),
        dp=DP(clip_norm=1.0, noise_multiplier=1.0),
        classes=2,
        batch_size=10,
        ledger=Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=True),
        batches=Seeded(0, "batches", 0),
        noise=Seeded(0, "noise", 0),
    )
    with pytest.raises(PrivacyError, match="not the last one that draw"):
        trainer.step(trainer.sample())


def test_a_class_with_one_example_is_judged_as_it_would_be_kept() -> None:
    """The fold that judges the only example of a class has a model that never saw the class. It
    leaves it to the proxy there, so that a sum is not condemned for one example."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=draw)
    y = (x[:, 0] > 0).long()
    y[-1] = 2
    received = nn.Linear(3, 3)
    at_hand = choosing.Local.of(InMemory(x, y), 3, received, choosing.NO_BALANCE, 0)
    (candidate, *_) = choosing.candidates("logistic")
    own = at_hand.out_of_fold(candidate)
    summed = torch.from_numpy(at_hand.combined(own, (0.5, 0.5)))
    expected = torch.from_numpy(at_hand.proxy).softmax(1)[-1, 2]
    assert own[-1, 2] == UNSEEN
    assert summed.softmax(1)[-1, 2] == pytest.approx(float(expected))
