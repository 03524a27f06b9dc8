"""Files that are whole or not there, and reasons in words when one cannot be written or read.

Guarantees:
    * a file that ``whole`` writes appears complete under its name or keeps its former content,
      also if the program or the machine stops half-way;
    * a failure leaves no scratch file behind, and no link in its place is followed;
    * what the operating system refuses is raised as a ProxyFLError that names the file.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxyfl.errors import InputError, RunError

Document = dict[str, Any]
"""Plain data, as JSON has them."""


def short_hash(content: bytes) -> str:
    """A checksum that tells contents apart: the first 16 digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def writing(path: Path, *, error: type[InputError] = RunError) -> Iterator[None]:
    """Turn the operating system's refusals within the block into an ``error`` that names
    ``path``."""
    try:
        yield
    except OSError as refused:
        reason = refused.strerror or refused
        raise error(
            f"Cannot write {path}: {reason}. What was recorded before is intact. "
            "Make room, or give another folder."
        ) from refused


@contextmanager
def whole(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """A scratch file to write what becomes ``path`` when the block ends well.

    What need not be ``lasting`` is written sooner, and a power cut may leave it damaged."""
    scratch = path.with_name(f".{path.name}.new")
    # Left by a crash, or a link by which somebody has another file overwritten.
    scratch.unlink(missing_ok=True)
    try:
        yield scratch
        if lasting:
            with scratch.open("rb") as written:
                os.fsync(written.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the folder's list of files last: a new name is durable only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Write a file whole or not at all; make its folder if need be."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path, lasting=lasting) as scratch, scratch.open("xb") as file:
            file.write(content)


def write_text(path: Path, content: str) -> None:
    """Write a text as UTF-8, whole or not at all."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Write a JSON document, whole or not at all; what is infinite becomes null."""
    text = json.dumps(finite(content), indent=1, allow_nan=False)
    write_text(path, f"{text}\n")


def read_text(path: Path, what: str = "file", *, error: type[InputError] = RunError) -> str:
    """The UTF-8 text of the ``what`` at ``path``; ``error`` says why if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as refused:
        reason = refused.strerror or refused
        raise error(f"Cannot read the {what} {path}: {reason}. Check the name.") from refused
    except UnicodeDecodeError as problem:
        raise error(f"The {what} {path} is not UTF-8 text: {problem}.") from problem


def read_json(path: Path, what: str = "file", *, error: type[InputError] = RunError) -> Any:
    """The JSON document of the ``what`` at ``path``; ``error`` says why if there is none."""
    text = read_text(path, what, error=error)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        advice = "Restore it, or remove it if it is not needed."
        raise error(f"The {what} {path} is not valid JSON: {problem}. {advice}") from problem


def finite(value: Any) -> Any:
    """``value`` with null for what JSON lacks: an unbounded epsilon, an undefined measure."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
