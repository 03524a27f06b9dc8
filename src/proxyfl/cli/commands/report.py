"""``proxyfl report``: one page about one or more runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from proxyfl._terminal.spinner import spinner
from proxyfl.cli.options import JSON, Document, option, print_json
from proxyfl.records.certainty import warnings
from proxyfl.records.groups import groups
from proxyfl.records.reading import find, newest, read
from proxyfl.records.run import Run
from proxyfl.report import page
from proxyfl.report.document import judgements, told

DESCRIPTION = """\
Make a page that shows what each client gains over training alone, and the epsilon and its kind.
It also has curves, epsilon over rounds, the communication graph, costs, and results by class.
"""

EPILOG = """\
examples:
  proxyfl report                                   the newest run below runs/
  proxyfl report runs/a                            writes report.html into runs/a
  proxyfl report runs/seed-0 runs/seed-1 runs/seed-2 --out seeds.html
  proxyfl report runs --out all.html               every run in the folder

The page is one file: it opens from disk, asks the network for nothing, and prints. Runs that
differ in their seed alone are pooled; others stand side by side, named by the settings that
differ. An interrupted or unfinished run is shown as far as it got.
"""


OPTIONS = (
    option(
        "runs RUN",
        "a run's folder, or a folder that holds runs (default: the newest)",
        Path,
        nargs="*",
    ),
    option("--out FILE", "the page (default: report.html in the first RUN)", Path),
    JSON,
)


def execute(args: argparse.Namespace) -> int:
    """Write the page and say where it is."""
    paths = args.runs or [newest(Path("runs"))]
    out = args.out or paths[0] / "report.html"
    runs, size = _made(paths, out, quiet=args.json)
    if args.json:
        print_json(_told(runs, out, size), indent=None)
        return 0
    unfinished = [one.name for one in runs if not one.finished]
    if unfinished:
        print(f"Not finished, shown as far as recorded: {', '.join(unfinished)}")
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    print(f"{out} ({size / 1e6:.1f} MB, {count})")
    return 0


def _told(runs: Sequence[Run], out: Path, size: int) -> Document:
    """The page's path and its answers: per run, and per group of runs that are pooled."""
    documents = []
    for one in runs:
        documents.append(
            {
                "name": one.name,
                "finished": one.finished,
                "methods": told(groups([one])[0]),
                "judged": judgements(one),
                "warnings": warnings(one),
                "notes": one.environment.get("notes", []),
            }
        )
    pooled = []
    for group in groups(runs):
        members = [number for number, one in enumerate(runs) if one in group.runs]
        pooled.append({"label": group.label, "runs": members, "methods": told(group)})
    return {"out": str(out), "bytes": size, "groups": pooled, "runs": documents}


def _made(given: Sequence[Path], out: Path, *, quiet: bool) -> tuple[list[Run], int]:
    """The runs, and the size of their page."""
    paths = find(given)
    runs = []
    # Writing takes about as long as reading, however many runs there are.
    saying = f"Reading and drawing {len(paths)} runs"
    with spinner(saying, total=2 * len(paths), quiet=quiet) as done:
        for path in paths:
            runs.append(read(path))
            done(1)
        return runs, page.write(runs, out)
