"""Which models may be trained with DP-SGD: those that treat every example by itself.

A layer that mixes the examples of a batch lets one record change every other record's gradient, so
clipping bounds nothing. Known ones are refused by type; any other is found by a trial on made-up
inputs (never on the client's data): if the first example's output at a layer changes when only the
other examples are exchanged, that layer mixes."""

from typing import Any

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl.errors import ModelError
from proxyfl.privacy.clipping import Clipper

_MIXERS: tuple[type[nn.Module], ...] = (nn.modules.batchnorm._BatchNorm,)


def check_private_trainable(
    model: nn.Module, shape: tuple[int, ...], *, name: str = "proxy"
) -> None:
    """Raise ``ModelError``, naming the layer and what to use instead, if ``model`` cannot be
    trained privately."""
    if not params.trainable(model):
        raise ModelError(
            f"The {name} model {type(model).__name__} has no trainable parameters: nothing to "
            f"share."
        )
    for path, module in model.named_modules():
        _refuse_by_type(path, module, name)
    _refuse_by_trial(model, shape, name)


def checked_clipper(
    model: nn.Module, shape: tuple[int, ...], classes: int, *, name: str = "proxy"
) -> Clipper:
    """A ``Clipper`` for a model that may be trained privately, its fast way compared once with
    plain autograd."""
    check_private_trainable(model, shape, name=name)
    clipper = Clipper(model)
    was_training = model.training
    model.eval()  # so that dropout, which draws anew in every call, does not look like an error
    x, y = _made_up(model, shape, 3), torch.arange(3, device=_device(model)) % classes
    try:
        found = clipper.clip(x, y, _cross_entropy, clip_norm=float("inf")).total.clone()
        expected = torch.autograd.grad(
            _cross_entropy(model(x), y).sum(), list(clipper.views), materialize_grads=True
        )
        if not torch.allclose(
            found, torch.cat([g.reshape(-1) for g in expected]), rtol=1e-3, atol=1e-5
        ):
            clipper.go_one_by_one()
    except RuntimeError as error:
        raise ModelError(
            f"The {name} model {type(model).__name__} cannot be differentiated example by "
            f"example: {error}"
        ) from error
    finally:
        model.train(was_training)
    return clipper


def _refuse_by_type(path: str, module: nn.Module, name: str) -> None:
    kind, where = type(module).__name__, f"layer '{path}'" if path else "the model itself"
    if isinstance(module, _MIXERS):
        raise ModelError(
            f"The {name} model's {where} is a {kind}, which mixes the examples of a batch, so no "
            f"per-example privacy "
            "guarantee is possible. Use nn.GroupNorm instead (private models may keep it)."
        )
    if isinstance(module, nn.Embedding) and (
        module.scale_grad_by_freq or module.max_norm is not None
    ):
        raise ModelError(
            f"The {name} model's {where} is an Embedding with scale_grad_by_freq or max_norm, "
            f"which look at the whole "
            "batch. Leave both at their defaults."
        )
    if getattr(module, "track_running_stats", False):
        raise ModelError(
            f"The {name} model's {where} is a {kind} that tracks running statistics of the data "
            f"outside of DP-SGD. "
            "Set track_running_stats=False."
        )


def _refuse_by_trial(model: nn.Module, shape: tuple[int, ...], name: str) -> None:
    first = _made_up(model, shape, 3)
    second = torch.cat([first[:1], _made_up(model, shape, 3, salt=5)[1:]])
    a, b = _traces(model, first), _traces(model, second)
    for path, kind in a:
        left, right = a[path, kind], b.get((path, kind), [])
        for one, other in zip(left, right, strict=False):
            if not torch.allclose(one[:1], other[:1], rtol=1e-4, atol=1e-5, equal_nan=True):
                where = f"layer '{path}' ({kind})" if path else f"model {kind}"
                raise ModelError(
                    f"The {name} {where} mixes the examples of a batch: its output for one "
                    f"example changes when only "
                    "the others do, so no per-example privacy guarantee is possible. Use layers "
                    "that treat each "
                    "example by itself."
                )


def _traces(model: nn.Module, x: Tensor) -> dict[tuple[str, str], list[Tensor]]:
    """Each module's outputs, innermost first, with the same dropout draws every time and no change
    to the model."""
    seen: dict[tuple[str, str], list[Tensor]] = {}

    def record(path: str, kind: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dim() and len(output) == len(x):
                seen.setdefault((path, kind), []).append(output.detach().clone())

        return hook

    hooks = [
        m.register_forward_hook(record(path, type(m).__name__)) for path, m in model.named_modules()
    ]
    was_training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model.train()
            model(x)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return seen


def _made_up(model: nn.Module, shape: tuple[int, ...], n: int, salt: int = 1) -> Tensor:
    """``n`` inputs of ``shape`` that no client's data had a part in; another ``salt`` gives
    others."""
    ramp = torch.arange(n * torch.Size(shape).numel(), device=_device(model)).view(n, *shape)
    first = next(m for m in model.modules() if params.trainable(m) and not list(m.children()))
    if isinstance(first, nn.Embedding):
        return (ramp * salt) % first.num_embeddings
    return torch.sin(ramp * 0.7 * salt + 0.1).to(params.trainable(model)[0].dtype) * salt


def _device(model: nn.Module) -> torch.device:
    return next(iter(params.trainable(model))).device


def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, y, reduction="none")
