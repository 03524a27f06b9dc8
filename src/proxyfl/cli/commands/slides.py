"""``proxyfl slides extract``: patches of whole slides, labelled by contours, in a store."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl._terminal.spinner import spinner
from proxyfl.cli.commands.images import WRITING, list_files, listing, show, workers
from proxyfl.cli.options import Action, option

if TYPE_CHECKING:
    from proxyfl.data.slides.planning import Patches

DESCRIPTION = """\
Whole-slide images, through OpenSlide.
"""

EXTRACTION = """\
Cut patches out of the slides below FOLDER, label them by drawn contours (ASAP XML or GeoJSON,
next to the slides or in --contours), and write as many normal as tumour patches of each site to a
store. Memory does not grow with the slides; the same command continues what was interrupted.
"""

EPILOG = """\
examples:
  proxyfl slides extract slides --layout site/person --per-site 1000 --out patches.store
  proxyfl slides extract training --layout site --person-from 'patient_[0-9]+' \\
      --contours lesion_annotations --microns 0.5 --skip no-contours --out camelyon.store
  proxyfl run --set data.source=patches.store --set partition.kind=site
"""


PATCHES = (
    option("--size PIXELS", "side of a patch", int, 512),
    option("--level N", "level of the slide's pyramid that patches are read at", int, 0),
    option("--microns M", "instead of a level: microns per pixel", float),
    option("--overlap SHARE", "share of its side that a patch shares with the next", float, 0.0),
    option("--tissue SHARE", "least share of a patch that is tissue", float, 0.5),
    option("--tumour SHARE", "least share inside a contour that makes it tumour", float, 0.75),
    option("--per-site N", "patches of each site (default: as many as balance)", int),
    option(
        "--per-slide N",
        "at most so many of each class from each slide, not balanced: no slide has a part in the "
        "choice of another's patches (docs/privacy/promise.md)",
        int,
    ),
    option("--seed N", "draws the patches, where there are more than asked for", int, 0),
    option(
        "--tumour-groups NAME,...", "groups of contours that are tumour (default: Camelyon's names)"
    ),
    option(
        "--hole-groups NAME,...",
        "groups of contours that are cut out of it (default: Camelyon's names)",
    ),
)

_OPTIONS = (
    option("folder FOLDER", "where the slides lie", Path),
    *listing("site/person"),
    option("--person-from PATTERN", "a regular expression that finds the person in a file's name"),
    option("--contours DIR", "where contour files lie (default FOLDER)", Path),
    option(
        "--without-contours",
        "what a slide without a contour file is: a fault, or normal",
        str,
        "refuse",
        choices=("refuse", "normal"),
    ),
    *PATCHES,
    *WRITING,
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
        per_slide=args.per_slide,
        seed=args.seed,
        tumour_groups=tuple((args.tumour_groups or ",".join(TUMOUR)).split(",")),
        hole_groups=tuple((args.hole_groups or ",".join(HOLES)).split(",")),
    )


def execute_extract(args: argparse.Namespace) -> int:
    """Plan, extract, and say what came of it."""
    from proxyfl.data.slides.extraction import extract, name_persons, with_contours
    from proxyfl.data.slides.planning import plan
    from proxyfl.data.slides.slide import SUFFIXES
    from proxyfl.data.stores.faults import Faults

    faults = Faults(args.skip)
    entries = list_files(args, faults, label=None, suffixes=SUFFIXES)
    if args.person_from:
        entries = name_persons(entries, args.person_from)
    patches = _patches(args)
    sources = with_contours(
        args.folder, entries, args.contours, faults, without=args.without_contours
    )
    threads = workers(args)
    with spinner(f"looking for tissue on {len(sources)} slides", total=len(sources)) as advance:
        planned = plan(sources, patches, faults, workers=threads, advance=advance)
    with spinner(f"reading {len(planned)} patches", total=len(planned)) as advance:
        head = extract(
            args.folder, planned, args.out, patches, faults, workers=threads, advance=advance
        )
    show(args, head, faults)
    return 0


ACTIONS = (
    Action(
        "extract", "patches, labelled by contours", _OPTIONS, execute_extract, EXTRACTION, EPILOG
    ),
)
