"""The terminal from 60 to 200 columns, in a pipe, without colour; and bars for whatever takes
long."""

import io
import re
import sys
import time

import pytest
import torch
from rich.console import Console

from proxyfl._terminal import spinner as waits
from proxyfl._terminal.layouts import airy, first_that_fits, frame, natural_width
from proxyfl._terminal.spinner import duration, spinner, stderr_console
from proxyfl.cli.terminal.result import show_result
from proxyfl.data.examples import Absent
from proxyfl.federation.exchange import Traffic
from proxyfl.federation.learners import Losses
from proxyfl.federation.methods import METHODS
from proxyfl.federation.rounds import ClientRound
from proxyfl.privacy.guarantee import Epsilon, Kind
from proxyfl.records.row import Row, row_of
from proxyfl.records.run import Run
from proxyfl.simulation.config import Config, from_tree
from proxyfl.simulation.division import ClientData
from proxyfl.simulation.progress import Progress
from tests.scores import score_of
from tests.waiting import PATIENCE, wait_until

WIDTHS = (60, 80, 120, 200)
CLIENTS = 8
ROWS = torch.arange(5)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])[;m]")


def records(name: str, round: int = 9, present: int = CLIENTS) -> list[ClientRound]:
    """One round of a method, with every model that it could have and the widest of all
    guarantees."""
    method = METHODS[name]
    both = method.learner == "mutual"
    only = "private" if method.keeps == "private" else "proxy"
    roles = ["private", "proxy"] if both else [only]
    roles += ["received"] if method.exchange != "none" else []
    kind = Kind.CONDITIONAL if method.dp else Kind.NONE
    cost = 86.84 if method.dp else float("inf")
    return [
        ClientRound(
            round=round,
            client=client,
            name=f"client-{client}",
            present=present,
            expected=CLIENTS,
            steps=2,
            losses=Losses(),
            scores={role: score_of([[60 + client, 40], [30, 70]]) for role in roles},
            epsilon=Epsilon(cost + 1, cost, 5.6e-4, kind),
            traffic=Traffic(bytes_sent=123_456),
            weight=1.0,
            seconds={},
        )
        for client in range(1 if method.pooled else present)
    ]


def rows(name: str, round: int = 9, present: int = CLIENTS) -> list[Row]:
    """The same as rows."""
    return [row_of(name, record) for record in records(name, round, present)]


def settled(tree: dict[str, object]) -> Config:
    """The settings as callbacks see them, after `prepare` has chosen the run's measure."""
    return from_tree({"measure": "accuracy", **tree})


def sites(last: str = "client-7") -> list[ClientData]:
    names = [*(f"client-{i}" for i in range(CLIENTS - 1)), last]
    return [ClientData(name, ROWS, Absent(ROWS, None, (1,))) for name in names]


def table(
    width: int, *, rounds: int = 100, present: int = CLIENTS, methods: int = len(METHODS), **options
) -> str:
    """The live table of a run with all methods, of which so many have begun."""
    out = io.StringIO()
    console = Console(width=width, force_terminal=True, file=out, **options)
    progress = Progress(console=console, quiet=True)
    progress.started(settled({"rounds": rounds, "methods": list(METHODS)}), None, sites())
    for name in list(METHODS)[:methods]:
        progress.method_started(name, METHODS[name], CLIENTS, 0)
        progress.round_ended(name, 9, rows(name, present=present))
    console.print(progress.view())
    return out.getvalue()


def summary(width: int, last: str = "client-7", **options) -> str:
    """The end of a run with all methods."""
    out = io.StringIO()
    names = [site.name for site in sites(last)]
    final = []
    for name in METHODS:
        for row in rows(name):
            final.append(row | {"name": names[row["client"]]})
    clients = [{"name": name, "examples": 5} for name in names]
    settings = {"rounds": 10, "methods": list(METHODS)}
    found = Run(None, settings, final, {"finished": True, "clients": clients})
    show_result(found, Console(width=width, file=out, **options))
    return out.getvalue()


def row(text: str, name: str) -> list[str]:
    """The words of the table's only line about a method."""
    (line,) = [line for line in plain(text).splitlines() if re.match(rf"[│ ]*{name}\b", line)]
    return line.replace("│", " ").split()


def plain(text: str) -> str:
    return ESCAPE.sub("", text)


@pytest.mark.parametrize("present", [CLIENTS, 5])
@pytest.mark.parametrize("rounds", [30, 1000])
def test_the_live_table_keeps_its_form(rounds: int, present: int) -> None:
    """At any width no line is too long and nothing is cut: each method's whole name, accuracy,
    epsilon and kind."""
    for width in range(60, 201, 4):
        text = table(width, rounds=rounds, present=present)
        assert max(map(len, plain(text).splitlines())) <= width
        assert "…" not in text, f"cut at width {width}"
        for name in METHODS:
            words = row(text, name)
            assert any(re.fullmatch(r"10(/\d+)?", word) for word in words), "the round"
            assert any(re.fullmatch(r"0\.\d{3}", word) for word in words), "an accuracy"
            guarantee = "86.84 conditional" if METHODS[name].dp else "no DP"
            assert guarantee in " ".join(words), f"{name} at width {width}"
        assert "left" not in text, "one round says nothing of the time remaining"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_live_table_does_not_jump(width: int) -> None:
    """From the first round to the last the table has the same columns at the same places, and a row
    for each method."""
    before, after = (plain(table(width, methods=n)).splitlines() for n in (1, len(METHODS)))
    assert len(before) == len(after)
    heading = next(i for i, line in enumerate(after) if "method" in line)
    assert before[heading] == after[heading]


def test_more_room_shows_more() -> None:
    """From 80 columns on every model and the traffic are shown; below, the model that is kept."""
    assert {"private", "proxy", "received", "sent"} <= set(plain(table(80)).split())
    assert "123.5 kB" in table(80)
    assert "accuracy" in table(60)
    assert "received" not in table(60)
    assert "5 of 8" in table(120, present=5)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_end_of_a_run_keeps_its_form(width: int) -> None:
    """Eight methods, eight clients: no line is too long, nothing is cut, every client has every
    method's gain."""
    text = summary(width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for name in METHODS:
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", text), name
    gains = [line for line in text.splitlines() if re.match(r"[│ ]*client-3\b", line)]
    numbers = [word for line in gains for word in line.replace("│", " ").split()[1:] if "." in word]
    assert len(numbers) == len(METHODS), "alone's accuracy, and a gain for each of the others"
    priced = [line for line in text.splitlines() if "86.84" in line]
    assert priced
    assert all("conditional" in line for line in priced)
    assert "5.6e-04" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_name_goes_on_in_the_next_line(width: int) -> None:
    """A client with a long name keeps all of it, and pushes no number out."""
    name = "Hôpital-universitaire-Sainte-Marguerite"
    lines = summary(width, last=name).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    start = next(i for i, line in enumerate(lines) if line.lstrip("│ ").startswith(name[:8]))
    words = [line.replace("│", " ").split() for line in lines[start : start + 6]]
    assert "".join(some[0] for some in words if some).startswith(name)
    assert len(words[0]) > 2, "the numbers stand in the name's first line"


def test_no_colour_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR neither the live table nor the end has any colour; without it they have."""
    coloured = {"color_system": "standard"}
    assert COLOUR.search(table(80, **coloured))
    assert COLOUR.search(summary(80, force_terminal=True, **coloured))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOUR.search(table(80, **coloured))
    assert not COLOUR.search(summary(80, force_terminal=True, **coloured))


class Clock:
    """A clock that stands still between ticks."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_remaining_is_the_methods_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start-up does not count, a cheap method does not speak for a dear one, and a guess is not
    made."""
    clock = Clock()
    monkeypatch.setattr("proxyfl.simulation.progress.time.monotonic", clock)
    progress = Progress(quiet=True)
    progress.started(settled({"rounds": 100, "methods": ["alone", "proxyfl"]}), None, sites())
    said = []
    for name, pace in (("alone", 0.5), ("proxyfl", 2.0)):
        progress.method_started(name, METHODS[name], CLIENTS, 0)
        clock.now += 40  # building the models
        for round in range(4):
            progress.round_ended(name, round, [])
            said.append(progress._remaining())
            clock.now += pace
    assert said == ["", "", "", "48 s left for alone", "", "", "", "3 min left"]


def test_a_pipe_gets_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where standard error is no terminal lines have no escapes, even if colour is forced, and say
    what is left."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("proxyfl.simulation.progress.PATIENCE_SECONDS", -1.0)
    clock = Clock()
    monkeypatch.setattr("proxyfl.simulation.progress.time.monotonic", clock)
    with Progress() as progress:
        progress.started(settled({"rounds": 20, "methods": ["alone", "proxyfl"]}), None, sites())
        progress.method_started("proxyfl", METHODS["proxyfl"], CLIENTS, 0)
        for round in range(6, 10):
            progress.round_ended("proxyfl", round, rows("proxyfl", round))
            clock.now += 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "8 clients, digits, 20 rounds, methods alone, proxyfl"
    assert re.fullmatch(
        r"proxyfl: round 10/20, private 0\.\d{3}, proxy 0\.\d{3}, received 0\.\d{3}, epsilon "
        r"86\.84 conditional, "
        r"sent 123\.5 kB, 20 s left",
        lines[-1],
    )
    assert "left" not in lines[1], "the first round says nothing of the time remaining"


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that cannot move its cursor is treated like a pipe rather than left without a
    word."""
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    with Progress(console=Console(force_terminal=True, file=out)) as progress:
        progress.started(settled({"rounds": 10, "methods": ["alone"]}), None, sites())
    assert out.getvalue() == "8 clients, digits, 10 rounds, methods alone\n"


def test_the_fullest_that_fits_is_taken() -> None:
    """Of tables from wide to narrow the first that fits uncut is taken, and the last if none
    does."""
    wide, narrow = frame(), airy()
    for one, words in ((wide, ["method", "a long heading"]), (narrow, ["m.", "h."])):
        for word in words:
            one.add_column(word)
    console = Console(width=natural_width(Console(), wide))
    assert first_that_fits(console, (wide, narrow)) is wide
    console.width -= 1
    assert first_that_fits(console, (wide, narrow)) is narrow
    console.width = 1
    assert first_that_fits(console, (wide, narrow)) is narrow


def terminal() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(width=60, force_terminal=True, file=out), out


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its time has come nothing is shown."""
    monkeypatch.setattr(waits, "PATIENCE_SECONDS", PATIENCE)
    console, out = terminal()
    with spinner("Reading", total=2, console=console) as done:
        done(1)
    assert out.getvalue() == ""


def test_what_takes_long_has_a_bar_and_the_time_remaining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later there is a bar with the time remaining, which is gone when the work is done."""
    monkeypatch.setattr(waits, "PATIENCE_SECONDS", 0.05)
    console, out = terminal()
    with spinner("Reading [8] runs", total=10**6, console=console) as done:

        def has_a_time() -> bool:
            done(1)
            return bool(re.search(r"\d\d:\d\d", plain(out.getvalue())))

        wait_until(has_a_time)
    shown = plain(out.getvalue())
    assert "Reading [8] runs" in shown
    assert "━" in shown
    assert out.getvalue().rstrip("\r\n").endswith("\x1b[2K"), "the line is wiped"


def test_what_takes_long_in_a_pipe_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a pipe there is one plain line; when quiet, none."""
    monkeypatch.setattr(waits, "PATIENCE_SECONDS", 0.02)
    with spinner("Solving", quiet=True):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
    said = ""

    def spoken() -> str:
        nonlocal said
        said += capsys.readouterr().err
        return said

    with spinner("Solving"):
        wait_until(spoken)
        time.sleep(0.1)
    assert spoken() == "Solving ...\n"


def test_a_failure_passes_through_and_ends_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error within is the caller's, and the bar is gone by then."""
    monkeypatch.setattr(waits, "PATIENCE_SECONDS", 0.01)
    console, out = terminal()

    def work() -> None:
        with spinner("Reading", console=console):
            wait_until(lambda: "Reading" in out.getvalue())
            raise KeyError("x")

    with pytest.raises(KeyError):
        work()
    length = len(out.getvalue())
    time.sleep(0.25)
    assert len(out.getvalue()) == length


def test_standard_error_in_a_file_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """FORCE_COLOR does not make a terminal of a file."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not stderr_console().is_terminal


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "0 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h")]
)
def test_durations(seconds: float, said: str) -> None:
    """Seconds, minutes or hours, whichever is easiest to grasp."""
    assert duration(seconds) == said
