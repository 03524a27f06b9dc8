"""What messages and help texts tell a user to type is something that the command line takes."""

import argparse
import ast
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from proxyfl.cli.main import COMMANDS, parser

SOURCE = Path(__file__).parents[2] / "src" / "proxyfl"

VALUE = "1"
"""Stands for what is only known when a message is printed, and for FILE, RUN, N and the like."""

COMMAND = re.compile(rf"\bproxyfl (?:{'|'.join(COMMANDS)})\b(?:(?!`|\n|  |\)|; |, |\. |\.$).)*")
"""A command in a text: to the closing backtick or, without backticks, to the end of the sentence or
to the gap before an explanation."""


def docstrings(tree: ast.Module) -> set[ast.AST]:
    """The texts that stand as statements of their own."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def as_text(node: ast.AST) -> str | None:
    """A literal's text, with VALUE for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [as_text(part) or VALUE for part in node.values]
        return "".join(parts)
    return None


def commands_in(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, words) of every command that a module's literals and calls of ``command`` spell."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set(docstrings(tree))
    is_ours = any(getattr(node, "module", "") == "proxyfl._command" for node in tree.body)
    for node in ast.walk(tree):
        if is_ours and isinstance(node, ast.Call) and getattr(node.func, "id", "") == "command":
            if not isinstance(node.args[0], ast.Starred):
                yield node.lineno, [as_text(word) or VALUE for word in node.args]
            skipped.update(ast.walk(node))
        if isinstance(node, ast.JoinedStr):
            skipped.update(part for part in ast.walk(node) if part is not node)
    for node in ast.walk(tree):
        text = None if node in skipped else as_text(node)
        if text is None or "proxyfl " not in text:
            continue
        for match in COMMAND.finditer(re.sub(r"\\\n\s*", "", text)):
            line = re.sub(r" [>|].*", "", match[0])  # what the shell makes of the output
            yield node.lineno, shlex.split(line)[1:]


def typed() -> list[tuple[str, int, str]]:
    """(module, line, command) of everything that a user may be told to type."""
    shown = []
    for path in sorted(SOURCE.rglob("*.py")):
        for line, words in commands_in(path):
            shown.append((path.relative_to(SOURCE).as_posix(), line, shlex.join(words)))
    return shown


def test_every_command_in_a_message_is_one_that_runs() -> None:
    """With values in place of FILE, RUN and the like, the real parser takes every command that a
    message or a help text shows: no argument is missing, no option is unknown."""
    wrong = []
    for module, line, command in typed():
        complaint = complaint_about(command)
        if complaint is not None:
            wrong.append(f"{module}:{line}: proxyfl {command}: {complaint}")
    assert not wrong, "\n".join(wrong)


def complaint_about(command: str) -> str | None:
    """What the parser prints when it refuses a command; None when it takes it."""
    words = []
    for word in shlex.split(command):
        words.append(VALUE if re.fullmatch(r"[A-Z][A-Z_]*(\.\w+)?", word) else word)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            parser(only=words[0]).parse_args(words)
    except SystemExit as end:  # --help ends so as well
        return None if end.code == 0 else printed.getvalue()
    return None


def leaves(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands and actions that take no further action."""
    inner = [each for each in top._actions if isinstance(each, argparse._SubParsersAction)]
    for actions in inner:
        for each in actions.choices.values():
            yield from leaves(each)
    if not inner:
        yield top


def test_every_command_and_action_has_an_example_in_its_help() -> None:
    """The help of each command and of each action shows how it is typed, to the end of the line."""
    for leaf in leaves(parser()):
        text = leaf.format_help()
        example = re.search(rf"^examples:\n(.*\n)*  {leaf.prog}\b", text, re.MULTILINE)
        assert example, f"{leaf.prog} --help has no example"
        assert not text.rstrip().endswith("\\"), f"{leaf.prog} --help ends within a line"


def test_a_command_that_does_not_run_is_noticed() -> None:
    """The test above tells a missing argument and an unknown option from a command that runs."""
    assert complaint_about("methods") is None
    assert "needs RUN" in str(complaint_about("resume"))
    assert "Unknown option --nonsense" in str(complaint_about("methods --nonsense"))


def test_commands_in_messages_are_seen() -> None:
    """The test above reads calls of ``command``, backticks, plain sentences and help texts."""
    shown = {command for _, _, command in typed()}
    assert {
        "node accept 1 MANIFEST",
        "resume 1",
        "ledger open 1 --delta 1e-6 --budget-epsilon 5",
        "methods",
        "federation try",
    } <= shown
