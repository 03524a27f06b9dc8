"""The proof that a traced graph treats its examples one by one.

An abstract interpretation: each tensor of the graph is a *constant*, which depends on weights and
buffers but on no example, or carries *rows*: entry i along its examples' axis depends on example i
alone (``axes.Rows``). ``whitelist.OPERATIONS`` names the operations known to keep that, each
with the function that says where the examples are afterwards. An operation that is not in the
table, or that is used in a way that its function does not allow, stops the proof: ``Unproven`` says
which and why.

Sizes are symbolic: a constant whose size is not a multiple of the number of examples cannot be
taken for one, whatever its length, and one that is must be the same in every row (zeros, a repeated
weight). So a table of positions that is cut to the batch stops the proof.

If a graph is proven, the gradient of example i's loss at row i of any tensor in it depends on
example i alone as well: it is the derivative of a function of row i."""

import operator
from typing import Any

import torch
from torch.fx import Node

from proxyfl.privacy.perexample.axes import Rows, Times
from proxyfl.privacy.perexample.movement import UNINITIALISED, overwritten
from proxyfl.privacy.perexample.recording import Layout
from proxyfl.privacy.perexample.step import Axes, Step, Unproven, base_name, describe
from proxyfl.privacy.perexample.tracing import Trace
from proxyfl.privacy.perexample.whitelist import OPERATIONS, SIZED


def prove(trace: Trace) -> dict[Node, Axes]:
    """The examples' axis in each tensor of the graph; raises ``Unproven``."""
    axes: dict[Node, Axes] = {}
    shapes: dict[Node, Any] = {}
    for node in trace.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            axes[node] = Rows(0) if node in trace.examples else None
            value = node.meta.get("val")
            shapes[node] = tuple(value.shape) if value is not None else None
        elif node.op == "call_function":
            step = Step(node, trace.steps[node], axes, shapes)
            axes[node] = _after(step)
            shapes[node] = step.shape
            if _picks(node):
                several = shapes[step.inputs["0"]]
                shapes[node] = several[step.inputs["1"]]
    if axes[trace.output] != Rows(0):
        called = trace.output in trace.steps
        where = describe(trace.output) if called else "its output"
        raise Unproven(f"{where}: the result is not one row of logits per example")
    return axes


def _after(step: Step) -> Axes:
    node = step.node
    if node.target is torch._C._set_grad_enabled:
        return None
    if _picks(node):
        several = step.axes[step.inputs["0"]]
        return several[step.inputs["1"]] if isinstance(several, list) else several
    carries = any(step.axes[each] is not None for each in step.tensors())
    name, in_place = base_name(node)
    if not carries and not step.grows:
        if name in UNINITIALISED:
            overwritten(step)
        several = isinstance(step.shape, list)
        return _verified(step, [None] * len(step.shape) if several else None)
    if name not in OPERATIONS:
        step.fail("not known to treat the examples one by one")
    if name not in SIZED:
        step.no_batch_size()
    result = OPERATIONS[name](step)
    if in_place and result != step.rows(step.first):
        step.fail("it writes examples over a constant")
    if in_place and _share_memory(step, result):
        step.fail("it writes to a constant that is spread over the examples")
    if in_place and step.shape != step.shape_of(step.first):
        step.fail("it changes the shape of its input in place")
    return _verified(step, result)


def _share_memory(step: Step, rows: Rows) -> bool:
    """True if all rows of what is written to are one piece of memory, as ``expand`` makes it."""
    target: Layout = step.inputs[step.first].meta["val"]
    return target.stride[rows.axis] == 0


def _verified(step: Step, result: Axes) -> Axes:
    """``result`` if the shapes bear it out: n along the one axis that it names and nowhere else."""
    if isinstance(step.shape, list):
        for each, shape in zip(result, step.shape, strict=True):
            _check_shape(step, each, shape)
    else:
        _check_shape(step, result, step.shape)
    return result


def _check_shape(step: Step, rows: Rows | None, shape: tuple[Any, ...] | None) -> None:
    growing = {}
    for d, size in enumerate(shape or ()):
        if not isinstance(size, int):
            growing[d] = size
    expected = {} if rows is None else {rows.axis: Times(rows.folded)}
    if growing != expected:
        step.fail("the size of its result does not follow from the number of examples")


def _picks(node: Node) -> bool:
    return node.target is operator.getitem
