"""Ready plots for notebooks, as SVG: drawn here, without a library. The report draws in the browser
instead."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl._files import write_bytes
from proxyfl.measures import title_of
from proxyfl.privacy.guarantee import shown
from proxyfl.records.palette import DASHES, looks
from proxyfl.records.verdict import MINUS

if TYPE_CHECKING:
    import pandas

    from proxyfl.records.frames import Runs

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 120, 180, 44, 48
ROW = 20
"""The least height of a row with a name."""
LETTER = 6.2
"""The width of a letter, about."""

STROKES = {"solid": "none", "dash": "8 5", "dot": "2 4"}

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve, or one set of marks (``dash`` None), with a band around it if there is one."""

    name: str
    """Its name in the legend; empty: it has no place there."""
    colour: str
    points: Sequence[Point]
    dash: str | None = "solid"
    band: Sequence[Point] = ()
    """(low, high) at each point."""
    hints: Sequence[str] = ()
    """The full text of each point, shown when a pointer is over it."""


@dataclass(frozen=True)
class Figure:
    """A chart. A notebook shows it by itself; ``save`` writes it as an SVG file."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    rows: Sequence[str] = ()
    """Names of the rows, if the vertical axis has names instead of numbers: row i is at -i."""
    ratios: bool = False
    """True if the horizontal axis has logarithms of ratios. Its ticks name the ratios."""

    def save(self, path: Path | str) -> None:
        """Write the chart to ``path``, whole or not at all."""
        write_bytes(Path(path), self.svg.encode())

    def _repr_svg_(self) -> str:
        return self.svg

    @property
    def svg(self) -> str:
        """The chart as SVG."""
        points = [point for line in self.lines for point in line.points]
        highs = [edge for line in self.lines for ends in line.band for edge in ends]
        left = max(LEFT, math.ceil(LETTER * max(map(len, self.rows), default=0)) + 16)
        right = left + WIDTH - RIGHT - LEFT
        width = right + RIGHT
        height = max(HEIGHT, TOP + BOTTOM + ROW * len(self.rows))
        across = Axis.of([x for x, _ in points], left, right)
        if self.rows:
            up = Axis(-len(self.rows) + 0.5, 0.5, height - BOTTOM, TOP)
            ticks = [(float(-number), name) for number, name in enumerate(self.rows)]
        else:
            up = Axis.of([*(y for _, y in points), *highs], height - BOTTOM, TOP)
            ticks = up.ticks()
        drawn = [_text(left, 22, self.title, "start", "15px", "600")]
        for value, name in ticks:
            y = up.at(value)
            drawn.append(_segment(left, y, right, y, "#e2e6ea"))
            drawn.append(_text(left - 8, y + 4, name, "end"))
        for value, name in across.ratios() if self.ratios else across.ticks():
            drawn.append(_text(across.at(value), height - BOTTOM + 18, name, "middle"))
        drawn.append(_text((left + right) / 2, height - 8, self.x, "middle"))
        drawn.append(_text(left, 38, self.y, "start"))
        y = float(TOP)
        for line in self.lines:
            drawn.append(_curve(line, across, up))
            if line.name:
                drawn.append(_segment(right + 12, y, right + 34, y, line.colour, line.dash))
                drawn.append(_text(right + 40, y + 4, line.name, "start"))
                y += 18
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" role="img" aria-label="{escape(self.title)}" '
            'font-family="system-ui, sans-serif" font-size="12px" fill="#545e69" '
            f'style="background: #fff">{"".join(drawn)}</svg>'
        )


@dataclass(frozen=True)
class Axis:
    """From values to places."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> "Axis":
        """An axis that holds the values, with a little room."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        room = 0.05 * ((high - low) or abs(high) or 1.0)
        return cls(low - room, high + room, start, end)

    def at(self, value: float) -> float:
        """The place of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[tuple[float, str]]:
        """Round values within the axis, with their words."""
        rough = (self.high - self.low) / wanted
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough)
        first = math.ceil(self.low / step)
        ticks = []
        while first * step <= self.high:
            ticks.append((first * step, f"{first * step:.6g}".replace("-", MINUS)))
            first += 1
        return ticks

    def ratios(self) -> list[tuple[float, str]]:
        """Round ratios whose logarithms lie within the axis, with their words."""
        powers = range(math.floor(self.low / math.log(10)), math.ceil(self.high / math.log(10)) + 1)
        ratios = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        within = [each for each in ratios if self.low <= math.log(each) <= self.high]
        return [(math.log(each), f"{each:g}") for each in within]


def accuracy(runs: "Runs", measure: str) -> Figure:
    """Mean over clients and seeds of every model's score, with a band of one standard deviation."""
    lines = []
    metrics = runs.metrics
    for method, (colour, _, _) in looks(metrics["method"]).items():
        rows = metrics[metrics["method"] == method]
        for role, dash in DASHES.items():
            column = f"{role}_{measure}"
            if column in rows and rows[column].notna().any():
                by_round = rows.dropna(subset=[column]).groupby("round")[column]
                means, spread = by_round.mean(), by_round.std().fillna(0.0)
                band = [(mean - one, mean + one) for mean, one in zip(means, spread, strict=True)]
                lines.append(Line(f"{method}, {role}", colour, _by_round(means), dash, band))
    title = "Mean over clients and seeds; bands: one standard deviation"
    return Figure(title, "round", title_of(measure), lines)


def gain(runs: "Runs", measure: str) -> Figure:
    """The gain of each client over ``alone``, in points, one mark per run."""
    gains = runs.gains
    column = f"{measure}_gain"
    names = list(dict.fromkeys(gains["name"]))
    lines = []
    for method, (colour, _, _) in looks(gains["method"]).items():
        rows = gains[gains["method"] == method].dropna(subset=[column])
        if method == "alone" or rows.empty:
            continue
        points, hints = [], []
        for row in rows.itertuples():
            value = 100 * getattr(row, column)
            points.append((value, float(-names.index(row.name))))
            hints.append(
                f"{row.name}: {value:+.1f}, epsilon {shown(row.epsilon)} ({row.epsilon_kind})"
            )
        lines.append(Line(method, colour, points, None, hints=hints))
    zero = Line("alone", "#14181D", [(0.0, 0.4), (0.0, 0.6 - len(names))])
    title = "What each client gains over training alone"
    return Figure(title, f"points of {title_of(measure)}", "client", [*lines, zero], names)


def epsilon(runs: "Runs", _measure: str) -> Figure:
    """The largest epsilon over clients as rounds go by, per method, with its kind in the name."""
    lines = []
    metrics = runs.metrics
    best = metrics[["epsilon_rdp", "epsilon_pld"]].min(axis=1)
    colours = looks(metrics["method"])
    by_kind = metrics.assign(best=best).groupby(["method", "epsilon_kind"], sort=False)
    for (method, kind), rows in by_kind:
        if kind != "none":
            largest = rows.groupby("round")["best"].max()
            lines.append(Line(f"{method} ({kind})", colours[method][0], _by_round(largest)))
    return Figure("Epsilon, largest over clients", "round", "epsilon", lines)


PLOTS = {"accuracy": accuracy, "gain": gain, "epsilon": epsilon}
"""Every plot by its name."""


def _by_round(values: "pandas.Series") -> list[Point]:
    return [(float(number + 1), float(value)) for number, value in values.items()]


def _curve(line: Line, across: Axis, up: Axis) -> str:
    drawn = []
    places = [(across.at(x), up.at(y)) for x, y in line.points]
    if line.band:
        tops = [(x, up.at(high)) for (x, _), (_, high) in zip(places, line.band, strict=True)]
        feet = [(x, up.at(low)) for (x, _), (low, _) in zip(places, line.band, strict=True)]
        around = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*tops, *reversed(feet)])
        drawn.append(f'<polygon points="{around}" fill="{line.colour}" opacity="0.12"/>')
    if line.dash is not None:
        for (a, b), (c, d) in pairwise(places):
            drawn.append(_segment(a, b, c, d, line.colour, line.dash))
    if line.dash is None or len(places) == 1:
        hints = line.hints or [line.name] * len(places)
        for (x, y), hint in zip(places, hints, strict=True):
            drawn.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{line.colour}">'
                f"<title>{escape(hint)}</title></circle>"
            )
    return "".join(drawn)


def _segment(
    a: float, b: float, c: float, d: float, colour: str, dash: str | None = "solid"
) -> str:
    stroke = STROKES[dash or "solid"]
    return (
        f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="{colour}" '
        f'stroke-width="2" stroke-dasharray="{stroke}"/>'
    )


def _text(
    x: float, y: float, text: str, anchor: str, size: str = "12px", weight: str = "400"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )
