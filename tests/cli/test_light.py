"""Commands that train nothing do not wait for PyTorch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LIGHT = [
    "--help",
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


def imports_torch(words: list[str], folder: Path, code: int = 0) -> bool:
    """Run the command in a process of its own, which is to exit with ``code``; tell whether it
    imported PyTorch."""
    script = (
        "import sys\n"
        "from proxyfl.cli.main import main\n"
        "try:\n"
        "    code = main(sys.argv[1:])\n"
        "except SystemExit as end:\n"
        "    code = end.code\n"
        "print('torch' in sys.modules, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    line = [sys.executable, "-c", script, *words]
    done = subprocess.run(
        line, capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stderr.splitlines()[-1] == "True"


@pytest.mark.parametrize("line", LIGHT, ids=lambda line: " ".join(line.split()[:2]))
def test_light_commands_import_no_torch(line: str, tmp_path: Path) -> None:
    """A command that only reads settings, plans or explains imports no PyTorch."""
    assert not imports_torch(line.split(), tmp_path)


def test_a_wrong_setting_is_said_before_pytorch_loads(tmp_path: Path) -> None:
    """``run`` refuses settings that cannot be used without loading PyTorch first."""
    assert not imports_torch(["run", "--set", "rounds=-1"], tmp_path, code=2)


def test_a_heavy_command_is_noticed(tmp_path: Path) -> None:
    """The check itself sees a command that does import PyTorch."""
    assert imports_torch(["models"], tmp_path)
