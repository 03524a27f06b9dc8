"""The documentation site: its tree names every page, and it builds without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import DOCS, ROOT

MADE = {
    "index.md",
    "about/changelog.md",
    "about/contributing.md",
    "about/security.md",
    "reference/cli.md",
    "reference/python.md",
}
"""Pages that docs/_site/hooks.py adds."""


def test_the_tree_names_every_page() -> None:
    """mkdocs.yml lists each page of docs/ once, and no other."""
    tree = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"[\w/-]+\.md", tree)
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == written | MADE


def test_diagrams_say_what_they_show() -> None:
    """Every SVG has a title for those who do not see it, and loads nothing."""
    pictures = sorted((DOCS / "figures").glob("*.svg"))
    assert len(pictures) >= 5
    for picture in pictures:
        text = picture.read_text()
        assert re.search(r"<title>[^<]+</title>", text), picture.name
        assert not re.search(r"href=|url\(|<script|<image|@import", text), picture.name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_and_loads_nothing_from_the_network(tmp_path: Path) -> None:
    """`make docs` has no warning; no page loads a script, style, font or picture from elsewhere."""
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        loaded = re.findall(
            r"<(?:script|img|iframe)[^>]+src=\"?([^\"\s>]+)|<link[^>]+href=\"?([^\"\s>]+)",
            page.read_text(),
        )
        outside = [a or b for a, b in loaded if re.match(r"(?:https?:)?//", a or b)]
        assert not outside, f"{page.name}: {outside}"
    assert "Budget" in (tmp_path / "reference" / "python.html").read_text()
    assert "proxyfl node init" in (tmp_path / "reference" / "cli.html").read_text()
