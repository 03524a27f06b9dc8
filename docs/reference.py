"""Writes build/reference.md from the docstrings of the public names (`make reference`)."""

import importlib
import inspect
import itertools
import re
from pathlib import Path
from types import ModuleType

MODULES = {
    "proxyfl": "The main interface.",
    "proxyfl.parts": "The parts of a federation, for a loop, a learner or an exchange of your own.",
    "proxyfl.losses": "Losses with one value per record.",
    "proxyfl.errors": "Every exception that the package raises on purpose.",
}

OPENING = """\
# Reference of the Python interface

Every public name with its signature and what it promises, made by `make reference` from the
docstrings. [python.md](guides/python.md) shows the names in use. Names that are not here are
internal and may change.
"""


def text() -> str:
    """The page."""
    parts = [OPENING]
    for name, about in MODULES.items():
        module = importlib.import_module(name)
        parts.append(f"## {name}\n\n{about}\n")
        for public in sorted(module.__all__, key=str.lower):
            parts.append(entry(module, public))
    return "\n".join(parts)


def entry(module: ModuleType, name: str) -> str:
    """The part of the page about one name."""
    value = getattr(module, name)
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return f"### {name}\n\n{described_below(module, name)}\n"
    lines = [f"### {name}", "", f"`{name}{signature(value)}`", "", plain(value)]
    if inspect.isclass(value):
        methods = []
        for member, code in vars(value).items():
            if member.startswith("_") or (not isinstance(code, property) and not callable(code)):
                continue
            shown = "" if isinstance(code, property) else signature(getattr(value, member))
            methods.append(f"- `{member}{shown}`: {first_sentence(code)}")
        if methods:
            lines += ["", *methods]
    return "\n".join(lines) + "\n"


def signature(value: object) -> str:
    """The arguments of a function or class; empty where Python does not know them."""
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"<object object at 0x[0-9a-f]+>|<factory>", "...", text)
    text = re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", text)
    return text.replace("(self, ", "(").replace("(self)", "()")


def plain(value: object) -> str:
    """A docstring as Markdown."""
    return (inspect.getdoc(value) or "").replace("``", "`")


def first_sentence(value: object) -> str:
    """The beginning of a docstring, up to the first full stop."""
    words = " ".join(plain(value).split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", words)[0]


def described_below(module: ModuleType, name: str) -> str:
    """The string below the assignment of a table or a type, wherever it is defined."""
    import ast

    homes = [getattr(module, "_HOMES", {}).get(name, module.__name__)]
    tree = ast.parse(inspect.getsource(importlib.import_module(homes[0])))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            homes.append(str(node.module))
    for home in homes:
        body = ast.parse(inspect.getsource(importlib.import_module(home))).body
        for node, below in itertools.pairwise(body):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            found = [target.id for target in targets if isinstance(target, ast.Name)]
            if name in found and isinstance(below, ast.Expr):
                assert isinstance(below.value, ast.Constant)
                return inspect.cleandoc(str(below.value.value)).replace("``", "`")
    raise ValueError(f"{module.__name__}.{name} has no string below its assignment.")


if __name__ == "__main__":
    page = Path(__file__).parents[1] / "build" / "reference.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(text())
    print(page)
