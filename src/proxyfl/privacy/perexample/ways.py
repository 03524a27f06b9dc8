"""Three ways to per-example gradients. None can let one example into another's gradient.

    * ``OnePass``: one backward pass over the whole batch and a rule per operation, for models whose
      recorded graph is proven to treat the examples one by one (``proof``);
    * ``vmapped``: the graph that was recorded from a *single* example, run for each (torch.func);
    * ``one_by_one``: the model's own Python on a batch of one, example after example, for what
      cannot be recorded. It fails if the model remembers anything from one call to the next, or
      from one batch to the next, wherever ``state`` can see it.

``choose`` takes the first that can be had. For the others it says which operation stood in the
way."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl._setonce import SetOnce
from proxyfl.errors import ModelError
from proxyfl.losses import CrossEntropy
from proxyfl.privacy.perexample.draws import same_draws
from proxyfl.privacy.perexample.gradients import Computation
from proxyfl.privacy.perexample.grouped import Groups
from proxyfl.privacy.perexample.layers import quiet_vmap
from proxyfl.privacy.perexample.product import KEPT_AT_MOST
from proxyfl.privacy.perexample.program import Program
from proxyfl.privacy.perexample.proof import prove
from proxyfl.privacy.perexample.recording import (
    Untraceable,
    first_line,
    named_tensors,
    record,
    uncompiled,
)
from proxyfl.privacy.perexample.state import State
from proxyfl.privacy.perexample.step import Unproven
from proxyfl.privacy.perexample.term import Materialised, Term
from proxyfl.privacy.perexample.tracing import trace

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, targets) -> one loss per example; row i must depend on row i alone."""

Terms = tuple[Tensor, list[Term]]
"""The loss of each example, and its gradients."""

Gradients = tuple[Tensor, Iterable[Tensor]]
"""The loss of each example, and each weight's gradients of them."""

Each = Callable[[Tensor, Tensor, Loss], Gradients]
"""(examples, targets, loss) -> the gradients of each example."""


@dataclass(frozen=True)
class Clipped:
    """The result of one batch: the sum of clipped gradients (flat), the loss summed, and each norm
    before clipping."""

    total: Tensor
    loss: float
    norms: Tensor


class Way(Protocol):
    """The way to the gradients of one model, and what it rests on."""

    name: str
    reason: str | None
    at_once: int | None
    computation: Computation

    def terms(self, x: Tensor, targets: Tensor, loss: Loss, groups: Groups | None = None) -> Terms:
        """The terms of the examples; of each group where there are ``groups``. ``x`` stays as it
        is."""
        ...

    def advance(self, example: Tensor) -> None:
        """Move the model's buffers on as a step does, for a step without examples."""
        ...


class OnePass(SetOnce):
    """One forward and one backward pass of a proven graph."""

    name = "one pass"
    reason: str | None = None
    at_once: int | None = None
    computation = Computation.PROVEN

    def __init__(self, program: Program) -> None:
        self.program = program

    def terms(self, x: Tensor, targets: Tensor, loss: Loss, groups: Groups | None = None) -> Terms:
        logits, recorded = self.program.run(x)
        if type(loss) is CrossEntropy and groups is None and loss.has_gradient(logits, targets):
            losses, gradient = loss.with_gradient(logits, targets)
            losses = checked(losses, x.shape[0])
            return losses, self.program.terms(logits, recorded, gradient=gradient)
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


class ByThemselves(SetOnce):
    """Every example's gradient by itself: ``vmapped`` or ``one_by_one``.

    Models with buffers that change are refused, so there is nothing to move on."""

    def __init__(self, computation: Computation, model: nn.Module, each: Each, reason: str) -> None:
        self.computation = computation
        self.name = str(computation)
        self.reason: str | None = reason
        size = max(1, params.size(model))
        self.at_once: int | None = max(1, KEPT_AT_MOST // size)
        self._parameters = params.trainable(model)
        self._each = each

    def advance(self, example: Tensor) -> None:
        pass

    def terms(self, x: Tensor, targets: Tensor, loss: Loss, groups: Groups | None = None) -> Terms:
        losses, gradients = self._each(x, targets, loss)
        terms: list[Term] = []
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            terms.append(Materialised(parameter, gradient))
        if groups is None:
            return losses, terms
        return groups.added_up(losses), groups.terms(terms)


def vmapped(model: nn.Module, recorded: Callable[..., Any]) -> Each:
    """The graph of one example, run for each example by itself."""
    state = named_tensors(model)
    learning = params.names(model)

    def each(x: Tensor, targets: Tensor, loss: Loss) -> tuple[Tensor, Iterable[Tensor]]:
        now = {name: value.detach() for name, value in state.items()}

        def alone(weights: dict[str, Tensor], x_i: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            logits = recorded(*(now | weights).values(), x_i.unsqueeze(0))
            losses = checked(loss(logits, target.unsqueeze(0)), 1)
            return losses.sum(), losses.detach().sum()

        by_example = torch.func.vmap(
            torch.func.grad(alone, has_aux=True), in_dims=(None, 0, 0), randomness="different"
        )
        weights = {name: now[name] for name in learning}
        with quiet_vmap():
            gradients, losses = by_example(weights, x.clone(), targets)
        return losses.detach(), [gradients[name].detach() for name in learning]

    return each


def one_by_one(model: nn.Module) -> Each:
    """The model itself, called on one example after the other."""
    parameters = params.trainable(model)
    first: list[State] = []  # as it was before the first batch, which is a made-up one

    def each(x: Tensor, targets: Tensor, loss: Loss) -> tuple[Tensor, Iterable[Tensor]]:
        rows: list[tuple[Tensor, ...]] = []
        all_losses: list[Tensor] = []
        state = State(model, deep=True)
        if not first:
            first.append(state)
        first[0].check_attributes()
        for i in range(len(x)):
            logits = model(x[i : i + 1].clone())
            losses = checked(loss(logits, targets[i : i + 1]), 1)
            gradients = torch.autograd.grad(losses.sum(), parameters, materialize_grads=True)
            if any(gradient.layout is not torch.strided for gradient in gradients):
                raise ModelError(
                    "A gradient of the proxy model is sparse, and clipped gradients with noise "
                    "have no zeros to leave out. Set sparse=False in its embeddings."
                )
            rows.append(gradients)
            all_losses.append(losses.detach())
            state.check()
        return torch.cat(all_losses), map(torch.stack, zip(*rows, strict=True))

    return each


def choose(model: nn.Module, made_up: Callable[[int], Tensor], *, sliced: bool = False) -> Way:
    """The fastest way that is sound for ``model`` in its present mode, for batches that are
    ``sliced`` or whole.

    Where all examples share a random draw, a slice would have its own: one example less moves
    others to another slice, and with it to another draw."""
    custom = own_backward(model, made_up(2))
    if custom is not None:
        reason = f"{custom} has a backward pass of its own, which may do anything"
        return ByThemselves(Computation.ONE_BY_ONE, model, one_by_one(model), reason)
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
        each = vmapped(model, of_one_example(model, made_up(2)))
        way = ByThemselves(Computation.VMAPPED, model, each, reason)
        x = made_up(2)
        way.terms(x, torch.zeros(2, device=x.device), _sum_of_rows)
        return way
    except ModelError:
        raise
    except Exception as problem:
        why = f"{reason}; vmap: {first_line(problem)}"
        return ByThemselves(Computation.ONE_BY_ONE, model, one_by_one(model), why)


def of_one_example(model: nn.Module, *pair: Tensor) -> Callable[..., Any]:
    """The graph of one example. Recorded from each of a ``pair``, it must hold the same constants:
    one that was taken from an example would stand for all others' as well."""
    one, other = (record(model, *(each[i : i + 1].clone() for each in pair)) for i in (0, 1))
    for name, constant in one.constants.items():
        if not torch.equal(constant, other.constants[name]):
            raise Untraceable("a constant in its code depends on the example")
    return one.compiled()


def own_backward(model: nn.Module, *inputs: Tensor) -> str | None:
    """The name of a custom backward pass or a gradient hook in the model's computation, if any.

    Recordings hold forward operations and differentiate those; they would miss it."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks:
            return f"parameter '{name}'"
    with same_draws(), uncompiled(), torch.enable_grad(), _Hooks() as hooks:
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        out = torch.func.functional_call(model, buffers, inputs)
    if hooks:
        return "a tensor with a gradient hook"
    visited: set[Any] = set()
    todo = [out.grad_fn] if isinstance(out, Tensor) else []
    while todo:
        node = todo.pop()
        if node is None or node in visited:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return f"the autograd.Function {type(node).__name__.removesuffix('Backward')}"
        visited.add(node)
        todo += [following for following, _ in node.next_functions]
    return None


def checked(losses: Tensor, n: int) -> Tensor:
    """``losses`` if there is one per example."""
    if losses.shape != (n,):
        raise ModelError(
            f"Expected one loss per example, shape ({n},), got shape {tuple(losses.shape)}. Use "
            "reduction='none'."
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
