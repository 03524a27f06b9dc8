"""The end of a run in words and tables: what each model reached, at which price, and who gained by
joining."""

from collections.abc import Callable, Iterable, Sequence
from statistics import mean, pstdev

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl.cli.terminal.layouts import FRAMES, airy, fitting, framed, natural_width, tight
from proxyfl.federation.methods import Role
from proxyfl.federation.rounds import ClientRound
from proxyfl.privacy.guarantee import Epsilon, Kind, brief, largest, shown
from proxyfl.simulation.clients import Site
from proxyfl.simulation.run import Result

_COMPARISONS: tuple[tuple[Callable[[str | None], Table], tuple[str, ...]], ...] = (
    (framed, ("method", "model", "accuracy", "macro", "epsilon", "delta", "kind")),
    (airy, ("method", "model", "accuracy", "macro", "epsilon", "delta", "kind")),
    (airy, ("method", "model", "accuracy", "macro", "epsilon", "kind")),
    (airy, ("method", "model", "accuracy", "epsilon", "kind")),
    (tight, ("method", "model", "mean", "epsilon", "kind")),
)
"""From wide to narrow. The delta is also said below the table; an epsilon without its whole kind
would mislead."""


def show_result(result: Result, sites: Sequence[Site], console: Console | None = None) -> None:
    """Print the comparison of methods, then each client's gain or loss against ``alone``, then
    where it all lies."""
    console = console or Console()
    console.print(_comparison(result, console))
    for line in _legend(result):
        console.print(line, style="dim italic", highlight=False)
    console.print()
    if "alone" in result.final and len(result.final) > 1:
        for table in _gains(result, sites, console):
            console.print(table)
            console.print()
        for line in verdicts(result):
            console.print(line, highlight=False, markup=False)
    elif "alone" not in result.final:
        console.print(
            "Not compared with training alone: add `alone` to methods to see what joining is worth."
        )
    for line in _explanations(result):
        console.print(line, style="dim", highlight=False)
    if result.out is not None:
        console.print(f"Recorded in {result.out}", highlight=False, markup=False, soft_wrap=True)


def verdicts(result: Result) -> list[str]:
    """One honest sentence per method that shares: how many clients gain, and how much on
    average."""
    sentences = []
    for name, method in result.methods.items():
        if method.exchange == "none" or name not in result.final:
            continue
        gains = [result.gain(name, r.client) or 0.0 for r in result.final[name]]
        better, worse = sum(g > 0 for g in gains), sum(g < 0 for g in gains)
        sentences.append(
            f"{name}: {better} of {len(gains)} clients end above training alone, {worse} below; "
            f"on average they "
            f"{_on_average(mean(gains))} ({min(gains) * 100:+.1f} to {max(gains) * 100:+.1f})."
        )
    return sentences


def _on_average(gain: float) -> str:
    points = f"{abs(gain) * 100:.1f} points"
    return (
        "neither gain nor lose"
        if points == "0.0 points"
        else f"{'gain' if gain > 0 else 'lose'} {points}"
    )


def _comparison(result: Result, console: Console) -> Table:
    title = "Test accuracy, mean over clients (standard deviation)"
    return fitting(
        console, (_compared(result, frame(title), columns) for frame, columns in _COMPARISONS)
    )


def _compared(result: Result, table: Table, columns: Sequence[str]) -> Table:
    short = {"mean": "acc.", "epsilon": "eps."} if "mean" in columns else {}
    for column in columns:
        numeric = column in ("accuracy", "mean", "macro", "epsilon")
        table.add_column(
            short.get(column, column),
            justify="right" if numeric else "left",
            no_wrap=column != "method",
            overflow="fold",
        )
    for name, records in result.final.items():
        for role in records[0].scores:
            accuracies = [r.scores[role].accuracy for r in records if role in r.scores]
            macros = [r.scores[role].macro_accuracy for r in records if role in r.scores]
            scores = {
                "accuracy": _spread(accuracies),
                "mean": f"{mean(accuracies):.3f}",
                "macro": f"{mean(macros):.3f}",
            }
            cells = {"method": escape(name), "model": role} | scores | _cost(records, role)
            kept = role == result.methods[name].keeps
            table.add_row(*(cells[column] for column in columns), style="bold" if kept else None)
    return table


def _cost(records: Sequence[ClientRound], role: Role) -> dict[str, str]:
    """What releases cost: a private model is never released, but the proxy it learnt beside is."""
    worst = largest(r.epsilon for r in records)
    if worst.kind is Kind.NONE:
        shared = role != "private"
        return {
            "epsilon": "inf" if shared else "",
            "delta": "",
            "kind": "no DP" if shared else "not shared",
        }
    return {
        "epsilon": brief(worst.best),
        "delta": f"{worst.delta:.1e}",
        "kind": str(worst.kind),
    }


def _gains(result: Result, sites: Sequence[Site], console: Console) -> list[Table]:
    """What each client gains, in one table where it fits, else in several with some of the methods
    each."""
    title = "What each client gains over training alone (accuracy points)"
    others = [name for name in result.final if name != "alone"]
    whole = [
        _gained(result, sites, frame(title), ["examples", "alone", *others], console)
        for frame in FRAMES[:2]
    ]
    whole += [
        _gained(result, sites, frame(title), ["alone", *others], console) for frame in (airy, tight)
    ]
    chosen = fitting(console, whole)
    if natural_width(console, chosen) <= console.width:
        return [chosen]
    parts: list[list[str]] = [["alone"]]
    for name in others:
        wider = _gained(result, sites, tight(), [*parts[-1], name], console)
        if parts[-1] and natural_width(console, wider) > console.width:
            parts.append([])
        parts[-1].append(name)
    return [
        _gained(result, sites, tight(None if i else title), part, console)
        for i, part in enumerate(parts)
    ]


def _gained(
    result: Result, sites: Sequence[Site], table: Table, columns: Sequence[str], console: Console
) -> Table:
    # A long name goes on in the next line rather than push the numbers out.
    table.add_column("client", overflow="fold", max_width=max(8, console.width // 4))
    for column in columns:
        table.add_column(escape(column), justify="right", no_wrap=True)
    for client, site in enumerate(sites):
        fixed = {"examples": str(len(site.y)), "alone": f"{result.accuracy('alone', client):.3f}"}
        table.add_row(
            escape(site.name), *(fixed.get(c) or _signed(result.gain(c, client)) for c in columns)
        )
    return table


def _legend(result: Result) -> Iterable[str]:
    yield "bold: what an institution keeps; macro: mean of the classes' accuracies"
    yield "proxy: after local training; received: after the exchange"
    deltas = sorted({f"{e.delta:.1e}" for e in _epsilons(result)}, key=float)
    if deltas:
        span = deltas[0] if len(deltas) == 1 else f"{deltas[0]} to {deltas[-1]}"
        yield f"epsilon: what sharing cost, largest over clients, at delta {span}"


def _explanations(result: Result) -> Iterable[str]:
    kinds = {r.epsilon.kind for records in result.final.values() for r in records}
    for kind in (Kind.END_TO_END, Kind.CONDITIONAL):
        if kind in kinds:
            yield kind.sentence
    for relation in sorted({e.relation for e in _epsilons(result)}):
        yield relation.sentence
    weak = [e for e in _epsilons(result) if e.weak]
    if weak:
        weakest = shown(largest(weak).best, 0)
        yield f"An epsilon of {weakest} is a weak guarantee: it rules out very little."
    yield (
        "A simulation: its noise can be recomputed from the seed, so these epsilons say what a "
        "real run would cost."
    )


def _epsilons(result: Result) -> Iterable[Epsilon]:
    return (
        r.epsilon
        for records in result.final.values()
        for r in records
        if r.epsilon.kind is not Kind.NONE
    )


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.3f} ({pstdev(values):.3f})" if len(values) > 1 else f"{values[0]:.3f}"


def _signed(gain: float | None) -> str:
    if gain is None:
        return ""
    colour = "green" if gain > 0 else "red" if gain < 0 else "default"
    return f"[{colour}]{gain * 100:+.1f}[/]"
