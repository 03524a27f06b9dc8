"""The Gaussian mechanism: noise on a sum of clipped gradients.

    g + N(0, (sigma C)^2 I)

with sigma the noise multiplier and C the clipping norm, which is the sum's sensitivity to one
example. The noise goes on the *sum*; who divides by the expected batch size divides the noise with
it.

The draws are 32-bit floating-point numbers. Guarantees are stated for real-valued Gaussians, as
they are by every accountant; a recipient who exploits which bit patterns cannot occur (Mironov
2012) is outside them."""

from torch import Tensor

from proxyfl import _validate
from proxyfl.errors import PrivacyError
from proxyfl.seeds import Randomness


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
    noise = source.normal(flat.numel()).view(flat.shape)
    flat.add_(noise.to(device=flat.device, dtype=flat.dtype), alpha=noise_multiplier * clip_norm)
