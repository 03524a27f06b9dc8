"""The live page of `proxyfl federation try`: the sites, what travels, rounds, epsilon and gains as
they come, on loopback.

The page asks for its body once a second and shows it; all of it is drawn here. At the end the same
page is written to the trial's folder, where it asks nobody.
"""

import threading
import time
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from proxyfl import _loopback
from proxyfl.measures import title_of
from proxyfl.privacy.guarantee import shown
from proxyfl.records.verdict import points
from proxyfl.report.marks import Line, cells, frame, plot, text

if TYPE_CHECKING:
    from proxyfl.node.trial import Progress

ASKED_SECONDS = 3.0
"""Who has asked within this time still looks at the page."""

_COLOURS = ("accent", "ink", "good", "warn", "quiet")
_DASHES = ("none", "7 4", "2 4", "10 3 2 3")
LAST = '<i id="last"></i>'
"""The mark of the last body: nothing follows."""

_SCRIPT = """<script>
async function follow() {
  try {
    const answer = await fetch("/body");
    if (answer.ok) document.getElementById("main").innerHTML = await answer.text();
    if (document.getElementById("last")) return;
  } catch { return; }
  setTimeout(follow, 1000);
}
setTimeout(follow, 1000);
</script>"""


def body(
    sites: "Sequence[Progress]",
    *,
    rounds: int,
    measure: str,
    phase: str,
    ended: bool = False,
    next_commands: Sequence[str] = (),
) -> str:
    """What the page shows now. ``phase`` is a sentence about what happens; without ``sites`` they
    are still being made."""
    done = min((site.rounds for site in sites), default=0)
    parts = [
        '<section id="answer"><p class="kick">Real keys, mutual '
        "TLS 1.3, one process for each site, on this machine</p>",
        f"<h1>{_headline(sites, ended=ended)}</h1>",
        f'<p class="lede">{text(phase)}</p></section>',
    ]
    if next_commands:
        lines = "".join(f"<li><code>{text(line)}</code></li>" for line in next_commands)
        parts.append(f'<section class="card mini"><h2>Next</h2><ul>{lines}</ul></section>')
    parts.append('<div class="grid">')
    if rounds:
        parts.append(
            f'<section class="card c12"><h2>Round {done} of {rounds}</h2>'
            f"{cells(done, rounds, running=not ended)}</section>"
        )
    width = "c6" if len(sites) in (2, 4) else "c4"
    parts += [_card(site, measure, rounds, width, running=not ended) for site in sites]
    parts += [_travels(sites), _chart(sites, measure, rounds), "</div>"]
    return "".join(parts)


def page(content: str, *, live: bool) -> str:
    """A whole page around a body; with ``live`` it asks for the next one."""
    badge = '<span class="badge acc">live</span>' if live else '<span class="badge">ended</span>'
    drawn = frame(
        "Federation on this machine", "Federation on this machine", badge, "public data", content
    )
    return drawn.replace("</body>", f"{_SCRIPT}</body>") if live else drawn


def _headline(sites: "Sequence[Progress]", *, ended: bool) -> str:
    gains = _gains(sites)
    if sites and len(gains) == len(sites):
        mean = points(sum(gains) / len(gains))
        better = sum(gain > 0 for gain in gains)
        who = f"All {len(gains)} gain" if better == len(gains) else f"{better} of {len(gains)} gain"
        way = "loses" if mean.startswith("−") else "gains"  # noqa: RUF001  # a true minus
        return (
            f"{len(sites)} sites trained together. "
            f'Joining: <span class="{way}">{mean} points</span> in the mean. {who}.'
        )
    if ended:
        return "The federation has ended before all sites knew their gain."
    if any(site.rounds for site in sites):
        return f"{len(sites)} sites train together. None has shown its records."
    return "A federation starts."


def _gains(sites: "Sequence[Progress]") -> list[float]:
    gains = []
    for site in sites:
        outcome = site.outcome
        if outcome is not None and outcome.alone is not None and outcome.joined is not None:
            gains.append(outcome.joined - outcome.alone)
    return gains


def _card(site: "Progress", measure: str, rounds: int, width: str, *, running: bool) -> str:
    big = "<small>starting</small>"
    way = ""
    if site.scores:
        big = f"{site.scores[-1]:.3f} <small>{text(title_of(measure))} so far</small>"
    gains = _gains([site])
    if gains:
        way = "up" if gains[0] >= 0 else "down"
        big = f"{points(gains[0])} <small>points over alone</small>"
    facts = [("Private model", text(site.architecture)), ("Round", f"{site.rounds} of {rounds}")]
    if site.outcome is not None and gains:
        facts.append(("Alone, joined", f"{site.outcome.alone:.3f}, {site.outcome.joined:.3f}"))
    if site.spent:
        facts.append(("Epsilon spent", shown(site.spent[-1], 2)))
    if site.outcome is not None:
        facts.append(("Kind of epsilon", text(site.outcome.epsilon.kind)))
    facts.append(("Left this site", f"{site.messages} proxies, {_size(site.bytes_sent)}"))
    lines = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    link = ""
    if running and site.rounds and site.outcome is None:
        address = f"http://{_loopback.LOOPBACK}:{site.status_port}/"
        link = f'<a class="more" href="{address}" target="_blank">Its status page</a>'
    return (
        f'<section class="card {width}"><h2>{text(site.name)}</h2><p class="big {way}">{big}</p>'
        f'<dl class="lines">{lines}</dl>'
        f'<p class="say sign good">{site.examples} records stay here, and the private model</p>'
        f"{link}</section>"
    )


def _travels(sites: "Sequence[Progress]") -> str:
    sent = sum(site.messages for site in sites)
    size = sum(site.bytes_sent for site in sites)
    each = f" Each takes {_size(size / sent)}." if sent else ""
    return (
        '<section class="card c12"><h2>What travels</h2><ul class="ticks">'
        f"<li><span>Proxies, trained with DP-SGD: {sent} so far, {_size(size)}, each "
        f"from one site to another over mutual TLS.{each}</span></li>"
        "<li><span>Records and private models stay where they are. There is no server.</span></li>"
        "<li><span>Each round of training costs epsilon, which each site counts in its own "
        "ledger.</span></li></ul></section>"
    )


def _chart(sites: "Sequence[Progress]", measure: str, rounds: int) -> str:
    lines = []
    for at, site in enumerate(sites):
        curve = [(float(number), score) for number, score in enumerate(site.scores, 1)]
        if curve:
            colour = _COLOURS[at % len(_COLOURS)]
            dash = _DASHES[at // len(_COLOURS) % len(_DASHES)]
            lines.append(Line(site.name, curve, colour, dash))
    title = f"Private models by round: {title_of(measure)}"
    content = '<p class="empty">The first round appears here.</p>'
    if lines:
        content = plot(title, lines, max(rounds, 2))
    note = "Each site then trains its model alone for as many steps: the gain is the difference."
    return (
        f'<section class="card c12"><h2>{text(title)}</h2><p class="sub">{note}</p>{content}'
        "</section>"
    )


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


class TrialServer(_loopback.Server):
    """Serves a trial's page on a free port of loopback. Use it as a context manager."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self.draw = draw
        self.asked: float | None = None
        self.ended = threading.Event()
        self.told = threading.Event()
        super().__init__(_Handler)

    def end(self) -> None:
        """Everybody who looks at the page gets its last state before the server stops."""
        self.ended.set()
        if self.asked is not None and time.monotonic() - self.asked < ASKED_SECONDS:
            self.told.wait(ASKED_SECONDS)


class _Handler(_loopback.Handler):
    server: TrialServer
    extra_headers = MappingProxyType(
        {
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
        }
    )

    def answer(self, path: str, query: _loopback.Query) -> None:
        """Answer with the page, or with its body."""
        if path not in ("/", "/body"):
            self.send_missing("There is /")
            return
        is_last = self.server.ended.is_set()
        drawn = self.server.draw()
        self.server.asked = time.monotonic()
        if path == "/":
            self.send_text(page(drawn, live=True), _loopback.HTML)
            return
        self.send_text(drawn + (LAST if is_last else ""), _loopback.HTML)
        if is_last:
            self.server.told.set()
