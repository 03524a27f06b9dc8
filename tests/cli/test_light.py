"""Commands that train nothing do not wait for PyTorch."""

import subprocess
import sys
from pathlib import Path

from proxyfl.cli.main import main

ROOT = Path(__file__).parents[2]

LIGHT = [
    "--help",
    "epsilon --help",
    "worth --help",
    "node --help",
    "federation --help",
    "methods",
    "topology exponential --clients 8",
    "run --help",
    "run --print-config",
    "run --print-config --set rounds=3",
    "resume --help",
    f"sweep {ROOT / 'experiments' / 'mnist.toml'} --dry-run",
]
"""Commands that need no tensor. ``table``, ``report`` and ``load`` are tested in
tests/records/test_reading.py."""

SCRIPT = """
import sys
from proxyfl.cli.main import main
for line in sys.stdin.read().splitlines():
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    heavy = {"torch", "dp_accounting", "scipy", "numpy"} & set(sys.modules)
    print(f"# {code} {line}:", *sorted(heavy), file=sys.stderr)
"""


def heavy_imports(lines: list[str], folder: Path, code: int = 0) -> dict[str, set[str]]:
    """Run the commands in one new process, one after the other; each is to exit with ``code``.

    Returns, after each command, the packages that take long to load and were imported so far."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    heavy = {}
    for line in done.stderr.splitlines():
        if line.startswith("# "):
            command, _, packages = line.rpartition(":")
            assert command.startswith(f"# {code} "), done.stderr
            heavy[command.removeprefix(f"# {code} ")] = set(packages.split())
    assert list(heavy) == lines
    return heavy


def test_light_commands_import_nothing_heavy(tmp_path: Path) -> None:
    """A command that only reads settings, plans or explains imports no PyTorch and no accountant,
    and one that computes an epsilon imports the accountants alone."""
    computing = "epsilon --examples 1000 --batch 50 --steps 10 --noise 4"
    heavy = heavy_imports([*LIGHT, computing], tmp_path)
    assert heavy.pop(computing) == {"dp_accounting", "scipy", "numpy"}
    assert {line: packages - {"numpy"} for line, packages in heavy.items()} == {
        line: set() for line in LIGHT
    }


def test_a_federation_is_shown_without_pytorch(tmp_path: Path) -> None:
    """Who looks at a site or a manifest does not wait for what trains."""
    for name in ("north", "south"):
        assert (
            main(["node", "init", str(tmp_path / name), "--address", f"{name}.example:7443"]) == 0
        )
    cards = [str(tmp_path / name / f"{name}.card.toml") for name in ("north", "south")]
    terms = ["--shape", "4", "--classes", "no,yes", "--rounds", "3"]
    assert main(["federation", "new", str(tmp_path / "heart"), *cards, *terms]) == 0
    manifest = str(tmp_path / "heart" / "manifest.toml")
    assert main(["node", "accept", str(tmp_path / "north"), manifest]) == 0
    lines = ["federation show heart", "node status north", "node status north --json"]
    assert heavy_imports(lines, tmp_path) == {line: set() for line in lines}


def test_a_wrong_setting_is_said_before_pytorch_loads(tmp_path: Path) -> None:
    """``run`` refuses settings that cannot be used without loading PyTorch first."""
    line = "run --set rounds=-1"
    assert heavy_imports([line], tmp_path, code=2)[line] <= {"numpy"}
