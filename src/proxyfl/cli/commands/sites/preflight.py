"""``proxyfl preflight``: is a site ready to take part?"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.cli.commands import add_json, opening

if TYPE_CHECKING:
    from proxyfl.cli.commands import Commands

_EPILOG = """\
examples:
  proxyfl preflight north                check everything; peers that run are asked
  proxyfl preflight north --wait 300     answer the others meanwhile, and ask again for five minutes

Exit code 0 if everything is in order, 1 if not.
"""


def add(commands: "Commands") -> None:
    """Add the command to the parser."""
    parser = opening(
        commands,
        "preflight",
        execute,
        description="Check a site before it takes part. Each line says ok, or what to do.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "folder", type=Path, metavar="SITE", help="the site's folder or site.toml"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait for peers, and answer them",
    )
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Check, and say what was found."""
    from proxyfl.node import preflight
    from proxyfl.node.members import site

    settings, folder = site.read(args.folder)
    lines = []
    for line in preflight.preflight(settings, folder, wait=args.wait):
        lines.append(line)
        if not args.json:
            mark = "ok  " if line.ok else "FAIL"
            print(f"{mark}  {line.check}: {line.text}", flush=True)
    ready = all(line.ok for line in lines)
    if args.json:
        checks = [dataclasses.asdict(line) for line in lines]
        print(json.dumps({"ready": ready, "checks": checks}))
    return 0 if ready else 1
