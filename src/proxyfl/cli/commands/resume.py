"""``proxyfl resume``: go on with a run that was cut off."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from proxyfl._machine import physical_cores
from proxyfl.cli.commands.run import add_run_options, carry_out, followers
from proxyfl.records import folder
from proxyfl.records.run import Run
from proxyfl.simulation import run as runner
from proxyfl.simulation.engines import mpi
from proxyfl.simulation.engines.serial import Engine

_EPILOG = """\
examples:
  proxyfl resume runs/20261115-210000-digits
  proxyfl resume runs/a --workers 1

After Ctrl-C, a kill, or a crash: the run goes on from its last whole checkpoint and ends as if nothing had happened,
bit for bit. The ledgers keep what was spent before the cut. Any number of workers will do.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "resume",
        help="go on with an interrupted run",
        description="Go on with the run in a folder, from its last checkpoint.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of the run")
    add_run_options(parser)
    parser.set_defaults(run=execute)


def execute(args: argparse.Namespace) -> int:
    """Resume, show progress, show the result; under mpiexec, on all ranks of the job."""
    return mpi.on_rank_zero(partial(_execute, args))


def _execute(args: argparse.Namespace, engine: Engine | None) -> int:
    path = folder.existing(args.run_folder)
    others = followers(args, path)
    crew = args.workers if args.workers is not None else physical_cores()

    def action(callbacks: Sequence[runner.Callback]) -> Run:
        return runner.resume(path, callbacks=callbacks, workers=crew, engine=engine)

    return carry_out(action, others, path, args.json)
