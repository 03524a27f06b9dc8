"""Ctrl-C from the first moment on: real processes, as the installed command starts them."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE = 120

SHIM = """\
import sys
from proxyfl.cli import entry
print("ours", flush=True)
sys.exit(entry.main())
"""
"""What an installed command does, with a word once our own code is there."""


def interrupted(*words: str, after: float) -> tuple[int, str]:
    """Exit code and standard error of a command that gets Ctrl-C so many seconds after our code
    was loaded."""
    process = subprocess.Popen(
        [sys.executable, "-c", SHIM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ours\n"
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    return process.returncode, said


@pytest.mark.parametrize("command", ["methods", "models", "run"])
def test_an_interrupt_at_any_instant(command: str, tmp_path: Path) -> None:
    """Ctrl-C within the first half second ends quietly with 130, whatever is being imported; a
    command that was done by then has its own code, or ends without a word."""
    words = [command]
    if command == "run":
        words += ["--out", str(tmp_path / "run")]
    instants = random.Random(command)
    for _ in range(6):
        after = instants.uniform(0.001, 0.5)
        code, said = interrupted(*words, after=after)
        assert "Traceback" not in said, f"after {after:.3f} s: {said}"
        assert "Exception ignored" not in said, f"after {after:.3f} s: {said}"
        done = (0, -signal.SIGINT) if command == "methods" else ()
        assert code in (130, *done), f"after {after:.3f} s: {said}"


def test_the_first_module_imports_next_to_nothing() -> None:
    """Before Ctrl-C is in hand, nothing is imported but what the handler needs."""
    code = (
        "import sys; import signal, os; needed = set(sys.modules); "
        "import proxyfl.cli.entry; print(*sorted(set(sys.modules) - needed))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.split() == ["proxyfl", "proxyfl.cli", "proxyfl.cli.entry"]
