"""The files that a source means: one per site, by pattern or by name."""

from collections.abc import Sequence
from pathlib import Path

from proxyfl.errors import DataError


def find(source: str | Sequence[str]) -> list[Path]:
    """The files that ``source`` names, in order: patterns such as sites/*.csv stand for the files
    that match, sorted by name."""
    found: list[Path] = []
    for text in [source] if isinstance(source, str) else source:
        path = Path(text).expanduser()
        if not any(sign in text for sign in "*?["):
            found.append(path)
            continue
        anchor = Path(path.anchor or ".")
        pattern = str(path.relative_to(anchor)) if path.anchor else str(path)
        matching = sorted(
            match for match in anchor.glob(pattern) if match.is_file()
        )
        if not matching:
            raise DataError(f"{text}: no file matches (looked from {Path.cwd()}).")
        found += matching
    return found
