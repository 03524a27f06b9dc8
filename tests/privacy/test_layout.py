"""Wide convolutions are computed with the channels last, and give the sums of the plain loop."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl.privacy.perexample import product, term
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.gradients import Computation

C = 0.5
SHAPE = (3, 12, 11)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each example."""
    return F.cross_entropy(logits, targets, reduction="none")


def network(dtype: torch.dtype, **options: int) -> nn.Module:
    """Two wide convolutions, the second with these options, and what they usually meet."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 40, 3, **options),
        nn.MaxPool2d(2),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(3),
    ).to(dtype)


def made(dtype: torch.dtype, **options: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, and seven records."""
    model = network(dtype, **options)
    x = torch.randn(7, *SHAPE, generator=torch.Generator().manual_seed(1)).to(dtype)
    model(x)
    return model, x, torch.arange(7) % 3


def plain_loop(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The clipped sum, one record after the other by autograd."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for i in range(len(x)):
        loss = cross_entropy(model(x[i : i + 1]), y[i : i + 1]).sum()
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradient = torch.cat([part.reshape(-1) for part in parts]).double()
        total += gradient * min(1.0, C / float(gradient.norm()))
    return total


OPTIONS: list[dict[str, int]] = [
    {},
    {"padding": 1},
    {"stride": 2, "padding": 2},
    {"dilation": 2},
    {"groups": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sum_in_float64_is_that_of_the_plain_loop(options: dict[str, int]) -> None:
    """Whatever the stride, padding, dilation or groups."""
    model, x, y = made(torch.float64, **options)
    clipper = Clipper(model)
    clipped = clipper.clip(x, y, cross_entropy, C)
    assert clipper.gradients.way is Computation.PROVEN
    torch.testing.assert_close(clipped.total, plain_loop(model, x, y), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kept", [True, False], ids=["gradients kept", "gradients in pieces"])
@pytest.mark.parametrize("wide", [False, True], ids=["seeded noise", "real noise"])
def test_sum_in_float32_is_that_of_the_plain_loop(
    monkeypatch: pytest.MonkeyPatch, wide: bool, kept: bool
) -> None:
    """Also where gradients are not kept, and where they are added up in float64 in pieces."""
    if not kept:
        monkeypatch.setattr(product, "KEPT_AT_MOST", 1)
        monkeypatch.setattr(product, "PIECE", 2**12)
    monkeypatch.setattr(term, "NEAR", 1000)
    model, x, y = made(torch.float32, padding=1)
    clipped = Clipper(model, wide=wide).clip(x, y, cross_entropy, C)
    assert clipped.total.dtype is (torch.float64 if wide else torch.float32)
    expected = plain_loop(model.double(), x.double(), y)
    torch.testing.assert_close(clipped.total.double(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("inputs", [3, 32])
def test_norms_by_gram_matrices_and_sums_in_float64(
    monkeypatch: pytest.MonkeyPatch, inputs: int, padding: int
) -> None:
    """Where no gradient is formed, the sum in float64 is one product, in pieces of the batch."""
    monkeypatch.setattr(product, "TRAFFIC", 10**9)
    monkeypatch.setattr(product, "PIECE", 2**14)
    calls = []
    contract = product.Product._contract_unfolded

    def noted(self: product.Product, c: Tensor, out: Tensor) -> None:
        calls.append(out.dtype)
        contract(self, c, out)

    monkeypatch.setattr(product.Product, "_contract_unfolded", noted)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(inputs, 32, 3, padding=padding), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3)
    )
    x = torch.randn(7, inputs, 8, 7, generator=torch.Generator().manual_seed(1))
    y = torch.arange(7) % 3
    model(x)
    clipped = Clipper(model, wide=True).clip(x, y, cross_entropy, C)
    assert calls == [torch.float64]
    expected = plain_loop(model.double(), x.double(), y)
    torch.testing.assert_close(clipped.total, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wide", [False, True], ids=["seeded noise", "real noise"])
def test_a_record_moves_the_sum_by_its_own_gradient(wide: bool) -> None:
    """One record more moves the sum by at most C; one that is no number moves nothing."""
    model, x, y = made(torch.float32)
    clipper = Clipper(model, wide=wide)
    without = clipper.clip(x[:-1], y[:-1], cross_entropy, C).total.clone()
    together = clipper.clip(x, y, cross_entropy, C).total.clone()
    assert float((together - without).double().norm()) <= C * (1 + 1e-4)
    broken = x.clone()
    broken[-1] = float("nan")
    apart = clipper.clip(broken, y, cross_entropy, C).total
    torch.testing.assert_close(apart, without, rtol=1e-3, atol=1e-6)


def test_persons_with_several_records() -> None:
    """The mean gradient of a person's records is clipped, as without wide convolutions."""
    model, x, y = made(torch.float64)
    sizes = torch.tensor([2, 1, 4])
    clipped = Clipper(model).clip(x, y, cross_entropy, C, sizes)
    total = torch.zeros_like(clipped.total)
    for start, size in zip([0, 2, 3], sizes.tolist(), strict=True):
        rows = slice(start, start + size)
        loss = cross_entropy(model(x[rows]), y[rows]).mean()
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradient = torch.cat([part.reshape(-1) for part in parts])
        total += gradient * min(1.0, C / float(gradient.norm()))
    torch.testing.assert_close(clipped.total, total, rtol=1e-9, atol=1e-11)


def test_channels_lie_last_where_there_are_many() -> None:
    """The network is computed in the layout that this is about."""
    model, x, _ = made(torch.float32)
    program = Clipper(model).prepare(SHAPE, torch.float32).program  # type: ignore[attr-defined]
    _, recorded = program.run(x)
    inputs = [use.inputs[0] for use in recorded]
    assert inputs[1].is_contiguous(memory_format=torch.channels_last)
    assert not inputs[1].is_contiguous()
