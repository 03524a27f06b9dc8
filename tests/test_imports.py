"""The dependency rule as a test: imports point down, siblings do not know each other, the optional
stays home."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "proxyfl"

LEVELS = (
    ("_setonce", "errors", "_command"),
    ("_files", "_loopback", "_validate"),
    ("_lock", "tasks"),
    (
        "_entrypoint",
        "_examples",
        "_journal",
        "_terminal",
        "machine",
        "_settings",
        "losses",
        "measures",
        "params",
        "pooling",
        "seeds",
    ),
    ("outcomes", "settings"),
    ("privacy", "gossip", "transport", "data", "models"),
    ("federation",),
    ("records", "parts"),
    ("node",),
    ("simulation",),
    ("sweeps", "report", "audit"),
    ("cli",),
    ("__main__",),
)
"""Who may import whom (docs/about/design.md): a package imports from lower levels and
from itself."""

LEVEL: dict[str, int] = {}
for level, names in enumerate(LEVELS):
    LEVEL |= dict.fromkeys(names, level)

HOMES = {
    "pandas": {"data/tables/plain.py", "records/frames.py"},
    "PIL": {"data/images/rule.py", "data/images/sheet.py", "data/slides/slide.py"},
    "opacus": set(),
    "grpc": {"transport/grpc/server.py", "transport/grpc/client.py"},
}
"""Optional packages and the only files that import them. Pandas reads tables at one end and makes
them at the other; Opacus is an oracle of the tests, nothing more."""

ONE_HOME = {"fcntl": "_lock.py", "http.server": "_loopback.py"}
"""Modules of Python with one home in the package: the file lock and the page server."""

AT_MOST_ONE_HOME = ("matplotlib", "mpi4py", "openslide")

FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


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


def test_imports_point_downwards() -> None:
    """A module imports only from lower levels and from its own package, so siblings never import
    each other."""
    wrong = []
    for path in FILES:
        own = package(path)
        assert own in LEVEL, f"{own} has no level yet: add it to LEVEL and to docs/about/design.md"
        for other in imported_packages(parsed(path)) - {own}:
            assert other in LEVEL, f"{path.name}: imports proxyfl.{other}, which has no level"
            if LEVEL[other] >= LEVEL[own]:
                wrong.append(f"{path.relative_to(SOURCE)} must not import {other}")
    assert not wrong


def room(module: str) -> str:
    """The folder of a module, with dots: that of proxyfl.data.tables.schema is
    proxyfl.data.tables."""
    return module if _is_package(module) else module.rpartition(".")[0]


def _is_package(module: str) -> bool:
    return (SOURCE.parent / module.replace(".", "/") / "__init__.py").exists()


def _is_module(module: str) -> bool:
    file = (SOURCE.parent / module.replace(".", "/")).with_suffix(".py")
    return module.startswith("proxyfl.") and (file.exists() or _is_package(module))


def imported_modules(tree: ast.AST) -> set[str]:
    """The modules of proxyfl that a file imports, whole or names of them."""
    modules = set()
    for name in imported(tree):
        for dotted in (name, name.rpartition(".")[0]):
            path = SOURCE.parent / dotted.replace(".", "/")
            if dotted.startswith("proxyfl.") and (
                path.is_dir() or path.with_suffix(".py").exists()
            ):
                modules.add(dotted)
                break
    return modules


def test_no_two_folders_import_each_other() -> None:
    """Sub-rooms have a direction, too: of two folders at most one imports the other. The modules
    beside the rooms, which all may use, are left to the levels."""
    uses: dict[tuple[str, str], str] = {}
    for path in FILES:
        own = room(_dotted(path).removesuffix(".__init__"))
        for other in imported_modules(parsed(path)):
            uses[own, room(other)] = f"{path.relative_to(SOURCE)} imports {other}"
    wrong = []
    for (one, other), use in uses.items():
        if one < other and "proxyfl" not in (one, other) and (other, one) in uses:
            wrong.append(f"{use}, and {uses[other, one]}")
    assert not wrong, "\n".join(wrong)


def test_folders_of_imports_are_told_apart() -> None:
    """The test above knows a module from a folder and from a name within a module."""
    assert (
        room("proxyfl.data.tables.schema") == room("proxyfl.data.tables") == "proxyfl.data.tables"
    )
    text = (
        "from proxyfl.data import tables\n"
        "from proxyfl.privacy.ledger import Ledger\n"
        "import proxyfl.cli.main"
    )
    expected = {"proxyfl.data.tables", "proxyfl.privacy.ledger", "proxyfl.cli.main"}
    assert imported_modules(ast.parse(text)) == expected


def documented_parts() -> tuple[set[str], dict[str, list[str]]]:
    """The tables of docs/about/design.md about benchmarks and reproduction: the parts that all may
    use, and by benchmark those that it measures."""
    page = (ROOT / "docs" / "about" / "design.md").read_text()
    section = page.split("## Parts for studies\n")[1].split("\n## ")[0]
    parts, measured = set(), {}
    for line in section.splitlines():
        first, *rest = re.findall(r"`([^`]+)`", line) if line.startswith("| `") else [""]
        if first.startswith("benchmarks/"):
            measured[first] = rest
        elif first:
            parts |= {f"{first}.{name}" for name in rest}
    return parts, measured


def test_benchmarks_and_reproduction_use_public_names_and_documented_parts() -> None:
    """They import no private name, and of the package's modules only those of the tables in
    docs/about/design.md; each entry there is in use."""
    parts, measured = documented_parts()
    unused = parts | {f"{file}: {part}" for file, own in measured.items() for part in own}
    wrong = []
    for path in sorted([*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("reproduction/**/*.py")]):
        file = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text())
        for name in imported(tree):
            words = name.split(".")
            if words[0] == "proxyfl" and any(word.startswith("_") for word in words):
                wrong.append(f"{file}: {name} is private")
        for module in imported_modules(tree):
            own = [part for part in measured.get(file, ()) if f"{module}.".startswith(f"{part}.")]
            unused -= {module} | {f"{file}: {part}" for part in own}
            if module not in parts and not own:
                wrong.append(f"{file}: {module} is not in docs/about/design.md")
    assert not wrong, "\n".join(wrong)
    assert unused <= {"proxyfl.parts"}


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


def test_optional_packages_stay_at_home() -> None:
    """An optional package is imported in no file but its home, a heavy one in at most one."""
    for name, allowed in HOMES.items():
        assert homes(name) <= allowed, f"{name} is imported in {sorted(homes(name) - allowed)}"
    for name in AT_MOST_ONE_HOME:
        assert len(homes(name)) <= 1, f"{name} is imported in {sorted(homes(name))}"


@pytest.mark.parametrize(("name", "home"), ONE_HOME.items())
def test_one_file_lock_and_one_page_server(name: str, home: str) -> None:
    """Locks and pages have one implementation each, which all others use."""
    importers = {
        path.relative_to(SOURCE).as_posix()
        for path in FILES
        if any(f"{other}.".startswith(f"{name}.") for other in imported(parsed(path)))
    }
    assert importers == {home}


def test_the_nodes_sql_is_in_one_room() -> None:
    """Statements for a site's store stand in ``node/exchange``, and the state machine, the messages
    and the threads there have none."""
    speaking = {
        path.relative_to(SOURCE / "node").as_posix()
        for path in (SOURCE / "node").rglob("*.py")
        if re.search(r"\.execute\(", path.read_text())
    }
    modules = ("history", "reasons", "standing", "store")
    assert speaking == {f"exchange/{name}.py" for name in modules}


def test_optional_packages_are_imported_when_used() -> None:
    """A module that needs an optional package is imported by others only within the functions that
    use it."""
    for path in FILES:
        names = {
            ".".join(name.split(".")[:depth])
            for name in imported(_top_level(path))
            for depth in range(2, 5)
        }
        eager = names & needy()
        assert not eager, f"{path.relative_to(SOURCE)} imports {sorted(eager)} at once"


@functools.cache
def needy() -> frozenset[str]:
    """The modules that cannot be imported without an optional package."""
    return frozenset(
        _dotted(path) for path in FILES if _at_once(path) & {*HOMES, *AT_MOST_ONE_HOME}
    )


def _at_once(path: Path) -> set[str]:
    """The top-level packages that importing a file imports directly."""
    return {name.split(".")[0] for name in imported(_top_level(path))}


def _top_level(path: Path) -> ast.Module:
    return ast.Module([node for node in _running(path).body if not _is_definition(node)], [])


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


def _running(path: Path) -> ast.Module:
    """What of a file is ever executed: without the imports that only type checkers see."""
    return ast.Module([node for node in parsed(path).body if not _for_types(node)], [])


def _for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
