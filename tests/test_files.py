"""Files are whole or not there, and what cannot be written or read is explained."""

import json
import math
from pathlib import Path

import pytest

from proxyfl import _files
from proxyfl.errors import ConfigError, RunError


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return [path.name for path in folder.iterdir()]


def test_a_file_is_replaced_at_the_end(tmp_path: Path) -> None:
    """Until all is written, readers see the former content; afterwards the new one, and no more."""
    path = tmp_path / "a.txt"
    path.write_text("before")
    with _files.whole(path) as scratch:
        scratch.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert names(tmp_path) == ["a.txt"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    """A write that fails half-way leaves the former file as it was, and no scratch file."""
    path = tmp_path / "a.txt"
    path.write_text("before")

    def fail() -> None:
        with _files.whole(path) as scratch:
            scratch.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "before"
    assert names(tmp_path) == ["a.txt"]


def test_a_refused_replacement_leaves_nothing_behind(tmp_path: Path) -> None:
    """Where a folder has the file's name, the error names it and no scratch file stays."""
    (tmp_path / "taken").mkdir()
    with pytest.raises(RunError, match=r"Cannot write .*taken: Is a directory"):
        _files.write_text(tmp_path / "taken", "text")
    assert names(tmp_path) == ["taken"]


def test_folders_are_made(tmp_path: Path) -> None:
    """A file's folder is made with it; one that cannot be made is named."""
    _files.write_text(tmp_path / "new" / "folder" / "a.txt", "ä")
    assert _files.read_text(tmp_path / "new" / "folder" / "a.txt") == "ä"
    with pytest.raises(RunError, match=r"Cannot write .*a.txt/b: File exists"):
        _files.write_text(tmp_path / "new" / "folder" / "a.txt" / "b", "")


def test_json_has_no_infinity(tmp_path: Path) -> None:
    """What JSON cannot say becomes null, wherever it stands, and the rest comes back equal."""
    content = {"epsilon": math.inf, "rows": [(1.5, math.nan), {"a": -math.inf}], "name": "ä"}
    _files.write_json(tmp_path / "a.json", content)
    expected = {"epsilon": None, "rows": [[1.5, None], {"a": None}], "name": "ä"}
    assert _files.read_json(tmp_path / "a.json") == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON: Expecting value"),
        (b'{"a": 1', "is not valid JSON.*Restore it"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"\xff", "is not UTF-8 text"),
    ],
)
def test_what_is_not_json_is_explained(content: bytes, message: str, tmp_path: Path) -> None:
    """A file that is torn, or never was JSON, is named with the reason and what to do."""
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ConfigError, match=f"The manifest .*a.json {message}"):
        _files.read_json(tmp_path / "a.json", "manifest", error=ConfigError)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    """A file that is missing, or is a folder, is named with the operating system's reason."""
    with pytest.raises(RunError, match=r"Cannot read the file .*none: No such file"):
        _files.read_json(tmp_path / "none")
    with pytest.raises(RunError, match="Is a directory"):
        _files.read_text(tmp_path)


def test_a_document_is_plain_json(tmp_path: Path) -> None:
    """Other programs can read what is written: one document, ended by a line break."""
    _files.write_json(tmp_path / "a.json", {"a": [1, 2]})
    text = (tmp_path / "a.json").read_text()
    assert text.endswith("}\n")
    assert json.loads(text) == {"a": [1, 2]}
