"""What one client does between two exchanges, against steps written out by hand."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl.data.examples import InMemory
from proxyfl.data.sources import load
from proxyfl.errors import ConfigError, PrivacyError
from proxyfl.federation import trainers
from proxyfl.federation.learners import Mutual, Residual, Single
from proxyfl.federation.metrics import evaluate
from proxyfl.federation.trainers import PlainSGD, optimizer_over
from proxyfl.models import build
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.units import Units
from proxyfl.seeds import Seeded
from proxyfl.settings import DP, Optimizer
from tests.federation.test_losses import kl_divergence

DIGITS = load("digits")
N = 40
X, Y = DIGITS.train_x[:N], DIGITS.train_y[:N]
EXAMPLES = InMemory(X, Y)
RATE = 0.1


class Counts:
    """Batches of given sizes: 3 takes the first three examples, 0 none."""

    simulated = True

    def __init__(self, *sizes: int) -> None:
        self.sizes = itertools.cycle(sizes)

    def uniform(self, n: int) -> Tensor:
        return torch.where(torch.arange(n) < next(self.sizes), 0.0, 0.999999).double()


def ledger(kind: Kind = Kind.NONE) -> Ledger:
    return Ledger("a", delta=1e-3, kind=kind, simulated=True)


def model(name: str, seed: int = 0) -> nn.Module:
    return build(name, shape=(1, 8, 8), classes=10, seed=seed)


def sgd(of: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(of.parameters(), lr=RATE)


def plain(proxy: nn.Module, beta: float, batches=None) -> PlainSGD:
    source = batches or Seeded(0, "batches", 0)
    return PlainSGD(
        proxy,
        sgd(proxy),
        Units(EXAMPLES),
        classes=10,
        sampling_rate=0.5,
        teacher_weight=beta,
        ledger=ledger(),
        batches=source,
    )


def private_proxy(proxy: nn.Module, beta: float, batches=None) -> DPSGD:
    return DPSGD(
        proxy,
        sgd(proxy),
        EXAMPLES,
        dp=DP(clip_norm=1.0, noise_multiplier=1.0),
        classes=10,
        batch_size=N // 2,
        teacher_weight=beta,
        ledger=ledger(Kind.CONDITIONAL if beta else Kind.END_TO_END),
        batches=batches or Seeded(0, "batches", 0),
        noise=Seeded(0, "noise", 0),
    )


def mutual(trainer=plain, *, private=None, alpha=0.3, beta=0.4, batches=None, **options) -> Mutual:
    private, proxy = private or model("mlp", 1), model("linear", 2)
    return Mutual(
        private, sgd(private), trainer(proxy, beta, batches), classes=10, alpha=alpha, **options
    )


def descend(of: nn.Module, loss: Tensor) -> None:
    gradients = torch.autograd.grad(loss, list(of.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(of.parameters(), gradients, strict=True):
            parameter -= RATE * gradient


def by_hand(
    private: nn.Module, proxy: nn.Module, *, alpha: float, beta: float, received: bool, steps: int
) -> None:
    """The paper's alternation, written out: first the proxy learns from the private model, then the
    other way."""
    frozen, batches = copy.deepcopy(proxy), Seeded(0, "batches", 0)
    ce = nn.functional.cross_entropy
    for _ in range(steps):
        chosen = batches.uniform(N) < 0.5
        x, y = X[chosen], Y[chosen]
        teacher = private(x).detach()
        descend(
            proxy, (1 - beta) * ce(proxy(x), y) + beta * kl_divergence(teacher, proxy(x)).mean()
        )
        teacher = (frozen if received else proxy)(x).detach()
        descend(
            private,
            (1 - alpha) * ce(private(x), y) + alpha * kl_divergence(teacher, private(x)).mean(),
        )


@pytest.mark.parametrize("teacher", ["current", "received"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.4), (0.5, 0.0), (0.0, 1.0), (1.0, 0.5)])
def test_mutual_steps(alpha: float, beta: float, teacher: str) -> None:
    """Three steps equal the alternation by hand, for both teachers and at the ends of alpha and
    beta."""
    learner = mutual(alpha=alpha, beta=beta, teacher=teacher)
    private, proxy = copy.deepcopy(learner.own), copy.deepcopy(learner.proxy)
    learner.train(0, 3)
    by_hand(private, proxy, alpha=alpha, beta=beta, received=teacher == "received", steps=3)
    torch.testing.assert_close(
        params.flatten(learner.proxy), params.flatten(proxy), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        params.flatten(learner.own), params.flatten(private), rtol=1e-4, atol=1e-6
    )


def test_teachers_differ() -> None:
    """The received and the current proxy teach differently from the second step on, so the test
    above can fail."""
    ends = []
    for teacher in ("current", "received"):
        learner = mutual(teacher=teacher)
        learner.train(0, 3)
        ends.append(params.flatten(learner.own))
    assert not torch.allclose(*ends, rtol=1e-4, atol=1e-6)


def test_the_received_teacher_is_renewed_by_the_exchange() -> None:
    """``adopt`` sets both the proxy and the frozen copy that teaches; training moves only the
    proxy."""
    learner = mutual(teacher="received")
    theta = torch.linspace(-1, 1, params.size(learner.proxy))
    learner.adopt(theta)
    learner.train(0, 2)
    copied = torch.cat([p.reshape(-1) for p in learner.received.parameters()])
    assert torch.equal(copied, theta)
    assert not torch.equal(params.flatten(learner.proxy), theta)


@pytest.mark.parametrize("residual", [True, False])
def test_at_beta_zero_the_proxy_never_sees_the_private_model(residual: bool) -> None:
    """Another private model, of another architecture even, changes no bit of the DP-trained
    proxy."""
    ends = []
    for private in (model("mlp", 1), model("mlp", 99), model("lenet5", 1)):
        learner = mutual(private_proxy, private=private, beta=0.0, residual=residual)
        learner.train(0, 3)
        learner.adopt(params.flatten(learner.proxy) / 2)
        learner.train(1, 3)
        ends.append(params.flatten(learner.proxy))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_at_beta_above_zero_it_does() -> None:
    """The counterpart, so that the test above can fail: with beta > 0 the private model reaches the
    proxy."""
    ends = []
    for seed in (1, 99):
        learner = mutual(private_proxy, private=model("mlp", seed), beta=0.5)
        learner.train(0, 2)
        ends.append(params.flatten(learner.proxy))
    assert not torch.equal(*ends)


def test_residual_adds_logits() -> None:
    """A residual model says own(x) + received(x), and its gradient reaches its own part only."""
    own, received = model("mlp", 1), model("linear", 2)
    both = Residual(own, received)
    torch.testing.assert_close(both(X), own(X) + received(X))
    nn.functional.cross_entropy(both(X), Y).backward()
    assert all(p.grad is not None for p in own.parameters())
    assert all(p.grad is None for p in received.parameters())


def test_residual_follows_the_exchange() -> None:
    """An exchange leaves the private model as it was trained; the next round stands it on the new
    proxy."""
    learner = mutual(residual=True)
    own, before = params.flatten(learner.own), learner.private(X)
    learner.adopt(torch.linspace(-1, 1, params.size(learner.proxy)))
    assert torch.equal(learner.private(X), before)
    learner.train(0, 0)
    torch.testing.assert_close(learner.private(X), learner.own(X) + learner.proxy(X))
    assert torch.equal(params.flatten(learner.own), own)


def test_residual_learns_what_is_left_open() -> None:
    """One residual step is one step of own on the loss of the sum of logits."""
    learner = mutual(residual=True, alpha=0.0, beta=0.0)
    own, received = copy.deepcopy(learner.own), copy.deepcopy(learner.received)
    learner.train(0, 1)
    chosen = Seeded(0, "batches", 0).uniform(N) < 0.5
    descend(
        own, nn.functional.cross_entropy(own(X[chosen]) + received(X[chosen]).detach(), Y[chosen])
    )
    torch.testing.assert_close(
        params.flatten(learner.own), params.flatten(own), rtol=1e-4, atol=1e-6
    )


def test_the_received_proxy_stays_in_evaluation_mode() -> None:
    """Evaluating a residual model, or training it, never switches dropout on in the frozen
    proxy."""
    frozen = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(64, 10))
    both = Residual(model("mlp"), frozen.eval())
    evaluate(both.train(), EXAMPLES)
    assert both.training
    assert both.own.training
    assert not any(m.training for m in frozen.modules())


def with_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)
    )


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_batches_too_small_for_batch_norm(beta: float) -> None:
    """With BatchNorm a private model sits out batches of 0 and 1; the proxy steps on every batch;
    statistics stay."""
    learner = mutual(private_proxy, private=with_batch_norm(), beta=beta, batches=Counts(0, 1, 5))
    own, mean, proxy = (
        params.flatten(learner.own),
        learner.own[2].running_mean.clone(),
        params.flatten(learner.proxy),
    )
    losses = learner.train(0, 2)
    assert torch.equal(params.flatten(learner.own), own)
    assert torch.equal(learner.own[2].running_mean, mean)
    assert not torch.equal(params.flatten(learner.proxy), proxy)
    assert losses.private is None
    assert losses.proxy is not None
    assert learner.trainer.ledger.steps == 2
    assert learner.train(1, 1).private is not None
    assert not torch.equal(params.flatten(learner.own), own)


def test_a_single_example_is_taught_by_what_the_private_model_says() -> None:
    """A batch of one that BatchNorm cannot train on still gets the private model's prediction as
    teacher."""
    learner = mutual(private=with_batch_norm(), beta=1.0, batches=Counts(1))
    private, proxy = copy.deepcopy(learner.own).eval(), copy.deepcopy(learner.proxy)
    learner.train(0, 1)
    descend(proxy, kl_divergence(private(X[:1]).detach(), proxy(X[:1])).mean())
    torch.testing.assert_close(
        params.flatten(learner.proxy), params.flatten(proxy), rtol=1e-4, atol=1e-6
    )


def test_single_with_batch_norm() -> None:
    """``alone`` with BatchNorm passes over batches of 0 and 1 and learns from larger ones."""
    own = with_batch_norm()
    learner = Single(plain(own, 0.0, Counts(0, 1, 7)), role="private")
    before = params.flatten(own)
    assert learner.train(0, 2).private is None
    assert torch.equal(params.flatten(own), before)
    losses = learner.train(1, 1)
    assert losses.private is not None
    assert losses.proxy is None
    assert not torch.equal(params.flatten(own), before)


def test_empty_batches_do_not_dilute_the_loss() -> None:
    """The mean loss is over batches that have one: an empty batch between two equal ones changes
    nothing."""
    found = []
    for sizes in ((5,), (0, 5)):
        proxy = model("linear", 2)
        trainer = plain(proxy, 0.0, Counts(*sizes))
        found.append(Single(trainer).train(0, len(sizes)).proxy)
    assert found[0] == found[1]


def test_dropout_is_reproducible() -> None:
    """Dropout in the private model draws from the global generator: the same seed gives the same
    bits."""
    ends = []
    for seed in (4, 4, 5):
        torch.manual_seed(0)
        private = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10))
        learner = mutual(private_proxy, private=private, beta=0.0)
        torch.manual_seed(seed)
        learner.train(0, 3)
        ends.append(params.flatten(private))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("private", [True, False])
def test_single_is_its_trainer(private: bool) -> None:
    """One model, its own trainer, and the role it was given; the exchange's parameters are taken as
    they are."""
    own = model("linear")
    learner = Single(plain(own, 0.0), role="private" if private else "proxy")
    losses = learner.train(0, 2)
    assert (losses.private is None) is not private
    assert list(learner.models()) == ["private" if private else "proxy"]
    learner.adopt(torch.ones(650))
    assert bool((params.flatten(learner.shared) == 1).all())


@pytest.mark.parametrize("kind", ["single", "mutual", "residual"])
def test_stop_and_go_on(kind: str) -> None:
    """State taken between rounds and restored into a new learner gives the bits of an uninterrupted
    one."""

    def fresh():
        if kind != "single":
            return mutual(private_proxy, beta=0.0, residual=kind == "residual", teacher="received")
        proxy = model("linear")
        return Single(private_proxy(proxy, 0.0))

    whole, first, second = fresh(), fresh(), fresh()
    theta = torch.linspace(-1, 1, 650)
    for learner in (whole, first):
        learner.train(0, 2)
        learner.adopt(theta)
        learner.train(1, 2)
    second.restore(first.state())
    whole.train(2, 2)
    second.train(2, 2)
    for role, saved in whole.models().items():
        for name, tensor in saved.state_dict().items():
            assert torch.equal(second.models()[role].state_dict()[name], tensor), (role, name)


def test_plain_training_claims_nothing() -> None:
    """Training without DP refuses a ledger that claims a guarantee, and a bad beta."""
    proxy = model("linear")
    common = {"classes": 10, "sampling_rate": 0.5, "batches": Seeded(0, "batches")}
    with pytest.raises(PrivacyError, match=r"Kind\.NONE, not end-to-end"):
        PlainSGD(
            proxy,
            sgd(proxy),
            Units(EXAMPLES),
            teacher_weight=0.0,
            ledger=ledger(Kind.END_TO_END),
            **common,
        )
    with pytest.raises(ConfigError, match="0 <= beta <= 1, got beta=-1"):
        PlainSGD(proxy, sgd(proxy), Units(EXAMPLES), teacher_weight=-1, ledger=ledger(), **common)


def test_models_keep_no_gradients() -> None:
    """After a step a model holds no gradient: of many clients in a process only one has any."""
    private = model("mlp")
    loss = private(X).square().mean()
    assert trainers.descend(sgd(private), loss) == float(loss.detach())
    assert all(weight.grad is None for weight in private.parameters())


def test_optimizers() -> None:
    """Both optimizers take their settings, and frozen parameters are left out."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[0].requires_grad_(False)
    adam = optimizer_over(Optimizer("adam", learning_rate=0.1, weight_decay=0.2), net)
    momentum = optimizer_over(Optimizer("sgd", learning_rate=0.1, momentum=0.9), net)
    assert isinstance(adam, torch.optim.Adam)
    assert (adam.defaults["lr"], adam.defaults["weight_decay"]) == (0.1, 0.2)
    assert momentum.defaults["momentum"] == 0.9
    assert [len(group["params"]) for group in momentum.param_groups] == [2]
