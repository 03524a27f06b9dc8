"""What the site adds to the pages of ``docs/``: the README as its home, the root's other pages, the
references of the command line and of the public names, and copies of the repository's files that
pages link to."""

import argparse
import ast
import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "about/changelog.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "SECURITY.md": "about/security.md",
}
"""A page of the repository's root -> its place on the site."""

LINK = re.compile(r"(\]\(|src=\"|href=\")([^)\s\"#]+)(#[^)\s\"]*)?")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that lie outside of ``docs/`` or follow from the code, and copies of the
    repository's files that pages link to, as text."""
    linked: set[str] = set()
    for file in files.documentation_pages():
        folder = f"docs/{Path(file.src_uri).parent.as_posix()}"
        relinked(file.content_string, folder, file.src_uri, linked)
    for source, place in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        content = relinked(text, ".", place, linked)
        files.append(File.generated(config, place, content=content))
    files.append(File.generated(config, "reference/cli.md", content=command_line()))
    files.append(File.generated(config, "reference/python.md", content=python_names()))
    for path in sorted(linked):
        whole = ROOT / path
        content = (
            "\n".join(sorted(child.name for child in whole.iterdir()))
            if whole.is_dir()
            else whole.read_text(encoding="utf-8")
        )
        files.append(File.generated(config, copy_of(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files of the repository lead to the copies."""
    place = page.file.src_uri
    if page.file.generated_by:
        return markdown
    return relinked(markdown, f"docs/{Path(place).parent.as_posix()}", place, set())


def copy_of(path: str) -> str:
    """The place on the site of a copy of the repository's file ``path``."""
    return f"source/{path}.txt"


def relinked(text: str, folder: str, place: str, linked: set[str]) -> str:
    """``text``, which stands in ``folder`` of the repository, with links as they hold at ``place``
    of the site; ``linked`` gets the files of the repository to which they lead."""

    def link(match: re.Match[str]) -> str:
        before, target, anchor = match[1], match[2], match[3] or ""
        if ":" in target:
            return match[0]
        path = os.path.normpath(f"{folder}/{target}")
        if path.startswith("docs/"):
            to = path.removeprefix("docs/")
        elif path in ROOT_PAGES:
            to = ROOT_PAGES[path]
        else:
            if not (ROOT / path).exists():
                return match[0]
            linked.add(path)
            to, anchor = copy_of(path), ""
        return f"{before}{os.path.relpath(to, Path(place).parent)}{anchor}"

    return LINK.sub(link, text)


def command_line() -> str:
    """The help of every command and action, as the program prints it."""
    from proxyfl.cli.main import COMMANDS, parser

    os.environ["COLUMNS"] = "100"
    parts = [
        "# Command line\n",
        "Every command with its help, as the program prints it. `proxyfl run` and `proxyfl sweep` "
        "are simulations and protect nobody; `proxyfl node` is a real site.\n",
    ]
    for command in COMMANDS:
        (top,) = [a for a in parser(only=command)._actions if _is_list(a)]
        for name, page in _leaves([command], top.choices[command]):
            help_text = page.format_help().rstrip()
            parts.append(f"{'##' if len(name) == 1 else '###'} proxyfl {' '.join(name)}\n")
            parts.append(f"```text\n{help_text}\n```\n")
    return "\n".join(parts)


MODULES = {
    "proxyfl": "The main interface.",
    "proxyfl.parts": "Parts of a federation, for a loop, a learner or an exchange of your own.",
    "proxyfl.losses": "Losses with one value per record.",
    "proxyfl.errors": "Every exception that the package raises on purpose.",
}
"""The public modules and what each is for."""


def python_names() -> str:
    """A page with a directive for each public name, at the place where it is defined."""
    parts = [
        "# Python API\n",
        "For programmers: every public name with its signature and what it promises, from the "
        "docstrings. [Python: recipes](../guides/python.md) shows the names in use. Names that are "
        "not here are internal and may change.\n",
    ]
    for module, about in MODULES.items():
        parts.append(f"## {module}\n\n{about}\n")
        for name in sorted(importlib.import_module(module).__all__, key=str.lower):
            parts.append(f"::: {home(module, name)}\n")
    return "\n".join(parts)


def home(module: str, name: str) -> str:
    """The full name of a public name, where it is defined."""
    loaded = importlib.import_module(module)
    if name in getattr(loaded, "_HOMES", {}):
        return home(loaded._HOMES[name], name)
    for node in ast.walk(ast.parse(inspect.getsource(loaded))):
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return home(str(node.module), name)
    return f"{module}.{name}"


def _is_list(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _leaves(name: list[str], page: argparse.ArgumentParser) -> list[tuple[list[str], Any]]:
    """A command's help and that of its actions."""
    found = [(name, page)]
    for action in page._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                found += _leaves([*name, word], inner)
    return found
