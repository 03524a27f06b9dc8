"""A live table while a run goes on; plain lines where standard error is no terminal."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from proxyfl.experiment.build import Site
from proxyfl.experiment.config import Config
from proxyfl.experiment.runner import Callback
from proxyfl.federation.methods import Method
from proxyfl.federation.rounds import ClientRound
from proxyfl.privacy.accounting import Kind


class Progress(Callback):
    """Shows, per method, the round, accuracies, epsilon with its kind, bytes, and the time remaining."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.quiet = quiet
        self._live: Live | None = None
        self._rows: dict[str, dict[str, str]] = {}
        self._rounds = self._done = self._skipped = self._in_all = 0
        self._began = self._printed = time.monotonic()

    def __enter__(self) -> Self:
        if not self.quiet and self.console.is_terminal:
            self._live = Live(self._view(), console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, config: Config, out: Path | None, sites: Sequence[Site]) -> None:
        """Note how much there is to do."""
        self._rounds, self._in_all = config.rounds, config.rounds * len(config.methods)
        self._say(
            f"{len(sites)} clients, {config.data.source}, {config.rounds} rounds, methods {', '.join(config.methods)}"
        )

    def method_started(self, name: str, method: Method, clients: int, first_round: int) -> None:
        """Open the method's row."""
        self._rows[name] = {"round": f"{first_round}/{self._rounds}"}
        self._skipped += first_round

    def round_ended(self, name: str, round: int, records: Sequence[ClientRound]) -> None:
        """Bring the method's row up to date."""
        self._done += 1
        row = self._rows[name]
        row["round"] = f"{round + 1}/{self._rounds}"
        if records:
            self._fill(row, records)
        for record in records:
            if record.left:
                self._note(f"{name}, round {round + 1}: {record.name} leaves ({record.left})")
        if self._live is not None:
            self._live.update(self._view())
        elif time.monotonic() - self._printed > 2 or round + 1 == self._rounds:
            self._printed = time.monotonic()
            self._say(f"{name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))

    def _fill(self, row: dict[str, str], records: Sequence[ClientRound]) -> None:
        if records[0].present < records[0].expected or "present" in row:
            row["present"] = f"{records[0].present} of {records[0].expected}"
        for role in ("private", "proxy", "received"):
            scores = [r.scores[role].accuracy for r in records if role in r.scores]
            if scores:
                row[role] = f"{mean(scores):.3f}"
        worst = max((r.epsilon for r in records), key=lambda e: e.best)
        row["epsilon"] = "no DP" if worst.kind is Kind.NONE else f"{worst.best:.2f} {worst.kind}"
        row["sent"] = _size(sum(r.traffic.bytes_sent for r in records) / len(records))

    def _note(self, line: str) -> None:
        """Something that must not be missed: above the live table, or a line of its own."""
        if self._live is not None:
            self._live.console.print(line, highlight=False)
        else:
            self._say(line)

    def _say(self, line: str) -> None:
        if not self.quiet and self._live is None:
            print(line, file=sys.stderr, flush=True)

    def _view(self) -> Group:
        narrow = self.console.width < 70
        columns = ["round", "private", "proxy", "received", "epsilon"] + ([] if narrow else ["sent"])
        titles = {"sent": "sent per client and round", "received": "received proxy", "epsilon": "epsilon, kind"}
        if narrow:
            titles = {"private": "priv.", "received": "recv.", "epsilon": "eps."}
        if any("present" in row for row in self._rows.values()):
            columns.insert(1, "present")
        table = Table("method", *(titles.get(c, c) for c in columns))
        for name, row in self._rows.items():
            cells = (row.get(column, "") for column in columns)
            table.add_row(name, *(cell.split()[0] if narrow and cell else cell for cell in cells))
        bar = ProgressBar(
            total=max(1, self._in_all), completed=self._skipped + self._done, width=min(40, self.console.width - 20)
        )
        line = Table.grid(padding=(0, 1))
        line.add_row(bar, Text(self._remaining()))
        return Group(table, line)

    def _remaining(self) -> str:
        if not self._done:
            return ""
        seconds = (time.monotonic() - self._began) / self._done * (self._in_all - self._skipped - self._done)
        return f"{seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
