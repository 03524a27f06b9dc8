"""A run's folder: there whole or not at all, and readable after a cut."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from proxyfl._files import write_json
from proxyfl.errors import RunError
from proxyfl.records import folder
from proxyfl.simulation.config import Config, of_run, to_toml

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")


def make(path: Path) -> Path:
    return folder.create(path, to_toml(Config(rounds=3)), identity="identity", data=7)


def leftovers(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def test_created_whole(tmp_path: Path) -> None:
    """A new folder holds its config, its environment and an empty table of metrics, and nothing
    lies beside it."""
    path = make(tmp_path / "deep" / "run")
    assert of_run(path) == Config(rounds=3)
    about = json.loads((path / "environment.json").read_text())
    assert about["packages"]["torch"] == torch.__version__
    assert about["simulation"] is True
    assert list(folder.read_metrics(path)) == []
    assert leftovers(path.parent) == ["run"]


def test_an_empty_folder_may_be_given(tmp_path: Path) -> None:
    """A folder that exists and is empty becomes the run's."""
    (tmp_path / "run").mkdir()
    assert folder.existing(make(tmp_path / "run")) == tmp_path / "run"


@pytest.mark.parametrize("kind", ["run", "folder", "file"])
def test_nothing_is_overwritten(kind: str, tmp_path: Path) -> None:
    """An earlier run, a folder with something in it and a file in the way are refused and stay as
    they are."""
    path = tmp_path / "there"
    if kind == "file":
        path.write_text("mine")
    else:
        path.mkdir()
        (path / ("config.toml" if kind == "run" else "notes.txt")).write_text("mine")
    with pytest.raises(RunError, match=r"there exists already. Give another folder with --out"):
        make(path)
    assert (path if kind == "file" else next(path.iterdir())).read_text() == "mine"
    assert leftovers(tmp_path) == ["there"]


@pytest.mark.parametrize("name", ["file/run", "file/deeper/run", "x" * 300])
def test_a_place_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    """A file in the way of a parent folder, or a name too long, is an error with the reason and
    what to do."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=r"Cannot write the run's folder .*--out"):
        make(tmp_path / name)
    assert leftovers(tmp_path) == ["file"]


def test_a_full_disk_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full while the folder is made, there is an error and neither folder nor
    scratch."""

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunError, match=r"No space left on device. Nothing was run"):
        make(tmp_path / "run")
    assert leftovers(tmp_path) == []


@needs_full
def test_a_full_disk_while_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When metrics, a summary or a model cannot be written the error names the file, and no half of
    it is left."""
    path = make(tmp_path / "run")
    (path / "metrics.jsonl").unlink()
    (path / "metrics.jsonl").symlink_to(FULL)
    with pytest.raises(RunError, match=r"metrics.jsonl: No space left on device.*intact"):
        folder.append_metrics(path, [{"round": 0}])
    # A link to the full device would not be followed here. A disk may also say so when it syncs.

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"summary.json: No space left on device"):
        write_json(path / "summary.json", {"a": 1})
    assert leftovers(path) == ["config.toml", "environment.json", "metrics.jsonl"]


def test_metrics_come_back(tmp_path: Path) -> None:
    """Lines are appended in order; an infinite epsilon is null, since JSON has no infinity."""
    path = make(tmp_path / "run")
    folder.append_metrics(path, [{"round": 0, "epsilon": float("inf")}, {"round": 0, "name": "Ä"}])
    folder.append_metrics(path, [{"round": 1}])
    assert list(folder.read_metrics(path)) == [
        {"round": 0, "epsilon": None},
        {"round": 0, "name": "Ä"},
        {"round": 1},
    ]


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    """A run that was killed while it wrote leaves half a line: the rest is read. Damage elsewhere
    is an error."""
    path = make(tmp_path / "run")
    folder.append_metrics(path, [{"round": 0}, {"round": 1}])
    whole = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(whole + '{"rou')
    assert [row["round"] for row in folder.read_metrics(path)] == [0, 1]
    (path / "metrics.jsonl").write_text('{"rou\n' + whole)
    with pytest.raises(RunError, match=r"metrics.jsonl, line 1 is not JSON"):
        list(folder.read_metrics(path))


def test_no_run(tmp_path: Path) -> None:
    """A folder without a config is no run, and the message says what makes one."""
    with pytest.raises(RunError, match=r"holds no run: expected a config.toml.*`proxyfl run`"):
        folder.existing(tmp_path)


def test_names_of_new_runs(tmp_path: Path) -> None:
    """A new name has the time and the data's name, and is not one that is taken."""
    first = folder.fresh(tmp_path, "data/patients.csv")
    first.mkdir()
    second = folder.fresh(tmp_path, "data/patients.csv")
    assert first.name.endswith("-patients")
    assert not second.exists()
