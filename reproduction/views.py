"""What each ablation compares: scores by the setting that varies. Figures, tables and statements
all look at these.

The setting that the ablations vary is ``both-mlp``; they are compared at the last round at which
all were scored, and over the seeds that all have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reproduction.records import Record, Scores
from reproduction.series import (
    ALONE,
    FEDAVG,
    FML,
    FML_PROXY,
    MODELS,
    PROXYFL,
    PROXYFL_PROXY,
    REGULAR,
    Model,
    Results,
    common_round,
    scores,
)

ARCHITECTURES = {"MLP": (0, 1), "LeNet5": (2, 3), "CNN1": (4, 5), "CNN2": (6, 7)}
"""The clients of the heterogeneous federation by their private model."""

RECEIVED = Model("ProxyFL proxy as received", "proxyfl", "received")
AVGPUSH_RECEIVED = Model("AvgPush as received", "avgpush", "received")


@dataclass(frozen=True)
class View:
    """Scores after ``round`` rounds: for each value of what varies, those of each model."""

    round: int
    scores: Mapping[float | str, Mapping[Model, Scores]]
    alone: Scores
    epsilon: Mapping[float | str, float | None]


def _view(
    round: int,
    found: Mapping[float | str, Mapping[Model, Scores]],
    alone: Scores,
    cost: Mapping[float | str, float | None] | None = None,
) -> View:
    """A view of the seeds that all scores have: a mean over other seeds would compare luck."""
    every = [alone, *(scored for by_model in found.values() for scored in by_model.values())]
    seeds = set.intersection(*({seed for seed, _ in scored} for scored in every))

    def kept(scored: Scores) -> Scores:
        return {key: score for key, score in scored.items() if key[0] in seeds}

    by_value = {
        value: {m: kept(scored) for m, scored in by_model.items()}
        for value, by_model in found.items()
    }
    return View(round, by_value, kept(alone), cost or {})


def skew(results: Results) -> View:
    """By share of the majority class."""
    base, record = results.record("both-mlp"), results.record("skew")
    round = common_round(base, record)
    levels = sorted({g.settings["partition.p_major"] for g in record.groups})
    found: dict[float | str, Mapping[Model, Scores]] = {
        p: {model: scores(record, model, round, partition__p_major=p) for model in MODELS}
        for p in levels
    }
    found[base.base["partition.p_major"]] = {model: scores(base, model, round) for model in MODELS}
    return _view(round, found, scores(base, ALONE, round))


def heterogeneous(results: Results) -> View:
    """By private architecture."""
    record = results.record("heterogeneous")
    round = common_round(record)
    found = {model: scores(record, model, round) for model in (REGULAR, PROXYFL, ALONE)}
    by_name: dict[float | str, Mapping[Model, Scores]] = {
        name: {m: {key: s for key, s in f.items() if key[1] in clients} for m, f in found.items()}
        for name, clients in ARCHITECTURES.items()
    }
    return _view(round, by_name, found[ALONE])


def without_dp(results: Results) -> View:
    """With DP and without."""
    base, free = results.record("both-mlp"), results.record("without-dp")
    round = common_round(base, free)
    models = [model for model in MODELS if free.has(model.method, model.role)]
    found: dict[float | str, Mapping[Model, Scores]] = {
        name: {model: scores(record, model, round) for model in models}
        for name, record in (("without DP", free), ("with DP", base))
    }
    return _view(round, found, scores(base, ALONE, round))


def batch_size(results: Results) -> View:
    """By batch size."""
    base, record = results.record("both-mlp"), results.record("batch-size")
    round = common_round(base, record)
    sources: dict[float | str, tuple[Record, dict[str, Any]]] = {
        base.base["learning.batch_size"]: (base, {})
    }
    for size in {g.settings["learning.batch_size"] for g in record.groups}:
        sources[size] = (record, {"learning__batch_size": size})
    found: dict[float | str, Mapping[Model, Scores]] = {}
    cost: dict[float | str, float | None] = {}
    for size, (source, settings) in sorted(sources.items(), key=lambda item: float(item[0])):
        found[size] = {
            model: scores(source, model, round, **settings) for model in (PROXYFL, PROXYFL_PROXY)
        }
        cost[size] = source.group("proxyfl", "private", **settings).epsilon_at(round)
    return _view(round, found, scores(base, ALONE, round), cost)


def weight(results: Results) -> View:
    """By alpha = beta."""
    base, record = results.record("both-mlp"), results.record("weight")
    round = common_round(base, record)
    sources: dict[float, tuple[Record, dict[str, str]]] = {base.base["learning.alpha"]: (base, {})}
    for variant in {g.settings["variant"] for g in record.groups}:
        sources[float(variant.removeprefix("weight-"))] = (record, {"variant": variant})
    models = (PROXYFL, FML, PROXYFL_PROXY, FML_PROXY)
    found: dict[float | str, Mapping[Model, Scores]] = {
        value: {model: scores(source, model, round, **settings) for model in models}
        for value, (source, settings) in sorted(sources.items())
    }
    return _view(round, found, scores(base, ALONE, round))


def honest(results: Results) -> View:
    """By alpha, with beta = 0."""
    base, record = results.record("both-mlp"), results.record("honest")
    round = common_round(base, record, results.record("weight"))
    alphas = sorted({g.settings["learning.alpha"] for g in record.groups})
    found: dict[float | str, Mapping[Model, Scores]] = {
        alpha: {
            model: scores(record, model, round, learning__alpha=alpha) for model in (PROXYFL, FML)
        }
        for alpha in alphas
    }
    cost: dict[float | str, float | None] = {
        alpha: record.group("proxyfl", "private", learning__alpha=alpha).epsilon_at(round)
        for alpha in alphas
    }
    return _view(round, found, scores(base, ALONE, round), cost)


def mixing(results: Results) -> View:
    """By how proxies mix. Averaging through a hub makes AvgPush FedAvg, and ProxyFL FML."""
    base, half = results.record("both-mlp"), results.record("mixing")
    round = common_round(base, half)
    models = {AVGPUSH_RECEIVED: FEDAVG, RECEIVED: FML_PROXY, PROXYFL: FML}
    found: dict[float | str, Mapping[Model, Scores]] = {
        "permutation": {model: scores(base, model, round) for model in models},
        "self-weight 1/2": {model: scores(half, model, round) for model in models},
        "averaged through a hub": {
            model: scores(base, hub, round) for model, hub in models.items()
        },
    }
    return _view(round, found, scores(base, ALONE, round))


LINEAR, LINEAR_PROXY = (
    Model("private, linear proxy", "proxyfl", "private"),
    Model("linear proxy", "proxyfl", "received"),
)
MLP, MLP_PROXY = (
    Model("private, MLP proxy", "proxyfl", "private"),
    Model("MLP proxy", "proxyfl", "received"),
)
POOLED, POOLED_LINEAR = (
    Model("Joint, MLP", "joint", "proxy"),
    Model("Joint, linear", "joint", "proxy"),
)


def epsilon(results: Results) -> View:
    """By the epsilon asked for; what was spent is in ``epsilon``."""
    record = results.record("epsilon")
    round = common_round(record)
    kinds = {LINEAR: "linear", LINEAR_PROXY: "linear", MLP: "mlp", MLP_PROXY: "mlp"}
    kinds |= {POOLED: "joint", POOLED_LINEAR: "pooled"}
    targets = sorted(
        {int(g.settings["variant"].split("-")[1]) for g in record.groups if g.method == "joint"}
    )
    found: dict[float | str, Mapping[Model, Scores]] = {
        target: {
            model: scores(record, model, round, variant=f"{kind}-{target}")
            for model, kind in kinds.items()
        }
        for target in targets
    }
    cost: dict[float | str, float | None] = {
        target: record.group("proxyfl", "private", variant=f"linear-{target}").epsilon_at(round)
        for target in targets
    }
    return _view(round, found, scores(record, ALONE, round, variant="alone"), cost)
