"""The dependency rule as a test: imports point down, siblings do not know each other, the optional
stays home."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "proxyfl"

LEVELS = (
    ("errors", "curves"),
    ("_files", "_validate", "measures"),
    (
        "_entrypoint",
        "_examples",
        "_machine",
        "_settings",
        "losses",
        "params",
        "resampling",
        "seeds",
    ),
    ("privacy", "gossip", "transport", "data", "models"),
    ("federation",),
    ("records",),
    ("simulation", "node"),
    ("sweeps", "report", "audit"),
    ("cli",),
    ("__main__",),
)
"""Who may import whom (docs/design.md): a package imports from lower levels and from itself."""

LEVEL: dict[str, int] = {}
for level, names in enumerate(LEVELS):
    LEVEL |= dict.fromkeys(names, level)

HOMES = {
    "pandas": {"data/files.py", "records/frames.py"},
    "PIL": {
        "data/images/rule.py",
        "data/images/sheet.py",
        "data/slides/slide.py",
    },
    "opacus": set(),
    "grpc": {"transport/grpc/server.py", "transport/grpc/client.py"},
}
"""Optional packages and the only files that import them. Pandas reads tables at one end and makes
them at the other; Opacus is an oracle of the tests, nothing more."""

AT_MOST_ONE_HOME = (
    "matplotlib",
    "plotly",
    "mpi4py",
    "openslide",
    "efficientnet_lite_pytorch",
)

FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"
)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def package(path: Path) -> str:
    """The part of proxyfl that a file belongs to: a package's name, or a module's at the bottom."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """The dotted names that a file imports, wherever in it; ``from a import b`` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write absolute imports"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_packages(tree: ast.AST) -> set[str]:
    """The parts of proxyfl that a file imports."""
    return {
        name.split(".")[1]
        for name in imported(tree)
        if name.split(".")[0] == "proxyfl" and "." in name
    }


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: str(path.relative_to(SOURCE))
)
def test_imports_point_downwards(path: Path) -> None:
    """A module imports only from lower levels and from its own package, so siblings never import
    each other."""
    own = package(path)
    assert own in LEVEL, (
        f"{own} has no level yet: add it to LEVEL and to docs/design.md"
    )
    for other in imported_packages(parsed(path)) - {own}:
        assert other in LEVEL, (
            f"{path.name}: imports proxyfl.{other}, which has no level"
        )
        assert LEVEL[other] < LEVEL[own], (
            f"{path.name} ({own}) must not import {other}"
        )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from proxyfl import data, models", {"data", "models"}),
        ("from proxyfl.gossip.topology import make", {"gossip"}),
        ("import proxyfl.cli.main", {"cli"}),
        ("def f():\n    from proxyfl.node import start", {"node"}),
        ("import torch\nfrom proxyfl_other import x", set()),
    ],
)
def test_every_form_of_import_is_seen(text: str, found: set[str]) -> None:
    """The walk finds imports of all forms, also within functions, and takes no other package for
    ours."""
    assert imported_packages(ast.parse(text)) == found


def homes(name: str) -> set[str]:
    """The files that import the top-level package ``name``."""
    return {
        path.relative_to(SOURCE).as_posix()
        for path in FILES
        if any(found.split(".")[0] == name for found in imported(_running(path)))
    }


@pytest.mark.parametrize("name", HOMES)
def test_optional_packages_stay_at_home(name: str) -> None:
    """An optional package is imported in no file but its home."""
    assert homes(name) <= HOMES[name]


@pytest.mark.parametrize("name", AT_MOST_ONE_HOME)
def test_heavy_packages_have_at_most_one_home(name: str) -> None:
    """A heavy package that only some users have is imported in one file, if at all."""
    assert len(homes(name)) <= 1, f"{name} is imported in {sorted(homes(name))}"


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: str(path.relative_to(SOURCE))
)
def test_optional_packages_are_imported_when_used(path: Path) -> None:
    """A module that needs an optional package is imported by others only within the functions that
    use it."""
    names = {
        ".".join(name.split(".")[:depth])
        for name in imported(_top_level(path))
        for depth in range(2, 5)
    }
    assert not names & needy()


@functools.cache
def needy() -> frozenset[str]:
    """The modules that cannot be imported without an optional package."""
    return frozenset(
        _dotted(path)
        for path in FILES
        if _at_once(path) & {*HOMES, *AT_MOST_ONE_HOME}
    )


def _at_once(path: Path) -> set[str]:
    """The top-level packages that importing a file imports directly."""
    return {name.split(".")[0] for name in imported(_top_level(path))}


def _top_level(path: Path) -> ast.Module:
    return ast.Module(
        [node for node in _running(path).body if not _is_definition(node)], []
    )


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


def _running(path: Path) -> ast.Module:
    """What of a file is ever executed: without the imports that only type checkers see."""
    return ast.Module(
        [node for node in parsed(path).body if not _for_types(node)], []
    )


def _for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
