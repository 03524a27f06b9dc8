"""The kinds of arrays that slides are made of."""

from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
"""Red, green and blue, each a plane: (3, height, width)."""
Argb = npt.NDArray[np.uint32]
"""Alpha, red, green and blue of a pixel, from the highest byte to the lowest: (height, width)."""
Plane = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Points = npt.NDArray[np.float64]
"""Places on a slide that may lie between two pixels."""
Whole = npt.NDArray[np.int64]
"""Whole numbers: counts, places."""
Shares = npt.NDArray[np.float64]


def room(kind: Any, *shape: int) -> npt.NDArray[Any]:
    """Memory for an array, with whatever is in it."""
    return np.empty(shape, dtype=kind)


def blank(kind: Any, *shape: int) -> npt.NDArray[Any]:
    """An array of zeros."""
    return np.zeros(shape, dtype=kind)
