"""The Gaussian mechanism: noise on a sum of clipped gradients.

    g + N(0, (sigma C)^2 I)

with sigma the noise multiplier and C the clipping norm, which is the sum's sensitivity to one
example. The noise goes on the *sum*; who divides by the expected batch size divides the noise with
it.

Two ways to draw it. A ``Seeded`` source adds 32-bit floating-point noise, which is quick and
protects nobody anyway. All other noise is drawn exactly and added on a grid (``gaussian``), so that
no last bit of what is released says anything about the sum that was hidden.
"""

import torch
from torch import Tensor

from proxyfl import _validate
from proxyfl.errors import PrivacyError
from proxyfl.privacy import gaussian
from proxyfl.seeds import Randomness, Seeded


def add_noise(
    flat: Tensor, *, noise_multiplier: float, clip_norm: float, source: Randomness
) -> None:
    """Add N(0, (``noise_multiplier * clip_norm``)^2) to every element of ``flat``, in place.

    Guarantees: the standard deviation is the same for every element and depends on nothing in
    ``flat``; the noise is drawn on the CPU from ``source``, so that a simulation gives the same
    noise on every device. A multiplier of zero is refused: training without privacy does not come
    through here."""
    _validate.number("noise_multiplier", noise_multiplier, above=0)
    _validate.number("clip_norm", clip_norm, above=0)
    if not flat.is_floating_point():
        raise PrivacyError(
            f"Expected a floating-point sum of gradients to add noise to, got {flat.dtype}."
        )
    if isinstance(source, Seeded):
        noise = source.normal(flat.numel()).view(flat.shape)
        scale = noise_multiplier * clip_norm
        flat.add_(noise.to(device=flat.device, dtype=flat.dtype), alpha=scale)
        return
    step = gaussian.spacing(noise_multiplier, clip_norm)
    whole = gaussian.on_grid(flat.detach().cpu().double().numpy(), step)
    whole += gaussian.steps(flat.numel(), source.bits).reshape(whole.shape)
    flat.copy_(torch.from_numpy(whole * step))


def clip_norm_for(
    source: Randomness, clip_norm: float, *, noise_multiplier: float, size: int
) -> float:
    """The norm to clip gradients to, so that the sum that ``add_noise`` hides has sensitivity C.

    Real noise rounds the sum to a grid first, which can move it a little further than C.
    """
    if isinstance(source, Seeded):
        return clip_norm
    return gaussian.shortened(
        clip_norm, noise_multiplier=noise_multiplier, size=size
    )
