"""What the paper states about its image benchmarks, tested on the recorded results.

A statement is a list of comparisons, each with a rule that it meets or not. The verdict follows
from them alone: all meet it, some do, none does. Comparisons with ``alone``, which the paper does
not have, are shown and do not count; nor do those of a benchmark that did less than half of its
rounds, nor comparisons with FedAvg's model as it leaves the hub where the paper's code scores it
before the exchange."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from proxyfl.privacy.guarantee import shown
from proxyfl.records.answers import spread
from proxyfl.sweeps.statistics import Comparison
from reproduction import views
from reproduction.records import Record, Scores
from reproduction.series import (
    ALONE,
    AVGPUSH,
    FEDAVG,
    FEDAVG_TRAINED,
    FML,
    FML_PROXY,
    OF_THE_PAPER,
    PROXYFL,
    PROXYFL_PROXY,
    REGULAR,
    Model,
    Results,
    compare,
    scores,
)

P_OF_THE_PAPER = 1e-5
P_CLEAR = 0.05
FEW_POINTS = 0.02
"""What we let pass for "no significant effect on the final accuracy"."""

DATASETS = ("mnist", "fashion-mnist", "cifar10")


@dataclass(frozen=True)
class Row:
    """One comparison: ``ours`` and ``theirs`` are means over clients and over the seeds that both
    have, ``met`` whether the rule is."""

    where: str
    against: str
    ours: float
    theirs: float
    comparison: Comparison
    met: bool
    counts: bool = True
    more: str = ""


@dataclass(frozen=True)
class Statement:
    """A claim, the rule by which a comparison meets it, and the comparisons."""

    name: str
    claim: str
    rule: str
    rows: Sequence[Row]

    @property
    def verdict(self) -> str:
        met = [row.met for row in self.rows if row.counts]
        if not met:
            return "not tested"
        return "holds" if all(met) else "holds partly" if any(met) else "does not hold here"

    @property
    def cautious_verdict(self) -> str:
        """The verdict, which does not say "holds" where chance may have given every comparison that
        meets the rule. For rules that a difference has to meet."""
        if any(row.counts and row.met and beyond_chance(row.comparison) for row in self.rows):
            return self.verdict
        doubted = {"holds": "met, not significant", "holds partly": "met partly, not significant"}
        return doubted.get(self.verdict, self.verdict)

    @property
    def count(self) -> str:
        met = [row.met for row in self.rows if row.counts]
        return f"{sum(met)} of {len(met)}"


def all_of(results: Results) -> list[Statement]:
    """Every statement whose records are there."""
    return [make(results) for needs, make in _STATEMENTS if all(map(results.has, needs))]


def _best(results: Results) -> Statement:
    def rows() -> Iterator[Row]:
        for name, record in _benchmarks(results):
            for model in (*OF_THE_PAPER, ALONE):
                if not record.has(model.method, model.role):
                    continue
                yield _row(name, record, PROXYFL, model, _significant, counts=model is not ALONE)

    return Statement(
        "best",
        "ProxyFL's private models are better than every other method but Joint, p < 1e-5",
        "higher mean, and p < 1e-5 over clients",
        list(rows()),
    )


def _above_fml(results: Results) -> Statement:
    rows = [
        _row(name, record, ours, theirs, higher)
        for name, record in _benchmarks(results)
        for ours, theirs in ((PROXYFL, FML), (PROXYFL_PROXY, FML_PROXY))
    ]
    if results.has("weight") and results.has("both-mlp"):
        rows += [
            difference(f"alpha = beta = {weight}", FML.name, found[PROXYFL], found[FML], higher)
            for weight, found in views.weight(results).scores.items()
        ]
    return Statement("fml", "ProxyFL is better than FML, with every weight", "higher mean", rows)


def _avgpush(results: Results) -> Statement:
    def rows() -> Iterator[Row]:
        for name, record in _benchmarks(results):
            yield _row(name, record, AVGPUSH, FEDAVG_TRAINED, higher)
            yield _row(name, record, AVGPUSH, FEDAVG, higher, counts=False)

    rule = "higher mean, both scored before the exchange, as the released code scores them"
    return Statement("avgpush", "Under DP, AvgPush is better than FedAvg", rule, list(rows()))


def _skew(results: Results) -> Statement:
    found = views.skew(results).scores
    even, skewed = next(iter(found)), list(found)[-1]

    def lost(model: Model) -> Scores:
        return _minus(found[even][model], found[skewed][model])

    rows = [
        difference(
            f"p_major {even} to {skewed}",
            model.name,
            lost(PROXYFL),
            lost(model),
            lower,
            counts=model is not ALONE,
        )
        for model in (*OF_THE_PAPER, PROXYFL_PROXY, ALONE)
    ]
    return Statement(
        "skew", "ProxyFL's private models are the most robust to skew", "loses less accuracy", rows
    )


def _architectures(results: Results) -> Statement:
    found = views.heterogeneous(results).scores
    rows, gains = [], {}
    for name, scored in found.items():
        rows += [
            difference(
                str(name),
                other.name,
                scored[PROXYFL],
                scored[other],
                higher,
                counts=other is not ALONE,
            )
            for other in (REGULAR, ALONE)
        ]
        # clients of two architectures are paired in their order
        first = min(client for _, client in scored[REGULAR])
        gain = _minus(scored[PROXYFL], scored[REGULAR])
        gains[name] = {(seed, client - first): points for (seed, client), points in gain.items()}
    by_strength = sorted(found, key=lambda name: spread(found[name][REGULAR].values()).mean)
    weak, strong = by_strength[0], by_strength[-1]
    rows.append(
        difference(
            f"gain of the weakest, {weak}",
            f"of the strongest, {strong}",
            gains[weak],
            gains[strong],
            _clearly,
        )
    )
    claim = "Every architecture gains over Regular training, the weak ones most"
    rule = (
        f"higher mean; in the last row, which compares two gains, also p < {P_CLEAR} over clients"
    )
    return Statement("architectures", claim, rule, rows)


def _dp(results: Results) -> Statement:
    found = views.without_dp(results).scores

    def lost(model: Model) -> Scores:
        return _minus(found["without DP"][model], found["with DP"][model])

    rows = [
        difference("loss from DP", model.name, lost(PROXYFL), lost(model), lower)
        for model in (*OF_THE_PAPER, PROXYFL_PROXY)
    ]
    return Statement(
        "dp", "ProxyFL's private models lose least from DP", "loses less accuracy", rows
    )


def _batches(results: Results) -> Statement:
    view = views.batch_size(results)
    base = results.record("both-mlp")
    usual, kind = (base.base["learning.batch_size"], base.group("proxyfl", "private").kind)
    rows = [
        difference(
            f"batches of {size}",
            f"batches of {usual}",
            found[PROXYFL],
            view.scores[usual][PROXYFL],
            _hardly_lower,
            more=f"epsilon {_cost(view, size)} for {_cost(view, usual)} ({kind})",
        )
        for size, found in view.scores.items()
        if float(size) < usual
    ]
    rule = f"less than {100 * FEW_POINTS:.0f} points of accuracy lost"
    return Statement("batches", "Small batches buy epsilon cheaply", rule, rows)


_STATEMENTS: Sequence[tuple[Sequence[str], Callable[[Results], Statement]]] = (
    (("mnist",), _best),
    (("mnist",), _above_fml),
    (("mnist",), _avgpush),
    (("both-mlp", "skew"), _skew),
    (("heterogeneous",), _architectures),
    (("both-mlp", "without-dp"), _dp),
    (("both-mlp", "batch-size"), _batches),
)


def _significant(seen: Comparison) -> bool:
    return higher(seen) and _is_below(seen, P_OF_THE_PAPER)


def _clearly(seen: Comparison) -> bool:
    return higher(seen) and beyond_chance(seen)


def beyond_chance(seen: Comparison) -> bool:
    """True if a difference, of whatever sign, is clear over clients."""
    return _is_below(seen, P_CLEAR)


def _is_below(seen: Comparison, limit: float) -> bool:
    p = seen.over_clients.t_test
    return p is not None and p < limit


def higher(seen: Comparison) -> bool:
    return seen.over_clients.difference > 0


def lower(seen: Comparison) -> bool:
    return seen.over_clients.difference < 0


def _hardly_lower(seen: Comparison) -> bool:
    return seen.over_clients.difference > -FEW_POINTS


def _benchmarks(results: Results) -> list[tuple[str, Record]]:
    return [(name, results.record(name)) for name in DATASETS if results.has(name)]


def _row(
    where: str,
    record: Record,
    ours: Model,
    theirs: Model,
    rule: Callable[[Comparison], bool],
    *,
    counts: bool = True,
) -> Row:
    last = record.last_round
    a, b = _of_same_seeds(scores(record, ours, last), scores(record, theirs, last))
    seen = compare(a, b, ours_pooled=ours.pooled, theirs_pooled=theirs.pooled)
    against = theirs.name if ours is PROXYFL else f"{ours.name} against {theirs.name}"
    return Row(
        where,
        against,
        spread(a.values()).mean,
        spread(b.values()).mean,
        seen,
        rule(seen),
        counts and not record.is_early(last),
    )


def difference(
    where: str,
    against: str,
    ours: Scores,
    theirs: Scores,
    rule: Callable[[Comparison], bool],
    *,
    counts: bool = True,
    more: str = "",
) -> Row:
    ours, theirs = _of_same_seeds(ours, theirs)
    seen = compare(ours, theirs)
    means = spread(ours.values()).mean, spread(theirs.values()).mean
    return Row(where, against, *means, seen, rule(seen), counts, more)


def _of_same_seeds(ours: Scores, theirs: Scores) -> tuple[Scores, Scores]:
    """Both without the seeds that only one of them has: another seed is another task."""
    both = {seed for seed, _ in ours} & {seed for seed, _ in theirs}
    mine = {key: score for key, score in ours.items() if key[0] in both}
    other = {key: score for key, score in theirs.items() if key[0] in both}
    return mine, other


def _cost(view: views.View, value: float | str) -> str:
    """The epsilon at a value of what varies, as it is printed."""
    epsilon = view.epsilon[value]
    return "inf" if epsilon is None else shown(epsilon, 1)


def _minus(before: Scores, after: Scores) -> Scores:
    return {key: before[key] - after[key] for key in before if key in after}
