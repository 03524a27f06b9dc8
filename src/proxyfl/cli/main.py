"""The command ``proxyfl``: parse, call, print.

Exit codes: 0 done; 1 something failed while running; 2 the input cannot be used; 130 interrupted
(Ctrl-C)."""

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from proxyfl.cli.options import Action, add_action, add_actions
from proxyfl.cli.parsing import Parser
from proxyfl.cli.stopping import stopping_at_once
from proxyfl.errors import InputError, ProxyFLError
from proxyfl.machine import keep_freed_memory

_DESCRIPTION = """\
Decentralized federated learning through proxy models. Each institution keeps a private model and
shares only a small proxy, trained with differential privacy.
"""

_EPILOG = """\
first steps:
  proxyfl run                                 eight clients, embedded data, about half a minute
  proxyfl new stroke --tables a.csv b.csv     a study of your own tables, one file per site
  proxyfl federation try                      four sites with real certificates on this machine
  proxyfl report RUN                          its results as a page (RUN: the folder it named)
  proxyfl run --set rounds=200 --out runs/a   the same run, longer, in a folder of your choice
  proxyfl data patients.csv --label died      what is in your own data
  proxyfl epsilon --examples 1000 --batch 250 --epochs 300 --noise 1

what to read next:
  proxyfl COMMAND --help                      what a command does and takes, with examples
  proxyfl run --print-config                  every setting and its value
"""

COMMANDS = {
    "new": "make a project from your own tables, images or slides; start here",
    "run": "run one or more methods and compare them",
    "resume": "continue an interrupted run",
    "sweep": "run a grid of settings and seeds over one config",
    "table": "compare runs: mean and spread over clients and seeds, significance",
    "report": "make one self-contained page about one or more runs",
    "watch": "follow a run in the browser while it runs",
    "predict": "predict with a client's private model from a finished run",
    "effects": "odds ratios behind a linear proxy, with intervals that know the noise",
    "subgroups": "measures by sex, age band or another column, locally; warns of groups that lose",
    "epsilon": "what a training costs in privacy, or what a target epsilon allows",
    "certificate": "what each client's releases cost, on a page; check such a page",
    "audit": "test a claimed epsilon: how much peers really learn from the proxies",
    "ledger": "what all studies on the same data cost together, and what is left of a budget",
    "plan": "which batch, noise and rounds fit a budget, and which proxies it rules out",
    "worth": "whether joining can be expected to pay, and with which settings",
    "methods": "list the methods and what distinguishes them",
    "models": "the model architectures, their sizes, and which may be a proxy",
    "topology": "who sends to whom in each round, and how fast news spreads",
    "data": "the datasets found here, or what is in one",
    "images": "bring folders of images to one shape, in a store",
    "slides": "cut labelled patches out of whole slides, in a store",
    "embed": "features of images, from public networks or fixed wavelets, in a store",
    "node": "run one site of a real federation",
    "federation": "found a federation, change its manifest, or try one out",
    "preflight": "check a site before it takes part: keys, peers, data, models, budget, disk",
    "schema": "draft a table's schema, check files against it, estimate ranges with DP",
}
"""Every command and what it does in one line. Its module is ``proxyfl.cli.commands.NAME``."""


EXTRAS = {
    "cryptography": "node",
    "grpc": "node",
    "mpi4py": "mpi",
    "openslide": "slides",
    "pandas": "tables",
    "PIL": "images",
    "pyarrow": "tables",
}
"""Packages that only some commands need, and the extra that brings them."""


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole command line; with ``only``, the options of that command alone.

    The whole has no options of commands whose extra is missing: they could not run.
    Only the modules of commands whose options are needed are imported: torch takes seconds."""
    top = Parser(
        prog="proxyfl",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Version, help="show the version and exit")
    top.add_argument(
        "--print-completion",
        action=_Completion,
        choices=("bash", "zsh", "tcsh"),
        help="print a script by which the shell completes commands and options, and exit",
    )
    commands: Any = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if only not in (None, name):
            commands.add_parser(name, help=summary)
            continue
        try:
            module = importlib.import_module(f"proxyfl.cli.commands.{name}")
        except ModuleNotFoundError as error:
            if only == name or _extra_with(error) is None:
                raise
            commands.add_parser(name, help=summary)
            continue
        has_actions = hasattr(module, "ACTIONS")
        action = Action(
            name,
            summary,
            () if has_actions else module.OPTIONS,
            None if has_actions else module.execute,
            module.DESCRIPTION,
            module.EPILOG,
        )
        command = add_action(commands, action)
        if has_actions:
            add_actions(command, module.ACTIONS)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    keep_freed_memory()
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words:
        print(_DESCRIPTION, _EPILOG, sep="\n", end="")
        print("  proxyfl --help                              every command")
        return 0
    try:
        with stopping_at_once():
            args = _parse(words)
        code: int = args.run(args)
        # Here a reader that went away, or a full disk, can still be answered.
        sys.stdout.flush()
    except InputError as error:
        print(f"proxyfl: {error}", file=sys.stderr)
        return 2
    except ProxyFLError as error:
        print(f"proxyfl: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        extra = _extra_with(error)
        if extra is None:
            raise
        print(
            f"proxyfl: this needs the package {error.name}, which is not installed. Run: "
            f"pip install 'proxyfl[{extra}]'",
            file=sys.stderr,
        )
        return 2
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
        advice = "Make room and run the command again."
        print(f"proxyfl: cannot write: {error.strerror}. {advice}", file=sys.stderr)
        return 1
    return code


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments, read by the parser of the command that they name."""
    for word in words:
        if word in COMMANDS:
            return parser(only=word).parse_args(words)
    # `proxyfl --help` needs no command's module
    top = parser(only="")
    known = ("-h", "--help", "--version", "--print-completion")
    if words[0].startswith("-") and words[0].partition("=")[0] not in known:
        top.error(f"unrecognized arguments: {words[0]}")
    return top.parse_args(words)


def _extra_with(error: ModuleNotFoundError) -> str | None:
    """The extra that brings the package which was not found; None for one of no extra."""
    return EXTRAS.get((error.name or "").partition(".")[0])


class _Version(argparse.Action):
    """Prints the version. Looking it up imports much, and few ask."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"proxyfl {version('proxyfl')}")
        parser.exit()


class _Completion(argparse.Action):
    """Prints a shell's completion script. It is made from the options of every command."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, *__: object) -> None:
        from proxyfl.cli import completion

        print(completion.script(globals()["parser"](), shell))
        parser.exit()


def _discard_output() -> None:
    """Keep Python from complaining when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
