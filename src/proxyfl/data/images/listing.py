"""Which files there are, and what is known of each: from the names of folders, or from an index.

A layout names the folders on the way to a file, such as ``site/label`` or ``site/label/person``. An
index is a CSV file with a row for each file. Either way a person is at one site and in one part.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from proxyfl._validate import choice
from proxyfl.data.stores.faults import Faults, persons_at_one_place
from proxyfl.data.stores.index import PARTS, Entry
from proxyfl.errors import DataError

FIELDS = ("label", "site", "person", "part")
"""What a layout or an index can say of a file."""


def from_folders(
    root: Path,
    layout: str,
    faults: Faults,
    *,
    suffixes: Sequence[str] = (),
) -> list[Entry]:
    """The files below ``root``, sorted, by the ``layout`` of their folders; only those with one of
    ``suffixes``, if any are given."""
    names = layout.split("/")
    for name in names:
        choice("folder in the layout", name, (*FIELDS, "any"), error=DataError)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder (looked from {Path.cwd()}).")
    entries = []
    for path in _files(root, suffixes):
        folders = path.relative_to(root).parts[:-1]
        if len(folders) != len(names):
            faults.found(
                "misplaced",
                f"{path}: expected it in {len(names)} folders below {root} ({layout}), found it "
                f"in {len(folders)}",
            )
            continue
        known = {"label": "", **dict(zip(names, folders, strict=True))}
        known.pop("any", None)
        file = path.relative_to(root).as_posix()
        entries.append(Entry(**known, file=file))
    if not entries:
        raise DataError(
            f"{root}: expected files by the layout {layout}, found none."
        )
    return entries


def _files(root: Path, suffixes: Sequence[str]) -> list[Path]:
    found = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") for part in parts)
        wanted = not suffixes or path.suffix.lower() in suffixes
        if path.is_file() and not hidden and wanted:
            found.append(path)
    return found


def from_index(
    index: Path,
    columns: Mapping[str, str],
    faults: Faults,
    *,
    suffix: str = "",
) -> list[Entry]:
    """The files that an index names, in its order.

    ``columns`` says which column is the ``file`` and which are the label, site, person and part.
    ``suffix`` is added to names of files that have none."""
    try:
        with index.open(encoding="utf-8-sig", newline="") as text:
            rows = list(csv.DictReader(text))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"{index}: not a readable index: {problem}.") from problem
    if not rows:
        raise DataError(f"{index}: expected a row for each file, found none.")
    for name, column in columns.items():
        if column not in rows[0]:
            raise DataError(
                f"{index}: no column {column!r} for the {name}. Its columns: "
                f"{', '.join(rows[0])}."
            )
    entries = []
    for number, row in enumerate(rows, 2):
        values = {"label": ""}
        empty = []
        for name, column in columns.items():
            values[name] = (row[column] or "").strip()
            if not values[name]:
                empty.append(name)
        if empty:
            faults.found("unnamed", f"{index}, row {number}: no {empty[0]}")
            continue
        if not Path(values["file"]).suffix:
            values["file"] += suffix
        entries.append(Entry(**values))
    return entries


def persons_apart(entries: Sequence[Entry], faults: Faults) -> list[Entry]:
    """The entries without persons that are at two sites, or in both parts."""
    kept = list(entries)
    for kind, field in (("two-sites", "site"), ("two-parts", "part")):
        places: dict[str, set[str]] = defaultdict(set)
        for entry in kept:
            if entry.person:
                places[entry.person].add(getattr(entry, field))
        strays = persons_at_one_place(faults, kind, places)
        kept = [entry for entry in kept if entry.person not in strays]
    for entry in kept:
        if entry.part and entry.part not in PARTS:
            raise DataError(
                f"{entry.file}: expected the part train or test, got {entry.part!r}."
            )
    return kept
