"""``proxyfl resume``: continue an interrupted run."""

import argparse
from functools import partial
from pathlib import Path

from proxyfl.cli.commands.run import RUN_OPTIONS
from proxyfl.cli.options import option
from proxyfl.cli.stopping import stopping_at_once

DESCRIPTION = """\
Continue the run in a folder from its last checkpoint.
"""

EPILOG = """\
examples:
  proxyfl resume runs/20261115-210000-digits
  proxyfl resume runs/a --workers 1

After Ctrl-C, a kill or a crash: the run continues from its last whole checkpoint, and the result is
bit-identical to an uninterrupted one. The ledgers keep what was spent before the interruption. Any
number of workers will do.
"""


OPTIONS = (option("run_folder RUN", "the run's folder", Path), *RUN_OPTIONS)


def execute(args: argparse.Namespace) -> int:
    """Resume, show progress, show the result; under mpiexec, on all ranks of the job."""
    with stopping_at_once():
        from proxyfl.cli.terminal import running
        from proxyfl.simulation import mpi

    return mpi.on_rank_zero(partial(running.resume, args))
