"""The public interface: which names, that each says what it is, and that importing the package
costs nothing."""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import proxyfl

NAMES = [
    "DP",
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
    "from_table",
    "load",
    "noise_for",
    "run",
    "steps_for",
]
"""A name added here is promised for good; one removed breaks somebody's program. Both belong in the
CHANGELOG."""


MODULES = {
    "proxyfl.errors": [
        "BudgetExhausted",
        "ConfigError",
        "DataError",
        "InputError",
        "ModelError",
        "PeerRefused",
        "PeerTimeout",
        "PrivacyError",
        "ProxyFLError",
        "RunError",
        "TopologyError",
        "TransportError",
        "WorkerDied",
    ],
    "proxyfl.losses": ["binary_cross_entropy", "cross_entropy", "huber", "squared_error"],
    "proxyfl.parts": [
        "Batch",
        "Client",
        "Input",
        "Learner",
        "Learning",
        "Local",
        "Losses",
        "MakeLearner",
        "Mass",
        "MassChannel",
        "Mixing",
        "Model",
        "Mutual",
        "Optimizer",
        "Privacy",
        "Private",
        "Proxy",
        "Randomness",
        "Routes",
        "Seeded",
        "Single",
        "Streams",
        "Study",
        "System",
        "Topology",
        "add",
        "assemble",
        "complete",
        "exponential",
        "flatten",
        "load_flat",
        "mean",
        "random_out",
        "real",
        "ring",
        "routes",
        "seeded",
        "size",
    ],
}
"""The public modules, and what is public in each."""

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("module", MODULES)
def test_the_public_modules_have_these_names(module: str) -> None:
    """What a loop of one's own needs is public, and each of it can be imported."""
    found = importlib.import_module(module)
    assert sorted(found.__all__) == MODULES[module]
    for name in found.__all__:
        value = getattr(found, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"


def pages() -> dict[str, str]:
    """The Python of docs/guides/python.md and of each example, by name."""
    found = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    for path in (ROOT / "examples").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        found[path.name] = "\n".join(code)
    text = (ROOT / "docs" / "guides" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found | {"api.md": "\n".join(blocks)}


@pytest.mark.parametrize("page", pages())
def test_examples_use_public_names_alone(page: str) -> None:
    """No example imports an internal module or name, nor an attribute that begins with _."""
    public = {"proxyfl": NAMES, **MODULES}
    for node in ast.walk(ast.parse(pages()[page])):
        if isinstance(node, ast.Import):
            assert not [each.name for each in node.names if each.name.startswith("proxyfl.")]
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("proxyfl"):
            names = [each.name for each in node.names]
            assert str(node.module) in public, f"{page}: {node.module} is internal"
            assert set(names) <= set(public[str(node.module)]), f"{page}: {names}"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            assert node.attr.startswith("__"), f"{page}: {node.attr} is internal"


def test_private_training_takes_no_more_lines_than_opacus() -> None:
    """The first example of DPSGD and the same with Opacus, as the page has them: both run."""
    torch = pytest.importorskip("torch")
    text = (ROOT / "docs" / "guides" / "python.md").read_text()
    part = text.partition("## Private training without a federation")[2]
    ours = part.partition("```python\n")[2].partition("```")[0]
    theirs = part.partition("```py\n")[2].partition("```")[0]
    assert len(ours.splitlines()) < len(theirs.splitlines())
    x = torch.randn(480, 5)
    names = {"torch": torch, "x": x, "y": (x[:, 0] > 0).long()}
    exec(ours, dict(names))
    if importlib.util.find_spec("opacus"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Opacus has some of its own
            exec(theirs, dict(names))


def test_the_reference_has_every_name() -> None:
    """`make reference` writes a page about each public name from its docstring."""
    source = ROOT / "docs" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.MODULES) == {"proxyfl", *MODULES}
    page = module.text()
    for name in [*NAMES, *(each for names in MODULES.values() for each in names)]:
        about = page.split(f"### {name}\n")[1].split("\n### ")[0]
        assert len(about.split()) > 5, f"{name} has no description"


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
        own = [m for m in vars(value).items() if not m[0].startswith("_") and _is_member(m[1])]
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
    with pytest.raises(AttributeError, match="'Client'; it has DP, DPSGD, METHODS, Budget"):
        proxyfl.Client  # noqa: B018  # looking it up is the test


def test_importing_is_cheap() -> None:
    """``import proxyfl`` imports neither torch nor NumPy nor any module of its own."""
    code = (
        "import sys, proxyfl; print([m for m in sys.modules "
        "if m in ('torch', 'numpy') or m.startswith('proxyfl.')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_errors_need_nothing_heavy() -> None:
    """Catching our exceptions does not import torch either."""
    code = "import sys; from proxyfl import ProxyFLError; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def _is_member(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)


def _docstring(name: str, value: object) -> str | None:
    if inspect.isclass(value) or inspect.isroutine(value):
        return vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__
    # A table has no __doc__ of its own: the string below its assignment is what editors show.
    body = ast.parse(
        Path(inspect.getfile(importlib.import_module(proxyfl._HOMES[name]))).read_text()
    ).body
    at = next(
        i for i, node in enumerate(body) if isinstance(node, ast.AnnAssign) and _name(node) == name
    )
    below = body[at + 1]
    return (
        str(below.value.value)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        else None
    )


def _name(node: ast.AnnAssign) -> str:
    return node.target.id if isinstance(node.target, ast.Name) else ""
