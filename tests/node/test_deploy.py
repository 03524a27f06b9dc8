"""The examples for systemd and Docker are what they claim to be."""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proxyfl.cli.main import parser
from proxyfl.cli.signals import LAST_SECONDS
from tests.waiting import PATIENCE

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "proxyfl-node.service"
HEALTH = DEPLOY / "proxyfl-health.service"
TIMER = DEPLOY / "proxyfl-health.timer"
DOCKERFILE = DEPLOY / "Dockerfile"


@pytest.mark.parametrize("unit", [UNIT, HEALTH], ids=lambda unit: unit.name)
def test_the_units_command_is_one_of_ours(unit: Path) -> None:
    """What systemd would start parses, and may write to its folder alone."""
    text = unit.read_text()
    command = re.search(r"^ExecStart=/usr/bin/env (.*)$", text, re.MULTILINE)
    assert command
    words = shlex.split(command[1])
    assert words[0] == "proxyfl"
    parser(only="node").parse_args(words[1:])
    assert "ProtectSystem=strict" in text


def test_the_site_is_stopped_politely() -> None:
    """It gets SIGTERM, and more time than it ever takes to end."""
    text = UNIT.read_text()
    assert "KillSignal=SIGTERM" in text
    seconds = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert seconds
    assert int(seconds[1]) >= 1.5 * LAST_SECONDS


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing wrong with them."""
    units = []
    for original in (UNIT, HEALTH, TIMER):
        unit = tmp_path / original.name
        # The example's user exists on the machine that it is meant for.
        unit.write_text(original.read_text().replace("=proxyfl\n", "=root\n"))
        units.append(str(unit))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    complaints = [line for line in checked.stderr.splitlines() if "proxyfl-" in line]
    assert complaints == []


def test_the_dockerfile_runs_a_command_of_ours() -> None:
    """Entry point and command parse together, nothing runs as root, what is copied exists."""
    text = DOCKERFILE.read_text()
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    command = re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)
    assert entry
    assert command
    before, words = split_entry(json.loads(entry[1]))
    assert before[0] == "tini"
    words += json.loads(command[1])
    parser(only="node").parse_args(words[1:])
    health = re.search(r"^HEALTHCHECK .*\\\n  CMD (\[.*\])$", text, re.MULTILINE)
    assert health
    words = json.loads(health[1])
    assert words[:3] == ["proxyfl", "node", "health"]
    parser(only="node").parse_args(words[1:])
    assert text.index("USER proxyfl") < text.index("ENTRYPOINT")
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (DEPLOY.parent / name).exists(), name


def split_entry(words: list[str]) -> tuple[list[str], list[str]]:
    """The program that a container starts first, with its options, and the site's command."""
    at = words.index("--")
    assert words[at + 1] == "proxyfl"
    return words[:at], words[at + 1 :]


def test_a_container_does_not_start_a_site_again_that_systemd_would_not() -> None:
    """Docker restarts on all codes but 0, so those after which nobody may restart become 0."""
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    assert entry
    before, _ = split_entry(json.loads(entry[1]))
    codes = {int(code) for option, code in itertools.pairwise(before) if option == "-e"}
    final = re.search(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert final
    assert codes == set(map(int, final[1].split()))


@pytest.mark.skipif(shutil.which("tini") is None, reason="no tini here: apt-get install tini")
@pytest.mark.parametrize(("code", "seen"), [(0, 0), (1, 1), (2, 2), (11, 0), (13, 0)])
def test_a_container_ends_with_the_code_that_docker_acts_on(code: int, seen: int) -> None:
    """Failures stay failures; what is final becomes 0."""
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    assert entry
    before, _ = split_entry(json.loads(entry[1]))
    words = [before[0], "-s", *before[1:], "--", "sh", "-c", f"exit {code}"]
    assert subprocess.run(words, timeout=PATIENCE).returncode == seen


@pytest.mark.slow
def test_what_the_dockerfile_copies_is_enough(tmp_path: Path) -> None:
    """Its COPY and pip lines, done in an empty folder and a new environment, give a node that
    runs: nothing else of the repository is needed."""
    text = DOCKERFILE.read_text()
    place = tmp_path / "image"
    place.mkdir()
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        *names, target = line.split()
        for name in names:
            source = DEPLOY.parent / name
            if source.is_dir():
                shutil.copytree(source, place / target)
            else:
                shutil.copy(source, place / target)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    install = re.search(r"^RUN (pip install .*)$", text, re.MULTILINE)
    assert install
    bare = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    kept = {name: value for name, value in os.environ.items() if "PIP" in name}
    subprocess.run(shlex.split(install[1]), check=True, cwd=place, env={**bare, **kept})
    made = subprocess.run(
        ["proxyfl", "node", "init", "site", "--name", "north", "--address", "n:7443"],
        cwd=tmp_path,
        env=bare,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "site" / "key.pem").exists()
