"""The pages for hospitals and banks, typed: every command runs, in order, on made-up files."""

import math
import os
import random
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

import proxyfl
from proxyfl.cli.main import main
from proxyfl.simulation.config import flat, load

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def typed(page: str) -> list[list[str]]:
    """The page's commands, each as its words."""
    lines = []
    for block in blocks(page, "sh"):
        if "\ncd " in block:
            continue  # typed by type_project
        lines += block.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("proxyfl ")]


def keep_schema(page: str) -> None:
    """Write the page's schema under the name in its first line."""
    text = blocks(page, "toml")[0]
    name = text.splitlines()[0].removeprefix("# ")
    Path(name).write_text(text)


def chance(logit: float) -> float:
    """The probability of an outcome."""
    return 1 / (1 + math.exp(-logit))


def hospital(path: Path, first: int, *, separator: str = ",", labelled: bool = True) -> None:
    """A hospital's file, in which the old and those with a high pressure die; with semicolons also
    with decimal commas, and without one column."""
    draw = random.Random(first)
    plain = separator == ","
    header = ["patient", "age", "pressure", "side", *(["smoker"] if plain else [])]
    lines = [separator.join(header + (["died"] if labelled else []))]
    for number in range(first, first + 300):
        age, pressure = draw.randint(30, 95), draw.uniform(90, 200)
        died = draw.random() < chance(0.06 * (age - 65) + 0.03 * max(pressure - 140, 0) - 0.4)
        shown = f"{pressure:.1f}"
        cells = [f"p{number}", str(age), shown if plain else shown.replace(".", ",")]
        cells += [draw.choice(["left", "?"])]
        cells += [draw.choice(["yes", "no"])] if plain else []
        cells += [str(int(died))] if labelled else []
        lines.append(separator.join(cells))
    path.write_text("\n".join(lines) + "\n")


def bank(path: Path, first: int, *, labelled: bool = True) -> None:
    """A bank's file, in which large loans for equipment over a short time are charged off."""
    draw = random.Random(first)
    header = ["loan", "amount", "months", "purpose", "opened"]
    lines = [",".join(header + (["status"] if labelled else []))]
    for number in range(first, first + 300):
        amount, months = draw.randint(1, 900) * 1000, draw.randint(6, 240)
        purpose = draw.choice(["equipment", "property"])
        logit = 2 * (amount > 200_000) - 0.02 * months + (purpose == "equipment") - 1.5
        lost = draw.random() < chance(logit)
        cells = [str(10**19 + number), str(amount), str(months), purpose]
        cells += [draw.choice(["2001-05-17", "17.05.2001"])]
        cells += ["charged off" if lost else "paid"] if labelled else []
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")


def assert_settings_are_those_of_worth(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every setting that the page's `worth` prints has this value in the page's `run`, which has
    its own files and methods."""
    asked = next(words for words in typed(page) if words[0] == "worth")
    (ran,) = [words for words in typed(page) if words[0] == "run"]
    assert main(asked) in (0, 1)  # whatever it advises
    shown = re.findall(r"^  (\S+?)=(.+)$", capsys.readouterr().out, re.MULTILINE)
    settings = dict(shown)
    for ours in ("methods", "checkpoint_every", "partition.clients"):
        del settings[ours]
    assert len(settings) == 16
    changes = [words for before, words in pairwise(ran) if before == "--set"]
    used = flat(load(None, changes))
    assert {name: str(used[name]) for name in settings} == settings


def assert_trains(path: str) -> None:
    """The page's settings train: what a site keeps after joining is hardly worse than the best
    simple model of everybody's records without privacy, which is better than chance."""
    run = next(iter(proxyfl.load(path)))
    for client in run.clients:
        alone = run.kept("alone", client)
        pooled, joined = run.gain("pooled", client), run.gain("proxyfl", client)
        assert alone is not None
        assert pooled is not None
        assert joined is not None
        assert alone + pooled > 0.7
        assert joined > pooled - 0.04


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def type_all(page: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run every command of a page; return what each printed."""
    printed = []
    for words in typed(page):
        code = main(words)
        fine = (0, 1) if words[0] == "worth" else (0,)  # 1: it advises against joining
        assert code in fine, f"{page}: proxyfl {' '.join(words)}: {capsys.readouterr().err}"
        printed.append(capsys.readouterr().out)
    return printed


def type_project(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the page's first block: it makes a project, enters its folder, runs and reports."""
    here = Path.cwd()
    for line in blocks(page, "sh")[0].splitlines():
        program, *words = shlex.split(line)
        if program == "cd":
            os.chdir(words[0])
            continue
        assert program == "proxyfl"
        words = [*words, "--yes"] if words[0] == "new" else words
        assert main(words) == 0, f"{page}: {line}: {capsys.readouterr().err}"
        capsys.readouterr()
    os.chdir(here)


def test_the_page_for_hospitals(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From three hospitals' files to a report and to predictions, as the page types it."""
    Path("sites").mkdir()
    hospital(Path("sites/north.csv"), 0)
    hospital(Path("sites/south.csv"), 1000, separator=";")
    hospital(Path("sites/east.csv"), 2000)
    hospital(Path("new.csv"), 9000, labelled=False)
    type_project("start/hospitals.md", capsys)
    assert list(Path("stroke").rglob("report.html"))
    keep_schema("start/hospitals.md")
    printed = type_all("start/hospitals.md", capsys)
    assert "range = []" in printed[0]
    assert "0 faults" in printed[1]
    assert Path("runs/stroke/report.html").is_file()
    assert_trains("runs/stroke")
    assert_settings_are_those_of_worth("start/hospitals.md", capsys)
    assert printed[-2].splitlines()[1].startswith("p9000,")
    assert "[columns." in printed[-1]


def test_the_page_for_banks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From banks' files to a report and to predictions; ids of twenty digits come back whole."""
    Path("banks").mkdir()
    bank(Path("banks/first.csv"), 0)
    bank(Path("banks/second.csv"), 1000)
    bank(Path("banks/third.csv"), 2000)
    bank(Path("banks/fourth.csv"), 3000)
    bank(Path("applications.csv"), 9000, labelled=False)
    keep_schema("guides/bank.md")
    printed = type_all("guides/bank.md", capsys)
    assert Path("runs/loans/report.html").is_file()
    assert_trains("runs/loans")
    assert_settings_are_those_of_worth("guides/bank.md", capsys)
    assert printed[-1].splitlines()[1].startswith("10000000000000009000,")
