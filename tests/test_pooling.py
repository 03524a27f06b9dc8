"""Quick pooling is torch's pooling, bit for bit."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl import models, pooling
from proxyfl.pooling import max_pool2d, with_quick_pooling
from proxyfl.privacy.perexample.clipper import Clipper

SHAPES = [(3, 6, 24, 24), (2, 1, 5, 7), (1, 15, 2, 2), (2, 20, 8, 9)]
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def both(x: Tensor, pool: object) -> tuple[Tensor, Tensor]:
    """A pooling's values and its gradient."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    result = pool(x)  # type: ignore[operator]
    at_output = torch.arange(result.numel(), dtype=x.dtype).view(result.shape)
    (gradient,) = torch.autograd.grad(result, x, at_output)
    return result.detach(), gradient


def numbers(kind: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers of which none, many or all are equal, or of which some are none."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if kind == "ties":
        return x.round()
    if kind == "one value":
        return torch.zeros(shape)
    if kind == "not a number":
        x.view(-1)[::5] = float("nan")
    if kind == "infinite":
        x.view(-1)[::3] = float("inf")
        x.view(-1)[1::7] = -float("inf")
    return x


@pytest.mark.parametrize("layout", LAYOUTS, ids=["channels first", "channels last"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["all", "ties", "one value", "not a number", "infinite"])
def test_values_gradients_and_ties_are_those_of_torch(
    kind: str, shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    """Also where numbers are equal, infinite or none, and where a side is odd."""
    x = numbers(kind, shape).contiguous(memory_format=layout)
    ours, our_gradient = both(x, pooling._Pool.apply)
    theirs, their_gradient = both(x, lambda x: F.max_pool2d(x, 2))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 2, "stride": 1},
        {"kernel_size": 2, "padding": 1},
        {"kernel_size": 2, "dilation": 2},
        {"kernel_size": 2, "ceil_mode": True},
        {"kernel_size": (2, 3)},
        {"kernel_size": [2, 2], "stride": []},
        {"kernel_size": 2},
    ],
    ids=str,
)
def test_other_poolings_are_torchs(options: dict[str, object]) -> None:
    """Windows of other sizes, steps and edges come out as they do from torch."""
    x = numbers("ties", (2, 3, 9, 11))
    theirs = F.max_pool2d(x, **options)  # type: ignore[arg-type]
    assert torch.equal(max_pool2d(x, **options), theirs)  # type: ignore[arg-type]


def test_a_batch_of_nothing_and_an_image_by_itself() -> None:
    """No images give no values, and one image needs no batch."""
    assert max_pool2d(torch.zeros(0, 3, 4, 4), 2).shape == (0, 3, 2, 2)
    assert max_pool2d(torch.zeros(3, 4, 4), 2).shape == (3, 2, 2)


def test_per_example_gradients_by_vmap() -> None:
    """A model with quick pooling can be differentiated example by example."""
    x = numbers("ties", (4, 2, 6, 6))

    def loss(image: Tensor) -> Tensor:
        return max_pool2d(image.unsqueeze(0), 2).square().sum()

    ours = torch.func.vmap(torch.func.grad(loss))(x)
    reference = x.clone().requires_grad_()
    F.max_pool2d(reference, 2).square().sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(ours, reference.grad)


def test_gradients_of_gradients_are_those_of_torch() -> None:
    """A private model with a penalty on its gradients can have quick pooling."""
    found = []
    for pool in (pooling._Pool.apply, lambda x: F.max_pool2d(x, 2)):
        x = numbers("ties", (2, 3, 6, 7)).requires_grad_()
        (gradient,) = torch.autograd.grad(pool(x.sin()).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), x)[0])
    assert torch.equal(*found)


def test_a_model_keeps_its_names_and_copies() -> None:
    """A model with quick pooling gives the bits that it gave before, and so does its copy."""
    plain = models.build("lenet5", shape=(1, 28, 28), classes=10, seed=0)
    x = numbers("all", (5, 1, 28, 28))
    before = plain(x)
    quick = with_quick_pooling(copy.deepcopy(plain))
    assert list(quick.state_dict()) == list(plain.state_dict())
    assert torch.equal(quick(x), before)
    copied = copy.deepcopy(quick)
    assert torch.equal(copied(x), before)
    layers = [layer for layer in copied.modules() if isinstance(layer, nn.MaxPool2d)]
    assert all(layer.forward.__self__ is layer for layer in layers)  # type: ignore[attr-defined]


def test_a_dp_step_pools_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proven proxy's clipped sum is the same bits with quick pooling and with torch's."""
    sums = []
    x = numbers("all", (6, 1, 28, 28))
    calls: list[bool] = []
    for is_quick in (True, False):

        def gains(x: Tensor, answer: bool = is_quick) -> bool:
            calls.append(answer)
            return answer

        monkeypatch.setattr(pooling, "_gains", gains)
        clipper = Clipper(models.build("lenet5", shape=(1, 28, 28), classes=10, seed=0))
        clipped = clipper.clip(x, torch.arange(6), cross_entropy, 1.0)
        sums.append(clipped.total.clone())
    assert set(calls) == {True, False}
    assert torch.equal(*sums)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each example."""
    return F.cross_entropy(logits, targets, reduction="none")
