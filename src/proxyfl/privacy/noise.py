"""The Gaussian mechanism: noise on a sum of clipped gradients.

    g + N(0, (sigma C)^2 I)

with sigma the noise multiplier and C the clipping norm, which is the sum's sensitivity to one
example. The noise goes on the *sum*; who divides by the expected batch size divides the noise with
it.

Two ways to draw it. A ``Seeded`` source adds 32-bit floating-point noise, which is quick and
protects nobody anyway. All other noise is drawn exactly and added on a grid (``gaussian``): what is
released is floor(Q + N) for the sum Q on the grid, a function of what the accountants are about, so
that no last bit of it says anything about the sum that was hidden.
"""

import torch
from torch import Tensor

from proxyfl import _validate
from proxyfl.errors import PrivacyError
from proxyfl.privacy import gaussian
from proxyfl.seeds import Randomness, Seeded

_PART = 2**18
"""Values that get their noise at a time: enough for the sampler, and little memory."""


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
            f"Expected a floating-point sum of gradients to add noise to, got {flat.dtype}. "
            "Convert the model with model.float()."
        )
    if isinstance(source, Seeded):
        noise = source.normal(flat.numel()).view(flat.shape)
        scale = noise_multiplier * clip_norm
        flat.add_(noise.to(device=flat.device, dtype=flat.dtype), alpha=scale)
        return
    _add_on_grid(flat.detach(), gaussian.spacing(noise_multiplier, clip_norm), source)


def _add_on_grid(flat: Tensor, step: float, source: Randomness) -> None:
    """Replaces the sum by step (round(sum / step) + floor(N)), N of standard deviation 2^30 steps.

    A float64 above 2^53 is a whole number, too. In place where ``flat`` is float64, as it is in
    training."""
    values = flat.reshape(-1).double()
    # a tensor and no number, by which a GPU would multiply the reciprocal
    divisor = values.new_tensor(step)
    for start in range(0, len(values), _PART):
        part = values[start : start + _PART]
        noise = torch.from_numpy(gaussian.steps(len(part), source.bits))
        part.div_(divisor).round_().add_(noise.to(part.device)).mul_(divisor)
    if values.data_ptr() != flat.data_ptr():
        flat.copy_(values.view(flat.shape))


def clip_norm_for(
    source: Randomness, clip_norm: float, *, noise_multiplier: float, size: int
) -> float:
    """The norm to clip gradients to, so that the sum that ``add_noise`` hides has sensitivity C.

    Real noise rounds the sum to a grid first, which can move it a little further than C.
    """
    if isinstance(source, Seeded):
        return clip_norm
    return gaussian.shortened(clip_norm, noise_multiplier=noise_multiplier, size=size)
