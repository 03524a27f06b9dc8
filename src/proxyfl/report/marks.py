"""Marks of pages that have no scripts: a bar, a gauge, cells for rounds, lines over rounds.

Text is HTML and keeps its size; shapes are SVG and stretch. Every function returns markup, and
escapes what it is given.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from proxyfl.privacy.guarantee import WEAK, shown
from proxyfl.report.page import style

LOGO = (
    '<svg class="logo" viewBox="0 0 24 24" aria-hidden="true"><path d="M5 5h14v14H5z" fill="none" '
    'stroke="currentColor" stroke-width="1.6"/><g fill="var(--card)" stroke="currentColor" '
    'stroke-width="1.8"><circle cx="5" cy="5" r="3"/><circle cx="5" cy="19" r="3"/>'
    '<circle cx="19" cy="19" r="3"/></g><circle cx="19" cy="5" r="3.6" fill="var(--accent)"/></svg>'
)
_MOST_CELLS = 120
_TIGHT = 0.9
"""From this share of the budget on, the gauge has the colour of an alarm."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A curve, or with one value a level that holds for all rounds. ``colour`` is a token."""

    name: str
    points: Sequence[Point]
    colour: str = "accent"
    dash: str = "none"
    level: float | None = None
    width: float = 2.5

    @property
    def values(self) -> list[float]:
        """All values of the line."""
        return [self.level] if self.level is not None else [value for _, value in self.points]

    @property
    def last(self) -> float:
        """The value next to the name."""
        return self.values[-1]


def text(value: object) -> str:
    """A value as text of a page."""
    return html.escape(str(value))


def frame(title: str, heading: str, badge: str, right: str, body: str, *, refresh: int = 0) -> str:
    """A whole page: the bar, and below it ``body``, which is markup like ``badge``."""
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark">{again}<link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{style('page.css')}{style('site.css')}</style></head>"
        f'<body><header class="bar"><div class="wrap barin">{LOGO}'
        f'<b class="study">{text(heading)}</b>{badge}<span class="right">{text(right)}</span>'
        f'</div></header><main class="wrap" id="main">{body}</main></body></html>'
    )


def cells(done: int, rounds: int, *, settle: int = 0, running: bool = True) -> str:
    """One cell for each round, or for several where they are many; those that only mix are
    underlined."""
    count = min(rounds, _MOST_CELLS)
    drawn = []
    for at in range(count):
        first, last = at * rounds // count, (at + 1) * rounds // count
        kind = "done" if last <= done else "now" if running and first <= done else ""
        if first >= rounds - settle:
            kind += " free"
        drawn.append(f'<i class="{kind.strip()}"></i>')
    label = f"{done} of {rounds} rounds done"
    return f'<div class="cells" role="img" aria-label="{label}">{"".join(drawn)}</div>'


def gauge(epsilon: float, budget: float, *, at_end: float | None = None) -> str:
    """A half circle from 0 to the budget. The dashed tick is where the study will end."""

    def place(share: float, radius: float) -> str:
        angle = math.pi * (1 - max(0.0, min(1.0, share)))
        return f"{90 + radius * math.cos(angle):.1f} {86 - radius * math.sin(angle):.1f}"

    def arc(share: float, colour: str) -> str:
        return (
            f'<path d="M{place(0, 66)}A66 66 0 0 1 {place(share, 66)}" fill="none" '
            f'stroke="var(--{colour})" stroke-width="15"/>'
        )

    share = epsilon / budget
    drawn = [arc(1, "raised"), arc(share, "loss" if share > _TIGHT else "accent")]
    if at_end is not None and at_end <= budget:
        drawn.append(
            f'<path d="M{place(at_end / budget, 54)}L{place(at_end / budget, 80)}" '
            'stroke="var(--ink)" stroke-width="2" stroke-dasharray="3 2"/>'
        )
    strength = "number weak" if epsilon > WEAK else "number"
    for x, y, name, content in (
        (90, 78, strength, shown(epsilon, 2)),
        (90, 98, "", f"of budget {budget:g}"),
        (24, 106, "", "0"),
        (156, 106, "", f"{budget:g}"),
    ):
        drawn.append(f'<text x="{x}" y="{y}" text-anchor="middle" class="{name}">{content}</text>')
    label = f"epsilon {shown(epsilon, 2)} of a budget of {budget:g}"
    return (
        f'<svg class="gauge status-gauge" viewBox="0 0 180 112" role="img" aria-label="{label}">'
        f"{''.join(drawn)}</svg>"
    )


def plot(label: str, lines: Sequence[Line], rounds: int, *, digits: int = 3) -> str:
    """Lines over rounds 1 to ``rounds``, each with its name and last value at its end."""
    values = [value for line in lines for value in line.values]
    ticks = _ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]

    def down(value: float) -> float:
        return 100 * (high - value) / (high - low)

    def across(round: float) -> float:
        return 100 * (round - 1) / max(1, rounds - 1)

    marks = []
    words = []
    for tick in ticks:
        y = down(tick)
        marks.append(f'<path d="M0 {y:.2f}H100" stroke="var(--grid)"/>')
        words.append(f'<span class="y" style="top:{y:.2f}%">{tick:g}</span>')
    for line in lines:
        if line.level is not None:
            path = f"M0 {down(line.level):.2f}H100"
        else:
            points = [f"{across(x):.2f} {down(y):.2f}" for x, y in line.points]
            path = "M" + "L".join(points if len(points) > 1 else points * 2)
        marks.append(
            f'<path d="{path}" fill="none" stroke="var(--{line.colour})" '
            f'stroke-width="{line.width}" stroke-dasharray="{line.dash}" stroke-linecap="round"/>'
        )
    for line, y in _spread([(line, down(line.last)) for line in lines]):
        words.append(
            f'<span class="name" style="top:{y:.2f}%;color:var(--{line.colour})">'
            f"{text(line.name)} {line.last:.{digits}f}</span>"
        )
    words.append('<span class="x first" style="left:0">round 1</span>')
    words.append(f'<span class="x last" style="left:100%">{rounds}</span>')
    return (
        f'<div class="plot" role="img" aria-label="{text(label)}">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(marks)}</svg>{''.join(words)}</div>"
    )


def _spread(places: Sequence[tuple[Line, float]], apart: float = 9.0) -> list[tuple[Line, float]]:
    """The same names, moved down where they would lie on each other."""
    moved = []
    above = -math.inf
    for line, y in sorted(places, key=lambda place: place[1]):
        above = max(y, above + apart)
        moved.append((line, above))
    return moved


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers that enclose both."""
    span = (high - low) or max(abs(high), 1.0) / 10
    step = 10.0 ** math.floor(math.log10(span))
    for part in (0.25, 0.5, 1.0, 2.0):
        if span / (step * part) <= 4:
            step *= part
            break
    else:
        step *= 5
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(step * at, 10) for at in range(first, max(last, first + 1) + 1)]
