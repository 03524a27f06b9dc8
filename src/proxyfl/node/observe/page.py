"""The status page: one document without scripts, drawn from a status and nothing else."""

import html
from collections.abc import Sequence
from typing import Any

WIDTH = 640
HEIGHT = 200
MARGIN = 36

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 46rem; padding: 0 1rem;
       color: #1d2733; background: #fff; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.sub { color: #5b6876; margin: 0 0 1.2rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; }
.tile { border: 1px solid #dde3ea; border-radius: 8px; padding: .6rem .9rem; min-width: 8.5rem; }
.tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.tile span { color: #5b6876; font-size: .85rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #e7ebf0; }
th { color: #5b6876; font-weight: 600; font-size: .85rem; }
.bad { color: #b3261e; font-weight: 600; } .good { color: #1a7f4b; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: #5b6876; }
.bar { background: #e7ebf0; border-radius: 6px; height: 14px; overflow: hidden; }
.bar i { display: block; height: 100%; background: #2f6fb2; } .bar i.near { background: #b3261e; }
@media (prefers-color-scheme: dark) {
  body { background: #14191f; color: #e4e9ef; } .tile, th, td { border-color: #2c3641; }
  .sub, .tile span, th, svg text { color: #9aa7b5; fill: #9aa7b5; } .bar { background: #2c3641; }
}
"""

_COLOURS = {"private": "#2f6fb2", "received": "#c2690c", "proxy": "#7a8794"}


def page(status: dict[str, Any]) -> str:
    """The page for a site's status."""
    title = f"{status['name']} of {status['federation']}"
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="sub">{_text(_standing(status))}</p>',
        _tiles(status),
        f"<h2>{_text(status['measure'])} on this site's own test examples</h2>",
        _curves(status["history"]),
        "<h2>Privacy</h2>",
        _budget(status["privacy"]),
        "<h2>Peers</h2>",
        _peers(status["peers"]),
        "<h2>Events since the start</h2>",
        _events(status["events"]),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="5">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _standing(status: dict[str, Any]) -> str:
    running = "running" if status["running"] else "not running"
    return f"{running}, {status['state']}; manifest version {status['version']}"


def _tiles(status: dict[str, Any]) -> str:
    last = status["history"][-1] if status["history"] else {}
    heard = (
        "-" if last.get("asked") is None else f"{last['heard']} of {last['asked']}"
    )
    tiles = [
        (f"{status['round']} of {status['rounds']}", "rounds"),
        (_number(last.get("private")), f"private {status['measure']}"),
        (heard, "senders heard last round"),
        (f"{status['weight']:.4g}", "weight held"),
        (f"{status['in_flight']:.4g}", "weight on its way out"),
        (f"{status['waiting']:.4g}", "weight waiting to be added"),
    ]
    drawn = [
        f'<div class="tile"><b>{_text(a)}</b><span>{_text(b)}</span></div>'
        for a, b in tiles
    ]
    return f'<div class="tiles">{"".join(drawn)}</div>'


def _curves(history: Sequence[dict[str, Any]]) -> str:
    if len(history) < 2:
        return '<p class="sub">After two rounds there is something to draw.</p>'
    values = []
    for role in _COLOURS:
        values += [point[role] for point in history if point[role] is not None]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    first, last = history[0]["round"], history[-1]["round"]
    drawn = [_axis(low, high, first, last)]
    for at, (role, colour) in enumerate(_COLOURS.items()):
        points = []
        for point in history:
            if point[role] is None:
                continue
            x = MARGIN + (WIDTH - 2 * MARGIN) * (point["round"] - first) / max(
                1, last - first
            )
            y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (point[role] - low) / span
            points.append(f"{x:.1f},{y:.1f}")
        line = " ".join(points)
        drawn.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        drawn.append(_legend(at, role, colour))
    opening = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="curves">'
    return opening + "".join(drawn) + "</svg>"


def _legend(at: int, role: str, colour: str) -> str:
    x = MARGIN + 110 * at
    return (
        f'<rect x="{x}" y="8" width="12" height="4" fill="{colour}"/>'
        f'<text x="{x + 17}" y="14">{role}</text>'
    )


def _axis(low: float, high: float, first: int, last: int) -> str:
    bottom = HEIGHT - MARGIN
    return (
        f'<line x1="{MARGIN}" y1="{bottom}" x2="{WIDTH - MARGIN}" y2="{bottom}" stroke="#9aa7b5"/>'
        f'<text x="2" y="{bottom}">{low:.2f}</text><text x="2" y="{MARGIN + 4}">{high:.2f}</text>'
        f'<text x="{MARGIN}" y="{HEIGHT - 18}">round {first + 1}</text>'
        f'<text x="{WIDTH - MARGIN - 48}" y="{HEIGHT - 18}">round {last + 1}</text>'
    )


def _budget(privacy: dict[str, Any]) -> str:
    spent, budget = privacy["epsilon"], privacy["budget"]
    sentence = f"<p>{_text(privacy['sentence'])}</p>"
    if spent is None or budget is None:
        return sentence
    part = min(1.0, spent / budget)
    near = ' class="near"' if part > 0.9 else ""
    return (
        f'{sentence}<div class="bar"><i{near} style="width:{100 * part:.1f}%"></i></div>'
        f'<p class="sub">{100 * part:.0f} % of the budget of {budget:g}. At the end of it the site '
        "hands its mass on and leaves.</p>"
    )


def _peers(peers: Sequence[dict[str, Any]]) -> str:
    lines = []
    for peer in peers:
        ago = peer["seconds_since_contact"]
        if ago is None:
            contact = '<span class="bad">never</span>'
        else:
            kind = "good" if ago < 60 else "bad"
            contact = f'<span class="{kind}">{ago:.0f} s ago</span>'
        cells = [peer["name"], peer["state"], peer["round"], peer["owed"]]
        lines.append(
            "".join(f"<td>{_text(cell)}</td>" for cell in cells)
            + f"<td>{contact}</td>"
        )
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    titles = ("site", "state", "round", "shares owed to it", "last contact")
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _events(events: dict[str, int]) -> str:
    rows = "".join(
        f"<tr><td>{_text(event)}</td><td>{count}</td></tr>"
        for event, count in sorted(events.items())
    )
    return f"<table><tr><th>event</th><th>times</th></tr>{rows}</table>"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
