"""``proxyfl slides extract``: patches of whole slides, labelled by contours, in a store."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.cli.commands.images.images import (
    add_listing,
    add_writing,
    listed,
    show,
    workers,
)
from proxyfl.cli.terminal.spinner import spinner

if TYPE_CHECKING:
    from proxyfl.cli.commands import Commands
    from proxyfl.data.slides.planning import Patches

DESCRIPTION = """\
Cut patches out of the slides below FOLDER, label them by drawn contours (ASAP XML or GeoJSON,
beside the slides or in --contours), and write as many normal as tumour patches of each site to a
store. Memory does not grow with the slides; the same command continues what was interrupted.
"""

EPILOG = """\
examples:
  proxyfl slides extract slides --layout site/person --per-site 1000 --out patches.store
  proxyfl slides extract training --layout site --person-from 'patient_[0-9]+' \\
      --contours lesion_annotations --microns 0.5 --skip no-contours --out camelyon.store
  proxyfl run --set data.source=patches.store --set partition.kind=site
"""


def add(commands: "Commands") -> None:
    """Add the command to the program."""
    parser = commands.add_parser(
        "slides",
        help="cut labelled patches out of whole slides, in a store",
        description="Whole-slide images, through OpenSlide.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        title="actions", metavar="ACTION", required=True
    )
    extract = actions.add_parser(
        "extract",
        help="patches, labelled by contours",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    extract.set_defaults(run=execute)
    extract.add_argument(
        "folder", type=Path, metavar="FOLDER", help="where the slides lie"
    )
    add_listing(extract, layout="site/person")
    extract.add_argument(
        "--person-from",
        metavar="PATTERN",
        help="a regular expression that finds the person in a file's name",
    )
    extract.add_argument(
        "--contours",
        type=Path,
        metavar="DIR",
        help="where contour files lie (default FOLDER)",
    )
    extract.add_argument(
        "--without-contours",
        choices=("refuse", "normal"),
        default="refuse",
        help="what a slide without a contour file is (default: a fault)",
    )
    _add_patches(extract)
    add_writing(extract)


def _add_patches(parser: argparse.ArgumentParser) -> None:
    numbers = (
        ("--size", int, 512, "PIXELS", "side of a patch"),
        (
            "--level",
            int,
            0,
            "N",
            "level of the slide's pyramid that patches are read at",
        ),
        ("--microns", float, None, "M", "instead of a level: microns per pixel"),
        (
            "--overlap",
            float,
            0.0,
            "SHARE",
            "share of its side that a patch shares with the next",
        ),
        ("--tissue", float, 0.5, "SHARE", "least share of a patch that is tissue"),
        (
            "--tumour",
            float,
            0.75,
            "SHARE",
            "least share inside a contour that makes it tumour",
        ),
        (
            "--per-site",
            int,
            None,
            "N",
            "patches of each site; default: as many as balance",
        ),
        (
            "--seed",
            int,
            0,
            "N",
            "draws the patches, where there are more than asked for",
        ),
    )
    for name, kind, default, metavar, text in numbers:
        shown = "" if default is None else f" (default {default})"
        parser.add_argument(
            name, type=kind, default=default, metavar=metavar, help=text + shown
        )
    for name, text in (
        ("--tumour-groups", "groups of contours that are tumour"),
        ("--hole-groups", "groups of contours that are cut out of it"),
    ):
        parser.add_argument(
            name, metavar="NAME,...", help=f"{text} (default: Camelyon's names)"
        )


def _patches(args: argparse.Namespace) -> "Patches":
    from proxyfl.data.slides.contours import HOLES, TUMOUR
    from proxyfl.data.slides.planning import Patches

    return Patches(
        size=args.size,
        level=args.level,
        microns=args.microns,
        overlap=args.overlap,
        tissue=args.tissue,
        tumour=args.tumour,
        per_site=args.per_site,
        seed=args.seed,
        tumour_groups=tuple((args.tumour_groups or ",".join(TUMOUR)).split(",")),
        hole_groups=tuple((args.hole_groups or ",".join(HOLES)).split(",")),
    )


def execute(args: argparse.Namespace) -> int:
    """Plan, extract, and say what came of it."""
    from proxyfl.data.slides.extraction import extract, named_persons, with_contours
    from proxyfl.data.slides.planning import plan
    from proxyfl.data.slides.slide import SUFFIXES
    from proxyfl.data.stores.faults import Faults

    faults = Faults(args.skip)
    entries = listed(args, faults, label=None, suffixes=SUFFIXES)
    if args.person_from:
        entries = named_persons(entries, args.person_from)
    patches = _patches(args)
    sources = with_contours(
        args.folder, entries, args.contours, faults, without=args.without_contours
    )
    threads = workers(args)
    with spinner(
        f"looking for tissue on {len(sources)} slides", total=len(sources)
    ) as advance:
        planned = plan(sources, patches, faults, workers=threads, advance=advance)
    with spinner(f"reading {len(planned)} patches", total=len(planned)) as advance:
        head = extract(
            args.folder,
            planned,
            args.out,
            patches,
            faults,
            workers=threads,
            advance=advance,
        )
    show(args.out, head, faults)
    return 0
