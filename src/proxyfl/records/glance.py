"""A run at a glance, for ``repr`` and notebooks: the verdict and a line per method.

Guarantees:
    * at most ten methods are shown, so that neither grows with rows or clients;
    * no run is too incomplete or too odd to be shown: what cannot be summed up is said to be so;
    * the HTML is escaped: names of files, sites, methods and classes are other people's words.
"""

from collections.abc import Sequence
from html import escape

from proxyfl.errors import ProxyFLError
from proxyfl.measures import title_of
from proxyfl.privacy.guarantee import Kind, brief
from proxyfl.records.answers import Answer, Question, answers
from proxyfl.records.groups import groups
from proxyfl.records.run import Run
from proxyfl.records.verdict import points, verdict

MOST_METHODS = 10

MOST_CHARACTERS = 60
"""Characters of a name that are shown."""

_FIRST = ("proxyfl", "proxysum")
"""The methods that a verdict is about, if a run has them."""


def compared_with_alone(all_methods: Sequence[Answer]) -> list[Answer]:
    """The methods that share and have gains; the one that a verdict is about comes first."""
    compared = [one for one in all_methods if one.shares and one.gain is not None]
    return sorted(compared, key=lambda one: _FIRST.index(one.method) if one.method in _FIRST else 9)


def cost(one: Answer) -> str:
    """The cost of a method in privacy: epsilon, unit and kind."""
    if one.epsilon.kind is not Kind.NONE:
        return f"epsilon {brief(one.epsilon.best)} per {one.epsilon.unit.noun}, {one.epsilon.kind}"
    return "no privacy" if one.shares or one.pooled else "not shared"


def as_text(run: Run) -> str:
    """Two lines: which run it is, and its verdict."""
    where = run.name if run.path is None else str(run.path)
    return f"<Run {_short(where)}: {_state(run)}.\n {_headline(run)}>"


def as_html(run: Run) -> str:
    """The same, and a table of the methods."""
    rows = []
    compared = _answers(run)
    for one in compared[:MOST_METHODS]:
        is_compared = one.gain is not None and one.method != "alone"
        gain = points(one.gain.mean) if is_compared and one.gain is not None else ""
        cells = (_short(one.method), f"{one.score.mean:.3f}", gain, cost(one))
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    table = ""
    if rows:
        titles = ("method", title_of(run.measure), "gain over alone (points)", "privacy")
        heads = "".join(f"<th>{escape(title)}</th>" for title in titles)
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    if len(compared) > MOST_METHODS:
        table += f"<p>and {len(compared) - MOST_METHODS} more methods</p>"
    headline = escape(_headline(run))
    about = escape(f"Run {_short(run.name)}: {_state(run)}.")
    return f"<div><p><strong>{headline}</strong></p>{table}<p>{about}</p></div>"


def _state(run: Run) -> str:
    """``finished, 3 methods, 8 clients, 20 rounds``."""
    state = "finished" if run.finished else "not finished"
    try:
        sizes = {"method": len(run.methods), "client": len(run.clients), "round": run.rounds}
    except _ODD:
        return state
    words = [f"{number} {noun}{'' if number == 1 else 's'}" for noun, number in sizes.items()]
    return ", ".join((state, *words))


def _headline(run: Run) -> str:
    """The verdict's first sentence, or why there is none."""
    if not run.rows:
        return "Nothing is recorded yet."
    try:
        compared = compared_with_alone(_answers(run, raising=True))
        if compared:
            return f"{_short(compared[0].method)}: {verdict(compared[0]).headline}"
    except _ODD as error:
        return f"It cannot be summed up: {_short(str(error))}"
    if "alone" not in run.methods:
        return "Not compared with training alone: add `alone` to methods."
    return "Nothing was scored of a method that shares, so there is no verdict."


def _answers(run: Run, *, raising: bool = False) -> list[Answer]:
    """What each method reached; none if the run's records do not say."""
    try:
        (group,) = groups([run])
        return answers(group, Question(run.measure))
    except _ODD:
        if raising:
            raise
        return []


def _short(text: str) -> str:
    """A name on one line, cut if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."


_ODD = (ProxyFLError, LookupError, TypeError, ValueError, AttributeError)
"""What records of another release, or damaged ones, may raise. A ``repr`` that raises hides what a
debugger was opened for."""
