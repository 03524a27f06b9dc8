"""The same sums whatever computes them: several threads, and a GPU where there is one."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from proxyfl.models import build
from proxyfl.privacy.perexample.clipper import Clipped, Clipper
from proxyfl.privacy.perexample.validation import checked_clipper
from tests.privacy.architectures import SOUND, cross_entropy


@pytest.fixture
def threads() -> Iterator[None]:
    """Four threads, and back to what it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def clipped(clipper: Clipper, x: Tensor, y: Tensor) -> Clipped:
    """A clipped sum of its own, not the buffer."""
    found = clipper.clip(x, y, cross_entropy, 0.1)
    return Clipped(found.total.clone(), found.loss, found.norms)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet18"])
def test_threads_change_nothing_but_rounding(name: str) -> None:
    """With four threads each record is within C, and the sum is that of one thread."""
    model = build(name, shape=(1, 16, 16), classes=3, seed=0)
    x = torch.randn(9, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    y = torch.arange(9) % 3
    clipper = Clipper(model)
    several = clipped(clipper, x, y)
    for i in range(9):
        alone = clipped(clipper, x[i : i + 1], y[i : i + 1])
        assert float(alone.total.double().norm()) <= 0.1 * (1 + 1e-6)
    torch.set_num_threads(1)
    torch.testing.assert_close(clipped(clipper, x, y).total, several.total, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize("name", ["MLP", "CNN", "ViT", "LSTM", "patch network, convolution"])
def test_a_gpu_gives_the_same_sum(name: str) -> None:
    """On a GPU the way is the same, and the sum is that of the CPU up to rounding."""
    entry = SOUND[name]
    torch.manual_seed(0)
    model = entry.make()
    x = torch.randn(6, *entry.shape)
    y = torch.arange(6) % 3
    expected = clipped(checked_clipper(model, entry.shape), x, y)
    model.cuda()
    clipper = checked_clipper(model, entry.shape)
    assert clipper.prepare(entry.shape).name == entry.expected
    found = clipped(clipper, x.cuda(), y.cuda())
    torch.testing.assert_close(found.total.cpu(), expected.total, rtol=1e-3, atol=1e-4)
    assert float(found.norms.max()) > 0
