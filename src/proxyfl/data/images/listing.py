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
    root: Path, layout: str, faults: Faults, *, suffixes: Sequence[str] = ()
) -> list[Entry]:
    """The files below ``root``, sorted, by the ``layout`` of their folders; only those with one of
    ``suffixes``, if any are given."""
    names = layout.split("/")
    for name in names:
        choice("folder in the layout", name, (*FIELDS, "any"), error=DataError)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder (looked from {Path.cwd()}). Check the name.")
    entries = []
    for path in _files(root, suffixes, faults):
        folders = path.relative_to(root).parts[:-1]
        if len(folders) != len(names):
            faults.report(
                "misplaced",
                f"{path}: expected it in {len(names)} folders below {root} ({layout}), found it "
                f"in {len(folders)}",
            )
            continue
        known = {name: folder for name, folder in zip(names, folders, strict=True) if name != "any"}
        entries.append(Entry(**{"label": "", **known}, file=path.relative_to(root).as_posix()))
    if not entries:
        raise DataError(f"{root}: expected files by the layout {layout}, found none.")
    return entries


def _files(root: Path, suffixes: Sequence[str], faults: Faults) -> list[Path]:
    """The files below ``root`` that are not hidden. A link that leads nowhere is among them, to be
    found unreadable."""
    files = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") for part in parts)
        if hidden:
            continue
        if path.is_dir():
            if path.is_symlink():
                faults.report("misplaced", f"{path}: a link to a folder, which is not followed")
            continue
        wanted = not suffixes or path.suffix.lower() in suffixes
        if wanted and (path.is_file() or path.is_symlink()):
            files.append(path)
    return files


def from_index(
    index: Path, columns: Mapping[str, str], faults: Faults, *, suffix: str = ""
) -> list[Entry]:
    """The files that an index names, in its order.

    ``columns`` says which column is the ``file`` and which are the label, site, person and part.
    ``suffix`` is added to names of files that have none."""
    try:
        with index.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(
            f"{index}: not a readable index: {problem}. Save it as CSV in UTF-8."
        ) from problem
    if not rows:
        raise DataError(
            f"{index}: expected a row for each file, found none. Write one row for each image."
        )
    known = list(reader.fieldnames or ())
    for name, column in columns.items():
        if known.count(column) != 1:
            raise DataError(
                f"{index}: expected one column {column!r} for the {name}. Its columns: "
                f"{', '.join(known)}."
            )
    entries = []
    first: dict[str, int] = {}
    for number, row in enumerate(rows, 2):
        values = {name: (row[column] or "").strip() for name, column in columns.items()}
        empty = [name for name, value in values.items() if not value]
        if empty:
            faults.report("unnamed", f"{index}, row {number}: no {empty[0]}")
            continue
        file = values["file"]
        values["file"] = file if Path(file).suffix else file + suffix
        path = Path(values["file"])
        if path.is_absolute() or ".." in path.parts:
            faults.report(
                "misplaced", f"{index}, row {number}: {path}: expected a path below the folder"
            )
            continue
        values["file"] = path.as_posix()
        earlier = first.setdefault(values["file"], number)
        if earlier != number:
            faults.report("repeated", f"{index}, row {number}: {path} is in row {earlier} too")
            continue
        entries.append(Entry(**{"label": "", **values}))
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
            raise DataError(f"{entry.file}: expected the part train or test, got {entry.part!r}.")
    return kept
