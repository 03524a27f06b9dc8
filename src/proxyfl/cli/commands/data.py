"""``proxyfl data``: which datasets are here, and what is in one."""

import argparse

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from proxyfl.cli.options import COLUMNS, JSON, Document, flag, option, print_json
from proxyfl.cli.terminal.result import show_notes
from proxyfl.data import Dataset
from proxyfl.data.examples import chunks
from proxyfl.data.fetch import data_folder
from proxyfl.data.sources import FORMS, SOURCES, load

DESCRIPTION = """\
Without SOURCE, list the datasets that have a name and where they were found. With one, load it,
check it as a run would (finite values, labels, shapes) and say what is in it. Values are taken as
they are; only 8-bit pixels are scaled, by 1/255.
"""

EPILOG = """\
examples:
  proxyfl data                                        which datasets are found here
  proxyfl data digits                                 shapes, classes, counts, range of values
  proxyfl data fashion-mnist --data-dir datasets      from that folder, or fetched into it
  proxyfl data patients.csv --label diagnosis --site hospital --json
  proxyfl data 'sites/*.csv' --schema stroke.toml     and what was clipped or left out
"""


OPTIONS = (
    option("source SOURCE", f"{', '.join(SOURCES)}; {'; '.join(FORMS)}", nargs="?"),
    option(
        "--data-dir DIR", "where named datasets lie (default: PROXYFL_DATA, else ~/.cache/proxyfl)"
    ),
    *COLUMNS,
    option(
        "--schema FILE",
        "the schema.toml of a table; SOURCE is then a file, or a quoted pattern such as "
        "'sites/*.csv'",
    ),
    option(
        "--faults",
        "what becomes of rows that the schema finds at fault",
        str,
        "refuse",
        choices=("refuse", "skip"),
    ),
    flag("--offline", "fetch nothing; say what is missing instead"),
    JSON,
)


def execute(args: argparse.Namespace) -> int:
    """Print the list or the dataset; 0 unless it cannot be loaded."""
    if args.source is None:
        document = _sources(args.data_dir)
        show = _show_sources
    else:
        dataset = load(
            args.source,
            directory=args.data_dir,
            label=args.label,
            site=args.site,
            schema=args.schema,
            faults=args.faults,
            download=not args.offline,
        )
        document = _contents(dataset)
        show = _show_contents
    if args.json:
        print_json(document)
    else:
        show(document, Console())
    return 0


def _sources(directory: str | None) -> Document:
    named = []
    for name, source in SOURCES.items():
        place = source.find(directory)
        named.append(
            {
                "name": name,
                "description": source.description,
                "found": None if place is None else str(place),
            }
        )
    return {"folder": str(data_folder(directory)), "sources": named, "forms": FORMS}


def _contents(dataset: Dataset) -> Document:
    classes = []
    if dataset.task.is_classification:
        train = dataset.train_y.bincount(minlength=dataset.classes).tolist()
        test = dataset.test_y.bincount(minlength=dataset.classes).tolist()
        for i, name in enumerate(dataset.class_names):
            classes.append({"class": i, "name": name, "train": train[i], "test": test[i]})
    sites = []
    if dataset.site is not None:
        counts = dataset.site.bincount(minlength=len(dataset.site_names)).tolist()
        for i, name in enumerate(dataset.site_names):
            sites.append({"site": i, "name": name, "train": counts[i]})
    return {
        "name": dataset.name,
        "shape": list(dataset.shape),
        "train": len(dataset.train_y),
        "test": len(dataset.test_y),
        "range": _range(dataset),
        "task": dataset.task.described(),
        "classes": classes,
        "sites": sites,
        "notes": list(dataset.notes),
    }


def _range(dataset: Dataset) -> list[float]:
    """The smallest and the largest training value, piece by piece."""
    extremes = [inputs.aminmax() for inputs in chunks(dataset.train)]
    lowest = min(float(low) for low, _ in extremes)
    highest = max(float(high) for _, high in extremes)
    return [lowest, highest]


def _show_sources(document: Document, console: Console) -> None:
    table = Table("source", "description", Column("found", overflow="fold"))
    for row in document["sources"]:
        place = row["found"] or "no; fetched when asked for"
        table.add_row(row["name"], row["description"], escape(place))
    for form, description in document["forms"].items():
        table.add_row(escape(form), description, "yours")
    console.print(table)
    console.print(f"Data folder: {escape(document['folder'])}", soft_wrap=True)


def _show_contents(document: Document, console: Console) -> None:
    low, high = document["range"]
    shape = "x".join(map(str, document["shape"]))
    classes = document["classes"]
    outcome = f"{len(classes)} classes" if classes else document["task"]
    console.print(
        f"[bold]{escape(document['name'])}[/bold]: {document['train']:,} training "
        f"and {document['test']:,} test examples of shape {shape}, {escape(outcome)}, values from "
        f"{low:.4g} to {high:.4g}",
        soft_wrap=True,
    )
    if classes:
        table = Table("class", "name", "training", "test")
        for row in classes:
            counts = (f"{row['train']:,}", f"{row['test']:,}")
            table.add_row(str(row["class"]), escape(row["name"]), *counts)
        console.print(table)
    if document["sites"]:
        table = Table("site", "name", "training")
        for row in document["sites"]:
            table.add_row(str(row["site"]), escape(row["name"]), f"{row['train']:,}")
        console.print(table)
    show_notes(document["notes"], console)
