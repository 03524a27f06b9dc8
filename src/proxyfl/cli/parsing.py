"""The parser of the command line: a mistake is answered with one sentence that says what to type.

argparse says what it could not use and prints a usage line. This parser also says what was probably
meant: the command, the option, the value, or the setting that an option is mistaken for.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

_CHOICE = re.compile(r"argument (?P<name>.+?): invalid choice: '?(?P<value>.*?)'? \(choose from")
_VALUE = re.compile(r"argument (?P<name>.+?): invalid (?P<kind>\w+) value: (?P<value>.*)")
_REQUIRED = re.compile(r"the following arguments are required: (?P<names>.*)")
_ONE_OF = re.compile(r"one of the arguments (?P<names>.*) is required")
_NEITHER = re.compile(r"argument (?P<name>.+?): not allowed with argument (?P<other>.+)")
_COUNT = re.compile(r"argument (?P<name>.+?): expected .*argument")
_UNKNOWN = re.compile(r"unrecognized arguments: (?P<words>.*)")

_KINDS = {"int": "a whole number", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors name the remedy."""

    def error(self, message: str) -> NoReturn:
        """Prints the error as one line and exits with code 2."""
        told = self._explain(message)
        self.exit(2, f"{told}\n" if told.startswith("proxyfl") else f"proxyfl: {told}\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses all words; a word that no option or place takes is an error of the command that it
        was meant for."""
        parsed, left = self.parse_known_args(args, namespace)
        if left:
            words = list(sys.argv[1:] if args is None else args)
            at = words.index(left[0]) if left[0] in words else len(words)
            chosen = self._chosen(words)
            chosen.error(f"unrecognized arguments: {' '.join([left[0], *words[at + 1 :]])}")
        return parsed

    def _chosen(self, words: Sequence[str] | None) -> "Parser":
        """The parser of the command, or of its action, that the words name."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word in words or ():
                    if word in action.choices:
                        chosen: Parser = action.choices[word]
                        return chosen._chosen(words)
        return self

    def _explain(self, message: str) -> str:
        help_line = f"Run: {self.prog} --help"
        if match := _CHOICE.match(message):
            return f"{self._bad_choice(match['name'], match['value'])} {help_line}"
        if match := _VALUE.match(message):
            kind = _KINDS.get(match["kind"], f"a value of the kind {match['kind']}")
            return f"{match['name']}: expected {kind}, got {match['value']}. {help_line}"
        if match := _REQUIRED.match(message):
            return f"{self.prog} needs {match['names']}. For examples, run: {self.prog} --help"
        if match := _ONE_OF.match(message):
            names = ", ".join(match["names"].split())
            return f"{self.prog} needs one of {names}. For examples, run: {self.prog} --help"
        if match := _NEITHER.match(message):
            return f"Expected one of {match['other']} and {match['name']}, got both. {help_line}"
        if match := _COUNT.match(message):
            return f"{match['name']} needs a value after it. {help_line}"
        if match := _UNKNOWN.match(message):
            return f"{self._explain_unknown(match['words'].split())} {help_line}"
        return f"{message}. {help_line}"

    def _bad_choice(self, name: str, value: str) -> str:
        known: list[str] = []
        for action in self._actions:
            if action.choices is not None and name in (*action.option_strings, action.metavar):
                known = list(map(str, action.choices))
        what = {"COMMAND": "command", "ACTION": f"action of {self.prog}"}.get(name)
        if what is not None:
            return f"Unknown {what} {value!r}. {_guess(value, known)}"
        return f"{name}: unknown value {value!r}. {_guess(value, known)}"

    def _explain_unknown(self, words: Sequence[str]) -> str:
        word = words[0]
        if not word.startswith("-"):
            return f"Unexpected {word!r}: {self.prog} takes no more values."
        name = word.partition("=")[0]
        options = [
            text for action in self._actions for text in action.option_strings if len(text) > 2
        ]
        close = _close(name, options)
        key = _setting(name) if "--set" in options else None
        if key is not None and (close is None or _nearness(name, key) > _nearness(name, close)):
            value = word.partition("=")[2] or (words[1] if len(words) > 1 else "VALUE")
            return f"{name} is a setting, not an option. Give it as --set {key}={value}."
        return f"Unknown option {name}. {_guess(name, options)}"


def _guess(value: str, known: Iterable[str]) -> str:
    """What was probably meant; all that is known where nothing is close."""
    known = list(known)
    close = _close(value, known)
    return f"Did you mean {close}?" if close else f"Known: {', '.join(known)}."


def _close(value: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of ``known`` that is spelled most like ``value``, if any is."""
    lowered = {each.lower(): each for each in known}
    close = difflib.get_close_matches(value.lower(), lowered, 1, cutoff)
    return lowered[close[0]] if close else None


def _nearness(one: str, other: str) -> float:
    """From 0 to 1, how alike an option and another, or a setting, are spelled."""
    leaf = other.rpartition(".")[2] if "." not in one else other
    return difflib.SequenceMatcher(a=_bare(one), b=_bare(leaf)).ratio()


def _bare(option: str) -> str:
    return option.lstrip("-").replace("-", "_").lower()


def _setting(option: str) -> str | None:
    """The setting of a run that an option such as ``--rounds`` names, if there is one."""
    from proxyfl.simulation.config import keys

    by_name: dict[str, str] = {}
    for key in keys():
        by_name.setdefault(key.rpartition(".")[2], key)
        by_name[key] = key
    close = _close(_bare(option), by_name, 0.75)
    return by_name[close] if close else None
