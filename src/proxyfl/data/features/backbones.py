"""Embedders by name, and the user's own as ``package.module:factory`` with a file of weights.

No pretrained network comes with this package: any network that is installed serves (timm's,
torchvision's, a hospital's own), with its weights in a local safetensors file.

An embedder is a module that maps images (N, *shape) to features (N, D). Its features of an image
depend on that image alone: a record that moves the features of another breaks the sensitivity that
DP-SGD's noise is scaled to. ``build`` tries that out and refuses an embedder that mixes images.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from proxyfl._entrypoint import resolve, translate_errors
from proxyfl._examples import Shape
from proxyfl._validate import suggestion
from proxyfl.data.features.scattering import scattering
from proxyfl.data.features.whitening import whitened
from proxyfl.errors import ModelError

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Embedder:
    """The factory of an embedder for images of a given shape, and one line about it."""

    factory: Callable[..., nn.Module]
    description: str


EMBEDDERS = {
    "scattering": Embedder(
        scattering, "fixed wavelets for images of any size; learnt from no data"
    ),
    "whitened": Embedder(whitened, "features in fewer directions, those of other, public features"),
}


def build(
    spec: str,
    shape: Shape,
    options: Mapping[str, Any] | None = None,
    *,
    weights: Path | None = None,
) -> tuple[nn.Module, int]:
    """Builds the embedder ``spec`` for images of ``shape``, in evaluation mode; returns it with the
    number of its features. ``weights`` is a safetensors file with all of its parameters."""
    factory = _factory(spec)
    options = options or {}
    _check_options(spec, factory, options)
    refused = f"Embedder {spec!r} cannot be made for images of shape {shape}:"
    arguments = (shape,) if _takes_shape(factory, options) else ()
    with translate_errors(ModelError, refused), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = factory(*arguments, **options)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"Expected a torch.nn.Module from {spec!r}, got {type(model).__name__}. Return the "
            "model from the factory."
        )
    if weights is not None:
        _load_weights(spec, model, weights)
    model.eval().requires_grad_(False)
    return model, _try(spec, model, shape)


def _factory(spec: str) -> Callable[..., Any]:
    if spec in EMBEDDERS:
        return EMBEDDERS[spec].factory
    if ":" not in spec:
        if spec == "efficientnet-lite0":
            raise ModelError(
                "efficientnet-lite0 no longer comes with proxyfl: the package of its weights "
                "states no licence. Name any network that is installed, with its weights "
                "(docs/guides/images.md). Run: "
                "proxyfl embed SOURCE --model package.module:factory --weights FILE.safetensors "
                "--out STORE"
            )
        known = suggestion(spec, EMBEDDERS)
        raise ModelError(
            f"Unknown embedder {spec!r}.{known} Give your own as package.module:factory."
        )
    return resolve(spec, error=ModelError)


def _load_weights(spec: str, model: nn.Module, path: Path) -> None:
    """Loads a safetensors file into ``model``; every parameter must be in it, and nothing else."""
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as problem:
        raise ModelError(
            f"The weights {path} cannot be read as safetensors: {problem}. Convert a PyTorch file "
            "with safetensors.torch.save_file(model.state_dict(), path)."
        ) from problem
    with translate_errors(ModelError, f"The weights {path} do not fit {spec!r}:"):
        model.load_state_dict(state)


def _takes_shape(factory: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """True if the first argument of ``factory`` is the images' shape: it is called ``shape``, or it
    has no default and is none of the ``options``."""
    first = next(iter(inspect.signature(factory).parameters.values()), None)
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        return False
    is_required = first.default is first.empty and first.kind is not first.VAR_POSITIONAL
    return first.name == "shape" or (is_required and first.name not in options)


def _check_options(spec: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = list(inspect.signature(factory).parameters.values())
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        return
    known = [parameter.name for parameter in parameters]
    if _takes_shape(factory, options):
        known = known[1:]
    for name in options:
        if name not in known:
            raise ModelError(
                f"Embedder {spec!r} has no option {name!r}. It has: {', '.join(known) or 'none'}."
            )


def _try(spec: str, model: nn.Module, shape: Shape) -> int:
    """The number of features, once the embedder has been seen to keep images apart."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, *shape, generator=generator)
    size = tuple(images.shape)
    refused = f"Embedder {spec!r} does not accept a batch of shape {size}:"
    with torch.inference_mode(), translate_errors(ModelError, refused):
        together = model(images)
    features: Any = type(together)
    if isinstance(together, Tensor):
        features = tuple(together.shape)
    if not isinstance(features, tuple) or len(features) != 2 or features[0] != 3:
        raise ModelError(
            f"Embedder {spec!r} gives {features} for three images, expected features (3, D). "
            "Return one flat vector for each image."
        )
    if not together.isfinite().all():
        raise ModelError(
            f"Embedder {spec!r} gives features of three images that are not all finite. Check its "
            "weights."
        )
    for image, beside in zip(images, together, strict=True):
        with torch.inference_mode():
            apart = model(image[None])[0]
        scale = float(beside.abs().max()) + 1e-12
        difference = float((apart - beside).abs().max())
        if not difference <= TOLERANCE * scale:
            raise ModelError(
                f"Embedder {spec!r} gives an image different features when it is embedded "
                "together with others. Features of one record must not depend on another, or the "
                "printed epsilon is wrong. Take an embedder without statistics over the batch."
            )
    return int(features[1])
