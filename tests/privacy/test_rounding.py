"""Norms in float32 are upper bounds: adversarial records and parameters, measured in float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from proxyfl import params
from proxyfl.privacy.perexample import product
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.norms import square_norms_of, upper_square_norms
from proxyfl.privacy.perexample.product import Product
from proxyfl.privacy.perexample.term import Lookup, total_square_norms

C = 0.5
N = 4


def contribution(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The largest norm, in C, of one example's summand: the clipped sum of the example alone, by
    the same float32 computation, measured in float64."""
    clipper = Clipper(model)
    found = 0.0
    for i in range(len(x)):
        total = clipper.clip(x[i : i + 1], y[i : i + 1], loss, C).total.double()
        found = max(found, float(total.norm()) / C)
    return found


def loss(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


class Differenced(nn.Module):
    """Outputs are differenced over positions: the Gram matrix cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(40, 30), nn.Linear(30, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x).diff(dim=1).mean(1))


class NormedOver(nn.Module):
    """Outputs are normalised over positions, which takes out what is common to all."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(40, 30), nn.Linear(30, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.out((h - h.mean(1, keepdim=True)).square().mean(1))


class Tokens(nn.Module):
    """An embedding whose positions have gradients of opposite signs."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.out = nn.Embedding(5, 12), nn.Linear(12, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.e(ids)
        return self.out(1e3 * (h[:, ::2].sum(1) - h[:, 1::2].sum(1)) + h[:, 0])


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(240, 3)), (6, 40)),
    "differenced": (Differenced, (6, 40)),
    "normed": (NormedOver, (6, 40)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv1d(6, 8, 3), nn.Flatten(), nn.Linear(304, 3)),
        (6, 40),
    ),
}


def adversarial(kind: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Records made to hurt: huge, constant, cancelling, far from zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, *shape, generator=generator)
    return {
        "plain": x,
        "huge": x * 1e6,
        "constant": torch.ones_like(x) * 3.3,
        "offset": x + 1e4,
        "cancelling": torch.cat([x, -x + 1e-4 * torch.randn(x.shape, generator=generator)], 2)[
            ..., : shape[-1]
        ],
        "one position": x * (torch.arange(shape[0]) == 1).view(-1, 1),
    }[kind]


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(["plain", "huge", "constant", "offset", "cancelling", "one position"]),
    st.sampled_from([1.0, 1e-3, 1e3]),
    st.integers(0, 5),
)
def test_no_record_exceeds_c_in_float32(name: str, kind: str, weights: float, seed: int) -> None:
    """Whatever the record and the parameters, an example's clipped gradient in float32 is at most
    C (1 + 1e-6)."""
    factory, shape = MODELS[name]
    torch.manual_seed(seed)
    model = factory()
    params.load_flat(model, params.flatten(model) * weights)
    y = torch.arange(N) % 3
    assert contribution(model, adversarial(kind, shape, seed), y) <= 1 + 1e-6


@pytest.mark.parametrize("weights", [1.0, 1e-3, 1e3])
@pytest.mark.parametrize("kind", ["plain", "huge", "constant", "offset", "cancelling"])
def test_gradients_that_are_not_kept_stay_within_c(
    kind: str, weights: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution's gradients that are formed for their norms and added up by the backend's own
    kernel are at most C as well, each alone and whatever the others are."""
    monkeypatch.setattr(product, "KEPT_AT_MOST", 0)
    monkeypatch.setattr(product, "TRAFFIC", 0)
    factory, shape = MODELS["convolution"]
    for seed in range(4):
        torch.manual_seed(seed)
        model = factory()
        params.load_flat(model, params.flatten(model) * weights)
        x, y = adversarial(kind, shape, seed), torch.arange(N) % 3
        assert contribution(model, x, y) <= 1 + 1e-6
        found = Clipper(model).clip(x, y, loss, C).total.double()
        alone = [Clipper(model).clip(x[i : i + 1], y[i : i + 1], loss, C).total for i in range(N)]
        apart = float((found - torch.stack(alone).double().sum(0)).norm())
        assert apart <= 1e-5 * C * N


@pytest.mark.parametrize("seed", range(5))
def test_embeddings_that_cancel(seed: int) -> None:
    """A token that is picked often, with gradients that cancel, is clipped by its sum."""
    torch.manual_seed(seed)
    ids = torch.randint(2, (N, 10))
    assert contribution(Tokens(), ids, torch.arange(N) % 3) <= 1 + 1e-6


@pytest.mark.parametrize("side", [100, 1024])
def test_a_constant_image_on_the_linear_proxy(side: int) -> None:
    """Long sums do not drift: a constant image of a million pixels stays within C."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(side * side, 3))
    x = torch.full((1, side, side), 0.7)
    assert contribution(model, x, torch.tensor([1])) <= 1 + 1e-6


@settings(max_examples=50)
@given(st.integers(1, 5000), st.sampled_from([1e-25, 1e-3, 1.0, 1e15]), st.integers(0, 99))
def test_square_norms_are_upper_bounds(numbers: int, scale: float, seed: int) -> None:
    """The float32 sum of squares is never below the one in float64, nor far above it."""
    rows = torch.randn(3, numbers, generator=torch.Generator().manual_seed(seed)) * scale
    exact = rows.double().square().sum(1)
    upper = upper_square_norms(rows)
    assert bool((upper >= exact).all())
    assert bool((upper <= exact * (1 + 3e-4) + 1e-30).all())


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 3000),
            st.sampled_from([1e-25, 1e-3, 1.0, 1e15]),
            st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 99),
)
def test_rows_squared_together_have_the_bounds_of_rows_squared_alone(
    kinds: list[tuple[int, float, torch.dtype]], seed: int
) -> None:
    """Matrices of different widths, sizes and types: each row's bound holds, and is its own."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [
        (torch.randn(3, numbers, generator=generator) * scale).to(dtype)
        for numbers, scale, dtype in kinds
    ]
    for block, upper in zip(blocks, square_norms_of(blocks), strict=True):
        assert bool((upper >= block.double().square().sum(1)).all())
        torch.testing.assert_close(upper, upper_square_norms(block), rtol=1e-14, atol=0)


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, 1e6])
def test_products_that_cancel_are_formed(offset: float) -> None:
    """Where the Gram way would cancel, the norm still covers what the weighted sum adds up."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(N, 6, 64, generator=generator) + offset
    g = torch.randn(N, 6, 48, generator=generator)
    g -= g.mean(1, keepdim=True)
    term = Product(torch.empty(48, 64), a, g, 6)
    assert term.prefers_gram
    norms = term.square_norms().sqrt()
    for i in range(N):
        out = torch.empty(48, 64)
        term.weighted_sum(torch.eye(N)[i], out)
        assert float(out.double().norm()) <= float(norms[i])
    exact = torch.einsum("ntp,ntd->npd", g.double(), a.double()).flatten(1).norm(dim=1)
    if offset < 1e4:
        assert norms.tolist() == pytest.approx(exact.tolist(), rel=2e-3)


def test_a_lookup_adds_up_before_the_norm() -> None:
    """Picks of the same row add up: the norm is that of the dense gradient."""
    ids = torch.tensor([[1, 1, 0, 1], [2, 2, 2, 2]])
    g = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    term = Lookup(torch.empty(3, 5), ids, g)
    dense = term.per_example().double().flatten(1).norm(dim=1)
    squares = total_square_norms([term], torch.zeros(2))
    assert squares.sqrt().tolist() == pytest.approx(dense.tolist(), rel=1e-4)
    assert float(squares[1]) == pytest.approx(float(g[1].sum(0).norm() ** 2), rel=1e-4)
