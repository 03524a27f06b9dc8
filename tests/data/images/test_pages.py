"""docs/guides/slides.md and docs/guides/images.md, typed line by line on generated files."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from proxyfl.cli.main import main
from tests.data.slides.generator import write_cohort
from tests.test_docs import ROOT, blocks


def typed(page: str, block: int) -> list[list[str]]:
    """The words of the command lines in one of a page's shell blocks."""
    text = blocks(ROOT / "docs" / page, "sh")[block].text
    return [shlex.split(line)[1:] for line in text.splitlines()]


def test_the_page_about_slides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From four hospitals' slides to the report."""
    monkeypatch.chdir(tmp_path)
    write_cohort(Path("slides"), persons=3, side=1536)
    for words in typed("guides/slides.md", 0):
        assert main(words) == 0
    assert (tmp_path / "patches.store" / "contact.png").is_file()
    assert "north" in next((tmp_path / "runs").rglob("*.html")).read_text()


def test_the_page_about_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From folders of images of all sizes to the report, and to features."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for site in ("north", "south", "west"):
        for label, red in (("polyp", 200), ("normal", 80)):
            folder = Path("hospitals") / site / label
            folder.mkdir(parents=True)
            for i in range(40):
                high, wide = draw.integers(20, 60, 2)
                values = draw.integers(0, 60, (high, wide, 3)) + np.array([red, 60, 60])
                image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
                image.save(folder / f"{i}.jpg")
    for words in [*typed("guides/images.md", 0), *typed("guides/images.md", 2)]:
        assert main(words) == 0
    assert "south" in next((tmp_path / "runs").rglob("*.html")).read_text()
