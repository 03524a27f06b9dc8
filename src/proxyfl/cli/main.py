"""The command ``proxyfl``: parse, call, print.

Exit codes: 0 done; 1 something failed while running; 2 the input cannot be used; 130 interrupted
(Ctrl-C)."""

import argparse
import errno
import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import version

from proxyfl._machine import keep_freed_memory
from proxyfl.errors import InputError, ProxyFLError

COMMANDS = {
    "run": "run one or more methods and compare them",
    "resume": "go on with an interrupted run",
    "sweep": "run a grid of settings and seeds over one config",
    "table": "compare runs: mean and spread over clients and seeds, significance",
    "report": "make one self-contained page about one or more runs",
    "watch": "follow a run in the browser while it goes on",
    "predict": "predict with a client's private model from a finished run",
    "epsilon": "what a training costs in privacy, or which noise or how many steps a target "
    "epsilon allows",
    "methods": "list the methods and what distinguishes them",
    "models": "the model architectures, their sizes, and which may be a proxy",
    "topology": "who sends to whom in each round, and how fast news spreads",
    "data": "the datasets found here, or what is in one",
    "schema": "draft a table's schema, check files against it, estimate ranges with DP",
}
"""A module of this package each. Only the one that is asked for is imported: torch takes
seconds."""

_EPILOG = """\
first steps:
  proxyfl run                                 eight clients, embedded data, about half a minute
  proxyfl run --set rounds=200 --out runs/a   the same, longer, into a folder of your choice
  proxyfl epsilon --examples 1000 --batch 250 --epochs 300 --noise 1
  proxyfl COMMAND --help                      what a command does and takes, with examples
"""


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole command line; with ``only``, the options of that command alone."""
    top = argparse.ArgumentParser(
        prog="proxyfl",
        description="Decentralized federated learning through proxy models: each institution "
        "keeps a private model and "
        "shares only a small proxy, trained with differential privacy.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"proxyfl {version('proxyfl')}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if only in (None, name):
            importlib.import_module(f"proxyfl.cli.commands.{name}").add(commands)
        else:
            commands.add_parser(name, help=summary)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    keep_freed_memory()
    if threading.current_thread() is threading.main_thread():  # others may not set handlers
        signal.signal(
            signal.SIGTERM, signal.default_int_handler
        )  # a polite kill ends like Ctrl-C: records intact
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # "" stands for no command at all: `proxyfl --help` needs none of them.
    args = parser(only=next((word for word in arguments if word in COMMANDS), "")).parse_args(
        arguments
    )
    try:
        code: int = args.run(args)
        # here, where a reader that went away or a full disk can still be answered
        sys.stdout.flush()
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
        _discard_output()  # the reader went away (`proxyfl ... | head`)
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _discard_output()
        print(
            f"proxyfl: cannot write: {error.strerror}. Make room and run the command again.",
            file=sys.stderr,
        )
        return 1
    return code


def _discard_output() -> None:
    """Keep Python from complaining when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
