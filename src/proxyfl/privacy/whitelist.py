"""The operations that are known to keep examples apart: a table to be audited, line by line.

Each function says where the examples are after the operation, or fails. It sees symbolic shapes
(``rowwise.Step``). Names are those of ATen, without overloads; in-place forms go by the same name."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import fx

from proxyfl.privacy.axes import Rows, Times
from proxyfl.privacy.rowwise import Axes, Step, base_name


def broadcast(step: Step) -> Rows:
    """Element by element, with broadcasting: all rows along the same axis, counted from the
    right."""
    step.no_batch_size()
    return _aligned(step, list(step.tensors()), _rank(step))


def where(step: Step) -> Rows:
    """One of two values; with the condition alone it would count over the batch."""
    if "other" not in step.inputs:
        _fail(step, "how many it picks depends on the data")
    return broadcast(step)


def _rank(step: Step) -> int:
    return len(step.shape[0] if isinstance(step.shape, list) else step.shape)


def _aligned(step: Step, nodes: list[fx.Node], rank: int) -> Rows:
    found: set[Rows] = set()
    for node in nodes:
        rows = step.axes[node]
        if rows is not None:
            found.add(rows.at(rows.axis - len(step.shapes[node]) + rank))
    if len(found) != 1:
        _fail(step, "it compares examples with one another")
    rows = found.pop()
    for node in nodes:
        position = rows.axis - rank + len(step.shapes[node])
        constant = step.axes[node] is None
        if constant and position >= 0 and step.shapes[node][position] != 1:
            _fail(step, "it deals a constant out to the examples by their place in the batch")
    return rows


def several(function: Callable[[Step], Rows]) -> Callable[[Step], Axes]:
    """The same for each of several outputs."""

    def each(step: Step) -> Axes:
        rows = function(step)
        return [rows] * len(step.shape) if isinstance(step.shape, list) else rows

    return each


def trailing(count: int) -> Callable[[Step], Rows]:
    """Works on the last ``count`` dimensions of its first input; weights are constants."""

    def after(step: Step) -> Rows:
        step.no_batch_size()
        rows = step.only(step.first)
        if rows.axis >= step.rank(step.first) - count:
            _fail(step, "it works across the examples")
        return rows

    return several(after)


def leading(step: Step) -> Rows:
    """Takes dimension 0 for the batch: convolutions and norms."""
    step.no_batch_size()
    rows = step.only(step.first)
    if rows.axis != 0 or step.rank(step.first) < 2:
        _fail(step, "the examples do not lie along dimension 0, which it takes for the batch")
    return rows


def convolution(step: Step) -> Rows:
    """A convolution of a batch: without the batch dimension, channels would come first."""
    if step.rank("input") != step.rank("weight"):
        _fail(step, "its input has no batch dimension")
    return leading(step)


def instance_norm(step: Step) -> Rows:
    """Only with statistics of the input itself."""
    if step.inputs["running_mean"] is not None or not step.inputs["use_input_stats"]:
        _fail(step, "it keeps running statistics")
    return leading(step)


def layer_norm(step: Step) -> Rows:
    return trailing(len(step.inputs["normalized_shape"]))(step)


def along(step: Step) -> Rows:
    """Works along the dimensions that ``dim`` or ``dims`` names, and keeps them."""
    step.no_batch_size()
    rows = step.only(step.first)
    name = "dims" if "dims" in step.inputs else "dim"
    if rows.axis in step.dims(name, step.first):
        _fail(step, "it works across the examples")
    return rows


def reduce(step: Step) -> Rows:
    """Sums, means, maxima over dimensions other than the examples'."""
    rows = along(step)
    dims = step.dims("dim", step.first)
    if step.inputs.get("keepdim"):
        return rows
    return rows.at(rows.axis - sum(d < rows.axis for d in dims))


def reshape(step: Step) -> Rows:
    """Row-major order stays: entries before and after an example's are counted, not guessed."""
    rows = step.rows("self")
    if rows is None or "dtype" in step.inputs:
        _fail(step, "it takes the examples apart")
    blocks = _product(step.shape_of("self")[: rows.axis]) * rows.outer
    growing = [d for d, size in enumerate(step.shape) if not isinstance(size, int)]
    if len(growing) != 1 or not isinstance(step.shape[growing[0]], Times):
        _fail(step, "it takes the examples apart")
    axis = growing[0]
    before = _product(step.shape[:axis])
    factor = step.shape[axis].factor
    outer = blocks // max(1, before)
    if outer == 0 or before * outer != blocks or factor % outer:
        _fail(step, "it takes the examples apart")
    return Rows(axis, outer, factor // outer)


def _product(sizes: tuple[Any, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def permute(step: Step) -> Rows:
    """Dimensions change places: tried on a tensor whose sizes are all different."""
    step.no_batch_size()
    name = step.first
    rows = step.only(name)
    marked = torch.empty(*range(1, step.rank(name) + 1), device="meta")
    moved = step.traced.operation(**{**step.inputs, name: marked})
    return rows.at(list(moved.shape).index(rows.axis + 1))


def unsqueeze(step: Step) -> Rows:
    rows = step.only(step.first)
    dim = step.inputs["dim"] % (step.rank(step.first) + 1)
    return rows.at(rows.axis + (dim <= rows.axis))


def squeeze(step: Step) -> Rows:
    """Drops dimensions of size one; never the examples', which has more than one here."""
    rows = step.only(step.first)
    shape = step.shape_of(step.first)
    dims = step.dims("dim", step.first)
    if rows.axis in dims:
        _fail(step, "it drops the batch dimension when the batch holds one example")
    return rows.at(rows.axis - sum(d < rows.axis and shape[d] == 1 for d in dims))


def expand(step: Step) -> Rows:
    """Rows stay; a constant that is spread over the examples is the same in every row."""
    name = step.first
    rows = step.rows(name)
    rank = len(step.shape)
    if rows is not None:
        return rows.at(rows.axis + rank - step.rank(name))
    return _uniform(step)


def repeat(step: Step) -> Rows:
    rows = step.rows("self")
    new = len(step.shape) - step.rank("self")
    repeats = step.inputs["repeats"]
    if rows is not None:
        if repeats[rows.axis + new] != 1:
            _fail(step, "it repeats the batch")
        return rows.at(rows.axis + new)
    return _uniform(step)


def repeat_interleave(step: Step) -> Rows:
    rows = step.only("self")
    if step.inputs.get("dim") is None or not isinstance(step.inputs["repeats"], int):
        _fail(step, "the number of repeats is not a constant")
    if step.dims("dim", "self") != [rows.axis]:
        return rows
    return Rows(rows.axis, rows.outer, rows.inner * step.inputs["repeats"])


def create(step: Step) -> Rows:
    """A new tensor of one value, or of random numbers, with room for each example."""
    if isinstance(step.inputs.get("fill_value"), Times):
        _fail(step, "its value depends on how many examples there are")
    return _uniform(step)


def uninitialised(step: Step) -> Rows:
    """Memory as it was found, if the next operation writes over all of it."""
    following = next(iter(step.node.users), None)
    if (
        following is None
        or following.args[0] is not step.node
        or base_name(following) not in OVERWRITES
    ):
        _fail(step, "it reads memory that nothing was written to")
    rows = step.rows(step.first) if any(True for _ in step.tensors()) else None
    return rows if rows is not None and step.shape == step.shape_of(step.first) else _uniform(step)


OVERWRITES = {
    (name, True) for name in ("bernoulli", "fill", "zero", "uniform", "normal", "copy", "random")
}


def _uniform(step: Step) -> Rows:
    growing = [d for d, size in enumerate(step.shape) if not isinstance(size, int)]
    if len(growing) != 1 or not isinstance(step.shape[growing[0]], Times):
        _fail(step, "its size does not follow from the number of examples")
    axis = growing[0]
    return Rows(axis, 1, step.shape[axis].factor)


def select(step: Step) -> Rows:
    rows = along(step)
    return rows.at(rows.axis - (step.dims("dim", "self")[0] < rows.axis))


def cut(step: Step) -> Axes:
    """Slices along other dimensions, or one that keeps the whole batch."""
    rows = step.rows("self")
    if rows is not None and step.dims("dim", "self") == [rows.axis]:
        if step.shape != step.shape_of("self") or step.inputs.get("step", 1) != 1:
            _fail(step, "it cuts the batch")
        return rows
    if rows is None:
        _fail(step, "it cuts a constant to the size of the batch")
    return along(step)


def unbind(step: Step) -> Axes:
    return [select(step)] * len(step.shape)


def cat(step: Step) -> Rows:
    """Tensors side by side, or batches one after the other: k batches are ``outer`` = k."""
    nodes = step.inputs["tensors"]
    found = [step.axes[node] for node in nodes]
    dim = step.inputs.get("dim", 0) % len(step.shape)
    same = {rows and (rows.axis, rows.inner) for rows in found}
    if None in same or len(same) != 1:
        _fail(step, "it joins examples with something else")
    if found[0].axis != dim:
        return _aligned(step, nodes, len(step.shape))
    return Rows(dim, sum(rows.outer for rows in found), found[0].inner)


def stack(step: Step) -> Rows:
    nodes = step.inputs["tensors"]
    rows = _aligned(step, nodes, len(step.shape) - 1)
    dim = step.inputs.get("dim", 0) % len(step.shape)
    return rows.at(rows.axis + (dim <= rows.axis))


def index(step: Step) -> Rows:
    """One index: a constant one into rows, or rows into a constant table."""
    given = [(d, i) for d, i in enumerate(step.inputs["indices"]) if i is not None]
    if len(given) != 1:
        _fail(step, "it picks by several indices")
    dim, picked = given[0]
    rows, picking = step.rows("self"), step.axes[picked]
    width = len(step.shapes[picked])
    if picked.meta["val"].dtype in (torch.bool, torch.uint8):
        _fail(step, "how many it picks depends on the data")
    if rows is None and picking is not None:
        return Rows(picking.axis + dim, picking.outer, picking.inner)
    if rows is None or picking is not None or rows.axis == dim:
        _fail(step, "it picks among the examples")
    return rows.at(rows.axis + (width - 1) * (rows.axis > dim))


def embedding(step: Step) -> Rows:
    """Rows of numbers pick from a constant table."""
    if step.inputs.get("scale_grad_by_freq") or step.inputs.get("sparse"):
        _fail(step, "scale_grad_by_freq counts over the whole batch")
    return step.only("indices")


def one_hot(step: Step) -> Rows:
    if not isinstance(step.inputs["num_classes"], int) or step.inputs["num_classes"] < 1:
        _fail(step, "the number of classes is taken from the batch")
    return step.only("self")


def gather(step: Step) -> Rows:
    """Picks within each example."""
    rows = step.only("self", "index", "src")
    if rows.axis in step.dims("dim", "self") or step.rows("index") is None:
        _fail(step, "it picks among the examples")
    if any(step.axes[node] is None for node in step.tensors()):
        _fail(step, "it deals a constant out to the examples by their place in the batch")
    return rows


def pad(step: Step) -> Rows:
    return trailing(len(step.inputs["pad"]) // 2)(step)


def unfold(step: Step) -> Rows:
    rows = step.only("self")
    if step.inputs["dimension"] % step.rank("self") == rows.axis:
        _fail(step, "it cuts the batch")
    return rows


def linear(step: Step) -> Rows:
    return trailing(1)(step)


def bilinear(step: Step) -> Rows:
    rows = step.only("input1", "input2")
    if rows.axis >= step.rank("input1") - 1:
        _fail(step, "it sums over the examples")
    return rows


def matmul(step: Step) -> Rows:
    """Products of matrices: an example may be a row on the left, a column on the right, or a whole
    matrix on both sides; never what is summed over."""
    names = [name for name, value in step.inputs.items() if isinstance(value, fx.Node)]
    left, right = names[-2:]
    found: set[tuple[int, int, int]] = set()
    for name, forbidden in ((left, -1), (right, -2 if step.rank(right) > 1 else -1)):
        rows = step.rows(name)
        if rows is None:
            continue
        position = rows.axis - step.rank(name)
        if position == forbidden:
            _fail(step, "it sums over the examples")
        if position >= -2 and step.rows(right if name == left else left) is not None:
            _fail(step, "it compares examples with one another")
        if name == left and step.rank(right) == 1:
            position += 1
        found.add((position, rows.outer, rows.inner))
    if len(found) != 1:
        _fail(step, "it compares examples with one another")
    position, outer, inner = found.pop()
    result = Rows(len(step.shape) + position, outer, inner)
    for name in names:
        _constant_fits(step, name, position, result, matrix=name in (left, right))
    return result


def _constant_fits(step: Step, name: str, position: int, result: Rows, *, matrix: bool) -> None:
    """A constant has one entry along the examples' axis, wherever it is broadcast against it."""
    shape = step.shape_of(name)
    broadcasts = position < -2 or not matrix
    rows = step.rows(name)
    meets = rows is None and broadcasts and len(shape) >= -position
    if meets and shape[position] != 1:
        _fail(step, "it deals a constant out to the examples by their place in the batch")
    if rows is not None and not matrix and rows != result.at(position + len(shape)):
        _fail(step, "it compares examples with one another")


def attention(step: Step) -> Rows:
    """softmax(q k^T) v: the examples are whole matrices in all of them."""
    nodes = [step.inputs[name] for name in ("query", "key", "value")]
    mask = step.inputs.get("attn_mask")
    rows = _aligned(step, nodes if mask is None else [*nodes, mask], len(step.shape))
    if rows.axis >= len(step.shape) - 2 or any(step.axes[node] is None for node in nodes):
        _fail(step, "it lets examples attend to one another")
    return rows


def einsum(step: Step) -> Rows:
    """The examples' letter is the same in every tensor that carries them, and in the result."""
    inputs, _, output = str(step.inputs["equation"]).replace(" ", "").partition("->")
    letters: set[str] = set()
    folds: set[tuple[int, int]] = set()
    parts = inputs.split(",")
    if "." in inputs or not output or any(len(set(part)) != len(part) for part in parts):
        _fail(step, "write einsum with one letter per dimension and an explicit result")
    for part, node in zip(parts, step.inputs["tensors"], strict=True):
        rows = step.axes[node]
        if rows is not None:
            letters.add(part[rows.axis])
            folds.add((rows.outer, rows.inner))
    if len(letters) != 1 or len(folds) != 1:
        _fail(step, "it compares examples with one another")
    letter = letters.pop()
    for part, node in zip(parts, step.inputs["tensors"], strict=True):
        if step.axes[node] is None and letter in part:
            _fail(step, "it deals a constant out to the examples by their place in the batch")
    if letter not in output:
        _fail(step, "it sums over the examples")
    return Rows(output.index(letter), *folds.pop())


def prelu(step: Step) -> Rows:
    rows = step.only("self")
    if rows.axis == 1:
        _fail(step, "it takes the examples for channels")
    return rows


def _fail(step: Step, why: str) -> NoReturn:
    step.fail(why)
    raise AssertionError


def _table(groups: dict[Callable[[Step], Axes], str]) -> dict[str, Callable[[Step], Axes]]:
    table: dict[str, Callable[[Step], Axes]] = {}
    for function, names in groups.items():
        for name in names.split():
            table[name] = function
    return table


OPERATIONS = _table(
    {
        several(broadcast): """
            abs add addcdiv addcmul alias alpha_dropout atan atan2 bernoulli bitwise_and
            bitwise_not bitwise_or ceil celu clamp clamp_max clamp_min clone contiguous copy cos
            detach div divide dropout elu eq erf exp exp2 expm1 feature_alpha_dropout
            feature_dropout fill floor floor_divide fmod frac full_like ge gelu gt hardshrink
            hardsigmoid hardswish hardtanh isfinite isinf isnan le leaky_relu lerp lift_fresh
            lift_fresh_copy log log10 log1p log2 log_sigmoid logical_and logical_not logical_or
            logit lt masked_fill maximum minimum mish mul multiply nan_to_num native_dropout ne neg
            normal ones_like positive pow rand_like randn_like reciprocal relu relu6 remainder
            round rrelu rrelu_with_noise rsqrt rsub selu sgn sigmoid sign silu sin sinh softplus
            softshrink sqrt square sub subtract tan tanh threshold to _to_copy true_divide trunc
            type_as uniform xlogy zero zeros_like""",
        where: "where",
        trailing(
            1
        ): "adaptive_avg_pool1d adaptive_max_pool1d avg_pool1d max_pool1d upsample_linear1d"
        " upsample_nearest1d",
        trailing(2): "adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d max_pool2d"
        " max_pool2d_with_indices upsample_bicubic2d upsample_bilinear2d upsample_nearest2d tril"
        " triu",
        trailing(3): "adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d max_pool3d"
        " upsample_nearest3d upsample_trilinear3d pixel_shuffle pixel_unshuffle",
        convolution: "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
        leading: "group_norm channel_shuffle im2col",
        instance_norm: "instance_norm",
        layer_norm: "layer_norm rms_norm",
        several(
            along
        ): "cummax cummin cumprod cumsum flip glu log_softmax logcumsumexp roll softmax"
        " sort split split_with_sizes unsafe_split chunk unsafe_chunk tensor_split topk"
        " index_select _softmax _log_softmax",
        several(reduce): "all amax amin any argmax argmin linalg_vector_norm logsumexp max mean"
        " median min norm prod std sum var count_nonzero var_mean std_mean",
        reshape: "view reshape flatten unflatten _unsafe_view view_as reshape_as",
        permute: "permute transpose t swapaxes swapdims movedim moveaxis mT numpy_T",
        unsqueeze: "unsqueeze",
        squeeze: "squeeze",
        expand: "expand expand_as",
        repeat: "repeat",
        repeat_interleave: "repeat_interleave",
        create: "zeros ones full new_zeros new_ones new_full rand randn",
        uninitialised: "empty new_empty empty_like",
        select: "select",
        cut: "slice narrow",
        unbind: "unbind",
        cat: "cat concat",
        stack: "stack",
        index: "index",
        embedding: "embedding",
        one_hot: "one_hot",
        gather: "gather scatter scatter_add",
        pad: "pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d"
        " replication_pad2d",
        unfold: "unfold",
        linear: "linear",
        bilinear: "bilinear",
        matmul: "matmul mm bmm mv addmm baddbmm",
        attention: "scaled_dot_product_attention",
        einsum: "einsum",
        prelu: "prelu",
    }
)
