"""A disk of a few megabytes for tests that fill it: a tmpfs in a mount namespace of its own.

It vanishes with the process that holds the namespace; nothing is mounted for anybody else."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A disk at ``place``, seen by the commands that ``start`` starts and by nobody else."""

    def __init__(self, place: Path, holder: "subprocess.Popen[str]") -> None:
        self.place = place
        self._holder = holder

    def start(self, *command: str, log: Path) -> "subprocess.Popen[bytes]":
        """Start a command that sees the disk; what it prints is added to ``log``."""
        with log.open("ab") as file:
            return subprocess.Popen(self._inside(command), stdout=file, stderr=file)

    def proxyfl(self, *words: str, log: Path) -> "subprocess.Popen[bytes]":
        """Start a command of ours."""
        return self.start(sys.executable, "-m", "proxyfl", *words, log=log)

    def shell(self, script: str) -> str:
        """Run a script that must succeed; what it prints."""
        command = self._inside(["sh", "-c", script])
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def fill(self) -> None:
        """Leave no byte free."""
        self.shell(f"dd if=/dev/zero of={self.place}/filler bs=4k 2>/dev/null || true")

    def free(self) -> None:
        """Take away what ``fill`` wrote."""
        self.shell(f"rm {self.place}/filler")

    def copy_to(self, folder: Path) -> None:
        """Copy all that is on the disk to a folder that everybody sees."""
        self.shell(f"cp -a {self.place}/. {folder}")

    def _inside(self, command: "tuple[str, ...] | list[str]") -> list[str]:
        return ["nsenter", "-t", str(self._holder.pid), "-m", "--", *command]


@contextlib.contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A disk with what lies in ``place``; skips the test where none can be mounted."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("no unshare or nsenter here")
    original = place.with_name(f"{place.name}-original")
    place.rename(original)
    place.mkdir()
    script = (
        f"mount -t tmpfs -o size={megabytes}m tmpfs {place} && cp -a {original}/. {place} && "
        "echo ready && exec sleep 900"
    )
    holder = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout
        if holder.stdout.readline() != "ready\n":
            pytest.skip("cannot mount a tmpfs here")
        yield SmallDisk(place, holder)
    finally:
        holder.kill()
        holder.communicate()
