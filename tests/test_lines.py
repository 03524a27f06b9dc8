"""Lines that breathe, as a test: short lines, flat expressions, small modules, small rooms."""

import ast
import io
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "proxyfl"
FILES = sorted(SOURCE.rglob("*.py"))

WIDTH = 100
MODULE = 400
ROOM = 12
TOKENS = 7.5

COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def long_lines(text: str) -> Iterator[int]:
    """Lines of more than 100 columns."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH:
            yield number


def unformatted(text: str) -> Iterator[int]:
    """Lines that ask the formatter to look away."""
    for number, line in enumerate(text.splitlines(), 1):
        if "# fmt:" in line:
            yield number


def nested_conditions(text: str) -> Iterator[int]:
    """Conditional expressions within another one."""
    for node in ast.walk(ast.parse(text)):
        inner = list(ast.walk(node))[1:]
        if isinstance(node, ast.IfExp) and any(
            isinstance(each, ast.IfExp) for each in inner
        ):
            yield node.lineno


def two_loops(text: str) -> Iterator[int]:
    """Comprehensions over more than one loop."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, COMPREHENSIONS) and len(node.generators) > 1:
            yield node.lineno


def crowded_constructors(text: str) -> Iterator[int]:
    """Assignments of a constructor that set more than one attribute."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for statement in ast.walk(node):
                if isinstance(statement, ast.Assign) and len(_set(statement)) > 1:
                    yield statement.lineno


def _set(statement: ast.Assign) -> list[ast.expr]:
    """What an assignment sets, if an attribute is among it."""
    found: list[ast.expr] = []
    for target in statement.targets:
        found += target.elts if isinstance(target, ast.Tuple) else [target]
    return (
        found if any(isinstance(target, ast.Attribute) for target in found) else []
    )


def too_long(text: str) -> Iterator[int]:
    """The end of a module of 400 lines or more."""
    lines = text.count("\n")
    if lines >= MODULE:
        yield lines


RULES: dict[str, Callable[[str], Iterator[int]]] = {
    "at most 100 columns": long_lines,
    "no line that the formatter passes over": unformatted,
    "no conditional expression within another": nested_conditions,
    "no comprehension over more than one loop": two_loops,
    "one assignment a line in a constructor": crowded_constructors,
    "modules of fewer than 400 lines": too_long,
}

NOT_YET: dict[str, set[str]] = {}
"""Files that break a rule until somebody mends them. Take them out; put none in."""


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix()
)
def test_lines_breathe(path: Path, rule: str) -> None:
    """Every module keeps every rule."""
    name = path.relative_to(SOURCE).as_posix()
    broken = list(RULES[rule](path.read_text(encoding="utf-8")))
    if name not in NOT_YET.get(rule, ()):
        assert not broken, f"{name}, lines {broken}: {rule}"


NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> list[int]:
    """The line of each token of the code; docstrings and comments are none."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type not in NO_CODE and line not in documented:
            found.append(line)
    return found


def test_lines_hold_few_tokens() -> None:
    """A line of code has at most 7.5 tokens on average."""
    tokens = 0
    lines = 0
    for path in FILES:
        found = code_lines(path.read_text(encoding="utf-8"))
        tokens += len(found)
        lines += len(set(found))
    assert tokens / lines <= TOKENS


def test_rooms_are_small() -> None:
    """No folder has more than twelve modules."""
    # The bottom is no room: its modules stand alone, and everybody may use them.
    folders = {path.parent for path in FILES} - {SOURCE}
    for folder in folders:
        modules = [
            path for path in folder.glob("*.py") if not path.name.startswith("__")
        ]
        assert len(modules) <= ROOM, f"{folder.name} has {len(modules)} modules"


@pytest.mark.parametrize(
    ("rule", "broken", "kept"),
    [
        (long_lines, f"a = '{'x' * 100}'", f"a = '{'x' * 90}'"),
        (unformatted, "a = 1  # fmt: skip", "a = 1  # why"),
        (
            nested_conditions,
            "a = 1 if b else (2 if c else 3)",
            "a = (1 if b else 2, 3 if c else 4)",
        ),
        (
            nested_conditions,
            "a = f(1 if b else 2) if c else 3",
            "a = 1 if b else 2",
        ),
        (
            two_loops,
            "a = [c for b in d for c in b]",
            "a = [[c for c in b] for b in d]",
        ),
        (two_loops, "f(c for b in d for c in b)", "f(c for c in b)"),
        (
            crowded_constructors,
            "class A:\n def __init__(self):\n  self.a, self.b = 1, 2",
            "class A:\n def __init__(self):\n  a, b = 1, 2\n  self.a = a",
        ),
        (
            crowded_constructors,
            "class A:\n def __init__(self):\n  self.a = self.b = 1",
            "class A:\n def f(self):\n  self.a = self.b = 1",
        ),
        (too_long, "a = 1\n" * 400, "a = 1\n" * 399),
    ],
)
def test_rules_find_what_they_name(
    rule: Callable[[str], Iterator[int]], broken: str, kept: str
) -> None:
    """Each rule finds an offender, and passes what looks like one."""
    assert list(rule(broken))
    assert not list(rule(kept))
