"""Decides which models may be trained with DP-SGD, and how: proof first, trial second.

A model that lets one record into the gradients of others bounds nothing by clipping. So:

    * layers that are known to mix examples are refused by type;
    * models that remember anything from one forward pass to the next are refused (``state``);
    * for all others the fastest sound way to the gradients is found (``ways``). If that is not the
      one pass of a proven graph, a warning names the operation that stood in the way;
    * the result is tried on made-up inputs (``probe``), never on the client's data. A model that is
      seen to mix its examples is refused even where the slow way would train it soundly: computed
      alone it is another model than in a batch."""

import math
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
from proxyfl.losses import Objective
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.draws import same_draws
from proxyfl.privacy.perexample.gradients import Computation
from proxyfl.privacy.perexample.madeup import made_up
from proxyfl.privacy.perexample.probe import (
    JITTER,
    MadeUp,
    disagreement,
    jittered,
    mixing_layer,
    output,
    outputs,
)
from proxyfl.privacy.perexample.recording import WeightsWatched, uncompiled
from proxyfl.privacy.perexample.state import State
from proxyfl.privacy.perexample.userloss import CheckedLoss, check_loss
from proxyfl.privacy.perexample.ways import ByThemselves, Loss, OnePass, Way, alone, one_by_one
from proxyfl.settings import DP

_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_MIXERS: tuple[type[nn.Module], ...] = (nn.modules.batchnorm._BatchNorm,)


def checked_clipper(
    model: nn.Module,
    shape: Shape,
    *,
    dtype: torch.dtype | None = None,
    wide: bool = False,
    dp: DP | None = None,
    every_mode: bool = False,
) -> Clipper:
    """A ``Clipper`` for a proxy on examples of ``shape`` and ``dtype``, by the settings ``dp``.

    With ``wide`` its sums are float64. With ``every_mode`` it stays on the way of the training
    mode, which is the one that was checked.

    Raises ``ModelError``, naming the layer and what to use instead, if the model cannot be trained
    privately."""
    check_weights(model)
    for path, module in model.named_modules():
        _refuse_by_type(path, module)
    clipper = Clipper(model, wide=wide, dp=dp)
    with same_draws():  # which one thread has at a time
        way = _Check(clipper, shape, dtype).way()
    if every_mode:
        clipper.take(way)
    if way.reason is not None:
        _warn(model, way)
    return clipper


def check_weights(model: nn.Module) -> None:
    """Raises ``ModelError`` for weights that cannot be clipped and noised: none at all, not yet
    made, on several devices or on none, sparse, complex, in less than 16 bits, made in inference
    mode, or not finite."""
    kind = type(model).__name__
    devices = set()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise ModelError(
                f"'{name}' of the proxy model {kind} has no shape yet. Call the model once on "
                "made-up examples before it is trained."
            )
        devices.add(tensor.device)
    if len(devices) > 1 or torch.device("meta") in devices:
        raise ModelError(
            f"Expected all weights and buffers of the proxy model {kind} on one device, got "
            f"{', '.join(sorted(map(str, devices)))}. Move the model with model.to(device); from "
            "'meta', make it again."
        )
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.layout is not torch.strided or parameter.dtype not in _TYPES:
            layout = str(parameter.layout).removeprefix("torch.")
            raise ModelError(
                f"The weight '{name}' of the proxy model {kind} is {layout}, of type "
                f"{parameter.dtype}. Clipping and noise need dense weights of type float16, "
                "bfloat16, float32 or float64."
            )
        if parameter.is_inference():
            raise ModelError(
                f"The weight '{name}' of the proxy model {kind} was made in inference mode and "
                "cannot learn. Make the model outside of torch.inference_mode()."
            )
        if not parameter.detach().isfinite().all():
            raise ModelError(
                f"The weight '{name}' of the proxy model {kind} is not finite, so no step could "
                "learn anything. Start from finite weights."
            )
    if not params.size(model):
        raise ModelError(f"The proxy model {kind} has no trainable parameters: nothing to share.")


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
        return made_up(self.model, self.shape, n, salt=scale, dtype=self.dtype)

    def _refuse_memory(self) -> bool:
        """Two equal calls must leave the same model behind and give the same result. Tells whether
        the model draws random numbers."""
        before = State(self.model)
        others = _other_generators()
        with torch.no_grad(), same_draws(), uncompiled(), WeightsWatched(self.model):
            self.model(self._made_up(2))  # before anything else runs it, and may change it
        before.restore_buffers()
        results = []
        for _ in range(2):
            result, draws = output(self.model, self._made_up(2))
            results.append(result)
            before.check(buffers=False)
            before.restore_buffers()
        if _other_generators() != others:
            raise ModelError(
                f"The proxy model {type(self.model).__name__} draws from Python's or numpy's "
                "random numbers, whose seed is not secret. Draw with torch's random numbers."
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
            difference = _disagreement(self.model, tried, self._made_up)
        except ModelError as problem:
            difference = str(problem)
        finally:
            self.model.train()
            state.restore_buffers()
        if difference is None:
            return way
        slow = alone(self.model, self._made_up, difference)
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
"""The proxies that the trial has confirmed in this process. Clients with the same proxy pay for one
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
    difference = disagreement(model, way, made_up)
    if difference is None:
        _tried.add(key)
    return difference


def _other_generators() -> tuple[object, str]:
    """The state of Python's and numpy's own generators."""
    return random.getstate(), repr(np.random.get_state(legacy=False))


def _warn(model: nn.Module, way: Way) -> None:
    unseen = ""
    if way.computation is Computation.ONE_BY_ONE:
        unseen = (
            " A file, or another place that no check looks at, may still remember examples "
            "(docs/concepts/soundness.md)."
        )
    warnings.warn(
        f"{type(model).__name__}: every example's gradient is computed by itself ({way.name}), "
        f"which is slow. Why one backward pass was not enough: {way.reason}.{unseen}",
        stacklevel=3,
    )


def rehearse(
    clipper: Clipper, shape: Shape, dtype: torch.dtype, outputs: int, objective: Objective
) -> None:
    """Clip a made-up batch as a step will. Raises ``ModelError`` for what would fail there: a step
    is charged before it runs."""
    model = clipper.model

    def checked_loss(logits: Tensor, targets: Tensor) -> Tensor:
        if logits.dim() != 2 or logits.shape[1] != outputs:
            raise ModelError(
                f"Expected {outputs} logits for each example from the proxy model "
                f"{type(model).__name__}, got an output of shape {tuple(logits.shape)} for "
                f"{len(logits)} examples. Make its last layer as wide as there are classes."
            )
        return objective.loss(logits, targets)

    device = params.trainable(model)[0].device
    targets = objective.targets(objective.blank(2).to(device), outputs)
    _rehearse(clipper, shape, dtype, targets, checked_loss)


def rehearse_loss(
    clipper: Clipper, shape: Shape, dtype: torch.dtype, labels: Tensor, loss: Loss
) -> CheckedLoss:
    """``loss`` as ``clipper`` may use it (``userloss``), tried on a made-up batch as a step will
    run it. Of ``labels`` the shape and type are used.

    Raises ``ModelError`` for a loss that mixes records, and for what would fail in a step."""
    model = clipper.model

    def pairs(n: int) -> tuple[Tensor, Tensor]:
        outputs = _made_up_outputs(model, made_up(model, shape, n, dtype=dtype))
        return outputs, _made_up_targets(labels, outputs)

    was_training = model.training
    try:
        model.train()
        checked = check_loss(loss, pairs)
        targets = pairs(2)[1]
    finally:
        model.train(was_training)
    if (
        checked.computation is Computation.ONE_BY_ONE
        and clipper.gradients.way is Computation.VMAPPED
    ):
        # torch's vmap cannot run the loss's own Python
        clipper.take(ByThemselves(Computation.ONE_BY_ONE, model, one_by_one(model), checked.reason))
    if checked.reason:
        warnings.warn(
            f"{checked.name}: every example's loss is computed by itself ({checked.computation}), "
            f"which is slow. Why one backward pass was not enough: {checked.reason}.",
            stacklevel=3,
        )
    _rehearse(clipper, shape, dtype, targets, checked)
    return checked


def output_of_nothing(model: nn.Module, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Returns the model's output for one made-up example."""
    return _made_up_outputs(model, made_up(model, shape, 1, dtype=dtype))


def _made_up_outputs(model: nn.Module, x: Tensor) -> Tensor:
    """The outputs of the model with jittered weights; its buffers stay as they are."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad(), same_draws(), jittered(model, JITTER):
        outputs: Tensor = torch.func.functional_call(model, buffers, (x,))
    return outputs.detach().clone()


def _made_up_targets(labels: Tensor, outputs: Tensor) -> Tensor:
    """Targets of the labels' shape and type: classes below the number of outputs, zeros and ones,
    or numbers between 0 and 1."""
    n = len(outputs)
    shape = (n, *labels.shape[1:])
    numbers = torch.arange(math.prod(shape), device=outputs.device).view(shape)
    if labels.is_floating_point():
        return (0.5 + 0.4 * torch.sin(numbers * 1.9)).to(labels.dtype)
    width = outputs.shape[1] if outputs.dim() > 1 and labels.dim() == 1 else 2
    return (numbers % max(2, width)).to(labels.dtype)


def _rehearse(
    clipper: Clipper, shape: Shape, dtype: torch.dtype, targets: Tensor, loss: Loss
) -> None:
    model = clipper.model
    was_training = model.training
    before = State(model)
    try:
        model.train()
        with same_draws():
            x = made_up(model, shape, len(targets), dtype=dtype)
            clipper.clip(x, targets, loss, 1.0)
    except (
        RuntimeError,
        IndexError,
        TypeError,
        ValueError,
        KeyError,
        NotImplementedError,
    ) as error:
        raise ModelError(
            f"The gradients of the proxy model {type(model).__name__} cannot be clipped: {error}"
        ) from error
    finally:
        before.restore_buffers()
        model.train(was_training)


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
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.scale_grad_by_freq or module.max_norm is not None:
            raise ModelError(
                f"The proxy model's {where} is an {kind} with scale_grad_by_freq or max_norm, "
                "which look at the whole batch. Leave both at their defaults."
            )
        if module.sparse:
            raise ModelError(
                f"The proxy model's {where} is an {kind} with sparse=True: clipped gradients with "
                "noise have no zeros to leave out. Set sparse=False."
            )
    if getattr(module, "track_running_stats", False):
        raise ModelError(
            f"The proxy model's {where} is a {kind} that tracks running statistics of the data "
            "outside of DP-SGD. Set track_running_stats=False."
        )
