"""A contact sheet: some examples of each site and class, to look at before training on them."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxyfl import _files
from proxyfl.data.images.rule import pillow
from proxyfl.data.stores.index import Entry, Head
from proxyfl.data.stores.reading import Stored

NAME = "contact.png"
ACROSS = 12
SIDE = 96
CAPTION = 18


def contact_sheet(folder: Path, head: Head, entries: Sequence[Entry]) -> Path:
    """Draw the sheet of the examples in ``folder``: up to twelve of each site and class, spread
    evenly over their entries."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, entry in enumerate(entries):
        groups[entry.site, entry.label].append(i)
    labels = torch.zeros(len(entries), dtype=torch.int64)
    examples = Stored(folder, head.content, head.shards, labels)
    images = pillow(folder)
    from PIL import ImageDraw

    height = len(groups) * (SIDE + CAPTION)
    sheet = images.new("RGB", (ACROSS * SIDE, height), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (key, rows) in enumerate(sorted(groups.items())):
        top = row * (SIDE + CAPTION)
        draw.text((4, top + 3), _caption(key, rows, entries), fill="black")
        chosen = np.linspace(0, len(rows) - 1, min(ACROSS, len(rows))).astype(int)
        for column, place in enumerate(chosen):
            values = examples.values(torch.tensor([rows[place]]))[0]
            bands = [images.fromarray(band) for band in values]
            image = images.merge("RGB", bands if len(bands) == 3 else bands * 3)
            sheet.paste(_to_size(image), (column * SIDE, top + CAPTION))
    path = folder / NAME
    with _files.writing(path), _files.whole(path) as scratch:
        sheet.save(scratch, format="PNG", compress_level=1)
    return path


def _to_size(image: Any) -> Any:
    """The image at a cell's size: averaged down, or each pixel shown as a square of several."""
    from PIL import Image, ImageOps

    times = (SIDE - 2) // max(image.size)
    if times >= 1:
        return ImageOps.scale(image, times, Image.Resampling.NEAREST)
    image.thumbnail((SIDE - 2, SIDE - 2), Image.Resampling.BOX)
    return image


def _caption(key: tuple[str, str], rows: list[int], entries: Sequence[Entry]) -> str:
    site, label = key
    where = f"{site}: " if site else ""
    persons = len({entries[row].person for row in rows} - {""})
    of = f" of {persons} persons" if persons else ""
    return f"{where}{label or 'no label'}, {len(rows)} examples{of}"
