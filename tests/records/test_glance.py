"""A run at a glance: short whatever its size, escaped, and never an exception."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxyfl import Config, run
from proxyfl.records.run import Run

HOSTILE = '<script>alert(1)</script>"&'


def recorded(clients: int = 3, *, name: str = "proxyfl", rounds: int = 1) -> Run:
    """A run in which every client gains ten points."""
    rows = []
    for number in range(rounds):
        for client in range(clients):
            for method, score in (("alone", 0.7), (name, 0.8)):
                row = {
                    "method": method,
                    "round": number,
                    "client": client,
                    "name": f"{HOSTILE}-{client}",
                    "present": clients,
                    "private_accuracy": score,
                    "proxy_accuracy": score,
                    "epsilon_pld": 1.0,
                    "epsilon_rdp": 2.0,
                    "delta": 1e-5,
                    "epsilon_kind": "none" if method == "alone" else "end-to-end",
                    "bytes_sent": 0 if method == "alone" else 1000,
                    "left": None,
                    "unknown": list(range(1000)),
                }
                rows.append(row)
    settings = {"methods": ["alone", name], "rounds": rounds, "measure": "accuracy"}
    return Run(Path(f"runs/{HOSTILE}"), settings, rows, {"finished": True, "methods": {}})


def test_repr_is_two_lines_whatever_the_size() -> None:
    """A hundred clients and many rounds take no more room than three; the verdict is in it."""
    for shown in (repr(recorded(3)), repr(recorded(100, rounds=5))):
        assert len(shown.splitlines()) == 2
        assert len(shown) < 400
        assert "proxyfl: Joining ends +10.0 points of accuracy from training alone" in shown
    assert "100 clients" in repr(recorded(100))


def test_html_has_the_verdict_and_a_line_per_method() -> None:
    """A notebook shows each method with its score, gain and cost."""
    html = recorded()._repr_html_()
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    cells = [re.findall(r"<t[dh]>(.*?)</t[dh]>", row) for row in rows]
    assert cells[1] == ["alone", "0.700", "", "not shared"]
    assert cells[2] == ["proxyfl", "0.800", "+10.0", "epsilon 1.00 per record, end-to-end"]
    assert "Joining ends +10.0 points" in html
    assert len(html) < 2000


def test_html_is_escaped() -> None:
    """Names that a page would take for its own markup stay text: those of folders, of sites and
    of methods."""
    html = recorded(name=HOSTILE)._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize(
    "odd",
    [
        Run(None, {}, []),
        Run(None, {"methods": ["alone"]}, []),
        Run(None, {"measure": "unheard-of"}, recorded().rows),
        Run(None, {}, [{"method": "x", "round": 0, "client": 0}]),
        Run(None, {"rounds": "three"}, recorded().rows),
        Run(None, {}, [{}]),
    ],
    ids=["empty", "begun", "measure", "row", "rounds", "blank row"],
)
def test_no_run_is_too_odd_to_be_shown(odd: Run) -> None:
    """A debugger or a notebook that shows an incomplete or a damaged run gets words."""
    assert repr(odd).startswith("<Run unnamed")
    assert odd._repr_html_().startswith("<div>")


@pytest.fixture
def small() -> Config:
    return Config(methods=("alone",), rounds=2)


def test_a_program_without_a_terminal_shows_nothing(
    small: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    """A script in a pipe or a log prints what its author prints, and nothing else."""
    shown = repr(run(small))
    assert capfd.readouterr() == ("", "")
    assert "add `alone`" not in shown
    assert len(shown.splitlines()) == 2


def test_a_program_in_a_terminal_shows_its_progress(
    small: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal the table of the command line is drawn, unless the program declines."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    run(small, progress=False)
    assert capsys.readouterr().err == ""
    run(small)
    assert "alone" in capsys.readouterr().err


def test_a_notebook_shows_the_progress_in_its_cell(
    small: Config, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a kernel the cell's output is drawn in place, and cleared at the end; nothing goes to
    standard error."""
    import IPython
    import IPython.display

    drawn: list[str] = []

    def display(html: IPython.display.HTML, *, display_id: bool) -> SimpleNamespace:
        drawn.append(html.data)
        return SimpleNamespace(update=lambda html: drawn.append(html.data))

    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, "display", display)
    run(small)
    assert capfd.readouterr().err == ""
    assert len(drawn) >= 3
    assert any("alone" in html and "/2" in html for html in drawn)
    assert drawn[-1] == ""
