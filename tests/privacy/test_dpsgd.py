"""DP-SGD as a whole: the sensitivity of a step, its noise, its ledger, and what it refuses."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from proxyfl import params
from proxyfl.data.examples import InMemory
from proxyfl.data.sources import load
from proxyfl.errors import BudgetExhausted, ConfigError, PrivacyError
from proxyfl.losses import cross_entropy
from proxyfl.models import build
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.dpsgd import DPSGD, Batch
from proxyfl.privacy.guarantee import Kind, Relation
from proxyfl.privacy.ledger import Budget, Ledger
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.seeds import Seeded, System
from proxyfl.settings import DP

DIGITS = load("digits")
C = 1.0


def digits(n: int) -> tuple[Tensor, Tensor]:
    return DIGITS.train_x[:n], DIGITS.train_y[:n]


def ledger(
    kind: Kind = Kind.END_TO_END, *, simulated: bool = True, budget: Budget | None = None
) -> Ledger:
    return Ledger("a", delta=1e-5, kind=kind, simulated=simulated, budget=budget)


def trainer(x: Tensor, y: Tensor, *, batch_size: int, beta: float = 0.0, **changes) -> DPSGD:
    """A linear proxy under plain SGD of rate 1: a step is minus the noisy mean gradient."""
    model = build("linear", shape=tuple(x.shape[1:]), classes=10, seed=3)
    given = {
        "ledger": ledger(Kind.CONDITIONAL if beta else Kind.END_TO_END),
        "batches": Seeded(0, "batches", 0),
        "noise": Seeded(0, "noise", 0),
    }
    asked = {"noise_multiplier": 1.0, "clip_norm": C}
    for name, value in changes.items():
        (asked if name in DP.__dataclass_fields__ else given)[name] = value
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return DPSGD(
        model,
        optimizer,
        InMemory(x, y),
        dp=DP(**asked),
        classes=10,
        batch_size=batch_size,
        teacher_weight=beta,
        **given,
    )


def noisy_sum(private: DPSGD, teacher_logits: Tensor | None = None) -> Tensor:
    """The sum of clipped gradients with its noise, read off one whole step."""
    before = params.flatten(private.model)
    private.step(private.draw(), teacher_logits)
    return (before - params.flatten(private.model)).double() * private.batch_size


@settings(max_examples=15)
@given(
    added=st.integers(50, 1400),
    scale=st.sampled_from([1.0, 30.0, -1.0]),
    clip_norm=st.sampled_from([0.1, 1.0]),
)
def test_one_record_moves_a_step_by_at_most_c(added: int, scale: float, clip_norm: float) -> None:
    """At beta = 0 one record more changes each step's sum by at most C: same weights, same noise,
    everyone drawn."""
    x, y = digits(40)
    more_x, more_y = (
        torch.cat([x, DIGITS.train_x[added, None] * scale]),
        torch.cat([y, DIGITS.train_y[added, None]]),
    )
    one = trainer(x, y, batch_size=40, clip_norm=clip_norm)
    other = trainer(more_x, more_y, batch_size=41, clip_norm=clip_norm)
    one.begin_round(0, 4)
    other.begin_round(0, 4)
    for _ in range(4):
        # a step's guarantee is for given weights
        params.load_flat(other.model, params.flatten(one.model))
        difference = float((noisy_sum(one) - noisy_sum(other)).norm())
        assert difference <= clip_norm * (1 + 1e-3)


def test_one_record_moves_a_step_by_c() -> None:
    """The bound is reached, so that the test above could fail: a far-off record is clipped to
    exactly C."""
    x, y = digits(40)
    one = trainer(x, y, batch_size=40)
    other = trainer(torch.cat([x, x[:1] * 30]), torch.cat([y, (y[:1] + 1) % 10]), batch_size=41)
    one.begin_round(0, 1)
    other.begin_round(0, 1)
    assert float((noisy_sum(one) - noisy_sum(other)).norm()) == pytest.approx(C, rel=1e-3)


def retrained(x: Tensor, y: Tensor, learning_rate: float) -> nn.Module:
    """A private MLP, trained without DP from the same start on the data given."""
    model = build("mlp", shape=tuple(x.shape[1:]), classes=10, seed=5)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def difference_at(beta: float, *, learning_rate: float = 0.1) -> float:
    """How far one record more moves the proxy's clipped sum, if the private model is trained with
    it as well."""
    x, y = digits(201)
    sums = []
    for n in (200, 201):
        private = trainer(x[:n], y[:n], batch_size=n, beta=beta)
        private.begin_round(0, 1)
        teacher = retrained(x[:n], y[:n], learning_rate)(x[:n]).detach() if beta else None
        sums.append(noisy_sum(private, teacher))
    return float((sums[0] - sums[1]).norm())


def test_a_private_teacher_breaks_the_sensitivity() -> None:
    """Why beta > 0 is only conditional: one record retrains the private model, and *every* gradient
    moves."""
    measured = {beta: difference_at(beta) for beta in (0.0, 0.5, 0.9)}
    print({beta: f"{value:.2f} C" for beta, value in measured.items()})
    assert measured[0.0] <= C * (1 + 1e-3)
    assert measured[0.5] > 2 * C
    assert measured[0.9] > measured[0.5]


def step_noise(multiplier: float, steps: int = 4) -> list[float]:
    """What whole steps add to the clipped sum, in units of C."""
    x, y = digits(60)
    private = trainer(x, y, batch_size=60, noise_multiplier=multiplier)
    private.begin_round(0, steps)
    found: list[float] = []
    for _ in range(steps):
        targets = nn.functional.one_hot(y, 10).float()
        clean = Clipper(private.model).clip(x, targets, cross_entropy, C).total.double()
        found += ((noisy_sum(private) - clean) / C).tolist()
    return found


def test_the_noise_of_a_step() -> None:
    """A step adds N(0, (sigma C)^2) to the sum: Kolmogorov-Smirnov accepts sigma and rejects 2/3
    and 3/2 of it."""
    noise = step_noise(2.0)
    assert stats.kstest(noise, "norm", args=(0, 2.0)).pvalue > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise, "norm", args=(0, 2.0 * wrong)).pvalue < 1e-6


class Nobody:
    """A source that selects no example."""

    simulated = True

    def uniform(self, n: int) -> Tensor:
        return torch.full((n,), 0.999999, dtype=torch.float64)


def test_an_empty_batch_is_a_step() -> None:
    """Nobody drawn: the noise is added all the same, the loss is None, and the ledger has the
    step."""
    x, y = digits(100)
    private = trainer(x, y, batch_size=50, batches=Nobody(), noise_multiplier=3.0)
    private.begin_round(0, 1)
    before = params.flatten(private.model)
    batch = private.draw()
    assert len(batch) == 0
    assert private.step(batch) is None
    noise = ((before - params.flatten(private.model)) * 50).double()
    assert stats.kstest(noise.numpy(), "norm", args=(0, 3.0)).pvalue > 0.01
    assert private.ledger.steps == 1


def test_a_rate_that_follows_from_the_data_is_not_add_or_remove() -> None:
    """A ledger that claims add-or-remove is refused for B/n, and taken for a rate that was given or
    follows from a declared number; a zero-out ledger promises less and is taken for all."""
    x, y = digits(40)

    def opened(relation: Relation) -> Ledger:
        return Ledger("a", delta=1e-5, kind=Kind.END_TO_END, simulated=True, relation=relation)

    add_or_remove = opened(Relation.ADD_OR_REMOVE)
    with pytest.raises(PrivacyError, match="follows from the number of examples; the ledger"):
        trainer(x, y, batch_size=20, ledger=add_or_remove)
    assert not add_or_remove.charges
    trainer(x, y, batch_size=20, ledger=add_or_remove, sampling_rate=0.5, delta=1e-5)
    trainer(x, y, batch_size=20, ledger=add_or_remove, examples=50)
    zero_out = opened(Relation.ZERO_OUT)
    trainer(x, y, batch_size=20, ledger=zero_out)
    trainer(x, y, batch_size=20, ledger=zero_out, examples=50)
    trainer(x, y, batch_size=20, ledger=zero_out, sampling_rate=0.5, delta=1e-5)


@pytest.mark.parametrize(("name", "value"), [("noise_multiplier", 0.5), ("sampling_rate", 1.0)])
def test_a_step_with_other_settings_than_were_charged_is_refused(name: str, value: float) -> None:
    """Two trainers on one ledger: less noise or more sampling than was charged stops the step
    before a batch is drawn."""
    x, y = digits(100)
    private = trainer(x, y, batch_size=50, noise_multiplier=3.0)
    private.begin_round(0, 2)
    settings = {"noise_multiplier": 3.0, "delta": 1e-5} | {name: value}
    other = trainer(x, y, batch_size=50, ledger=private.ledger, **settings)
    with pytest.raises(PrivacyError, match="is not the one charged"):
        other.draw()


@pytest.mark.parametrize("when", ["before the charge", "after the charge", "after the draw"])
def test_what_was_checked_cannot_be_changed(when: str) -> None:
    """Clipping norm, noise, sampling, teacher and ledger stay as they were when the promise was
    checked: an assignment raises, and the step is the one that was promised."""
    x, y = digits(100)
    private = trainer(x, y, batch_size=50, batches=Nobody(), noise_multiplier=3.0)
    conditional = ledger(Kind.CONDITIONAL)
    wrong = {
        "clip_norm": 100.0,
        "noise_multiplier": 0.001,
        "sampling_rate": 1.0,
        "batch_size": 1,
        "teacher_weight": 1.0,
        "ledger": conditional,
        "_clip_to": 100.0,
        "_noise": Nobody(),
    }

    def change() -> None:
        for name, value in wrong.items():
            with pytest.raises(AttributeError, match=f"DPSGD.{name} is set once"):
                setattr(private, name, value)

    if when == "before the charge":
        change()
    private.begin_round(0, 1)
    if when == "after the charge":
        change()
    before = params.flatten(private.model)
    batch = private.draw()
    if when == "after the draw":
        change()
    private.step(batch)
    noise = ((before - params.flatten(private.model)) * 50).double()
    assert stats.kstest(noise.numpy(), "norm", args=(0, 3.0)).pvalue > 0.01


def test_the_divisor_is_the_expected_batch_size() -> None:
    """Whatever the drawn size, the sum is divided by batch_size: the step equals the clipped sum
    over the batch / B."""
    x, y = digits(100)
    private = trainer(x, y, batch_size=30, noise_multiplier=1e-6)
    private.begin_round(0, 3)
    sizes = set()
    for _ in range(3):
        before = params.flatten(private.model)
        batch = private.draw()
        sizes.add(len(batch))
        targets = nn.functional.one_hot(batch.y, 10).float()
        expected = (
            Clipper(private.model).clip(batch.x, targets, cross_entropy, C).total.clone() / 30
        )
        private.step(batch)
        torch.testing.assert_close(
            before - params.flatten(private.model), expected, atol=1e-5, rtol=1e-3
        )
    assert sizes - {30}, "every batch happened to have the expected size: the test shows nothing"


def test_a_weight_scales_what_has_its_noise() -> None:
    """A step with weight 1/4 is a quarter of the step without, noise included; the charge is the
    same. Where it would do nothing it is refused."""
    x, y = digits(100)
    moved = []
    for weight in (1.0, 0.25):
        private = trainer(x, y, batch_size=30, weight=weight)
        private.begin_round(0, 1)
        before = params.flatten(private.model)
        private.step(private.draw())
        moved.append(before - params.flatten(private.model))
        assert private.ledger.steps == 1
    torch.testing.assert_close(moved[1], moved[0] / 4, atol=1e-6, rtol=1e-4)
    for refused in (0.0, 1.5):
        with pytest.raises(ConfigError, match="weight"):
            trainer(x, y, batch_size=30, weight=refused)
    with pytest.raises(ConfigError, match="masked sum the noise is everybody's"):
        trainer(x, y, batch_size=30, weight=0.5, coalition=Coalition(1, 3))
    model = build("linear", shape=tuple(x.shape[1:]), classes=10, seed=3)
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(ConfigError, match="Adam undoes"):
        DPSGD(model, adam, InMemory(x, y), dp=DP(), classes=10, batch_size=30, weight=0.5)


def test_the_ledger_is_charged_first() -> None:
    """No batch is drawn before its step is on record, nor more batches than are."""
    x, y = digits(50)
    private = trainer(x, y, batch_size=10)
    with pytest.raises(PrivacyError, match="Call charge"):
        private.draw()
    private.begin_round(0, 1)
    assert private.ledger.charges[0].sampling_rate == 10 / 50
    private.step(private.draw())
    with pytest.raises(PrivacyError, match="no step left"):
        private.draw()


def test_a_spent_budget_stops_the_round() -> None:
    """A round that the budget does not allow raises before anything is drawn, with nothing on
    record."""
    x, y = digits(50)
    private = trainer(x, y, batch_size=10, ledger=ledger(budget=Budget(0.1, "rdp")))
    with pytest.raises(BudgetExhausted, match="above the budget"):
        private.begin_round(0, 100)
    assert private.ledger.steps == 0


def test_a_batch_serves_one_step() -> None:
    """A batch used twice, one that is not the last drawn, and another client's of the same number
    are refused."""
    x, y = digits(50)
    private, other = trainer(x, y, batch_size=10), trainer(x, y, batch_size=10)
    private.begin_round(0, 9)
    other.begin_round(0, 9)
    batch = private.draw()
    private.step(batch)
    with pytest.raises(PrivacyError, match=r"used already .* call draw\(\)"):
        private.step(batch)
    old, last = private.draw(), private.draw()
    with pytest.raises(PrivacyError, match="not the last one"):
        private.step(old)
    foreign = other.draw()
    with pytest.raises(PrivacyError, match="not the last one"):
        private.step(Batch(foreign.x, foreign.y, last.number))
    private.step(last)


def test_a_round_is_begun_once() -> None:
    """New noise under an old round, which a simulated ledger would not charge, is refused; a
    restored round is not."""
    x, y = digits(50)
    private = trainer(x, y, batch_size=10)
    state = private.state()
    private.begin_round(0, 1)
    with pytest.raises(PrivacyError, match="Round 0 was begun already"):
        private.begin_round(0, 1)
    private.restore(state)
    private.begin_round(0, 1)
    assert private.ledger.steps == 1


def test_kinds_of_guarantee() -> None:
    """With beta > 0 a ledger that claims end-to-end is refused; conditional is accepted, and
    allowed at beta = 0."""
    x, y = digits(20)
    with pytest.raises(PrivacyError, match=r"beta=0.5 .* conditional"):
        trainer(x, y, batch_size=5, beta=0.5, ledger=ledger(Kind.END_TO_END))
    trainer(x, y, batch_size=5, beta=0.5, ledger=ledger(Kind.CONDITIONAL))
    trainer(x, y, batch_size=5, beta=0.0, ledger=ledger(Kind.CONDITIONAL))


@pytest.mark.parametrize(("beta", "given"), [(0.0, True), (0.5, False)])
def test_the_teacher_is_there_exactly_if_beta_says_so(beta: float, given: bool) -> None:
    """A teacher's logits at beta = 0 would break the guarantee; none at beta > 0 would change the
    loss."""
    x, y = digits(20)
    private = trainer(x, y, batch_size=20, beta=beta)
    private.begin_round(0, 1)
    with pytest.raises(PrivacyError, match="teacher's logits"):
        private.step(private.draw(), torch.zeros(20, 10) if given else None)


def test_seeded_sources_need_a_simulated_ledger() -> None:
    """A ledger that claims a real guarantee refuses seeded batches and seeded noise, each alone."""
    x, y = digits(20)
    for changes in ({"noise": System()}, {"batches": System()}):
        with pytest.raises(PrivacyError, match="protect nobody"):
            trainer(x, y, batch_size=5, ledger=ledger(simulated=False), **changes)


def test_real_noise_needs_a_real_ledger() -> None:
    """Noise from the operating system under a simulated ledger, which would not charge a
    repetition, is refused."""
    x, y = digits(20)
    with pytest.raises(PrivacyError, match="simulated=False"):
        trainer(x, y, batch_size=5, batches=System(), noise=System())


def test_the_operating_systems_entropy() -> None:
    """With System sources a real ledger is served, and two equal trainings differ."""
    x, y = digits(50)
    ends = []
    for _ in range(2):
        private = trainer(
            x, y, batch_size=10, ledger=ledger(simulated=False), batches=System(), noise=System()
        )
        private.begin_round(0, 2)
        for _ in range(2):
            private.step(private.draw())
        assert private.ledger.steps == 2
        assert private.state() == {"batches": None, "noise": None}
        ends.append(params.flatten(private.model))
    assert not torch.equal(*ends)


def test_a_checkpoint_repeats_the_draws() -> None:
    """State taken between steps and restored gives the same batches and the same noise again."""
    x, y = digits(50)
    private = trainer(x, y, batch_size=10)
    private.begin_round(0, 4)
    private.step(private.draw())
    state, weights = private.state(), params.flatten(private.model)
    ends = []
    for _ in range(2):
        private.restore(state)
        params.load_flat(private.model, weights)
        private.step(private.draw())
        ends.append(params.flatten(private.model))
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 21}, "at most the client's 20 examples, got batch_size=21"),
        ({"batch_size": 0}, "batch_size >= 1, got batch_size=0"),
        ({"clip_norm": 0.0}, "0 < privacy.clip_norm"),
        ({"noise_multiplier": 0.0}, "0 < privacy.noise_multiplier"),
        ({"noise_multiplier": math.nan}, "finite number for privacy.noise_multiplier"),
        ({"beta": 1.5}, "0 <= beta <= 1, got beta=1.5"),
    ],
)
def test_settings_out_of_range(changes, message) -> None:
    """A setting without meaning is refused with its name, its range and what was found."""
    x, y = digits(20)
    with pytest.raises(ConfigError, match=message):
        trainer(x, y, **{"batch_size": 5} | changes)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (1, 8, 8)),
        ("lenet5", (1, 8, 8)),
        ("lenet5", (1, 28, 28)),
        ("cnn1", (3, 12, 12)),
        ("cnn2", (1, 8, 8)),
        ("resnet18", (3, 8, 8)),
        ("vgg", (3, 32, 32)),
    ],
)
def test_the_packages_models_are_clipped_exactly(name: str, shape: tuple[int, ...]) -> None:
    """For each architecture the sum of clipped gradients is that of a plain loop, in float64,
    clipped and not."""
    model = build(name, shape=shape, classes=4, seed=1).double()
    x = torch.linspace(-1, 1, 3 * math.prod(shape), dtype=torch.float64).sin_().view(3, *shape)
    targets = torch.tensor(
        [[1.0, 0, 0, 0], [0, 0, 1, 0], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64
    )
    gradients = []
    for i in range(3):
        losses = cross_entropy(model(x[i : i + 1]), targets[i : i + 1])
        parts = torch.autograd.grad(losses.sum(), params.trainable(model))
        gradients.append(torch.cat([part.reshape(-1) for part in parts]))
    norms = [float(g.norm()) for g in gradients]
    clip_norm = sorted(norms)[1]  # one is clipped, one is at the edge, one is not
    expected = sum(g * min(1.0, clip_norm / n) for g, n in zip(gradients, norms, strict=True))
    clipped = Clipper(model).clip(x, targets, cross_entropy, clip_norm)
    torch.testing.assert_close(clipped.total, expected, rtol=1e-9, atol=1e-11)
    assert clipped.norms.tolist() == pytest.approx(norms, rel=1e-9)


def test_a_model_in_another_memory_layout_trains_alike() -> None:
    """Weights that lie channels last are laid out as the gradients are: fused Adam gives the same
    steps."""
    trained = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).to(
            memory_format=layout
        )
        ledger = Ledger("a", delta=0.1, kind=Kind.END_TO_END, simulated=True)
        x = torch.randn(9, 2, 6, 6, generator=torch.Generator().manual_seed(1))
        trainer = DPSGD(
            model,
            torch.optim.Adam(model.parameters(), lr=0.1, fused=True),
            InMemory(x, torch.arange(9) % 3),
            dp=DP(clip_norm=1.0, noise_multiplier=1.0),
            classes=3,
            batch_size=5,
            ledger=ledger,
            batches=Seeded(0, "batches"),
            noise=Seeded(0, "noise"),
        )
        trainer.begin_round(0, 3)
        for _ in range(3):
            trainer.step(trainer.draw())
        trained.append(params.flatten(model))
    torch.testing.assert_close(*trained)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"delta": 1e-6}, "asks for 1e-06"),
        ({"budget": 1.0}, "a budget of epsilon 1 by pld, which the ledger does not keep"),
        ({"budget": 3.0, "accountant": "rdp"}, "epsilon 3 by rdp, which the ledger does not keep"),
    ],
)
def test_a_ledger_keeps_what_dp_asks_for(asked: dict[str, Any], message: str) -> None:
    """A ledger of another delta, or of a looser budget, is refused; a tighter budget is taken."""
    x, y = digits(40)
    kept = ledger(budget=Budget(2.0))
    with pytest.raises(PrivacyError, match=message):
        trainer(x, y, batch_size=20, ledger=kept, **asked)
    trainer(x, y, batch_size=20, ledger=kept, budget=2.5, delta=1e-5)
    with pytest.raises(PrivacyError, match="does not keep"):
        trainer(x, y, batch_size=20, budget=2.5)
