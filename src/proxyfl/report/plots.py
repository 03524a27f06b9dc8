"""Ready plots for notebooks. The one home of plotly's Python interface; the report draws in the
browser instead."""

from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.graph_objects import Figure as Figure

from proxyfl.privacy.guarantee import shown

if TYPE_CHECKING:
    from proxyfl.records.run import Runs

PALETTE = {
    "alone": "#000000",
    "regular": "#0072B2",
    "joint": "#999999",
    "fedavg": "#56B4E9",
    "cwt": "#CC79A7",
    "avgpush": "#009E73",
    "fml": "#E69F00",
    "proxyfl": "#D55E00",
}
"""Okabe and Ito's colours, which readers with any colour vision tell apart."""

DASHES = {"private": "solid", "proxy": "dash", "received": "dot"}


def accuracy(runs: "Runs", measure: str) -> go.Figure:
    """Mean over clients and seeds of every model's score, with a band of one standard deviation."""
    figure = go.Figure()
    metrics = runs.metrics
    for method in dict.fromkeys(metrics["method"]):
        for role, dash in DASHES.items():
            column = f"{role}_{measure}"
            rows = metrics[metrics["method"] == method]
            if column not in rows or rows[column].isna().all():
                continue
            by_round = rows.dropna(subset=[column]).groupby("round")[column]
            mean, spread = by_round.mean(), by_round.std(ddof=0)
            rounds, colour = [r + 1 for r in mean.index], PALETTE.get(method, "#666666")
            edge: dict[str, Any] = {
                "mode": "lines",
                "line": {"width": 0},
                "showlegend": False,
                "hoverinfo": "skip",
            }
            figure.add_scatter(x=rounds, y=mean + spread, **edge)
            figure.add_scatter(
                x=rounds, y=mean - spread, fill="tonexty", fillcolor=_faint(colour), **edge
            )
            figure.add_scatter(
                x=rounds,
                y=mean,
                mode="lines",
                name=f"{method}, {role}",
                line={"color": colour, "dash": dash},
            )
    return _titled(
        figure,
        "Mean over clients and seeds; bands: one standard deviation",
        "round",
        words(measure),
    )


def gain(runs: "Runs", measure: str) -> go.Figure:
    """What each client gains over ``alone``, in points, one mark per run."""
    figure, gains = go.Figure(), runs.gains
    column = "macro_gain" if measure == "macro_accuracy" else "gain"
    for method in dict.fromkeys(gains["method"]):
        rows = gains[(gains["method"] == method) & gains[column].notna()]
        if method == "alone" or rows.empty:
            continue
        hover = [
            f"epsilon {shown(e)} ({kind})"
            for e, kind in zip(rows["epsilon"], rows["epsilon_kind"], strict=True)
        ]
        figure.add_scatter(
            x=100 * rows[column],
            y=rows["name"],
            mode="markers",
            name=method,
            text=hover,
            marker={"color": PALETTE.get(method, "#666666"), "size": 10},
        )
    figure.add_vline(x=0, annotation_text="alone")
    return _titled(
        figure,
        "What each client gains over training alone",
        f"points of {words(measure)}",
        "client",
    )


def epsilon(runs: "Runs", _measure: str) -> go.Figure:
    """The largest epsilon over clients as rounds go by, per method, with its kind in the name."""
    figure, metrics = go.Figure(), runs.metrics
    best = metrics[["epsilon_rdp", "epsilon_pld"]].min(axis=1)
    for (method, kind), rows in metrics.assign(best=best).groupby(
        ["method", "epsilon_kind"], sort=False
    ):
        if kind != "none":
            largest = rows.groupby("round")["best"].max()
            figure.add_scatter(
                x=[r + 1 for r in largest.index],
                y=largest,
                mode="lines",
                name=f"{method} ({kind})",
                line={"color": PALETTE.get(method, "#666666")},
            )
    return _titled(figure, "Epsilon, largest over clients", "round", "epsilon")


def words(measure: str) -> str:
    """The measure as a reader says it."""
    return measure.replace("macro_", "macro-")


def _titled(figure: go.Figure, title: str, x: str, y: str) -> go.Figure:
    return figure.update_layout(title=title, xaxis_title=x, yaxis_title=y, template="plotly_white")


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.12)"
