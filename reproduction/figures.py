"""The paper's figures, and ours, from the recorded results, as PNG.

Colours are Okabe and Ito's, which readers with any colour vision tell apart; line style and marker
say it again. Shades and bars are one standard deviation over clients and seeds, as in the paper.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import pyplot as plt

from benchmarks.communication.plots import save
from proxyfl.records.answers import Spread, spread
from proxyfl.records.palette import BLUE, COLOURS, PURPLE, SKY, VERMILION
from reproduction import views
from reproduction.records import Record, Scores
from reproduction.series import (
    ALONE,
    AVGPUSH,
    CWT,
    FEDAVG,
    FML,
    FML_PROXY,
    JOINT,
    MODELS,
    PROXYFL,
    PROXYFL_PROXY,
    REGULAR,
    Model,
    Results,
)
from reproduction.views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES: Mapping[Model, dict[str, Any]] = {
    PROXYFL: {
        "color": COLOURS["proxyfl"],
        "marker": "o",
        "linestyle": "-",
        "linewidth": 2.0,
        "zorder": 4,
    },
    PROXYFL_PROXY: {
        "color": COLOURS["proxyfl"],
        "marker": "o",
        "linestyle": "--",
        "markerfacecolor": "white",
    },
    FML: {"color": COLOURS["fml"], "marker": "D", "linestyle": "-"},
    FML_PROXY: {
        "color": COLOURS["fml"],
        "marker": "D",
        "linestyle": "--",
        "markerfacecolor": "white",
    },
    AVGPUSH: {"color": COLOURS["avgpush"], "marker": "s", "linestyle": "-"},
    FEDAVG: {"color": COLOURS["fedavg"], "marker": "v", "linestyle": "-"},
    CWT: {"color": COLOURS["cwt"], "marker": "^", "linestyle": "-"},
    REGULAR: {"color": COLOURS["regular"], "marker": "x", "linestyle": "-"},
    JOINT: {"color": COLOURS["joint"], "marker": "", "linestyle": ":"},
    ALONE: {
        "color": COLOURS["alone"],
        "marker": "*",
        "linestyle": "-.",
        "linewidth": 2.0,
        "zorder": 3,
    },
}
DATASETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
WIDTH, HEIGHT = 3.5, 3.0

plt.rcParams["axes.titlesize"] = 10


def draw_all(results: Path, to: Path) -> Iterator[Path]:
    """Draw every figure whose records are all there into ``to``; the files written."""
    found = Results(results)
    for name, (needs, draw) in FIGURES.items():
        if all(map(found.has, needs)):
            yield save(draw(found), to / name)


def accuracy(results: Results) -> "Figure":
    """Test accuracy over rounds on the three datasets."""
    return _benchmarks(results, "accuracy", "test accuracy")


def macro_accuracy(results: Results) -> "Figure":
    """Macro-accuracy over rounds on the three datasets."""
    return _benchmarks(results, "macro_accuracy", "macro-accuracy")


def ablations(results: Results) -> "Figure":
    """Skew, different architectures, and DP against none."""
    figure, axes = plt.subplots(
        1, 3, figsize=(3.2 * WIDTH, HEIGHT + 0.7), width_ratios=(1, 1, 1.25)
    )
    _skew(axes[0], views.skew(results))
    _heterogeneous(axes[1], views.heterogeneous(results))
    _without_dp(axes[2], views.without_dp(results))
    legend_below(figure, axes[:1], room=0.2)
    return figure


def appendix(results: Results) -> "Figure":
    """All models MLP, batch size, and the weight of the other model."""
    figure, axes = plt.subplots(1, 3, figsize=(3.2 * WIDTH, HEIGHT + 0.7))
    curves(axes[0], results.record("both-mlp"), "accuracy")
    axes[0].set(title="private and proxy both MLP", ylabel="test accuracy")
    _batch_size(axes[1], views.batch_size(results))
    _weight(axes[2], views.weight(results))
    legend_below(figure, axes[:1], room=0.2)
    return figure


def honest(results: Results) -> "Figure":
    """What the end-to-end guarantee costs, and what averaging on the way gives."""
    figure, axes = plt.subplots(1, 2, figsize=(2.4 * WIDTH, HEIGHT + 0.2))
    own, taught = views.honest(results), views.weight(results)
    alphas = list(own.scores)
    for label, view, style in (
        ("beta = alpha: conditional", taught, {"color": PURPLE, "marker": "s", "linestyle": "--"}),
        ("beta = 0: end-to-end", own, {"color": VERMILION, "marker": "o", "linestyle": "-"}),
    ):
        both = [alpha for alpha in alphas if alpha in view.scores]
        # beside each other, not on top
        at = [float(alpha) + (0.004 if view is own else -0.004) for alpha in both]
        _errorbars(
            axes[0], at, [view.scores[alpha][PROXYFL] for alpha in both], label=label, **style
        )
    _level(axes[0], own.alone, "alone")
    cost = own.epsilon[alphas[0]]
    title = f"after {own.round} rounds, both at epsilon {cost:.1f}"
    axes[0].set(title=title, xlabel="alpha", ylabel="private accuracy")
    axes[0].legend(frameon=False, fontsize=8)
    _mixing(axes[1], views.mixing(results))
    figure.tight_layout()
    return figure


def epsilon(results: Results) -> "Figure":
    """Accuracy against epsilon, end-to-end: what a practitioner asks."""
    view = views.epsilon(results)
    figure, axis = plt.subplots(figsize=(1.9 * WIDTH, 1.25 * HEIGHT))
    purple = {"color": PURPLE, "marker": "^"}
    lines: Mapping[Model, tuple[str, dict[str, Any]]] = {
        views.POOLED_LINEAR: ("Joint (linear)", STYLES[JOINT] | {"marker": "o"}),
        views.POOLED: ("Joint (MLP)", STYLES[JOINT] | {"marker": "^"}),
        views.LINEAR: ("ProxyFL private, linear proxy", STYLES[PROXYFL]),
        views.LINEAR_PROXY: ("ProxyFL linear proxy, as received", STYLES[PROXYFL_PROXY]),
        views.MLP: ("ProxyFL private, MLP proxy", STYLES[PROXYFL] | purple),
        views.MLP_PROXY: ("ProxyFL MLP proxy, as received", STYLES[PROXYFL_PROXY] | purple),
    }
    spent = [cost or 0.0 for cost in view.epsilon.values()]
    for model, (label, style) in lines.items():
        _errorbars(
            axis, spent, [found[model] for found in view.scores.values()], label=label, **style
        )
    _level(axis, view.alone, "alone (never shared, no DP)")
    axis.set_xscale("log")
    axis.set_xticks(spent, [f"{cost:.2g}" for cost in spent])
    axis.minorticks_off()
    axis.set(
        xlabel="epsilon of an institution, end-to-end (PLD, delta 1/1000)", ylabel="test accuracy"
    )
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return figure


FIGURES: Mapping[str, tuple[Sequence[str], Callable[[Results], "Figure"]]] = {
    "accuracy": (("mnist", "fashion-mnist"), accuracy),
    "macro-accuracy": (("mnist", "fashion-mnist"), macro_accuracy),
    "ablations": (("both-mlp", "skew", "heterogeneous", "without-dp"), ablations),
    "appendix": (("both-mlp", "batch-size", "weight"), appendix),
    "honest": (("both-mlp", "weight", "honest", "mixing"), honest),
    "epsilon": (("epsilon",), epsilon),
}
"""Each figure's file, the records that it cannot do without, and what draws it."""


def _benchmarks(results: Results, measure: str, label: str) -> "Figure":
    figure, axes = plt.subplots(1, 3, figsize=(3.2 * WIDTH, HEIGHT + 0.7))
    for axis, (name, title) in zip(axes, DATASETS.items(), strict=True):
        if results.has(name):
            curves(axis, results.record(name), measure)
            axis.set_title(title)
        else:
            axis.set_title(f"{title}: not recorded")
    axes[0].set_ylabel(label)
    legend_below(figure, axes[:1], room=0.2)
    return figure


def curves(axis: "Axes", record: Record, measure: str) -> None:
    for model in MODELS:
        if not record.has(model.method, model.role):
            continue
        group, style = record.group(model.method, model.role), STYLES[model]
        seen = [spread(group.at(round, measure).values()) for round in group.rounds]
        middle, sd = (np.array([s.mean for s in seen]), np.array([s.std or 0.0 for s in seen]))
        every = max(1, len(group.rounds) // 5)
        axis.plot(group.rounds, middle, label=model.name, markersize=4.5, markevery=every, **style)
        axis.fill_between(
            group.rounds, middle - sd, middle + sd, color=style["color"], alpha=0.12, linewidth=0
        )
    axis.set_xlabel("rounds")
    axis.grid(alpha=0.3)


def _skew(axis: "Axes", view: View) -> None:
    for model in MODELS:
        values = [found[model] for found in view.scores.values()]
        _errorbars(axis, view.scores, values, label=model.name, **STYLES[model])
    axis.set(
        title=f"skew (after {view.round} rounds)",
        xlabel="share of the majority class",
        ylabel="test accuracy",
    )


def _heterogeneous(axis: "Axes", view: View) -> None:
    for k, model in enumerate((REGULAR, PROXYFL, ALONE)):
        seen = [spread(found[model].values()) for found in view.scores.values()]
        _bars(
            axis,
            np.arange(len(seen)) + (k - 1) * 0.27,
            seen,
            0.27,
            label=model.name,
            color=STYLES[model]["color"],
        )
    axis.set_xticks(range(len(view.scores)), list(map(str, view.scores)))
    axis.set_title(f"private architectures ({view.round} rounds)")
    _legend_above_bars(axis)


def _without_dp(axis: "Axes", view: View) -> None:
    for k, (label, found) in enumerate(view.scores.items()):
        seen = [spread(scored.values()) for scored in found.values()]
        colour, hatch = ((SKY, "//"), (VERMILION, ""))[k]
        _bars(
            axis,
            np.arange(len(seen)) + (k - 0.5) * 0.4,
            seen,
            0.4,
            label=str(label),
            color=colour,
            hatch=hatch,
        )
        axis.set_xticks(range(len(found)), [m.name.replace(" ", "\n") for m in found], fontsize=6.5)
    axis.set_title(f"DP against none ({view.round} rounds)")
    _legend_above_bars(axis)


def _batch_size(axis: "Axes", view: View) -> None:
    sizes = list(view.scores)
    private = [found[PROXYFL] for found in view.scores.values()]
    _errorbars(axis, sizes, private, label="ProxyFL private", **STYLES[PROXYFL])
    other = axis.twinx()
    other.plot(
        sizes,
        [cost or 0.0 for cost in view.epsilon.values()],
        color=BLUE,
        marker="s",
        linestyle="--",
    )
    other.set_ylabel("epsilon, conditional (dashed)", color=BLUE)
    other.set_ylim(0)
    axis.set_xscale("log")
    axis.set_xticks(sizes, list(map(str, sizes)))
    axis.minorticks_off()
    axis.set(
        title=f"batch size ({view.round} rounds)",
        xlabel="batch size",
        ylabel="private accuracy (solid)",
    )


def _weight(axis: "Axes", view: View) -> None:
    for model in (PROXYFL, PROXYFL_PROXY, FML, FML_PROXY):
        values = [found[model] for found in view.scores.values()]
        _errorbars(axis, view.scores, values, label=model.name, **STYLES[model])
    _level(axis, view.alone, "alone")
    axis.set(
        title=f"DML weight ({view.round} rounds)", xlabel="alpha = beta", ylabel="test accuracy"
    )


def _mixing(axis: "Axes", view: View) -> None:
    looks = {
        "one model": (AVGPUSH, ""),
        "proxy as received": (PROXYFL, "//"),
        "private": (PROXYFL, ""),
    }
    models = next(iter(view.scores.values()))
    for k, (model, (label, (look, hatch))) in enumerate(zip(models, looks.items(), strict=True)):
        seen = [spread(found[model].values()) for found in view.scores.values()]
        _bars(
            axis,
            np.arange(3) + (k - 1) * 0.27,
            seen,
            0.27,
            label=label,
            color=STYLES[look]["color"],
            hatch=hatch,
        )
    axis.set_xticks(
        range(3),
        ["passed on whole\n(permutation)", "half kept,\nhalf sent", "averaged\nthrough a hub"],
    )
    axis.set(title=f"how proxies are mixed ({view.round} rounds)", ylabel="test accuracy")
    _legend_above_bars(axis)


def _bars(axis: "Axes", at: Any, seen: Sequence[Spread], width: float, **style: Any) -> None:
    sd = [s.std or 0.0 for s in seen]
    axis.bar(
        at,
        [s.mean for s in seen],
        width,
        yerr=sd,
        error_kw={"elinewidth": 0.8},
        edgecolor="white",
        **style,
    )
    axis.grid(alpha=0.3, axis="y")
    axis.set_axisbelow(True)


def _legend_above_bars(axis: "Axes") -> None:
    axis.set_ylim(0, 1.18 * axis.get_ylim()[1])
    axis.legend(frameon=False, fontsize=7, loc="upper center", ncol=3, columnspacing=1.2)


def _errorbars(axis: "Axes", at: Any, values: Sequence[Scores], **style: Any) -> None:
    seen = [spread(v.values()) for v in values]
    axis.errorbar(
        list(at),
        [s.mean for s in seen],
        [s.std or 0.0 for s in seen],
        capsize=2,
        elinewidth=0.8,
        markersize=4.5,
        **style,
    )
    axis.grid(alpha=0.3)


def _level(axis: "Axes", scored: Scores, label: str) -> None:
    seen, style = spread(scored.values()), STYLES[ALONE]
    axis.axhline(seen.mean, color=style["color"], linestyle=style["linestyle"], label=label)
    axis.axhspan(
        seen.mean - (seen.std or 0),
        seen.mean + (seen.std or 0),
        color=style["color"],
        alpha=0.1,
        linewidth=0,
    )


def legend_below(figure: "Figure", axes: Sequence["Axes"], *, room: float) -> None:
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="lower center", ncol=5, frameon=False, fontsize=8
    )
    figure.tight_layout(rect=(0, room - 0.05, 1, 1))
