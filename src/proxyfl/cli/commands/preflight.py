"""``proxyfl preflight``: is a site ready to take part?"""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

from proxyfl.cli.options import JSON, option, print_json
from proxyfl.cli.stopping import stopping_at_once

DESCRIPTION = """\
Check a site before it takes part. Each line says ok, or what to do. A line that only warns does not
keep the site from taking part.
"""

EPILOG = """\
examples:
  proxyfl preflight north                check everything; peers that run are asked
  proxyfl preflight north --wait 300     answer the others meanwhile, and ask again for five minutes

Exit code 0 if everything is in order, 1 if not.
"""


OPTIONS = (
    option("folder SITE", "the site's folder or site.toml", Path),
    option("--wait SECONDS", "wait for peers, and answer them", float, 0.0),
    JSON,
)


def execute(args: argparse.Namespace) -> int:
    """Check, and say what was found."""
    with stopping_at_once():
        from proxyfl.node import preflight
        from proxyfl.node.members import site

    settings, folder = site.read(args.folder)
    lines = []
    for line in preflight.preflight(settings, folder, wait=args.wait):
        lines.append(line)
        if not args.json:
            mark = "FAIL" if not line.ok else "warn" if line.warn else "ok  "
            print(f"{mark}  {line.check}: {line.text}", flush=True)
    ready = all(line.ok for line in lines)
    if args.json:
        checks = [dataclasses.asdict(line) for line in lines]
        print_json({"ready": ready, "checks": checks})
    return 0 if ready else 1
