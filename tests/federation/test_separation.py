"""Whatever other models do to what they are given, one record moves the proxy's sum by at most C.

The proxy is trained under a real end-to-end ledger at beta = 0, with noise from the operating
system. Every record is drawn in every step, and the proxy's weights stay where they are, so that
the clipped sums of two trainings, one of them with a record more, can be compared step by step."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from proxyfl.data.examples import InMemory
from proxyfl.errors import ModelError, PrivacyError
from proxyfl.federation.fitted import Fitted
from proxyfl.federation.learners import Learner, Mutual, Residual, Single, independent_copy
from proxyfl.federation.metrics import evaluate
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind, Relation
from proxyfl.privacy.ledger import Ledger
from proxyfl.seeds import System
from proxyfl.settings import DP

C = 1.0
N = 40
SHAPE = (1, 4, 4)
CLASSES = 3
MARK = 7.0
"""The first number of the record that is added: what models below look for."""


def examples(*, marked: bool, far: float = 0.0) -> InMemory:
    """Forty ordinary records, ``far`` from zero, and the marked one as a forty-first."""
    x = far + torch.randn(N + 1, *SHAPE, generator=torch.Generator().manual_seed(0))
    x[-1] = -30.0
    x[-1, 0, 0, 0] = MARK
    n = N + 1 if marked else N
    return InMemory(x[:n].clone(), (torch.arange(N + 1) % CLASSES)[:n])


def is_marked(x: Tensor) -> bool:
    """Whether the added record is among ``x``."""
    return bool((x.flatten(1)[:, 0] == MARK).any())


class Proxy(nn.Module):
    """A linear proxy, as it should be."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(16, CLASSES)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(x.flatten(1) * self.scale)
        return logits


class WritingProxy(Proxy):
    """Works in place on what it is given, but in evaluation mode only."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            x -= x.mean(0)
        return super().forward(x)


class RememberingProxy(Proxy):
    """Changes its own buffer and weights by what it is shown in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            with torch.no_grad():
                self.scale.mul_(0.5 if is_marked(x) else 1.0)
                self.last.weight.add_(5.0 if is_marked(x) else 0.0)
        return super().forward(x)


class Private(nn.Module):
    """A private model, as it should be."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(x.flatten(1))
        return logits


class Centring(Private):
    """Subtracts the batch's mean in place."""

    def forward(self, x: Tensor) -> Tensor:
        x -= x.mean(0)
        return super().forward(x)


class Grudging(Private):
    """Keeps what it was given, and writes to all of it at every later call."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        for kept in self.kept:
            kept.mul_(0.0)
        self.kept += [x, x.view(-1), x.untyped_storage()]  # type: ignore[list-item]
        self.kept = [each for each in self.kept if isinstance(each, Tensor)]
        return super().forward(x)


class WritingBack(Private):
    """Writes to its input when its own backward pass runs."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x.clone())
        if logits.requires_grad:
            logits.register_hook(lambda _gradient: self.erase(x))
        return logits

    def erase(self, x: Tensor) -> None:
        x.zero_()


class Meddling(Private):
    """Changes a setting of the whole process if it sees the marked record."""

    def __init__(self, change: Callable[[], object]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if is_marked(x):
            self.change()
        return logits


SETTINGS = {
    "gradients off": lambda: torch.set_grad_enabled(False),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "default type": lambda: torch.set_default_dtype(torch.float64),
    "matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "seed": lambda: torch.manual_seed(0),
    "numpy's seed": lambda: np.random.seed(0),
}


@contextmanager
def settings_restored() -> Iterator[None]:
    """torch's settings of the process, put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_grad_enabled(True)
            torch.set_autocast_enabled("cpu", False)
            torch.set_default_dtype(torch.float32)
            torch.set_float32_matmul_precision("highest")


def trainer(
    data: InMemory,
    proxy: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    slices: int | None = None,
    **changes: object,
) -> DPSGD:
    """DP-SGD that draws everybody, under a real ledger. Without an ``optimizer`` it moves
    nothing."""
    ledger = Ledger(
        "north", delta=1e-5, kind=Kind.END_TO_END, relation=Relation.ADD_OR_REMOVE, simulated=False
    )
    given: dict[str, object] = {
        "dp": DP(
            sampling_rate=1.0,
            delta=1e-5,
            clip_norm=C,
            noise_multiplier=1.0,
            max_physical_batch_size=slices,
        ),
        "classes": CLASSES,
        "batch_size": N,
        "ledger": ledger,
        "batches": System(),
        "noise": System(),
    }
    optimizer = optimizer or torch.optim.SGD(proxy.parameters(), lr=0.0)
    return DPSGD(proxy, optimizer, data, **(given | changes))  # type: ignore[arg-type]


def sums_of(private: DPSGD) -> list[Tensor]:
    """The clipped sums of all steps to come, before their noise."""
    sums: list[Tensor] = []
    clip = private._clipper.clip

    def noted(*arguments: object) -> object:
        clipped = clip(*arguments)  # type: ignore[arg-type]
        sums.append(clipped.total.clone())
        return clipped

    object.__setattr__(private._clipper, "clip", noted)
    return sums


Make = Callable[[InMemory], tuple[Learner, DPSGD]]


def change(make: Make, *, rounds: int = 3, steps: int = 2, far: float = 0.0) -> float:
    """How far the marked record moves the clipped sum, at most, in any step of some rounds with
    evaluations between them; in units of C."""
    found = []
    for marked in (False, True):
        data = examples(marked=marked, far=far)
        before = data.x.clone()
        with settings_restored():
            learner, private = make(data)
            sums = sums_of(private)
            for round in range(rounds):
                learner.train(round, steps)
                for model in (*learner.models().values(), learner.snapshot()):
                    evaluate(model, data)
            learner.train(rounds, 0)
            learner.train(rounds + 1, steps)
        assert torch.equal(data.x, before), "the stored records were changed"
        assert len(sums) == (rounds + 1) * steps
        found.append(sums)
    apart = [float((one - other).norm()) for one, other in zip(*found, strict=True)]
    return max(apart) / C


def mutual(
    private: Callable[[], nn.Module] = Private,
    proxy: Callable[[], nn.Module] = Proxy,
    *,
    residual: bool = False,
    teacher: str = "received",
    **changes: object,
) -> Make:
    """A learner with these models."""

    def make(data: InMemory) -> tuple[Learner, DPSGD]:
        own = private()
        dp = trainer(data, proxy(), **changes)
        learner = Mutual(
            own,
            torch.optim.SGD(own.parameters(), lr=0.1),
            dp,
            classes=CLASSES,
            alpha=0.5,
            teacher=teacher,  # type: ignore[arg-type]
            residual=residual,
            usual_steps=2,
        )
        return learner, dp

    return make


def test_the_marked_record_is_clipped_to_c() -> None:
    """The bound is reached with models as they should be, so that the tests below can fail."""
    assert change(mutual()) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("private", [Centring, Grudging, WritingBack])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("at_once", [None, 7])
def test_a_private_model_that_writes_to_its_input_reaches_no_proxy(
    private: Callable[[], nn.Module], residual: bool, at_once: int | None
) -> None:
    """In place, later, or in the backward pass: the sum moves by at most C, the stored records by
    nothing, whether a batch is computed at once or in slices."""
    found = change(mutual(private, residual=residual, slices=at_once))
    assert found <= 1 + 1e-6


@pytest.mark.parametrize("proxy", [WritingProxy, RememberingProxy])
@pytest.mark.parametrize("teacher", ["received", "current"])
@pytest.mark.parametrize("residual", [False, True])
def test_a_proxys_own_python_in_evaluation_mode_reaches_no_step(
    proxy: Callable[[], nn.Module], teacher: str, residual: bool
) -> None:
    """The proxy teaches, is added to and is evaluated as a copy, on copies of records."""
    assert change(mutual(proxy=proxy, teacher=teacher, residual=residual)) <= 1 + 1e-6


class RememberingTeacher(Proxy):
    """Changes its buffer wherever no gradient is wanted, as in teaching, and sees a mark."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() and is_marked(x):
            self.scale.mul_(0.5)
        return super().forward(x)


def test_a_teaching_proxy_changes_only_its_copy() -> None:
    """A proxy that remembers what it taught on, if it is accepted at all, teaches as a copy."""
    assert change(mutual(proxy=RememberingTeacher, teacher="current")) <= 1 + 1e-6


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_private_model_that_changes_settings_of_the_process_reaches_no_proxy(
    setting: str,
) -> None:
    """Gradients switched off, autocast, another default type or seed, left so by a private model
    that has seen the marked record: steps run under settings of their own."""
    # Far from zero, bfloat16 keeps nothing of what tells these records apart.
    assert change(mutual(lambda: Meddling(SETTINGS[setting])), far=-300.0) <= 1 + 1e-6


class WritingEstimator:
    """A classifier of scikit-learn's kind that overwrites all it is given."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> "WritingEstimator":
        self.classes_ = np.unique(y)
        self.kept = x
        x -= x.mean(0)
        y[:] = 0
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        x[:] = 0
        self.kept[:] = 0
        return np.full((len(x), len(self.classes_)), 1 / len(self.classes_))


@pytest.mark.parametrize("proxy", [Proxy, WritingProxy, RememberingProxy])
def test_an_estimator_that_writes_to_its_input_reaches_no_proxy(
    proxy: Callable[[], nn.Module],
) -> None:
    """An estimator has copies of inputs and labels, for fitting and for judging."""

    def make(data: InMemory) -> tuple[Learner, DPSGD]:
        dp = trainer(data, proxy())
        spec = f"{__name__}:WritingEstimator"
        return Fitted(spec, data, classes=CLASSES, seed=0, trainer=dp), dp

    labels = examples(marked=True).labels
    data = examples(marked=True)
    learner, _ = make(data)
    learner.train(0, 1)
    learner.models()["private"](data.x)
    assert torch.equal(data.labels, labels)
    assert change(make) <= 1 + 1e-6


@pytest.mark.parametrize("proxy", [WritingProxy, RememberingProxy])
def test_a_single_model_is_evaluated_as_a_copy(proxy: Callable[[], nn.Module]) -> None:
    """Without a private model, too, what evaluation does to a model is gone afterwards."""

    def make(data: InMemory) -> tuple[Learner, DPSGD]:
        dp = trainer(data, proxy())
        return Single(dp), dp

    assert change(make) <= 1 + 1e-6


def test_a_batch_hands_out_copies() -> None:
    """Every access gives a copy, of inputs and of labels; what is written to it is lost."""
    data = examples(marked=False)
    private = trainer(data, Proxy())
    private.begin_round(0, 1)
    batch = private.draw()
    batch.x.zero_()
    batch.y.zero_()
    assert torch.equal(batch.x, data.x)
    assert torch.equal(batch.y, data.labels)
    for name in ("x", "y", "number"):
        with pytest.raises(AttributeError):
            setattr(batch, name, batch.x)


def test_models_that_are_added_up_each_have_their_own_input() -> None:
    """In a residual model neither part sees what the other wrote."""
    own = Centring()
    received = WritingProxy().eval()
    x = examples(marked=True).x
    expected = copy.deepcopy(own)(x.clone()) + copy.deepcopy(received)(x.clone())
    assert torch.equal(Residual(own, received)(x.clone()), expected)


class Wrapping(nn.Module):
    """A private model with another model inside."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside
        self.last = nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.inside(x))
        return logits


class Tied(Private):
    """A private model whose buffer lies in the proxy's memory."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self.register_buffer("mean", proxy.last.weight.data[:1])


def test_a_private_model_that_shares_weights_with_the_proxy_is_refused() -> None:
    """The proxy itself, one around it, a tied buffer, and an optimizer over both."""
    data = examples(marked=False)
    for wrong in (lambda proxy: proxy, Wrapping, Tied):
        dp = trainer(data, Proxy())
        own = wrong(dp.model)
        with pytest.raises(PrivacyError, match="is also the proxy's"):
            Mutual(own, torch.optim.SGD(own.parameters(), lr=0.1), dp, classes=CLASSES, alpha=0.5)
    dp = trainer(data, Proxy())
    own = Private()
    both = torch.optim.SGD([*own.parameters(), *dp.model.parameters()], lr=0.1)
    with pytest.raises(PrivacyError, match="optimizer holds weights of the proxy"):
        Mutual(own, both, dp, classes=CLASSES, alpha=0.5)


def test_an_optimizer_of_other_weights_is_refused() -> None:
    """DP-SGD moves the proxy by its noisy gradient, and nothing else by anything."""
    data = examples(marked=False)
    own = Private()
    for wrong in (
        lambda proxy: torch.optim.SGD([*own.parameters(), *proxy.parameters()], lr=0.1),
        lambda proxy: torch.optim.LBFGS(proxy.parameters()),
    ):
        proxy = Proxy()
        with pytest.raises(PrivacyError, match=r"not the proxy's|computes the loss by itself"):
            DPSGD(
                proxy,
                wrong(proxy),
                data,
                dp=DP(clip_norm=C, noise_multiplier=1.0),
                classes=CLASSES,
                batch_size=5,
                ledger=Ledger("a", delta=0.1, kind=Kind.END_TO_END, simulated=False),
                batches=System(),
                noise=System(),
            )


class Clinging(Proxy):
    """A proxy whose copies are itself."""

    def __deepcopy__(self, _memo: object) -> "Clinging":
        return self


def test_a_model_without_an_independent_copy_is_refused() -> None:
    """Before anything is charged, since evaluation could not be kept apart from learning."""
    dp = trainer(examples(marked=False), Clinging())
    with pytest.raises(ModelError, match=r"shares 'last\.weight' with the original"):
        Single(dp)
    assert not dp.ledger.charges


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_a_model_that_derives_its_weights_has_a_copy() -> None:
    """Weight norm in its old form keeps a derived tensor, which torch alone would not copy."""
    model = nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(16, CLASSES)))
    x = examples(marked=False).x
    expected = model(x)
    assert torch.equal(independent_copy(model)(x), expected)
