"""The second line: a trial of what the first line proves, on made-up inputs and jittered weights.

    * ``mixing_layer``: does an example's output change if only the others do?
    * ``disagreement``: does each example have the same gradient norm alone and in the batch, and is
      the clipped sum the sum of the clipped gradients, each computed alone by the model itself?

A trial can miss what a proof cannot: no model is accepted for having passed it. It finds mistakes
in the proof's table, and names the layer where a model mixes its examples."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.draws import same_draws
from proxyfl.privacy.perexample.state import State
from proxyfl.privacy.perexample.ways import Way

SIZES = (2, 7)
"""Numbers of examples between which outputs are compared."""

SCALES = (1.0, 5.0)
"""Heights of the made-up inputs."""

BATCHES = (2, 5)
"""Sizes of the batches whose gradients are compared; the graph was recorded with neither."""

JITTER = 0.3
"""The share of its size by which a weight is moved."""

MadeUp = Callable[[int, float], Tensor]
"""(number of examples, scale) -> inputs"""


def disagreement(model: nn.Module, way: Way, made_up: MadeUp) -> str | None:
    """In what ``way`` differs from the model alone; None if in nothing.

    If it does in the model's own precision, float64 decides, where the model can be run so. A deep
    network in float32 has rows whose gradient jumps when the last digit of a number changes."""
    difference = _disagreement(model, way, made_up, tolerance=1e-3)
    if difference is None:
        return None
    try:
        with widened(model):
            return _disagreement(model, way, made_up, tolerance=1e-6)
    except (RuntimeError, TypeError):
        return difference


def _disagreement(model: nn.Module, way: Way, made_up: MadeUp, tolerance: float) -> str | None:
    clipper = Clipper(model)
    clipper.take(way)
    x = _alternating(made_up, max(BATCHES))
    if x.is_floating_point():
        x = x.to(params.trainable(model)[0].dtype)
    with jittered(model, JITTER):
        return _compare(clipper, x, tolerance)


def _alternating(made_up: MadeUp, n: int) -> Tensor:
    """Made-up inputs, every other one low and high."""
    x, high = (made_up(n, scale) for scale in SCALES)
    x[1::2] = high[1::2]
    return x


def _compare(clipper: Clipper, x: Tensor, tolerance: float) -> str | None:
    """Each example alone, beside the batches of its first two and of all."""
    state = State(clipper.model)
    norms: list[float] = []
    expected = [torch.zeros_like(view).double() for view in clipper.views.values()]
    for i in range(len(x)):
        gradient = _gradient(clipper, x[i : i + 1])
        state.restore_buffers()
        norms.append(_norm(gradient))
        if not math.isfinite(norms[i]):
            return None
        clip_norm = max(0.9 * norms[0], 1e-6)
        for total, part in zip(expected, gradient, strict=True):
            total.add_(part, alpha=min(1.0, clip_norm / max(norms[i], 1e-30)))
        if i + 1 in BATCHES:
            difference = _compare_batch(clipper, x[: i + 1], norms, expected, tolerance)
            state.restore_buffers()
            if difference is not None:
                return difference
    return None


def _compare_batch(
    clipper: Clipper, x: Tensor, norms: list[float], expected: list[Tensor], tolerance: float
) -> str | None:
    """The batch ``x`` clipped a little below the first example's norm, beside what is expected."""
    clip_norm = max(0.9 * norms[0], 1e-6)
    targets = torch.zeros(len(x), device=x.device)
    clipped = clipper.clip(x, targets, trial_loss, clip_norm)
    alone = clipped.norms.new_tensor(norms)
    limit = tolerance * max(norms) + 1e-6
    if len(clipped.norms) != len(x):
        return "an example's gradient is another in the batch than alone"
    if bool(((clipped.norms - alone).abs() > limit).any()):
        return "an example's gradient is another in the batch than alone"
    views = clipper.views.values()
    apart = [one - other for one, other in zip(expected, views, strict=True)]
    if _norm(apart) > tolerance * clip_norm * len(x):
        return "the clipped sum is not the sum of the clipped gradients"
    return None


def _gradient(clipper: Clipper, x: Tensor) -> Sequence[Tensor]:
    """The gradient of one example by plain autograd, parameter by parameter."""
    with torch.enable_grad():
        loss = trial_loss(_alone(clipper.model, x), x)[0]
        return torch.autograd.grad(loss, list(clipper.views), materialize_grads=True)


def _norm(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().norm()) ** 2 for part in parts))


def _alone(model: nn.Module, x: Tensor) -> Tensor:
    """The output for one example, or for two copies of it where the model cannot do with one row
    (``squeeze()`` drops it)."""
    try:
        alone: Tensor = model(x)
        if alone.dim() > 1:
            return alone
    except (RuntimeError, IndexError):
        pass
    twice: Tensor = model(torch.cat([x, x]))
    return twice


def trial_loss(logits: Tensor, _targets: Tensor) -> Tensor:
    """Cross-entropy towards the first class: needs no labels."""
    return -logits.flatten(1).log_softmax(1)[:, 0]


@contextmanager
def jittered(model: nn.Module, amount: float) -> Iterator[None]:
    """The model with every weight moved a little, and back to the bit: gates that start at zero
    open."""
    before = params.flatten(model)
    with torch.no_grad():
        for parameter in params.trainable(model):
            numbers = torch.arange(parameter.numel(), device=parameter.device)
            waves = torch.sin(numbers * 1.3 + 0.7)
            wave = waves.view_as(parameter).to(parameter.dtype)
            size = float(parameter.abs().mean()) + 0.1
            parameter.add_(wave, alpha=amount * size)
    try:
        yield
    finally:
        params.load_flat(model, before)


@contextmanager
def widened(model: nn.Module) -> Iterator[None]:
    """The model with parameters and buffers in float64, and back to the bit; they stay the same
    objects."""
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.data = tensor.data.double()
        yield
    finally:
        for tensor, data in zip(tensors, before, strict=True):
            tensor.data = data


def mixing_layer(model: nn.Module, made_up: MadeUp) -> str | None:
    """The innermost layer whose output for an example changes when only the others do, in words;
    None if there is none."""
    for jitter in (0.0, JITTER):
        with jittered(model, jitter):
            for n, scale in zip(SIZES, SCALES, strict=True):
                for kept in (0, n - 1):
                    layer = _exchanged(model, made_up, n, scale, kept)
                    if layer is not None:
                        return layer
    return None


def _exchanged(model: nn.Module, made_up: MadeUp, n: int, scale: float, kept: int) -> str | None:
    first = made_up(n, scale)
    second = made_up(n, scale * 1.7 + 0.2)
    second[kept] = first[kept]
    before = outputs(model, first)
    after = outputs(model, second)
    for layer, values in before.items():
        for one, other in zip(values, after.get(layer, []), strict=False):
            if one.shape != other.shape:
                continue
            limit = 1e-4 * float(one.abs().max().nan_to_num()) + 1e-5
            if not torch.allclose(one[kept], other[kept], rtol=1e-3, atol=limit, equal_nan=True):
                path, kind = layer
                return f"layer '{path}' ({kind})" if path else f"model {kind}"
    return None


def outputs(model: nn.Module, x: Tensor) -> dict[tuple[str, str], list[Tensor]]:
    """Each module's outputs with one row per example, innermost first; the same random draws every
    time."""
    seen: dict[tuple[str, str], list[Tensor]] = {}

    def note(path: str, kind: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if _has_rows(output, len(x)):
                value = output.detach().clone()
                seen.setdefault((path, kind), []).append(value.double())

        return hook

    hooks = []
    for path, module in model.named_modules():
        hook = note(path, type(module).__name__)
        hooks.append(module.register_forward_hook(hook))
    try:
        output(model, x)
    finally:
        for handle in hooks:
            handle.remove()
    return seen


def output(model: nn.Module, x: Tensor) -> tuple[Tensor | None, bool]:
    """The model's output, None if it has not one row per example, and whether it drew random
    numbers: the same ones every time."""
    with torch.no_grad(), same_draws() as drew:
        out = model(x)
        random = drew()
    rows = out if _has_rows(out, len(x)) else None
    return rows, random


def _has_rows(output: Any, n: int) -> bool:
    return isinstance(output, Tensor) and output.dim() > 0 and output.shape[0] == n
