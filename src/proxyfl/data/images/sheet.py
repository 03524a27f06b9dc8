"""A contact sheet: some examples of each site and class, to look at before training on them."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxyfl import _files
from proxyfl.data.images.rule import pillow
from proxyfl.data.stores import index
from proxyfl.data.stores.index import Entry
from proxyfl.data.stores.reading import Stored

NAME = "contact.png"
ACROSS = 12
SIDE = 96
CAPTION = 18


def contact_sheet(folder: Path) -> Path:
    """Draw the sheet of the store in ``folder``: up to twelve examples of each site and class,
    spread evenly over its entries."""
    head = index.read_head(folder)
    entries = index.read_index(folder, head)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, entry in enumerate(entries):
        groups[entry.site, entry.label].append(i)
    labels = torch.zeros(len(entries), dtype=torch.int64)
    examples = Stored(folder, head.content, head.shards, labels)
    images = pillow(folder)
    from PIL import ImageDraw

    width = ACROSS * SIDE
    height = len(groups) * (SIDE + CAPTION)
    sheet = images.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    top = 0
    for key, rows in sorted(groups.items()):
        caption = _caption(key, rows, entries)
        draw.text((4, top + 3), caption, fill="black")
        count = min(ACROSS, len(rows))
        chosen = np.linspace(0, len(rows) - 1, count).astype(int)
        left = 0
        for place in chosen:
            row = torch.tensor([rows[place]])
            bands = list(map(images.fromarray, examples.values(row)[0]))
            if len(bands) == 1:
                bands *= 3
            image = images.merge("RGB", bands)
            sheet.paste(_to_size(image), (left, top + CAPTION))
            left += SIDE
        top += SIDE + CAPTION
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


def _caption(
    key: tuple[str, str],
    rows: list[int],
    entries: list[Entry],
) -> str:
    site, label = key
    where = f"{site}: " if site else ""
    persons = {entries[row].person for row in rows}
    persons.discard("")
    of = f" of {len(persons)} persons" if persons else ""
    return f"{where}{label or 'no label'}, {len(rows)} examples{of}"
