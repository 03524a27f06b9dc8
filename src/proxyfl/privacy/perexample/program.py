"""A proven graph, compiled: the logits of a batch, and each use of a weight on the way there.

Weights may reach the examples through other operations (a norm of the weight, a low-rank product, a
slice): those depend on no example, are done once per batch, and per-example gradients are pulled
back through them."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from proxyfl import params
from proxyfl._setonce import SetOnce
from proxyfl.errors import ModelError
from proxyfl.pooling import max_pool2d
from proxyfl.privacy.perexample.axes import Rows, Times, together
from proxyfl.privacy.perexample.convolutions import conv2d
from proxyfl.privacy.perexample.layers import RULES, Use, quiet_vmap, vmapped
from proxyfl.privacy.perexample.recording import named_tensors
from proxyfl.privacy.perexample.step import Axes, Unproven, base_name, describe, nodes_in
from proxyfl.privacy.perexample.term import Materialised, Term
from proxyfl.privacy.perexample.tracing import Trace

QUICKER: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.conv2d.default: conv2d,
    torch.ops.aten.max_pool2d.default: max_pool2d,
}
"""Operations of proven graphs, and functions of ours that compute the same sooner."""


class Recorded(NamedTuple):
    """One use in one batch: the tensors that went in, and where its output stands in autograd."""

    inputs: list[Tensor]
    versions: list[int]
    edge: GradientEdge | None


@dataclass(frozen=True)
class _Site:
    """An operation of the graph in which weights meet examples."""

    node: Node
    inputs: dict[str, Any]
    axes: dict[str, Any]
    output: Rows

    @cached_property
    def tensors(self) -> list[Node]:
        """The graph's tensors among the inputs, in order."""
        return nodes_in(self.inputs)

    @cached_property
    def _places(self) -> dict[str, int]:
        """The number among ``tensors`` of each input that is a tensor itself."""
        numbers = {node: number for number, node in enumerate(self.tensors)}
        places = {}
        for name, value in self.inputs.items():
            if isinstance(value, Node):
                places[name] = numbers[value]
        return places

    @cached_property
    def rule(self) -> Callable[[Use], list[Term]]:
        """The rule for this operation's per-example gradients."""
        return RULES.get(self.node.target, vmapped)

    def use(self, recorded: Recorded, gradient: Tensor, n: int, records: int) -> Use:
        """The operation with this batch's tensors in place of the graph's nodes."""
        inputs = dict(self.inputs)
        for name, number in self._places.items():
            inputs[name] = recorded.inputs[number]
        if len(self._places) < len(self.tensors):
            inputs = self._filled(recorded)
        axes = self.axes
        output = self.output
        if records > 1:
            axes = pytree.tree_map(lambda rows: together(rows, records), axes)
            output = together(output, records)
        return Use(self.node.target, inputs, axes, output, gradient, n, records)

    def _filled(self, recorded: Recorded) -> dict[str, Any]:
        """The inputs where some tensors are in lists."""
        values = dict(zip(self.tensors, recorded.inputs, strict=True))

        def fill(value: Any) -> Any:
            return values[value] if isinstance(value, Node) else value

        filled: dict[str, Any] = pytree.tree_map(fill, self.inputs)
        return filled


class Program(SetOnce):
    """The compiled graph of one model. Reads parameters and buffers from the model at every run."""

    def __init__(self, model: nn.Module, trace: Trace, axes: dict[Node, Axes]) -> None:
        self._sites = _sites(model, trace, axes)
        self._module = compile_graph(trace, self._sites, _quicker(trace))
        self.changes_state = any(axes[node] is None for node in _writing(trace))
        self.shared_draw = _shared_draw(trace, axes)
        named = named_tensors(model)
        self._weights = [named[name] for name in trace.weights.values()]
        self._leaves = set(map(id, self._weights))
        self._run: Callable[..., tuple[Tensor, list[Recorded]]] = self._module.forward

    @property
    def text(self) -> str:
        """The graph and its constants in writing."""
        constants = [repr(each.tolist()) for each in self._module.buffers()]
        return "\n".join([self._module.code, *constants])

    def run(self, x: Tensor) -> tuple[Tensor, list[Recorded]]:
        """The logits of the batch, and what was recorded at each use."""
        return self._run(x.shape[0], x, *self._weights)

    def terms(
        self,
        losses: Tensor,
        recorded: list[Recorded],
        *,
        records: int = 1,
        gradient: Tensor | None = None,
    ) -> list[Term]:
        """Per-example gradients of the losses, one term per parameter and use.

        Each loss is of ``records`` consecutive rows of the batch, which count as one example. With
        a ``gradient``, ``losses`` are the outputs themselves, and the losses' gradient at them."""
        n = losses.shape[0]
        used: list[tuple[_Site, Recorded]] = []
        edges: list[GradientEdge] = []
        for site, record in zip(self._sites, recorded, strict=True):
            if record.edge is not None:
                used.append((site, record))
                edges.append(record.edge)
        if gradient is None:
            gradient = torch.ones_like(losses)  # of their sum
        gradients = torch.autograd.grad(losses, edges, gradient, materialize_grads=True)
        terms: list[Term] = []
        with torch.no_grad():
            for (site, record), gradient in zip(used, gradients, strict=True):
                terms += _terms(site, record, gradient, n, records)
        direct: list[Term] = []
        derived: list[Term] = []
        for term in terms:
            if id(term.parameter) in self._leaves:
                direct.append(term)
            else:
                derived.append(term)
        return direct + _pulled_back(derived, self._weights)


def _terms(site: _Site, recorded: Recorded, gradient: Tensor, n: int, records: int) -> list[Term]:
    if recorded.versions != [tensor._version for tensor in recorded.inputs]:
        raise ModelError(
            f"The input of {describe(site.node)} was changed in place after it was used. Use "
            "operations that are not in place (inplace=False, x = x + y instead of x += y) in a "
            "proxy model."
        )
    return site.rule(site.use(recorded, gradient, n, records))


def _pulled_back(derived: list[Term], weights: list[Tensor]) -> list[Term]:
    """Terms of the parameters themselves: gradients at a tensor that was computed from parameters
    go back through that computation, example by example."""
    terms: list[Term] = []
    if not derived:
        return terms
    sources = [weight for weight in weights if weight.requires_grad]
    outputs = [term.parameter for term in derived]
    at_outputs = [term.per_example() for term in derived]
    with quiet_vmap():
        gradients = torch.autograd.grad(
            outputs, sources, at_outputs, is_grads_batched=True, allow_unused=True
        )
    for weight, gradient in zip(sources, gradients, strict=True):
        if gradient is not None:
            terms.append(Materialised(weight, gradient))
    return terms


def _sites(model: nn.Module, trace: Trace, axes: dict[Node, Axes]) -> list[_Site]:
    learning = params.names(model)
    depends = {node for node, name in trace.weights.items() if name in learning}
    sites: list[_Site] = []
    for node in trace.graph.nodes:
        if node.op != "call_function":
            continue
        inputs = trace.steps[node].inputs
        if depends.isdisjoint(nodes_in(inputs)):
            continue
        output = axes[node]
        if output is None or (isinstance(output, list) and set(output) == {None}):
            depends.add(node)
            continue
        if isinstance(output, list) or base_name(node)[1]:
            raise Unproven(f"{describe(node)}: a weight is used in place or for several results")
        where = pytree.tree_map(lambda v: axes[v] if isinstance(v, Node) else None, inputs)
        sites.append(_Site(node, inputs, where, output))
    return sites


def _quicker(trace: Trace) -> dict[Any, Callable[..., Any]]:
    """``QUICKER`` for one graph. With GroupNorm the layout of wide convolutions costs more than it
    gains."""
    replacements = dict(QUICKER)
    if any(step.operation is torch.ops.aten.group_norm.default for step in trace.steps.values()):
        replacements.pop(torch.ops.aten.conv2d.default, None)
    return replacements


def compile_graph(
    trace: Trace,
    sites: Sequence[_Site] = (),
    quicker: Mapping[Any, Callable[..., Any]] = MappingProxyType({}),
) -> GraphModule:
    """A module that maps (n, *examples, *weights) to (result, what was recorded at each site).
    ``quicker`` has what to call in place of some operations."""
    graph = Graph()
    count = graph.placeholder("n")
    known: dict[Node, Node] = {}
    for number, node in enumerate(trace.examples):
        known[node] = graph.placeholder(f"examples_{number}")
    for number, node in enumerate(trace.weights):
        known[node] = graph.placeholder(f"weight_{number}")

    def put(value: Any) -> Any:
        if isinstance(value, Times):
            return graph.call_function(operator.mul, (count, value.factor))
        return known[value] if isinstance(value, Node) else value

    if _writing(trace):  # perhaps to the caller's batch
        for node in trace.examples:
            known[node] = graph.call_function(torch.clone, (known[node],))
    records: dict[Node, Node] = {}
    at = {site.node: site for site in sites}
    for node in trace.graph.nodes:
        if node.op == "get_attr":
            known[node] = graph.get_attr(str(node.target))
        elif node.op == "call_function":
            step = trace.steps[node]
            inputs = pytree.tree_map(put, step.inputs)
            args, kwargs = _call(step.operation, inputs)
            operation = quicker.get(step.operation, step.operation)
            known[node] = graph.call_function(operation, args, kwargs)
            if node in at:
                tensors = [known[each] for each in at[node].tensors]
                records[node] = graph.call_function(_record, (known[node], tensors))
    graph.output((known[trace.output], [records[site.node] for site in sites]))
    return GraphModule(dict(trace.constants), graph)


def _call(operation: Any, inputs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``inputs`` by position as far as the operation allows it, which is faster than by name."""
    schema = getattr(operation, "_schema", None)
    if schema is None:
        return tuple(inputs.values()), {}
    args = []
    kwargs = dict(inputs)
    for argument in schema.arguments:
        if argument.kwarg_only or argument.name not in kwargs:
            break
        args.append(kwargs.pop(argument.name))
    return tuple(args), kwargs


def _writing(trace: Trace) -> list[Node]:
    """The operations that write to a tensor they were given."""
    return [node for node in trace.steps if base_name(node)[1]]


def _shared_draw(trace: Trace, axes: dict[Node, Axes]) -> str | None:
    """An operation whose random numbers several examples share, in words; None if there is none."""
    for node in trace.steps:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded not in tags:
            continue
        rows = axes[node]
        first = rows[0] if isinstance(rows, list) else rows
        # one draw for each entry of the first two dimensions
        by_feature = base_name(node)[0].startswith("feature_")
        if first is None or (by_feature and first.axis > 1):
            return describe(node)
    return None


def _record(output: Tensor, inputs: list[Tensor]) -> Recorded:
    """Taken right after the operation: an in-place one may follow."""
    edge = get_gradient_edge(output) if output.requires_grad else None
    return Recorded(inputs, [tensor._version for tensor in inputs], edge)
