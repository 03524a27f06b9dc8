"""The second line: a trial of what the first line proves, on made-up inputs and jittered weights.

    * ``mixing_layer``: does an example's output change if only the others do?
    * ``disagreement``: does each example have the same gradient norm alone and in the batch, and is
      the clipped sum the sum of the clipped gradients, each computed alone by the model itself?

A trial can miss what a proof cannot: no model is accepted for having passed it. It finds mistakes
in the proof's table, and names the layer where a model mixes its examples."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl.privacy.clipping.clipper import Clipper
from proxyfl.privacy.clipping.state import State

SIZES = (2, 7)
"""Numbers of examples that are tried; neither is one that the graph was recorded with."""

SCALES = (1.0, 5.0)
"""Heights of the made-up inputs."""

MadeUp = Callable[[int, float], Tensor]
"""(number of examples, scale) -> inputs"""


def disagreement(clipper: Clipper, made_up: MadeUp) -> str | None:
    """In what the clipper differs from the model alone; None if in nothing."""
    for jitter in (0.0, 0.3):
        for n, scale in zip(SIZES, SCALES, strict=True):
            with jittered(clipper.model, jitter):
                found = _compare(clipper, made_up(n, scale))
            if found is not None:
                return found
    return None


def _compare(clipper: Clipper, x: Tensor) -> str | None:
    state = State(clipper.model)
    gradients = []
    for i in range(len(x)):
        gradients.append(_gradient(clipper, x[i : i + 1]))
        state.restore_buffers()
    norms = torch.stack([gradient.norm() for gradient in gradients])
    if not bool(norms.isfinite().all()):
        return None
    clip_norm = max(float(norms.median()), 1e-6)
    targets = torch.zeros(len(x), device=x.device)
    clipped = clipper.clip(x, targets, trial_loss, clip_norm)
    state.restore_buffers()
    scale = float(norms.max()) + 1e-6
    if not torch.allclose(clipped.norms, norms, rtol=1e-3, atol=1e-4 * scale):
        return "an example's gradient is another in the batch than alone"
    expected = torch.zeros_like(gradients[0])
    for gradient, norm in zip(gradients, norms, strict=True):
        expected += gradient * min(1.0, clip_norm / max(float(norm), 1e-30))
    total = clipped.total.double()
    if float((total - expected).norm()) > 1e-3 * clip_norm * len(x):
        return "the clipped sum is not the sum of the clipped gradients"
    return None


def _gradient(clipper: Clipper, x: Tensor) -> Tensor:
    """The gradient of one example by plain autograd, flat, in float64."""
    with torch.enable_grad():
        loss = trial_loss(_alone(clipper.model, x), x)[0]
        parts = torch.autograd.grad(
            loss, list(clipper.views), materialize_grads=True
        )
    return torch.cat([part.reshape(-1) for part in parts]).double()


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
    before = [p.detach().clone() for p in params.trainable(model)]
    with torch.no_grad():
        for parameter in params.trainable(model):
            numbers = torch.arange(parameter.numel(), device=parameter.device)
            wave = (
                torch.sin(numbers * 1.3 + 0.7)
                .view(parameter.shape)
                .to(parameter.dtype)
            )
            size = float(parameter.abs().mean()) + 0.1
            parameter.add_(wave, alpha=amount * size)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(
                params.trainable(model), before, strict=True
            ):
                parameter.copy_(value)


def mixing_layer(model: nn.Module, made_up: MadeUp) -> str | None:
    """The innermost layer whose output for an example changes when only the others do, in words;
    None if there is none."""
    for jitter in (0.0, 0.3):
        with jittered(model, jitter):
            for n, scale in zip(SIZES, SCALES, strict=True):
                for kept in (0, n - 1):
                    found = _exchanged(model, made_up, n, scale, kept)
                    if found is not None:
                        return found
    return None


def _exchanged(
    model: nn.Module, made_up: MadeUp, n: int, scale: float, kept: int
) -> str | None:
    first = made_up(n, scale)
    second = made_up(n, scale * 1.7 + 0.2)
    second[kept] = first[kept]
    before, after = outputs(model, first), outputs(model, second)
    for layer, values in before.items():
        for one, other in zip(values, after.get(layer, []), strict=False):
            if one.shape != other.shape:
                continue
            limit = 1e-4 * float(one.abs().max().nan_to_num()) + 1e-5
            if not torch.allclose(
                one[kept], other[kept], rtol=1e-3, atol=limit, equal_nan=True
            ):
                path, kind = layer
                return f"layer '{path}' ({kind})" if path else f"model {kind}"
    return None


def outputs(model: nn.Module, x: Tensor) -> dict[tuple[str, str], list[Tensor]]:
    """Each module's outputs with one row per example, innermost first; the same random draws every
    time."""
    seen: dict[tuple[str, str], list[Tensor]] = {}

    def record(path: str, kind: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if (
                isinstance(output, Tensor)
                and output.dim()
                and len(output) == len(x)
            ):
                value = output.detach().clone()
                seen.setdefault((path, kind), []).append(value.double())

        return hook

    hooks = [
        m.register_forward_hook(record(path, type(m).__name__))
        for path, m in model.named_modules()
    ]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
