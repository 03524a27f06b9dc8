"""The end of a run in at most 30 lines, whatever the number of sites: the verdict first, then the
sites that gain and lose most, the methods, and what to do next. ``--explain`` shows the rest."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from proxyfl._command import command
from proxyfl.measures import title_of
from proxyfl.records.answers import Answer, Question, answers
from proxyfl.records.certainty import answer_interval, one_class_only
from proxyfl.records.glance import compared_with_alone, cost
from proxyfl.records.groups import Group, groups
from proxyfl.records.run import Run
from proxyfl.records.verdict import between, noun_of, points, verdict

MOST_SITES = 5
"""Sites that are shown at either end."""

MOST_METHODS = 8


def show_verdict(runs: Sequence[Run], out: Path | None, console: Console | None = None) -> None:
    """Print what the runs, which differ in their seed alone, say of joining."""
    console = console or Console()
    (group, *_) = groups(runs)
    measure = runs[0].measure
    compared_methods = answers(group, Question(measure))
    compared = compared_with_alone(compared_methods)
    if compared:
        statement = verdict(compared[0])
        console.print(f"{compared[0].method}: {statement.headline}", style="bold", highlight=False)
        console.print(" ".join(statement.lede), highlight=False, markup=False)
        for line in statement.advice:
            console.print(line, style="dim", highlight=False, soft_wrap=True)
        console.print()
        for line in _sites(compared[0], console.width):
            console.print(line, highlight=False, markup=False)
    elif "alone" not in group.methods:
        text = "Not compared with training alone: add `alone` to methods to see what joining is "
        console.print(f"{text}worth.")
    console.print()
    for line in _methods(compared_methods, console.width):
        console.print(line, highlight=False, markup=False, no_wrap=True)
    for line in _warnings(group):
        console.print(line, highlight=False, markup=False)
    console.print(
        "A simulation: it says what a real run would cost, and protects nobody.",
        style="dim",
        highlight=False,
    )
    if out is not None:
        for line in (f"Recorded in {out}", f"Next: {command('report', out)}"):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print("      --explain shows all tables and what the words mean", highlight=False)


def _sites(one: Answer, width: int) -> Iterable[str]:
    """The sites that gain most and those that gain least, one line each."""
    names = one.group.clients
    noun = noun_of(one.group)
    rows = []
    for client, gain in one.by_client().items():
        joined = [value for (_, who), value in one.scores.items() if who == client]
        if not joined:
            joined = list(one.scores.values())
        ends = answer_interval(one, client)
        spread = "" if ends is None else between(ends)
        gained = points(gain.mean)
        if gain.mean == 0 and ends is not None and ends[0] == ends[1] == 0:
            gained, spread = "", "no change"  # an interval without width says nothing
        score = f"{sum(joined) / len(joined):.3f}"
        name = names.get(client, f"client {client}")
        rows.append((gain.mean, name, score, gained, spread))
    rows.sort(key=lambda row: (-row[0], row[1]))
    room = max(12, min(28, width - 46))
    shown = [*rows[:MOST_SITES], None, *rows[-MOST_SITES:]] if len(rows) > 11 else rows
    title = f"{title_of(one.asked.measure)}"
    yield f"{noun:{room}}  {title[:12]:>12}  {'gain':>6}  95 % interval"
    for row in shown:
        if row is None:
            yield f"... and {len(rows) - 2 * MOST_SITES} {noun}s between"
            continue
        _, name, score, gain_words, spread = row
        cut = name if len(name) <= room else f"{name[: room - 3]}..."
        yield f"{cut:{room}}  {score:>12}  {gain_words:>6}  {spread}"


def _methods(compared: Sequence[Answer], width: int) -> Iterable[str]:
    """Every method: its mean score, its gain, its epsilon with its kind."""
    room = max((len(one.method) for one in compared), default=6)
    room = min(room, max(8, width - 52))
    for one in compared[:MOST_METHODS]:
        name = one.method if len(one.method) <= room else f"{one.method[: room - 3]}..."
        gain = "" if one.gain is None or one.method == "alone" else points(one.gain.mean)
        yield f"{name:{room}}  {one.score.mean:.3f}  {gain:>6}  {cost(one)}"
    if len(compared) > MOST_METHODS:
        yield f"... and {len(compared) - MOST_METHODS} more"


def _warnings(group: Group) -> Iterable[str]:
    """Models that say one class only: the first, and how many more."""
    sentences = []
    for run in group.runs:
        for name, client, label in one_class_only(run):
            who = run.clients.get(client, f"client {client}")
            sentences.append(
                f"{name}, {who}: the model kept says {label!r} for every test example."
            )
    yield from sentences[:1]
    if len(sentences) > 1:
        yield f"The same holds for {len(sentences) - 1} more models."
