"""A live table of a run, in the terminal or in a notebook.

Guarantees:
    * all of it goes to standard error; where that is no terminal, plain lines without escapes;
    * from 60 columns up no line is longer than the terminal is wide, no name and no guarantee is
      cut;
    * an epsilon is never shown without its kind;
    * ``following``, which is for programs, shows nothing where there is neither a terminal nor a
      notebook;
    * the time remaining is that of the method at work, by its own rounds: what starting took does
      not count, methods differ in their cost, and what cannot be known yet is not said.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean

from rich.console import Console, Group, JustifyMethod
from rich.errors import LiveError
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from proxyfl._terminal.display import Display
from proxyfl._terminal.layouts import airy, first_that_fits
from proxyfl._terminal.notebook import in_notebook
from proxyfl._terminal.spinner import PATIENCE_SECONDS, duration, stderr_console
from proxyfl.federation.methods import Method
from proxyfl.measures import MEASURES
from proxyfl.privacy.guarantee import Kind, brief, largest
from proxyfl.records.row import ROLES, Row, epsilon, score
from proxyfl.simulation.config import Config
from proxyfl.simulation.division import ClientData
from proxyfl.simulation.run import Callback

_WIDTHS = {
    "present": 8,
    "private": 5,
    "proxy": 5,
    "received": 5,
    "kept": 5,
    "epsilon": 5,
    "kind": 11,
    "sent": 8,
}
"""Room kept for each cell from the beginning, so that the table does not change its form as numbers
come in."""

_WIDE = ("round", "present", "private", "proxy", "received", "epsilon", "kind", "sent")
_NARROW = ("round", "kept", "epsilon", "kind")
"""The columns. ``kept`` is the score of the model that an institution keeps."""

_ROUNDS_TO_KNOW = 3
_SECONDS_TO_KNOW = 1.0
"""Before so many rounds and seconds the time remaining is anybody's guess."""


@contextmanager
def following(wanted: bool) -> Iterator[Sequence[Callback]]:
    """The callbacks by which a program's run is followed on its terminal or in its notebook."""
    callbacks: list[Callback] = []
    with ExitStack() as stack:
        if wanted and (in_notebook() or stderr_console().is_interactive):
            try:
                callbacks.append(stack.enter_context(Progress()))
            except LiveError:
                callbacks = []  # the program draws on this terminal itself
        yield callbacks


class Progress(Display, Callback):
    """Shows, per method, the round, accuracies, epsilon with its kind, bytes, and the time
    remaining."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        super().__init__(quiet=quiet, console=console)
        self._rows: dict[str, dict[str, str]] = {}
        self._keeps: dict[str, str] = {}
        self._rounds = 0
        self._done = 0
        self._in_all = 0
        self._methods: Sequence[str] = ()
        self._measure = "accuracy"
        self._pace: _Pace | None = None
        self._printed = time.monotonic()

    def started(self, config: Config, out: Path | None, sites: Sequence[ClientData]) -> None:
        """Note how much there is to do."""
        self._rounds = config.rounds
        self._methods = config.methods
        self._measure = config.measure
        self._in_all = config.rounds * len(config.methods)
        self._rows = {name: {"round": f"0/{config.rounds}"} for name in config.methods}
        if not self.is_drawn:
            self.say(
                f"{len(sites)} clients, {config.data.name}, {config.rounds} "
                f"round{'' if config.rounds == 1 else 's'}, methods "
                f"{', '.join(config.methods)}"
            )

    def method_started(self, name: str, method: Method, clients: int, first_round: int) -> None:
        """Open the method's row."""
        self._keeps[name] = method.keeps
        self._rows[name] = {"round": f"{first_round}/{self._rounds}"}
        self._done += first_round
        self._pace = _Pace(name)

    def round_ended(self, name: str, round: int, rows: Sequence[Row]) -> None:
        """Updates the method's row."""
        self._done += 1
        if self._pace is not None:
            self._pace.note(round + 1)
        shown = self._rows[name]
        shown["round"] = f"{round + 1}/{self._rounds}"
        if rows:
            self._fill(shown, name, rows)
        for row in rows:
            if row["left"]:
                self.say(f"{name}, round {round + 1}: {row['name']} leaves ({row['left']})")
        is_due = time.monotonic() - self._printed > PATIENCE_SECONDS
        if not self.is_drawn and (is_due or round + 1 == self._rounds):
            self._printed = time.monotonic()
            self.say(self._line(name, shown))
        self.refresh()

    def _fill(self, shown: dict[str, str], name: str, rows: Sequence[Row]) -> None:
        present, expected = rows[0]["present"], rows[0]["expected"]
        if present < expected or "present" in shown:
            shown["present"] = f"{present} of {expected}"
        for role in ROLES:
            scores = [score(row, role, self._measure) for row in rows]
            values = [value for value in scores if value is not None]
            if values:
                shown[role] = f"{mean(values):.3f}"
        shown["kept"] = shown.get(self._keeps[name], shown.get("proxy", ""))
        worst = largest(epsilon(row) for row in rows)
        shown["epsilon"] = brief(worst.best)
        shown["kind"] = str(worst.kind)
        if worst.kind is Kind.NONE:
            shown |= {"epsilon": "", "kind": "no DP"}
        shown["sent"] = _size(mean(row["bytes_sent"] for row in rows))

    def _line(self, name: str, row: dict[str, str]) -> str:
        shown = []
        for key in ("round", "present", "private", "proxy", "received"):
            if key in row:
                shown.append(f"{key} {row[key]}")
        if "kind" in row:
            cost = row["kind"]
            if row["epsilon"]:
                cost = f"epsilon {row['epsilon']} {cost}"
            shown += [cost, f"sent {row['sent']}"]
        left = self._remaining()
        if left:
            shown.append(left)
        return f"{name}: {', '.join(shown)}"

    def view(self) -> Group:
        """A row per method, and how far the run has come."""
        rows = {}
        # Both are changed by the run's thread while rich's thread draws.
        for name, row in list(self._rows.items()):
            rows[name] = dict(row)
        left = Text(self._remaining(), no_wrap=True)
        room = self.console.width - left.cell_len - 1
        bar = ProgressBar(
            total=max(1, self._in_all), completed=self._done, width=max(10, min(40, room))
        )
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(bar, left)
        if not rows:
            return Group(line)
        tables = (self._table(rows, columns) for columns in (_WIDE, _NARROW))
        return Group(first_that_fits(self.console, tables), line)

    def _table(self, rows: dict[str, dict[str, str]], columns: Sequence[str]) -> Table:
        if not any("present" in row for row in rows.values()):
            columns = [key for key in columns if key != "present"]
        table = airy()
        # A name that is too long for the narrow layout continues in the next line, uncut.
        table.add_column("method", min_width=7, overflow="fold")
        widths = _WIDTHS | {"round": 2 * len(str(self._rounds)) + 1}
        for key in columns:
            title = MEASURES[self._measure].title if key == "kept" else key
            justify: JustifyMethod = "right"
            if key in ("kind", "present"):
                justify = "left"
            table.add_column(title, min_width=widths[key], no_wrap=True, justify=justify)
        for name, row in rows.items():
            cells = [row.get(key, "") for key in columns]
            table.add_row(Text(name), *cells)
        return table

    def _remaining(self) -> str:
        """The time remaining, in words; empty while it cannot be known."""
        if self._pace is None:
            return ""
        seconds = self._pace.seconds_left(self._rounds)
        if not seconds:
            return ""
        left = f"{duration(seconds)} left"
        method = self._pace.method
        return left if method == self._methods[-1] else f"{left} for {method}"


class _Pace:
    """The pace of one method's rounds, measured from the end of the first."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.first = (0, 0.0)
        self.last = (0, 0.0)

    def note(self, rounds: int) -> None:
        """So many rounds are done now."""
        self.last = (rounds, time.monotonic())
        if self.first == (0, 0.0):
            self.first = self.last

    def seconds_left(self, rounds: int) -> float | None:
        """Until all of the method's rounds are done, at the pace so far; None if too early."""
        done = self.last[0] - self.first[0]
        seconds = self.last[1] - self.first[1]
        if done < _ROUNDS_TO_KNOW or seconds < _SECONDS_TO_KNOW:
            return None
        return seconds / done * (rounds - self.last[0])


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
