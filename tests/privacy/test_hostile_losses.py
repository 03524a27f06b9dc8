"""Losses made to slip past the proof: refused, or what one record moves stays below C."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl import DP, DPSGD, InMemory
from proxyfl.errors import BudgetExhausted, ConfigError, DataError, ModelError, PrivacyError
from proxyfl.losses import cross_entropy
from proxyfl.privacy.guarantee import Computation
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.userloss import CheckedLoss
from proxyfl.privacy.perexample.validation import checked_clipper, rehearse_loss
from proxyfl.seeds import Seeded

pytestmark = pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning")

Loss = Callable[[Tensor, Tensor], Tensor]
N = 8


def batch() -> tuple[Tensor, Tensor]:
    """Seven ordinary records and a last one that is made to be seen by the others."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 6, generator=generator)
    x[-1] = -600.0
    return x, torch.arange(N) % 3


def checked(loss: Loss) -> tuple[Clipper, CheckedLoss]:
    """The clipper of a linear model, and ``loss`` as a step would use it."""
    torch.manual_seed(0)
    clipper = checked_clipper(nn.Linear(6, 3), (6,), every_mode=True)
    labels = torch.zeros(N, dtype=torch.int64)
    return clipper, rehearse_loss(clipper, (6,), torch.float32, labels, loss)


def largest_change(loss: Loss) -> float:
    """The farthest that the sum at C = 1 moves without one of the records."""
    return farthest(*checked(loss))


def farthest(clipper: Clipper, loss: Loss) -> float:
    """The same for a loss as it is given."""
    x, y = batch()
    whole = clipper.clip(x.clone(), y.clone(), loss, 1.0).total.double()
    changes = []
    for removed in range(N):
        rest = torch.arange(N) != removed
        total = clipper.clip(x[rest], y[rest], loss, 1.0).total.double()
        changes.append(float((whole - total).norm()))
    return max(changes)


def own(outputs: Tensor, targets: Tensor) -> Tensor:
    """So small that no ordinary record is clipped."""
    return F.cross_entropy(outputs, targets, reduction="none") * 0.1


def minus_the_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return own(outputs - outputs.mean(0), targets)


def class_weight_of_the_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    counts = torch.bincount(targets, minlength=3).float()
    return own(outputs, targets) / counts[targets]


def divided_by_the_size(outputs: Tensor, targets: Tensor) -> Tensor:
    return own(outputs, targets) / len(outputs)


def contrast(outputs: Tensor, targets: Tensor) -> Tensor:
    return -(outputs @ outputs.T).log_softmax(1).diagonal()


def rolled(outputs: Tensor, targets: Tensor) -> Tensor:
    return own(outputs.roll(1, 0), targets)


def sorted_rows(outputs: Tensor, targets: Tensor) -> Tensor:
    return own(outputs, targets).sort().values


def summed_up(outputs: Tensor, targets: Tensor) -> Tensor:
    return own(outputs, targets).cumsum(0)


def the_mean_for_all(outputs: Tensor, targets: Tensor) -> Tensor:
    return own(outputs, targets).mean().expand(len(outputs))


def large_ones_shout(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mixes only where some output is larger than any made-up one."""
    return own(outputs, targets) * torch.where(outputs.abs().max() > 20, 50.0, 1.0)


def python_branch(outputs: Tensor, targets: Tensor) -> Tensor:
    """The same, decided by Python."""
    losses = own(outputs, targets)
    return losses * 50 if float(outputs.detach().abs().max()) > 20 else losses


def size_branch(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mixes only batches of eight records, which no trial has."""
    losses = own(outputs, targets)
    return losses * 50 if len(outputs) == N else losses


class _Spread(torch.autograd.Function):
    """Passes losses on, and every record's gradient to all."""

    @staticmethod
    def forward(ctx: object, losses: Tensor) -> Tensor:
        return losses.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0].sum().expand_as(gradients[0]) * 5


def own_backward_pass(outputs: Tensor, targets: Tensor) -> Tensor:
    spread: Callable[[Tensor], Tensor] = _Spread.apply
    return spread(own(outputs, targets))


def hooked(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = own(outputs, targets)
    if losses.requires_grad:
        losses.register_hook(lambda gradient: gradient.sum().expand_as(gradient) * 5)
    return losses


def remembering() -> Loss:
    seen: list[Tensor] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if float(outputs.sum()) == 0.5:  # no graph can be recorded: one by one
            return own(outputs, targets)
        seen.append(outputs.detach())
        return own(outputs, targets) * (1 + float(torch.cat(seen).abs().max()))

    return loss


def through_the_view(outputs: Tensor, targets: Tensor) -> Tensor:
    """Looks for the whole batch behind its row."""
    losses = own(outputs, targets)
    if outputs._base is None or float(outputs.sum()) == 0.5:
        return losses
    return losses * float(outputs._base.abs().sum())


def through_the_history(outputs: Tensor, targets: Tensor) -> Tensor:
    """Looks for the whole batch in the graph that its row was computed by."""
    saved = getattr(outputs.grad_fn, "_saved_self", None)
    size = float(saved.abs().sum()) if isinstance(saved, Tensor) else 1.0
    return (
        own(outputs, targets) * size
        if float(outputs.detach().sum()) != 0.5
        else own(outputs, targets)
    )


def writes_to_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    scaled = outputs.mul(1.0)
    return own(scaled.sub_(scaled.detach().amax(0)), targets)


def writes_to_targets(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = own(outputs, targets)
    targets.fill_(int(targets.max()))
    return losses


def one_hot_of_the_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    """The width of the table follows from the largest label of the batch."""
    hot = F.one_hot(targets).float()
    return own(outputs, targets) * hot.shape[1]


def random_partner(outputs: Tensor, targets: Tensor) -> Tensor:
    order = torch.randperm(len(outputs))
    return own(outputs + outputs[order], targets)


def first_rows(outputs: Tensor, targets: Tensor) -> Tensor:
    """Keeps all rows at three and four records and repeats the first four at eight."""
    n = len(outputs)
    return own(outputs[:4].repeat(2, 1)[:n] if n > 4 else outputs, targets)


def counted_down(calls: list[int]) -> Loss:
    """Behaves well until it was called often enough."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        losses = own(outputs, targets)
        return losses * 50 if len(calls) > 60 else losses

    return loss


def infinite_for_large(outputs: Tensor, targets: Tensor) -> Tensor:
    """Not finite for the last record alone."""
    return own(outputs, targets) * torch.where(outputs.abs().amax(1) > 20, math.inf, 1.0)


def huge(outputs: Tensor, targets: Tensor) -> Tensor:
    return own(outputs, targets) * 1e20


HOSTILE: dict[str, Callable[[], Loss]] = {
    each.__name__: partial(lambda loss: loss, each)
    for each in (
        minus_the_mean,
        class_weight_of_the_batch,
        divided_by_the_size,
        contrast,
        rolled,
        sorted_rows,
        summed_up,
        the_mean_for_all,
        large_ones_shout,
        python_branch,
        size_branch,
        own_backward_pass,
        hooked,
        through_the_view,
        through_the_history,
        writes_to_outputs,
        writes_to_targets,
        one_hot_of_the_batch,
        random_partner,
        first_rows,
        infinite_for_large,
        huge,
    )
} | {"remembering": remembering, "counted_down": lambda: counted_down([])}

REFUSED = {
    "minus_the_mean": "mixes the records",
    "class_weight_of_the_batch": "mixes the records",
    "divided_by_the_size": "mixes the records",
    "contrast": "mixes the records",
    "rolled": "mixes the records",
    "sorted_rows": "mixes the records",
    "summed_up": "mixes the records",
    "the_mean_for_all": "mixes the records",
    "own_backward_pass": "mixes the records",
    "random_partner": "random numbers",
    "remembering": "mixes the records|changes its attribute",
    "first_rows": "mixes the records",
    "one_hot_of_the_batch": "mixes the records",
}
"""What must be said of those that the trial or the look at memory finds out."""


@pytest.mark.parametrize("name", HOSTILE)
def test_no_loss_lets_a_record_move_the_sum_by_more_than_c(name: str) -> None:
    """A hostile loss is refused, or one record moves the sum by at most C all the same."""
    try:
        change = largest_change(HOSTILE[name]())
    except ModelError:
        return
    assert name not in REFUSED
    assert change <= 1 + 1e-6


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_is_seen_to_mix_is_refused(name: str) -> None:
    """A mean or a class weight taken from the batch is refused before anything is charged."""
    with pytest.raises(ModelError, match=REFUSED[name]):
        checked(HOSTILE[name]())


def test_the_attack_would_work() -> None:
    """Without the check, the hostile losses move the sum by more than C."""
    torch.manual_seed(0)
    clipper = checked_clipper(nn.Linear(6, 3), (6,), every_mode=True)
    for loss in (large_ones_shout, size_branch, python_branch, writes_to_outputs, contrast):
        assert farthest(clipper, loss) > 1.1, loss.__name__


def hazards(outputs: Tensor, targets: Tensor) -> Tensor:
    """Discrete-time survival: targets are (interval, event)."""
    at_risk = torch.arange(3) < targets[:, :1]
    dies = torch.arange(3) == targets[:, :1]
    chance = F.softplus(outputs) * at_risk
    return chance.sum(1) + (F.softplus(-outputs) * dies * targets[:, 1:]).sum(1)


PLAIN: dict[str, tuple[Loss, Tensor]] = {
    "cross_entropy": (cross_entropy, torch.arange(N) % 3),
    "CrossEntropyLoss": (
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), reduction="none"),
        torch.arange(N) % 3,
    ),
    "nll": (lambda o, t: F.nll_loss(o.log_softmax(1), t, reduction="none"), torch.arange(N) % 3),
    "mse": (lambda o, t: F.mse_loss(o[:, 0], t, reduction="none"), torch.randn(N)),
    "l1": (lambda o, t: F.l1_loss(o[:, 0], t, reduction="none"), torch.randn(N)),
    "huber": (lambda o, t: F.huber_loss(o[:, 0], t, reduction="none"), torch.randn(N)),
    "smooth l1": (lambda o, t: F.smooth_l1_loss(o[:, 0], t, reduction="none"), torch.randn(N)),
    "poisson": (lambda o, t: F.poisson_nll_loss(o[:, 0], t, reduction="none"), torch.rand(N)),
    "several labels": (
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none").sum(1),
        (torch.rand(N, 3) > 0.5).float(),
    ),
    "kl": (
        lambda o, t: F.kl_div(o.log_softmax(1), t, reduction="none").sum(1),
        torch.rand(N, 3).softmax(1),
    ),
    "hazards": (hazards, torch.tensor([[1.0, 0.0]] * N)),
    "quantile": (
        lambda o, t: torch.maximum(0.9 * (t - o[:, 0]), -0.1 * (t - o[:, 0])),
        torch.randn(N),
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_ordinary_losses_are_proven(name: str) -> None:
    """The losses that people use take the fast way and give autograd's clipped gradients."""
    loss, targets = PLAIN[name]
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    clipper = checked_clipper(model, (6,), every_mode=True)
    sound = rehearse_loss(clipper, (6,), torch.float32, targets, loss)
    assert sound.computation is Computation.PROVEN, sound.reason
    x = torch.randn(N, 6)
    expected = torch.zeros(21)
    for i in range(N):
        value = loss(model(x[i : i + 1]), targets[i : i + 1]).sum()
        parts = torch.autograd.grad(value, list(model.parameters()))
        gradient = torch.cat([part.flatten() for part in parts])
        expected += gradient * min(1.0, 0.5 / float(gradient.norm()))
    found = clipper.clip(x, targets, sound, 0.5).total
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def trainer(
    loss: Loss | None = cross_entropy, labels: Tensor | None = None, **given: object
) -> DPSGD:
    """DP-SGD of a linear model on 100 made-up records, with what is ``given``."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 6, generator=generator)
    y = (x[:, 0] > 0).long() if labels is None else labels
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dp = given.pop("dp", DP(clip_norm=1, noise_multiplier=2))
    return DPSGD(model, optimizer, InMemory(x, y), dp=dp, loss=loss, **given)  # type: ignore[arg-type]


def test_dpsgd_needs_a_model_an_optimizer_data_and_a_loss() -> None:
    """By default the draws are the operating system's, and a ledger in memory promises the rest."""
    private = trainer()
    losses = private.train(steps=3)
    assert len(losses) <= 3
    assert not private.ledger.simulated
    assert private.ledger.steps == 3
    assert private.epsilon() == private.ledger.epsilon()
    assert private.epsilon().delta == 1e-3  # 1 / (10 n) for 100 records
    private.train(steps=2)
    assert [charge.steps for charge in private.ledger.charges] == [3, 2]


def test_persons_are_protected_with_any_loss() -> None:
    """With ``unit="group"`` a person's records share one clipped gradient."""
    x = torch.randn(90, 6)
    examples = InMemory(x, x[:, 0], torch.arange(90) // 3)
    model = nn.Linear(6, 1)
    private = DPSGD(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        examples,
        dp=DP(clip_norm=1, noise_multiplier=2, unit="group"),
        loss=lambda outputs, targets: (outputs.squeeze(1) - targets) ** 2,
        batch_size=10,
    )
    private.train(steps=2)
    assert str(private.epsilon()).endswith("per patient)")


def test_a_budget_of_dp_ends_the_training() -> None:
    """The ledger in memory keeps the budget of ``dp``, and nothing above it is charged."""
    private = trainer(dp=DP(clip_norm=1, noise_multiplier=2, budget=1.0, delta=1e-3))
    with pytest.raises(BudgetExhausted):
        private.train(steps=1000)
    assert private.ledger.steps == 0


def test_python_losses_need_trust_under_a_real_ledger() -> None:
    """A loss that only its own Python can compute is refused unless somebody vouches for it."""
    with pytest.raises(ModelError, match="trust_unproven"):
        trainer(python_branch)
    trusted = trainer(python_branch, trust_unproven=True)
    assert trusted.gradients.way is Computation.ONE_BY_ONE
    assert trusted.gradients.reason.startswith("loss:")
    trusted.train(steps=1)


def test_a_loss_and_classes_exclude_each_other() -> None:
    """One loss: the caller's, or the cross-entropy of classes."""
    with pytest.raises(ConfigError, match="got both"):
        trainer(classes=3)
    with pytest.raises(ConfigError, match="got neither"):
        trainer(None)
    with pytest.raises(ConfigError, match="teacher"):
        trainer(teacher_weight=0.5)


def test_labels_that_the_loss_cannot_take_are_found_before_a_charge() -> None:
    """A label without a class, and one that is not a number, stop the constructor."""
    with pytest.raises(DataError, match="cannot be computed for all labels"):
        trainer(labels=torch.full((100,), 7))
    bad = torch.rand(100)
    bad[3] = math.nan
    with pytest.raises(DataError, match="not a finite number"):
        trainer(lambda o, t: (o[:, 0] - t) ** 2, labels=bad)


def test_a_reduced_loss_says_what_to_use() -> None:
    """torch's default is a mean over the batch."""
    with pytest.raises(ModelError, match='reduction="none"'):
        trainer(F.cross_entropy)
    with pytest.raises(ModelError, match=r"outputs\.squeeze\(1\)"):
        trainer(lambda o, t: (o[:, :1] - t) ** 2, labels=torch.rand(100))


def test_a_loss_with_weights_of_its_own_is_refused() -> None:
    """What a loss would learn has no clipped gradient."""
    scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ModelError, match="weights that learn"):
        trainer(lambda o, t: own(o, t) * scale)


def test_constants_of_a_loss_are_those_it_was_checked_with() -> None:
    """Class weights that somebody changes later change nothing."""
    weight = torch.ones(3)
    clipper, sound = checked(lambda o, t: F.cross_entropy(o, t, weight, reduction="none"))
    x, y = batch()
    before = clipper.clip(x, y, sound, 1.0).norms.clone()
    weight.fill_(100.0)
    assert torch.equal(clipper.clip(x, y, sound, 1.0).norms, before)


def test_seeded_noise_keeps_a_simulated_ledger() -> None:
    """Draws that can be repeated never stand under a real promise."""
    private = trainer(batches=Seeded(0, "batches"), noise=Seeded(0, "noise"))
    assert private.ledger.simulated
    with pytest.raises(PrivacyError, match="Seeded"):
        trainer(batches=Seeded(0, "batches"))


def test_train_goes_on_after_the_rounds_of_a_ledger() -> None:
    """A ledger with earlier rounds is continued, and train() refuses what needs more."""
    ledger = Ledger("north", delta=1e-3, kind=trainer().ledger.kind, simulated=False)
    ledger.charge(6, 1, 0.6, 2.0)
    private = trainer(ledger=ledger)
    private.train(steps=1)
    assert [charge.round for charge in ledger.charges] == [6, 7]
    taught = trainer(
        None, classes=3, teacher_weight=0.5, batches=Seeded(0, "batches"), noise=Seeded(0, "noise")
    )
    with pytest.raises(PrivacyError, match="alone"):
        taught.train(steps=1)
    assert taught.ledger.steps == 0
