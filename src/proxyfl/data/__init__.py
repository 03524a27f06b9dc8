"""Datasets from built-in sources, files, folders and the user's own code; and who gets which part
of them."""

from proxyfl.data.dataset import Dataset
from proxyfl.data.examples import Examples, InMemory, MemoryMapped, Subset
from proxyfl.data.inputs import load_inputs
from proxyfl.data.partition import (
    by_class,
    by_site,
    class_counts,
    dirichlet,
    iid,
    majority,
)
from proxyfl.data.sources import SOURCES, Source, load

__all__ = [
    "SOURCES",
    "Dataset",
    "Examples",
    "InMemory",
    "MemoryMapped",
    "Source",
    "Subset",
    "by_class",
    "by_site",
    "class_counts",
    "dirichlet",
    "iid",
    "load",
    "load_inputs",
    "majority",
]
