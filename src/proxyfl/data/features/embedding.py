"""Embeds a source's images once and writes the features to a store.

The store keeps labels, sites, persons, parts and order, so that it divides as its source does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from proxyfl.data.dataset import Dataset, person_number
from proxyfl.data.examples import Examples, Subset
from proxyfl.data.features.backbones import build
from proxyfl.data.holdout import fingerprints
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import PARTS, Content, Entry, Head, sha256
from proxyfl.data.stores.reading import Stored
from proxyfl.data.stores.writing import Advance, Array, write_store


def embed(
    dataset: Dataset,
    folder: Path,
    model: str,
    options: Mapping[str, Any] | None = None,
    *,
    weights: Path | None = None,
    advance: Advance = lambda count: None,
) -> Head:
    """Writes the features that ``model`` gives of all images of ``dataset`` to a store. What made
    them is on record there, the hash of the ``weights`` included.

    Images are embedded one at a time. In a batch, a matrix product may choose another order of
    additions for another number of rows, so that one more image would change the last bits of the
    features of others.
    """
    module, features = build(model, dataset.shape, options, weights=weights)
    images = _all(dataset)
    made = {
        "source": dataset.name,
        "embedder": model,
        "options": dict(options or {}),
        "shape": list(dataset.shape),
    }
    if weights is not None:
        made["weights"] = sha256(weights)
    content = Content((features,), "float32", dataset.class_names, made)

    def read(start: int, entries: Sequence[Entry]) -> Iterator[Array]:
        for row in torch.split(torch.arange(start, start + len(entries)), 1):
            with torch.inference_mode():
                yield from module(images.take(row)).numpy()

    return write_store(folder, content, images.entries, read, Faults(), advance=advance)


@dataclass(frozen=True)
class _Images:
    """All images of a dataset in the order of its store, and what is known of each."""

    parts: Sequence[Examples]
    entries: Sequence[Entry]

    def take(self, rows: Tensor) -> Tensor:
        """The images of ``rows``, which ascend."""
        chosen = []
        begin = 0
        for part in self.parts:
            end = begin + len(part)
            own = rows[(rows >= begin) & (rows < end)]
            if len(own):
                chosen.append(part.take(own - begin))
            begin = end
        return torch.cat(chosen)


def _all(dataset: Dataset) -> _Images:
    """Where the test part was drawn, the examples it was drawn from: a key then draws the same part
    from the features. Parts that the source itself has are kept."""
    train, test = dataset.train, dataset.test
    if not (
        isinstance(train, Subset) and isinstance(test, Subset) and train.examples is test.examples
    ):
        entries = _entries(dataset, train, dataset.site, PARTS[0])
        entries += _entries(dataset, test, dataset.test_site, PARTS[1])
        return _Images([train, test], entries)
    source = train.examples
    if isinstance(source, Stored):
        return _Images([source], _fingerprint(dataset, source, source.entries()))
    site = None
    if dataset.site is not None and dataset.test_site is not None:
        site = torch.empty(len(source), dtype=torch.int64)
        site[train.rows] = dataset.site
        site[test.rows] = dataset.test_site
    entries = _entries(dataset, source, site, "")
    return _Images([source], _fingerprint(dataset, source, entries))


def _fingerprint(dataset: Dataset, source: Examples, entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries, with a fingerprint of each record if they name neither persons nor parts."""
    first = entries[0]
    if source.groups is not None or first.part or first.record:
        return entries
    records = fingerprints(source)
    return [replace(entry, record=own) for entry, own in zip(entries, records, strict=True)]


def _entries(dataset: Dataset, examples: Examples, site: Tensor | None, part: str) -> list[Entry]:
    """What the dataset knows of ``examples``."""
    groups = examples.groups
    entries = []
    for i, label in enumerate(examples.labels.tolist()):
        known = {"label": dataset.class_names[label], "part": part}
        if site is not None:
            known["site"] = dataset.site_names[int(site[i])]
        if groups is not None:
            known["person"] = person_number(int(groups[i]))
        entries.append(Entry(**known))
    return entries
