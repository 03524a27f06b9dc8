"""``proxyfl images``: folders of images, brought to one shape, in a store."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from proxyfl._terminal.spinner import spinner
from proxyfl.cli.options import JSON, Option, option, print_json, repeatable
from proxyfl.errors import DataError
from proxyfl.machine import physical_cores

if TYPE_CHECKING:
    from proxyfl.data.stores.faults import Faults
    from proxyfl.data.stores.index import Entry, Head

DESCRIPTION = """\
Bring all images below FOLDER to one size and colour mode by a stated rule, and write them to a
store: sharded, checksummed, read when a batch needs them, with a contact sheet to look at. What is
wrong is named and refused, or left out and counted where --skip says so. The same command continues
a store that was interrupted.
"""

EPILOG = """\
examples:
  proxyfl images hospitals --layout site/label --size 100x80 --out endoscopy.store
  proxyfl images photos --index photos/index.csv --label dx --person lesion --site clinic \\
      --size 64x64 --fit pad --out skin.store
  proxyfl images scans --layout label --size 128 --mode grey --skip unreadable --out scans.store
  proxyfl run --set data.source=endoscopy.store --set partition.kind=site
"""


def listing(layout: str) -> list[Option]:
    """The options that say where files lie and what is known of them."""
    folders = "what the folders on the way to a file name: label, site, person, part, any"
    suffix = "added to files that the index names without"
    of_index = [option("--file COLUMN", "column of the index that gives the file", str, "file")]
    for name in ("site", "person", "part"):
        text = f"column of the index that gives the {name}"
        of_index.append(option(f"--{name} COLUMN", text))
    return [
        option("--layout NAMES", folders, str, layout),
        option("--index CSV", "a table with a row for each file, instead", Path),
        *of_index,
        option("--suffix .EXT", suffix, str, ""),
    ]


WRITING = (
    repeatable(
        "--skip FAULT", "leave out and count this kind of fault, instead of refusing it", default=[]
    ),
    option("--workers N", "threads (default: one for each core)", int),
    option("--out STORE", "the store to write", Path, required=True),
    JSON,
)

OPTIONS = (
    option("folder FOLDER", "where the images lie", Path),
    option(
        "--size WxH",
        "width and height of every image in the store, or one number for both",
        required=True,
    ),
    option(
        "--fit RULE", "resize (stretch), pad (fit and fill) or crop (cover and cut)", str, "resize"
    ),
    option("--mode MODE", "rgb or grey", str, "rgb"),
    option("--filling COLOUR", "black or white, behind padding and transparency", str, "black"),
    *listing("site/label"),
    option("--label COLUMN", "column of the index", str, "label"),
    option(
        "--classes NAME,...",
        "the classes in their order (default: those that the labels show)",
        str,
        "",
    ),
    *WRITING,
)


def execute(args: Namespace) -> int:
    """Write the store and say what is in it."""
    from proxyfl.data.images.importing import import_images
    from proxyfl.data.images.rule import Rule
    from proxyfl.data.stores.faults import Faults

    rule = Rule(*_size(args.size), args.fit, args.mode, args.filling)
    faults = Faults(args.skip)
    entries = list_files(args, faults, label=args.label)
    with spinner(f"reading {len(entries)} images", total=len(entries)) as advance:
        head = import_images(
            args.folder,
            entries,
            args.out,
            rule,
            faults,
            classes=[name for name in args.classes.split(",") if name],
            workers=workers(args),
            advance=advance,
        )
    show(args, head, faults)
    return 0


def list_files(
    args: Namespace, faults: "Faults", *, label: str | None, suffixes: Sequence[str] = ()
) -> list["Entry"]:
    """The files that the options name."""
    from proxyfl.data.images.listing import from_folders, from_index

    if args.index is None:
        return from_folders(args.folder, args.layout, faults, suffixes=suffixes)
    columns = {"file": args.file}
    for name in ("site", "person", "part"):
        if getattr(args, name) is not None:
            columns[name] = getattr(args, name)
    if label is not None:
        columns["label"] = label
    return from_index(args.index, columns, faults, suffix=args.suffix)


def workers(args: Namespace) -> int:
    """The number of threads: what was asked for, or one for each core that there is."""
    if args.workers is not None and args.workers < 1:
        raise DataError(f"Expected --workers of at least 1, got {args.workers}.")
    return args.workers or physical_cores()


def show(args: Namespace, head: "Head", faults: "Faults") -> None:
    """Print what the store holds, what was left out, and where to look."""
    from proxyfl.data.images.sheet import NAME

    out: Path = args.out
    total = sum(shard.examples for shard in head.shards)
    if args.json:
        document = {
            "store": str(out),
            "examples": total,
            "shape": list(head.content.shape),
            "classes": list(head.content.classes),
            "shards": len(head.shards),
            "bytes": total * head.content.row_bytes,
            "skipped": faults.counts,
            "sheet": str(out / NAME),
        }
        print_json(document)
        return
    console = Console(soft_wrap=True, highlight=False)
    shape = "x".join(map(str, head.content.shape))
    size = total * head.content.row_bytes / 2**20
    console.print(
        f"[bold]{escape(str(out))}[/bold]: {total:,} examples of shape {shape} in "
        f"{len(head.shards)} shards ({size:,.0f} MB), classes {', '.join(head.content.classes)}"
    )
    for line in faults.lines():
        console.print(escape(line))
    console.print(f"Look at {escape(str(out / NAME))}, then use data.source={escape(str(out))}")


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    try:
        return int(width), int(height or width)
    except ValueError as problem:
        raise DataError(
            f"Expected --size WIDTHxHEIGHT, such as 100x80, or one number, got {text!r}."
        ) from problem
