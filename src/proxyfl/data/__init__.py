"""Datasets from built-in sources, files, folders and the user's own code; and who gets which part
of them.

Names are loaded when they are first used: schemas and dialects of tables need no torch."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset
    from proxyfl.data.examples import Examples, InMemory, MemoryMapped, Subset
    from proxyfl.data.partition import by_class, by_site, class_counts, dirichlet, iid, majority

_HOMES = {
    "dataset": ("Dataset",),
    "examples": ("Examples", "InMemory", "MemoryMapped", "Subset"),
    "sources.inputs": ("load_inputs",),
    "partition": ("by_class", "by_site", "class_counts", "dirichlet", "iid", "majority"),
    # These import every other part of this room; type checkers find them in their own homes.
    "sources": ("SOURCES", "Source", "load"),
}

__all__ = [
    "Dataset",
    "Examples",
    "InMemory",
    "MemoryMapped",
    "Subset",
    "by_class",
    "by_site",
    "class_counts",
    "dirichlet",
    "iid",
    "majority",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
