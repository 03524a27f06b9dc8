"""Models by name, and the user's own as ``package.module:factory``.

Guarantees of ``build``:
    * initial weights that come from torch's generator depend on ``seed`` alone, and the global
      generators of torch stay as they were;
    * the model maps a batch (N, *shape) to logits (N, classes): it was tried on two zero examples;
    * whatever goes wrong in the user's factory arrives as a ModelError that names the factory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from proxyfl._entrypoint import HERE, Imports, translate_errors
from proxyfl._examples import Shape
from proxyfl._validate import suggestion, whole
from proxyfl.errors import ModelError
from proxyfl.models.architectures import (
    cnn1,
    cnn2,
    fourier,
    hazards,
    lenet5,
    linear,
    mlp,
    resnet18,
    tabular,
    vgg,
)


@dataclass(frozen=True)
class Architecture:
    """The factory of a model for a given input shape and number of classes, and one line about
    it."""

    factory: Callable[[Shape, int], nn.Module]
    description: str


MODELS = {
    "linear": Architecture(
        linear, "logistic regression: few parameters, little DP noise, a good first proxy"
    ),
    "hazards": Architecture(
        hazards, "for a time to an event: one score and a baseline per interval; few parameters"
    ),
    "mlp": Architecture(mlp, "the paper's MLP, two hidden layers of 200; its MNIST proxy"),
    "lenet5": Architecture(
        lenet5, "two 5x5 convolutions, three dense layers; the paper's MNIST private model"
    ),
    "cnn1": Architecture(cnn1, "the paper's CNN1, 6 and 16 channels; its CIFAR-10 proxy"),
    "cnn2": Architecture(
        cnn2, "the paper's CNN2, 128 and 128 channels; its CIFAR-10 private model"
    ),
    "vgg": Architecture(vgg, "VGG-11 at a quarter of its width, for 100x80 endoscopy images"),
    "resnet18": Architecture(
        resnet18, "ResNet-18 with GroupNorm; the paper's histopathology model"
    ),
    "tabular": Architecture(tabular, "two hidden layers of 64, for tables"),
    "fourier": Architecture(
        fourier, "logistic regression on 256 random waves: a proxy for tables with interactions"
    ),
}


def build(
    spec: str, *, shape: Shape, classes: int, seed: int, imports: Imports = HERE
) -> nn.Module:
    """The model ``spec`` for inputs of ``shape`` and ``classes`` classes, in training mode.

    ``imports`` says which code ``spec`` may name, and where it is looked for."""
    for size in shape:
        whole("every size in shape", size, error=ModelError)
    whole("classes", classes, error=ModelError)
    whole("seed", seed, at_least=0, error=ModelError)
    factory = _factory(spec, imports)
    with torch.random.fork_rng(devices=[]):
        # Only the generator that fork_rng puts back: torch.manual_seed would reseed every
        # accelerator as well.
        torch.default_generator.manual_seed(seed)
        with translate_errors(
            ModelError,
            f"Model {spec!r} cannot be made for shape {tuple(shape)} and {classes} classes: it "
            "raised",
        ):
            model = factory(tuple(shape), classes)
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"Expected a torch.nn.Module from {spec!r}, got {type(model).__name__}: return "
                f"the model."
            )
        # Inside the fork: lazy layers draw their weights at the first call.
        _try(spec, model, tuple(shape), classes)
    return model.train()


def parameter_count(model: nn.Module) -> int:
    """The number of values that the model learns; a parameter that two layers share counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _factory(spec: str, imports: Imports) -> Callable[[Shape, int], object]:
    if spec in MODELS:
        return MODELS[spec].factory
    if ":" not in spec:
        from proxyfl.models.estimators import is_estimator  # which imports this module

        if is_estimator(spec, imports):
            raise ModelError(
                f"{spec!r} is fitted by scikit-learn, so it can be a private model only: it "
                'cannot travel. The network for logistic regression is "linear": set models.proxy '
                "to that."
            )
        meant = suggestion(spec, MODELS).removesuffix(".")
        raise ModelError(f"Unknown model {spec!r}.{meant}; or your own as package.module:factory.")
    return imports.resolve(spec, error=ModelError)


def _try(spec: str, model: nn.Module, shape: Shape, classes: int) -> None:
    """One forward pass of zeros, in evaluation mode so that running statistics stay as they are."""
    model.eval()
    batch = torch.zeros(2, *shape)
    size = tuple(batch.shape)
    refused = f"Model {spec!r} does not accept a batch of shape {size}:"
    with translate_errors(ModelError, refused), torch.no_grad():
        out = model(batch)
    shape_out = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if shape_out != (2, classes):
        raise ModelError(
            f"Model {spec!r} maps a batch of shape {size} to {shape_out}, expected logits of shape "
            f"{(2, classes)}."
        )
