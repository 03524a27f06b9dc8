"""Three ways to per-example gradients. None can let one example into another's gradient.

    * ``OnePass``: one backward pass over the whole batch and a rule per operation, for models whose
      recorded graph is proven to treat the examples one by one (``rowwise.proof``);
    * ``Vmapped``: the graph that was recorded from a *single* example, run for each (torch.func);
    * ``OneByOne``: the model's own Python on a batch of one, example after example, for what cannot
      be recorded. It fails if the model's modules remember anything from one call to the next;
      a global variable of its code is beyond that.

``choose`` takes the first that can be had. For the others it says which operation stood in the
way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl.errors import ModelError
from proxyfl.privacy.clipping.grouped import Groups
from proxyfl.privacy.clipping.layers import quiet_vmap
from proxyfl.privacy.clipping.program import Program
from proxyfl.privacy.clipping.recording import Untraceable, record, uncompiled
from proxyfl.privacy.clipping.state import State
from proxyfl.privacy.clipping.tracing import trace
from proxyfl.privacy.draws import same_draws
from proxyfl.privacy.rowwise.proof import prove
from proxyfl.privacy.rowwise.step import Unproven
from proxyfl.privacy.terms.product import KEPT_AT_MOST
from proxyfl.privacy.terms.term import Materialised, Term

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, targets) -> one loss per example; row i must depend on row i alone."""


@dataclass(frozen=True)
class Clipped:
    """The result of one batch: the sum of clipped gradients (flat), the loss summed, and each norm
    before clipping."""

    total: Tensor
    loss: float
    norms: Tensor


class Way(Protocol):
    """The way to the gradients of one model."""

    name: str
    reason: str | None
    at_once: int | None

    def terms(
        self,
        x: Tensor,
        targets: Tensor,
        loss: Loss,
        groups: Groups | None = None,
    ) -> tuple[Tensor, list[Term]]:
        """The loss of each example, and its gradients; of each group where there are ``groups``.
        ``x`` stays as it is."""
        ...

    def advance(self, example: Tensor) -> None:
        """Move the model's buffers on as a step does, for a step without examples."""
        ...


class OnePass:
    """One forward and one backward pass of a proven graph."""

    name = "one pass"
    reason: str | None = None
    at_once: int | None = None

    def __init__(self, program: Program) -> None:
        self.program = program

    def terms(
        self,
        x: Tensor,
        targets: Tensor,
        loss: Loss,
        groups: Groups | None = None,
    ) -> tuple[Tensor, list[Term]]:
        logits, recorded = self.program.run(x)
        losses = checked(loss(logits, targets), x.shape[0])
        if groups is None:
            return losses.detach(), self.program.terms(losses, recorded)
        losses = groups.added_up(losses)
        terms = self.program.terms(losses, recorded, records=groups.records)
        return losses.detach(), terms

    def advance(self, example: Tensor) -> None:
        if self.program.changes_state:
            with torch.no_grad():
                self.program.run(example)


class Vmapped:
    """The graph of one example, run for each example by itself."""

    name = "vmapped"

    def __init__(
        self, model: nn.Module, alone: Callable[..., Any], reason: str
    ) -> None:
        self.reason: str | None = reason
        self._state = {
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
        }
        self._learning = {
            k: v for k, v in model.named_parameters() if v.requires_grad
        }
        self._alone = alone
        self.at_once: int | None = max(
            1, KEPT_AT_MOST // max(1, params.size(model))
        )

    def advance(self, example: Tensor) -> None:
        """Models with buffers that change are refused."""

    def terms(
        self,
        x: Tensor,
        targets: Tensor,
        loss: Loss,
        groups: Groups | None = None,
    ) -> tuple[Tensor, list[Term]]:
        rest = {
            k: v.detach() for k, v in self._state.items() if k not in self._learning
        }

        def alone(
            weights: dict[str, Tensor], x_i: Tensor, target: Tensor
        ) -> tuple[Tensor, Tensor]:
            state = [weights.get(name, rest.get(name)) for name in self._state]
            logits = self._alone(*state, x_i.unsqueeze(0))
            losses = checked(loss(logits, target.unsqueeze(0)), 1)
            return losses.sum(), losses.detach().sum()

        weights = {name: p.detach() for name, p in self._learning.items()}
        each = torch.func.vmap(
            torch.func.grad(alone, has_aux=True),
            in_dims=(None, 0, 0),
            randomness="different",
        )
        with quiet_vmap():
            gradients, losses = each(weights, x.clone(), targets)
        terms: list[Term] = [
            Materialised(parameter, gradients[name].detach())
            for name, parameter in self._learning.items()
        ]
        return in_groups(losses.detach(), terms, groups)


class OneByOne:
    """The model itself, called on one example after the other."""

    name = "one by one"

    def __init__(self, model: nn.Module, reason: str) -> None:
        self.reason: str | None = reason
        self._model = model
        self.at_once: int | None = max(
            1, KEPT_AT_MOST // max(1, params.size(model))
        )

    def advance(self, example: Tensor) -> None:
        """Models with buffers that change are refused."""

    def terms(
        self,
        x: Tensor,
        targets: Tensor,
        loss: Loss,
        groups: Groups | None = None,
    ) -> tuple[Tensor, list[Term]]:
        parameters = params.trainable(self._model)
        rows: list[tuple[Tensor, ...]] = []
        each: list[Tensor] = []
        state = State(self._model, deep=True)
        for i in range(len(x)):
            logits = self._model(x[i : i + 1].clone())
            losses = checked(loss(logits, targets[i : i + 1]), 1)
            rows.append(
                torch.autograd.grad(
                    losses.sum(), parameters, materialize_grads=True
                )
            )
            each.append(losses.detach())
            state.check("proxy")
        columns = zip(parameters, zip(*rows, strict=True), strict=True)
        terms: list[Term] = [Materialised(p, torch.stack(g)) for p, g in columns]
        return in_groups(torch.cat(each), terms, groups)


def in_groups(
    losses: Tensor, terms: list[Term], groups: Groups | None
) -> tuple[Tensor, list[Term]]:
    """Losses and gradients of rows as those of their groups, if there are groups."""
    if groups is None:
        return losses, terms
    return groups.added_up(losses), groups.terms(terms)


def choose(
    model: nn.Module, made_up: Callable[[int], Tensor], *, sliced: bool = False
) -> Way:
    """The fastest way that is sound for ``model`` in its present mode, for batches that are
    ``sliced`` or whole.

    Where all examples share a random draw, a slice would have its own: one example less moves
    others to another slice, and with it to another draw."""
    custom = own_backward(model, made_up(2))
    if custom is not None:
        return OneByOne(
            model, f"{custom} has a backward pass of its own, which may do anything"
        )
    try:
        recorded = trace(model, made_up)
        program = Program(model, recorded, prove(recorded))
        if sliced and program.shared_draw is not None:
            raise Unproven(
                f"{program.shared_draw}: it draws for all examples at once, and each slice of a "
                "batch would draw anew"
            )
        return OnePass(program)
    except (Untraceable, Unproven) as problem:
        reason = str(problem)
    return alone(model, made_up, reason)


def alone(model: nn.Module, made_up: Callable[[int], Tensor], reason: str) -> Way:
    """The way to gradients by themselves: vmapped if that works, one by one otherwise."""
    try:
        way = Vmapped(model, _of_one_example(model, made_up(2)), reason)
        way.terms(
            made_up(2), torch.zeros(2, device=made_up(1).device), _sum_of_rows
        )
        return way
    except ModelError:
        raise
    except Exception as problem:
        first = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        return OneByOne(model, f"{reason}; vmap: {first}")


def _of_one_example(model: nn.Module, pair: Tensor) -> Callable[..., Any]:
    """The graph of one example. Recorded from each of a ``pair``, it must hold the same constants:
    one that was taken from an example would stand for all others' as well."""
    one, other = (record(model, pair[i : i + 1].clone()) for i in (0, 1))
    for name, constant in one.constants.items():
        if not torch.equal(constant, other.constants[name]):
            raise Untraceable("a constant in its code depends on the example")
    return one.compiled()


def own_backward(model: nn.Module, x: Tensor) -> str | None:
    """The name of a custom backward pass or a gradient hook in the model's computation, if any.

    Recordings hold forward operations and differentiate those; they would miss it."""
    hooked = next(
        (n for n, p in model.named_parameters() if p._backward_hooks), None
    )
    if hooked is not None:
        return f"parameter '{hooked}'"
    with same_draws(), uncompiled(), torch.enable_grad(), _Hooks() as hooks:
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        out = torch.func.functional_call(model, buffers, (x,))
    if hooks:
        return "a tensor with a gradient hook"
    found: set[Any] = set()
    todo = [out.grad_fn] if isinstance(out, Tensor) else []
    while todo:
        node = todo.pop()
        if node is None or node in found:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return f"the autograd.Function {type(node).__name__.removesuffix('Backward')}"
        found.add(node)
        todo += [following for following, _ in node.next_functions]
    return None


def checked(losses: Tensor, n: int) -> Tensor:
    """``losses`` if there is one per example."""
    if losses.shape != (n,):
        raise ModelError(
            f"Expected one loss per example, shape ({n},), got shape {tuple(losses.shape)}."
        )
    return losses


def _sum_of_rows(logits: Tensor, _targets: Tensor) -> Tensor:
    return logits.flatten(1).sum(1)


class _Hooks:
    """Notes calls of ``Tensor.register_hook`` while a model runs."""

    def __enter__(self) -> list[int]:
        self._seen: list[int] = []
        self._original = torch.Tensor.register_hook
        seen = self._seen
        original: Any = self._original

        def noted(tensor: Tensor, hook: Any) -> Any:
            seen.append(1)
            return original(tensor, hook)

        torch.Tensor.register_hook = noted  # type: ignore[method-assign]
        return seen

    def __exit__(self, *_: object) -> None:
        torch.Tensor.register_hook = self._original  # type: ignore[method-assign]
