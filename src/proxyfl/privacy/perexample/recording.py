"""One forward pass, written down as a graph of ATen operations.

The model runs on made-up examples below autograd, where an operation arrives as the model's author
called it (``linear``, ``conv2d``, ``softmax``) and is noted before it is carried out. A tensor that
no recorded operation made is a constant, and the graph holds a copy of it, which no run of the
graph changes. So the graph is a function of weights, buffers and examples; nothing that the model's
Python does later has a part in it. A model that writes to its own weights has no graph: how often a
graph runs in a step, slice by slice, follows from the number of examples. Nor has one with a tensor
of a class of its own, which may do anything in an operation, whatever its name. Compiled parts run
as they were written, since a compiled kernel shows none of its operations.

torch has a recorder of its own (``make_fx``). This one needs neither its compiler, which takes
seconds to import, nor its global state."""

import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from proxyfl.errors import ModelError
from proxyfl.privacy.perexample.draws import same_draws

aten = torch.ops.aten

_RECURRENT = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)

_PLAIN = (
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
"""Kinds of values besides tensors that a graph can hold."""


class Untraceable(Exception):
    """The reason why there is no graph."""


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor when it was made."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Recording:
    """The graph of one pass, a function of (parameters, buffers, examples), and its constants.

    ``node.meta["val"]`` is the ``Layout`` of the node's tensor, or a list of them."""

    graph: Graph
    constants: dict[str, Tensor]

    def compiled(self) -> GraphModule:
        """The graph as a function of tensors in the order of its placeholders."""
        return GraphModule(dict(self.constants), self.graph)


def record(model: nn.Module, *inputs: Tensor) -> Recording:
    """The forward pass of ``model`` on ``inputs``. Buffers are copied first: a model that writes to
    them leaves no trace. Raises ``Untraceable``."""
    state = named_tensors(model)
    for name, buffer in model.named_buffers():
        state[name] = buffer.clone()
    recorder = _Recorder([*state.values(), *inputs], model.parameters())
    try:
        with same_draws(), uncompiled(), torch.enable_grad(), _below_autograd(), recorder:
            output = torch.func.functional_call(model, state, inputs)
        return recorder.finish(output)
    except Exception as problem:
        raise Untraceable(
            f"its forward pass cannot be recorded ({first_line(problem)})"
        ) from problem


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters, then the buffers, by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def first_line(problem: Exception) -> str:
    """Returns the first line of an exception's message; its kind if it says nothing."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]


def uncompiled() -> AbstractContextManager[object]:
    """Within it, what ``torch.compile`` made runs as it was written."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled
        return nullcontext()
    eager: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return eager


def _below_autograd() -> AbstractContextManager[None]:
    """A place where composed operations arrive whole: autograd would take them apart first."""
    below: AbstractContextManager[None] = torch._C._AutoDispatchBelowADInplaceOrView()
    return below


class WeightsWatched(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Within it, an operation that writes to a weight of the model raises ``ModelError`` before it
    is carried out, whether or not it would change a number this time."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {_memory(weight): name for name, weight in model.named_parameters()}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would import its compiler to keep out of here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in _written_tensors(func, args, kwargs):
            name = self._names.get(_memory(value))
            if name is not None:
                raise ModelError(
                    f"The proxy model writes to its weight '{name}' in a forward pass "
                    f"({func.overloadpacket.__name__}): it would carry one record into the "
                    "gradients of others. Leave max_norm of embeddings at its default, and compute "
                    "what you need from a weight without changing it."
                )
        return func(*args, **kwargs)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Carries out each operation, and adds it to the graph."""

    def __init__(self, inputs: Iterable[Tensor], weights: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = Graph()
        self._constants: dict[str, Tensor] = {}
        self._nodes: dict[int, Node | tuple[Node, int]] = {}
        self._known: set[int] = set()
        self._alive: list[Tensor] = []  # no address is given out twice
        self._learning = True
        self._weights = {_memory(weight) for weight in weights}
        for number, tensor in enumerate(inputs):
            self._bind(tensor, self._graph.placeholder(f"input_{number}"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would import its compiler to keep out of here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._refuse_writing_to_weights(func, args, kwargs)
        if func in _RECURRENT:
            with self, _without_onednn():
                return _unrolled(func)(*args, **kwargs)
        tensors = []
        for value in pytree.arg_tree_leaves(*args, **kwargs):
            if not isinstance(value, Tensor):
                continue
            if type(value) not in (Tensor, nn.Parameter):
                raise Untraceable(f"{func} is given a {type(value).__name__}")
            tensors.append(value)
        if _looks_at_data(func):
            self._allow_looking(func, tensors)
            return func(*args, **kwargs)
        fixed = self._is_fixed(func, tensors)
        node = self._note(func, args, kwargs)
        output = func(*args, **kwargs)
        self._bind_output(node, output, fixed=fixed)
        return output

    def finish(self, output: Any) -> Recording:
        """The recording, with ``output`` for its result."""
        if not isinstance(output, Tensor):
            raise Untraceable("its output is not one tensor")
        self._set_grad(True)
        self._graph.output(self._argument(output))
        self._protect_constants()
        return Recording(self._graph, self._constants)

    def _protect_constants(self) -> None:
        """Where the graph writes, it works on copies of its constants: what one run writes is not
        there in the next."""
        nodes = list(self._graph.nodes)
        if not any(_written(node.target) for node in nodes):
            return
        for node in nodes:
            if node.op != "get_attr":
                continue
            with self._graph.inserting_after(node):
                copy = self._graph.call_function(aten.clone.default, (node,))
            copy.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(copy)
            copy.args = (node,)

    def _refuse_writing_to_weights(self, func: Any, args: Any, kwargs: Any) -> None:
        for value in _written_tensors(func, args, kwargs):
            if _memory(value) in self._weights:
                raise Untraceable(f"{func} writes to a weight")

    def _note(self, func: Any, args: Any, kwargs: Any) -> Node:
        self._set_grad(torch.is_grad_enabled())
        if func is aten.lift_fresh.default:
            # The graph must not hand out its constant to be written to.
            func = aten.lift_fresh_copy.default
        args, kwargs = pytree.tree_map(self._argument, (args, kwargs))
        name = func.overloadpacket.__name__
        return self._graph.create_node("call_function", func, args, kwargs, name)

    def _set_grad(self, enabled: bool) -> None:
        """``torch.no_grad`` is no operation; it is noted where the next one finds it changed."""
        if enabled != self._learning:
            self._graph.call_function(torch._C._set_grad_enabled, (enabled,))
            self._learning = enabled

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._node(value)
        if not isinstance(value, _PLAIN):
            raise Untraceable(f"an operation is given a {type(value).__name__}")
        return value

    def _node(self, tensor: Tensor) -> Node:
        entry = self._nodes.get(id(tensor))
        if isinstance(entry, Node):
            return entry
        if entry is None:
            name = f"constant_{len(self._constants)}"
            self._constants[name] = tensor.detach().clone()
            node = self._graph.create_node("get_attr", name)
        else:
            node = self._graph.call_function(operator.getitem, entry)
        self._bind(tensor, node)
        return node

    def _bind(self, tensor: Tensor, node: Node) -> None:
        node.meta["val"] = _layout(tensor)
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def _bind_output(self, node: Node, output: Any, *, fixed: bool) -> None:
        if isinstance(output, Tensor):
            self._bind(output, node)
            several = [output]
        elif not isinstance(output, list | tuple):
            # A type or a flag, which the Python goes by; an operation that writes gives None.
            if output is not None:
                self._graph.erase_node(node)
            return
        else:
            several = list(output)
            node.meta["val"] = [_layout(each) for each in several]
            for number, each in enumerate(several):
                self._nodes[id(each)] = (node, number)
            self._alive += several
        if fixed:
            self._known.update(id(each) for each in several)

    def _is_fixed(self, func: Any, tensors: list[Tensor]) -> bool:
        """True if the result follows from constants in the model's code (``torch.tensor(3)``)
        alone, so that its Python may look at it."""
        if func is aten.lift_fresh.default:
            return id(tensors[0]) not in self._nodes
        fixed = bool(tensors) and all(id(each) in self._known for each in tensors)
        if func._schema.is_mutable and not fixed:
            self._known.clear()  # one of them may share the memory that is written to
        return fixed and torch.Tag.nondeterministic_seeded not in func.tags

    def _allow_looking(self, func: Any, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if id(tensor) in self._nodes and id(tensor) not in self._known:
                raise Untraceable(f"{func} looks at numbers that change")


def _layout(value: Any) -> Layout | None:
    if not isinstance(value, Tensor):
        return None
    return Layout(tuple(value.shape), tuple(value.stride()), value.dtype)


def _memory(tensor: Tensor) -> int:
    """A number for the memory that a tensor and all its views are in."""
    number: int = tensor.untyped_storage()._cdata
    return number


def _written(func: Any) -> list[tuple[int, str]]:
    """The arguments that an operation writes to, by position and name."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    places = []
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if alias is not None and alias.is_write:
            places.append((position, argument.name))
    return places


def _written_tensors(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that a call of an operation writes to."""
    for position, name in _written(func):
        given = args[position] if position < len(args) else kwargs.get(name)
        for value in pytree.tree_leaves(given):
            if isinstance(value, Tensor):
                yield value


def _looks_at_data(func: Any) -> bool:
    """True if the result is a number of Python's, on which the model's code may decide."""
    by_tag = torch.Tag.data_dependent_output in func.tags
    return by_tag or func is aten.is_nonzero.default


def _unrolled(func: Any) -> Callable[..., Any]:
    """A recurrent layer as operations that can be looked into."""
    from torch._decomp import decomposition_table  # slow to import

    unrolled: Callable[..., Any] = decomposition_table[func]
    return unrolled


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Its recurrent kernels are one operation each, which says nothing of what is inside."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
