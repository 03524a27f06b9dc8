"""``python -m benchmarks.communication``: parse, call, print.

Exit codes: 0 done; 1 something failed while running; 2 the input cannot be used."""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.communication.commands import measure, mix, model
from proxyfl.errors import InputError, ProxyFLError

_EPILOG = """\
first steps:
  python -m benchmarks.communication measure --clients 2,4,8 --out points.json
  python -m benchmarks.communication model points.json
  python -m benchmarks.communication mix --clients 10,100
  python -m benchmarks.communication measure --help      what it does and takes, with examples
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.communication",
        description="What communication costs. `measure` times the exchange of each method over "
        "MPI, `model` extends what was measured to thousands of clients, and `mix` simulates how "
        "fast the graphs average. Nothing is trained.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (measure, model, mix):
        command.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    args = parser().parse_args(arguments)
    try:
        code: int = args.execute(args)
    except ProxyFLError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return code
