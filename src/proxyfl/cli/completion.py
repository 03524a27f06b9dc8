"""Completion of commands, options and files by bash, zsh and tcsh: ``proxyfl --print-completion``.

The script is made from the parser, so that it knows each command, action, option and value.
"""

import argparse
from pathlib import Path

import shtab

SHELLS = ("bash", "zsh", "tcsh")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell, to be put where the shell looks for completions."""
    _complete_files(parser)
    text: str = shtab.complete(parser, shell)
    return text


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Mark options and places that take a path, so that the shell offers files for them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command)
        elif action.type is Path and action.choices is None:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
