"""The public interface: which names, that each says what it is, and that importing the package
costs nothing."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import proxyfl

NAMES = [
    "DPSGD",
    "METHODS",
    "Budget",
    "Callback",
    "Config",
    "Dataset",
    "Epsilon",
    "Examples",
    "InMemory",
    "Kind",
    "Ledger",
    "Mass",
    "Method",
    "ProxyFLError",
    "Run",
    "load",
    "noise_for",
    "run",
    "steps_for",
]
"""A name added here is promised for good; one removed breaks somebody's program. Both belong in the
CHANGELOG."""


def test_the_names_are_these() -> None:
    """The public interface changes only where this list is changed with it."""
    assert proxyfl.__all__ == NAMES
    assert dir(proxyfl) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_documented(name: str) -> None:
    """Each public name has a docstring of its own, and so has each public method of a class."""
    value = getattr(proxyfl, name)
    assert _docstring(name, value), f"proxyfl.{name} has no docstring"
    if inspect.isclass(value):
        own = [
            m
            for m in vars(value).items()
            if not m[0].startswith("_") and _is_member(m[1])
        ]
        assert not [member for member, code in own if not inspect.getdoc(code)]


def test_homes_types_and_all_agree() -> None:
    """What type checkers see, what is loaded when used, and what is listed are the same."""
    tree = ast.parse(Path(proxyfl.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        a.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for a in node.names
    }
    assert seen == proxyfl._HOMES
    assert sorted(seen) == sorted(NAMES)


def test_an_unknown_name_lists_the_known() -> None:
    """A name that is not there raises AttributeError, which lists those that are."""
    with pytest.raises(
        AttributeError, match="'Client'; it has DPSGD, METHODS, Budget"
    ):
        proxyfl.Client  # noqa: B018  # looking it up is the test


def test_importing_is_cheap() -> None:
    """``import proxyfl`` imports neither torch nor NumPy nor any module of its own."""
    code = (
        "import sys, proxyfl; print([m for m in sys.modules "
        "if m in ('torch', 'numpy') or m.startswith('proxyfl.')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_the_errors_need_nothing_heavy() -> None:
    """Catching our exceptions does not import torch either."""
    code = "import sys; from proxyfl import ProxyFLError; print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "False"


def _is_member(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(
        value, property | classmethod | staticmethod
    )


def _docstring(name: str, value: object) -> str | None:
    if inspect.isclass(value) or inspect.isroutine(value):
        return vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__
    # A table has no __doc__ of its own: the string below its assignment is what editors show.
    body = ast.parse(
        Path(
            inspect.getfile(importlib.import_module(proxyfl._HOMES[name]))
        ).read_text()
    ).body
    at = next(
        i
        for i, node in enumerate(body)
        if isinstance(node, ast.AnnAssign) and _name(node) == name
    )
    below = body[at + 1]
    return (
        str(below.value.value)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        else None
    )


def _name(node: ast.AnnAssign) -> str:
    return node.target.id if isinstance(node.target, ast.Name) else ""
