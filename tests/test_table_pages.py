"""The pages for hospitals and banks, typed: every command runs, in order, on made-up files."""

import random
import re
import shlex
from pathlib import Path

import pytest

from proxyfl.cli.main import main

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    text = (DOCS / page).read_text()
    return re.findall(
        rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )


def typed(page: str) -> list[list[str]]:
    """The page's commands, each as its words."""
    lines = []
    for block in blocks(page, "sh"):
        lines += block.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("proxyfl ")]


def keep_schema(page: str) -> None:
    """Write the page's schema under the name in its first line."""
    (text,) = blocks(page, "toml")
    name = text.splitlines()[0].removeprefix("# ")
    Path(name).write_text(text)


def hospital(
    path: Path, first: int, *, separator: str = ",", labelled: bool = True
) -> None:
    """A hospital's file; with semicolons also with decimal commas, and without one column."""
    generator = random.Random(first)
    plain = separator == ","
    header = ["patient", "age", "pressure", "side", *(["smoker"] if plain else [])]
    lines = [separator.join(header + (["died"] if labelled else []))]
    for number in range(first, first + 80):
        pressure = f"{generator.uniform(90, 200):.1f}"
        cells = [f"p{number}", str(generator.randint(30, 95))]
        cells += [
            pressure if plain else pressure.replace(".", ","),
            generator.choice(["left", "?"]),
        ]
        cells += [generator.choice(["yes", "no"])] if plain else []
        cells += [generator.choice("01")] if labelled else []
        lines.append(separator.join(cells))
    path.write_text("\n".join(lines) + "\n")


def bank(path: Path, first: int, *, labelled: bool = True) -> None:
    """A bank's file."""
    generator = random.Random(first)
    header = ["loan", "amount", "months", "purpose", "opened"]
    lines = [",".join(header + (["status"] if labelled else []))]
    for number in range(first, first + 80):
        cells = [str(10**19 + number), str(generator.randint(1, 900) * 1000)]
        cells += [
            str(generator.randint(6, 240)),
            generator.choice(["equipment", "property"]),
        ]
        cells += [generator.choice(["2001-05-17", "17.05.2001"])]
        cells += (
            [generator.choice(["paid"] * 3 + ["charged off"])] if labelled else []
        )
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def type_all(page: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run every command of a page; return what each printed."""
    printed = []
    for words in typed(page):
        assert main(words) == 0, (
            f"{page}: proxyfl {' '.join(words)}: {capsys.readouterr().err}"
        )
        printed.append(capsys.readouterr().out)
    return printed


def test_the_page_for_hospitals(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From three hospitals' files to a report and to predictions, as the page types it."""
    Path("sites").mkdir()
    hospital(Path("sites/north.csv"), 0)
    hospital(Path("sites/south.csv"), 100, separator=";")
    hospital(Path("sites/east.csv"), 200)
    hospital(Path("new.csv"), 900, labelled=False)
    keep_schema("hospitals.md")
    printed = type_all("hospitals.md", capsys)
    assert "range = []" in printed[0]
    assert "0 faults" in printed[1]
    assert Path("runs/stroke/report.html").is_file()
    assert printed[-2].splitlines()[1].startswith("p900,")
    assert "[columns." in printed[-1]


def test_the_page_for_banks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From banks' files to a report and to predictions; ids of twenty digits come back whole."""
    Path("banks").mkdir()
    bank(Path("banks/first.csv"), 0)
    bank(Path("banks/second.csv"), 100)
    bank(Path("applications.csv"), 900, labelled=False)
    keep_schema("bank.md")
    printed = type_all("bank.md", capsys)
    assert Path("runs/loans/report.html").is_file()
    assert printed[-1].splitlines()[1].startswith("10000000000000000900,")
