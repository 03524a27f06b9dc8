"""The commands. Each is a module with ``add(commands)``, its options, and ``execute(args)``."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

COMMANDS = {
    "run": "run one or more methods and compare them",
    "resume": "continue an interrupted run",
    "sweep": "run a grid of settings and seeds over one config",
    "table": "compare runs: mean and spread over clients and seeds, significance",
    "report": "make one self-contained page about one or more runs",
    "watch": "follow a run in the browser while it runs",
    "predict": "predict with a client's private model from a finished run",
    "epsilon": "what a training costs in privacy, or what a target epsilon allows",
    "certificate": "what each client's releases cost, on a page; whether a page is true",
    "audit": "test a claimed epsilon: how much do peers really learn from the proxies",
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
"""Every command, and what it does in one line."""

ROOMS = {
    "runs": ("run", "resume", "sweep", "watch"),
    "reading": ("table", "report", "predict"),
    "budget": ("epsilon", "certificate", "audit", "plan", "worth"),
    "parts": ("methods", "models", "topology", "data"),
    "images": ("images", "slides", "embed"),
    "sites": ("node", "federation", "preflight"),
}
"""The room of each command's module; ``schema`` and ``ledger`` are rooms by themselves."""


def module(name: str) -> str:
    """The dotted name of the module of the command ``name``."""
    for room, names in ROOMS.items():
        if name in names:
            return f"{__name__}.{room}.{name}"
    return f"{__name__}.{name}"


def opening(
    commands: "Commands",
    name: str,
    execute: Callable[[argparse.Namespace], int],
    *,
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """The parser of the command ``name``, to which its module adds options."""
    parser = commands.add_parser(
        name,
        help=COMMANDS[name],
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=execute)
    return parser


def add_config(
    parser: argparse.ArgumentParser, metavar: str = "CONFIG.toml", what: str = ""
) -> None:
    """Add the settings of a run: a file, and changes to single ones of them."""
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar=metavar,
        help=f"settings{what}; the demo's without it",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one setting, for example privacy.noise_multiplier=1.1; may be repeated",
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add which columns of a table are the label and the site."""
    parser.add_argument(
        "--label",
        default="label",
        metavar="COLUMN",
        help="label column of a table (default label)",
    )
    parser.add_argument(
        "--site",
        metavar="COLUMN",
        help="site column of a table, or site array of an .npz",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option that most commands share."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document and nothing else",
    )
