"""Commands that train nothing do not wait for PyTorch."""

import subprocess
import sys
from pathlib import Path

import pytest

from proxyfl.cli.main import main

ROOT = Path(__file__).parents[2]

LIGHT = [
    "--help",
    "epsilon --help",
    "worth --help",
    "node --help",
    "federation --help",
    "methods",
    "epsilon --examples 1000 --batch 50 --steps 10 --noise 4",
    "topology exponential --clients 8",
    "run --help",
    "run --print-config",
    "run --print-config --set rounds=3",
    "resume --help",
    f"sweep {ROOT / 'experiments' / 'mnist.toml'} --dry-run",
]
"""Commands that need no tensor. ``table``, ``report`` and ``load`` are tested in
tests/records/test_reading.py."""


ACCOUNTING = ("epsilon --examples",)
"""Commands that compute an epsilon, for which they need the accountants."""


def heavy_imports(words: list[str], folder: Path, code: int = 0) -> set[str]:
    """Run the command in a process of its own, which is to exit with ``code``; return which
    packages that take long to load it imported."""
    script = (
        "import sys\n"
        "from proxyfl.cli.main import main\n"
        "try:\n"
        "    code = main(sys.argv[1:])\n"
        "except SystemExit as end:\n"
        "    code = end.code\n"
        "heavy = {'torch', 'dp_accounting', 'scipy'} & set(sys.modules)\n"
        "print(*sorted(heavy), file=sys.stderr)\n"
        "print('end', file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    line = [sys.executable, "-c", script, *words]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == code, done.stderr
    return set(done.stderr.splitlines()[-2].split())


@pytest.mark.parametrize("line", LIGHT, ids=lambda line: " ".join(line.split()[:2]))
def test_light_commands_import_nothing_heavy(line: str, tmp_path: Path) -> None:
    """A command that only reads settings, plans or explains imports no PyTorch, and accountants
    only if it computes an epsilon."""
    imported = heavy_imports(line.split(), tmp_path)
    if line.startswith(ACCOUNTING):
        imported -= {"dp_accounting", "scipy"}
    assert not imported


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
    for line in ("federation show heart", "node status north", "node status north --json"):
        assert not heavy_imports(line.split(), tmp_path), line


def test_a_wrong_setting_is_said_before_pytorch_loads(tmp_path: Path) -> None:
    """``run`` refuses settings that cannot be used without loading PyTorch first."""
    assert not heavy_imports(["run", "--set", "rounds=-1"], tmp_path, code=2)


def test_a_heavy_command_is_noticed(tmp_path: Path) -> None:
    """The check itself sees a command that does import PyTorch."""
    assert "torch" in heavy_imports(["models"], tmp_path)
