"""What a running site prints: for people by default, for programs on request."""

import datetime
import json
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.node.observe.lines import Attention, Lines
from tests.node.federations import quick, trial


def test_lines_have_a_time_a_level_and_the_site(capsys: pytest.CaptureFixture[str]) -> None:
    """ISO 8601 with the offset, then the level, the site, and the sentence on one line."""
    lines = Lines("north")
    lines("round 1 of 3")
    lines(Attention("south cannot\nbe reached"))
    lines.say("the disk is full", "error")
    printed = capsys.readouterr()
    first, second = printed.out.splitlines()
    stamp, level, rest = first.split(None, 2)
    assert datetime.datetime.fromisoformat(stamp).tzinfo is not None
    assert (level, rest) == ("info", "north: round 1 of 3")
    assert second.split(None, 1)[1] == "warning  north: south cannot be reached"
    assert printed.err.split(None, 1)[1] == "error    north: the disk is full\n"


def test_lines_can_be_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object a line, with the same four things."""
    Lines("north", format="json")(Attention('a "b" \N{GREEK SMALL LETTER EPSILON}'))
    entry = json.loads(capsys.readouterr().out)
    assert datetime.datetime.fromisoformat(entry.pop("time")).tzinfo is not None
    assert entry == {"level": "warning", "site": "north", "text": 'a "b" ε'}


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_run_that_fails_ends_in_such_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str
) -> None:
    """The error has a time and a level too, and the exit code is that of the error."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=1, template=quick())
    (layout.sites[0] / "data.npz").unlink()
    assert main(["node", "run", str(layout.sites[0]), "--log-format", format]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    if format == "json":
        assert json.loads(last)["level"] == "error"
    else:
        assert " error    north: " in last
