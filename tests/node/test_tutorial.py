"""docs/start/three-sites.md, typed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from proxyfl.node.trial import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "start" / "three-sites.md"
NAMES = ("north", "south", "east")


def tutorial() -> list[list[str]]:
    """The commands of the tutorial, block by block."""
    text = PAGE.read_text()
    part = text[text.index("## The tutorial") :]
    found = re.findall(r"^```sh\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    return [block.strip().splitlines() for block in found]


def typed(lines: list[str]) -> list[str]:
    """Type the lines at once, each in a terminal of its own; return what they print."""
    terminals = []
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "proxyfl"
        command = [sys.executable, "-m", "proxyfl.cli.main", *words]
        terminals.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    said = [terminal.communicate(timeout=280)[0] for terminal in terminals]
    codes = [terminal.returncode for terminal in terminals]
    assert codes == [0] * len(lines), (lines, said)
    return said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_typed_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the tutorial succeeds in an empty folder, in the order in which it stands,
    three terminals where it says so; at the end there is a model and a certificate that holds."""
    monkeypatch.chdir(tmp_path)
    written = ["7441", "7442", "7443", "7481", "7482", "7483"]
    free = dict(zip(written, map(str, free_ports(6)), strict=True))
    said = []
    for block in tutorial():
        lines = []
        for line in block:
            for port in written:
                line = line.replace(port, free[port])
            lines.append(line)
        if "preflight" in lines[0] or "node run" in lines[0]:
            said += typed(lines)
        else:
            for line in lines:
                said += typed([line])
    assert len(said) == 17
    assert "FAIL" not in "".join(said)
    for name in NAMES:
        assert f"{name}: round 5 of 5" in "".join(said)
        assert f"{name}: finished" in "".join(said)
    assert (tmp_path / "north-model" / "private.pt").exists()
