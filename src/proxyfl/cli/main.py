"""The command ``proxyfl``: parse, call, print.

Exit codes: 0 done; 1 something failed while running; 2 the input cannot be used; 130 interrupted (Ctrl-C).
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType

from proxyfl._allocator import keep_freed_memory
from proxyfl.cli import data, epsilon, methods, models, predict, run, topology
from proxyfl.errors import InputError, ProxyFLError

COMMANDS: tuple[ModuleType, ...] = (run, predict, epsilon, methods, models, topology, data)

_EPILOG = """\
first steps:
  proxyfl run                                 eight clients, embedded data, about half a minute
  proxyfl run --set rounds=100 --out runs/a   the same, longer, into a folder of your choice
  proxyfl epsilon --examples 1000 --batch 250 --epochs 300 --noise 1
  proxyfl COMMAND --help                      what a command does and takes, with examples
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="proxyfl",
        description="Decentralized federated learning through proxy models: each institution keeps a private model and "
        "shares only a small proxy, trained with differential privacy.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"proxyfl {version('proxyfl')}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    keep_freed_memory()
    if hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends like Ctrl-C: records intact
    args = parser().parse_args(arguments)
    try:
        code: int = args.run(args)
    except InputError as error:
        print(f"proxyfl: {error}", file=sys.stderr)
        return 2
    except ProxyFLError as error:
        print(f"proxyfl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("proxyfl: interrupted; what was recorded is intact.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away (`proxyfl ... | head`). Keep Python from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
