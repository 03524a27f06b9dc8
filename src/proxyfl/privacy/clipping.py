r"""The sum of per-example gradients, each clipped to norm C, in one backward pass (paper, Eq. 7,
first line).

    g_i <- g_i / max(1, |g_i| / C)        |g_i| over all trainable parameters together

Guarantees:
    * every example's contribution has norm at most C, up to floating-point rounding, for which
      ``_SLACK`` leaves room;
    * adding or removing one example changes the sum by at most C, as long as the model treats
      examples one by one (``validation`` refuses those that do not) and the loss of example i
      depends on row i alone;
    * an example whose gradient is not finite contributes nothing;
    * an empty batch gives zeros.

Three ways, found automatically, fastest first: a rule per layer (``layers``); for a layer without a
rule, per-example gradients of that layer alone (torch.func); for a model whose parameters are used
outside of its layers' calls, one example after the other."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from proxyfl import params
from proxyfl.errors import ModelError
from proxyfl.privacy.layers import RULES, Materialised, Term

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, targets) -> one loss per example; row i must depend on row i alone."""

_SLACK = 16
"""Units of the last place by which a clipped gradient is made shorter, so that rounding cannot
carry it past C."""


@dataclass(frozen=True)
class Clipped:
    """What one batch gives: the sum of clipped gradients (flat), the loss summed, and each norm
    before clipping."""

    total: Tensor
    loss: float
    norms: Tensor


class Clipper:
    """Clipped gradient sums of one model. Holds the flat buffer that ``Clipped.total`` points
    into."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._flat = torch.zeros_like(params.flatten(model))
        self._views: dict[Tensor, Tensor] = dict(
            zip(params.trainable(model), params.split(model, self._flat), strict=True)
        )
        self._units = list(_units(model))
        self._one_by_one = False

    @property
    def views(self) -> dict[Tensor, Tensor]:
        """For each trainable parameter its part of the flat buffer, in the parameter's shape."""
        return self._views

    def clip(self, x: Tensor, targets: Tensor, loss: Loss, clip_norm: float) -> Clipped:
        """The clipped sum over the batch. Overwrites the buffer of the previous call."""
        if len(x) == 0:
            self._flat.zero_()
            return Clipped(self._flat, 0.0, self._flat.new_empty(0))
        total_loss, terms = self._per_example_terms(x, targets, loss)
        with torch.no_grad():
            norms = sum_of(term.square_norms() for term in terms).sqrt()
            finite = norms.isfinite()
            if bool(finite.all()):
                self._add_up(terms, norms, clip_norm)
                return Clipped(self._flat, total_loss, norms)
        return self.clip(x[finite], targets[finite], loss, clip_norm)

    def _add_up(self, terms: list[Term], norms: Tensor, clip_norm: float) -> None:
        """Eq. (7): sum_i g_i / max(1, |g_i| / C)."""
        limits = torch.finfo(norms.dtype)
        c = (clip_norm / (norms * (1 + _SLACK * limits.eps)).clamp(min=limits.tiny)).clamp(max=1)
        for term in terms:
            term.weighted_sum(c, out=self._views[term.parameter])

    def _per_example_terms(
        self, x: Tensor, targets: Tensor, loss: Loss
    ) -> tuple[float, list[Term]]:
        if self._one_by_one:
            return self._loop(x, targets, loss)
        calls: list[_Call] = []
        with _recording(self._units, calls):
            losses = _checked(loss(self.model(x), targets), len(x))
        if {p for call in calls for p in call.parameters} != set(self._views):
            self._fall_back()
            return self._loop(x, targets, loss)
        gradients = torch.autograd.grad(losses.sum(), [call.edge for call in calls])
        with torch.no_grad():
            terms = [
                term for call, g in zip(calls, gradients, strict=True) for term in call.terms(g)
            ]
            return float(losses.detach().sum()), _merge_shared(terms)

    def _fall_back(self) -> None:
        warnings.warn(
            f"{type(self.model).__name__} uses parameters outside of its layers' calls: gradients "
            f"are now computed one "
            "example after the other, which is right but slow. Let every parameter act through "
            "nn.Linear, nn.Conv2d, "
            "nn.GroupNorm, nn.LayerNorm or nn.Embedding to avoid it.",
            stacklevel=4,
        )
        self._one_by_one = True

    def go_one_by_one(self) -> None:
        """Compute every gradient alone from now on (``validation`` found that the fast way would
        miss something)."""
        if not self._one_by_one:
            self._fall_back()

    def _loop(self, x: Tensor, targets: Tensor, loss: Loss) -> tuple[float, list[Term]]:
        rows: list[tuple[Tensor, ...]] = []
        total = 0.0
        parameters = list(self._views)
        for i in range(len(x)):
            losses = _checked(loss(self.model(x[i : i + 1]), targets[i : i + 1]), 1)
            rows.append(torch.autograd.grad(losses.sum(), parameters, materialize_grads=True))
            total += float(losses.detach())
        return total, [
            Materialised(p, torch.stack(g))
            for p, g in zip(parameters, zip(*rows, strict=True), strict=True)
        ]


@dataclass(frozen=True)
class _Call:
    """One call of one unit: what went in, and where its output stands in the graph."""

    unit: nn.Module
    inputs: tuple[Any, ...]
    edge: GradientEdge
    versions: tuple[int, ...]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return params.trainable(self.unit)

    def terms(self, g: Tensor) -> list[Term]:
        if self.versions != _versions(self.inputs):
            raise ModelError(
                f"The input of a {type(self.unit).__name__} layer was changed in place after the "
                f"layer had used it. "
                "Use operations that are not in place (inplace=False, x = x + y instead of x += "
                "y) in a proxy model."
            )
        rule = RULES.get(type(self.unit))
        if rule is not None:
            return rule(self.unit, self.inputs[0].detach(), g)
        return _vmapped(
            self.unit, tuple(i.detach() if isinstance(i, Tensor) else i for i in self.inputs), g
        )


def _units(model: nn.Module) -> Iterator[nn.Module]:
    """The modules through which parameters act: those with a rule, or the outermost that own a
    parameter."""
    if not params.trainable(model):
        return
    if type(model) in RULES or any(p.requires_grad for p in model.parameters(recurse=False)):
        yield model
        return
    for child in model.children():
        yield from _units(child)


@contextmanager
def _recording(units: list[nn.Module], calls: list[_Call]) -> Iterator[None]:
    def record(unit: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            calls.append(_Call(unit, inputs, get_gradient_edge(output), _versions(inputs)))

    hooks = [unit.register_forward_hook(record) for unit in dict.fromkeys(units)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _vmapped(unit: nn.Module, inputs: tuple[Any, ...], g: Tensor) -> list[Term]:
    """Per-example gradients of one layer without a rule, from its inputs and its output
    gradient."""
    own = {name: p for name, p in unit.named_parameters() if p.requires_grad}
    rest = {
        name: v for name, v in (*unit.named_parameters(), *unit.named_buffers()) if name not in own
    }
    batched = [isinstance(i, Tensor) and i.dim() > 0 and len(i) == len(g) for i in inputs]

    def one(g_i: Tensor, *x_i: Any) -> dict[str, Tensor]:
        def forward(weights: dict[str, Tensor]) -> Any:
            alone = tuple(v.unsqueeze(0) if b else v for v, b in zip(x_i, batched, strict=True))
            return torch.func.functional_call(unit, {**rest, **weights}, alone).squeeze(0)

        _, pull, *_ = torch.func.vjp(forward, {name: p.detach() for name, p in own.items()})
        result: dict[str, Tensor] = pull(g_i)[0]
        return result

    with torch.enable_grad():
        in_dims = (0, *(0 if b else None for b in batched))
        gradients = torch.func.vmap(one, in_dims=in_dims, randomness="error")(g, *inputs)
    return [Materialised(p, gradients[name].detach()) for name, p in own.items()]


def _merge_shared(terms: list[Term]) -> list[Term]:
    """One term per parameter: where one is used more than once, its gradients add up before the
    norm is taken."""
    uses: dict[Tensor, list[Term]] = {}
    for term in terms:
        uses.setdefault(term.parameter, []).append(term)
    return [
        t[0] if len(t) == 1 else Materialised(p, sum_of(u.per_example() for u in t))
        for p, t in uses.items()
    ]


def sum_of(tensors: Iterator[Tensor]) -> Tensor:
    """The sum, in order, of at least one tensor."""
    total = next(tensors).clone()
    for tensor in tensors:
        total += tensor
    return total


def _versions(inputs: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(i._version for i in inputs if isinstance(i, Tensor))


def _checked(losses: Tensor, n: int) -> Tensor:
    if losses.shape != (n,):
        raise ModelError(
            f"Expected one loss per example, shape ({n},), got shape {tuple(losses.shape)}."
        )
    return losses
