"""One operation of a recorded graph, as the functions of the whitelist see it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from torch.fx import Node
from torch.utils import _pytree as pytree

from proxyfl.privacy.perexample.axes import Rows, Times
from proxyfl.privacy.perexample.tracing import Traced

Axes = Any
"""Rows, None for a constant, or a list of these for an operation with several outputs."""


class Unproven(Exception):
    """The operation that stood in the way, and why."""


@dataclass(frozen=True)
class Step:
    """One operation of the graph, as the functions of the table see it."""

    node: Node
    traced: Traced
    axes: dict[Node, Axes]
    shapes: dict[Node, Any]

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
        return next(self.named())

    def named(self) -> Iterator[str]:
        """The names of the inputs that are tensors."""
        for name, value in self.inputs.items():
            if isinstance(value, Node):
                yield name

    def rows(self, name: str) -> Rows | None:
        """The examples' axis in the input ``name``; None for a constant."""
        value = self.inputs.get(name)
        return self.axes[value] if isinstance(value, Node) else None

    def shape_of(self, name: str) -> tuple[int | Times, ...]:
        shape: tuple[int | Times, ...] = self.shapes[self.inputs[name]]
        return shape

    def rank(self, name: str) -> int:
        return len(self.shape_of(name))

    def tensors(self) -> list[Node]:
        """All tensors among the inputs, those in lists included."""
        return nodes_in(self.inputs)

    def dims(self, name: str, of: str) -> list[int]:
        """The dimensions that the argument ``name`` lists, counted from the left; all if none."""
        rank = self.rank(of)
        given = self.inputs.get(name)
        if given is None or given == []:
            return list(range(rank))
        listed = given if isinstance(given, list) else [given]
        return [d % rank for d in listed]

    def only(self, *names: str) -> Rows:
        """The rows of the one input that may carry examples; the others must be constants."""
        carrying = {node for node in self.tensors() if self.axes[node] is not None}
        allowed = {self.inputs.get(name) for name in names}
        if not carrying <= allowed or not carrying:
            self.fail("examples meet where only weights are expected")
        distinct = {self.axes[node] for node in carrying}
        if len(distinct) != 1:
            self.fail("the examples lie along different axes")
        rows: Rows = distinct.pop()
        return rows

    @property
    def grows(self) -> bool:
        """True if one of the arguments is a multiple of the number of examples."""
        leaves = pytree.tree_leaves(self.inputs)
        return any(isinstance(value, Times) for value in leaves)

    def no_batch_size(self) -> None:
        """Fail if one of the arguments is a multiple of the number of examples."""
        if self.grows:
            self.fail("its value depends on how many examples there are")

    def fail(self, why: str) -> NoReturn:
        """Stop the proof at this operation."""
        raise Unproven(f"{describe(self.node)}: {why}")


def nodes_in(inputs: dict[str, Any]) -> list[Node]:
    """The graph's tensors among some inputs, those in lists included, in order."""
    leaves = pytree.tree_leaves(inputs)
    return [value for value in leaves if isinstance(value, Node)]


def base_name(node: Node) -> tuple[str, bool]:
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


def describe(node: Node) -> str:
    """An operation and the line of the model that called it, for people."""
    return f"{base_name(node)[0]} ({node.name})"


def aligned(step: Step, nodes: list[Node], rank: int) -> Rows:
    distinct: set[Rows] = set()
    for node in nodes:
        rows = step.axes[node]
        if rows is not None:
            missing = rank - len(step.shapes[node])
            distinct.add(rows.at(rows.axis + missing))
    if len(distinct) != 1:
        step.fail("it compares examples with one another")
    rows = distinct.pop()
    for node in nodes:
        shape = step.shapes[node]
        position = rows.axis - rank + len(shape)
        constant = step.axes[node] is None
        if constant and position >= 0 and shape[position] != 1:
            step.fail("it deals a constant out to the examples by their place in the batch")
    return rows


def several(function: Callable[[Step], Rows]) -> Callable[[Step], Axes]:
    """The same for each of several outputs."""

    def each(step: Step) -> Axes:
        rows = function(step)
        if isinstance(step.shape, list):
            return [rows] * len(step.shape)
        return rows

    return each


def trailing(count: int) -> Callable[[Step], Rows]:
    """Works on the last ``count`` dimensions of its first input; weights are constants."""

    def after(step: Step) -> Rows:
        step.no_batch_size()
        rows = step.only(step.first)
        if rows.axis >= step.rank(step.first) - count:
            step.fail("it works across the examples")
        return rows

    return several(after)


def along(step: Step) -> Rows:
    """Works along the dimensions that ``dim`` or ``dims`` names, and keeps them."""
    step.no_batch_size()
    rows = step.only(step.first)
    name = "dims" if "dims" in step.inputs else "dim"
    if rows.axis in step.dims(name, step.first):
        step.fail("it works across the examples")
    return rows
