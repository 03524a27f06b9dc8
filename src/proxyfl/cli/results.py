"""The end of a run in words and tables: what each model reached, at which price, and who gained by joining."""

from collections.abc import Iterable, Sequence
from statistics import mean, pstdev

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl.experiment.build import Site
from proxyfl.experiment.runner import Result
from proxyfl.federation.methods import Role
from proxyfl.federation.rounds import ClientRound
from proxyfl.privacy.accounting import Epsilon, Kind


def show_result(result: Result, sites: Sequence[Site], console: Console | None = None) -> None:
    """Print the comparison of methods, then each client's gain or loss against ``alone``, then where it all lies."""
    console = console or Console()
    console.print(_comparison(result))
    if "alone" in result.final and len(result.final) > 1:
        console.print(_gains(result, sites))
        for line in verdicts(result):
            console.print(line, highlight=False, markup=False)
    elif "alone" not in result.final:
        console.print("Not compared with training alone: add `alone` to methods to see what joining is worth.")
    for line in _explanations(result):
        console.print(line, style="dim", highlight=False)
    if result.out is not None:
        console.print(f"Recorded in {result.out}", highlight=False, markup=False, soft_wrap=True)


def verdicts(result: Result) -> list[str]:
    """One honest sentence per method that shares: how many clients gain, and how much on average."""
    sentences = []
    for name, method in result.methods.items():
        if method.exchange == "none" or name not in result.final:
            continue
        gains = [result.gain(name, r.client) or 0.0 for r in result.final[name]]
        better, worse = sum(g > 0 for g in gains), sum(g < 0 for g in gains)
        sentences.append(
            f"{name}: {better} of {len(gains)} clients end above training alone, {worse} below; on average they "
            f"{_on_average(mean(gains))} ({min(gains) * 100:+.1f} to {max(gains) * 100:+.1f})."
        )
    return sentences


def _on_average(gain: float) -> str:
    points = f"{abs(gain) * 100:.1f} points"
    return "neither gain nor lose" if points == "0.0 points" else f"{'gain' if gain > 0 else 'lose'} {points}"


def _comparison(result: Result) -> Table:
    table = Table(title="Test accuracy, mean over clients (standard deviation)")
    for column in ("method", "model", "accuracy", "macro", "epsilon", "delta", "kind"):
        # Nothing is cut: an epsilon without its whole kind would mislead. All of it fits into 80 columns.
        table.add_column(
            column, justify="right" if column in ("accuracy", "macro", "epsilon") else "left", no_wrap=True
        )
    for name, records in result.final.items():
        for role in records[0].scores:
            kept = role == result.methods[name].keeps
            accuracies = [r.scores[role].accuracy for r in records if role in r.scores]
            macros = [r.scores[role].macro_accuracy for r in records if role in r.scores]
            table.add_row(
                escape(name), role, _spread(accuracies), f"{mean(macros):.3f}", *_cost(records, role),
                style="bold" if kept else None,
            )  # fmt: skip
    table.caption = (
        "bold: what an institution keeps; macro: mean of the classes' accuracies;\n"
        "proxy: after local training; received: after the exchange;\n"
        "epsilon: what sharing cost, largest over clients"
    )
    return table


def _cost(records: Sequence[ClientRound], role: Role) -> tuple[str, str, str]:
    """What releases cost: a private model is never released, but the proxy it learnt beside is."""
    worst = max((r.epsilon for r in records), key=lambda e: e.best)
    if worst.kind is Kind.NONE:
        return ("", "", "not shared") if role == "private" else ("inf", "", "no DP")
    return f"{worst.best:.2f}", f"{worst.delta:.1e}", str(worst.kind)


def _gains(result: Result, sites: Sequence[Site]) -> Table:
    others = [name for name in result.final if name != "alone"]
    table = Table(title="What each client gains over training alone (accuracy points)")
    table.add_column("client")
    table.add_column("examples", justify="right")
    table.add_column("alone", justify="right")
    for name in others:
        table.add_column(escape(name), justify="right")
    for client, site in enumerate(sites):
        gains = [result.gain(name, client) for name in others]
        table.add_row(
            escape(site.name), str(len(site.y)), f"{result.accuracy('alone', client):.3f}",
            *(_signed(g) if g is not None else "" for g in gains),
        )  # fmt: skip
    return table


def _explanations(result: Result) -> Iterable[str]:
    kinds = {r.epsilon.kind for records in result.final.values() for r in records}
    if Kind.END_TO_END in kinds:
        yield "end-to-end: covers everything that left the house, for every record of the client."
    if Kind.CONDITIONAL in kinds:
        yield (
            "conditional: holds only with the private model taken as fixed; the proxy learns from it (beta > 0), and "
            "it saw all data without DP. See docs/privacy.md. Set learning.beta=0 for an end-to-end guarantee."
        )
    weak = [e for e in _epsilons(result) if 10 < e.best < float("inf")]
    if weak:
        yield f"An epsilon of {max(e.best for e in weak):.0f} is a weak guarantee: it rules out very little."
    yield "A simulation: its noise can be recomputed from the seed, so these epsilons say what a real run would cost."


def _epsilons(result: Result) -> Iterable[Epsilon]:
    return (r.epsilon for records in result.final.values() for r in records if r.epsilon.kind is not Kind.NONE)


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.3f} ({pstdev(values):.3f})" if len(values) > 1 else f"{values[0]:.3f}"


def _signed(gain: float) -> str:
    colour = "green" if gain > 0 else "red" if gain < 0 else "default"
    return f"[{colour}]{gain * 100:+.1f}[/]"
