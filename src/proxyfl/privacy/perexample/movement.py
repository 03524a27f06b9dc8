"""The examples' axis after data moved: views, cuts, joins, look-ups, new tensors."""

import math
import sys
from typing import Any

import torch

from proxyfl.privacy.perexample.axes import Rows, Times
from proxyfl.privacy.perexample.step import Axes, Step, aligned, along, base_name, trailing


def reshape(step: Step) -> Rows:
    """Row-major order stays: entries before and after an example's are counted, not guessed."""
    rows = step.rows("self")
    if rows is None or "dtype" in step.inputs:
        step.fail("it takes the examples apart")
    sizes: tuple[Any, ...] = step.shape_of("self")
    blocks = math.prod(sizes[: rows.axis]) * rows.outer
    axis = _growing(step, "it takes the examples apart")
    before = math.prod(step.shape[:axis])
    factor = step.shape[axis].factor
    outer = blocks // max(1, before)
    if outer == 0 or before * outer != blocks or factor % outer:
        step.fail("it takes the examples apart")
    return Rows(axis, outer, factor // outer)


def permute(step: Step) -> Rows:
    """Dimensions change places: tried on a tensor whose sizes are all different."""
    step.no_batch_size()
    name = step.first
    rows = step.only(name)
    sizes = range(1, step.rank(name) + 1)
    marked = torch.empty(*sizes, device="meta")
    inputs = {**step.inputs, name: marked}
    moved = step.traced.operation(**inputs)
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
        step.fail("it drops the batch dimension when the batch holds one example")
    dropped = sum(d < rows.axis and shape[d] == 1 for d in dims)
    return rows.at(rows.axis - dropped)


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
            step.fail("it repeats the batch")
        return rows.at(rows.axis + new)
    return _uniform(step)


def repeat_interleave(step: Step) -> Rows:
    rows = step.only("self")
    repeats = step.inputs["repeats"]
    if step.inputs.get("dim") is None or not isinstance(repeats, int):
        step.fail("the number of repeats is not a constant")
    if step.dims("dim", "self") != [rows.axis]:
        return rows
    return Rows(rows.axis, rows.outer, rows.inner * repeats)


def create(step: Step) -> Rows:
    """A new tensor of one value, or of random numbers, with room for each example."""
    if isinstance(step.inputs.get("fill_value"), Times):
        step.fail("its value depends on how many examples there are")
    return _uniform(step)


def uninitialised(step: Step) -> Rows:
    """Memory as it was found, if the next operation writes over all of it."""
    overwritten(step)
    if step.tensors():
        rows = step.rows(step.first)
        if rows is not None and step.shape == step.shape_of(step.first):
            return rows
    return _uniform(step)


def overwritten(step: Step) -> None:
    """Fail unless the next operation writes over all of this one's output."""
    following = next(iter(step.node.users), None)
    if (
        following is None
        or following.args[0] is not step.node
        or base_name(following) not in OVERWRITES
    ):
        step.fail("it reads memory that nothing was written to")


UNINITIALISED = {
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
    "resize",
}

OVERWRITES = {
    (name, True) for name in ("bernoulli", "fill", "zero", "uniform", "normal", "copy", "random")
}


def _uniform(step: Step) -> Rows:
    axis = _growing(step, "its size does not follow from the number of examples")
    return Rows(axis, 1, step.shape[axis].factor)


def _growing(step: Step, otherwise: str) -> int:
    """The one dimension of the output that grows with the number of examples; fail if there is
    none, or another whose size is not known."""
    growing = [d for d, size in enumerate(step.shape) if not isinstance(size, int)]
    if len(growing) != 1 or not isinstance(step.shape[growing[0]], Times):
        step.fail(otherwise)
    return growing[0]


def select(step: Step) -> Rows:
    rows = along(step)
    dim = step.dims("dim", "self")[0]
    return rows.at(rows.axis - (dim < rows.axis))


def cut(step: Step) -> Axes:
    """Slices along other dimensions, or one that keeps the whole batch, however large."""
    rows = step.rows("self")
    if rows is not None and step.dims("dim", "self") == [rows.axis]:
        start = step.inputs.get("start")
        end = step.inputs.get("end", step.inputs.get("length"))
        to_the_end = end is None or end == Times(rows.folded) or end == sys.maxsize
        every = step.inputs.get("step", 1) == 1
        if start not in (None, 0) or not to_the_end or not every:
            step.fail("it cuts the batch")
        return rows
    if rows is None:
        step.fail("it cuts a constant to the size of the batch")
    return along(step)


def unbind(step: Step) -> Axes:
    return [select(step)] * len(step.shape)


def cat(step: Step) -> Rows:
    """Tensors side by side, or batches one after the other: k batches are ``outer`` = k."""
    nodes = step.inputs["tensors"]
    all_rows = [step.axes[node] for node in nodes]
    dim = step.inputs.get("dim", 0) % len(step.shape)
    same = {rows and (rows.axis, rows.inner) for rows in all_rows}
    if None in same or len(same) != 1:
        step.fail("it joins examples with something else")
    if all_rows[0].axis != dim:
        return aligned(step, nodes, len(step.shape))
    outer = sum(rows.outer for rows in all_rows)
    return Rows(dim, outer, all_rows[0].inner)


def stack(step: Step) -> Rows:
    nodes = step.inputs["tensors"]
    rows = aligned(step, nodes, len(step.shape) - 1)
    dim = step.inputs.get("dim", 0) % len(step.shape)
    return rows.at(rows.axis + (dim <= rows.axis))


def index(step: Step) -> Rows:
    """One index: a constant one into rows, or rows into a constant table."""
    indices = step.inputs["indices"]
    given = [d for d, picked in enumerate(indices) if picked is not None]
    if len(given) != 1:
        step.fail("it picks by several indices")
    dim = given[0]
    picked = indices[dim]
    rows = step.rows("self")
    picking = step.axes[picked]
    width = len(step.shapes[picked])
    if picked.meta["val"].dtype in (torch.bool, torch.uint8):
        step.fail("how many it picks depends on the data")
    if rows is None and picking is not None:
        return Rows(picking.axis + dim, picking.outer, picking.inner)
    if rows is None or picking is not None or rows.axis == dim:
        step.fail("it picks among the examples")
    moved = width - 1 if rows.axis > dim else 0
    return rows.at(rows.axis + moved)


def embedding(step: Step) -> Rows:
    """Rows of numbers pick from a constant table."""
    if step.inputs.get("scale_grad_by_freq") or step.inputs.get("sparse"):
        step.fail("scale_grad_by_freq counts over the whole batch")
    return step.only("indices")


def one_hot(step: Step) -> Rows:
    classes = step.inputs["num_classes"]
    if not isinstance(classes, int) or classes < 1:
        step.fail("the number of classes is taken from the batch")
    return step.only("self")


def gather(step: Step) -> Rows:
    """Picks within each example."""
    rows = step.only("self", "index", "src")
    if rows.axis in step.dims("dim", "self") or step.rows("index") is None:
        step.fail("it picks among the examples")
    if any(step.axes[node] is None for node in step.tensors()):
        step.fail("it deals a constant out to the examples by their place in the batch")
    return rows


def pad(step: Step) -> Rows:
    return trailing(len(step.inputs["pad"]) // 2)(step)


def unfold(step: Step) -> Rows:
    rows = step.only("self")
    if step.inputs["dimension"] % step.rank("self") == rows.axis:
        step.fail("it cuts the batch")
    return rows
