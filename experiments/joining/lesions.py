"""Draw made-up skin lesions: ``python experiments/joining/lesions.py FOLDER [COUNT]``.

Skin-coloured pictures of 64 x 48 pixels with a darker spot of random size, place, shape and colour.
They are drawn from random numbers and anybody's idea of a mole, from no patient: public images, by
which the features of real ones can be centred and whitened (``proxyfl embed --model whitened``)."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

WIDTH, HEIGHT = 64, 48
SKIN = ((225, 170, 150), (190, 130, 120))
SPOT = ((150, 95, 75), (60, 35, 35))


def lesion(draw: np.random.Generator) -> npt.NDArray[np.uint8]:
    """One picture, (48, 64, 3)."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    down = (rows - draw.uniform(18, 30)) / draw.uniform(6, 20)
    right = (columns - draw.uniform(24, 40)) / draw.uniform(8, 26)
    angle = np.arctan2(down, right)
    edge = 1.0
    for waves in range(2, 6):
        edge = edge + draw.normal(0, 0.08) * np.cos(waves * angle + draw.uniform(0, 6.3))
    inside = 1 / (1 + np.exp((np.hypot(down, right) - edge) * draw.uniform(4, 20)))
    mottled = _smooth(draw) * draw.uniform(0, 0.5)
    share = np.clip(inside * (1 + mottled), 0, 1)[..., None]
    skin = _between(*SKIN, draw) * (1 + 0.06 * _smooth(draw)[..., None])
    spot = _between(*SPOT, draw) * (1 + 0.15 * _smooth(draw)[..., None])
    picture = (1 - share) * skin + share * spot + draw.normal(0, 4, (HEIGHT, WIDTH, 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


def _between(
    light: tuple[int, ...], dark: tuple[int, ...], draw: np.random.Generator
) -> npt.NDArray[np.float64]:
    part = draw.uniform(0, 1)
    mixed = part * np.array(light) + (1 - part) * np.array(dark)
    shifted: npt.NDArray[np.float64] = mixed + draw.normal(0, 10, 3)
    return shifted


def _smooth(draw: np.random.Generator) -> npt.NDArray[np.float64]:
    """Noise in patches of about eight pixels."""
    coarse = Image.fromarray(draw.normal(0, 1, (6, 8)).astype(np.float32))
    fine = coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    return np.asarray(fine, dtype=np.float64)


def main() -> None:
    """Write COUNT pictures as FOLDER/even/NUMBER.png and FOLDER/odd/NUMBER.png: a dataset has two
    classes at least."""
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    draw = np.random.default_rng(0)
    for number in range(count):
        folder = Path(sys.argv[1]) / ("odd" if number % 2 else "even")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(lesion(draw)).save(folder / f"{number:04d}.png")


if __name__ == "__main__":
    main()
