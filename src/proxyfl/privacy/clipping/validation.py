"""Decides which models may be trained with DP-SGD, and how: proof first, trial second.

A model that lets one record into the gradients of others bounds nothing by clipping. So:

    * layers that are known to mix examples are refused by type;
    * models that remember anything from one forward pass to the next are refused (``state``);
    * for all others the fastest sound way to the gradients is found (``ways``). If that is not the
      one pass of a proven graph, a warning names the operation that stood in the way;
    * the result is tried on made-up inputs (``probe``), never on the client's data. A model that is
      seen to mix its examples is refused even where the slow way would train it soundly: computed
      alone it is another model than in a batch."""

import random
import warnings
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl._examples import Shape
from proxyfl.errors import ModelError
from proxyfl.privacy.clipping.clipper import Clipper
from proxyfl.privacy.clipping.madeup import made_up
from proxyfl.privacy.clipping.probe import (
    MadeUp,
    disagreement,
    mixing_layer,
    output,
    outputs,
)
from proxyfl.privacy.clipping.state import State
from proxyfl.privacy.clipping.ways import ONE_BY_ONE, OnePass, Way, alone
from proxyfl.privacy.draws import same_draws

_MIXERS: tuple[type[nn.Module], ...] = (nn.modules.batchnorm._BatchNorm,)


def checked_clipper(
    model: nn.Module,
    shape: Shape,
    *,
    dtype: torch.dtype | None = None,
    wide: bool = False,
    at_once: int | None = None,
) -> Clipper:
    """A ``Clipper`` for a proxy on examples of ``shape`` and ``dtype``; with ``wide`` its sums are
    float64, with ``at_once`` it computes so many examples at a time.

    Raises ``ModelError``, naming the layer and what to use instead, if the model cannot be trained
    privately."""
    if not params.trainable(model):
        raise ModelError(
            f"The proxy model {type(model).__name__} has no trainable parameters: nothing to "
            "share."
        )
    for path, module in model.named_modules():
        _refuse_by_type(path, module)
    clipper = Clipper(model, wide=wide, at_once=at_once)
    with same_draws():  # which one thread has at a time
        way = _Check(clipper, shape, dtype).way()
    if way.reason is not None:
        _warn(model, way)
    return clipper


@dataclass(frozen=True)
class _Check:
    """The steps of the check, in training mode; the model is left as it was."""

    clipper: Clipper
    shape: Shape
    dtype: torch.dtype | None

    @property
    def model(self) -> nn.Module:
        return self.clipper.model

    def way(self) -> Way:
        """Find the way to the gradients, and try it."""
        was_training = self.model.training
        before = State(self.model)
        try:
            self.model.train()
            draws = self._refuse_memory()
            way = self.clipper.prepare(self.shape, self.dtype)
            if isinstance(way, OnePass):
                way = self._tried(way, draws=draws)
            if not isinstance(way, OnePass):
                self._refuse_what_only_one_pass_allows(way)
        except ModelError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError, KeyError) as error:
            raise ModelError(
                f"The proxy model {type(self.model).__name__} cannot be run and "
                f"differentiated on examples of shape {self.shape}: {error}"
            ) from error
        finally:
            before.restore_buffers()
            self.model.train(was_training)
        return way

    def _made_up(self, n: int, scale: float = 1.0) -> Tensor:
        return made_up(
            self.model,
            self.shape,
            n,
            salt=scale,
            dtype=self.dtype,
        )

    def _refuse_memory(self) -> bool:
        """Two equal calls must leave the same model behind and give the same result. Tells whether
        the model draws random numbers."""
        before = State(self.model)
        others = _other_generators()
        results = []
        for _ in range(2):
            result, draws = output(self.model, self._made_up(2))
            results.append(result)
            before.check(buffers=False)
            before.restore_buffers()
        if _other_generators() != others:
            raise ModelError(
                f"The proxy model {type(self.model).__name__} draws from Python's or numpy's "
                "random numbers, whose seed is no secret. Draw with torch's random numbers."
            )
        first, second = results
        if (
            first is None
            or second is None
            or not torch.equal(first.nan_to_num(), second.nan_to_num())
        ):
            raise ModelError(
                f"The proxy model {type(self.model).__name__} gives another result when it "
                "is called again with the same input and the same random draws, or not one row per "
                "example. It must depend on nothing but its input, its weights and torch's random "
                "numbers."
            )
        return draws

    def _tried(self, way: OnePass, *, draws: bool) -> Way:
        """``way``, or a slow one if the model alone does not bear it out."""
        state = State(self.model)
        if draws:
            self.model.eval()  # dropout draws anew in every call, which would look like an error
        tried = self.clipper.prepare(self.shape, self.dtype)
        try:
            found = _disagreement(self.model, tried, self._made_up)
        except ModelError as problem:
            found = str(problem)
        finally:
            self.model.train()
            state.restore_buffers()
        if found is None:
            return way
        slow = alone(self.model, self._made_up, found)
        self.clipper.take(slow)
        return slow

    def _refuse_what_only_one_pass_allows(self, way: Way) -> None:
        for path, module in self.model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                raise ModelError(
                    f"The proxy model's layer '{path}' is TorchScript. Nobody can see what "
                    f"such a layer remembers, so it is trained in one pass only ({way.reason}). "
                    "Use the module that it was made from."
                )
        state = State(self.model, deep=True)
        for n in (1, 2):
            outputs(self.model, self._made_up(n))
            state.check()
        mixing = mixing_layer(self.model, self._made_up)
        if mixing is not None:
            raise ModelError(
                f"The proxy {mixing} mixes the examples of a batch: its output for one "
                "example changes when only the others do, so no per-example privacy guarantee is "
                f"possible ({way.reason}). Use layers that treat each example by itself."
            )


_tried: set[Hashable] = set()
"""The proxies that the trial has borne out in this process. Clients with the same proxy pay for one
trial; each of them is recorded and proven by itself."""


def _disagreement(model: nn.Module, way: Way, made_up: MadeUp) -> str | None:
    if not isinstance(way, OnePass):
        return disagreement(model, way, made_up)
    weights = [*model.parameters(), *model.buffers()]
    key = (
        way.program.text,
        tuple(type(module) for module in model.modules()),
        tuple((each.shape, each.dtype, each.device) for each in weights),
        made_up(1, 1.0).shape,
    )
    if key in _tried:
        return None
    found = disagreement(model, way, made_up)
    if found is None:
        _tried.add(key)
    return found


def _other_generators() -> tuple[object, str]:
    """The state of Python's and numpy's own generators."""
    return random.getstate(), repr(np.random.get_state(legacy=False))


def _warn(model: nn.Module, way: Way) -> None:
    unseen = ""
    if way.name == ONE_BY_ONE:
        unseen = (
            " Nothing checks that its Python keeps no example outside of its weights and buffers "
            "(docs/soundness.md)."
        )
    warnings.warn(
        f"{type(model).__name__}: every example's gradient is computed by itself ({way.name}), "
        f"which is slow. What stood in the way of one pass: {way.reason}.{unseen}",
        stacklevel=3,
    )


def _refuse_by_type(path: str, module: nn.Module) -> None:
    kind = type(module).__name__
    where = f"layer '{path}'" if path else "the model itself"
    if not path and isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            "The proxy model is TorchScript, whose weights cannot be exchanged for a trial. Use "
            "the module that it was made from."
        )
    if isinstance(module, _MIXERS):
        raise ModelError(
            f"The proxy model's {where} is a {kind}, which mixes the examples of a batch, so no "
            "per-example privacy guarantee is possible. Use nn.GroupNorm instead (private models "
            "may keep it)."
        )
    if isinstance(module, nn.Embedding) and (
        module.scale_grad_by_freq or module.max_norm is not None
    ):
        raise ModelError(
            f"The proxy model's {where} is an Embedding with scale_grad_by_freq or max_norm, "
            "which look at the whole batch. Leave both at their defaults."
        )
    if getattr(module, "track_running_stats", False):
        raise ModelError(
            f"The proxy model's {where} is a {kind} that tracks running statistics of the data "
            "outside of DP-SGD. Set track_running_stats=False."
        )
