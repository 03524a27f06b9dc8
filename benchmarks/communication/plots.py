"""The figures of docs/research/communication.md. The one home of matplotlib."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("agg")  # files, on machines without a screen

import numpy as np
from matplotlib import pyplot as plt

from benchmarks.communication.link import Link
from benchmarks.communication.measure import Point
from benchmarks.communication.wiremodel import Wire, pattern, predicted, seconds, size_of
from proxyfl.records.palette import BLACK, BLUE, COLOURS, GREEN, ORANGE, PURPLE, SKY, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES: Mapping[str, tuple[str, str]] = {
    "proxyfl": (COLOURS["proxyfl"], "o"),
    "avgpush": (COLOURS["avgpush"], "s"),
    "cwt": (COLOURS["cwt"], "^"),
    "fedavg": (COLOURS["fedavg"], "v"),
    "fml": (COLOURS["fml"], "D"),
}
"""The method's colour, and a marker for print in grey."""

GRAPH_STYLES: Mapping[str, tuple[str, str, str]] = {
    "exponential": (VERMILION, "o", "-"),
    "random": (GREEN, "s", "--"),
    "ring": (PURPLE, "^", ":"),
    "complete": (BLUE, "D", "-."),
}

NAMES = {"mlp": "MLP", "cnn1": "CNN1", "resnet18": "ResNet-18"}


def measured(points: Sequence[Point], wire: Wire | None) -> "Figure":
    """Time per client and round against the number of clients: one panel per model, and one per
    emulated link."""
    panels: dict[tuple[str, float | None, float | None], list[Point]] = {}
    for point in points:
        panels.setdefault((point.model, point.latency, point.bandwidth), []).append(point)
    order = sorted(
        panels, key=lambda key: (key[2] is not None, min(p.parameters for p in panels[key]))
    )
    columns = 2 if len(order) > 1 else 1
    rows = -(-len(order) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 2.8 * rows), squeeze=False)
    for axis, key in zip(axes.flat, order, strict=False):
        _panel(axis, panels[key], wire)
        model, latency, bandwidth = key
        link = (
            "shared memory, shared cores"
            if bandwidth is None
            else f"emulated link {_link(latency, bandwidth)}"
        )
        axis.set_title(f"{NAMES.get(model, model)}: {link}", fontsize=9)
    for axis in axes.flat[len(order) :]:
        axis.axis("off")
    marks, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(marks, labels, loc="lower center", ncol=len(labels), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.06 if rows > 1 else 0.12, 1, 1))
    return figure


def _panel(axis: "Axes", points: Sequence[Point], wire: Wire | None) -> None:
    for method, (colour, marker) in STYLES.items():
        own = sorted((p for p in points if p.method == method), key=lambda p: p.clients)
        if not own:
            continue
        middle = np.array([p.seconds for p in own]) * 1e3
        spread = np.array([[p.seconds - p.low, p.high - p.seconds] for p in own]).T.clip(0) * 1e3
        axis.errorbar(
            [p.clients for p in own],
            middle,
            spread,
            color=colour,
            marker=marker,
            markersize=4,
            linewidth=1.2,
            elinewidth=0.8,
            label=method,
        )
    for kind in ("gossip", "hub"):
        some = {p.clients: p for p in points if pattern(p.method) == kind}
        if some and wire is not None:
            clients = sorted(some)
            model = [predicted(wire, some[n]) * 1e3 for n in clients]
            axis.plot(
                clients,
                model,
                color="black",
                linewidth=0.9,
                linestyle="--" if kind == "hub" else ":",
                label=f"model, {kind}",
            )
    _logarithmic(axis, "clients", "ms per client and round")
    axis.set_xscale("log", base=2)
    ticks = sorted({p.clients for p in points})
    axis.set_xticks(ticks, [str(n) for n in ticks])


def extended(
    wire: Wire, points: Sequence[Point], link: Link, fast_hub: Link, limit: int = 10_000
) -> "Figure":
    """The model's times up to ``limit`` clients, each with its own machine and link, and what was
    measured of them."""
    sizes = {p.model: size_of(p) for p in sorted(points, key=lambda p: p.parameters)}
    wide = replace(wire, cores=None, link=link)
    clients = np.unique(np.geomspace(2, limit, 60).astype(int))
    figure, axes = plt.subplots(
        1, len(sizes), figsize=(3.2 * len(sizes), 3.3), sharey=True, squeeze=False
    )
    for axis, (model, size) in zip(axes.flat, sizes.items(), strict=True):
        faster = replace(wide, hub_link=fast_hub)
        gossip = [seconds(wide, "gossip", int(n), size) for n in clients]
        axis.plot(clients, gossip, color=VERMILION, label="gossip (proxyfl, avgpush, cwt)")
        hub = [seconds(wide, "hub", int(n), size) for n in clients]
        axis.plot(clients, hub, color=ORANGE, linestyle="--", label="hub (fedavg, fml)")
        hub = [seconds(faster, "hub", int(n), size) for n in clients]
        axis.plot(
            clients, hub, color=BLUE, linestyle="-.", label=f"hub with {_rate(fast_hub.bandwidth)}"
        )
        for point in points:
            if (point.model, point.latency, point.bandwidth) == (
                model,
                link.latency,
                link.bandwidth,
            ):
                colour, marker = STYLES[point.method]
                axis.plot(
                    point.clients,
                    point.seconds,
                    marker,
                    color=colour,
                    markersize=5,
                    markeredgecolor="black",
                    markeredgewidth=0.6,
                    label=f"measured, {point.method}",
                )
        axis.set_title(f"{NAMES.get(model, model)}, {size / 1e6:.2g} MB", fontsize=9)
        _logarithmic(axis, "clients", "s per client and round" if axis is axes.flat[0] else "")
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="lower center", ncol=3, frameon=False, fontsize=8
    )
    figure.suptitle(f"Every client behind {_link(link.latency, link.bandwidth)}", fontsize=10)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    return figure


def mixing(rows: Sequence[Mapping[str, Any]], target: float) -> "Figure":
    """Rounds to consensus, and what a client has sent by then, against the number of clients."""
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.1))
    series = {graph: [row for row in rows if row["graph"] == graph] for graph in GRAPH_STYLES}
    # Exact after log2(n) rounds where n is a power of two: one zigzag would hide two smooth curves.
    whole = [row for row in series["exponential"] if row["clients"].bit_count() == 1]
    series = {"exponential, n = 2^k": whole, "exponential, other n": [], **series}
    series["exponential, other n"] = [row for row in series.pop("exponential") if row not in whole]
    for label, some in series.items():
        colour, marker, line = GRAPH_STYLES[label.split(",")[0]]
        own = [row for row in some if row["rounds"] is not None]
        style: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "linestyle": line,
            "markersize": 4,
            "label": label,
        }
        if "other" in label:
            style |= {"markerfacecolor": "white", "linestyle": (0, (3, 1, 1, 1))}
        axes[0].plot([r["clients"] for r in own], [r["rounds"] for r in own], **style)
        axes[1].plot([r["clients"] for r in own], [r["megabytes"] for r in own], **style)
    _logarithmic(axes[0], "clients", f"rounds to an error of {target:g}")
    _logarithmic(axes[1], "clients", "MB sent per client until then")
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def failures(
    curves: Mapping[str, Sequence[float]], absences: Sequence[Mapping[str, Any]], clients: int
) -> "Figure":
    """The error round by round with lost messages; rounds to consensus with absent clients."""
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.1))
    colours = [BLACK, SKY, VERMILION, GREEN, PURPLE, ORANGE]
    for (label, errors), colour in zip(curves.items(), colours, strict=False):
        line = "-"
        if "nothing" in label:
            line = ":"
        elif "lost" in label:
            line = "--"
        axes[0].plot(range(1, len(errors) + 1), errors, color=colour, linestyle=line, label=label)
    axes[0].set_yscale("log")
    axes[0].set_ylim(1e-6, 30)  # room for the legend
    axes[0].set_xlabel("rounds")
    axes[0].set_ylabel("distance from the true mean")
    axes[0].set_title(f"lost messages: exponential, {clients} clients", fontsize=9)
    axes[0].grid(alpha=0.3)
    axes[0].legend(frameon=False, fontsize=7, loc="upper right")
    for graph, (colour, marker, style) in GRAPH_STYLES.items():
        own = [row for row in absences if row["graph"] == graph and row["rounds"] is not None]
        if own:
            axes[1].plot(
                [100 * r["absence"] for r in own],
                [r["rounds"] for r in own],
                color=colour,
                marker=marker,
                linestyle=style,
                markersize=4,
                label=graph,
            )
    axes[1].set_xlabel("clients absent in a round, %")
    axes[1].set_ylabel("rounds to an error of 0.001")
    axes[1].set_ylim(0)
    axes[1].set_title(f"absent clients: {clients} in all", fontsize=9)
    axes[1].grid(alpha=0.3)
    axes[1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def save(figure: "Figure", path: Path) -> Path:
    """Write ``path`` as PNG; equal figures give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".png")
    figure.savefig(written, dpi=160, metadata={"Software": None})
    plt.close(figure)
    return written


def _logarithmic(axis: "Axes", x: str, y: str) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(which="major", alpha=0.3)


def _link(latency: float | None, bandwidth: float | None) -> str:
    return f"{_rate(bandwidth or 0.0)}, {1e3 * (latency or 0.0):g} ms"


def _rate(bandwidth: float) -> str:
    bits = 8 * bandwidth
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
