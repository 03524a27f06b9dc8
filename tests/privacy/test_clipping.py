"""Clipped sums against a plain loop, against Opacus, and against the stated sensitivity."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn

from proxyfl import params
from proxyfl.errors import ModelError
from proxyfl.losses import CrossEntropy, blended_targets, cross_entropy
from proxyfl.privacy.perexample import product
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.validation import checked_clipper
from proxyfl.settings import DP


def loss(logits: Tensor, y: Tensor) -> Tensor:
    """Plain cross-entropy, one value per example."""
    return F.cross_entropy(logits, y, reduction="none")


def plain_loop(model: nn.Module, x: Tensor, y: Tensor, clip_norm: float) -> Tensor:
    """The definition, written out: each example alone, clipped, added."""
    total = torch.zeros_like(params.flatten(model))
    for i in range(len(x)):
        grads = torch.autograd.grad(
            loss(model(x[i : i + 1]), y[i : i + 1]).sum(),
            params.trainable(model),
            materialize_grads=True,
        )
        flat = torch.cat([g.reshape(-1) for g in grads])
        total += flat * min(1.0, clip_norm / float(flat.norm()))
    return total


class Pooled(nn.Module):
    """Averages over positions, so that sequence layers can end in logits."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Tied(nn.Module):
    """One linear layer used twice: its two gradients must add up before the norm is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.last = (nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.shared(torch.tanh(self.shared(self.first(x))))))


class TiedEmbedding(nn.Module):
    """An embedding whose weight is also the output layer's, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.tokens(ids).mean(1))


class Scaled(nn.Module):
    """A parameter that no layer owns, acting between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.scale


class Functional(nn.Module):
    """A layer's weight used behind the layer's back."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + F.linear(x.square(), self.fc.weight)


class InPlace(nn.Module):
    """In-place activations after the layers, as torchvision's models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu_())


def frozen_first() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].weight.requires_grad_(False)
    return model


IMAGE, VECTOR, SEQUENCE, IDS = (2, 8, 8), (6,), (5, 6), (5,)

MODELS = {
    "linear": (lambda: nn.Linear(6, 3), VECTOR),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)), VECTOR),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3), Pooled()),
        SEQUENCE,
    ),
    "conv2d": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 3, 2, bias=False),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        IMAGE,
    ),
    "conv2d-strange": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
            nn.Flatten(),
            nn.LazyLinear(3),
        ),
        IMAGE,
    ),
    "conv2d-grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, groups=2, padding="same"), nn.Flatten(), nn.Linear(256, 3)
        ),
        IMAGE,
    ),
    "conv2d-circular": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(256, 3)
        ),
        IMAGE,
    ),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(5, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
        SEQUENCE,
    ),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(1, 2, 2, stride=2), nn.Flatten(), nn.Linear(16, 3)),
        (1, 4, 4, 4),
    ),
    "group-norm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
        ),
        IMAGE,
    ),
    "layer-norm": (
        lambda: nn.Sequential(nn.LayerNorm([5, 6]), nn.LayerNorm(6), nn.Linear(6, 3), Pooled()),
        SEQUENCE,
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3), Pooled()), IDS),
    "embedding-padded": (
        lambda: nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Linear(4, 3), Pooled()),
        IDS,
    ),
    "tied": (Tied, VECTOR),
    "tied-embedding": (TiedEmbedding, IDS),
    "frozen": (frozen_first, VECTOR),
    "in-place": (InPlace, VECTOR),
    "prelu": (lambda: nn.Sequential(nn.Linear(6, 5), nn.PReLU(5), nn.Linear(5, 3)), VECTOR),
    "transposed-conv": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 2, 2), nn.Flatten(), nn.Linear(162, 3)),
        IMAGE,
    ),
    "own-parameter": (Scaled, VECTOR),
}


def build(name: str, n: int, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    factory, shape = MODELS[name]
    x = (
        torch.randint(7, (n, *shape))
        if shape == IDS
        else torch.randn(n, *shape, dtype=torch.float64)
    )
    model = factory()
    # lazy layers take their shape
    model(torch.zeros(2, *shape, dtype=torch.long if shape == IDS else torch.float32))
    return model.double(), x, torch.randint(3, (n,))


@pytest.mark.parametrize("n", [0, 1, 13])
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_plain_loop(name: str, n: int) -> None:
    """For every kind of layer and any batch size the clipped sum is that of the definition."""
    model, x, y = build(name, n)
    for clip_norm in (0.05, 1.0, math.inf):
        found = Clipper(model).clip(x, y, loss, clip_norm).total
        torch.testing.assert_close(found, plain_loop(model, x, y, clip_norm), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # Opacus's own
@pytest.mark.parametrize(
    "name",
    [
        "linear",
        "mlp",
        "sequence",
        "conv2d",
        "conv2d-grouped",
        "conv1d",
        "conv3d",
        "group-norm",
        "layer-norm",
        "embedding",
    ],
)
def test_equals_opacus(name: str) -> None:
    """Opacus's per-example gradients, clipped and added, are the same sum."""
    model, x, y = build(name, 9)
    oracle = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    loss(oracle(x), y).sum().backward()
    samples = torch.cat([p.grad_sample.flatten(1) for p in oracle.parameters()], dim=1)
    expected = ((0.3 / samples.norm(dim=1)).clamp(max=1).unsqueeze(1) * samples).sum(0)
    torch.testing.assert_close(
        Clipper(model).clip(x, y, loss, 0.3).total, expected, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("way", ["gram", "kept", "formed twice"])
def test_every_way_to_a_norm_agrees(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gram matrices, kept gradients and gradients formed in pieces give the same sum for a
    convolution."""
    monkeypatch.setattr(product, "TRAFFIC", math.inf if way == "gram" else 0)
    monkeypatch.setattr(product, "KEPT_AT_MOST", 2**26 if way == "kept" else 0)
    monkeypatch.setattr(product, "PIECE", 300)
    for name in ("conv2d", "conv2d-strange", "sequence"):
        model, x, y = build(name, 7)
        found = Clipper(model).clip(x, y, loss, 0.3).total
        torch.testing.assert_close(found, plain_loop(model, x, y, 0.3), rtol=1e-9, atol=1e-12)


@settings(max_examples=40)
@given(
    st.integers(0, 2**31),
    st.floats(0.01, 10),
    st.sampled_from(["mlp", "conv2d", "group-norm", "embedding", "tied"]),
)
def test_a_neighbouring_dataset_differs_by_at_most_c(
    seed: int, clip_norm: float, name: str
) -> None:
    """Adding one record, however extreme, moves the sum by at most C; so does a whole clipped
    gradient alone."""
    model, x, y = build(name, 6, seed)
    x = (
        x
        if name == "embedding"
        else x * torch.logspace(-3, 3, 6, dtype=torch.float64).view(-1, *[1] * (x.dim() - 1))
    )
    clipper = Clipper(model)
    with_all = clipper.clip(x, y, loss, clip_norm).total.clone()
    for i in range(6):
        rest = [j for j in range(6) if j != i]
        without = clipper.clip(x[rest], y[rest], loss, clip_norm).total.clone()
        assert float((with_all - without).norm()) <= clip_norm * (1 + 1e-9)


@pytest.mark.parametrize("name", ["mlp", "conv2d", "group-norm", "embedding", "tied"])
@pytest.mark.parametrize(("clip_norm", "gamma"), [(0.01, 0.01), (1.0, 1e-30), (10.0, 50.0)])
def test_normalized_gradients_keep_to_c(name: str, clip_norm: float, gamma: float) -> None:
    """With ``normalize`` one more record, tiny or huge, moves the sum by at most C, whatever
    ``normalize_gamma`` is. Tiny gradients are scaled up, which plain clipping does not do."""
    model, x, y = build(name, 6)
    if name != "embedding":
        x = x * torch.logspace(-3, 3, 6, dtype=torch.float64).view(-1, *[1] * (x.dim() - 1))
    clipper = Clipper(model, dp=DP(normalize=True, normalize_gamma=gamma))
    with_all = clipper.clip(x, y, loss, clip_norm).total.clone()
    for i in range(6):
        rest = [j for j in range(6) if j != i]
        without = clipper.clip(x[rest], y[rest], loss, clip_norm).total.clone()
        assert float((with_all - without).norm()) <= clip_norm * (1 + 1e-9)
        alone = clipper.clip(x[i : i + 1], y[i : i + 1], loss, clip_norm)
        norm = float(alone.norms)
        expected = clip_norm * norm / (norm + gamma)
        assert float(alone.total.norm()) == pytest.approx(expected, rel=1e-6)


def test_a_normalized_gradient_of_half_precision_stays_finite() -> None:
    """A factor that float16 cannot hold is cut, and the sum stays within C."""
    model = nn.Sequential(nn.Linear(6, 3)).half()
    x = torch.full((4, 6), 1e-4, dtype=torch.float16)
    y = torch.tensor([0, 1, 2, 0])
    total = Clipper(model, dp=DP(normalize=True)).clip(x, y, loss, 2000.0).total
    assert bool(total.isfinite().all())
    assert float(total.double().norm()) <= 4 * 2000.0


def test_single_precision_never_exceeds_c() -> None:
    """In float32 the clipped gradient of one large example still has norm at most C."""
    model, x, y = build("conv2d", 1)
    total = Clipper(model.float()).clip(x.float() * 100, y, loss, 0.7).total
    assert 0.69 < float(total.double().norm()) <= 0.7 * (1 + 1e-6)


def test_a_gradient_that_is_not_finite_contributes_nothing() -> None:
    """An example whose gradient overflows is left out; the others are untouched."""
    model, x, y = build("mlp", 5)
    expected = plain_loop(model, x[1:], y[1:], 1.0)
    x[0] = math.inf
    torch.testing.assert_close(
        Clipper(model).clip(x, y, loss, 1.0).total, expected, rtol=1e-9, atol=1e-12
    )


def test_parameters_used_behind_a_layers_back_are_found() -> None:
    """A weight that is also used outside of its layer's call is seen in the graph: both uses add
    up."""
    torch.manual_seed(0)
    model, x, y = Functional(), torch.randn(5, 6), torch.randint(3, (5,))
    clipper = checked_clipper(model, (6,))
    assert clipper.prepare((6,)).name == "one pass"
    torch.testing.assert_close(clipper.clip(x, y, loss, 0.3).total, plain_loop(model, x, y, 0.3))


def test_a_recurrent_layer_unrolls() -> None:
    """A recurrent layer, whose weights are used at every step, gives the sum of the definition."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[0][:, -1])

    torch.manual_seed(0)
    model, x, y = Recurrent(), torch.randn(4, 5, 6), torch.randint(3, (4,))
    clipper = Clipper(model)
    found = clipper.clip(x, y, loss, 0.3).total
    assert clipper.prepare((5, 6)).name == "one pass"
    torch.testing.assert_close(found, plain_loop(model, x, y, 0.3))


def test_input_changed_in_place_is_refused() -> None:
    """A layer's input that is overwritten afterwards would falsify its gradient: a clear error
    instead."""

    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            y = self.a(x)
            x.mul_(2)
            return self.b(y + x)

    with pytest.raises(ModelError, match="in place"):
        Clipper(Overwrites()).clip(torch.randn(3, 6), torch.zeros(3, dtype=torch.long), loss, 1.0)


class Centred(nn.Module):
    """Mixes examples without being a BatchNorm."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (
            nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
            r"layer '1' is a BatchNorm1d.*GroupNorm",
        ),
        (
            nn.Sequential(nn.Linear(6, 4), Centred(), nn.Linear(4, 3)),
            r"layer '1' \(Centred\) mixes",
        ),
        (nn.Sequential(nn.Flatten()), "no trainable"),
    ],
)
def test_models_that_mix_examples_are_refused_by_name(model: nn.Module, named: str) -> None:
    """BatchNorm, and anything else that mixes examples, is refused with the layer's name."""
    with pytest.raises(ModelError, match=named):
        checked_clipper(model, (6,))


def test_dropout_is_allowed() -> None:
    """Dropout draws per example and is no mixing."""
    checked_clipper(nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3)), (6,))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("spoilt", [None, math.inf, math.nan])
def test_the_closed_form_clips_alike(normalize: bool, spoilt: float | None) -> None:
    """With the gradient of our own loss in closed form the sum has the same bits as by autograd,
    also beside an example that is not finite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3))
    clipper = checked_clipper(model, (3, 4), dp=DP(normalize=normalize))
    x = torch.randn(9, 3, 4)
    if spoilt is not None:
        x[4, 1, 1] = spoilt
    targets = blended_targets(torch.arange(9) % 3, 3)
    by_autograd = clipper.clip(x, targets, cross_entropy, 0.2)
    expected = by_autograd.total.clone()
    found = clipper.clip(x, targets, CrossEntropy(), 0.2)
    assert torch.equal(found.total, expected)
    assert torch.equal(found.norms, by_autograd.norms)
    assert found.loss == by_autograd.loss
    assert len(found.norms) == (9 if spoilt is None else 8)


def test_an_output_for_too_few_examples_is_refused_by_the_closed_form() -> None:
    """Logits of another number of examples than came in are no losses of theirs."""
    clipper = Clipper(nn.Linear(4, 3))
    x = torch.randn(6, 4)
    targets = blended_targets(torch.arange(3), 3)
    with pytest.raises((ModelError, RuntimeError)):
        clipper.clip(x, targets, CrossEntropy(), 1.0)


@pytest.mark.parametrize("side", [3, 9])
def test_gradients_are_formed_in_either_order(side: int) -> None:
    """A convolution with fewer positions than inputs of a kernel, and one with more: both are the
    plain loop's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten())
    model.append(nn.Linear(3 * side * side, 4)).double()
    x = torch.randn(5, 2, side, side, dtype=torch.float64)
    y = torch.arange(5) % 4
    way = checked_clipper(model, tuple(x.shape[1:]), dtype=x.dtype)
    found = way.clip(x, y, loss, 0.1).total
    torch.testing.assert_close(found, plain_loop(model, x, y, 0.1), rtol=1e-10, atol=1e-12)
    term = product.Product(model[0].weight, x, x, side * side)
    assert term._by_input == (side == 9)
