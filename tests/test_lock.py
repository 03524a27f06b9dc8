"""Locks between programs: one holder at a time, and none outlives its program."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from proxyfl import _lock
from proxyfl.errors import RunError

from .waiting import PATIENCE

HOLDER = """
import sys
from pathlib import Path
from proxyfl import _lock
with _lock.hold(Path(sys.argv[1]), "", note="first"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_holder_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """The refusal is the caller's sentence. The holder's note stays, and goes with the holder."""
    path = tmp_path / "node.lock"
    assert _lock.read_note(path) is None
    with _lock.hold(path, "", note="first"):
        with pytest.raises(RunError, match="Taken"), _lock.hold(path, "Taken.", note="second"):
            pass
        assert _lock.read_note(path) == "first"
    assert _lock.read_note(path) is None
    assert path.read_text() == ""
    with _lock.hold(path, "Taken.", note="second"):
        assert _lock.read_note(path) == "second"


def test_a_lock_ends_with_its_program(tmp_path: Path) -> None:
    """A program that was killed leaves a note, but no lock."""
    path = tmp_path / "node.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert _lock.read_note(path) == "first"
        child.kill()
    assert path.read_text() == "first"
    assert _lock.read_note(path) is None
    with _lock.hold(path, "Taken."):
        pass


def test_a_reader_of_the_note_keeps_nobody_out(tmp_path: Path) -> None:
    """Who asks whether a site runs, again and again, does not stop it from starting."""
    path = tmp_path / "node.lock"
    path.touch()
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            _lock.read_note(path)

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(200):
            with _lock.hold(path, "Taken."):
                pass
    finally:
        done.set()
        for reader in readers:
            reader.join(PATIENCE)


def test_a_lock_in_a_missing_folder_is_explained(tmp_path: Path) -> None:
    """A folder that cannot have a lock file is named."""
    with (
        pytest.raises(RunError, match=r"Cannot write .*missing: No such file"),
        _lock.hold(tmp_path / "missing" / _lock.FILE, "Taken."),
    ):
        pass


def test_writers_of_a_file_wait_for_each_other(tmp_path: Path) -> None:
    """``locked`` gives the file to one at a time; a new file is readable by its owner alone."""
    path = tmp_path / "log"
    entered = threading.Event()

    def write() -> None:
        with _lock.locked(path):
            entered.set()

    with pytest.raises(FileNotFoundError), _lock.locked(path):
        pass
    with _lock.locked(path, create=True):
        assert path.stat().st_mode & 0o777 == 0o600
        writer = threading.Thread(target=write)
        writer.start()
        assert not entered.wait(0.2)
    assert entered.wait(PATIENCE)
    writer.join(PATIENCE)
