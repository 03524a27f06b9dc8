"""The proof that a traced graph treats its examples one by one.

An abstract interpretation: each tensor of the graph is a *constant*, which depends on weights and
buffers but on no example, or carries *rows*: entry i along its examples' axis depends on example i
alone (``axes.Rows``). ``OPERATIONS`` (``whitelist``) names the operations that are known to keep
that, each with the function that says where the examples are afterwards. An operation that is not
in the table, or that is used in a way that its function does not allow, stops the proof:
``Unproven`` says which and why.

Sizes are symbolic: a constant whose size is not a multiple of the number of examples cannot be
taken for one, whatever its length, and one that is must be the same in every row (zeros, a repeated
weight). So a table of positions that is cut to the batch stops the proof.

If a graph is proven, the gradient of example i's loss at row i of any tensor in it depends on
example i alone as well: it is the derivative of a function of row i."""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from proxyfl.privacy.axes import Rows, Times
from proxyfl.privacy.tracing import Trace, Traced

Axes = Any
"""Rows, None for a constant, or a list of these for an operation with several outputs."""


class Unproven(Exception):
    """The operation that stood in the way, and why."""


@dataclass(frozen=True)
class Step:
    """One operation of the graph, as the functions of the table see it."""

    node: fx.Node
    traced: Traced
    axes: dict[fx.Node, Axes]
    shapes: dict[fx.Node, Any]

    @property
    def inputs(self) -> dict[str, Any]:
        return self.traced.inputs

    @property
    def shape(self) -> Any:
        """The shape of the output, or a list of shapes."""
        return self.traced.shape

    @property
    def first(self) -> str:
        """The name of the first tensor among the inputs."""
        return next(name for name, value in self.inputs.items() if isinstance(value, fx.Node))

    def rows(self, name: str) -> Rows | None:
        """Where the examples are in the input ``name``; None for a constant."""
        value = self.inputs.get(name)
        return self.axes[value] if isinstance(value, fx.Node) else None

    def shape_of(self, name: str) -> tuple[int | Times, ...]:
        shape: tuple[int | Times, ...] = self.shapes[self.inputs[name]]
        return shape

    def rank(self, name: str) -> int:
        return len(self.shape_of(name))

    def tensors(self) -> Iterator[fx.Node]:
        """All tensors among the inputs, those in lists included."""
        for value in pytree.tree_leaves(self.inputs):
            if isinstance(value, fx.Node):
                yield value

    def dims(self, name: str, of: str) -> list[int]:
        """The dimensions that the argument ``name`` lists, counted from the left; all if none."""
        rank = self.rank(of)
        given = self.inputs.get(name)
        if given is None or given == []:
            return list(range(rank))
        return [d % rank for d in (given if isinstance(given, list) else [given])]

    def only(self, *names: str) -> Rows:
        """The rows of the one input that may carry examples; the others must be constants."""
        carrying = {node for node in self.tensors() if self.axes[node] is not None}
        allowed = {self.inputs.get(name) for name in names}
        if not carrying <= allowed or not carrying:
            self.fail("examples meet where only weights are expected")
        found = {self.axes[node] for node in carrying}
        if len(found) != 1:
            self.fail("the examples lie along different axes")
        rows: Rows = found.pop()
        return rows

    def no_batch_size(self) -> None:
        """Fail if one of the arguments is a multiple of the number of examples."""
        if any(isinstance(value, Times) for value in pytree.tree_leaves(self.inputs)):
            self.fail("its value depends on how many examples there are")

    def fail(self, why: str) -> None:
        raise Unproven(f"{describe(self.node)}: {why}")


def prove(trace: Trace) -> dict[fx.Node, Axes]:
    """Where the examples are in each tensor of the graph; raises ``Unproven``."""
    from proxyfl.privacy.whitelist import OPERATIONS

    axes: dict[fx.Node, Axes] = {}
    shapes: dict[fx.Node, Any] = {}
    for node in trace.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            axes[node] = Rows(0) if node is trace.examples else None
            value = node.meta.get("val")
            shapes[node] = tuple(value.shape) if value is not None else None
        elif node.op == "call_function":
            step = Step(node, trace.steps[node], axes, shapes)
            axes[node] = _after(step, OPERATIONS)
            shapes[node] = _picked(step, shapes) if _picks(node) else step.shape
    first = trace.steps.get(trace.output)
    if axes[trace.output] != Rows(0):
        where = describe(trace.output) if first else "its output"
        raise Unproven(f"{where}: the result is not one row of logits per example")
    return axes


def _after(step: Step, table: dict[str, Callable[[Step], Axes]]) -> Axes:
    node = step.node
    if node.target is torch._C._set_grad_enabled:
        return None
    if _picks(node):
        several = step.axes[step.inputs["0"]]
        return several[step.inputs["1"]] if isinstance(several, list) else several
    carries = any(step.axes[each] is not None for each in step.tensors())
    grows = any(isinstance(value, Times) for value in pytree.tree_leaves(step.inputs))
    if not carries and not grows:
        return _verified(step, [None] * len(step.shape) if isinstance(step.shape, list) else None)
    name, in_place = base_name(node)
    if name not in table:
        step.fail("not known to treat the examples one by one")
    result = table[name](step)
    if in_place and result != step.rows(step.first):
        step.fail("it writes examples over a constant")
    return _verified(step, result)


def _verified(step: Step, result: Axes) -> Axes:
    """``result`` if the shapes bear it out: n along the one axis that it names and nowhere else."""
    if isinstance(step.shape, list):
        for each, shape in zip(result, step.shape, strict=True):
            _check_shape(step, each, shape)
    else:
        _check_shape(step, result, step.shape)
    return result


def _check_shape(step: Step, rows: Rows | None, shape: tuple[Any, ...] | None) -> None:
    growing = {d: size for d, size in enumerate(shape or ()) if not isinstance(size, int)}
    expected = {} if rows is None else {rows.axis: Times(rows.folded)}
    if growing != expected:
        step.fail("the size of its result does not follow from the number of examples")


def _picks(node: fx.Node) -> bool:
    return node.target is operator.getitem


def _picked(step: Step, shapes: dict[fx.Node, Any]) -> Any:
    several = shapes[step.inputs["0"]]
    return several[step.inputs["1"]]


def base_name(node: fx.Node) -> tuple[str, bool]:
    """The name of an operation without its namespace, and whether it works in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return str(node.target), False
    name = str(schema.name).removeprefix("aten::")
    if not schema.is_mutable:
        return name, False
    if not name.endswith("_") or "out" in str(schema.overload_name):
        return f"{name} (out)", True
    return name.removesuffix("_"), True


def describe(node: fx.Node) -> str:
    """An operation and the line of the model that called it, for people."""
    return f"{base_name(node)[0]} ({node.name})"
