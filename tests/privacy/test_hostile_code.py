"""Losses whose code remembers, peeks or reckons across records, beyond ``test_hostile_losses``.

Each is refused, or one record moves the clipped sum by at most C. Two keep their memory where
nobody can look for it (the environment, another module): they need somebody's word.
"""

import os
import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl.errors import ModelError
from proxyfl.privacy.guarantee import Computation

from .test_hostile_losses import Loss, N, checked, largest_change, own, trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning")

_SEEN: list[Tensor] = []
_LOCAL = threading.local()


def global_memory(o: Tensor, t: Tensor) -> Tensor:
    """Scales by the largest output that it ever saw, which it keeps in a global list."""
    _SEEN.append(o.detach().abs().max())
    return own(o, t) * (1 + torch.stack(_SEEN).max())


def default_memory(o: Tensor, t: Tensor, seen: list[float] = []) -> Tensor:  # noqa: B006  # the attack
    """The same in a default argument."""
    seen.append(float(o.detach().abs().max()))
    return own(o, t) * (1 + max(seen))


def attribute_memory(o: Tensor, t: Tensor) -> Tensor:
    """The same as an attribute of the function."""
    about = vars(attribute_memory)
    about["largest"] = max(about.get("largest", 0.0), float(o.detach().abs().max()))
    return own(o, t) * (1 + about["largest"])


def thread_memory(o: Tensor, t: Tensor) -> Tensor:
    """The same in a thread's own storage."""
    _LOCAL.largest = max(getattr(_LOCAL, "largest", 0.0), float(o.detach().abs().max()))
    return own(o, t) * (1 + float(_LOCAL.largest))


class _Scaled:
    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, o: Tensor, t: Tensor) -> Tensor:
        self.scale = max(self.scale, float(o.detach().abs().max()))
        return own(o, t) * self.scale


class _Centred(nn.Module):
    """Takes away a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, o: Tensor, t: Tensor) -> Tensor:
        mean = self.get_buffer("mean")
        mean.mul_(0.9).add_(0.1 * o.detach().mean(0))
        return own(o - mean, t)


class _Normed(nn.Module):
    """Batch statistics by a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, affine=False)

    def forward(self, o: Tensor, t: Tensor) -> Tensor:
        return own(self.norm(o), t)


class _Shouting(torch.Tensor):
    """A class of tensors of its own."""


def write_behind(o: Tensor, t: Tensor) -> Tensor:
    """Writes to the outputs where autograd does not see it."""
    o.data.mul_(0).add_(1)
    return own(o, t)


def write_to_weights(o: Tensor, t: Tensor) -> Tensor:
    """Finds the model's weights in the history of its outputs, and changes them."""
    for node, _ in o.grad_fn.next_functions if o.grad_fn is not None else ():
        weight = getattr(node, "variable", None)
        if weight is not None:
            weight.data.mul_(1.5)
    return own(o, t)


def hook_on_outputs(o: Tensor, t: Tensor) -> Tensor:
    """Gives every record the sum of all gradients."""
    if o.requires_grad:
        o.register_hook(lambda gradient: gradient.sum(0, keepdim=True).expand_as(gradient) * 5)
    return own(o, t)


def longer_at_eight(o: Tensor, t: Tensor) -> Tensor:
    """One value too many, for a batch of a size that no trial has."""
    losses = own(o, t)
    return torch.cat([losses, losses.sum()[None]]) if len(o) == N else losses


def partner_by_python(o: Tensor, t: Tensor) -> Tensor:
    """A partner from a generator that torch does not know."""
    order = list(range(len(o)))
    random.shuffle(order)
    return own(o + o[order], t)


def partner_by_the_system(o: Tensor, t: Tensor) -> Tensor:
    """A partner from one that nobody can replay."""
    order = sorted(range(len(o)), key=lambda _: os.urandom(4))
    return own(o + o[order], t)


def scaled_by_the_clock(o: Tensor, t: Tensor) -> Tensor:
    return own(o, t) * (1 + time.perf_counter() % 1)


def gate(o: Tensor, t: Tensor) -> Tensor:
    """Mixes from the first record on that is larger than any made-up one."""
    return own(o, t) * (1 + F.relu(o.abs() - 20).amax(1).cumsum(0))


def below_the_tolerance(o: Tensor, t: Tensor) -> Tensor:
    """Mixes by less than the trial can tell from rounding."""
    return own(o, t) * (1 + 1e-5 * o.abs().sum())


def slope_of_all(o: Tensor, t: Tensor) -> Tensor:
    """Adds the gradient of the batch's mean loss, by torch.func."""

    def mean(outputs: Tensor) -> Tensor:
        return F.cross_entropy(outputs, t)

    return own(o, t) + torch.func.grad(mean)(o).sum() * o.sum(1)


def mapped(o: Tensor, t: Tensor) -> Tensor:
    """Each record by vmap, with the sum of all in its loss."""

    def one(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output[None], target[None]) + 0.01 * o.sum()

    return torch.func.vmap(one)(o, t)


HOSTILE: dict[str, Callable[[], Loss]] = {
    each.__name__: lambda each=each: each
    for each in (
        global_memory,
        default_memory,
        attribute_memory,
        thread_memory,
        write_behind,
        write_to_weights,
        hook_on_outputs,
        longer_at_eight,
        partner_by_python,
        partner_by_the_system,
        scaled_by_the_clock,
        gate,
        below_the_tolerance,
        slope_of_all,
        mapped,
    )
}
HOSTILE |= {"an object's state": _Scaled, "a running mean": _Centred, "batch statistics": _Normed}

ACROSS: dict[str, Loss] = {
    "batch norm": lambda o, t: own(F.batch_norm(o, None, None, training=True), t),
    "layer norm of columns": lambda o, t: own(F.layer_norm(o.T, (len(o),)).T, t),
    "numpy": lambda o, t: own(o, t) * float(1 + np.abs(o.detach().numpy()).max()),
    "detached": lambda o, t: own(o, t) * (1 + o.detach().abs().amax()),
    "neighbours in memory": lambda o, t: own(o.clone().as_strided((len(o), 3), (0, 1)), t),
    "flipped targets": lambda o, t: own(o, t.flip(0)),
    "distances": lambda o, t: own(o, t) + torch.cdist(o, o).sum(1),
    "einsum": lambda o, t: own(o, t) * torch.einsum("ij,kj->i", o, o),
    "counts": lambda o, t: own(o, t) * torch.zeros(3).index_add(0, t, torch.ones(len(t)))[t],
    "distinct labels": lambda o, t: own(o, t) * len(t.unique()),
    "quantiles": lambda o, t: own(o, t) * (o > o.quantile(0.5)).float().sum(1),
    "cummax": lambda o, t: own(o.cummax(0).values, t),
    "fourier": lambda o, t: own(torch.fft.fft(o, dim=0).real, t),
    "a shared norm": lambda o, t: own(o / o.norm(), t),
    "a shared norm of losses": lambda o, t: own(o, t) / own(o, t).detach().norm(),
    "compiled": lambda o, t: torch.compile(lambda a, b: own(a - a.mean(0), b), backend="eager")(
        o, t
    ),
    "another class": lambda o, t: (own(o, t) * (1 + o.detach().abs().amax())).as_subclass(
        _Shouting
    ),
}
"""Arithmetic across the batch, each by another operation."""


@pytest.mark.parametrize("name", HOSTILE)
def test_code_that_remembers_or_peeks_moves_nothing_beyond_c(name: str) -> None:
    """A hostile loss is refused, or one record moves the sum by at most C all the same."""
    try:
        change = largest_change(HOSTILE[name]())
    except ModelError:
        return
    assert change <= 1 + 1e-6


@pytest.mark.parametrize("name", ACROSS)
def test_arithmetic_across_the_batch_is_refused(name: str) -> None:
    """Whatever the operation is, a loss that takes something from the batch is refused."""
    with pytest.raises(ModelError, match=r"mixes the records|made-up records"):
        checked(ACROSS[name])


RESULTS: dict[str, Loss] = {
    "whole numbers": lambda o, t: (own(o, t) * 10).round().int(),
    "complex numbers": lambda o, t: own(o, t).to(torch.complex64),
    "a list": lambda o, t: [own(o, t)],  # type: ignore[dict-item,return-value]
    "nothing": lambda o, t: None,  # type: ignore[dict-item,return-value]
    "a column": lambda o, t: own(o, t)[:, None],
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_that_is_no_loss_is_refused(name: str) -> None:
    """A result of another kind or shape is refused in the words of what was expected."""
    with pytest.raises(ModelError, match="Expected one loss per record"):
        checked(RESULTS[name])


def test_one_record_without_a_number_is_left_out_alone() -> None:
    """A loss that is NaN for a record drops this record, and nothing else of the batch."""

    def loss(o: Tensor, t: Tensor) -> Tensor:
        return own(o, t) * torch.where(o.abs().amax(1) > 20, torch.nan, 1.0)

    clipper, sound = checked(loss)
    x = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
    x[-1] = -600.0
    y = torch.arange(N) % 3
    with_it = clipper.clip(x.clone(), y, sound, 1.0).total
    without = clipper.clip(x[:-1].clone(), y[:-1], sound, 1.0).total
    torch.testing.assert_close(with_it, without)


def in_the_environment(o: Tensor, t: Tensor) -> Tensor:
    """Keeps what it saw in an environment variable."""
    largest = max(float(os.environ.get("LARGEST", "0")), float(o.detach().abs().max()))
    os.environ["LARGEST"] = str(largest)
    return own(o, t) * (1 + largest)


def in_another_module(o: Tensor, t: Tensor) -> Tensor:
    """Keeps it as an attribute of torch."""
    about = vars(torch)
    about["_largest"] = max(about.get("_largest", 0.0), float(o.detach().abs().max()))
    return own(o, t) * (1 + about["_largest"])


@pytest.mark.parametrize("loss", [in_the_environment, in_another_module])
def test_memory_that_nobody_can_look_for_needs_somebodys_word(
    loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never proven; under a real ledger it is refused before a charge unless vouched for."""
    monkeypatch.setenv("LARGEST", "0")
    monkeypatch.setattr(torch, "_largest", 0.0, raising=False)
    _, sound = checked(loss)
    assert sound.computation is Computation.ONE_BY_ONE
    with pytest.raises(ModelError, match="trust_unproven"):
        trainer(loss)
