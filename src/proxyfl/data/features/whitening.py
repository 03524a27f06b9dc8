r"""Features made fewer and equally strong, by what other people's public images look like.

    z = A (x - mu),   features = LENGTH z / |z|

The rows of A (principal directions, each divided by its deviation) come from a store of *public*
features, mu from the same or, where that shows something else, from one that shows what these do:
what all examples share only takes up length. Few features mean few parameters of a linear proxy,
and so less noise under DP; equal strengths and one length mean that clipping treats all examples
alike.

Guarantee: an example's features depend on that example and the public store alone.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from proxyfl._examples import Shape
from proxyfl._validate import whole
from proxyfl.data.stores.reading import load_store
from proxyfl.errors import ModelError

LENGTH = 3.0
"""The length of every example's features: about that of a table's."""
FLOOR = 0.1
"""The part of the mean variance that is added to each direction's, so that weak ones are not
blown up."""
MOST_EXAMPLES = 10_000
"""Public examples that are read."""


class Whitened(nn.Module):
    """Features in fewer, whitened directions."""

    def __init__(self, mean: Tensor, directions: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("directions", directions)

    def forward(self, features: Tensor) -> Tensor:
        centred = features.flatten(1) - self.get_buffer("mean")
        moved = centred @ self.get_buffer("directions")
        return LENGTH * nn.functional.normalize(moved)


def whitened(shape: Shape, *, by: str, centre: str = "", dimensions: int = 64) -> nn.Module:
    """The embedder of features of ``shape`` into ``dimensions`` principal directions of the public
    features in the store ``by``, around their mean or that of the public features in ``centre``."""
    whole("dimensions", dimensions, error=ModelError)
    x = _public(by, shape)
    if not dimensions <= min(x.shape):
        raise ModelError(
            f"Expected dimensions of at most {min(x.shape)}, which is what {len(x)} public "
            f"examples with {x.shape[1]} features have, got {dimensions}."
        )
    covariance = torch.cov(x.T)
    variances, vectors = torch.linalg.eigh(covariance)
    strongest = variances.argsort(descending=True)[:dimensions]
    kept = variances[strongest]
    scale = (kept + FLOOR * kept.mean()).rsqrt()
    directions = vectors[:, strongest] * scale
    middle = _public(centre or by, shape).mean(0)
    return Whitened(middle.float(), directions.float())


def _public(store: str, shape: Shape) -> Tensor:
    """Features of the store's training part, one row per example."""
    public = load_store(Path(store)).train
    if public.shape != shape:
        raise ModelError(
            f"{store} has features of shape {public.shape}, expected {shape}. Embed the public "
            "images with the model that made these features."
        )
    count = min(len(public), MOST_EXAMPLES)
    features = public.take(torch.arange(count))
    return features.flatten(1).double()
