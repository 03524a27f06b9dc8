"""A site's status as one page, in the report's style and colours, drawn from a status alone.

Unlike the report it has no scripts: it is served where a site's keys are, under a policy that lets
a browser run nothing.
"""

import html
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxyfl._files import Document
from proxyfl.node.observe.status import notices as status_notices
from proxyfl.records.palette import BLUE, COLOURS, DASHES, GREY, SKY
from proxyfl.report.page import style

WIDTH = 640
HEIGHT = 210
LEFT = 52
RIGHT = 12
TOP = 28
BOTTOM = 30

_MORE_STYLE = """
body { max-width: 60rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--quiet); }
svg .axis { stroke: var(--line); } svg .grid { stroke: var(--grid); }
.late { color: var(--loss); font-weight: 600; }
"""

_STROKES = {"solid": "none", "dash": "8 5", "dot": "2 4"}

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    name: str
    colour: str
    points: Sequence[Point]
    dash: str = "solid"


def page(status: Document) -> str:
    """The page for a site's status."""
    notices = [f'<li class="late">{_text(sentence)}</li>' for sentence in status_notices(status)]
    title = f"{status['name']} of {status['federation']}"
    history = status["history"]
    measure = status["measure"]
    running = "running" if status["running"] else "not running"
    standing = f"{running}, {status['state']}; manifest version {status['version']}"
    events = []
    for event, times in sorted(status["events"].items()):
        events.append((_text(event), str(times)))
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="quiet">{_text(standing)}</p>',
        f"<ul>{''.join(notices)}</ul>" if notices else "",
        _cards(status),
        _figure(f"{measure} on this site's own test examples", _scores(history), from_zero=False),
        _figure("Privacy: epsilon against the budget", _epsilon(status)),
        f"<p>{_text(status['privacy']['sentence'])}</p>",
        _figure("Mass in and out, in PushSum weight", _mass(history)),
        "<h2>Peers</h2>",
        _peers(status["peers"]),
        "<h2>Events since the start</h2>",
        _table(("event", "times"), events),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="5">'
        f"<title>{_text(title)}</title><style>{style()}{_MORE_STYLE}</style></head>"
        f"<body>{body}</body></html>"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _cards(status: Document) -> str:
    last = status["history"][-1] if status["history"] else {}
    heard = "-"
    if last.get("asked") is not None:
        heard = f"{last['heard']} of {last['asked']}"
    shown = [
        (f"{status['round']} of {status['rounds']}", "rounds done"),
        (_number(last.get("private")), f"private {status['measure']}"),
        (heard, "senders heard in the last round"),
        (f"{status['weight']:.4g}", "weight held"),
        (f"{status['in_flight']:.4g}", "weight on its way out"),
        (f"{status['waiting']:.4g}", "weight waiting to be added"),
    ]
    drawn = []
    for value, name in shown:
        drawn.append(f'<li><p class="verdict">{_text(value)}</p><p>{_text(name)}</p></li>')
    return f'<ul class="cards">{"".join(drawn)}</ul>'


def _scores(history: Sequence[Document]) -> list[Line]:
    """The report's dashes say which model a line is about."""
    colour = COLOURS["proxyfl"]
    lines = []
    for role, dash in DASHES.items():
        lines.append(Line(role, colour, _points(history, role), dash))
    return lines


def _epsilon(status: Document) -> list[Line]:
    spent = _points(status["history"], "epsilon")
    lines = [Line("spent", COLOURS["proxyfl"], spent)]
    budget = status["privacy"]["budget"]
    if budget is not None:
        limit = [(round, float(budget)) for round, _ in spent]
        lines.append(Line(f"budget {budget:g}", BLUE, limit, "dash"))
    return lines


def _mass(history: Sequence[Document]) -> list[Line]:
    return [
        Line("held", GREY, _points(history, "weight")),
        Line("given away", SKY, _points(history, "mass_out")),
        Line("added", COLOURS["proxyfl"], _points(history, "mass_in"), "dash"),
    ]


def _points(history: Sequence[Document], key: str) -> list[Point]:
    """(round, value) of the rounds that have one."""
    found = []
    for row in history:
        if row.get(key) is not None:
            number = float(row["round"] + 1)
            found.append((number, float(row[key])))
    return found


def _figure(title: str, lines: Sequence[Line], *, from_zero: bool = True) -> str:
    drawn = [line for line in lines if len(line.points) > 1]
    content = '<p class="empty">After two rounds there is something to draw.</p>'
    if drawn:
        content = _chart(title, drawn, from_zero=from_zero)
    return f"<figure><h3>{_text(title)}</h3>{content}</figure>"


def _chart(title: str, lines: Sequence[Line], *, from_zero: bool) -> str:
    """The curves as a picture, with their names above and the ends of both axes named."""
    every = list(itertools.chain.from_iterable(line.points for line in lines))
    rounds = [x for x, _ in every]
    values = [y for _, y in every]
    low = 0.0 if from_zero else min(values)
    high = max(values)
    first, last = min(rounds), max(rounds)
    wide = (last - first) or 1.0
    tall = (high - low) or 1.0

    def place(point: Point) -> str:
        round, value = point
        across = (round - first) / wide
        up = (value - low) / tall
        x = LEFT + (WIDTH - LEFT - RIGHT) * across
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up
        return f"{x:.1f},{y:.1f}"

    drawn = [_axes(low, high, first, last)]
    at = LEFT
    for line in lines:
        dash = f' stroke-dasharray="{_STROKES[line.dash]}"'
        points = " ".join(place(point) for point in line.points)
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{line.colour}" '
            f'stroke-width="2.5"{dash}/>'
        )
        drawn.append(
            f'<line x1="{at}" x2="{at + 18}" y1="12" y2="12" stroke="{line.colour}" '
            f'stroke-width="3"{dash}/><text x="{at + 24}" y="16">{_text(line.name)}</text>'
        )
        at += 44 + 7 * len(line.name)
    opening = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return f'{opening} aria-label="{_text(title)}">{"".join(drawn)}</svg>'


def _axes(low: float, high: float, first: float, last: float) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    drawn = []
    for part in (0.0, 0.5, 1.0):
        y = bottom - (bottom - TOP) * part
        value = low + (high - low) * part
        drawn.append(
            f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    drawn.append(
        f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
        f'<text x="{LEFT}" y="{HEIGHT - 10}">round {first:.0f}</text>'
        f'<text x="{right}" y="{HEIGHT - 10}" text-anchor="end">round {last:.0f}</text>'
    )
    return "".join(drawn)


def _peers(peers: Sequence[Document]) -> str:
    rows = []
    for peer in peers:
        ago = peer["seconds_since_contact"]
        contact = "never" if ago is None else f"{ago:.0f} s ago"
        if ago is None or ago >= 60:
            contact = f'<span class="late">{contact}</span>'
        cells = []
        for key in ("name", "state", "round", "owed", "version"):
            cells.append(_text(peer[key]))
        why = "" if peer["held_up"] is None else peer["held_up"]["text"]
        rows.append([*cells, _text(peer["release"] or "unknown"), contact, _text(why)])
    titles = ("site", "state", "round", "shares owed to it", "manifest", "release")
    return _table((*titles, "last contact", "held up"), rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are markup already."""
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    body = []
    for row in rows:
        cells = "".join(f"<td>{cell}</td>" for cell in row)
        body.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
