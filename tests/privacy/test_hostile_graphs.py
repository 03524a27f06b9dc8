"""Models made to slip past the recorder: what a graph keeps, is told, or draws for all examples."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl.errors import ModelError
from proxyfl.privacy.perexample.product import Product
from proxyfl.privacy.perexample.validation import checked_clipper
from proxyfl.settings import DP
from tests.privacy.architectures import Fn, lin
from tests.privacy.test_hostile_models import batch, change

pytestmark = pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning")


def as_a_factor(m: Fn, x: Tensor) -> Tensor:
    scaled = torch.addmm(torch.zeros(6), x, m.eye, alpha=len(x))
    return m.a(x + F.relu(scaled - 500))


def as_a_filling(m: Fn, x: Tensor) -> Tensor:
    place = (x[:, :1] > 50).long()
    filled = torch.zeros_like(x).scatter(1, place, len(x))
    return m.a(x + 10 * filled[:, 1:2])


def as_a_stride(m: Fn, x: Tensor) -> Tensor:
    spread = x.unfold(1, 1, len(x)).sum((1, 2)).unsqueeze(1)
    return m.a(x + F.relu(spread.abs() - 200))


@pytest.mark.parametrize("forward", [as_a_factor, as_a_filling, as_a_stride])
def test_the_number_of_examples_is_no_value(forward: Callable[[Fn, Tensor], Tensor]) -> None:
    """A graph that computes with the number of examples is not proven, though no trial shows it."""
    model = Fn(forward, a=lin(), eye=torch.eye(6))
    clipper = checked_clipper(model, (6,))
    x, y = batch(16)
    assert clipper.prepare((6,)).name != "one pass"
    assert change(clipper, 60 * x, y, 0) <= 1 + 1e-6


def kept_in_a_weight(m: Fn, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.calls.add_(1.0)
    return m.a(x * torch.where(m.calls.detach() % 40 < 30, 1.0, -1.0))


def kept_in_a_weights_memory(m: Fn, x: Tensor) -> Tensor:
    m.calls.data.view(1, 1).add_(1.0)
    return m.a(x * torch.where(m.calls.detach() % 40 < 30, 1.0, -1.0))


@pytest.mark.parametrize("forward", [kept_in_a_weight, kept_in_a_weights_memory])
def test_a_model_that_writes_to_its_weights_is_refused(
    forward: Callable[[Fn, Tensor], Tensor],
) -> None:
    """A weight that counts the passes would tell one slice from the next."""
    calls = nn.Parameter(torch.zeros(1), requires_grad=False)
    with pytest.raises(ModelError, match="'calls'"):
        checked_clipper(Fn(forward, a=lin(), calls=calls), (6,), dp=DP(max_physical_batch_size=1))


def kept_in_a_constant(m: Fn, x: Tensor) -> Tensor:
    count = torch.frombuffer(bytearray(4), dtype=torch.float32)
    count.add_(1.0)
    return m.a(x * torch.where(count % 40 < 30, 1.0, -1.0))


def test_a_graph_does_not_change_its_constants() -> None:
    """A constant that the model writes to is the same in every slice and every batch."""
    clipper = checked_clipper(
        Fn(kept_in_a_constant, a=lin()), (6,), dp=DP(max_physical_batch_size=1)
    )
    x, y = batch(60)
    assert clipper.prepare((6,)).name == "one pass"
    assert change(clipper, x, y, 0) <= 1 + 1e-6


def shared_sign(m: Fn, x: Tensor) -> Tensor:
    sign = 2 * torch.rand(6).round() - 1 if m.training else torch.ones(6)
    return m.a(x * sign)


def dropped_weights(m: Fn, x: Tensor) -> Tensor:
    return F.linear(x, F.dropout(m.a.weight, 0.5, m.training), m.a.bias)


def dropped_columns(m: Fn, x: Tensor) -> Tensor:
    columns = x.t().unsqueeze(0)
    return m.a(F.dropout1d(columns, 0.5, m.training).squeeze(0).t())


@pytest.mark.parametrize("forward", [shared_sign, dropped_weights, dropped_columns])
def test_slices_do_not_draw_for_all_of_their_examples(
    forward: Callable[[Fn, Tensor], Tensor],
) -> None:
    """A draw that all examples share is one in a whole batch; in slices each has its own."""
    model = Fn(forward, a=lin())
    assert checked_clipper(model, (6,)).prepare((6,)).name == "one pass"
    sliced = checked_clipper(model, (6,), dp=DP(max_physical_batch_size=4))
    assert sliced.prepare((6,)).name != "one pass"


def test_the_bound_of_a_contraction_holds_where_squares_underflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiny inputs and huge gradients, whose products cancel in one order of adding and not in
    another: what is added up is no longer than what was measured."""
    monkeypatch.setattr("proxyfl.privacy.perexample.product.KEPT_AT_MOST", 0)
    generator = torch.Generator().manual_seed(0)
    sizes = 1 + torch.rand(1, 64, 1, generator=generator)
    a = (1e-23 * sizes).repeat(1, 1, 4)
    signs = torch.tensor([1.0, -1.0]).repeat(32).view(1, 64, 1)
    g = 1e25 * signs / (1e23 * a[:, :, :1])

    def in_another_order(c: Tensor) -> Tensor:
        total = torch.zeros(1, 4)
        for start in (0, 1):
            for part in (c * g * a)[0, start::2]:
                total += part
        return total

    product = Product(
        torch.zeros(1, 4),
        a,
        g,
        64,
        unfold=lambda i, j: a[i:j].transpose(1, 2),
        outputs=lambda i, j: g[i:j].transpose(1, 2),
        contract=in_another_order,
    )
    norm = float(product.square_norms().sqrt())
    total = torch.empty(1, 4)
    product.weighted_sum(torch.ones(1), out=total)
    assert float(total.norm()) <= norm
