"""Folders of images, brought to one shape and written to a store."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from proxyfl.data.images.listing import persons_apart
from proxyfl.data.images.rule import Rule
from proxyfl.data.images.sheet import contact_sheet
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import Content, Entry, Head
from proxyfl.data.stores.writing import Array, Fault, write_store
from proxyfl.errors import DataError


def import_images(
    root: Path,
    entries: Sequence[Entry],
    folder: Path,
    rule: Rule,
    faults: Faults,
    *,
    classes: Sequence[str] = (),
    workers: int = 1,
    advance: Callable[[int], None] = lambda count: None,
) -> Head:
    """Write the images that ``entries`` name below ``root`` to a store in ``folder``.

    A file that is no image is refused, or skipped if ``faults`` says so."""
    kept = persons_apart(entries, faults)
    labels = {entry.label for entry in kept}
    unknown = labels - set(classes)
    if classes and unknown:
        raise DataError(
            f"{root}: the label {min(unknown)!r} is not among the classes, which are "
            f"{list(classes)}. Correct it, or add it to the classes."
        )
    content = Content(
        rule.shape,
        "uint8",
        tuple(classes) or tuple(sorted(labels)),
        {"source": root.resolve().name, "rule": asdict(rule)},
    )

    def read(_start: int, some: Sequence[Entry]) -> Iterator[Array | Fault]:
        for entry in some:
            try:
                yield rule.apply(root / entry.file)
            except DataError as problem:
                yield ("unreadable", str(problem))

    return write_store(
        folder,
        content,
        kept,
        read,
        faults,
        workers=workers,
        advance=advance,
        draw=partial(contact_sheet, folder),
    )
