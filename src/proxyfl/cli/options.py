"""Options of the commands: tables of entries, each as a usage line writes it.

An option's default stands in one place: ``option`` says it in the help."""

import argparse
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from proxyfl._files import Document as Document
from proxyfl._files import finite
from proxyfl.privacy.guarantee import Unit
from proxyfl.settings import PERSON

Option = tuple[str, dict[str, Any]]
"""The name of an option or a place, and what argparse is told of it."""

Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Execute = Callable[[argparse.Namespace], int]


@dataclass(frozen=True)
class Action:
    """A command, or one of the things that a command does: ``proxyfl COMMAND ACTION ...``.

    A command that has actions leaves it to them to execute something."""

    name: str
    summary: str
    options: Iterable["Option | OneOf"] = ()
    execute: Execute | None = None
    description: str = ""
    epilog: str = ""


@dataclass(frozen=True)
class OneOf:
    """Options of which at most one is given, or exactly one."""

    options: Iterable[Option]
    required: bool = False


def option(
    usage: str, help: str, kind: Callable[[str], Any] = str, default: Any = None, **more: Any
) -> Option:
    """An option if ``usage`` is like ``--clients K``, a place if it is like ``folder RUN``."""
    name, _, metavar = usage.partition(" ")
    if isinstance(default, tuple):
        help += f" (default: {' '.join(map(str, default))})"
    elif default not in (None, ""):
        help += f" (default: {default})"
    keywords = {"metavar": metavar or None, "help": help}
    return name, keywords | {"type": kind, "default": default} | more


def flag(name: str, help: str) -> Option:
    """An option that is there or not."""
    return name, {"action": "store_true", "help": help}


def repeatable(usage: str, help: str, **more: Any) -> Option:
    """An option that may be given more than once; its values are a list."""
    name, _, metavar = usage.partition(" ")
    keywords = {"metavar": metavar, "help": f"{help}; may be repeated"}
    return name, {"action": "append"} | keywords | more


def unit(help: str) -> Option:
    """The option that says what is protected: a record, or a person (also called group)."""
    units = [str(unit) for unit in Unit]
    return option("--unit", help, _unit_called, str(Unit.RECORD), choices=units)


def _unit_called(word: str) -> str:
    return str(Unit.GROUP) if word == PERSON else word


STUDY = Path("study.toml")
"""The config that `proxyfl run` takes in a folder that `proxyfl new` made."""

JSON = flag("--json", "print one JSON document and nothing else")

COALITION = (
    option(
        "--colluders T",
        "of a masked sum: members, 1 or more, that may collude or leave out their noise",
        int,
    ),
    option("--quorum K_MIN", "of a masked sum: the fewest members that a sum may have", int),
)
"""The terms of a masked sum, both or neither."""

COLUMNS = (
    option("--label COLUMN", "label column of a table", str, "label"),
    option("--site COLUMN", "site column of a table, or site array of an .npz"),
)


def config_options(usage: str = "config CONFIG.toml", what: str = "") -> tuple[Option, ...]:
    """The settings of a run: a file, and changes to single ones of them."""
    one = "change one setting, for example privacy.noise_multiplier=1.1"
    return (
        option(usage, f"settings{what}; the defaults without it", Path, nargs="?"),
        repeatable("--set KEY=VALUE", one, dest="overrides", default=[]),
    )


def add_actions(parser: argparse.ArgumentParser, actions: Iterable[Action]) -> None:
    """Give a command actions of its own, one of which must be named. The help of each shows those
    of its command's examples that are about it."""
    places = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    for action in actions:
        add_action(places, action)
    show_examples(parser)


def add_action(places: Actions, action: Action) -> argparse.ArgumentParser:
    """Add a command, or an action of one."""
    parser = places.add_parser(
        action.name,
        help=action.summary,
        description=action.description or f"{action.summary.capitalize()}.",
        epilog=action.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for each in action.options:
        if isinstance(each, OneOf):
            group = parser.add_mutually_exclusive_group(required=each.required)
            for place, more in each.options:
                group.add_argument(place, **more)
        else:
            place, more = each
            parser.add_argument(place, **more)
    if action.execute is not None:
        parser.set_defaults(run=action.execute)
    return parser


def show_examples(parser: argparse.ArgumentParser) -> None:
    """Show in the help of each action those of its command's examples that are about it, before
    what else it has to say."""
    examples = re.findall(r"^  (?:.*\\\n)*.*", parser.epilog or "", re.MULTILINE)
    for actions in parser._actions:
        if not isinstance(actions, argparse._SubParsersAction):
            continue
        for action in actions.choices.values():
            own = [line for line in examples if f"{line} ".startswith(f"  {action.prog} ")]
            shown = "\n".join(["examples:", *own])
            action.epilog = "\n\n".join(filter(None, [shown, action.epilog]))


def print_answer(args: argparse.Namespace, document: Document, text: str) -> None:
    """Print what a command did: the document if ``--json`` asks for it, else the text."""
    if args.json:
        print_json(document)
    else:
        print(text)


def print_json(document: Any, *, indent: int | None = 2) -> None:
    """Print what ``--json`` asks for; what is infinite becomes null."""
    print(json.dumps(finite(document), indent=indent), flush=True)
