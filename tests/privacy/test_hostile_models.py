"""Models and records made to slip past the proof: what one of them moves must stay below C."""

import math
from collections import deque
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from proxyfl.errors import ModelError
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.product import Product
from proxyfl.privacy.perexample.validation import checked_clipper
from tests.privacy.architectures import Fn, cross_entropy, lin

pytestmark = pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning")


def batch(n: int) -> tuple[Tensor, Tensor]:
    """``n`` ordinary records of six numbers, and their labels."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 6, generator=generator)
    return x, torch.arange(n) % 3


def change(clipper: Clipper, x: Tensor, y: Tensor, removed: int) -> float:
    """How far the sum at C = 1 moves without record ``removed``; buffers stay as they were."""
    others = torch.arange(len(x)) != removed
    before = {name: buffer.clone() for name, buffer in clipper.model.named_buffers()}
    torch.manual_seed(0)
    whole = clipper.clip(x.clone(), y.clone(), cross_entropy, 1.0).total.double()
    for name, buffer in clipper.model.named_buffers():
        buffer.copy_(before[name])
    torch.manual_seed(0)
    rest = clipper.clip(x[others], y[others], cross_entropy, 1.0).total.double()
    return float((whole - rest).norm())


def with_a_bad_record(n: int = 8) -> tuple[Tensor, Tensor]:
    """A batch whose last record has no finite gradient."""
    x, y = batch(n)
    x[-1] = math.inf
    return x, y


def scaled_in_place(m: Fn, x: Tensor) -> Tensor:
    return m.a(x.mul_(3.0))


def scaled_in_place_one_by_one(m: Fn, x: Tensor) -> Tensor:
    if float(x.sum()) == 0.5:
        x = x + 1
    return m.a(x.mul_(3.0))


@pytest.mark.parametrize("forward", [scaled_in_place, scaled_in_place_one_by_one])
def test_a_bad_record_is_dropped_alone_if_the_model_writes_to_its_input(
    forward: Callable[[Fn, Tensor], Tensor],
) -> None:
    """A record without a finite gradient moves nothing, though the model changes its input."""
    clipper = checked_clipper(Fn(forward, a=lin()), (6,))
    x, y = with_a_bad_record()
    assert change(clipper, x, y, len(x) - 1) <= 1 + 1e-6


def test_clipping_leaves_the_batch_as_it_was() -> None:
    """A model that writes to its input does not write to the caller's batch."""
    for forward in (scaled_in_place, scaled_in_place_one_by_one):
        clipper = checked_clipper(Fn(forward, a=lin()), (6,))
        x, y = batch(8)
        before = x.clone()
        clipper.clip(x, y, cross_entropy, 1.0)
        assert torch.equal(x, before)


def spectral() -> Clipper:
    torch.manual_seed(0)
    first = parametrizations.spectral_norm(lin(6, 5))
    return checked_clipper(nn.Sequential(first, nn.Tanh(), lin(5, 3)).train(), (6,))


def test_a_bad_record_does_not_advance_the_power_iteration() -> None:
    """Spectral norm's buffers are the same after a batch with and without a bad record."""
    x, y = with_a_bad_record()
    one, other = spectral(), spectral()
    one.clip(x, y, cross_entropy, 1.0)
    other.clip(x[:-1], y[:-1], cross_entropy, 1.0)
    for a, b in zip(one.model.buffers(), other.model.buffers(), strict=True):
        assert torch.equal(a, b)


def test_an_empty_batch_advances_the_power_iteration() -> None:
    """Spectral norm's buffers do not say whether a batch was empty."""
    x, y = batch(1)
    one, other = spectral(), spectral()
    one.clip(x, y, cross_entropy, 1.0)
    other.clip(x[:0], y[:0], cross_entropy, 1.0)
    for a, b in zip(one.model.buffers(), other.model.buffers(), strict=True):
        assert torch.equal(a, b)


def fragile(m: Fn, x: Tensor) -> Tensor:
    """A record of size 1e30 has a gradient only if dropout takes its first number."""
    return m.a(F.dropout(x, 0.5))


def test_a_bad_record_does_not_redraw_the_masks_of_others() -> None:
    """Records keep their dropout masks, whether or not another one has to be dropped."""
    torch.manual_seed(0)
    clipper = checked_clipper(Fn(fragile, a=lin()).train(), (6,))
    x, y = with_a_bad_record(9)
    assert change(clipper, x, y, len(x) - 1) <= 1e-6


def shared_memory(m: Fn, x: Tensor) -> Tensor:
    marks = torch.zeros(1, 6, dtype=x.dtype).expand(len(x), 6)
    return m.a(x + marks.masked_fill_(x > 50, 100.0))


def test_a_write_into_a_spread_constant_is_not_proven() -> None:
    """All rows of an expanded constant are one piece of memory: one record would write to all."""
    x, y = batch(8)
    x[-1] = 60.0
    try:
        clipper = checked_clipper(Fn(shared_memory, a=lin()), (6,))
    except ModelError:
        return
    assert change(clipper, x, y, len(x) - 1) <= 1 + 1e-6


def cut_and_dealt_out(m: Fn, x: Tensor) -> Tensor:
    n = len(x)
    first = x[:8].repeat_interleave(2, 0).reshape(n, 2, -1)
    return m.a(first.sum(1).mean(1, keepdim=True).expand(n, 6))


def last_rows(m: Fn, x: Tensor) -> Tensor:
    n = len(x)
    first = x[-8:].repeat_interleave(2, 0).reshape(n, 2, -1)
    return m.a(first.sum(1).mean(1, keepdim=True).expand(n, 6))


@pytest.mark.parametrize("forward", [cut_and_dealt_out, last_rows])
def test_a_cut_that_is_longer_than_the_recordings_is_a_cut(
    forward: Callable[[Fn, Tensor], Tensor],
) -> None:
    """x[:8] keeps the whole batch at three and four records and cuts it at sixteen."""
    clipper = checked_clipper(Fn(forward, a=lin()), (6,))
    x, y = batch(16)
    assert clipper.prepare((6,)).name != "one pass"
    assert change(clipper, x, y, 3) <= 1 + 1e-6


def test_a_model_with_a_generator_of_its_own_is_refused() -> None:
    """Its draws are not those of the operating system, so a record more shifts known masks."""

    def forward(m: Fn, x: Tensor) -> Tensor:
        return m.a(x * torch.rand(x.shape, generator=m.source))

    source = torch.Generator().manual_seed(1)
    with pytest.raises(ModelError):
        checked_clipper(Fn(forward, a=lin(), source=source), (6,))


@pytest.mark.parametrize("kind", ["python", "numpy"])
def test_a_model_that_draws_outside_of_torch_is_refused(kind: str) -> None:
    """Python's and numpy's generators are seeded by whom it may concern."""
    import random

    import numpy as np

    def forward(m: Fn, x: Tensor) -> Tensor:
        drawn = random.random() if kind == "python" else np.random.rand()
        if float(x.sum()) == 0.5 or drawn < 1e-9:
            x = x + 1
        return m.a(x)

    with pytest.raises(ModelError, match="torch's random numbers"):
        checked_clipper(Fn(forward, a=lin()), (6,))


class Notes:
    """A plain object that remembers."""

    def __init__(self) -> None:
        self.seen: Tensor | None = None


@pytest.mark.parametrize("memory", [deque(maxlen=9), Notes()])
def test_memory_in_other_containers_is_refused(memory: object) -> None:
    """A model that remembers in a deque or in an object of its own is refused."""

    def forward(m: Fn, x: Tensor) -> Tensor:
        if float(x.sum()) == 0.5:  # no graph can be recorded: one by one
            x = x + 1
        if isinstance(m.memory, deque):
            m.memory.append(x.detach())
        else:
            m.memory.seen = x.detach()
        return m.a(x)

    with pytest.raises(ModelError, match="memory"):
        checked_clipper(Fn(forward, a=lin(), memory=memory), (6,))


def test_memory_as_it_was_found_is_not_proven() -> None:
    """An empty tensor holds what the last record left there."""

    def forward(m: Fn, x: Tensor) -> Tensor:
        return m.a(x + torch.empty(6) * 0)

    try:
        clipper = checked_clipper(Fn(forward, a=lin()), (6,))
    except ModelError:
        return
    assert clipper.prepare((6,)).name != "one pass"


def test_a_cancelling_record_does_not_change_the_norms_of_others() -> None:
    """Whether a Gram matrix is exact enough is decided for each record by itself."""
    generator = torch.Generator().manual_seed(0)
    a = 1 + 1e-3 * torch.randn(9, 4, 64, generator=generator)
    a[-1] = 1.0
    g = torch.randn(9, 1, 64, generator=generator) * torch.tensor([1.0, -1, 1, -1]).view(1, 4, 1)
    weight = torch.zeros(64, 64)
    together = Product(weight, a, g, 4)
    apart = Product(weight, a[:-1], g[:-1], 4)
    norms, expected = together.square_norms()[:-1], apart.square_norms()
    torch.testing.assert_close(norms, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("positions", [1, 4, 100])
def test_a_dropped_record_leaves_the_sum_of_others(bad: float, positions: int) -> None:
    """Zeros stand for a dropped record's gradient, whichever way the product goes."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, positions, 16, generator=generator)
    g = torch.randn(5, positions, 16, generator=generator)
    a[2] = bad
    kept = torch.arange(5) != 2
    weight = torch.zeros(16, 16)
    product = Product(weight, a, g, positions)
    product.square_norms()
    product.drop(~kept)
    found, expected = torch.empty(16, 16), torch.empty(16, 16)
    product.weighted_sum(kept.float(), out=found)
    Product(weight, a[kept], g[kept], positions).weighted_sum(torch.ones(4), out=expected)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("positions", [1, 4])
def test_a_wide_sum_moves_by_the_record_alone(positions: int) -> None:
    """In float64 a sum of 4,000 gradients moves by what is removed, in float32 by more or less."""
    generator = torch.Generator().manual_seed(0)
    g = (1 - 1e-3 * torch.rand(4000, 1, 1, generator=generator)) / positions
    inputs = torch.ones(4000, positions, 1)
    product = Product(torch.zeros(1, 1), inputs, g.expand(-1, positions, 1), positions)
    contribution = g.sum(2).flatten().double() * positions
    errors = {}
    for dtype in (torch.float64, torch.float32):
        whole = _sum_without(product, None, dtype)
        errors[dtype] = 0.0
        for removed in range(0, 4000, 400):
            moved = whole - _sum_without(product, removed, dtype)
            error = abs(moved - float(contribution[removed]))
            errors[dtype] = max(errors[dtype], error)
    assert errors[torch.float64] <= 1e-6
    assert errors[torch.float32] > 1e-5


def _sum_without(product: Product, removed: int | None, dtype: torch.dtype) -> float:
    kept = torch.arange(4000) != (-1 if removed is None else removed)
    rest = Product(product.parameter, product.a[kept], product.g[kept], product.positions)
    rest.square_norms()
    out = torch.empty(1, 1, dtype=dtype)
    rest.weighted_sum(torch.ones(int(kept.sum())), out=out)
    return float(out)


def test_real_noise_goes_on_wide_sums() -> None:
    """Every way of a wide clipper gives the sums of an ordinary one, in float64."""
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    table = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3))
    x, y = batch(8)
    images = torch.randn(8, 1, 8, 8)
    for model, inputs in ((conv, images), (table, x.abs().long()), (lin(), x)):
        wide = Clipper(model, wide=True).clip(inputs, y, cross_entropy, 0.1).total
        usual = Clipper(model).clip(inputs, y, cross_entropy, 0.1).total
        assert wide.dtype == torch.float64
        torch.testing.assert_close(wide, usual.double(), rtol=1e-4, atol=1e-6)
