"""Every action prints one JSON document with --json, for scripts, or has a reason not to."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from proxyfl.cli.main import main, parser
from tests.test_table_pages import hospital

WITHOUT = {
    "node run": "it prints lines as long as it runs: --log-format json",
    "new": "it asks questions and makes a folder",
    "schema draft": "it prints a schema in TOML",
    "schema ranges": "it prints a piece of a schema in TOML",
}
"""Actions without --json, and why."""

ELSEWHERE = {
    "audit": "tests/cli/test_audit.py",
    "effects": "tests/simulation/test_effects.py",
    "ledger sum": "tests/cli/test_ledger_command.py",
    "node leave": "tests/node/test_stopping.py",
    "node rejoin": "tests/node/test_node.py",
    "slides extract": "tests/data/slides/test_slides.py",
    "watch": "tests/report/test_live.py",
    "subgroups": "tests/simulation/test_subgroups.py",
}
"""Actions whose output other tests parse, since they need more than what is made here."""


def actions() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The name and the parser of every command or action that executes something."""
    for command, its in subparsers(parser()):
        nested = list(subparsers(its))
        yield from ((f"{command} {name}", each) for name, each in nested)
        if not nested:
            yield command, its


def subparsers(of: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands of a parser."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


NAMES = {name for name, its in actions() if "--json" in its.format_help()}


def test_every_action_has_json_or_a_reason() -> None:
    """No action lacks --json by oversight."""
    assert {name for name, _ in actions()} - NAMES == set(WITHOUT)


@pytest.mark.parametrize(("name", "file"), ELSEWHERE.items())
def test_what_is_parsed_elsewhere(name: str, file: str) -> None:
    """The tests that are named for the other actions call them with --json."""
    text = (Path(__file__).parents[2] / file).read_text()
    assert name.split()[-1] in text
    assert '"--json"' in text


def test_every_action_has_an_example_that_parses() -> None:
    """The help of each action shows an example of it."""
    for name, its in actions():
        assert f"proxyfl {name}" in (its.epilog or ""), name


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two hospitals, two images, a study and a federation that has ended."""
    folder = tmp_path_factory.mktemp("json")
    hospital(folder / "north.csv", 0)
    hospital(folder / "south.csv", 1000, separator=";")
    for label in ("well", "sick"):
        path = folder / "images" / "here" / label / "one.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)
    return folder


STUDY = ("rounds=1", "partition.clients=2", "methods=alone,proxyfl", "partition.examples=60")
SETTINGS = tuple(word for setting in STUDY for word in ("--set", setting))
TERMS = ("--shape", "2", "--classes", "well,sick", "--rounds", "3")
SITE, CARD = "fed/north", "fed/north/north.card.toml"

LINES = (
    ("run", *SETTINGS, "--out", "study", "--workers", "1"),
    ("resume", "study"),
    ("table", "study"),
    ("report", "study"),
    ("predict", "study", "digits.npz", "--client", "0", "--method", "proxyfl"),
    ("certificate", "study", "--client", "0"),
    ("epsilon", "--examples", "100", "--batch", "10", "--steps", "9", "--noise", "2"),
    ("plan", "--examples", "200", "--budget-epsilon", "3", "--delta", "1e-4"),
    ("worth", "--clients", "4", "--examples", "184", "--parameters", "50", "--epsilon", "1"),
    ("methods",),
    ("models",),
    ("topology", "exponential", "--clients", "4"),
    ("data", "digits"),
    ("images", "images", "--size", "8", "--layout", "site/label", "--out", "images.store"),
    ("embed", "digits", "--model", "scattering", "--out", "features"),
    ("sweep", "sweep.toml", "--out", "sweep"),
    ("ledger", "open", "account", "--budget-epsilon", "3", "--delta", "1e-5"),
    ("ledger", "list", "account"),
    ("schema", "check", "north.csv", "--schema", "schema.toml"),
    ("federation", "try", "--sites", "2", "--rounds", "1", "--out", "try", "--no-page"),
    ("ledger", "enter", "account", "LEDGER", "--population", "cardiology"),
    ("ledger", "show", "account", "cardiology"),
    ("node", "init", SITE, "--address", "127.0.0.1:7101"),
    ("node", "init", "fed/south"),
    ("node", "card", SITE),
    ("federation", "new", "fed", CARD, "fed/south/south.card.toml", *TERMS),
    ("federation", "show", "fed"),
    ("node", "accept", SITE, "fed/manifest.toml"),
    ("node", "rotate-key", SITE),
    ("federation", "replace-card", "fed", "NEXT"),
    ("node", "init", "fed/east"),
    ("federation", "add", "fed", "fed/east/east.card.toml"),
    ("federation", "remove", "fed", "south"),
    ("node", "certificate", SITE),
    ("node", "stop", SITE),
    ("node", "redraw", SITE),
    ("node", "status", "TRIED"),
    ("node", "health", "TRIED"),
    ("node", "export", "TRIED", "model"),
    ("node", "backup", "TRIED", "tried.tar"),
    ("node", "restore", "tried.tar", "again"),
    ("preflight", "TRIED"),
)
"""A command line for every action, in an order in which each has what it needs."""


def test_every_action_prints_json(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What each action prints with --json is one document, and nothing else is on stdout."""
    assert {name_of(line) for line in LINES} == NAMES - set(ELSEWHERE)
    monkeypatch.chdir(place)
    np.savez(place / "digits.npz", x=np.zeros((3, 1, 8, 8), np.float32))
    (place / "sweep.toml").write_text(
        "[set]\nrounds = 1\npartition.clients = 2\n[grid]\nseed = [0]\n"
    )
    assert main(["schema", "draft", "north.csv", "--label", "died", "--from-data"]) == 0
    (place / "schema.toml").write_text(capsys.readouterr().out)
    answers: dict[str, Any] = {}
    for line in LINES:
        words = [replaced(word, place) for word in line]
        code = main([*words, "--json"])
        printed = capsys.readouterr()
        if name_of(line) not in MAY_SAY_NO:
            assert code == 0, (words, printed.err)
        answers[name_of(line)] = json.loads(printed.out)
    assert answers["federation remove"]["version"] == 4
    assert answers["node accept"]["members"] == ["north", "south"]
    assert answers["node stop"] == {"site": "north", "was_running": False}
    assert all(Path(path).exists() for path in answers["node export"]["files"])
    assert answers["images"]["examples"] == 2


MAY_SAY_NO = ("worth", "preflight", "node health", "schema check")
"""Actions whose exit code is 1 where the answer is no."""


def name_of(line: tuple[str, ...]) -> str:
    """The command or action of a line."""
    both = " ".join(line[:2])
    return both if both in NAMES else line[0]


def replaced(word: str, place: Path) -> str:
    """A path that is known only once the lines before it have run."""
    if word == "LEDGER":
        return replaced("TRIED", place) + "/ledger.jsonl"
    if word == "NEXT":
        return str(next((place / SITE).rglob("*next*/north.card.toml")))
    if word == "TRIED":
        return str(min(path.parent for path in (place / "try").glob("*/site.toml")))
    return word
