"""A model's forward pass as a graph of ATen operations, for any number of examples.

The model is recorded twice (``recording``), on three and on four made-up examples. Where a number
differs between the two recordings it must be a multiple of the number of examples, and the graph
says so (``Times``); anything else is not a function of the examples alone, and tracing fails with
the reason. No example of the one recording is in the other: a constant that was taken from them
differs.

What trains is the graph and not the Python that it was recorded from: no branch, counter or cache
of the model's code has a part in a private step. Control flow that looks at the data cannot be
recorded. A custom ``autograd.Function`` can, but its backward pass cannot, so the caller looks for
those (``ways.own_backward``)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from proxyfl.privacy.perexample.axes import Times
from proxyfl.privacy.perexample.recording import (
    Layout,
    Recording,
    Untraceable,
    named_tensors,
    record,
)

FEW, MORE = 3, 4
"""The two numbers of examples. A constant with as many rows fits one of them at most."""

aten = torch.ops.aten


@dataclass(frozen=True)
class Traced:
    """One operation: its inputs by name, tensors as nodes, and the shape of its output.

    A shape is a tuple of sizes; an operation with several outputs has a list of shapes."""

    operation: Any
    inputs: dict[str, Any]
    shape: Any


@dataclass(frozen=True)
class Trace:
    """The graph, what each node does, and which placeholder is which parameter or buffer.

    ``examples`` are the placeholders of the inputs, which have a row per example each."""

    graph: Graph
    steps: dict[Node, Traced]
    weights: dict[Node, str]
    examples: tuple[Node, ...]
    constants: dict[str, Tensor]

    @property
    def output(self) -> Node:
        """The node of the logits."""
        value = next(iter(reversed(self.graph.nodes))).args[0]
        if not isinstance(value, Node):
            raise Untraceable("its output is not one tensor")
        return value


def trace(model: nn.Module, made_up: Callable[[int], Tensor | tuple[Tensor, ...]]) -> Trace:
    """The graph of ``model`` in its present mode; ``made_up(n)`` gives its inputs for n
    examples."""
    made = made_up(FEW + MORE)
    examples = (made,) if isinstance(made, Tensor) else made
    few = record(model, *(each[:FEW].clone() for each in examples))
    more = record(model, *(each[FEW:].clone() for each in examples))
    steps: dict[Node, Traced] = {}
    constants: dict[str, Tensor] = {}
    placeholders: list[Node] = []
    if len(few.graph.nodes) != len(more.graph.nodes):
        raise Untraceable("the operations depend on the number of examples")
    pairs: dict[Node, Node] = {}
    for node, other in zip(few.graph.nodes, more.graph.nodes, strict=True):
        if (node.op, node.target) != (other.op, other.target):
            raise Untraceable("the operations depend on the number of examples")
        pairs[node] = other
        if node.op == "placeholder":
            placeholders.append(node)
        elif node.op == "get_attr":
            constants[str(node.target)] = _constant(few, more, str(node.target))
        elif node.op == "call_function":
            steps[node] = _merge(node, other, pairs)
    count = len(placeholders) - len(examples)
    weights = dict(zip(placeholders[:count], named_tensors(model), strict=True))
    return Trace(few.graph, steps, weights, tuple(placeholders[count:]), constants)


def sizes(node: Node, other: Node) -> Any:
    """The symbolic shape, or list of shapes, of a pair of nodes."""
    few: Any = node.meta.get("val")
    more: Any = other.meta.get("val")
    if isinstance(few, list | tuple):
        return [_shape(a, b) for a, b in zip(few, more, strict=True)]
    return _shape(few, more)


def _shape(few: Any, more: Any) -> tuple[int | Times | None, ...] | None:
    if not isinstance(few, Layout) or len(few.shape) != len(more.shape):
        return None
    return tuple(_number(a, b) for a, b in zip(few.shape, more.shape, strict=True))


def _constant(few: Recording, more: Recording, name: str) -> Tensor:
    one = few.constants[name]
    other = more.constants[name]
    if one.shape != other.shape or not torch.equal(one, other):
        raise Untraceable("a constant in its code depends on the examples or on their number")
    return one


def _merge(node: Node, other: Node, pairs: dict[Node, Node]) -> Traced:
    inputs = _by_name(node)
    others = _by_name(other)
    few, layout = pytree.tree_flatten(inputs)
    more, other_layout = pytree.tree_flatten(others)
    if layout != other_layout:
        raise Untraceable(f"what {node.target} is given depends on the number of examples")
    merged = [_same(a, b, pairs, node) for a, b in zip(few, more, strict=True)]
    inputs = pytree.tree_unflatten(merged, layout)
    shape = sizes(node, other)
    if node.target is aten.squeeze.default:
        # Name the dimensions: a batch of one example must not be squeezed away.
        before = inputs["self"].meta["val"].shape
        ones = [d for d, size in enumerate(before) if size == 1]
        return Traced(aten.squeeze.dims, {**inputs, "dim": ones}, shape)
    return Traced(node.target, inputs, shape)


def _by_name(node: Node) -> dict[str, Any]:
    """The arguments of a call by their names, defaults filled in."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        by_place = {str(k): _plain(v) for k, v in enumerate(node.args)}
        return {**by_place, **node.kwargs}
    arguments: dict[str, Any] = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(node.args):
            arguments[argument.name] = _plain(node.args[position])
        elif argument.name in node.kwargs:
            arguments[argument.name] = _plain(node.kwargs[argument.name])
        elif argument.has_default_value():
            arguments[argument.name] = argument.default_value
    return arguments


def _plain(value: Any) -> Any:
    """fx keeps lists in classes of its own, which pytree does not open."""
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value


def _same(few: Any, more: Any, pairs: dict[Node, Node], node: Node) -> Any:
    if isinstance(few, Node):
        if pairs.get(few) is not more:
            raise Untraceable("the operations depend on the number of examples")
        return few
    if isinstance(few, int) and isinstance(more, int):
        number = _number(few, more)
        if number is not None:
            return number
    elif few is more or few == more or (few != few and more != more):
        return few
    raise Untraceable(
        f"{node.target} is given {few} for {FEW} examples and {more} for {MORE}: it depends on how "
        "many there are"
    )


def _number(few: int, more: int) -> int | Times | None:
    if few == more:
        return few
    if few * MORE == more * FEW and few % FEW == 0:
        return Times(few // FEW)
    return None
