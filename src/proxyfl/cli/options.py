"""Options of the commands, each declared in one line as a usage line writes it.

An option's default stands in one place: ``option`` says it in the help."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from proxyfl._files import finite
from proxyfl.privacy.guarantee import Unit

Container = argparse._ActionsContainer
"""A parser, or a group of its options."""

Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Execute = Callable[[argparse.Namespace], int]


def add_actions(parser: argparse.ArgumentParser) -> Actions:
    """Give a command actions of its own, one of which must be named."""
    return parser.add_subparsers(
        title="actions", metavar="ACTION", dest="action", required=True
    )


def add_action(
    actions: Actions,
    name: str,
    summary: str,
    description: str = "",
    epilog: str = "",
    execute: Execute | None = None,
) -> argparse.ArgumentParser:
    """Add a command, or an action of one, to whose parser its options are added.

    An action without ``execute`` leaves it to the command's."""
    parser = actions.add_parser(
        name,
        help=summary,
        description=description or f"{summary.capitalize()}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if execute is not None:
        parser.set_defaults(run=execute)
    return parser


def option(
    parser: Container,
    usage: str,
    help: str,
    kind: Callable[[str], Any] = str,
    default: Any = None,
    **more: Any,
) -> None:
    """Add what ``usage`` names: ``--clients K`` is an option, ``folder RUN`` a place."""
    name, _, metavar = usage.partition(" ")
    if isinstance(default, tuple):
        help += f" (default: {' '.join(map(str, default))})"
    elif default not in (None, ""):
        help += f" (default: {default})"
    parser.add_argument(
        name,
        metavar=metavar or None,
        help=help,
        type=kind,
        default=default,
        **more,
    )


def flag(parser: Container, name: str, help: str) -> None:
    """Add an option that is there or not."""
    parser.add_argument(name, action="store_true", help=help)


def repeated(parser: Container, usage: str, help: str, **more: Any) -> None:
    """Add an option that may be given more than once; its values are a list."""
    name, _, metavar = usage.partition(" ")
    help += "; may be repeated"
    parser.add_argument(name, action="append", metavar=metavar, help=help, **more)


def add_json(parser: Container) -> None:
    """Add the option that most commands share."""
    flag(parser, "--json", "print one JSON document and nothing else")


def print_json(document: Any, *, indent: int | None = 2) -> None:
    """Print what ``--json`` asks for; what is infinite becomes null."""
    print(json.dumps(finite(document), indent=indent), flush=True)


def add_config(
    parser: Container, usage: str = "config CONFIG.toml", what: str = ""
) -> None:
    """Add the settings of a run: a file, and changes to single ones of them."""
    option(parser, usage, f"settings{what}; the demo's without it", Path, nargs="?")
    help = "change one setting, for example privacy.noise_multiplier=1.1"
    repeated(parser, "--set KEY=VALUE", help, dest="overrides", default=[])


def add_columns(parser: Container) -> None:
    """Add which columns of a table are the label and the site."""
    option(parser, "--label COLUMN", "label column of a table", str, "label")
    option(
        parser,
        "--site COLUMN",
        "site column of a table, or site array of an .npz",
    )


def add_unit(parser: Container, help: str) -> None:
    """Add what is protected: a record, or a person."""
    units = [str(unit) for unit in Unit]
    option(parser, "--unit", help, str, str(Unit.RECORD), choices=units)
