"""One stated rule brings images of any size and colour mode to one shape.

Size:    ``resize`` stretches an image to the stated size; ``pad`` scales it to fit and fills the
         rest; ``crop`` scales it to cover and cuts the middle out.
Colour:  ``rgb`` or ``grey``. Palettes become colours. What is transparent is laid on the filling.
         Sixteen bits of grey become the upper eight. A camera's note of orientation is followed.

A mode that has no stated scale (32-bit or floating point) is refused: nobody knows what is white.
So are files of several frames or pages, and what claims more pixels than Pillow deems safe.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from proxyfl._validate import choice, whole
from proxyfl.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

FITS = ("resize", "pad", "crop")
MODES = {"rgb": "RGB", "grey": "L"}
FILLINGS = {"black": 0, "white": 255}
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")
KNOWN = ("1", "L", "P", "RGB", "RGBA", "LA", "PA", "La", "RGBa", "CMYK", "YCbCr", "HSV", "LAB")

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Rule:
    """The rule by which an image becomes an array (channels, height, width) of eight-bit pixels."""

    width: int
    height: int
    fit: str = "resize"
    mode: str = "rgb"
    filling: str = "black"

    def __post_init__(self) -> None:
        whole("width", self.width, error=DataError)
        whole("height", self.height, error=DataError)
        choice("fit", self.fit, FITS, error=DataError)
        choice("colour mode", self.mode, MODES, error=DataError)
        choice("filling", self.filling, FILLINGS, error=DataError)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what comes out."""
        return (3 if self.mode == "rgb" else 1, self.height, self.width)

    def apply(self, path: Path) -> Pixels:
        """The image in ``path``, by this rule; DataError if it is none."""
        images = pillow(path)
        try:
            with images.open(path) as opened:
                _check_frames(path, opened)
                upright = _upright(opened)
                coloured = self._convert_colours(path, upright)
                fitted = self._fit(coloured)
        except DataError:
            raise
        except Exception as problem:
            # Pillow's decoders raise whatever their format makes them
            raise DataError(
                f"{path}: not a readable image ({type(problem).__name__}: {problem})"
            ) from problem
        return channels_first(np.asarray(fitted, dtype=np.uint8))

    def _convert_colours(self, path: Path, image: "Image") -> "Image":
        if image.mode in SIXTEEN_BITS:
            values = np.asarray(image, dtype=np.uint16) >> 8
            image = pillow(path).fromarray(values.astype(np.uint8))
        if image.mode not in KNOWN:
            raise DataError(
                f"{path}: expected grey, colour or a palette of at most 16 bits, got Pillow's mode "
                f"{image.mode!r}, whose scale is not known"
            )
        if image.has_transparency_data:
            back = pillow(path).new("RGBA", image.size, (self._level,) * 3 + (255,))
            image = pillow(path).alpha_composite(back, image.convert("RGBA"))
        if image.mode == "P":
            image = image.convert("RGB")
        return image.convert(MODES[self.mode])

    @property
    def _level(self) -> int:
        return FILLINGS[self.filling]

    def _fit(self, image: "Image") -> "Image":
        from PIL import Image, ImageOps

        size = (self.width, self.height)
        if image.size == size:
            return image
        method = Image.Resampling.BICUBIC
        if self.fit == "resize":
            return image.resize(size, method, reducing_gap=3.0)
        if self.fit == "crop":
            return ImageOps.fit(image, size, method)
        colour = self._level if self.mode == "grey" else (self._level,) * 3
        return ImageOps.pad(image, size, method, color=colour)


def channels_first(values: npt.NDArray[np.uint8]) -> Pixels:
    """(H, W) or (H, W, C) as (C, H, W)."""
    if values.ndim == 2:
        return values[None]
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def _check_frames(path: Path, image: "Image") -> None:
    """Refuse films and files of several pages: which of them is the image is not stated. In a
    camera's MPO the first is, others are previews or the other eye's."""
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        raise DataError(f"{path}: expected one image, got {frames} frames")


def _upright(image: "Image") -> "Image":
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def pillow(path: Path) -> Any:
    """Pillow's module of images, or the advice to install it."""
    try:
        from PIL import Image
    except ImportError as problem:
        raise DataError(
            f"{path}: reading images needs Pillow: pip install 'proxyfl[images]'."
        ) from problem
    return Image
