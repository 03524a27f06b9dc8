r"""Canaries: records that an auditor plants by coin because they leave the clearest trace.

A record can move a step's sum by at most C, so a canary's gradient should have norm C once clipped.
What one canary adds should not be mistaken for what another adds, so the clipped gradients should
be nearly orthogonal:

    x = s times a row of a random orthogonal matrix        orthogonal in the first layer
    the same x with other labels y                         p(x) - e_y differ, and no label is learnt
    s doubled until nine of ten gradients exceed 5 C       clipped to norm C, at first at least

The audit measures with the gradients as they are, not as they were meant: a canary whose gradient
falls below C in the course of a training merely counts for less.

Guarantees:
    * inputs, labels and coins depend on the generator alone, and no coin depends on anything else;
    * ``clipped_gradients`` has rows of norm at most C, computed without ``privacy.perexample``: the
      audit does not rely on the code that it audits.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from proxyfl import params
from proxyfl._validate import whole
from proxyfl.data.examples import InMemory
from proxyfl.losses import NO_BALANCE, Balance, Objective, objective_of
from proxyfl.tasks import MULTILABEL, REGRESSION, Task

_CHUNK = 2**24
"""Gradients are computed for so many canaries at once that they hold about this many numbers."""

ANCHOR_COPIES = 8
"""Copies of each anchor."""

_LONG = 5.0
"""A canary's gradient is this many times as long as the clip norm, at first."""

_LARGEST_SCALE = 2.0**20


@dataclass(frozen=True)
class Canaries:
    """Inputs, labels, and which of them the audited client really has (``planted``).

    The last ``anchors`` of them are no secret: the client has ``ANCHOR_COPIES`` of each. What
    several equal records add is seen more clearly, so the step-by-step audit measures with them.
    """

    x: Tensor
    labels: Tensor
    planted: Tensor
    anchors: int = 0
    objective: Objective = NO_BALANCE
    """What the model learns by; with the labels of its task."""

    def __len__(self) -> int:
        return len(self.labels) - self.anchors

    @property
    def copies(self) -> Tensor:
        """The client's copies of each: 0 or 1 of a canary, several of an anchor."""
        copies = self.planted.long()
        copies[len(self) :] = ANCHOR_COPIES
        return copies

    @property
    def expected_records(self) -> int:
        """The client's number of records, on average over the coins."""
        return len(self) // 2 + ANCHOR_COPIES * self.anchors

    def examples(self) -> InMemory:
        """The audited client's data; each record is a person of its own."""
        x = self.x.repeat_interleave(self.copies, dim=0)
        labels = self.labels.repeat_interleave(self.copies, dim=0)
        return InMemory(x, labels, torch.arange(len(labels)))

    def larger(self, factor: float) -> "Canaries":
        """The same with inputs ``factor`` times as large."""
        return replace(self, x=self.x * factor)


def make(
    count: int,
    shape: tuple[int, ...],
    classes: int,
    generator: torch.Generator,
    *,
    anchors: int = 0,
) -> Canaries:
    """``count`` canaries of unit length, each planted by a fair coin of its own, and anchors."""
    whole("canaries", count, at_least=2)
    whole("anchors", anchors, at_least=0)
    width = math.prod(shape)
    directions = min(count, width)
    # An anchor has the label that comes to its direction last.
    of_anchors = directions * (classes - 1) + torch.arange(anchors)
    numbers = torch.cat([torch.arange(count), of_anchors])
    block = numbers // (directions * classes)
    direction = numbers % directions
    tables = []
    for _ in range(int(block.max()) + 1):
        tables.append(_directions(directions, width, generator))
    x = torch.stack(tables)[block, direction]
    labels = (numbers // directions + direction) % classes
    planted = torch.rand(count + anchors, generator=generator) < 0.5
    planted[count:] = True
    return Canaries(x.reshape(-1, *shape), labels, planted, anchors)


def of_task(canaries: Canaries, task: Task) -> Canaries:
    """Canaries of two classes as those of another task: the first class has the lowest label that
    there is and the second the highest, which pull a model furthest apart."""
    if task.kind == REGRESSION:
        ends = torch.tensor(task.range)
    elif task.kind == MULTILABEL:
        ends = torch.tensor([[0.0] * task.outputs, [1.0] * task.outputs])
    else:
        ends = torch.tensor([[task.horizon, 0.0], [0.0, 1.0]])
    return replace(canaries, labels=ends[canaries.labels], objective=objective_of(task))


def _directions(count: int, width: int, generator: torch.Generator) -> Tensor:
    """``count`` orthonormal rows of length ``width``."""
    gaussian = torch.randn(width, count, generator=generator)
    columns: Tensor = torch.linalg.qr(gaussian).Q
    return columns.T


def enlarge(canaries: Canaries, model: nn.Module, clip_norm: float) -> Canaries:
    """The canaries, enlarged until nine of ten gradients at ``model`` exceed the clip norm five
    times.

    Where enlarging does not help (a model that normalises its inputs), they stay at unit length.
    """
    factor = 1.0
    theta = params.flatten(model)
    while factor < _LARGEST_SCALE:
        candidate = canaries.larger(factor)
        norms = gradients(model, theta, candidate).norm(dim=1)
        if float(norms.quantile(0.1)) >= _LONG * clip_norm:
            return candidate
        factor *= math.sqrt(2)
    return canaries


def gradients(model: nn.Module, theta: Tensor, canaries: Canaries) -> Tensor:
    """Each canary's gradient of the cross-entropy at the parameters ``theta``: (count, size)."""
    names = params.names(model)
    pieces = params.split(model, theta.detach())
    at = dict(zip(names, pieces, strict=True))

    objective = canaries.objective

    def loss(values: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(model, values, (x[None],))
        if isinstance(objective, Balance):
            return functional.cross_entropy(outputs, label[None])
        return objective.loss(outputs, label[None]).sum()

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    size = max(1, params.size(model))
    at_once = max(1, _CHUNK // size)
    everyone = torch.arange(len(canaries.labels))
    rows_of_gradients = []
    with params.evaluating(model):
        for rows in torch.split(everyone, at_once):
            x = canaries.x[rows]
            labels = canaries.labels[rows]
            if not isinstance(objective, Balance):
                labels = objective.targets(labels, 0)
            by_name = each(at, x, labels)
            parts = [by_name[name].flatten(1) for name in names]
            rows_of_gradients.append(torch.cat(parts, dim=1))
    return torch.cat(rows_of_gradients)


def clipped_gradients(
    model: nn.Module, theta: Tensor, canaries: Canaries, clip_norm: float
) -> Tensor:
    """The same, each clipped to ``clip_norm`` and in units of it."""
    rows = gradients(model, theta, canaries)
    norms = rows.norm(dim=1, keepdim=True)
    clipped: Tensor = rows / norms.clamp(min=clip_norm)
    return clipped
