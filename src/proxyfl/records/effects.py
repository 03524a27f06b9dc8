"""Odds ratios of a study: a table, a CSV file and a plot. ``simulation.effects`` computes them.

Plain data, so that a report shows what was computed without computing it again.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from proxyfl._files import Document
from proxyfl.records.plots import Figure, Line

FILE = "effects.json"
"""The file in a run's folder that the report reads."""

COLUMNS = (
    "column",
    "change",
    "odds_ratio",
    "low",
    "high",
    "log_odds",
    "standard_error",
    "uncorrected",
    "reason",
)
"""The headings of the CSV file."""


@dataclass(frozen=True)
class Effect:
    """The effect of one change of a column on the odds of the second class.

    ``uncorrected`` is the odds ratio that the proxy's own coefficients would give, which is no
    estimate. Without an interval there is a ``reason``."""

    column: str
    change: str
    log_odds: float | None
    standard_error: float | None
    log_low: float | None
    log_high: float | None
    uncorrected: float
    reason: str = ""

    @property
    def odds_ratio(self) -> float | None:
        """The ratio of the odds; None without an interval."""
        return None if self.log_odds is None else math.exp(self.log_odds)

    @property
    def low(self) -> float | None:
        """The lower end of the 95 % interval of the ratio."""
        return None if self.log_low is None else math.exp(self.log_low)

    @property
    def high(self) -> float | None:
        """The upper end of the 95 % interval of the ratio."""
        return None if self.log_high is None else math.exp(self.log_high)

    def __str__(self) -> str:
        ratio, low, high = self.odds_ratio, self.low, self.high
        if ratio is None or low is None or high is None:
            return f"no interval: {self.reason}"
        return f"{ratio:.2f} ({low:.2f} to {high:.2f})"


@dataclass(frozen=True)
class Effects:
    """The odds ratios behind one client's proxy: how often more likely ``event`` is than
    ``otherwise``, and what the numbers rest on (``notes``)."""

    client: str
    method: str
    event: str
    otherwise: str
    effects: Sequence[Effect]
    notes: Sequence[str]

    def document(self) -> Document:
        """All of it as plain data."""
        rows = []
        for each in self.effects:
            values = {"odds_ratio": each.odds_ratio, "low": each.low, "high": each.high}
            rows.append(asdict(each) | values)
        return asdict(self) | {"effects": rows, "notes": list(self.notes)}

    def csv(self) -> str:
        """One line for each effect; an empty field where there is no interval."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        for each in self.effects:
            numbers = (
                each.odds_ratio,
                each.low,
                each.high,
                each.log_odds,
                each.standard_error,
                each.uncorrected,
            )
            shown = ["" if number is None else f"{number:.6g}" for number in numbers]
            rows.writerow([each.column, each.change, *shown, each.reason])
        return text.getvalue()

    def figure(self) -> Figure:
        """The intervals side by side, on an axis of log odds; effects without one are left out."""
        known = [each for each in self.effects if each.log_odds is not None]
        names = [f"{each.column}: {each.change}" for each in known]
        lines = [Line("no effect", "#8a94a0", [(0.0, 0.4), (0.0, 0.6 - len(names))], "dash")]
        for number, each in enumerate(known):
            assert each.log_low is not None
            assert each.log_high is not None
            place = float(-number)
            ends = [(each.log_low, place), (each.log_high, place)]
            lines.append(Line("", _COLOUR, ends))
        points = [(each.log_odds or 0.0, float(-number)) for number, each in enumerate(known)]
        hints = [f"{name}: {each}" for name, each in zip(names, known, strict=True)]
        lines.append(Line("odds ratio", _COLOUR, points, None, hints=hints))
        return Figure(
            f"Odds of {self.event} against {self.otherwise}: 95 % intervals",
            "odds ratio",
            "",
            lines,
            names,
            ratios=True,
        )


_COLOUR = "#0a62a9"
