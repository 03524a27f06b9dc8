"""Decides which losses may be trained with DP-SGD, and how: proof first, trial second.

A loss is a function (outputs, targets) -> (n,), one value per record. One that lets a record into
the loss of another bounds nothing by clipping. So a loss is treated as a model is:

    * its graph is recorded from made-up outputs and targets and proven to keep records apart
      (``proof``); what trains is the graph, with copies of the constants in the loss's code;
    * a loss that cannot be proven is computed for each record by itself: from the graph of a single
      record (``vmapped``), or by its own Python on a copy of one record (``one by one``), which
      must remember nothing (``state``) and needs the institution's word under a real ledger;
    * in either case it is tried on made-up records. A loss whose value or slope for a record
      changes with the other records, or with how many there are, is refused even where it would be
      sound record by record: a mean or a class weight taken from the batch is another loss there.

Guarantee: loss i, and its derivative, are a function of outputs i and targets i alone. Nothing
that the loss writes to reaches the batch. One by one, this holds for code that keeps nothing where
``state`` cannot look (the environment, a file, another module, the frames above it): that is what
the institution vouches for. Numbers that the loss's code was made with (class
weights, thresholds) are as public as the model: take none of them from the records.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl.errors import ModelError
from proxyfl.privacy.perexample.draws import same_draws
from proxyfl.privacy.perexample.gradients import Computation
from proxyfl.privacy.perexample.layers import quiet_vmap
from proxyfl.privacy.perexample.program import compile_graph
from proxyfl.privacy.perexample.proof import prove
from proxyfl.privacy.perexample.recording import Untraceable, first_line
from proxyfl.privacy.perexample.state import State
from proxyfl.privacy.perexample.step import Unproven
from proxyfl.privacy.perexample.tracing import trace
from proxyfl.privacy.perexample.ways import Loss, checked, of_one_example, own_backward

Pairs = Callable[[int], tuple[Tensor, Tensor]]
"""A number of records -> made-up outputs and targets."""

_SIZES = (2, 7)
"""Numbers of records that are tried; the graph was recorded with neither."""


@dataclass(frozen=True)
class CheckedLoss:
    """A loss whose row i depends on row i alone, how that is known, and why not by the proof."""

    name: str
    computation: Computation
    reason: str
    _compute: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per record."""
        return self._compute(outputs, targets)


def check_loss(loss: Loss, pairs: Pairs) -> CheckedLoss:
    """The fastest sound way to compute ``loss``; raises ``ModelError`` for one that looks at the
    batch, draws random numbers or learns something of its own."""
    name = _name(loss)
    model = _AsModel(loss)
    try:
        _refuse_dependence(name, loss, pairs)
        return _choose(name, model, loss, pairs)
    except ModelError:
        raise
    except Exception as problem:  # whatever the loss's own code raises
        raise ModelError(
            f"The loss {name} cannot be computed and differentiated for made-up records: "
            f"{first_line(problem)}. It is given the model's outputs and the targets of n records, "
            "and must return n values."
        ) from problem


class _AsModel(nn.Module):
    """A loss as a model of two inputs, so that it is recorded as one. Its tensors are constants."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self._hidden = [loss]  # in a list, which registers no module

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._hidden[0](outputs, targets)


def _name(loss: Any) -> str:
    inner = getattr(loss, "func", loss)  # of a functools.partial
    return str(getattr(inner, "__qualname__", type(loss).__name__))


def _refuse_dependence(name: str, loss: Loss, pairs: Pairs) -> None:
    """The trial, in the loss's own Python on made-up records."""
    for n in _SIZES:
        outputs, targets = pairs(n)
        with same_draws() as drew:
            result = loss(outputs.clone(), targets.clone())
            random = drew()
        _check_result(name, result, n)
        if random:
            raise ModelError(
                f"The loss {name} draws random numbers. A loss must be a function of outputs and "
                "targets; draw in the model (dropout) instead."
            )
        if result.requires_grad:
            raise ModelError(
                f"The loss {name} depends on weights that learn, which no clipped gradient would "
                "reach. Put them into the model, or use the optimizer's weight_decay."
            )
        together, slopes = _values(loss, outputs, targets)
        for i in range(n):
            alone, slope = _values(loss, outputs[i : i + 1], targets[i : i + 1])
            if not _alike(together[i], alone[0]) or not _alike(slopes[i], slope[0]):
                raise ModelError(
                    f"The loss {name} mixes the records of a batch: its value for one record "
                    "changes with the others, or with how many there are, so no per-example "
                    "privacy guarantee is possible. Take no mean, maximum or class weight from the "
                    "batch; class weights must be public constants."
                )


def _check_result(name: str, result: Any, n: int) -> None:
    if isinstance(result, Tensor) and result.shape == (n,) and result.is_floating_point():
        return
    got = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
    advice = "Return one value per record."
    if isinstance(result, Tensor) and result.dim() == 0:
        advice = (
            "A mean or sum over the batch is another number for every batch. Use "
            'reduction="none", such as functools.partial(cross_entropy, reduction="none").'
        )
    elif isinstance(result, Tensor) and result.shape == (n, n):
        advice = (
            "Outputs of shape (n, 1) and targets of shape (n,) compare every record with every "
            "other one. Use outputs.squeeze(1)."
        )
    elif isinstance(result, Tensor) and result.dim() > 1:
        advice = "Sum over the other dimensions, such as loss.flatten(1).sum(1)."
    raise ModelError(
        f"Expected one loss per record, shape ({n},), from {name} for {n} records, got {got}. "
        + advice
    )


def _values(loss: Loss, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The losses of some records, and the slope of each at its own outputs."""
    with torch.enable_grad(), same_draws():
        leaf = outputs.detach().clone().requires_grad_()
        losses = loss(leaf, targets.clone())
        checked(losses, len(outputs))
        if not losses.requires_grad:
            return losses.detach(), torch.zeros_like(leaf)
        (slopes,) = torch.autograd.grad(losses.sum(), leaf, materialize_grads=True)
    return losses.detach(), slopes


def _alike(one: Tensor, other: Tensor) -> bool:
    size = float(one.detach().abs().max().nan_to_num()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * size + 1e-6, equal_nan=True)


def _choose(name: str, model: _AsModel, loss: Loss, pairs: Pairs) -> CheckedLoss:
    outputs, targets = pairs(2)
    custom = own_backward(model, outputs.clone().requires_grad_(), targets)
    if custom is not None:
        reason = f"loss: {custom} has a backward pass of its own, which may do anything"
        return CheckedLoss(name, Computation.ONE_BY_ONE, reason, _one_by_one(model))
    try:
        recorded = trace(model, pairs)
        prove(recorded)
        graph = compile_graph(recorded)

        def proven(outputs: Tensor, targets: Tensor) -> Tensor:
            losses: Tensor = graph(len(outputs), outputs, targets)[0]
            return losses

        return CheckedLoss(name, Computation.PROVEN, "", proven)
    except (Untraceable, Unproven) as problem:
        reason = f"loss: {problem}"
    try:
        by_record = _vmapped(of_one_example(model, outputs, targets))
        by_record(outputs, targets)
        return CheckedLoss(name, Computation.VMAPPED, reason, by_record)
    except Exception as problem:
        why = f"{reason}; vmap: {first_line(problem)}"
        return CheckedLoss(name, Computation.ONE_BY_ONE, why, _one_by_one(model))


def _vmapped(recorded: Callable[..., Any]) -> Loss:
    """The graph of one record's loss, run for each record by itself."""

    def alone(output: Tensor, target: Tensor) -> Tensor:
        losses: Tensor = recorded(output.unsqueeze(0).clone(), target.unsqueeze(0).clone())
        return checked(losses, 1).sum()

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        with quiet_vmap():
            losses: Tensor = torch.func.vmap(alone)(outputs, targets)
        return losses

    return each


def _one_by_one(model: _AsModel) -> Loss:
    """The loss's own Python on copies of one record after the other, which share no memory and no
    history with the batch."""
    first: list[State] = []  # as it was before the first batch, which is a made-up one

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        state = State(model, deep=True)
        if not first:
            first.append(state)
        first[0].check_attributes()
        losses = []
        slopes = []
        for i in range(len(outputs)):
            with torch.enable_grad():
                leaf = outputs[i : i + 1].detach().clone().requires_grad_()
                loss = checked(model(leaf, targets[i : i + 1].clone()), 1)
                (slope,) = torch.autograd.grad(loss.sum(), leaf, materialize_grads=True)
            losses.append(loss.detach())
            slopes.append(slope.detach())
            state.check()
        known: Callable[..., Tensor] = _Known.apply
        return known(outputs, torch.cat(losses), torch.cat(slopes))

    return each


class _Known(torch.autograd.Function):
    """Losses whose slopes at the outputs are known."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, losses: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(slopes)
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        weights = gradients[0].view(-1, *[1] * (slopes.dim() - 1))
        return slopes * weights.to(slopes.dtype), None, None
