"""The examples' axis after arithmetic: element by element, over dimensions, products."""

from proxyfl.privacy.perexample.axes import Rows
from proxyfl.privacy.perexample.step import Step, aligned, along, trailing


def broadcast(step: Step) -> Rows:
    """Element by element, with broadcasting: all rows along the same axis, counted from the
    right."""
    step.no_batch_size()
    return aligned(step, step.tensors(), _rank(step))


def where(step: Step) -> Rows:
    """One of two values; with the condition alone it would count over the batch."""
    if "other" not in step.inputs:
        step.fail("how many it picks depends on the data")
    return broadcast(step)


def _rank(step: Step) -> int:
    shape = step.shape
    return len(shape[0] if isinstance(shape, list) else shape)


def loss(step: Step) -> Rows:
    """A loss element by element, which must not be reduced over the batch."""
    _not_reduced(step)
    return broadcast(step)


def class_loss(step: Step) -> Rows:
    """A loss of classes, which lie along dimension 1; class weights are constants."""
    _not_reduced(step)
    step.no_batch_size()
    rows = step.only("self", "target")
    both = step.rows("self") is not None and step.rows("target") is not None
    if not both or rows.axis != 0 or step.rank("self") < 2:
        step.fail("the examples do not lie along dimension 0, which it takes for the batch")
    return rows


def _not_reduced(step: Step) -> None:
    if step.inputs["reduction"] != 0:
        step.fail('it takes the mean or the sum over the batch; use reduction="none"')


def leading(step: Step) -> Rows:
    """Takes dimension 0 for the batch: convolutions and norms."""
    step.no_batch_size()
    rows = step.only(step.first)
    if rows.axis != 0 or step.rank(step.first) < 2:
        step.fail("the examples do not lie along dimension 0, which it takes for the batch")
    return rows


def convolution(step: Step) -> Rows:
    """A convolution of a batch: without the batch dimension, channels would come first."""
    if step.rank("input") != step.rank("weight"):
        step.fail("its input has no batch dimension")
    return leading(step)


def instance_norm(step: Step) -> Rows:
    """Only with statistics of the input itself."""
    own = step.inputs["use_input_stats"]
    if not own or step.inputs["running_mean"] is not None:
        step.fail("it keeps running statistics")
    return leading(step)


def layer_norm(step: Step) -> Rows:
    return trailing(len(step.inputs["normalized_shape"]))(step)


def reduce(step: Step) -> Rows:
    """Sums, means, maxima over dimensions other than the examples'."""
    rows = along(step)
    dims = step.dims("dim", step.first)
    if step.inputs.get("keepdim"):
        return rows
    dropped = sum(d < rows.axis for d in dims)
    return rows.at(rows.axis - dropped)


def bilinear(step: Step) -> Rows:
    rows = step.only("input1", "input2")
    if rows.axis >= step.rank("input1") - 1:
        step.fail("it sums over the examples")
    return rows


def matmul(step: Step) -> Rows:
    """Products of matrices: an example may be a row on the left, a column on the right, or a whole
    matrix on both sides; never what is summed over."""
    names = list(step.named())
    left, right = names[-2:]
    is_vector = step.rank(right) == 1
    both = step.rows(left) is not None and step.rows(right) is not None
    places: set[tuple[int, int, int]] = set()
    summed_over = {left: -1, right: -1 if is_vector else -2}
    for name, summed in summed_over.items():
        rows = step.rows(name)
        if rows is None:
            continue
        position = rows.axis - step.rank(name)
        if position == summed:
            step.fail("it sums over the examples")
        if position >= -2 and both:
            step.fail("it compares examples with one another")
        if name == left and is_vector:
            position += 1
        places.add((position, rows.outer, rows.inner))
    if len(places) != 1:
        step.fail("it compares examples with one another")
    position, outer, inner = places.pop()
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
        step.fail("it deals a constant out to the examples by their place in the batch")
    aligned_rows = result.at(position + len(shape))
    if rows is not None and not matrix and rows != aligned_rows:
        step.fail("it compares examples with one another")


def attention(step: Step) -> Rows:
    """softmax(q k^T) v: the examples are whole matrices in all of them."""
    nodes = [step.inputs[name] for name in ("query", "key", "value")]
    constant = any(step.axes[node] is None for node in nodes)
    mask = step.inputs.get("attn_mask")
    if mask is not None:
        nodes.append(mask)
    rank = len(step.shape)
    rows = aligned(step, nodes, rank)
    if constant or rows.axis >= rank - 2:
        step.fail("it lets examples attend to one another")
    return rows


def einsum(step: Step) -> Rows:
    """The examples' letter is the same in every tensor that carries them, and in the result."""
    equation = str(step.inputs["equation"]).replace(" ", "")
    inputs, _, output = equation.partition("->")
    parts = inputs.split(",")
    twice = any(len(set(part)) != len(part) for part in parts)
    if "." in inputs or not output or twice:
        step.fail("write einsum with one letter per dimension and an explicit result")
    letters: set[str] = set()
    folds: set[tuple[int, int]] = set()
    of_constants = ""
    for part, node in zip(parts, step.inputs["tensors"], strict=True):
        rows = step.axes[node]
        if rows is None:
            of_constants += part
        else:
            letters.add(part[rows.axis])
            folds.add((rows.outer, rows.inner))
    if len(letters) != 1 or len(folds) != 1:
        step.fail("it compares examples with one another")
    letter = letters.pop()
    if letter in of_constants:
        step.fail("it deals a constant out to the examples by their place in the batch")
    if letter not in output:
        step.fail("it sums over the examples")
    return Rows(output.index(letter), *folds.pop())


def prelu(step: Step) -> Rows:
    rows = step.only("self")
    if rows.axis == 1:
        step.fail("it takes the examples for channels")
    return rows
