"""The end of a run in words and tables: what each model reached, at which price, and who gained by
joining. The numbers are those of ``records``."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl._command import command
from proxyfl._terminal.layouts import airy, first_that_fits, frame, natural_width
from proxyfl.cli.terminal import kept
from proxyfl.measures import title_of
from proxyfl.privacy.guarantee import Epsilon, Kind, brief, largest, shown
from proxyfl.records.answers import Answer, Question, Spread, answer, spread
from proxyfl.records.certainty import answer_interval, is_within_noise, warnings
from proxyfl.records.groups import groups
from proxyfl.records.judged import judged
from proxyfl.records.row import ROLES
from proxyfl.records.run import Run

_WIDE = ("method", "model", "score", "other", "epsilon", "delta", "kind")
_NARROW = ("method", "model", "score", "epsilon", "kind")
"""The columns. The delta is also said below the table; an epsilon is never without its kind."""

_NOTES = 30
"""Notes that are printed; a run's folder has them all."""

_SHORT = {"macro_accuracy": "macro", "accuracy": "acc."}


def show_result(run: Run, console: Console | None = None) -> None:
    """Print the comparison of methods, then each client's gain or loss against ``alone``, then
    where it all lies."""
    console = console or Console()
    console.print(_comparison(run, console))
    for line in _legend(run):
        console.print(line, style="dim italic", highlight=False)
    console.print()
    scored = [name for name in run.methods if run.scored_after(name)]
    if "alone" in scored and len(scored) > 1:
        for table in _gains(run, scored, console):
            console.print(table)
            console.print()
        for line in (*verdicts(run), *warnings(run)):
            console.print(line, highlight=False, markup=False)
    elif "alone" not in scored:
        console.print(
            "Not compared with training alone: add `alone` to methods to see what joining is worth."
        )
    for table in _clinical(run):
        console.print()
        console.print(table)
    for line in _explanations(run):
        console.print(line, style="dim", highlight=False)
    if run.path is not None:
        lines = (
            f"Recorded in {run.path}",
            f"Next: {command('report', run.path)}        a page about this run",
            f"      {command('table', run.path, '--show', 'confusion')}    "
            "or calibration, sites, measures",
            f"      {command('predict', run.path, '--client', 0, 'FILE')}    use a client's model",
        )
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def show_notes(notes: Sequence[str], console: Console | None = None) -> None:
    """Print how the data were read: what was clipped, left out or taken for something else."""
    console = console or Console()
    for note in notes[:_NOTES]:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    if len(notes) > _NOTES:
        console.print(
            f"and {len(notes) - _NOTES} more notes; the run's environment.json has them all",
            highlight=False,
        )


def verdicts(run: Run) -> list[str]:
    """One honest sentence per method that shares: how many clients gain, and how much on
    average."""
    (group,) = groups([run])
    sentences = []
    for name in run.methods:
        one = answer(group, name, Question(run.measure))
        if one is not None and one.shares and one.gain is not None:
            sentences.append(_verdict(one, one.gain))
    return sentences


def _verdict(one: Answer, gain: Spread) -> str:
    interval = answer_interval(one)
    when = "" if one.after is None else f" after {one.after} rounds"
    average = f"they {_on_average(gain.mean)}"
    if is_within_noise(interval):
        average = f"the difference of {gain.mean * 100:+.1f} points is within noise"
    sentence = (
        f"{one.method}: {one.gaining} of {gain.n} clients end above training alone{when}, "
        f"{one.losing} below; on average {average} "
        f"({gain.low * 100:+.1f} to {gain.high * 100:+.1f})."
    )
    if interval is None:
        return sentence
    low, high = interval
    return f"{sentence} 95 % interval of the average: {low * 100:+.1f} to {high * 100:+.1f}."


def _on_average(gain: float) -> str:
    points = f"{abs(gain) * 100:.1f} points"
    if points == "0.0 points":
        return "neither gain nor lose"
    return f"gain {points}" if gain > 0 else f"lose {points}"


def _comparison(run: Run, console: Console) -> Table:
    title = f"Test {title_of(run.measure)}, mean over clients (standard deviation)"
    wide = _comparison_table(run, frame(title), _WIDE)
    narrow = _comparison_table(run, airy(title), _NARROW)
    return first_that_fits(console, (wide, narrow))


def _comparison_table(run: Run, table: Table, columns: Sequence[str]) -> Table:
    other = next(name for name in _SHORT if name != run.measure)
    titles = {"score": title_of(run.measure), "other": _SHORT[other]}
    for column in columns:
        numeric = column in ("score", "other", "epsilon")
        table.add_column(
            titles.get(column, column),
            justify="right" if numeric else "left",
            no_wrap=column != "method",
            overflow="fold",
        )
    for name in run.methods:
        for role in ROLES:
            cells = _cells(run, name, role, other)
            if cells:
                shown = [cells[column] for column in columns]
                is_kept = role == run.method(name).keeps
                table.add_row(*shown, style="bold" if is_kept else None)
    return table


def _cells(run: Run, name: str, role: str, other: str) -> dict[str, str]:
    """The cells of a model's row; empty if it has no score."""
    scores = _scores(run, name, role, run.measure)
    if scores is None:
        return {}
    also = _scores(run, name, role, other)
    method = run.method(name)
    shared = role != "private"
    if not method.mutual:
        shared = method.shares or method.pooled
    return {
        "method": escape(name),
        "model": role,
        "score": _format(scores),
        "other": "" if also is None else f"{also.mean:.3f}",
        **_cost(run.epsilon(name), shared=shared),
    }


def _scores(run: Run, name: str, role: str, measure: str) -> Spread | None:
    values = []
    for client in run.clients_of(name):
        value = run.kept(name, client, measure, role=role)
        if value is not None:
            values.append(value)
    return spread(values) if values else None


def _cost(spent: Epsilon | None, *, shared: bool) -> dict[str, str]:
    """The cost of releases: a private model is never released, but the proxy it learnt beside
    is."""
    if spent is None or spent.kind is Kind.NONE:
        if not shared:
            return {"epsilon": "", "delta": "", "kind": "not shared"}
        return {"epsilon": "inf", "delta": "", "kind": "no DP"}
    return {"epsilon": brief(spent.best), "delta": f"{spent.delta:.1e}", "kind": str(spent.kind)}


def _gains(run: Run, scored: Sequence[str], console: Console) -> list[Table]:
    """The gain of each client: one table where it fits, else several with some methods each."""
    title = f"What each client gains over training alone ({title_of(run.measure)} points)"
    others = [name for name in scored if name != "alone"]
    whole = _gain_table(run, frame(title), ["examples", "alone", *others], console)
    if natural_width(console, whole) <= console.width:
        return [whole]
    parts: list[list[str]] = [["alone"]]
    for name in others:
        wider = _gain_table(run, airy(), [*parts[-1], name], console)
        if parts[-1] and natural_width(console, wider) > console.width:
            parts.append([])
        parts[-1].append(name)
    tables: list[Table] = []
    for part in parts:
        heading = None if tables else title
        tables.append(_gain_table(run, airy(heading), part, console))
    return tables


def _gain_table(run: Run, table: Table, columns: Sequence[str], console: Console) -> Table:
    # A long name continues in the next line rather than push the numbers out.
    table.add_column("client", overflow="fold", max_width=max(8, console.width // 4))
    for column in columns:
        table.add_column(escape(column), justify="right", no_wrap=True)
    listed = run.described
    for client, name in run.clients.items():
        alone = run.kept("alone", client)
        cells = {"alone": "" if alone is None else f"{alone:.3f}", "examples": ""}
        if client < len(listed):
            cells["examples"] = str(listed[client]["examples"])
        for column in columns:
            if column not in cells:
                cells[column] = _format_gain(run.gain(column, client))
        shown = [cells[column] for column in columns]
        table.add_row(escape(name), *shown)
    return table


def _legend(run: Run) -> Iterable[str]:
    yield "bold: what an institution keeps; macro: mean of the classes' accuracies"
    yield "proxy: after local training; received: after the exchange"
    spent = _epsilons(run)
    deltas = sorted({f"{one.delta:.1e}" for one in spent}, key=float)
    if deltas:
        span = deltas[0] if len(deltas) == 1 else f"{deltas[0]} to {deltas[-1]}"
        units = " or ".join(sorted({one.unit for one in spent}))
        yield (f"epsilon: what sharing cost per {units}, largest over clients, at delta {span}")


def _clinical(run: Run) -> Iterable[Table]:
    """The measures that a clinician or a bank reads next to the gain.

    With two classes every measure; where clients are sites, also each on its own test part."""
    if len(run.classes) == 2:
        yield kept.measures(run)
    if any(one.on == "own" for one in judged(run)):
        yield kept.sites(run)


def _explanations(run: Run) -> Iterable[str]:
    spent = _epsilons(run)
    kinds = {one.kind for one in spent}
    for kind in (Kind.END_TO_END, Kind.CONDITIONAL):
        if kind in kinds:
            yield kind.sentence
    for relation in sorted({one.relation for one in spent}):
        yield relation.sentence
    for unit in sorted({one.unit for one in spent}):
        yield unit.sentence
    yield from _coalitions(run)
    weak = [one for one in spent if one.weak]
    if weak:
        weakest = shown(largest(weak).best, 0)
        yield f"An epsilon of {weakest} is a weak guarantee: it rules out very little."
    yield (
        "A simulation: its noise can be recomputed from the seed, so these epsilons say what a "
        "real run would cost."
    )


def _coalitions(run: Run) -> Iterable[str]:
    """Against whom the methods' epsilons hold."""
    by_promise: dict[tuple[str, ...], list[str]] = {}
    for name in run.methods:
        spent = run.epsilon(name)
        if spent is not None and spent.sentences:
            by_promise.setdefault(spent.sentences, []).append(name)
    for sentences, names in by_promise.items():
        yield f"{escape(', '.join(names))}: {' '.join(sentences)}"


def _epsilons(run: Run) -> list[Epsilon]:
    """The epsilon of every client under every method that trains with DP."""
    epsilons = []
    for name in run.methods:
        for client in run.clients_of(name):
            spent = run.spent(name, client)
            if spent is not None and spent.kind is not Kind.NONE:
                epsilons.append(spent)
    return epsilons


def _format(values: Spread) -> str:
    if values.std is None:
        return f"{values.mean:.3f}"
    return f"{values.mean:.3f} ({values.std:.3f})"


def _format_gain(gain: float | None) -> str:
    if gain is None:
        return ""
    colour = "default"
    if gain > 0:
        colour = "green"
    elif gain < 0:
        colour = "red"
    return f"[{colour}]{gain * 100:+.1f}[/]"
