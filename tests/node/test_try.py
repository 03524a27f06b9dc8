"""`proxyfl federation try`: its live page, its lines, and what it leaves behind."""

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxyfl.cli.main import main
from proxyfl.node import trial
from proxyfl.node.trial import Outcome, Progress
from proxyfl.privacy.guarantee import Epsilon, Kind
from proxyfl.report import trial as pages
from proxyfl.report.trial import TrialServer
from tests.waiting import PATIENCE

SPENT = Epsilon(rdp=1.2, pld=1.1, delta=1e-4, kind=Kind.END_TO_END)


def site(name: str, alone: float | None = None, joined: float = 0.8, rounds: int = 2) -> Progress:
    """A site in the middle of its rounds, or with ``alone`` at its end."""
    outcome = None
    if alone is not None:
        outcome = Outcome(name, "mlp", 200, alone, joined, SPENT)
    scores = (0.5, 0.625)[:rounds]
    return Progress(name, "mlp", 200, rounds, scores, (0.8, 1.1)[:rounds], rounds, 5000, 9, outcome)


def body(*sites: Progress, **more: Any) -> str:
    """The page's body for a trial of 4 rounds."""
    return pages.body(sites, rounds=4, measure="accuracy", phase="It runs.", **more)


def fetched(url: str) -> str:
    """What is at an address."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def test_the_page_shows_sites_travel_rounds_and_epsilon_as_they_come() -> None:
    """Before the sites are there, while they train, and with the gains."""
    assert "A federation starts." in body()
    running = body(site("north"), site("south", rounds=1))
    for word in ("Round 1 of 4", "0.625", "1.10", "2 proxies, 5 kB", "200 records stay here"):
        assert word in running
    assert "3 so far" in running
    assert "points over alone" not in running
    ended = body(site("north", 0.7), site("south", 0.85), ended=True, next_commands=["proxyfl x"])
    assert '<span class="gains">+2.5 points</span> in the mean. 1 of 2 gain.' in ended
    assert "+10.0 <small>points over alone" in ended
    assert '<p class="big down">' in ended
    assert "<code>proxyfl x</code>" in ended


def test_a_loss_is_called_one() -> None:
    """The headline has the sign and the colour of a loss."""
    assert '<span class="loses">' in body(site("north", 0.9), ended=True)


def test_who_looks_at_the_page_gets_its_last_state() -> None:
    """A page that was asked for keeps the server until it has heard of the end; an unseen one does
    not."""
    state = "first"
    with TrialServer(lambda: state) as server:
        page = fetched(server.url)
        assert "first" in page
        assert "fetch(" in page
        assert pages.LAST not in fetched(server.url + "body")
        state = "second"
        server.ended.set()
        assert fetched(server.url + "body") == "second" + pages.LAST
        assert server.told.is_set()
        server.end()
    with TrialServer(lambda: state) as server:
        server.end()
        assert not server.told.is_set()


def test_the_address_is_printed_first_and_a_failure_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is there before the sites are; it shows the failure, and the folders stay."""
    shown = []

    def run(layout: trial.Layout, *, watch: Callable[[], None]) -> list[int]:
        for place in layout.sites:
            (place / "node.log").touch()
        watch()
        output = capsys.readouterr().out
        first = output.splitlines()[0]
        assert first.startswith("Watch it here: http://127.0.0.1:")
        shown.append(fetched(first.split()[-1]))
        return [1, 0]

    monkeypatch.setattr(trial, "run", run)
    out = tmp_path / "try"
    assert main(["federation", "try", "--sites", "2", "--rounds", "3", "--out", str(out)]) == 1
    assert "north failed. See node.log in the folder" in capsys.readouterr().err
    assert "Round 0 of 3" in shown[0]
    assert (out / "north" / "site.toml").is_file()


@pytest.mark.slow
def test_a_trial_ends_with_folders_and_commands_that_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two real sites: the last lines are commands that run as printed, on folders that stay."""
    out = tmp_path / "try"
    assert main(["federation", "try", "--sites", "2", "--rounds", "2", "--out", str(out)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"stay in \S+\. Next:", "".join(output.splitlines()))
    commands = [line.split() for line in output.splitlines() if line.startswith("  proxyfl ")]
    assert len(commands) == 3
    for _, *words in commands:
        assert main(words) == 0, words
    page = (out / "try.html").read_text()
    assert "2 sites trained together." in page
    assert "fetch(" not in page
    again = ["federation", "try", "--sites", "2", "--rounds", "1", "--no-page", "--json"]
    capsys.readouterr()
    assert main([*again, "--out", str(tmp_path / "more")]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert not (tmp_path / "more" / "try.html").exists()
