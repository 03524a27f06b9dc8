r"""The sum of per-example gradients, each clipped to norm C (paper, Eq. 7, first line).

    g_i <- g_i / max(1, |g_i| / C)        |g_i| over all trainable parameters together

Guarantees:
    * every example's contribution has norm at most C: norms are upper bounds in the arithmetic that
      is used (``terms.norms``), and ``_SLACK`` leaves room for the rounding of the scaled numbers;
    * with ``wide``, sums are float64. In float32 the rounding of a sum of n gradients depends on
      all of them, and one more moves it by C and up to 3e-5 C (n = 250) or 5e-4 C (n = 4000);
    * adding or removing one example changes the sum by at most C. That rests on how the gradients
      are computed (``ways``), not on a trial: in one pass only where a proof says that the examples
      stay apart, by themselves otherwise. The loss of example i must depend on row i alone;
    * with ``normalize``, all of this holds too: a factor may exceed 1, and never lets a gradient
      exceed C;
    * an example whose gradient is not finite contributes nothing, and changes nothing for the
      others: their random draws and the model's buffers are those of one run, as without it;
    * an empty batch gives zeros, and moves the model's buffers on as any other batch does;
    * with ``max_physical_batch_size``, a larger batch is computed in slices of at most so many
      examples: the same sum up to rounding, and the buffers move on once, as in one pass;
    * what was checked is what is clipped: a model with other weights or buffers than it had, and
      examples of another shape or type, are refused;
    * where records come in groups, all of this holds of groups in place of examples (``grouped``).
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl import params
from proxyfl._setonce import SetOnce
from proxyfl.errors import ModelError
from proxyfl.privacy.perexample.gradients import Gradients
from proxyfl.privacy.perexample.grouped import Piece, pieces
from proxyfl.privacy.perexample.madeup import made_up
from proxyfl.privacy.perexample.term import Materialised, Term, total_square_norms
from proxyfl.privacy.perexample.ways import Clipped, Loss, Way, choose
from proxyfl.settings import DP

_SLACK = 16
"""Units of the last place by which a clipped gradient is made shorter, so that rounding cannot
carry it past C."""


class Clipper(SetOnce, changing=("_ways", "_example")):
    """Clipped gradient sums of one model. Holds the flat buffer that ``Clipped.total`` points into.

    The way to the gradients is found once per mode (training, evaluation), at ``prepare`` or at the
    first call, on made-up inputs of the same shape."""

    def __init__(self, model: nn.Module, *, wide: bool = False, dp: DP | None = None) -> None:
        """``dp`` has the settings of the clipping, except C, which ``clip`` takes."""
        self.model = model
        self._dp = DP() if dp is None else dp
        flat = params.flatten(model)
        self._dtype = flat.dtype
        self._flat = torch.zeros_like(flat, dtype=torch.float64 if wide else flat.dtype)
        # for each trainable parameter its part of the flat buffer, in the parameter's shape
        parts = params.split(model, self._flat)
        views: dict[Tensor, Tensor] = dict(zip(params.trainable(model), parts, strict=True))
        self.views: Mapping[Tensor, Tensor] = MappingProxyType(views)
        self._ways: dict[bool, Way] = {}
        self._example: tuple[tuple[int, ...], torch.dtype | None] | None = None
        self._tensors = _tensors(model)
        self._kept = [*model.parameters(), *model.buffers()]  # no address is given out twice

    @property
    def gradients(self) -> Gradients:
        """The way in which the gradients are computed in the model's present mode, and why;
        ``prepare`` must have found it out."""
        way = self._ways[self.model.training]
        return Gradients(way.computation, way.reason or "")

    def prepare(self, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Way:
        """Find the way to the gradients for examples of ``shape``, for the model's present mode."""
        mode = self.model.training
        self._example = self._example or (shape, dtype)
        if mode not in self._ways:
            self._ways[mode] = choose(
                self.model,
                lambda n: made_up(self.model, shape, n, dtype=dtype),
                sliced=self._dp.max_physical_batch_size is not None,
            )
        return self._ways[mode]

    def take(self, way: Way) -> None:
        """Use ``way`` in every mode from now on."""
        self._ways = {True: way, False: way}

    def check_unchanged(self) -> None:
        """Raise ``ModelError`` if the model's weights or buffers are not those that were checked:
        their values may change, nothing else."""
        now = _tensors(self.model)
        for name in self._tensors.keys() | now.keys():
            if name not in now or name not in self._tensors:
                change = "was removed" if name in self._tensors else "is new"
            elif now[name] != self._tensors[name]:
                change = "was replaced, moved, converted, frozen or given a hook"
            else:
                continue
            raise ModelError(
                f"'{name}' of the proxy model {type(self.model).__name__} {change} after the "
                "model was checked. The proof of its privacy holds for the model as it was "
                "checked. Change a proxy before DPSGD is made, and write values into its weights "
                "with copy_()."
            )

    def _check_examples(self, x: Tensor) -> None:
        shape, dtype = self._example or (tuple(x.shape[1:]), x.dtype)
        if tuple(x.shape[1:]) != shape or x.dtype is not (dtype or x.dtype):
            raise ModelError(
                f"Expected examples of shape {shape} and type {dtype}, as the proxy model "
                f"{type(self.model).__name__} was checked for, got {tuple(x.shape[1:])} and "
                f"{x.dtype}."
            )

    def clip(
        self, x: Tensor, targets: Tensor, loss: Loss, clip_norm: float, sizes: Tensor | None = None
    ) -> Clipped:
        """The clipped sum over the batch. Overwrites the buffer of the previous call.

        With ``sizes``, groups are clipped instead of examples: the first sizes[0] rows are the
        records of one group, and so on. A group's gradient is the mean over its records."""
        self.check_unchanged()
        self._check_examples(x)
        shape = tuple(x.shape[1:])
        way = self.prepare(shape, x.dtype)
        if x.shape[0] == 0:
            way.advance(made_up(self.model, shape, 1, dtype=x.dtype))
            self._flat.zero_()
            return Clipped(self._flat, 0.0, self._flat.new_empty(0))
        most = self._dp.max_physical_batch_size
        limits = [each for each in (most, way.at_once) if each is not None]
        parts = list(pieces(x.shape[0], sizes, min(limits, default=None)))
        if len(parts) == 1:
            return self._clip(way, parts[0], x, targets, loss, clip_norm)
        total = torch.zeros_like(self._flat)
        total_loss = 0.0
        norms = []
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        for piece in parts:
            # Each starts from the same buffers: how often they move on must tell nothing.
            for buffer, value in buffers:
                buffer.copy_(value)
            part = self._clip(way, piece, x, targets, loss, clip_norm)
            total += part.total
            total_loss += part.loss
            norms.append(part.norms)
        self._flat.copy_(total)
        return Clipped(self._flat, total_loss, torch.cat(norms))

    def _clip(
        self, way: Way, piece: Piece, x: Tensor, targets: Tensor, loss: Loss, clip_norm: float
    ) -> Clipped:
        if piece.rows is not None:
            x = x[piece.rows]
            targets = targets[piece.rows]
        losses, terms = way.terms(x, targets, loss, piece.groups)
        with torch.no_grad():
            terms = merged(terms)
            norms = total_square_norms(terms, losses).sqrt()
            if math.isfinite(float(norms.sum())):
                self._add_up(terms, norms, clip_norm)
                return Clipped(self._flat, float(losses.sum()), norms)
            finite = norms.isfinite()
            for term in terms:
                term.drop(~finite)
            self._add_up(terms, norms.where(finite, 0.0), clip_norm)
            return Clipped(self._flat, float(losses[finite].sum()), norms[finite])

    def _add_up(self, terms: list[Term], norms: Tensor, clip_norm: float) -> None:
        """Eq. (7): sum_i g_i / max(1, |g_i| / C), with a C that is ``_SLACK`` shorter.

        With ``normalize``: sum_i C g_i / (|g_i| + gamma), each of norm below C as well (AUTO-S of
        Bu et al., arXiv 2206.07136)."""
        limits = torch.finfo(self._dtype)
        shorter = clip_norm / (1 + _SLACK * limits.eps)
        if self._dp.normalize:
            c = (shorter / (norms + self._dp.normalize_gamma)).clamp_(max=limits.max)
        else:
            c = (shorter / norms).clamp_(max=1)
        # Below this a factor has too few digits left to be a bound: its example contributes zero.
        c = F.threshold(c, limits.tiny / limits.eps, 0.0).to(self._dtype)
        if len(terms) < len(self.views):
            self._flat.zero_()  # a parameter without a term has no gradient
        for term in terms:
            term.weighted_sum(c, out=self.views[term.parameter])


def _tensors(model: nn.Module) -> dict[str, tuple[object, ...]]:
    """All of each weight and buffer that a step leaves as it is: everything except its values."""
    known: dict[str, tuple[object, ...]] = {}
    seen = set()
    todo = [("", model)]
    while todo:  # by hand: torch's generators take several times as long
        path, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                hooks = tuple(tensor._backward_hooks or ())
                looks = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
                place = (id(tensor), tensor.data_ptr())
                known[path + name] = (*place, *looks, tensor.requires_grad, hooks)
        for name, child in module._modules.items():
            if child is not None:
                todo.append((f"{path}{name}.", child))
    return known


def merged(terms: list[Term]) -> list[Term]:
    """One term per parameter: where one is used more than once, its gradients add up before the
    norm is taken."""
    uses: dict[Tensor, list[Term]] = {}
    for term in terms:
        uses.setdefault(term.parameter, []).append(term)
    result: list[Term] = []
    for parameter, several in uses.items():
        if len(several) == 1:
            result.append(several[0])
            continue
        total = several[0].per_example().clone()
        for term in several[1:]:
            total += term.per_example()
        result.append(Materialised(parameter, total))
    return result
