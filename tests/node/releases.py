"""Another release of the package, for tests: a copy of its sources with some lines changed.

The copy is real code in a process of its own; what is invented is what a later release may add.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import proxyfl
from proxyfl.node.members.manifest import MINOR

NEXT = "7.1"
"""The later release's name."""

MINOR_CHANGES = {
    "node/members/versions.py": [
        ('RELEASE = version("proxyfl")', f'RELEASE = "{NEXT}"'),
        ("PROTOCOL_MINOR = 2", "PROTOCOL_MINOR = 3"),
    ],
    "node/members/manifest.py": [
        (f"\nMINOR = {MINOR}\n", f"\nMINOR = {MINOR + 1}\n"),
        (
            '    ends: str = ""\n',
            f'    contact: str = added({MINOR + 1}, "")\n    ends: str = ""\n',
        ),
    ],
    "node/members/identity.py": [
        ("    joins: int = 0\n", f"    joins: int = 0\n    beds: int = added({MINOR + 1}, 0)\n")
    ],
    "node/exchange/messages.py": [
        (
            "    release: str = RELEASE\n",
            '    release: str = RELEASE\n    mood: str = added(3, "new")\n',
        )
    ],
}
"""File -> what a minor version changes: a term, a member's term and a field of the hello."""

MAJOR_CHANGES = {
    "node/members/versions.py": [
        ('RELEASE = version("proxyfl")', f'RELEASE = "{NEXT}"'),
        ("PROTOCOL = 2\n", "PROTOCOL = 3\n"),
    ]
}
"""File -> what a major version of the protocol changes, at the least."""


class Release:
    """The package with ``changes``, in a folder of its own."""

    def __init__(self, folder: Path, changes: dict[str, list[tuple[str, str]]]) -> None:
        self.folder = folder
        sources = Path(next(iter(proxyfl.__path__)))
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(sources, folder / "proxyfl", ignore=leave)
        for name, pairs in changes.items():
            path = folder / "proxyfl" / name
            text = path.read_text()
            for old, new in pairs:
                assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
                text = text.replace(old, new)
            path.write_text(text)

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder)}

    def evaluate(self, program: str, *arguments: object) -> str:
        """What ``program`` prints when this release runs it."""
        words = [sys.executable, "-c", program, *map(str, arguments)]
        done = subprocess.run(words, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, place: Path, *arguments: str) -> "subprocess.Popen[bytes]":
        """`proxyfl node run` by this release; what it says goes to the site's node.log."""
        words = [sys.executable, "-m", "proxyfl.cli.main", "node", "run", str(place)]
        with (place / "node.log").open("ab") as log:
            return subprocess.Popen(
                [*words, "--no-status-page", *arguments],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
