"""The tables of docs/research/reproduction.md: made from the recorded results, put between markers,
never typed.

<!-- table: benchmarks -->
...
<!-- end -->
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from proxyfl.errors import RunError
from proxyfl.privacy.guarantee import shown
from proxyfl.records.answers import spread
from proxyfl.sweeps.statistics import PairedTest
from reproduction import statements, views
from reproduction.catalogue import EXPERIMENTS, HOME, RESULTS
from reproduction.records import Record, Scores
from reproduction.series import (
    ALONE,
    AVGPUSH,
    FML,
    JOINT,
    MODELS,
    PROXYFL,
    REGULAR,
    Model,
    Results,
    compare,
    scores,
)
from reproduction.statements import DATASETS, Statement

PAGE = HOME / "docs" / "research" / "reproduction.md"
COSTS = (PROXYFL, AVGPUSH, JOINT)
"""Whose epsilon is shown: all who teach each other have ProxyFL's, all other clients AvgPush's."""
_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write() -> None:
    """Make the page's tables anew."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), Results(RESULTS)), encoding="utf-8")


Tables = Mapping[str, Callable[[Results], str]]


def filled(text: str, results: Results, tables: Tables | None = None) -> str:
    """``text`` with every block between markers made from ``results``, by one of ``tables`` (those
    of this page)."""
    known = TABLES if tables is None else tables

    def table(match: re.Match[str]) -> str:
        if match[2] not in known:
            raise RunError(f"There is no table {match[2]!r}. Known: {', '.join(known)}.")
        return f"{match[1]}\n{known[match[2]](results)}\n\n{match[3]}"

    return _BLOCK.sub(table, text)


def overview(results: Results) -> str:
    """What was run: rounds, seeds, time."""
    rows = []
    for name, experiment in EXPERIMENTS.items():
        if not results.has(name):
            rows.append(
                [
                    f"[{name}](../../experiments/{name}.toml)",
                    experiment.place,
                    "not recorded",
                    "",
                    "",
                ]
            )
            continue
        record = results.record(name)
        least, most = (pick(g.rounds[-1] for g in record.groups) for pick in (min, max))
        rounds = str(most) if least == most else f"{least} to {most}"
        seeds = sorted({len(g.seeds) for g in record.groups})
        rows.append(
            [
                f"[{name}](../../experiments/{name}.toml)",
                experiment.place,
                f"{rounds} of {record.rounds}",
                " to ".join(map(str, seeds)) + f" of {len(record.seeds)}",
                f"{core_hours(record):.1f}",
            ]
        )
    return markdown(["experiment", "in the paper", "rounds", "seeds", "core-hours"], rows)


def benchmarks(results: Results) -> str:
    """Final accuracy and macro-accuracy of all models on the three datasets."""
    found = [(name, results.record(name)) for name in DATASETS if results.has(name)]
    rows = []
    for model in MODELS:
        cells = []
        for _, record in found:
            if not record.has(model.method, model.role):
                cells += ["not run", ""]
                continue
            accuracy, macro = (
                scores(record, model, record.last_round, m) for m in ("accuracy", "macro_accuracy")
            )
            cells += [plus_minus(accuracy), f"{spread(macro.values()).mean:.3f}"]
        rows.append([model.name, *cells])
    rows += [
        [f"epsilon of {m.name}", *[cell for _, r in found for cell in (_cost(r, m), "")]]
        for m in COSTS
    ]
    heads = [
        head
        for name, record in found
        for head in (
            f"{EXPERIMENTS[name].title.split(',')[0]}, {record.last_round} rounds",
            "macro",
        )
    ]
    return markdown(["model", *heads], rows)


def skew(results: Results) -> str:
    """Accuracy by share of the majority class."""
    view = views.skew(results)
    rows = []
    for model in MODELS:
        found = [scored[model] for scored in view.scores.values()]
        change = spread(found[-1].values()).mean - spread(found[0].values()).mean
        rows.append([model.name, *map(plus_minus, found), _points(change)])
    return markdown(
        [f"after {view.round} rounds", *(f"p_major {p}" for p in view.scores), "change"], rows
    )


def heterogeneous(results: Results) -> str:
    """Accuracy by private architecture."""
    view = views.heterogeneous(results)
    rows = [
        [
            str(name),
            *map(plus_minus, found.values()),
            *(_against(found[PROXYFL], found[m]) for m in (REGULAR, ALONE)),
        ]
        for name, found in view.scores.items()
    ]
    heads = ["Regular (DP)", "ProxyFL private", "alone", "ProxyFL - Regular", "ProxyFL - alone"]
    return markdown([f"after {view.round} rounds", *heads], rows)


def without_dp(results: Results) -> str:
    """Accuracy with and without DP."""
    view = views.without_dp(results)
    free, under = view.scores["without DP"], view.scores["with DP"]
    rows = [
        [
            m.name,
            plus_minus(free[m]),
            plus_minus(under[m]),
            _points(compare(under[m], free[m]).over_clients.difference),
        ]
        for m in free
    ]
    rows.append([ALONE.name, plus_minus(view.alone), "", ""])
    return markdown([f"after {view.round} rounds", *map(str, view.scores), "change"], rows)


def both_mlp(results: Results) -> str:
    """All models MLP: accuracy at the ablations' round and at the end."""
    record = results.record("both-mlp")
    rounds = sorted(
        {record.last_round} | ({views.skew(results).round} if results.has("skew") else set())
    )
    rows = [[m.name, *(plus_minus(scores(record, m, at)) for at in rounds)] for m in MODELS]
    return markdown(["model", *(f"{at} rounds" for at in rounds)], rows)


def batch_size(results: Results) -> str:
    """Accuracy and epsilon by batch size."""
    view = views.batch_size(results)
    rows = [
        [str(b), *map(plus_minus, found.values()), _epsilon(view.epsilon[b])]
        for b, found in view.scores.items()
    ]
    return markdown(
        [f"batch size, {view.round} rounds", "private", "proxy", "epsilon (PLD, conditional)"], rows
    )


def weight(results: Results) -> str:
    """Accuracy by alpha = beta."""
    view = views.weight(results)
    rows = [
        [str(w), *map(plus_minus, f.values()), _against(f[PROXYFL], f[FML])]
        for w, f in view.scores.items()
    ]
    heads = [model.name for model in next(iter(view.scores.values()))]
    return markdown([f"alpha = beta, {view.round} rounds", *heads, "ProxyFL - FML, private"], rows)


def honest(results: Results) -> str:
    """beta = 0 against beta = alpha, at the same epsilon."""
    own, taught = views.honest(results), views.weight(results)
    rows = []
    for alpha, found in own.scores.items():
        before = taught.scores[alpha][PROXYFL] if alpha in taught.scores else {}
        cells = [plus_minus(before) if before else "", *map(plus_minus, found.values())]
        cost = _against(found[PROXYFL], before) if before else ""
        rows.append([str(alpha), *cells, cost, _against(found[PROXYFL], own.alone)])
    heads = [
        "ProxyFL, beta = alpha: conditional",
        "ProxyFL, beta = 0: end-to-end",
        "FML, beta = 0: end-to-end",
    ]
    first = f"alpha, {own.round} rounds, epsilon {_epsilon(next(iter(own.epsilon.values())))}"
    return markdown(
        [first, *heads, "ProxyFL: beta 0 - beta alpha", "ProxyFL, beta 0 - alone"], rows
    )


def mixing(results: Results) -> str:
    """Permutation, self-weight 1/2, and averaging."""
    view = views.mixing(results)
    rows = []
    for model in next(iter(view.scores.values())):
        found = [scored[model] for scored in view.scores.values()]
        rows.append([model.name, *map(plus_minus, found), _against(found[1], found[0])])
    return markdown(
        [f"after {view.round} rounds", *map(str, view.scores), "1/2 - permutation"], rows
    )


def epsilon(results: Results) -> str:
    """Accuracy by epsilon."""
    view = views.epsilon(results)
    rows = [
        [
            shown(view.epsilon[target] or 0.0, 2),
            *map(plus_minus, found.values()),
            _against(found[views.LINEAR], view.alone),
        ]
        for target, found in view.scores.items()
    ]
    heads = [model.name for model in next(iter(view.scores.values()))]
    table = markdown(
        [f"epsilon (end-to-end), {view.round} rounds", *heads, "private, linear proxy - alone"],
        rows,
    )
    alone = f"`alone`, on the same data and in batches of the same size: {plus_minus(view.alone)}."
    return f"{table}\n\n{alone}"


def verdicts(results: Results) -> str:
    """Each statement of the paper and what we found."""
    found = statements.all_of(results)
    return markdown(
        ["the paper says", "met by", "verdict"],
        [[s.claim, f"{s.count} comparisons", f"**{s.verdict}**"] for s in found],
    )


def _evidence(name: str) -> Callable[[Results], str]:
    def table(results: Results) -> str:
        (statement,) = [s for s in statements.all_of(results) if s.name == name]
        return evidence(statement)

    return table


def evidence(statement: Statement, verdict: str = "") -> str:
    """A statement's comparisons."""
    rows = []
    for row in statement.rows:
        seen = row.comparison
        met = ("yes" if row.met else "no") if row.counts else ("(yes)" if row.met else "(no)")
        rows.append(
            [
                row.where,
                row.against,
                f"{row.ours:.3f}",
                f"{row.theirs:.3f}",
                _points(seen.over_clients.difference),
                _p(seen.over_clients),
                _p(seen.over_seeds),
                str(seen.seeds),
                " ".join(filter(None, (met, row.more))),
            ]
        )
    heads = [
        "where",
        "against",
        "ours",
        "theirs",
        "points",
        "p, clients",
        "p, seeds",
        "seeds",
        "met",
    ]
    table = markdown(heads, rows)
    return f"Rule: {statement.rule}.\n\n{table}\n\nVerdict: **{verdict or statement.verdict}**."


TABLES: Mapping[str, Callable[[Results], str]] = {
    "overview": overview,
    "verdicts": verdicts,
    "benchmarks": benchmarks,
    "skew": skew,
    "heterogeneous": heterogeneous,
    "without-dp": without_dp,
    "both-mlp": both_mlp,
    "batch-size": batch_size,
    "weight": weight,
    "honest": honest,
    "mixing": mixing,
    "epsilon": epsilon,
    **{
        f"statement-{name}": _evidence(name)
        for name in ("best", "fml", "avgpush", "skew", "architectures", "dp", "batches")
    },
}


def core_hours(record: Record) -> float:
    """One core's time for all runs, by the recorded seconds per round."""
    runs = {(str(g.settings), g.method): (g.rounds[-1], len(g.seeds)) for g in record.groups}
    return (
        sum(
            record.seconds_per_round[m] * rounds * seeds for (_, m), (rounds, seeds) in runs.items()
        )
        / 3600
    )


def _cost(record: Record, model: Model) -> str:
    group = record.group(model.method, model.role)
    return f"{_epsilon(group.epsilon_at(record.last_round))} {group.kind}"


def plus_minus(found: Scores) -> str:
    seen = spread(found.values())
    return f"{seen.mean:.3f}" if seen.std is None else f"{seen.mean:.3f} ± {seen.std:.3f}"


def _against(ours: Scores, theirs: Scores) -> str:
    """The mean difference in points, and the p-value over seeds where there is one."""
    seen = compare(ours, theirs)
    p = f", p {_p(seen.over_seeds)}" if seen.over_seeds is not None else ""
    return f"{_points(seen.over_clients.difference)}{p}"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _epsilon(value: float | None) -> str:
    """An epsilon in a table; rounded up."""
    return "" if value is None else shown(value, 1)


def _p(test: PairedTest | None) -> str:
    if test is None or test.t_test is None:
        return ""
    return f"{test.t_test:.0e}" if test.t_test < 0.001 else f"{test.t_test:.3f}"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
