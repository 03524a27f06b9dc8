"""A site's status as one page, in the report's style and colours, drawn from a status alone.

The first screen is for the person who answers for the data: is all well, what is there to do, how
long does it take, what was gained, what did it cost. What only an administrator knows, such as
weights, is one click further, in the details.

Unlike the report it has no scripts: it is served where a site's keys are, under a policy that lets
a browser run nothing.
"""

import time
from collections.abc import Iterable, Sequence

from proxyfl._files import Document
from proxyfl.measures import better_by, is_lower_better, title_of
from proxyfl.node.observe.verdict import duration
from proxyfl.privacy.guarantee import WEAK, shown
from proxyfl.report.marks import Line, cells, frame, gauge, plot, text

REFRESH_SECONDS = 5

_STATES = {
    "never-heard": "not heard yet",
    "unreachable": "silent",
    "refuses": "refuses us",
    "old-backup": "must rejoin",
    "other-manifest": "other manifest",
    "manifest-behind": "must accept",
    "manifest-ahead": "newer manifest",
    "restarts": "restarts",
    "stopped": "stopped",
    "joins-later": "joins later",
    "finished": "finished",
    "left": "has left",
}
"""A peer's state in two words, by its reason's code."""
_NO_FAULT = ("joins-later", "finished", "left")


def page(status: Document, *, with_details: bool = False) -> str:
    """The page for a site's status; ``with_details`` unfolds what administrators look at."""
    verdict = status["verdict"]
    first, _, rest = verdict.partition(":")
    badge = '<span class="badge good">all is well</span>'
    if not status["well"]:
        badge = '<span class="badge bad">needs you</span>'
    body = [
        f'<section id="answer" class="{"well" if status["well"] else "needs"}">',
        f'<p class="kick">{text(_standing(status))}</p>',
        f"<h1><em>{text(first)}:</em>{text(rest)}</h1>",
        f'<p class="lede">{_lede(status)}</p></section>',
        _todo(status["alarms"]),
        '<div class="grid">',
        _progress(status),
        _score(status),
        _privacy(status),
        _peers(status["peers"], running=status["running"]),
        "</div>",
        _details(status) if with_details else _link("/details", "Details for administrators"),
    ]
    body.append(
        f'<footer><p>This machine only. For programs: <a href="/status.json">/status.json</a>, '
        f'<a href="/metrics">/metrics</a>. proxyfl {text(status["release"])}</p></footer>'
    )
    title = f"{status['name']} in {status['federation']}"
    mark = "" if status["well"] else "(!) "
    return frame(
        f"{mark}{title}",
        title,
        badge,
        f"manifest {status['version']} · {status['hash'][:8]} · this machine only",
        "\n".join(body),
        refresh=REFRESH_SECONDS,
    )


def _standing(status: Document) -> str:
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status["time"]))
    return f"{'Running' if status['running'] else 'Not running'} · as of {now}"


def _lede(status: Document) -> str:
    """What is not in danger, or what there is to know."""
    alone, last = status["alone"], _last(status, "private")
    parts = []
    gain = better_by(status["measure"], last, alone)
    if gain is not None:
        verb = "gains" if gain >= 0 else "loses"
        parts.append(f"This site {verb} {_points(status, abs(gain))} from joining.")
    privacy = status["privacy"]
    budget, spent = privacy["budget"], privacy["epsilon"]
    if spent is not None and budget is not None and status["well"]:
        parts.append(f"Privacy spent: epsilon {shown(spent, 2)} of a budget of {budget:g}.")
    if status["ended_because"] is not None:
        parts.append(status["ended_because"]["text"])
    parts.append("Records and the private model stay here.")
    parts.append("Nothing to do." if status["well"] else "See what to do.")
    return text(" ".join(parts))


def _todo(alarms: Sequence[Document]) -> str:
    if not alarms:
        return ""
    steps = []
    for alarm in alarms:
        line = f"<br><code>{text(alarm['command'])}</code>" if alarm["command"] else ""
        steps.append(f"<li>{text(alarm['text'])}{line}</li>")
    return f'<section class="card todo-card"><h2>What to do</h2><ol>{"".join(steps)}</ol></section>'


def _progress(status: Document) -> str:
    done, rounds, settle = status["round"], status["rounds"], status["settle"]
    left = status["seconds_left"]
    ends = ""
    if left is not None:
        at = time.localtime(status["time"] + left)
        today = time.strftime("%F", at) == time.strftime("%F", time.localtime(status["time"]))
        ends = f"ends about {time.strftime('%H:%M' if today else '%Y-%m-%d %H:%M', at)}"
    time_left = "" if left is None else f"{duration(left)} left"
    note = ""
    if settle:
        note = (
            f'<p class="say">Underlined: the last {settle} rounds only mix and cost no privacy.</p>'
        )
    waiting = status["waiting_for"]
    if waiting is not None:
        note += f'<p class="say">Waits now: {text(waiting["text"])}</p>'
    return (
        f'<section class="card c12"><h2>Round {done} of {rounds}</h2>'
        f"{cells(done, rounds, settle=settle, running=status['running'])}"
        f'<p class="ends"><b>{text(time_left)}</b><span>{text(ends)}</span></p>{note}</section>'
    )


def _score(status: Document) -> str:
    """The private model's score over the rounds, against chance and against training alone."""
    measure = status["measure"]
    title = title_of(measure)
    points = _series(status["history"], "private")
    head = "<h2>This site's score</h2>"
    about = f"{title[:1].upper()}{title[1:]} of the private model on this site's own test examples"
    about += "; lower is better." if is_lower_better(measure) else "; higher is better."
    if not points:
        rest = '<p class="empty">The first round that is scored appears here.</p>'
        return f'<section class="card c7">{head}<p class="sub">{text(about)}</p>{rest}</section>'
    lines = [Line("now" if status["running"] else "last", points)]
    if status["alone"] is not None:
        lines.append(Line("alone", (), "ink", level=status["alone"], width=2))
    else:
        about += " Training alone is measured at the end, for comparison."
    if status["chance"] is not None:
        lines.append(Line("chance", (), "quiet", dash="2 4", level=status["chance"], width=1.5))
    gain = better_by(measure, points[-1][1], status["alone"])
    big = f'<p class="big">{points[-1][1]:.3f} <small>{text(title)}, so far</small></p>'
    if gain is not None:
        way = "up" if gain >= 0 else "down"
        sign = "+" if gain >= 0 else "&minus;"
        big = (
            f'<p class="big {way}">{sign}{_points(status, abs(gain), unit=False)} '
            f"<small>{text(_unit(measure))} over alone</small></p>"
        )
    chart = plot(about, lines, max(status["rounds"], 2))
    return f'<section class="card c7">{head}{big}<p class="sub">{text(about)}</p>{chart}</section>'


def _privacy(status: Document) -> str:
    privacy = status["privacy"]
    spent, budget = privacy["epsilon"], privacy["budget"]
    head = "<h2>Privacy budget</h2>"
    if spent is None:
        limit = "No budget is set." if budget is None else f"The budget is epsilon {budget:g}."
        rest = f'<p class="empty">Nothing was spent yet. {limit}</p>'
        return f'<section class="card c5">{head}{rest}</section>'
    if budget:
        done = status["round"] >= status["rounds"]
        picture = gauge(spent, budget, at_end=None if done else status["epsilon_at_end"])
    else:
        strength = "alone-number weak" if spent > WEAK else "alone-number"
        picture = f'<p class="{strength}">{shown(spent, 2)}</p>'
        picture += '<p class="sub">epsilon; no budget is set</p>'
    lines = []
    at_end = status["epsilon_at_end"]
    if at_end is not None and status["round"] < status["rounds"]:
        lines.append(("After the last round (dashed)", f"about {at_end:.2f}"))
    good = "good" if privacy["kind"] == "end-to-end" else "warn"
    lines.append(("Kind", f'<span class="badge {good}">{text(privacy["kind"])}</span>'))
    lines.append(("Protects", f"one {'person' if privacy['unit'] == 'group' else 'record'}"))
    whole = privacy["epsilon_all_others"]
    if whole is None or whole == spent:
        lines.append(("Whoever colludes", shown(spent, 2)))
    else:
        lines.append(("Against the coalition stated", shown(spent, 2)))
        lines.append(("If all others collude", shown(whole, 2)))
    facts = "".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in lines)
    said = "".join(f'<p class="say">{text(sentence)}</p>' for sentence in privacy["against"])
    return f'<section class="card c5">{head}{picture}<dl class="lines">{facts}</dl>{said}</section>'


def _peers(peers: Sequence[Document], *, running: bool) -> str:
    rows = []
    for peer in peers:
        sign, kind, word, why = _about_peer(peer, running=running)
        ago = peer["seconds_since_contact"]
        contact = "" if ago is None else f"Heard {duration(ago)} ago. "
        rows.append(
            f'<li><span class="sign {kind}" aria-hidden="true">{sign}</span>'
            f"<b>{text(peer['name'])}</b>"
            f'<span><span class="badge {kind}">{text(word)}</span></span>'
            f"<span>{text(contact)}{text(why)}</span></li>"
        )
    return (
        '<section class="card c12"><h2>Peers</h2>'
        f'<ul class="people">{"".join(rows) or "<li>There are no others.</li>"}</ul></section>'
    )


def _about_peer(peer: Document, *, running: bool) -> tuple[str, str, str, str]:
    """A peer's sign, its colour, its state in a word or two, and a sentence."""
    reason = peer["held_up"]
    far = f"It has done {peer['round']} rounds."
    if reason is not None:
        code = reason["code"]
        kind = "so" if code in _NO_FAULT else "bad"
        return ("·" if kind == "so" else "!"), kind, _STATES.get(code, code), reason["text"]
    if not running:
        return "·", "so", "not asked", f"This site does not run. {far}"
    if peer["reachable"] is False:
        return "!", "bad", "no answer", far
    return "✓", "good", "here", far


def _details(status: Document) -> str:
    """What an administrator may look for: weights, versions, events."""
    weights = [
        ("held", f"{status['weight']:.4g}"),
        ("on its way out", f"{status['in_flight']:.4g}"),
        ("arrived and not yet added", f"{status['waiting']:.4g}"),
    ]
    rows = []
    for peer in status["peers"]:
        skew = peer["clock_skew"]
        cells = [peer[key] for key in ("name", "state", "round", "owed", "version")]
        cells += [peer["release"] or "unknown", "-" if skew is None else f"{skew:+.1f} s"]
        rows.append([text(cell) for cell in cells])
    titles = ("site", "state", "rounds", "shares owed to it", "manifest", "release", "clock")
    events = [(text(name), str(times)) for name, times in sorted(status["events"].items())]
    parts = [
        _link("/", "Hide the details"),
        '<div class="grid"><section class="card c12"><h2>Peers</h2><div class="scroll">',
        _table(titles, rows),
        '</div></section><section class="card c6"><h2>PushSum weight</h2>',
        _table(("weight", ""), weights),
        _mass(status),
        f'</section><section class="card c6"><h2>Privacy</h2>'
        f'<p class="say">{text(status["privacy"]["sentence"])}</p>'
        "<h3>Events since the start</h3>",
        _table(("event", "times"), events),
        "</section></div>",
    ]
    return "".join(parts)


def _mass(status: Document) -> str:
    lines = []
    for name, key, colour in (
        ("held", "weight", "quiet"),
        ("given", "mass_out", "loss"),
        ("added", "mass_in", "accent"),
    ):
        points = _series(status["history"], key)
        if points:
            lines.append(Line(name, points, colour, width=1.5))
    return plot("Weight by round", lines, max(status["rounds"], 2), digits=2) if lines else ""


def _series(history: Sequence[Document], key: str) -> list[tuple[float, float]]:
    """(round, value) of the rounds that have one."""
    points = []
    for row in history:
        if row.get(key) is not None:
            points.append((float(row["round"] + 1), float(row[key])))
    return points


def _last(status: Document, key: str) -> float | None:
    points = _series(status["history"], key)
    return points[-1][1] if points else None


def _unit(measure: str) -> str:
    """Differences of losses are in the loss's own unit, all others in points of 100."""
    title = title_of(measure)
    return title if is_lower_better(measure) else f"points of {title}"


def _points(status: Document, difference: float, *, unit: bool = True) -> str:
    measure = status["measure"]
    lower = is_lower_better(measure)
    number = f"{difference:.3f}" if lower else f"{100 * difference:.1f}"
    return f"{number} {_unit(measure)}" if unit else number


def _link(address: str, words: str) -> str:
    return f'<a class="more" href="{address}">{text(words)}</a>'


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are markup already."""
    head = "".join(f"<th>{text(title)}</th>" for title in titles)
    body = []
    for row in rows:
        body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
