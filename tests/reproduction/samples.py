"""Records with made-up scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproduction import records
from reproduction.records import Group, Record
from reproduction.series import Results


def group(method: str, role: str, scores: Sequence[Sequence[float]], **settings: Any) -> Group:
    """A group with the given scores (seed, client) after ten rounds."""
    nested = [[list(clients)] for clients in scores]
    named = {key.replace("__", "."): value for key, value in settings.items()}
    return Group(
        named, method, role, list(range(len(nested))), [10], nested, nested, [2.0], "end-to-end"
    )


def record(name: str, groups: Sequence[Group], **base: Any) -> Record:
    """A record of ten rounds."""
    seconds = {g.method: 2.0 for g in groups}
    return Record(name, 10, [0, 1, 2], base, seconds, yardstick=0.01, groups=groups)


def results(folder: Path, *found: Record) -> Results:
    """A folder with the given records."""
    for one in found:
        records.write(one, folder / f"{one.experiment}.jsonl")
    return Results(folder)
